"""The real program: killed, on several devices, and in several processes."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]


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
        "--save_checkpoints_steps=10",
        "--learning_rate=0.01",
        "--num_warmup_steps=5",
    ]


def values(output_dir):
    prefix = checkpoints.latest(str(output_dir))
    read = checkpoints.reader(prefix)
    return {name: read(name) for name in checkpoints.read_table(prefix)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_ends_with_the_unbroken_runs_bits(
    data_dir, config, tmp_path, number
):
    """Kill the real program after its first checkpoint, run it again."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(data_dir, config[0], whole), check=True)
    process = subprocess.Popen(command(data_dir, config[0], broken))
    while not list(broken.glob("ckpt-*.index")) and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, number)
    status = process.wait()
    assert status == (0 if number == signal.SIGTERM else -number)
    subprocess.run(command(data_dir, config[0], broken), check=True)
    expected, found = values(whole), values(broken)
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_array_equal(expected[name], found[name], name)
    assert int(found["optimizer/iterations"]) == 60


def free_ports(number):
    """Return ports that nothing listens on at the moment."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start_workers(line, number=2):
    """Start a program once for each worker of a cluster on this machine."""
    workers = [f"localhost:{port}" for port in free_ports(number)]
    processes = []
    for index in range(number):
        task = {"type": "worker", "index": index}
        cluster = {"cluster": {"worker": workers}, "task": task}
        environment = os.environ | {"TF_CONFIG": json.dumps(cluster)}
        processes.append(
            subprocess.Popen(
                line, env=environment, stderr=subprocess.PIPE, text=True
            )
        )
    return processes


def outcome(processes):
    """Return the exit codes and what the processes wrote to stderr."""
    told = [process.communicate(timeout=300)[1] for process in processes]
    return [process.returncode for process in processes], told


def test_replicas_and_workers_equal_one_device(data_dir, config, tmp_path):
    """1, 2 and 4 replicas and 2 worker processes end with the same weights."""
    forms = {
        "one": [],
        "two": ["--num_cpu_replicas=2"],
        "four": ["--num_cpu_replicas=4"],
    }
    tables = {}
    for name, more in forms.items():
        line = command(data_dir, config[0], tmp_path / name) + more
        subprocess.run(line, check=True)
        tables[name] = values(tmp_path / name)
    line = command(data_dir, config[0], tmp_path / "workers")
    codes, told = outcome(start_workers(line))
    assert codes == [0, 0], told
    tables["workers"] = values(tmp_path / "workers")
    one = tables.pop("one")
    for name, found in tables.items():
        assert found.keys() == one.keys()
        difference = max(np.abs(one[n] - found[n]).max() for n in one)
        assert 0 < difference < 1e-5, name
    assert tf.io.gfile.exists(str(tmp_path / "four" / "curves.png"))


def test_a_stop_of_one_worker_stops_and_resumes_both(
    data_dir, config, tmp_path
):
    """SIGTERM at one worker: both save and exit 0; the bits do not change."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    codes, told = outcome(start_workers(command(data_dir, config[0], whole)))
    assert codes == [0, 0], told
    line = command(data_dir, config[0], broken)
    processes = start_workers(line)
    while not list(broken.glob("ckpt-*.json")) and not processes[0].poll():
        time.sleep(0.02)
    processes[1].send_signal(signal.SIGTERM)
    codes, told = outcome(processes)
    assert codes == [0, 0], told
    assert "Stopped by SIGTERM" in told[0]
    codes, told = outcome(start_workers(line))
    assert codes == [0, 0], told
    assert "Resuming at step" in told[0]
    expected, found = values(whole), values(broken)
    for name in expected:
        np.testing.assert_array_equal(expected[name], found[name], name)


def test_a_tpu_name_that_does_not_resolve_is_one_line(
    data_dir, config, tmp_path
):
    """No stack trace: the name, the reason, exit status 1."""
    line = command(data_dir, config[0], tmp_path / "tpu")
    for name in ("grpc://localhost:1", "local"):
        done = subprocess.run(
            [*line, f"--tpu_name={name}"], capture_output=True, text=True
        )
        errors = [x for x in done.stderr.splitlines() if x.startswith("error:")]
        assert done.returncode == 1
        assert len(errors) == 1 and f"tpu_name={name}" in errors[0]
        assert "Traceback" not in done.stderr
