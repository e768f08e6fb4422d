"""Releases to convert, and checks for failed conversions."""

import json
import pathlib

import goldens
import numpy as np
import pytest
import released_files
import safetensors.numpy

from albert_tf.base.errors import InputError
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.variable_names import ALBERT_ZH, stored_tensors
from albert_tf.training import checkpoints


def with_slots(table: dict, names=("adam_m", "adam_v")) -> dict:
    """Return TF1 variables with optimizer slots and a step."""
    rng = np.random.default_rng(1)
    slots = {
        f"{name}/{slot}": rng.random(value.shape, np.float32)
        for name, value in table.items()
        for slot in names
    }
    return {**table, **slots, "global_step": np.int64(125_000)}


def release(folder: pathlib.Path, config, table, **changes) -> str:
    """Write a TF1 release; return its folder."""
    folder.mkdir()
    released_files.write_saver(str(folder / "model.ckpt-best"), table)
    released_files.write_config(
        folder / "albert_config.json", config, **changes
    )
    return str(folder)


def zh_table(config) -> dict[str, np.ndarray]:
    """Return random weights with the names of albert_zh's first release."""
    ours = goldens.random_weights(config)
    return {
        stored.name: ours[name].T.copy() if stored.transposed else ours[name]
        for name, stored in stored_tensors(config, ALBERT_ZH).items()
    }


def vocabulary(path: pathlib.Path, size: int) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [chr(0x4E00 + i) for i in range(size - len(pieces))]
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")


def check_nothing_left(folder: pathlib.Path, before: set) -> None:
    assert {p.name for p in folder.iterdir()} == before


def refuse(folder, source, message, to="model_dir") -> str:
    """Assert that a conversion fails, leaving no files; return the message."""
    before = {p.name for p in folder.iterdir()}
    with pytest.raises(InputError, match=message) as caught:
        convert(str(source), str(folder / "out"), to)
    check_nothing_left(folder, before)
    return str(caught.value)


def huggingface(tmp_path, golden, **config) -> tuple[pathlib.Path, dict]:
    """Return a Hugging Face folder with recorded weights, and its tensors."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    folder = tmp_path / "hf"
    convert(source, str(folder), "huggingface")
    if config:
        update(folder / "config.json", **config)
    return folder, safetensors.numpy.load_file(folder / "model.safetensors")


def rewrite(folder: pathlib.Path, tensors: dict) -> None:
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def weights_of(folder) -> dict[str, np.ndarray]:
    """Return {name: array} for the weights in a model directory."""
    prefix = checkpoints.for_inference(str(folder))
    read = checkpoints.reader(prefix)
    return {name: read(name) for name in checkpoints.read_table(prefix)}


def edit(path: pathlib.Path, change) -> None:
    """Rewrite a JSON file with a function that changes its content."""
    path.write_text(json.dumps(change(json.loads(path.read_text("utf-8")))))


def update(path: pathlib.Path, **changes) -> None:
    """Change keys of a JSON object; a value of None removes the key."""

    def change(values: dict) -> dict:
        pairs = (values | changes).items()
        return {key: value for key, value in pairs if value is not None}

    edit(path, change)
