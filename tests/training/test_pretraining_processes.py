"""Runs that are killed, or that use several devices or processes.

If a worker vanishes, freezes or has different settings, all workers end.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import programs
import pytest
import tensorflow as tf
import tiny
import tiny_tasks
from tiny_pretraining import assert_same_bits, values
from tiny_runs import predictions

from albert_tf.base import files
from albert_tf.training.history import History

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


def command(data_dir, config_file, output_dir):
    return [
        sys.executable,
        str(ROOT / "pretrain.py"),
        f"--data_dir={data_dir}",
        f"--albert_config_file={config_file}",
        f"--output_dir={output_dir}",
        "--num_train_steps=60",
        "--train_batch_size=8",
        "--eval_batch_size=8",
        "--eval_steps=20",
        "--steps_per_loop=5",
        "--save_checkpoints_steps=5",
        "--learning_rate=0.01",
        "--num_warmup_steps=5",
    ]


def run(line):
    """Run a command to completion; return the completed process."""
    done = programs.run(*line[1:])
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def config(tokenizer, tmp_path_factory):
    """Return the config file of a one-layer model, for fast tracing."""
    changes = {"vocab_size": tokenizer.vocab_size, "num_hidden_layers": 1}
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(dataclasses.replace(tiny.CONFIG, **changes).to_json())
    return path


@pytest.fixture(scope="module")
def unbroken(data_dir, config, tmp_path_factory):
    """Return the model directory of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("unbroken") / "model"
    run(command(data_dir, config, folder))
    return folder


def test_a_killed_run_ends_with_the_unbroken_runs_bits(
    unbroken, data_dir, config, tmp_path
):
    """Interrupting a run does not change a single bit of its result.

    The run is interrupted by SIGKILL, SIGTERM and SIGINT in turn, and resumed
    each time.
    """
    broken = tmp_path / "broken"
    line = command(data_dir, config, broken)
    codes = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 0}
    for number, code in (codes | {signal.SIGINT: 130}).items():
        before = set(broken.glob("ckpt-*.index"))
        process = subprocess.Popen(line)
        while before >= set(broken.glob("ckpt-*.index")):
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, number)
        assert process.wait() == code
    run(line)
    assert_same_bits(unbroken, broken)
    assert int(values(broken)["optimizer/iterations"]) == 60


def assert_equal_figures(left, right):
    """Require equal held-out metrics, up to rounding, at steps 20, 40, 60."""
    expected, found = (
        [r for r in History.read(str(x)).rows if r.pop("split") == "eval"]
        for x in (left, right)
    )
    assert [r["step"] for r in expected] == [20, 40, 60]
    for one, other in zip(expected, found, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def free_ports(number):
    """Return ports that are currently free."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in opened:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in opened]


def start_workers(line, number=2):
    """Start a process for each worker on this machine; return the processes.

    Args:
      line: the command of all workers, or a list with one for each worker.
      number: the number of workers.
    """
    workers = [f"localhost:{port}" for port in free_ports(number)]
    lines = line if isinstance(line[0], list) else [line] * number
    processes = []
    for index in range(number):
        task = {"type": "worker", "index": index}
        cluster = {"cluster": {"worker": workers}, "task": task}
        environment = os.environ | {"TF_CONFIG": json.dumps(cluster)}
        how = {"env": environment, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(lines[index], **how))
    return processes


def outcome(processes):
    """Return the exit codes and the standard error output of processes."""
    try:
        printed = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()  # a worker may wait forever
    return [process.returncode for process in processes], printed


@pytest.fixture(scope="module")
def two_workers(data_dir, config, tmp_path_factory):
    """Return the model directory of a run by two workers."""
    folder = tmp_path_factory.mktemp("workers") / "model"
    codes, printed = outcome(start_workers(command(data_dir, config, folder)))
    assert codes == [0, 0], printed
    return folder


# Runs the program in one process, with both workers' batches.
BOTH_WORKERS = """
import functools, sys
import tensorflow as tf
from albert_tf.data.records import input_pipeline
from albert_tf.training.pretraining.pretrain import cli

read = input_pipeline.train_batches

def both(*place, batch_size, num_shards, shard, **more):
    parts = [
        read(*place, batch_size=batch_size // 2, num_shards=2, shard=n, **more)
        for n in range(2)
    ]
    join = lambda *x: tf.nest.map_structure(lambda *y: tf.concat(y, 0), *x)
    return tf.data.Dataset.zip(*parts).map(join)

input_pipeline.train_batches = both
cli()
"""


def test_replicas_and_workers_equal_one_device(
    unbroken, two_workers, data_dir, config, tmp_path
):
    """On equal batches, replicas and workers reach the weights of one device.

    Four replicas read the files that one device reads; two workers read
    different files.
    """
    replicas, both = tmp_path / "replicas", tmp_path / "both"
    run([*command(data_dir, config, replicas), "--num_cpu_replicas=4"])
    line = command(data_dir, config, both)
    line[1:2] = ["-c", BOTH_WORKERS]
    run(line)
    for alone, folder in [(unbroken, replicas), (both, two_workers)]:
        assert_equal_figures(alone, folder)
        one, several = values(alone), values(folder)
        assert several.keys() == one.keys()
        difference = max(np.abs(one[n] - several[n]).max() for n in one)
        assert 0 < difference < 1e-5, folder
    assert tf.io.gfile.exists(str(replicas / "curves.png"))


def errors(text):
    """Return the error lines of a text, which must contain no stack trace."""
    assert "Traceback" not in text
    return [x for x in text.splitlines() if x.startswith("error:")]


def test_workers_without_a_shared_disk_are_refused(data_dir, config, tmp_path):
    """If workers resume at different steps, all fail and state the steps."""
    folders = [tmp_path / "chief", tmp_path / "other"]
    lines = [command(data_dir, config, folder) for folder in folders]
    whole = [[*line, "--stop_step=20"] for line in lines]
    codes, printed = outcome(start_workers(whole))
    assert codes == [0, 0], printed
    assert not folders[1].exists()
    codes, printed = outcome(start_workers(lines))
    assert codes == [1, 1], printed
    for text, folder in zip(printed, folders, strict=True):
        (line,) = errors(text)
        assert line.endswith(f"={folder}, worker 0 at 20, worker 1 at 0")
    alone = [[*line, "--do_train=false", "--do_eval"] for line in lines]
    codes, printed = outcome(start_workers(alone))
    assert codes == [1, 1], printed
    assert "Another worker failed; see its error" in errors(printed[0])[0]
    assert "must contain a checkpoint" in errors(printed[1])[0]


def test_workers_share_a_refusal(data_dir, config, tmp_path):
    """If the chief finds a locked folder, other workers stop, too."""
    output = tmp_path / "model"
    output.mkdir()
    line = command(data_dir, config, output)
    with files.locked(str(output), "output_dir"):
        codes, printed = outcome(start_workers(line))
    assert codes == [1, 1], printed
    assert "another run is still writing to it" in errors(printed[0])[0]
    assert "Another worker failed; see its error" in errors(printed[1])[0]
    assert not list(output.iterdir())


def test_two_workers_fine_tune_as_one(shallow, opinions, tmp_path):
    """Two processes reach the metrics and the predictions of one process.

    Both start from the first worker's model, even if the second worker reads a
    different model.
    """
    line = [
        sys.executable,
        str(ROOT / "finetune.py"),
        f"--model_dir={shallow}",
        *(f"--{name}={value}" for name, value in opinions.items()),
        *("--do_train", "--do_eval", "--do_predict", "--max_seq_length=16"),
        *("--num_train_steps=20", "--eval_steps=10", "--eval_batch_size=16"),
        *("--train_batch_size=16", "--learning_rate=0.01"),
        *("--classifier_dropout=0", "--num_warmup_steps=5"),
    ]
    one, two = tmp_path / "one", tmp_path / "two"
    run([*line, f"--output_dir={one}"])
    several = [*line, f"--output_dir={two}", "--gradient_accumulation_steps=2"]
    how = {"num_hidden_layers": 1, "initializer_range": 0.2}
    other = tiny_tasks.make_model_dir(tmp_path, **how)
    other = [*several, f"--model_dir={other}"]
    codes, printed = outcome(start_workers([several, other]))
    assert codes == [0, 0], printed
    for name in ("eval", "predict"):
        expected, found = (
            json.loads((folder / "metrics.json").read_text())[name]
            for folder in (one, two)
        )
        assert found == pytest.approx(expected, rel=1e-4)
    for name in ("eval_predictions.tsv", "predictions.tsv"):
        expected, found = (predictions(folder / name) for folder in (one, two))
        assert [r["id"] for r in found] == [r["id"] for r in expected]
        p = [[float(r["p(good)"]) for r in rows] for rows in (expected, found)]
        np.testing.assert_allclose(*p, atol=1e-4)


def test_a_stop_of_one_worker_stops_and_resumes_both(
    two_workers, data_dir, config, tmp_path
):
    """After SIGTERM to one worker, both save, exit with 0 and can resume.

    The final result is bit-identical to an uninterrupted run's result.
    """
    broken = tmp_path / "broken"
    line = command(data_dir, config, broken)
    processes = start_workers(line)
    while not list(broken.glob("ckpt-*.json")) and not processes[0].poll():
        time.sleep(0.02)
    processes[1].send_signal(signal.SIGTERM)
    codes, printed = outcome(processes)
    assert codes == [0, 0], printed
    assert "Stopped by SIGTERM" in printed[0]
    codes, printed = outcome(start_workers(line))
    assert codes == [0, 0], printed
    assert "Resuming at step" in printed[0]
    assert_same_bits(two_workers, broken)
    note = "Note: hosts was 2 and is 1: another order of examples, with some "
    note += "twice in this epoch and others never"
    assert note in run(line).stderr


def test_workers_share_a_budget(data_dir, config, tmp_path):
    """The chief's clock determines choices and steps for both workers.

    If a worker does not see the chief's checkpoint, both workers fail.
    """
    output = tmp_path / "model"
    plain = command(data_dir, config, output)
    line = [x for x in plain if "steps" not in x] + ["--budget_hours=0.01"]
    line.append("--gradient_accumulation_steps=2")
    codes, printed = outcome(start_workers(line))
    assert codes == [0, 0], printed
    step = int(values(output)["optimizer/iterations"])
    flags = (output / "run.flags").read_text()
    assert f"--num_train_steps={step}\n" in flags
    elsewhere = [*line, f"--output_dir={tmp_path / 'elsewhere'}"]
    codes, printed = outcome(start_workers([line, elsewhere]))
    assert codes == [1, 1], printed
    for text in printed:
        assert "same `seconds used in output_dir`" in errors(text)[0]


def test_a_tpu_name_that_does_not_resolve_is_one_line(
    data_dir, config, tmp_path
):
    """An unresolved TPU name causes a one-line error with exit status 1."""
    line = command(data_dir, config, tmp_path / "tpu")
    for name in ("grpc://localhost:1", "local"):
        named = [*line, f"--tpu_name={name}"]
        done = programs.run(*named[1:])
        (error,) = errors(done.stderr)
        assert done.returncode == 1 and f"tpu_name={name}" in error


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
        printed = [other.communicate(timeout=120)[1] for other in others]
    finally:
        for process in processes:
            process.kill()
    print(what.name, number, f"{time.monotonic() - start:.1f} s")
    assert [other.returncode for other in others] == [1] * len(others), printed
    return [error for text in printed for error in errors(text)]


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
    line = command(data_dir, config, tmp_path / "model")
    other = [*line, "--steps_per_loop=3"]
    codes, printed = outcome(start_workers([line, line, other], 3))
    assert codes == [1, 1, 1], printed
    endings = ["=5, but another value in worker 2"] * 2
    endings += ["=3, but another value in worker 0, worker 1"]
    for text, ending in zip(printed, endings, strict=True):
        (error,) = errors(text)
        assert "must have the same `steps_per_loop`" in error
        assert error.endswith(ending)
    assert not (tmp_path / "model").exists()
