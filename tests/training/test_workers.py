"""Connecting workers, and errors about missing workers."""

import contextlib
import faulthandler
import json
import re
import signal
import socket
import subprocess
import sys
import types
from unittest import mock

import pytest
import tensorflow as tf
from tiny_training import set_cluster

from albert_tf.base.errors import InputError
from albert_tf.training import workers
from albert_tf.training.distribution import DistributionConfig, prepare_devices
from albert_tf.training.workers import (
    explaining_lost_workers,
    read_cluster,
    wait_for_workers,
)

WORKERS = {"worker": ["localhost:1", "localhost:2"]}
TASK = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    "config",
    [
        "garbage",
        {"cluster": WORKERS},
        {"cluster": WORKERS, "task": {"type": "worker"}},
        {"cluster": WORKERS, "task": {"type": "worker", "index": 2}},
        {"cluster": WORKERS, "task": {"type": "worker", "index": -1}},
        {"cluster": WORKERS, "task": {"type": "evaluator", "index": 0}},
        {"cluster": {**WORKERS, "ps": ["localhost:3"]}, "task": TASK},
        {"cluster": {"worker": "localhost:1"}, "task": TASK},
        {"cluster": {"worker": ["localhost"]}, "task": TASK},
        {"cluster": {"worker": ["localhost:65536"]}, "task": TASK},
        {"cluster": {"worker": ["localhost:0"]}, "task": TASK},
        {"cluster": {"worker": ["localhost:1"] * 2}, "task": TASK},
        {"cluster": {**WORKERS, "chief": ["localhost:2"]}, "task": TASK},
    ],
    ids=str,
)
def test_a_wrong_tf_config_is_refused(config, monkeypatch):
    """The error for a wrong TF_CONFIG quotes the value and a valid example."""
    text = config if isinstance(config, str) else json.dumps(config)
    monkeypatch.setenv("TF_CONFIG", text)
    for strategy in ("auto", "multi_worker"):
        devices = DistributionConfig(distribution_strategy=strategy)
        with pytest.raises(InputError) as error:
            prepare_devices(devices)
        assert str(error.value).startswith(
            '`TF_CONFIG` must look like {"cluster"'
        )
        assert str(error.value).endswith(f"TF_CONFIG={text}")


def test_a_cluster_may_have_a_chief(monkeypatch):
    """`read_cluster` returns {job: addresses}, or {} without TF_CONFIG."""
    assert read_cluster() == {}
    cluster = {"worker": ["localhost:1", "h:65535"], "chief": ["[::1]:3"]}
    for index in (0, 1):
        set_cluster(monkeypatch, cluster, index)
        assert read_cluster() == cluster
    monkeypatch.setenv("TF_CONFIG", "")
    assert read_cluster() == {}


@pytest.mark.parametrize("config", [None, "", "{}"])
def test_workers_need_a_tf_config(config, monkeypatch):
    """The error for `multi_worker` without workers names TF_CONFIG."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config)
    workers.multi_worker_strategy.cache_clear()
    devices = DistributionConfig(distribution_strategy="multi_worker")
    with pytest.raises(InputError, match="`TF_CONFIG` must be set with"):
        prepare_devices(devices)


@pytest.fixture
def one_worker(monkeypatch):
    """Set TF_CONFIG to a cluster of one worker."""
    set_cluster(monkeypatch, {"worker": WORKERS["worker"][:1]})


def test_an_empty_tf_config_is_none(monkeypatch):
    """An empty TF_CONFIG has the same effect as a missing TF_CONFIG."""
    monkeypatch.setenv("TF_CONFIG", "")
    assert prepare_devices(DistributionConfig()) is None


def test_a_second_run_has_the_strategy_of_the_first(monkeypatch, one_worker):
    """A second run reuses the strategy, because workers connect only once."""
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", lambda: object()
    )
    workers.multi_worker_strategy.cache_clear()
    devices = DistributionConfig(distribution_strategy="multi_worker")
    assert prepare_devices(devices) is prepare_devices(devices)
    workers.multi_worker_strategy.cache_clear()


def test_tensorflow_waits_for_workers(monkeypatch, one_worker):
    """TensorFlow gets the timeouts for workers in milliseconds."""
    context = types.SimpleNamespace(configure_coordination_service=dict)
    monkeypatch.setattr(workers.eager_context, "context", lambda: context)
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", lambda: object()
    )
    workers.multi_worker_strategy.cache_clear()
    workers.multi_worker_strategy()
    workers.multi_worker_strategy.cache_clear()
    assert context.configure_coordination_service(service="x") == {
        "service": "x",
        "cluster_register_timeout_in_ms": 300_000,
        "heartbeat_timeout_in_ms": 60_000,
    }


def test_workers_must_meet_first(one_worker):
    """Workers cannot be connected after TensorFlow has started."""
    tf.constant(1)
    workers.multi_worker_strategy.cache_clear()
    with pytest.raises(InputError, match="Workers must be connected before"):
        prepare_devices(DistributionConfig())


def test_workers_that_cannot_be_connected_are_one_error(
    monkeypatch, one_worker
):
    """A connection error quotes the first line of TensorFlow's error."""

    def fail():
        raise tf.errors.UnavailableError(None, None, "no answer\nmore lines")

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", fail)
    workers.multi_worker_strategy.cache_clear()
    with pytest.raises(InputError, match="within 300 s.*Received: no answer$"):
        workers.multi_worker_strategy()


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize(
    "address, reason",
    [
        ("localhost:{}", "Connection refused"),
        ("no-such-host.invalid:{}", "Name or service not known|.*resol.*"),
    ],
)
def test_a_missing_worker_is_named(address, reason, monkeypatch, capfd):
    """The log and the error name only the missing worker.

    The log is not repeated every second.
    """
    monkeypatch.setattr(workers, "START_SECONDS", 1.5)
    monkeypatch.setattr(workers, "FIRST_REPORT_SECONDS", 0.0)
    address = address.format(free_port())
    with socket.create_server(("localhost", 0)) as server:
        present = f"localhost:{server.getsockname()[1]}"
        wait_for_workers({"worker 0": present})
        workers.check_reachable(f"grpc://{present}")
        assert capfd.readouterr().err == ""
        missing = rf"worker 2 at {re.escape(address)} \(({reason})\)"
        error = rf"must start within 1.5 s\. Missing: {missing}$"
        with pytest.raises(InputError, match=error):
            wait_for_workers({"worker 0": present, "worker 2": address})
        with pytest.raises(OSError, match=f"does not answer \\(({reason})"):
            workers.check_reachable(address)
    printed = capfd.readouterr().err
    assert re.fullmatch(rf"Waiting for {missing}\n", printed)


def test_a_worker_listens_for_other_machines(monkeypatch):
    """While a worker waits for others, it is reachable at every address.

    Addresses may be those of IPv6.
    """
    reached, ports = [], []
    monkeypatch.setattr(
        workers, "wait_for_workers", lambda others: reached.append(others)
    )
    monkeypatch.setattr(
        socket,
        "create_server",
        lambda where, **_: ports.append(where) or contextlib.nullcontext(),
    )
    others = {"chief": ["[::1]:5"], "worker": ["[::2]:70", "[::3]:80"]}
    workers.meet(others, "worker", 1)
    assert ports == [("", 80)]
    assert reached == [{"chief 0": "[::1]:5", "worker 0": "[::2]:70"}]
    monkeypatch.setattr(
        socket,
        "create_connection",
        lambda where, seconds: ports.append((*where, seconds)) or mock.Mock(),
    )
    assert workers.fault("grpc://[::1]:5", 2.5) == ""
    assert ports[1:] == [("::1", 5, 2.5)]


# The program of a worker, up to the point where TensorFlow connects it.
MEET = """
import sys
from albert_tf.base import program
with program.quiet_start():
    from albert_tf.training import workers
workers.FIRST_REPORT_SECONDS = 0.5
one, other, index = sys.argv[1:]
def main():
    workers.meet({"worker": [one, other]}, "worker", int(index))
del sys.argv[1:]
program.run(main)
"""


def start_meeting(addresses, index):
    return subprocess.Popen(
        [sys.executable, "-c", MEET, *addresses, str(index)],
        stderr=subprocess.PIPE,
        text=True,
    )


def first_report(process) -> str:
    """Return the first line about waiting that a worker prints."""
    lines = iter(process.stderr.readline, "")
    return next(line for line in lines if line.startswith("Waiting for"))


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
def test_workers_wait_for_a_late_one(late):
    """Workers print the name of a late worker, wait and then continue."""
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    early = start_meeting(addresses, 1 - late)
    printed = f"Waiting for worker {late} at {addresses[late]} (Connection"
    assert first_report(early).startswith(printed)
    port = int(addresses[late].partition(":")[2])
    with socket.create_server(("localhost", port)):
        printed = early.communicate(timeout=120)[1]
    assert "\nAll workers have started; TensorFlow" in f"\n{printed}"
    assert early.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, status", [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_a_worker_that_waits_can_be_stopped(number, status):
    """A waiting worker can be stopped at once, without a stack trace."""
    process = start_meeting([f"localhost:{free_port()}" for _ in range(2)], 1)
    assert first_report(process).startswith("Waiting for worker 0")
    process.send_signal(number)
    printed = process.communicate(timeout=20)[1]
    assert process.returncode == status and "Traceback" not in printed


@pytest.mark.parametrize("ignored", [False, True])
def test_a_worker_that_is_connected_can_be_ended(ignored, monkeypatch):
    """A timer, or Ctrl-C unless it is ignored, can end a connecting worker.

    The timer and the signal handler are reset afterwards.
    """
    ends, numbers = [], (signal.SIGINT, signal.SIGTERM)
    monkeypatch.setattr(
        faulthandler,
        "dump_traceback_later",
        lambda seconds, exit, file: ends.append((seconds, exit)),
    )
    monkeypatch.setattr(
        faulthandler,
        "cancel_dump_traceback_later",
        lambda: ends.append("canceled"),
    )
    first = signal.getsignal(signal.SIGINT)
    try:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        before = [signal.getsignal(n) for n in numbers]
        with pytest.raises(OSError), workers.ended_from_outside():
            during = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as TensorFlow does
            raise OSError
        assert during == (signal.SIG_IGN if ignored else signal.SIG_DFL)
        assert [signal.getsignal(n) for n in numbers] == before
    finally:
        signal.signal(signal.SIGINT, first)
    assert ends == [(workers.MEET_SECONDS + 10, True), "canceled"]


def test_a_port_in_use_is_refused():
    """The error for a port that is in use states the port."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        jobs = {"chief": ["localhost:1"], "worker": [f"localhost:{port}"]}
        with pytest.raises(InputError, match=f"must be free .*port={port}$"):
            workers.meet(jobs, "worker", 0)


# Messages of TensorFlow about killed or frozen workers, shortened.
OP = "{{function_node x_device_/job:worker/replica:0/task:0/device:CPU:0}} "
ABORTED = OP + "Collective ops is aborted by: "


@pytest.mark.parametrize(
    "message, named",
    [
        (
            ABORTED
            + "Socket closed\nAdditional GRPC error information from remote "
            "target /job:worker/replica:0/task:1 while calling RecvBuf",
            "worker 1 at localhost:2",
        ),
        (
            ABORTED
            + "Error reported from /job:worker/task:1: The following tasks are "
            "unhealthy:\n/job:worker/replica:0/task:1\nThe tasks have crashed",
            "worker 1 at localhost:2",
        ),
        (
            ABORTED + "Deadline Exceeded\n\nRPC: "
            "/tensorflow.CoordinationService/Heartbeat",
            "worker 0 at localhost:1",
        ),
        (ABORTED + "no reason", "Another worker"),
    ],
    ids=("killed", "frozen", "frozen first", "unknown"),
)
def test_a_vanished_worker_is_named(message, named, monkeypatch):
    """The error names the lost worker, not the worker that reports the loss."""
    config = json.dumps({"cluster": WORKERS, "task": TASK})
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(InputError, match=f"^{named} has ended or"):
        with explaining_lost_workers():
            raise tf.errors.UnavailableError(None, None, message)


def test_the_chief_has_the_service_of_all_workers(monkeypatch):
    """If the coordination service does not answer, the chief counts as lost."""
    cluster = {**WORKERS, "chief": ["localhost:3"]}
    config = json.dumps({"cluster": cluster, "task": TASK})
    monkeypatch.setenv("TF_CONFIG", config)
    message = f"RPC: {workers.COORDINATION}Heartbeat"
    assert workers.lost_workers(message) == "chief 0 at localhost:3"


def test_other_errors_stay_what_they_are():
    """Errors that do not concern workers are raised unchanged."""
    with pytest.raises(tf.errors.UnavailableError):
        with explaining_lost_workers():
            raise tf.errors.UnavailableError(None, None, OP + "no disk")
