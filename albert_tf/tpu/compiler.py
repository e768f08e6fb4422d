"""The TPU compiler in `libtpu`, for machines without a TPU.

Only this module uses libtpu and the private bindings of JAX and XLA. The names
in these bindings may change in any release, so the module accepts only the
versions in `VERSIONS`. libtpu is not open source: users who install the extra
accept Google's terms.
"""

import dataclasses
import importlib.metadata
import io
import os
import re
import time

import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.model.ops import CompiledForTpu
from albert_tf.tpu.chips import Topology

# The supported versions; for libtpu, a prefix of the versions.
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42."}
JAX = ("jax", "jaxlib")
# {extra: packages}; only compilation for a TPU needs libtpu.
EXTRAS = {"step-file": JAX, "tpu-check": (*JAX, "libtpu")}
GIB = 1 << 30
# A program with an array that is too large for any TPU; the compiler's error
# message states how much memory is available.
PROBE = """func.func @main(%x: tensor<68719476736xf32>)
    -> tensor<68719476736xf32> {
  %y = stablehlo.add %x, %x : tensor<68719476736xf32>
  func.return %y : tensor<68719476736xf32>
}"""


def version(package: str) -> str:
    """Return a package's installed version, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def require_versions(extra: str) -> None:
    """Raise `InputError` unless an extra's packages have supported versions."""
    installed = {package: version(package) for package in EXTRAS[extra]}
    if all(installed[p].startswith(VERSIONS[p]) for p in installed):
        return
    received = ", ".join(f"{p} {v}" for p, v in installed.items())
    raise InputError(
        "JAX 0.10.2 and the matching compiler must be installed; run "
        f"pip install 'albert-tf[{extra}]'. Received: {received}"
    )


def libraries():
    """Import XLA's bindings without searching for TPUs; return the modules."""
    require_versions("step-file")
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_STDERR_LOG_LEVEL": "3",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "JAX_PLATFORMS": "cpu",
    }.items():
        os.environ.setdefault(name, value)
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    return mlir, _jax, xla_client, topologies, ir, stablehlo


class ReplicaContext(tf.distribute.ReplicaContext):
    """A replica context that leaves all-reduces to the compiler."""

    @property
    def replica_id_in_sync_group(self):
        """The replica's number, which is known only when the program runs."""
        from tensorflow.compiler.tf2xla.ops import gen_xla_ops

        return gen_xla_ops.xla_replica_id()

    def all_reduce(self, reduce_op, value, options=None):
        """Sum tensors over all replicas; other reductions are not supported."""
        from tensorflow.compiler.tf2xla.ops import gen_xla_ops

        if reduce_op != tf.distribute.ReduceOp.SUM:
            raise NotImplementedError(f"{reduce_op} on a TPU")
        groups = [list(range(self.num_replicas_in_sync))]

        def add_up(x):
            return gen_xla_ops.xla_all_reduce(
                x, groups, reduce_op="Add", mode="CrossReplica"
            )

        return tf.nest.map_structure(add_up, value)


class CompileOnlyStrategy(CompiledForTpu, tf.distribute.OneDeviceStrategy):
    """A stand-in for `TPUStrategy` that compiles steps but cannot run them."""

    def __init__(self, replicas: int):
        super().__init__("/CPU:0")
        self._replicas = replicas

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas."""
        return self._replicas


def replica_program(strategy: CompileOnlyStrategy, step):
    """Return a compiled `tf.function` that runs a step in a replica context."""

    @tf.function(jit_compile=True, autograph=False)
    def program(*tensors):
        with ReplicaContext(strategy, 0):
            return step(*tensors)

    return program


def _use_own_generator(philox, ir, dialect) -> None:
    """Replace a Philox operation with the TPU's own generator."""
    with ir.InsertionPoint(philox), philox.location:
        state = dialect.slice(philox.operands[0], [0], [2], [1])
        bits = philox.results[1]
        default = dialect.RngAlgorithmAttr.get("DEFAULT")
        _, new_bits = dialect.rng_bit_generator(
            state.type, bits.type, default, state
        )
    bits.replace_all_uses_with(new_bits)


def stablehlo(hlo: bytes) -> bytes:
    """Convert a module to StableHLO as TensorFlow would for a TPU.

    The conversion removes copies, because the compiler rejects them. It also
    replaces the generator of dropout masks: TensorFlow's `auto_select` means
    Philox on CPUs, but the TPU's own generator on TPUs. Operations on seeds
    request Philox by name, so they still use Philox.
    """
    mlir, jax, _, _, ir, dialect = libraries()
    copies, masks, written = [], [], io.BytesIO()

    def collect(operation):
        if operation.name == "mhlo.copy":
            copies.append(operation)
        if operation.name == "stablehlo.rng_bit_generator":
            bits = ir.RankedTensorType(operation.results[1].type)
            masks.extend([operation] if bits.rank > 1 else [])
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context():
        module = ir.Module.parse(jax.mlir.hlo_to_stablehlo(hlo))
        module.operation.walk(collect)
        for copy in copies:
            copy.result.replace_all_uses_with(copy.operands[0])
            copy.erase()
        for philox in masks:
            _use_own_generator(philox, ir, dialect)
        module.operation.write_bytecode(written)
    return written.getvalue()


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The result of compiling a module.

    Attributes:
      fits: whether the program fits in memory; if not, `parts` is empty.
      seconds: duration of the compilation.
      needed: a replica's peak memory in bytes, live data plus code, or None if
        the compiler does not report it.
      parts: {name: bytes} for the components of `needed`.
    """

    fits: bool
    seconds: float
    needed: int | None
    parts: dict[str, int]


# The two forms of the compiler's error message for insufficient memory.
SIZE = r"([\d.]+)([KMGT]?)"
OUT_OF_MEMORY = (
    re.compile(rf"Used {SIZE} of {SIZE} hbm"),
    re.compile(rf"\({SIZE}\) exceeds available HBM \({SIZE}\)"),
)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def needed_and_available(message: str) -> tuple[int, int] | None:
    """Return the needed and the available bytes that an error message states.

    The result is None if the message states neither.
    """
    for pattern in OUT_OF_MEMORY:
        match = pattern.search(message)
        if match:
            number, unit, limit, limit_unit = match.groups()
            return (
                int(float(number) * UNITS[unit]),
                int(float(limit) * UNITS[limit_unit]),
            )
    return None


class Compiler:
    """The compiler for one slice.

    Args:
      topology: the slice.

    Attributes:
      devices: the compiler's devices, one per replica.
    """

    def __init__(self, topology: Topology):
        require_versions("tpu-check")
        self.mlir, _, self.xla, topologies, self.ir, _ = libraries()
        chip = topology.chip
        options = {}
        if chip.chip_config:
            options["chip_config_name"] = chip.chip_config
        if topology.shape == "1x1":
            options["chips_per_host_bounds"] = (1, 1, 1)
        self.devices = topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{chip.compiler_name}:{topology.shape}",
            **options,
        ).devices

    def _executable(self, module, replicas: int):
        devices = self.devices[:replicas]
        options = self.xla.CompileOptions()
        options.num_replicas = replicas
        options.num_partitions = 1
        # The bindings require this type of array.
        numbers = tf.constant([[device.id] for device in devices]).numpy()
        options.device_assignment = self.xla.DeviceAssignment.create(numbers)
        return devices[0].client.compile(
            module, self.xla.DeviceList(tuple(devices)), options
        )

    def memory(self) -> int:
        """Return the memory, in bytes, that a replica's program may use."""
        with self.mlir.make_ir_context():
            try:
                self._executable(self.ir.Module.parse(PROBE), 1)
            except RuntimeError as error:
                sizes = needed_and_available(str(error))
                if sizes:
                    return sizes[1]
                raise
        raise RuntimeError("The compiler accepted a program of 512 GiB")

    def compile(self, hlo: bytes) -> Compiled:
        """Compile a module for all replicas of the slice."""
        with self.mlir.make_ir_context():
            module = self.ir.Module.parse(stablehlo(hlo))
            start = time.monotonic()
            executable, message = None, ""
            try:
                executable = self._executable(module, len(self.devices))
            except RuntimeError as error:
                message = str(error)
                if "RESOURCE_EXHAUSTED" not in message:
                    raise
            seconds = time.monotonic() - start
        if executable is None:
            sizes = needed_and_available(message)
            return Compiled(False, seconds, sizes and sizes[0], {})
        stats = executable.get_compiled_memory_stats()
        # `temp_size_in_bytes` is not usable: with rematerialized layers, it
        # exceeds the available memory even for programs that the compiler
        # accepts.
        parts = {
            "arguments": stats.argument_size_in_bytes,
            "temporaries": (
                stats.peak_memory_in_bytes - stats.argument_size_in_bytes
            ),
            "code": stats.generated_code_size_in_bytes,
        }
        return Compiled(True, seconds, sum(parts.values()), parts)
