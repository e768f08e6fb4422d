"""If a worker vanishes, freezes or differs, all workers end."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from test_pretraining_processes import (
    command,
    errors,
    outcome,
    start_workers,
    values,
)

pytestmark = pytest.mark.slow

# `pretrain.py` with shorter timeouts.
PROGRAM = (
    "from albert_tf.training import workers\n"
    "from albert_tf.training.pretraining import pretrain\n"
    "workers.SILENCE_SECONDS = 8\n"
    "pretrain.cli()"
)


def impatient(line):
    """Return a command that runs `PROGRAM` instead of `pretrain.py`."""
    return [sys.executable, "-c", PROGRAM, *line[2:]]


def wait_for_checkpoint(folder, processes):
    """Wait until a folder contains a new checkpoint."""
    before = set(folder.glob("ckpt-*.json"))
    while set(folder.glob("ckpt-*.json")) <= before:
        assert {process.poll() for process in processes} == {None}
        time.sleep(0.02)


def ends(folder, processes, number, what):
    """Send a signal to one worker; return the other workers' errors."""
    wait_for_checkpoint(folder, processes)
    victim = processes[number]
    victim.send_signal(what)
    others = [process for process in processes if process is not victim]
    start = time.monotonic()
    try:
        told = [other.communicate(timeout=120)[1] for other in others]
    finally:
        for process in processes:
            process.kill()
    print(what.name, number, f"{time.monotonic() - start:.1f} s")
    assert [other.returncode for other in others] == [1] * len(others), told
    return [error for text in told for error in errors(text)]


def test_a_worker_that_vanishes_ends_the_others(
    data_dir, deep_config, tmp_path
):
    """If a worker is killed or frozen, all of the 2 or 4 workers end.

    A single process can resume the run.
    """
    schedules = ["--depth_schedule=1:0.5,2", "--do_eval"]
    line = command(data_dir, deep_config[0], tmp_path / "broken") + schedules
    folder = tmp_path / "broken"
    killed = ends(folder, start_workers(impatient(line)), 1, signal.SIGKILL)
    frozen = ends(folder, start_workers(impatient(line), 4), 0, signal.SIGSTOP)
    assert len(killed) == 1 and len(frozen) == 3
    for error in killed + frozen:
        assert "has ended or stopped responding" in error
    assert "error: worker 1 at localhost:" in killed[0]
    assert any("error: worker 0 at localhost:" in error for error in frozen)
    alone = subprocess.run(line, check=True, capture_output=True, text=True)
    assert "hosts was 4 and is 1: another order of examples" in alone.stderr
    found = values(folder)
    assert found["optimizer/iterations"] == 60
    assert all(np.isfinite(value).all() for value in found.values())


def test_workers_that_differ_are_refused(data_dir, config, tmp_path):
    """If the settings of workers differ, all fail instead of waiting."""
    line = command(data_dir, config[0], tmp_path / "model")
    other = [*line, "--steps_per_loop=3"]
    codes, told = outcome(start_workers([line, line, other], 3))
    assert codes == [1, 1, 1], told
    endings = ["=5, but another value in worker 2"] * 2
    endings += ["=3, but another value in worker 0, worker 1"]
    for text, ending in zip(told, endings, strict=True):
        (error,) = errors(text)
        assert "must have the same `steps_per_loop`" in error
        assert error.endswith(ending)
    assert not (tmp_path / "model").exists()
