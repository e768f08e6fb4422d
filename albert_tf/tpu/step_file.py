"""A lowered step as one file, which runs wherever JAX does.

The file is a zip of two: `step.jax`, an artifact of `jax.export` that later
versions of JAX read, and `step.json`, which says what goes in and comes out.
`benchmarks/accelerator_step.py` runs it.
"""

import dataclasses
import io
import json
import zipfile

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.model.flops import training_flops
from albert_tf.tpu.chips import Topology
from albert_tf.tpu.compiled_step import Plan, Step
from albert_tf.tpu.compiler import libraries, require_versions, stablehlo
from albert_tf.tpu.step_module import RESULTS, StepModule, parsed

ARTIFACT, ABOUT = "step.jax", "step.json"
FIRST_WORD = 5  # what stands before it are special pieces


def shapes(module: StepModule) -> dict[str, tf.TensorSpec]:
    """Return {name: shape and type} of arguments and of what a step returns."""
    returned = parsed(module.hlo).host_program_shape.result.tuple_shapes
    specs = dict(module.arguments)
    for name, shape in zip(RESULTS, returned, strict=False):
        specs[name] = tf.TensorSpec(list(shape.dimensions), tf.float32, name)
    return specs


def artifact(module: StepModule) -> bytes:
    """Return a module as a serialized `jax.export.Exported`.

    Its frame is that of a function of the same arguments and outputs, which
    JAX exports itself; only the program in it is replaced.
    """
    mlir, bindings, *_, dialect = libraries()
    import jax
    from jax import export, numpy

    version = dialect.get_version_from_compatibility_requirement(
        dialect.StablehloCompatibilityRequirement.WEEK_12
    )
    with jax.enable_x64(True):  # the step's number has 64 bits
        like = {
            name: jax.ShapeDtypeStruct(spec.shape, spec.dtype.as_numpy_dtype)
            for name, spec in shapes(module).items()
        }
        outputs = [like[name] for name in module.outputs]
        function = jax.jit(
            lambda *_: [numpy.zeros(x.shape, x.dtype) for x in outputs],
            keep_unused=True,
        )
        # The program is written for no platform in particular.
        frame = export.export(
            function, disabled_checks=[export.DisabledSafetyCheck.platform()]
        )(*(like[name] for name in module.arguments))
    with mlir.make_ir_context():
        program = bindings.mlir.serialize_portable_artifact(
            stablehlo(module.hlo), version
        )
    return dataclasses.replace(
        frame, fun_name="step", mlir_module_serialized=program
    ).serialize()


def batch_content(step: Step) -> dict[str, list]:
    """Return {name of a batch's tensor: what fills it}.

    What fills an argument is a number that is everywhere, ["integers", from,
    below], ["places", below], in each row other ones in order, or ["normal",
    standard deviation].
    """
    words = ["integers", FIRST_WORD, step.plan.config.vocab_size]
    return {
        "input_ids": words,
        "input_mask": 1,
        "segment_ids": ["integers", 0, 2],
        "masked_lm_positions": ["places", step.plan.tokens],
        "masked_lm_ids": words,
        "masked_lm_weights": 1,
        "sentence_order_labels": ["integers", 0, 2],
        "example_weights": 1,
    }


def content(variable: tf.Variable):
    """Return what fills a variable: what it begins with, to its deviation."""
    value = variable.numpy()
    if value.size == 1 or np.ptp(value) == 0:
        return value.flat[0].item()
    return ["normal", float(value.std())]


def about(step: Step, module: StepModule, micro_batch: int) -> dict:
    """Return what goes into a module and comes out, and what it costs."""
    plan = step.plan
    examples = micro_batch * plan.training.gradient_accumulation_steps
    flops = training_flops(plan.config, plan.tokens, plan.predictions)
    filled = batch_content(step)
    filled |= {name: content(v) for name, v in step.variables().items()}
    return {
        "config": json.loads(plan.config.to_json()),
        "optimizer": dataclasses.asdict(plan.optimizer),
        "dtype": plan.training.dtype,
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
                "content": filled[name],
            }
            for name, spec in module.arguments.items()
        ],
        "outputs": module.outputs,
    }


def write_plan(path: str, plan: Plan, topology: Topology) -> None:
    """Write the step of a run on one replica to a zip."""
    replicas = topology.replicas
    rule = "`step_file` wants a `topology` of one replica, such as v5e:1x1."
    require(replicas == 1, rule, topology=f"{topology}, {replicas} replicas")
    require_versions()
    step, micro_batch = Step(plan, topology), plan.micro_batch(replicas)
    module, file = step.lower(micro_batch), io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(ARTIFACT, artifact(module))
        facts = about(step, module, micro_batch)
        archive.writestr(ABOUT, json.dumps(facts, indent=1))
    files.write_bytes(path, file.getvalue())
