"""Lowering of the replica step to an XLA module for compilation or export.

XLA numbers the arguments and outputs of a module. The arguments are the batch's
tensors, then the variables in the order in which the step uses them. The
outputs are the step's results, then the updated variables, which the module
declares as aliases of arguments.

`run_step.py` describes the exported file and runs its step.
"""

import dataclasses
import functools
import io
import json
import tempfile
import zipfile
from collections.abc import Callable

import keras
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.data.records.input_pipeline import batch_spec
from albert_tf.model.config import AlbertConfig, training_flops
from albert_tf.model.layers import EncoderLoop, encoder_loop
from albert_tf.tpu.chips import Topology
from albert_tf.tpu.compiler import (
    Compiled,
    CompileOnlyStrategy,
    Compiler,
    libraries,
    replica_program,
    stablehlo,
)
from albert_tf.tpu.run_step import EVALUATION, INFO, STEP
from albert_tf.training import checkpoints
from albert_tf.training.optimizer import AVERAGE, OptimizerConfig
from albert_tf.training.pretraining.run_setup import make_trainer
from albert_tf.training.training_config import TrainingConfig

RESULTS = ("report", "norm")  # results of `Trainer.replica_step`


@dataclasses.dataclass(frozen=True)
class StepModule:
    """A step lowered to an XLA module.

    Attributes:
      hlo: the serialized XLA module.
      arguments: {name: shape and type} in the module's order.
      outputs: the names of the outputs in the module's order; an updated
        variable has the name of the argument that it replaces.
    """

    hlo: bytes
    arguments: dict[str, tf.TensorSpec]
    outputs: tuple[str, ...]


def parsed(hlo: bytes) -> hlo_pb2.HloModuleProto:
    """Parse a serialized module."""
    return hlo_pb2.HloModuleProto.FromString(hlo)


def lower_step(
    function,
    batch: dict[str, tf.TensorSpec],
    variables: dict[str, tf.Variable],
) -> StepModule:
    """Lower a replica's step to a module with named arguments and outputs.

    Args:
      function: a compiled `tf.function` of the batch's tensors, in order.
      batch: {name: spec} of the batch's tensors.
      variables: {name: variable} of all variables that the step reads.
    """
    specs = list(batch.values())
    hlo = function.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    names = {id(v.handle): name for name, v in variables.items()}
    concrete = function.get_concrete_function(*specs)
    arguments = dict(batch)
    for handle in concrete.captured_inputs:
        name = names[id(handle)]
        variable = variables[name]
        arguments[name] = tf.TensorSpec(variable.shape, variable.dtype, name)
    order = list(arguments)
    number = len(concrete.structured_outputs)
    outputs = dict(enumerate(RESULTS[:number]))
    for successor in parsed(hlo).input_output_alias.entries:
        (index,) = successor.output_shape_index
        outputs[index] = order[successor.parameter_number]
    return StepModule(
        hlo, arguments, tuple(outputs[index] for index in range(len(outputs)))
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """The parts of a pretraining run that determine the step to compile.

    Attributes:
      config: the architecture.
      compat, optimizer, training: settings of `pretrain.py`.
      tokens: T, the sequence length.
      predictions: P, the number of masked positions per sequence.
    """

    config: AlbertConfig
    compat: str
    optimizer: OptimizerConfig
    training: TrainingConfig
    tokens: int
    predictions: int

    @property
    def loop(self) -> EncoderLoop:
        """The form of the encoder's loop over layers on a TPU."""
        t = self.training
        return encoder_loop(t.encoder_loop, t.rematerialize, on_tpu=True)

    def micro_batch(self, replicas: int) -> int:
        """Return the number of examples in a replica's micro-batch."""
        steps = self.training.gradient_accumulation_steps
        return self.training.train_batch_size // (replicas * steps)


class Step:
    """The trainer's replica step for one slice.

    Args:
      plan: the run.
      topology: the slice.
    """

    def __init__(self, plan: Plan, topology: Topology):
        self.plan, self.topology = plan, topology
        self.strategy = CompileOnlyStrategy(topology.replicas)
        training = dataclasses.replace(
            plan.training,
            # The evaluator accepts any multiple of the number of replicas;
            # `lower_evaluation` uses the plan's batch size.
            eval_batch_size=topology.replicas,
        )
        keras.utils.set_random_seed(training.random_seed)
        self.trainer = make_trainer(
            plan.config, plan.compat, plan.optimizer, training, self.strategy
        )

    def specs(self, micro_batch: int) -> dict[str, tf.TensorSpec]:
        """Return the specs of a replica's input tensors."""
        p = self.plan
        size = micro_batch * p.training.gradient_accumulation_steps
        return batch_spec(size, p.tokens, p.predictions)

    @functools.cached_property
    def compiler(self) -> Compiler:
        """The compiler for the slice; lowering does not need it."""
        return Compiler(self.topology)

    def variables(self) -> dict[str, tf.Variable]:
        """Return {name: variable} for all variables that the step reads."""
        rate = self.trainer.rate
        rate_variables = {"rate_factor": rate.factor, "clock": rate.course}
        return self.trainer.state() | {
            f"optimizer/{n}": v for n, v in rate_variables.items()
        }

    def _lower(self, replica_step: Callable, specs: dict) -> StepModule:
        def step(*tensors):
            results = replica_step(dict(zip(specs, tensors, strict=True)))
            return tf.nest.flatten(results)

        function = replica_program(self.strategy, step)
        return lower_step(function, specs, self.variables())

    def lower(self, micro_batch: int) -> StepModule:
        """Lower the step for a micro-batch of a given size."""
        return self._lower(self.trainer.replica_step, self.specs(micro_batch))

    def lower_evaluation(self) -> StepModule:
        """Lower the evaluation of a replica's batch."""
        p = self.plan
        size = p.training.eval_batch_size // self.topology.replicas
        specs = batch_spec(size, p.tokens, p.predictions)
        return self._lower(self.trainer.evaluator.replica_step, specs)

    def compile(self, micro_batch: int) -> Compiled:
        """Compile the step for a micro-batch of a given size."""
        return self.compiler.compile(self.lower(micro_batch).hlo)


def sizes() -> list[int]:
    """Return the batch sizes to try.

    Each size above 8 exceeds the previous size by at most 1/8.
    """
    return [*range(1, 8), *(m << k for k in range(13) for m in range(8, 16))]


def interpolated_size(needed: dict[int, int], memory: int) -> float:
    """Estimate the batch size that needs `memory`, from two known sizes.

    The estimate lies on the line through the two known sizes whose memory is
    closest to `memory`. If the line does not rise, the estimate is twice the
    largest known size.

    Args:
      needed: {batch size: bytes needed}; with fewer than two entries, the
        estimate is 0.
      memory: bytes available.
    """
    if len(needed) < 2:
        return 0.0
    n1, n2 = sorted(needed, key=lambda n: abs(needed[n] - memory))[:2]
    slope = (needed[n2] - needed[n1]) / (n2 - n1)
    return (
        n1 + (memory - needed[n1]) / slope if slope > 0 else 2.0 * max(needed)
    )


def largest(
    compile_size: Callable[[int], Compiled],
    tried: dict[int, Compiled],
    memory: int,
) -> int:
    """Return the largest size that fits in memory, or 0 if none does.

    The candidates are `sizes` and the sizes in `tried`. When this function
    returns, `tried` also contains the next larger candidate, if there is one;
    this candidate does not fit.

    Args:
      compile_size: a function that compiles the step for a micro-batch of a
        given size.
      tried: {micro-batch size: result}, with at least one result; this function
        adds new results.
      memory: bytes that a replica may use.
    """
    while True:
        fitting = [n for n, c in tried.items() if c.fits]
        too_large = [n for n, c in tried.items() if not c.fits]
        low, high = max(fitting, default=0), min(too_large, default=1 << 16)
        between = [n for n in sizes() if low < n < high]
        if not between:
            return low
        needed = {n: c.needed for n, c in tried.items() if c.needed}
        # This lower bound for an empty batch defines a line together with one
        # other size.
        arguments = (c.parts["arguments"] for c in tried.values() if c.parts)
        needed[0] = min(arguments, default=0)
        expected = interpolated_size(needed, memory)
        # Try the largest size that is expected to fit or, if none is, the
        # smallest size.
        below = [n for n in between if n <= expected]
        size = below[-1] if below else between[0]
        tried[size] = compile_size(size)


def shapes(module: StepModule) -> dict[str, tf.TensorSpec]:
    """Return {name: shape and type} for a step's arguments and results."""
    result = parsed(module.hlo).host_program_shape.result
    returned = result.tuple_shapes or [result]
    specs = dict(module.arguments)
    for name, shape in zip(RESULTS, returned, strict=False):
        specs[name] = tf.TensorSpec(list(shape.dimensions), tf.float32, name)
    return specs


def artifact(module: StepModule) -> bytes:
    """Return a module as a serialized `jax.export.Exported`.

    JAX exports a placeholder function with the same arguments and outputs; the
    module then replaces the placeholder's program.
    """
    mlir, bindings, *_, dialect = libraries()
    import jax
    from jax import export, numpy

    version = dialect.get_version_from_compatibility_requirement(
        dialect.StablehloCompatibilityRequirement.WEEK_12
    )
    with jax.enable_x64(True):  # the step number has 64 bits
        structs = {
            name: jax.ShapeDtypeStruct(spec.shape, spec.dtype.as_numpy_dtype)
            for name, spec in shapes(module).items()
        }
        outputs = [structs[name] for name in module.outputs]
        function = jax.jit(
            lambda *_: [numpy.zeros(x.shape, x.dtype) for x in outputs],
            keep_unused=True,
        )
        # The check is unnecessary, because the program is independent of the
        # platform.
        exported = export.export(
            function, disabled_checks=[export.DisabledSafetyCheck.platform()]
        )(*(structs[name] for name in module.arguments))
    with mlir.make_ir_context():
        program = bindings.mlir.serialize_portable_artifact(
            stablehlo(module.hlo), version
        )
    return dataclasses.replace(
        exported, fun_name="step", mlir_module_serialized=program
    ).serialize()


def step_info(step: Step, module: StepModule, evaluation: StepModule) -> dict:
    """Return a description of a step's inputs, outputs, settings and cost."""
    plan, trainer, state = step.plan, step.trainer, step.trainer.state()
    examples = plan.training.train_batch_size
    flops = training_flops(plan.config, plan.tokens, plan.predictions)
    return {
        "config": json.loads(plan.config.to_json()),
        "optimizer": dataclasses.asdict(plan.optimizer),
        "training": dataclasses.asdict(plan.training),
        "encoder_loop": dataclasses.asdict(plan.loop),
        "examples": examples,
        "tokens": plan.tokens,
        "predictions": plan.predictions,
        "model_flops": flops * examples,
        "arguments": [
            {
                "name": name,
                "shape": spec.shape.as_list(),
                "dtype": spec.dtype.name,
            }
            for name, spec in module.arguments.items()
        ],
        "outputs": module.outputs,
        "evaluation": list(evaluation.arguments),
        "names": trainer.evaluator.names,
        "constants": {
            name: variable.numpy().tolist()
            for name, variable in step.variables().items()
            if name not in state
        },
        "averages": {
            name.removeprefix(AVERAGE): name
            for name in state
            if name.startswith(AVERAGE)
        },
        "facts": trainer.facts(),
    }


def write_step(path: str, step: Step, flags: str = "") -> None:
    """Write a step for one replica, with its initial state, to a zip file.

    Args:
      path: the path of the zip file.
      step: the step.
      flags: the text of the run's flagfile, without the flags that name
        folders.
    """
    replicas = step.topology.replicas
    rule = "`step_file` needs a `topology` of one replica, such as v5e:1x1."
    require(
        replicas == 1, rule, topology=f"{step.topology}, {replicas} replicas"
    )
    module = step.lower(step.plan.micro_batch(replicas))
    evaluation = step.lower_evaluation()
    info = step_info(step, module, evaluation) | {"flags": flags}
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        tempfile.TemporaryDirectory() as folder,
    ):
        archive.writestr(STEP, artifact(module))
        archive.writestr(EVALUATION, artifact(evaluation))
        archive.writestr(INFO, json.dumps(info, indent=1))
        checkpoints.save(folder, step.trainer.state())
        for name in files.names(folder):
            archive.write(files.join(folder, name), name)
    files.write_bytes(path, file.getvalue())
