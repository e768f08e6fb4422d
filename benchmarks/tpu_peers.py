"""KerasHub's pretraining step, compiled for a TPU's chip, beside ours.

    python benchmarks/tpu_peers.py PYTHON

Ours is that of the recipe `base_v5e-8`. KerasHub, whose step the TensorFlow of
its PYTHON lowers, has the model, the batch of a chip, the micro-batches whose
gradients add up and bfloat16 in common with it, but AdamW and no all-reduce.
Needs the extra `tpu-check`; a row takes minutes of a core.
"""

import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

from train_step_peers import CASES, KerasHub

EXAMPLES, MICRO_BATCH = 512, 4  # of a chip
CASE = dataclasses.replace(CASES["base-512"], batch=2, dtype="bfloat16")
HEAD = ("", "GB", "memory s", "GiB", "billion cycles", "CPU s")


def lowered() -> bytes:
    """Return KerasHub's step as XLA's module, in its own process."""
    import tensorflow as tf

    pieces, model = EXAMPLES // MICRO_BATCH, KerasHub(CASE)
    batch = {
        k: tf.TensorSpec([pieces, MICRO_BATCH, *v.shape[1:]], v.dtype)
        for k, v in CASE.data().items()
    }

    @tf.function(jit_compile=True, autograph=False)
    def step(*tensors):
        def body(i, *sums):
            piece = {k: x[i] for k, x in zip(batch, tensors, strict=True)}
            loss, gradients = model.gradients(piece)
            both = zip(sums, [loss, *gradients], strict=True)
            return i + 1, *(a + b for a, b in both)

        zeros = [0.0, *(tf.zeros(v.shape) for v in model.variables)]
        _, *sums = tf.while_loop(lambda i, *_: i < pieces, body, (0, *zeros))
        loss, *gradients = [x / pieces for x in sums]
        model.update(gradients)
        return loss

    make = step.experimental_get_compiler_ir(*batch.values())
    return make(stage="hlo_serialized")


def row(name: str, hlo: bytes, step) -> list[str]:
    """Compile a module, and return its line of the table."""
    from albert_tf.tpu.compiler import GIB
    from albert_tf.tpu.hlo_traffic import Module

    compiled, chip = step.compiler.compile(hlo), step.topology.chip
    if not compiled.fits:
        return [name, *["does not fit"] * (len(HEAD) - 1)]
    module = Module(compiled.text)
    moved = module.bytes_moved()
    return [
        name,
        f"{moved / 1e9:,.0f}",
        f"{moved / chip.hbm_bytes:.3f}",
        f"{compiled.needed / GIB:.2f}",
        f"{module.cycles() / 1e9:.2f}",
        f"{compiled.cpu_seconds:.0f}",
    ]


def main() -> None:
    """Compile one step after the other, and print the table."""
    from albert_tf.base.text_table import table
    from albert_tf.tpu.tpu_recipes import read_step

    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([sys.argv[1], __file__, "lower", file.name], check=True)
        hlo = Path(file.name).read_bytes()
    step, _ = read_step("configs/pretraining/base_v5e-8.flags")
    modules = {"KerasHub": hlo, "albert_tf": step.lower(MICRO_BATCH).hlo}
    rows = [row(name, module, step) for name, module in modules.items()]
    print(*table([HEAD, *rows]), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["lower"]:
        Path(sys.argv[2]).write_bytes(lowered())
    else:
        main()
