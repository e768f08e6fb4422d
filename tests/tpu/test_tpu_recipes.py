"""The recipes for TPUs lower and compile to what was accepted."""

import pathlib
import re

import pytest

from albert_tf.base.errors import InputError
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiler import GIB, VERSIONS
from albert_tf.tpu.fingerprint import Fingerprint, fingerprint
from albert_tf.tpu.tpu_recipes import Recipe, accepted, read_step

FOLDER = pathlib.Path(__file__).parents[2] / "configs" / "pretraining"
ACCEPT = "to accept it: python benchmarks/tpu_recipes.py, git diff, commit"
# Three sizes and slices; v1 has dropout, on v5e the layers are unrolled.
LOWERED = ("base", "large_v3-8", "xxlarge_v5e-8")


def test_every_recipe_for_a_slice_has_a_row():
    """With the slice that its `tpu_check` command names, and its memory."""
    slices = {
        f"{size}{slice_}": re.search(
            r"--topology=(\S+)", (FOLDER / f"{size}{slice_}.flags").read_text()
        )[1]
        for size in ("base", "large", "xlarge", "xxlarge")
        for slice_ in ("", "_v5e-8", "_v3-8")
    }
    rows = accepted()
    assert {n: r.topology for n, r in rows.items()} == {
        name: str(parse(slice_)) for name, slice_ in slices.items()
    }
    assert all(row.module.operations["all-reduce"] for row in rows.values())


def test_changes_are_said():
    """Another module, another slice, and memory from 2 % on."""
    module = Fingerprint("aa", {"add": 1})
    memory = {"arguments": GIB, "temporaries": 3 * GIB}
    old = Recipe("v5e:2x4", module, "libtpu 1", memory)
    near = Recipe("v5e:2x4", module, "libtpu 2", {"arguments": 4.07 * GIB})
    assert old.changes(old) == old.changes(near) == []
    other = Fingerprint("bb", {"add": 2})
    far = Recipe("v3:2x2", other, "libtpu 2", {"arguments": 4.1 * GIB})
    assert old.changes(far) == [
        "module aa -> bb: add 1 -> 2",
        "slice v5e:2x4 -> v3:2x2",
        "memory 4.000 -> 4.100 GiB (+2.5%), libtpu 1 -> libtpu 2",
    ]


def test_a_flagfile_without_a_slice_is_refused(tmp_path):
    """The error says what it lacks."""
    path = tmp_path / "x.flags"
    path.write_text("--train_batch_size=8\n")
    with pytest.raises(InputError, match="must name its `tpu_check` command"):
        read_step(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", LOWERED)
def test_the_module_is_the_accepted_one(name, monkeypatch):
    """Lowering gives the same digest in TensorFlow 2.20 and 2.21."""
    monkeypatch.chdir(FOLDER.parents[1])
    step, micro_batch = read_step(str(FOLDER / f"{name}.flags"))
    module = fingerprint(step.lower(micro_batch).hlo)
    old = accepted()[name]
    changes = old.changes(Recipe(str(step.topology), module))
    assert not changes, f"{name}: {'; '.join(changes)}; {ACCEPT}"


@pytest.mark.slow
def test_the_memory_is_the_accepted_one(monkeypatch):
    """The TPU compiler gives the smallest recipe what it did, to 2 %."""
    for package in VERSIONS:
        pytest.importorskip(package)
    monkeypatch.chdir(FOLDER.parents[1])
    name = "base_v5e-8"
    step, micro_batch = read_step(str(FOLDER / f"{name}.flags"))
    module = step.lower(micro_batch)
    compiled = step.compiler.compile(module.hlo)
    assert compiled.fits
    now = Recipe(
        *(str(step.topology), fingerprint(module.hlo)),
        *("the compiler here", compiled.parts),
    )
    changes = accepted()[name].changes(now)
    assert not changes, f"{name}: {'; '.join(changes)}; {ACCEPT}"
