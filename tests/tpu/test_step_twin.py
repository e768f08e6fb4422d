"""A module that is lowered for a TPU equals an ordinary step."""

import numpy as np
import pytest
import tiny

from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import RESULTS, Plan, Step, StepModule
from albert_tf.tpu.compiler import EXTRAS, libraries, stablehlo

BATCH, STEPS = 16, 3


class Twin:
    """A lowered step of one replica, run on the CPU, and its variables.

    XLA's CPU compiler receives the same bytes as the TPU compiler.

    Args:
      module: the step.
      values: {name: initial value} for the step's variables.

    Attributes:
      variables: {name: current value}.
    """

    def __init__(self, module: StepModule, values: dict[str, np.ndarray]):
        _, _, xla_client, *_ = libraries()
        import jax

        self.module, self._jax = module, jax
        self._device = jax.devices("cpu")[0]
        self._executable = self._device.client.compile_and_load(
            stablehlo(module.hlo),
            xla_client.DeviceList((self._device,)),
            xla_client.CompileOptions(),
        )
        self._buffers = {n: self._put(x) for n, x in values.items()}

    def _put(self, value: np.ndarray):
        # Otherwise JAX reduces the 64-bit step number to 32 bits.
        with self._jax.enable_x64(True):
            return self._jax.device_put(value, self._device)

    def step(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run one step; return {name: output}."""
        batch = {n: self._put(x) for n, x in batch.items()}
        # Variables' buffers are donated to their successors.
        taken = self._buffers | batch
        outputs = self._executable.execute(
            [taken[name] for name in self.module.arguments]
        )
        named = dict(zip(self.module.outputs, outputs, strict=True))
        results = {name: np.asarray(named.pop(name)) for name in RESULTS}
        self._buffers |= named
        return results

    @property
    def variables(self) -> dict[str, np.ndarray]:
        """{name: current value} of all variables."""
        return {name: np.asarray(x) for name, x in self._buffers.items()}


def lowered(trainer):
    """Return the module of a trainer's step on a single replica."""
    optimizer = trainer.optimizer.config
    plan = Plan(tiny.CONFIG, "none", optimizer, trainer.training, 8, 3)
    step = Step(plan, parse("v5e-1"))
    assert step.plan.loop.form == "while" and step.plan.loop.rematerialize
    return step.lower(BATCH // trainer.training.gradient_accumulation_steps)


def relative(value, expected):
    """Return the largest difference divided by the largest expected value."""
    largest = np.abs(expected).max()
    return np.abs(value - expected).max() / largest if largest else 0.0


@pytest.mark.slow
def test_a_step_of_the_module_is_an_ordinary_step():
    """Without dropout, results are within 1e-5 of those of the trainer's step.

    The results are outputs, weights and moments; differences are relative to
    the largest value. The bias of keys, which softmax cancels, is excluded,
    because its gradient is only rounding error.
    """
    for package in EXTRAS["step-file"]:
        pytest.importorskip(package)
    micro_batches = {"gradient_accumulation_steps": 2}
    trainer = tiny.new_trainer(config=tiny.CONFIG, **micro_batches)
    tiny.run_steps(trainer, STEPS)
    values = tiny.values(trainer) | {
        "optimizer/rate_factor": np.float32(1.0),
        "optimizer/clock": np.array([0, 0, 1], np.float32),
    }
    twin = Twin(lowered(trainer), values)
    batch = {n: x[:BATCH] for n, x in tiny.make_data().items()}
    made = twin.step(batch) | twin.variables
    sums = trainer.run_steps(
        trainer.iterator(tiny.train_batches, STEPS * 16), 1
    )
    expected = dict(zip(RESULTS, map(np.asarray, sums), strict=False))
    expected |= tiny.values(trainer)
    idle = [name for name in expected if "key/bias" in name]
    assert len(idle) == 3 and all(
        max(np.abs(made[n]).max(), np.abs(expected.pop(n)).max()) < 1e-6
        for n in idle
    )
    apart = {n: relative(made[n], x) for n, x in expected.items()}
    assert {n: e for n, e in apart.items() if e > 1e-5} == {}
