"""The model in `examples/models/tiny_en` answers as its card states."""

import json
from pathlib import Path

import numpy as np
import pytest

import albert_tf

FOLDER = Path(__file__).parents[2] / "examples/models/tiny_en"
ANSWERS = {
    "She opened the [MASK] and went out.": "▁door",
    "The supreme [MASK] decided the case.": "▁court",
    "The United [MASK] of America.": "▁states",
    "I do [MASK] know.": "▁not",
    '"Good [MASK], sir," said the boy.': "▁morning",
    "The boys [MASK] playing in the street.": "▁were",
    "The boy [MASK] playing in the street.": "▁was",
    "She could not help [MASK].": "▁her",
    "It was too late to [MASK] back.": "▁come",
    "The president of the United [MASK] spoke.": "▁states",
}
VECTOR = [0.6615, 0.4408, 0.0592, 0.1542, 0.1367, -0.2931, -0.1709, -0.0509]
LARGEST = 8_000_000  # bytes


@pytest.fixture(scope="module")
def albert():
    """Return the model."""
    return albert_tf.load(str(FOLDER))


def test_it_loads_without_a_word(capsys):
    """No warning is printed, and both heads and the tokenizer are present."""
    model = albert_tf.load(str(FOLDER))
    assert capsys.readouterr().out == ""
    assert model.heads == ("mlm", "sop")
    assert model.tokenizer.vocab_size == model.config.vocab_size == 16_000


def test_it_fills_masks(albert):
    """The most probable pieces for ten masks equal the recorded pieces."""
    fillings = albert.fill_mask(list(ANSWERS), top_k=1)
    found = [row[0][0].piece for row in fillings]
    assert found == list(ANSWERS.values())


def test_its_vector_is_the_recorded_one(albert):
    """The first values of a text's vector equal the recorded values."""
    vector = albert.embed("The ship sailed across the sea.")
    assert vector.shape == (256,)
    np.testing.assert_allclose(vector[: len(VECTOR)], VECTOR, atol=1e-3)


def test_it_stays_small():
    """The folder is smaller than 8 MB.

    Its config agrees with the one in `configs/`.
    """
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < LARGEST
    config = json.loads((FOLDER / "config.json").read_text())
    path = FOLDER.parents[2] / "configs/models/tiny_en.json"
    ours = json.loads(path.read_text())
    shared = ours.keys() & config.keys() - {"hidden_act"}
    assert {k: config[k] for k in shared} == {k: ours[k] for k in shared}
