"""Strategies, sums over replicas, checks across workers, and `dtype=auto`."""

import contextlib
import dataclasses
import functools
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from albert_tf.base.errors import InputError, input_errors, require
from albert_tf.base.settings import DEVICES, Validated, setting
from albert_tf.model.ops import freed_with_graph, is_tpu
from albert_tf.training.training_config import TrainingConfig
from albert_tf.training.workers import (
    check_reachable,
    multi_worker_strategy,
    read_cluster,
)

# Peak speeds of dense bfloat16 or float16 matrix products, in TFLOP/s, from
# NVIDIA's data sheets.
GPU_PEAKS = {
    "H200": 989.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "V100": 125.0,
    "T4": 65.0,
}


@dataclasses.dataclass(frozen=True)
class DistributionConfig(Validated):
    """Settings for the devices of a run."""

    help_group = DEVICES

    distribution_strategy: str = setting(
        "auto",
        "How to use several devices; auto means the TPU if `tpu_name` is set, "
        "otherwise the workers in TF_CONFIG, otherwise all GPUs, otherwise the "
        "CPU.",
        choices=("auto", "tpu", "mirrored", "multi_worker", "one_device"),
    )
    tpu_name: str | None = setting(
        None, "TPU name, grpc:// address, or `local` on a TPU VM."
    )
    tpu_zone: str | None = setting(None, "Google Cloud zone of the TPU.")
    gcp_project: str | None = setting(None, "Google Cloud project of the TPU.")
    num_cpu_replicas: int = setting(
        1,
        "Number of logical CPU devices for `mirrored` without GPUs.",
        minimum=1,
        maximum=1024,
    )

    peak_tflops: float | None = setting(
        None,
        "Peak TFLOP/s of one replica's device at `dtype`, from which model "
        "FLOPs utilization is computed.",
        means="known for common GPUs",
        minimum=0.0,
    )

    def __post_init__(self):
        super().__post_init__()
        require(
            self.distribution_strategy != "tpu" or self.tpu_name,
            "`tpu_name` must be set with distribution_strategy=tpu (`local` "
            "on a TPU VM).",
            tpu_name=None,
        )
        require(
            not self.tpu_name or self._may_be("tpu"),
            "`tpu_name` needs distribution_strategy=auto or tpu.",
            tpu_name=self.tpu_name,
            distribution_strategy=self.distribution_strategy,
        )
        for name in ("tpu_zone", "gcp_project"):
            value = getattr(self, name)
            rule = f"`{name}` needs `tpu_name`."
            require(self.tpu_name or not value, rule, **{name: value})
        require(
            self.num_cpu_replicas == 1
            or self._may_be("mirrored")
            and not self.tpu_name,
            "`num_cpu_replicas` needs distribution_strategy=auto or mirrored, "
            "without `tpu_name`.",
            num_cpu_replicas=self.num_cpu_replicas,
            distribution_strategy=self.distribution_strategy,
            tpu_name=self.tpu_name,
        )

    def _may_be(self, strategy: str) -> bool:
        return self.distribution_strategy in ("auto", strategy)


def tpu_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """Connect to a TPU and return its strategy."""
    kinds = ValueError, RuntimeError, OSError, tf.errors.OpError
    rule = "`tpu_name` must name a reachable TPU"
    with input_errors(kinds, rule, tpu_name=config.tpu_name):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            config.tpu_name, zone=config.tpu_zone, project=config.gcp_project
        )
        if config.tpu_name != "local":
            check_reachable(resolver.master())
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def mirrored_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """Return a strategy over all GPUs, or over logical CPU devices."""
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    # Collectives are numbered per process, so the numbers of two strategies
    # would clash. Reduction to one device needs no numbers.
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(config.num_cpu_replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def one_device_strategy(_) -> tf.distribute.Strategy:
    """Return a strategy on the first GPU, or on the CPU if there is no GPU.

    The strategy on the CPU is TensorFlow's default strategy, which iterates
    over a dataset directly, without an iterator that copies batches to devices;
    see `distribute`.
    """
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.OneDeviceStrategy("/GPU:0")
    return tf.distribute.get_strategy()


STRATEGIES = {
    "tpu": tpu_strategy,
    "mirrored": mirrored_strategy,
    "multi_worker": lambda _: multi_worker_strategy(),
    "one_device": one_device_strategy,
}


def strategy_name(config: DistributionConfig) -> str:
    """Return the name of the strategy, with `auto` resolved."""
    if config.distribution_strategy != "auto":
        return config.distribution_strategy
    if config.tpu_name:
        return "tpu"
    if read_cluster():
        return "multi_worker"
    gpus = len(tf.config.list_physical_devices("GPU"))
    several = max(gpus, config.num_cpu_replicas) > 1
    return "mirrored" if several else "one_device"


def reads_remotely(config: DistributionConfig) -> bool:
    """Return whether processes other than this one read the records."""
    return strategy_name(config) == "tpu" and config.tpu_name != "local"


def make_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """Return a config's strategy, connected to its devices."""
    return STRATEGIES[strategy_name(config)](config)


def check_cluster(config: DistributionConfig) -> None:
    """Raise an error if the settings conflict with TF_CONFIG."""
    strategy = strategy_name(config)
    require(
        config.num_cpu_replicas == 1 or strategy != "multi_worker",
        "`num_cpu_replicas` must be 1 with the workers of TF_CONFIG: each "
        "worker has one CPU device.",
        num_cpu_replicas=config.num_cpu_replicas,
    )
    if strategy in ("one_device", "mirrored"):
        number = sum(map(len, read_cluster().values()))
        require(
            number <= 1,
            "With several workers in TF_CONFIG, `distribution_strategy` must "
            "be auto or multi_worker; otherwise, each worker would train its "
            "own model. To run only on this machine, unset TF_CONFIG.",
            distribution_strategy=strategy,
            workers=number,
        )


def prepare_devices(
    config: DistributionConfig,
) -> tf.distribute.Strategy | None:
    """Configure devices before TensorFlow does anything else.

    This function creates the logical CPUs. For several workers, it also creates
    and returns the strategy, which must exist before any tensor; otherwise, the
    result is None.
    """
    check_cluster(config)
    cpu = tf.config.list_physical_devices("CPU")[0]
    existing = tf.config.get_logical_device_configuration(cpu) or [None]
    number = config.num_cpu_replicas
    if number > len(existing):
        logical = [tf.config.LogicalDeviceConfiguration()] * number
        try:
            tf.config.set_logical_device_configuration(cpu, logical)
        except RuntimeError:
            raise InputError(
                "`num_cpu_replicas` cannot grow once TensorFlow is in use: the "
                "first run of a Python process must have the largest number. "
                f"Received: num_cpu_replicas={number} after {len(existing)}"
            ) from None
    several = strategy_name(config) == "multi_worker"
    return make_strategy(config) if several else None


def distribute(strategy: tf.distribute.Strategy, batches: Callable):
    """Distribute the datasets that a function creates for each host.

    This function turns off tf.data's autotuning. The autotuning thread sleeps
    for 10 ms at first, and then for twice as long each time. In TensorFlow
    2.21, the end of an iteration waits for this thread. An evaluation with
    autotuning could therefore take twice as long, or a minute longer.

    Args:
      strategy: the strategy that receives the batches.
      batches: a function that takes a `tf.distribute.InputContext`, and returns
        a dataset of per-replica batches.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return strategy.distribute_datasets_from_function(
        lambda context: batches(context).with_options(options)
    )


def on_devices(strategy: tf.distribute.Strategy, function: Callable):
    """Return a compiled function that calls a function in each replica.

    The compiled function returns the result of the first replica.
    """

    def run(*args):
        results = strategy.run(function, args)
        return strategy.experimental_local_results(results)[0]

    # TensorFlow warns if a `def` is traced often; `partial` creates a new
    # function each time.
    return tf.function(functools.partial(run), autograph=False)


def all_sum(value):
    """Return the sum of a value over all replicas, in a replica context.

    Args:
      value: a tensor, or a list of tensors to sum separately.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return value
    with freed_with_graph():
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def peak_flops(
    config: DistributionConfig, strategy: tf.distribute.Strategy
) -> float | None:
    """Return the peak FLOP/s of all replicas together, or None if unknown."""
    peak = config.peak_tflops
    for gpu in [] if peak else tf.config.list_physical_devices("GPU")[:1]:
        name = tf.config.experimental.get_device_details(gpu)["device_name"]
        # Other digits name another model, such as L40; V100S resembles V100.
        models = (k for k in GPU_PEAKS if re.search(rf"{k}(?!\d)", name))
        peak = GPU_PEAKS.get(next(models, ""))
    return peak and peak * 1e12 * strategy.num_replicas_in_sync


def processes(strategy: tf.distribute.Strategy) -> int:
    """Return the number of processes that run this program together."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    return sum(len(jobs.get(job, ())) for job in ("chief", "worker"))


def hosts(strategy: tf.distribute.Strategy) -> int:
    """Return the number of machines, each of which reads different examples."""
    return getattr(strategy.extended, "num_hosts", processes(strategy))


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Return whether this process writes checkpoints and logs."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return True
    resolver = strategy.cluster_resolver
    has_chief = "chief" in resolver.cluster_spec().jobs
    first = ("chief", 0) if has_chief else ("worker", 0)
    return (resolver.task_type, resolver.task_id) == first


@functools.cache
def _numbers_of(strategy: tf.distribute.Strategy, workers: int) -> Callable:
    """Return a compiled function that gathers a number from every process.

    The function uses a sum, because TensorFlow retraces every gather. It is
    compiled, because a sum outside a graph leaves threads behind when a worker
    is lost.
    """
    replicas = strategy.num_replicas_in_sync // workers

    def numbers(number):
        context = tf.distribute.get_replica_context()
        worker = context.replica_id_in_sync_group // replicas
        zero = tf.zeros_like(number)
        return all_sum(tf.one_hot(worker, workers, number, zero)) // replicas

    return on_devices(strategy, numbers)


def of_processes(strategy: tf.distribute.Strategy, number: int) -> list[int]:
    """Return the `number` of every process, after waiting for all processes."""
    workers = processes(strategy)
    if workers == 1:
        return [number]
    number = tf.constant(number, tf.int64)
    return _numbers_of(strategy, workers)(number).numpy().tolist()


def of_chief(strategy: tf.distribute.Strategy, number: int) -> int:
    """Return, in every process, the `number` of the first process."""
    return of_processes(strategy, number)[0]


def broadcast(
    strategy: tf.distribute.Strategy, variables: Sequence[tf.Variable]
) -> None:
    """Copy the first process's variables to every process.

    Without the copy, the variables could differ, because files may differ
    unnoticed and machines may round differently.
    """
    if processes(strategy) == 1:
        return

    def first_values():
        context = tf.distribute.get_replica_context()
        first = context.replica_id_in_sync_group == 0
        return [
            all_sum(tf.where(first, v, tf.zeros_like(v))) for v in variables
        ]

    values = on_devices(strategy, first_values)()
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def any_process(strategy: tf.distribute.Strategy, flag: bool) -> bool:
    """Return, in every process, whether the flag is set in any process."""
    return any(of_processes(strategy, int(flag)))


@contextlib.contextmanager
def raise_everywhere(strategy: tf.distribute.Strategy | None) -> Iterator[None]:
    """Raise an `InputError` in all processes if any process raises one.

    A process that continued would wait forever for the other processes. If the
    strategy is None, there is only one process.
    """
    failure = None
    try:
        yield
    except InputError as error:
        failure = error
    if strategy and any_process(strategy, failure is not None):
        failure = failure or InputError("Another worker failed; see its error")
    if failure:
        raise failure


def require_alike(
    strategy: tf.distribute.Strategy | None, values: Mapping[str, object]
) -> None:
    """Raise an error unless all processes have the same values.

    Processes with different values would wait for each other forever, or
    diverge unnoticed. If the strategy is None, there is only one process.
    """
    for name, value in values.items() if strategy else ():
        checksum = zlib.crc32(repr(value).encode())
        checksums = of_processes(strategy, checksum)
        different = [
            f"worker {i}" for i, c in enumerate(checksums) if c != checksum
        ]
        require(
            not different,
            f"All workers must have the same `{name}`.",
            **{name: f"{value}, but another value in {', '.join(different)}"},
        )


# Linux's names for instructions that multiply bfloat16 numbers.
PRODUCTS = re.compile(r"\b(avx512_bf16|amx_bf16)\b")
FIRST_AMPERE = (8, 0)  # the first compute capability with bfloat16


def cpu_products(path: str = "/proc/cpuinfo") -> set[str]:
    """Return the names of the CPU's bfloat16 multiplication instructions."""
    try:
        with open(path) as file:
            return set(PRODUCTS.findall(file.read()))
    except OSError:
        return set()  # not Linux


def fast_bfloat16() -> tuple[bool, str]:
    """Return whether bfloat16 is faster than float32 here, and the reason."""
    if gpus := tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpus[0])
        capability = details.get("compute_capability", (0, 0))
        return capability >= FIRST_AMPERE, f"a GPU of capability {capability}"
    names = cpu_products()
    instructions = " and ".join(sorted(names)) or "no bfloat16 instructions"
    return bool(names), f"a CPU with {instructions}"


def faster(strategy: tf.distribute.Strategy) -> tuple[str, str]:
    """Return the faster precision, and the reason for the choice.

    The precision is bfloat16 only if it is faster on all workers.
    """
    if is_tpu(strategy):
        return "bfloat16", "a TPU"
    fast, reason = fast_bfloat16()
    slow = any_process(strategy, not fast)
    if slow and fast:
        reason = "bfloat16 is not faster on another worker"
    return "float32" if slow else "bfloat16", reason


def with_dtype(
    training: TrainingConfig, strategy: tf.distribute.Strategy
) -> TrainingConfig:
    """Return the settings with `dtype=auto` resolved."""
    if training.dtype != "auto":
        return training
    dtype, reason = faster(strategy)
    print(f"--dtype=auto is {dtype}: {reason}")
    return dataclasses.replace(training, dtype=dtype)
