"""The pretraining step of TensorFlow libraries, compiled for a TPU's chip.

    python benchmarks/tpu_peers.py KerasHub=PYTHON 'Model Garden=PYTHON'

Ours is that of the recipe `base_v5e-8`. Peers have the model, the batch of a
chip, the micro-batches whose gradients add up and bfloat16 in common with it,
but AdamW and no all-reduce. They are lowered by the TensorFlow of a PYTHON of
their own, as `tensorflow_peers.py` builds them. Needs the extra `tpu-check`; a
row takes minutes of a core.
"""

import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

from tensorflow_peers import TENSORFLOW_MODELS
from train_step_cases import CASES, CLIP

EXAMPLES, MICRO_BATCH = 512, 4  # of a chip
CASE = dataclasses.replace(CASES["base-512"], batch=2, dtype="bfloat16")
HEAD = ("", "GB", "memory s", "arithmetic s", "GiB", "billion cycles", "CPU s")


def lowered(name: str) -> bytes:
    """Return a library's step as XLA's module, in that library's process."""
    import tensorflow as tf

    pieces, model = EXAMPLES // MICRO_BATCH, TENSORFLOW_MODELS[name](CASE)
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
        model.update(tf.clip_by_global_norm(gradients, CLIP)[0])
        return loss

    make = step.experimental_get_compiler_ir(*batch.values())
    return make(stage="hlo_serialized")


def peer_module(name: str, python: str) -> bytes:
    """Return what a process of a library's environment lowers."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([python, __file__, "lower", name, file.name], check=True)
        return Path(file.name).read_bytes()


def row(name: str, hlo: bytes, step, flops: int) -> list[str]:
    """Compile a module of so many FLOPs an example, and return its line."""
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
        f"{flops * EXAMPLES / chip.flops:.3f}",
        f"{compiled.needed / GIB:.2f}",
        f"{module.cycles() / 1e9:.2f}",
        f"{compiled.cpu_seconds:.0f}",
    ]


def main() -> None:
    """Compile one step after the other, and print the table."""
    from albert_tf.base.text_table import table
    from albert_tf.tpu.tpu_recipes import read_step

    modules = {
        name: peer_module(name, python)
        for name, python in (peer.split("=") for peer in sys.argv[1:])
    }
    step, _ = read_step("configs/pretraining/base_v5e-8.flags")
    needed, _ = step.plan.flops()
    # Peers compute the last block at every token; twice that backwards.
    width = CASE.intermediate + CASE.hidden + CASE.tokens
    spared = CASE.tokens - CASE.predictions - 1
    more = 3 * 2 * 2 * CASE.hidden * width * spared
    rows = [HEAD]
    for name, hlo in modules.items():
        rows.append(row(name, hlo, step, needed + more))
    rows.append(row("albert_tf", step.lower(MICRO_BATCH).hlo, step, needed))
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["lower"]:
        Path(sys.argv[3]).write_bytes(lowered(sys.argv[2]))
    else:
        main()
