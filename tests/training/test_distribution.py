"""The devices that a run uses, and the process that writes files."""

import dataclasses
import logging
import types

import pytest
import tensorflow as tf
from tiny_training import set_cluster

from albert_tf.base.errors import InputError
from albert_tf.model.ops import CompiledForTpu
from albert_tf.training import distribution
from albert_tf.training.distribution import (
    STRATEGIES,
    DistributionConfig,
    any_process,
    broadcast,
    distribute,
    hosts,
    is_chief,
    make_strategy,
    of_chief,
    of_processes,
    on_devices,
    peak_flops,
    prepare_devices,
    processes,
    raise_everywhere,
    reads_remotely,
    require_alike,
    strategy_name,
)
from albert_tf.training.training_config import TrainingConfig

WORKERS = {"worker": ["localhost:1", "localhost:2"]}


def test_many_compiled_functions_are_no_warning(caplog):
    """Compiling many functions causes no warning about retracing."""
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
    """`auto` selects a named TPU, or else CPU replicas, or else one device.

    A strategy that the user names takes precedence.
    """
    config = DistributionConfig(**values)
    assert strategy_name(config) == chosen
    assert not reads_remotely(config)


@pytest.mark.parametrize(
    "values, named",
    [
        (
            {"tpu_name": "local", "distribution_strategy": "mirrored"},
            "tpu_name",
        ),
        ({"tpu_zone": "z"}, "tpu_zone"),
        ({"gcp_project": "p", "distribution_strategy": "one_device"}, "gcp_pr"),
        (
            {"num_cpu_replicas": 2, "distribution_strategy": "one_device"},
            "num_",
        ),
        ({"num_cpu_replicas": 2, "tpu_name": "local"}, "num_cpu_replicas"),
    ],
    ids=str,
)
def test_devices_that_would_be_ignored_are_refused(values, named):
    """A setting for devices that the strategy does not use raises an error."""
    with pytest.raises(InputError, match=f"^`{named}.*` needs "):
        DistributionConfig(**values)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_cpu_replicas": 2}, "`num_cpu_replicas` must be 1"),
        ({"distribution_strategy": "one_device"}, "own model.*workers=2$"),
        ({"distribution_strategy": "mirrored"}, "own model.*workers=2$"),
    ],
    ids=str,
)
def test_workers_that_would_be_ignored_are_refused(
    values, message, monkeypatch
):
    """Settings that would ignore the workers of TF_CONFIG raise errors."""
    set_cluster(monkeypatch, WORKERS)
    with pytest.raises(InputError, match=message):
        prepare_devices(DistributionConfig(**values))


def list_gpus(monkeypatch, number, **details):
    """Make TensorFlow report a number of GPUs with the given details."""
    found = {"GPU": ["gpu"] * number, "CPU": ["cpu"]}
    monkeypatch.setattr(tf.config, "list_physical_devices", found.get)
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda _: details
    )


@pytest.mark.parametrize("number, chosen", [(1, "one_device"), (2, "mirrored")])
def test_auto_takes_several_gpus(monkeypatch, number, chosen):
    """`auto` selects `mirrored` for several GPUs, `one_device` for one GPU."""
    list_gpus(monkeypatch, number)
    assert strategy_name(DistributionConfig()) == chosen


@pytest.mark.parametrize(
    "name, peak",
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("Tesla V100-SXM2-16GB", 125),
        ("Tesla V100S-PCIE-32GB", 125),
        ("Tesla T4", 65),
        ("NVIDIA T4G", 65),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA L40", None),
        ("NVIDIA RTX A1000 Laptop GPU", None),
        ("NVIDIA T400 4GB", None),
        ("another", None),
    ],
)
def test_the_peak_is_known_of_common_gpus(monkeypatch, name, peak):
    """The peak of the first GPU is multiplied by the number of replicas.

    The user's value takes precedence. Without a known GPU, the result is None.
    """
    two = types.SimpleNamespace(num_replicas_in_sync=2)
    assert peak_flops(DistributionConfig(), two) is None
    list_gpus(monkeypatch, 1, device_name=name)
    found = peak_flops(DistributionConfig(), two)
    assert found == (peak and peak * 2e12)
    assert peak_flops(DistributionConfig(peak_tflops=1.5), two) == 3e12


def test_auto_takes_the_workers_of_tf_config(monkeypatch):
    """If TF_CONFIG describes a cluster, `auto` selects `multi_worker`."""
    set_cluster(monkeypatch, WORKERS)
    assert strategy_name(DistributionConfig()) == "multi_worker"


def test_a_tpu_must_be_named():
    """`DistributionConfig` rejects the strategy `tpu` without a TPU's name."""
    with pytest.raises(InputError, match="`tpu_name` must be set"):
        DistributionConfig(distribution_strategy="tpu")


@pytest.mark.parametrize(
    "error, reason",
    [
        (ValueError("no TPU called mine\nmore lines"), "no TPU called mine"),
        (RuntimeError("not initialized"), "not initialized"),
        (OSError(), "OSError"),
        (tf.errors.NotFoundError(None, None, "no zone"), "no zone"),
    ],
    ids=repr,
)
def test_a_tpu_that_cannot_be_reached_is_one_error(monkeypatch, error, reason):
    """The error states the TPU's name and the resolver's reason on one line."""

    def resolver(name, **_):
        raise error

    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", resolver
    )
    message = f"{reason}. Received: tpu_name=mine$"
    config = DistributionConfig(tpu_name="mine")
    assert reads_remotely(config)
    with pytest.raises(InputError, match=message):
        make_strategy(config)


@pytest.mark.parametrize("name, connected", [("local", 0), ("mine", 1)])
def test_only_a_remote_tpu_is_connected(monkeypatch, name, connected):
    """A TPU on another machine must answer before TensorFlow connects to it.

    TensorFlow does not connect to a local TPU.
    """
    calls = []

    def resolver(*arguments, **more):
        assert arguments == (name,) and more == {"zone": "z", "project": None}
        return types.SimpleNamespace(master=lambda: "grpc://x")

    def record(what):
        return lambda *x: calls.append(what) or what

    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", resolver
    )
    for owner, function in (
        (distribution, "check_reachable"),
        (tf.config, "experimental_connect_to_cluster"),
        (tf.tpu.experimental, "initialize_tpu_system"),
        (tf.distribute, "TPUStrategy"),
    ):
        monkeypatch.setattr(owner, function, record(function))
    config = DistributionConfig(tpu_name=name, tpu_zone="z")
    assert make_strategy(config) == "TPUStrategy"
    remote = ["check_reachable", "experimental_connect_to_cluster"]
    last = ["initialize_tpu_system", "TPUStrategy"]
    assert calls == remote * connected + last


@pytest.mark.parametrize("number", [1, 2])
def test_mirrored_has_a_replica_for_each_device(number):
    """A mirrored strategy has a replica for each logical CPU."""
    kind = {"distribution_strategy": "mirrored", "num_cpu_replicas": number}
    strategy = make_strategy(DistributionConfig(**kind))
    assert strategy.num_replicas_in_sync == number
    assert is_chief(strategy)


def test_more_replicas_than_the_process_began_with_are_refused():
    """A process cannot add replicas after it has created logical devices.

    TensorFlow creates logical CPUs only once. A later run may use fewer.
    """
    tf.zeros([])  # TensorFlow is in use
    for number in (4, 2):
        prepare_devices(DistributionConfig(num_cpu_replicas=number))
    with pytest.raises(InputError, match="num_cpu_replicas=5 after 4"):
        prepare_devices(DistributionConfig(num_cpu_replicas=5))


def test_every_legal_choice_has_a_maker():
    """`distribution_strategy` accepts `auto` and the keys of `STRATEGIES`."""
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
    """The chief is the process of the job `chief`, or else the first worker."""

    class Strategy(tf.distribute.MultiWorkerMirroredStrategy):
        def __init__(self):
            pass

        @property
        def cluster_resolver(self):
            return tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(jobs), task_type=task[0], task_id=task[1]
            )

    assert is_chief(Strategy()) is expected
    assert processes(Strategy()) == sum(map(len, jobs.values()))


@pytest.fixture
def four(monkeypatch):
    """Return a strategy with four replicas, which count as two processes."""
    strategy = make_strategy(DistributionConfig(num_cpu_replicas=4))
    assert processes(strategy) == hosts(strategy) == 1
    monkeypatch.setattr(distribution, "processes", lambda _: 2)
    return strategy


def test_every_process_learns_the_number_of_each(four):
    """Every process gets one number from each process, in process order.

    Each process has two replicas.
    """
    assert of_processes(four, 7) == [7, 7]
    numbers = four.experimental_distribute_values_from_function(
        lambda x: tf.constant(10 + x.replica_id_in_sync_group // 2, tf.int64)
    )
    found = distribution._numbers_of(four, 2)(numbers)
    assert found.numpy().tolist() == [10, 11]


def test_the_variables_of_the_first_replica_are_copied(four, monkeypatch):
    """With several processes, all replicas get the first replica's values."""
    with four.scope():
        variable = tf.Variable([0.0, 0.0])

    def values():
        return [x.numpy().tolist() for x in variable.values]

    for number, x in enumerate(variable.values, 1):
        x.assign([number, 10.0 * number])
    before = values()
    with monkeypatch.context() as patch:
        patch.setattr(distribution, "processes", lambda _: 1)
        broadcast(four, [variable])
    assert values() == before
    broadcast(four, [variable])
    assert values() == [[1.0, 10.0]] * 4


def test_processes_decide_together(monkeypatch):
    """A flag set or an error raised in one process affects all processes."""
    answers = []
    monkeypatch.setattr(distribution, "of_processes", lambda *_: answers)
    for answers[:], expected in (
        ([0, 0], False),
        ([0, 1], True),
        ([1, 0], True),
    ):
        assert any_process(None, True) is expected
    assert of_chief(None, 5) == 1
    one = tf.distribute.get_strategy()
    with pytest.raises(InputError, match="Another worker failed"):
        with raise_everywhere(one):
            pass
    for strategy in (one, None):
        with pytest.raises(InputError, match="^mine$"):
            with raise_everywhere(strategy):
                raise InputError("mine")
    with raise_everywhere(None):
        pass
    answers[:] = [0, 0]
    with raise_everywhere(one):
        pass


def test_workers_with_other_values_are_named(monkeypatch):
    """The error states this worker's value, and the workers that differ."""
    marks = []

    def of_all(strategy, mark):
        marks.append(mark)
        return [mark, mark + 1, mark, mark - 1]

    monkeypatch.setattr(distribution, "of_processes", of_all)
    message = "same `seed`. Received: seed=5, but another value in worker 1, "
    message += "worker 3$"
    with pytest.raises(InputError, match=message):
        require_alike(tf.distribute.get_strategy(), {"seed": 5})
    require_alike(None, {"seed": 5})
    monkeypatch.setattr(distribution, "of_processes", lambda _, mark: [mark])
    require_alike(tf.distribute.get_strategy(), {"seed": 5})


def test_the_end_of_an_iteration_waits_for_no_tuning():
    """On a CPU, data sets are iterated directly and without autotuning."""
    strategy = make_strategy(DistributionConfig())
    assert strategy is tf.distribute.get_strategy()
    found = distribute(strategy, lambda _: tf.data.Dataset.range(3).prefetch(1))
    assert found.options().autotune.enabled is False
    assert [int(x) for x in found] == [0, 1, 2]


AUTO = TrainingConfig(dtype="auto")


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ("fma avx512_bf16 amx_bf16 amx_tile", {"avx512_bf16", "amx_bf16"}),
        ("avx512f avx512_bf16x", set()),
    ],
)
def test_the_cpu_says_what_it_multiplies(tmp_path, flags, names):
    """A CPU's bfloat16 instructions are found as whole words in `cpuinfo`.

    Without the file, the result is an empty set.
    """
    path = tmp_path / "cpuinfo"
    path.write_text(f"flags\t\t: fpu {flags}\nbugs\t\t: none\n")
    assert distribution.cpu_products(str(path)) == names
    assert distribution.cpu_products(str(tmp_path / "missing")) == set()


@pytest.mark.parametrize(
    ("names", "dtype"), [({"amx_bf16"}, "bfloat16"), (set(), "float32")]
)
def test_auto_on_a_cpu(monkeypatch, capsys, names, dtype):
    """On a CPU, `auto` selects bfloat16 only with bfloat16 instructions.

    The choice is printed. A dtype other than `auto` is kept.
    """
    monkeypatch.setattr(distribution, "cpu_products", lambda: names)
    strategy = tf.distribute.get_strategy()
    chosen = distribution.with_dtype(AUTO, strategy)
    assert chosen == dataclasses.replace(AUTO, dtype=dtype)
    policies = {"bfloat16": "mixed_bfloat16", "float32": "float32"}
    assert chosen.dtype_policy == policies[dtype]
    assert f"--dtype=auto is {dtype}: a CPU with" in capsys.readouterr().out
    unchanged = distribution.with_dtype(TrainingConfig(), strategy)
    assert unchanged == TrainingConfig()


def test_the_slowest_worker_decides(monkeypatch):
    """If another worker is slow, `auto` selects float32.

    The stated reason is the other worker, not this device.
    """
    monkeypatch.setattr(distribution, "cpu_products", lambda: {"amx_bf16"})
    monkeypatch.setattr(distribution, "any_process", lambda *_: True)
    dtype, why = distribution.faster(tf.distribute.get_strategy())
    assert dtype == "float32" and "amx" not in why and "worker" in why


@pytest.mark.parametrize("capability", [None, (7, 5), (8, 0), (10, 0)])
def test_auto_on_accelerators(monkeypatch, capability):
    """`auto` selects bfloat16 on TPUs and recent GPUs.

    A recent GPU has a compute capability of at least 8.0.
    """
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["x"])
    monkeypatch.setattr(
        tf.config.experimental,
        "get_device_details",
        lambda _: {"compute_capability": capability} if capability else {},
    )
    here = distribution.with_dtype(AUTO, tf.distribute.get_strategy())
    slow = capability is None or capability < (8,)
    assert here.dtype == ("float32" if slow else "bfloat16")
    on_tpu = distribution.with_dtype(AUTO, CompiledForTpu())
    assert on_tpu.dtype == "bfloat16"
