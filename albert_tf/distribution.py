"""Which devices a run uses: the one place that knows the replicas."""

import dataclasses

import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.settings import setting, validate


@dataclasses.dataclass(frozen=True)
class DistributionConfig:
    """The devices of a run."""

    distribution_strategy: str = setting(
        "auto",
        "How to distribute. auto: a TPU if `tpu_name` is given, workers if "
        "TF_CONFIG names them, all GPUs, or else the CPU.",
        choices=("auto", "tpu", "mirrored", "multi_worker", "one_device"),
    )
    tpu_name: str | None = setting(
        None, "TPU name, grpc:// address, or `local` on a TPU VM."
    )
    tpu_zone: str | None = setting(None, "Zone of the TPU.")
    gcp_project: str | None = setting(None, "Project of the TPU.")
    num_cpu_replicas: int = setting(
        1, "Logical CPU devices for `mirrored` without GPUs.", minimum=1
    )

    def __post_init__(self):
        validate(self)
        if self.distribution_strategy == "tpu" and not self.tpu_name:
            raise InputError(
                "`tpu_name` must be given with distribution_strategy=tpu "
                "(`local` on a TPU VM). Received: tpu_name=None"
            )


def tpu_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """Connect to a TPU and return its strategy."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            config.tpu_name, zone=config.tpu_zone, project=config.gcp_project
        )
        if config.tpu_name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"`tpu_name` must name a TPU that can be reached: {reason}. "
            f"Received: tpu_name={config.tpu_name}"
        ) from None
    return tf.distribute.TPUStrategy(resolver)


def prepare_devices(config: DistributionConfig) -> None:
    """Make the logical CPUs; call before TensorFlow does anything else."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    made = tf.config.get_logical_device_configuration(cpu) or [None]
    number = config.num_cpu_replicas
    if number > len(made):
        logical = [tf.config.LogicalDeviceConfiguration()] * number
        tf.config.set_logical_device_configuration(cpu, logical)


def mirrored_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """Return a strategy over all GPUs, or over logical CPU devices."""
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    # Collectives are numbered per process, so that a second strategy would
    # meet the first one's; adding up on one device has no such state.
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(config.num_cpu_replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def multi_worker_strategy(_) -> tf.distribute.Strategy:
    """Return a strategy over the workers that TF_CONFIG names."""
    return tf.distribute.MultiWorkerMirroredStrategy()


def one_device_strategy(_) -> tf.distribute.Strategy:
    """Return a strategy on the first GPU, or else the CPU."""
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return tf.distribute.OneDeviceStrategy(f"/{kind}:0")


STRATEGIES = {
    "tpu": tpu_strategy,
    "mirrored": mirrored_strategy,
    "multi_worker": multi_worker_strategy,
    "one_device": one_device_strategy,
}


def choose(config: DistributionConfig) -> str:
    """Return the strategy's name that `auto` stands for."""
    if config.distribution_strategy != "auto":
        return config.distribution_strategy
    if config.tpu_name:
        return "tpu"
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.cluster_spec().jobs:
        return "multi_worker"
    gpus = len(tf.config.list_physical_devices("GPU"))
    several = max(gpus, config.num_cpu_replicas) > 1
    return "mirrored" if several else "one_device"


def make_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """Return the strategy of a config, connected to its devices."""
    return STRATEGIES[choose(config)](config)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Return whether this process writes checkpoints and logs."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return True
    resolver = strategy.cluster_resolver
    jobs = resolver.cluster_spec().jobs
    if "chief" in jobs:
        return resolver.task_type == "chief"
    return resolver.task_type == "worker" and resolver.task_id == 0
