"""A module that was lowered for a TPU, run step by step on the CPU.

XLA's CPU compiler receives the same bytes as the TPU compiler. The extra
`step-file` is required.
"""

import numpy as np

from albert_tf.tpu.compiled_step import RESULTS, StepModule
from albert_tf.tpu.compiler import libraries, stablehlo


class Twin:
    """A lowered step of one replica, and the state of its variables.

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
