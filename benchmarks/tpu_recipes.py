"""Accept what the recipes for TPUs lower and compile to, as it is now.

    python benchmarks/tpu_recipes.py [base_v5e-8 ...]

Lowers the step of every recipe of `configs/pretraining/`, or of those named,
compiles it unless neither module nor compiler has changed, says what is new,
and writes `albert_tf/tpu/recipes.json`, for `git diff` and a review. Needs the
extra `tpu-check`, and a minute of a core for each recipe that changed.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import multiprocessing
import pathlib

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.tpu.fingerprint import fingerprint
    from albert_tf.tpu.tpu_recipes import SLICE, Recipe, accepted, read_step

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "configs" / "pretraining"
WRITTEN = ROOT / "albert_tf" / "tpu" / "recipes.json"


def names() -> list[str]:
    """Return the recipes that are for a slice."""
    paths = sorted(FOLDER.glob("*.flags"))
    return [path.stem for path in paths if SLICE.search(path.read_text())]


def measured(name: str) -> tuple[str, Recipe, float]:
    """Return a recipe as it is now, and the CPU seconds of a compilation."""
    step, micro_batch = read_step(str(FOLDER / f"{name}.flags"))
    module = step.lower(micro_batch)
    compiler = f"libtpu {importlib.metadata.version('libtpu')}"
    now = Recipe(str(step.topology), fingerprint(module.hlo), compiler)
    old = accepted().get(name)
    same = old and (old.module, old.compiler) == (now.module, compiler)
    if same and old.memory:
        return name, old, 0.0
    compiled = step.compiler.compile(module.hlo)
    memory = compiled.parts if compiled.fits else {"does not fit": 0}
    now = dataclasses.replace(now, memory=memory)
    return name, now, compiled.cpu_seconds


def main() -> None:
    """Measure one recipe after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", metavar="recipe", default=names())
    chosen = parser.parse_args().recipes
    recipes = accepted()
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1, maxtasksperchild=1) as pool:
        for name, now, seconds in pool.imap(measured, chosen):
            old = recipes.get(name)
            new = old.changes(now) if old else ["new"]
            said = "; ".join(new) or "unchanged"
            print(f"{name} ({seconds:.0f} CPU s): {said}", flush=True)
            recipes[name] = now
            rows = {name: recipes[name].row() for name in sorted(recipes)}
            WRITTEN.write_text(json.dumps(rows, indent=1) + "\n")
        # libtpu has much to say where its process is ended instead.
        pool.close()
        pool.join()


if __name__ == "__main__":
    main()
