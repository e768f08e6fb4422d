"""The devices that a run uses, and which process writes files."""

import json
import logging

import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.training.distribution import (
    STRATEGIES,
    DistributionConfig,
    distribute,
    is_chief,
    make_strategy,
    on_devices,
    prepare_devices,
    strategy_name,
)

WORKERS = {"worker": ["localhost:1", "localhost:2"]}


def test_many_compiled_functions_are_no_warning(caplog):
    """Compiling many functions causes no warning of retracing."""
    strategy = tf.distribute.get_strategy()
    with caplog.at_level(logging.WARNING, "tensorflow"):
        for _ in range(12):
            assert on_devices(strategy, lambda: tf.constant(1))() == 1
    assert not caplog.records


@pytest.mark.parametrize(
    "values, chosen",
    [
        ({}, "one_device"),
        ({"num_cpu_replicas": 2}, "mirrored"),
        ({"tpu_name": "local"}, "tpu"),
        ({"distribution_strategy": "mirrored"}, "mirrored"),
    ],
    ids=str,
)
def test_auto_takes_what_is_there(values, chosen):
    """`auto` selects a named TPU, else replicas, else a single device."""
    assert strategy_name(DistributionConfig(**values)) == chosen


def test_auto_takes_the_workers_of_tf_config(monkeypatch):
    """If TF_CONFIG has a cluster, `auto` selects several workers."""
    task = {"type": "worker", "index": 0}
    config = json.dumps({"cluster": WORKERS, "task": task})
    monkeypatch.setenv("TF_CONFIG", config)
    assert strategy_name(DistributionConfig()) == "multi_worker"


def test_a_tpu_must_be_named():
    """The strategy `tpu` without a name raises an error early."""
    with pytest.raises(InputError, match="`tpu_name` must be set"):
        DistributionConfig(distribution_strategy="tpu")


def test_a_tpu_that_cannot_be_reached_is_one_error(monkeypatch):
    """The error states the reason from the resolver and the TPU's name."""

    def resolver(name, **_):
        raise ValueError(f"no TPU called {name}\nmore lines")

    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", resolver
    )
    said = "no TPU called mine. Received: tpu_name=mine$"
    with pytest.raises(InputError, match=said):
        make_strategy(DistributionConfig(tpu_name="mine"))


@pytest.mark.parametrize("number", [1, 2])
def test_mirrored_has_a_replica_for_each_device(number):
    """A mirrored strategy has a replica for each logical CPU."""
    kind = {"distribution_strategy": "mirrored", "num_cpu_replicas": number}
    strategy = make_strategy(DistributionConfig(**kind))
    assert strategy.num_replicas_in_sync == number
    assert is_chief(strategy)


def test_more_replicas_than_the_process_began_with_are_refused():
    """A process cannot add replicas later.

    TensorFlow creates logical CPUs only once.
    """
    tf.zeros([])  # TensorFlow is in use
    prepare_devices(DistributionConfig(num_cpu_replicas=4))
    with pytest.raises(InputError, match="num_cpu_replicas=5 after 4"):
        prepare_devices(DistributionConfig(num_cpu_replicas=5))


def test_every_legal_choice_has_a_maker():
    """The flag accepts `auto` and the keys of the table."""
    field = DistributionConfig.__dataclass_fields__["distribution_strategy"]
    assert set(field.metadata["choices"]) == {"auto", *STRATEGIES}


@pytest.mark.parametrize(
    "jobs, task, expected",
    [
        (WORKERS, ("worker", 0), True),
        (WORKERS, ("worker", 1), False),
        ({**WORKERS, "chief": ["localhost:3"]}, ("worker", 0), False),
        ({**WORKERS, "chief": ["localhost:3"]}, ("chief", 0), True),
    ],
)
def test_one_process_is_the_chief(jobs, task, expected):
    """The chief is the process with the chief job, or else the first worker."""

    class Strategy(tf.distribute.MultiWorkerMirroredStrategy):
        def __init__(self):
            pass

        @property
        def cluster_resolver(self):
            return tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(jobs), task_type=task[0], task_id=task[1]
            )

    assert is_chief(Strategy()) is expected


def test_the_end_of_an_iteration_waits_for_no_tuning():
    """On a CPU, data sets are iterated directly and without autotuning."""
    strategy = make_strategy(DistributionConfig())
    found = distribute(strategy, lambda _: tf.data.Dataset.range(3).prefetch(1))
    assert found.options().autotune.enabled is False
    assert [int(x) for x in found] == [0, 1, 2]
