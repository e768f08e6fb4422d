"""How workers meet, and what is said when one is missed."""

import json
import socket

import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.training.machines import workers
from albert_tf.training.machines.distribution import (
    DistributionConfig,
    prepare_devices,
)
from albert_tf.training.machines.workers import (
    read_cluster,
    vanishing_explained,
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
    ],
    ids=str,
)
def test_a_wrong_tf_config_is_refused(config, monkeypatch):
    """Before any device is used, with what it is and a right one."""
    text = config if isinstance(config, str) else json.dumps(config)
    monkeypatch.setenv("TF_CONFIG", text)
    for strategy in ("auto", "multi_worker"):
        devices = DistributionConfig(distribution_strategy=strategy)
        with pytest.raises(InputError) as error:
            prepare_devices(devices)
        assert str(error.value).startswith('`TF_CONFIG` must be as {"cluster"')
        assert str(error.value).endswith(f"TF_CONFIG={text}")


def test_a_cluster_may_have_a_chief(monkeypatch):
    """Its addresses are returned by job; there are none without TF_CONFIG."""
    assert read_cluster() == {}
    cluster = {**WORKERS, "chief": ["[::1]:3"]}
    config = json.dumps({"cluster": cluster, "task": TASK})
    monkeypatch.setenv("TF_CONFIG", config)
    assert read_cluster() == cluster


def test_an_empty_tf_config_is_none(monkeypatch):
    """TensorFlow would find no JSON in it."""
    monkeypatch.setenv("TF_CONFIG", "")
    assert prepare_devices(DistributionConfig()) is None


def test_a_second_run_has_the_strategy_of_the_first(monkeypatch):
    """TensorFlow cannot begin anew with the other workers."""
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", lambda: object()
    )
    workers.multi_worker_strategy.cache_clear()
    devices = DistributionConfig(distribution_strategy="multi_worker")
    assert prepare_devices(devices) is prepare_devices(devices)
    workers.multi_worker_strategy.cache_clear()


def test_workers_must_meet_first(monkeypatch):
    """TensorFlow refuses where it has made a tensor; that is one line."""
    tf.constant(1)
    cluster = {"cluster": {"worker": WORKERS["worker"][:1]}, "task": TASK}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    workers.multi_worker_strategy.cache_clear()
    with pytest.raises(InputError, match="Workers must meet before"):
        prepare_devices(DistributionConfig())


def test_a_worker_that_does_not_come_is_named(monkeypatch):
    """Those that listen are met; the first that does not is the error's."""
    monkeypatch.setattr(workers, "START_SECONDS", 0)
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        wait_for_workers([address])
        missing = "must start within 0 s: localhost:2 does not answer"
        with pytest.raises(InputError, match=missing):
            wait_for_workers([address, "localhost:2"])


# What TensorFlow said of workers that were killed or frozen, shortened.
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
        (
            "Deadline Exceeded\nAdditional GRPC error information from remote "
            "target /job:worker/replica:0/task:0 while calling "
            "/tensorflow.CoordinationService/RegisterTask:",
            "worker 0 at localhost:1",
        ),
        (ABORTED + "no reason", "Another worker"),
    ],
    ids=("killed", "frozen", "frozen first", "absent first", "unknown"),
)
def test_a_vanished_worker_is_named(message, named, monkeypatch):
    """Not the one that tells it."""
    config = json.dumps({"cluster": WORKERS, "task": TASK})
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(InputError, match=f"^{named} has ended or"):
        with vanishing_explained():
            raise tf.errors.UnavailableError(None, None, message)


def test_other_errors_stay_what_they_are():
    """Of one process, or of a file."""
    with pytest.raises(tf.errors.UnavailableError):
        with vanishing_explained():
            raise tf.errors.UnavailableError(None, None, OP + "no disk")
