"""A `TPUStrategy` for simulated TPUs; it can only trace functions.

Variables are real. Each replica's variables are on a logical CPU; if there are
more replicas than CPUs, replicas share CPUs.
"""

import contextlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef

CORES_OF_A_HOST = 8


class Device(NamedTuple):
    """The attributes of a device that a strategy needs."""

    name: str


class Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    """A resolver that reports a slice with a given number of cores."""

    def __init__(self, cores: int):
        super().__init__("local")
        self.cores = cores

    def get_tpu_system_metadata(self):
        """Return the devices' names and the number of cores."""
        each = min(self.cores, CORES_OF_A_HOST)
        cores = [divmod(core, each) for core in range(self.cores)]
        job = "/job:worker/replica:0/task"
        return tf.tpu.experimental.TPUSystemMetadata(
            num_cores=self.cores,
            num_hosts=self.cores // each,
            num_of_cores_per_host=each,
            topology=None,
            devices=[Device(f"{job}:{h}/device:TPU:{c}") for h, c in cores],
        )


@contextlib.contextmanager
def variables_here(strategy: tf.distribute.TPUStrategy):
    """Place new variables on this machine's CPUs."""
    extended = strategy.extended
    cores, cpus = extended._tpu_devices, tf.config.list_logical_devices("CPU")
    devices = [[cpus[i % len(cpus)].name] for i in range(len(cores))]
    extended._tpu_devices = np.array(devices, dtype=object)
    try:
        yield
    finally:
        extended._tpu_devices = cores


class Traced(NamedTuple):
    """A traced function, and the part that `strategy.run` replicates.

    Attributes:
      host: the function with the host's operations.
      replica: the function with a replica's operations.
      ends: names of the outputs of a replica.
      library: {name: function} of all functions.
    """

    host: FunctionDef
    replica: FunctionDef
    ends: list[str]
    library: dict[str, FunctionDef]


def replicated(function: FunctionDef) -> bool:
    """Return whether a function contains replica operations."""
    return any("_tpu_replicate" in node.attr for node in function.node_def)


def trace(call) -> Traced:
    """Trace a function without arguments that calls `strategy.run` once."""
    whole = tf.function(call, autograph=False).get_concrete_function()
    functions = whole.graph.as_graph_def().library.function
    library = {f.signature.name: f for f in functions}
    (replica,) = filter(replicated, [*functions, whole.function_def])
    ends = [
        node.input[0]
        for node in replica.node_def
        if node.op == "TPUReplicatedOutput"
    ]
    return Traced(whole.function_def, replica, ends, library)
