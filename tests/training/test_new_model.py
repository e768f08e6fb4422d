"""Heads of a new model that attend to useful positions."""

import dataclasses

import pytest
import tiny

from albert_tf.model.albert import AlbertModel
from albert_tf.training.pretraining.informed_start import start_heads

WIDE = dataclasses.replace(
    tiny.CONFIG,
    vocab_size=60,
    embedding_size=64,
    hidden_size=96,
    num_attention_heads=4,
)


@pytest.mark.parametrize(
    "known, changes, repeats",
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"embedding_size": 40}, False),
        (True, {"hidden_size": 32, "num_attention_heads": 1}, False),
    ],
    ids=["as built", "no tokenizer", "too narrow", "one head"],
)
def test_the_head_at_repeats_needs_a_tokenizer_room_and_a_head(
    known, changes, repeats, tokenizer_dir, tmp_path
):
    """A head for repeats needs a tokenizer, sufficient width and a free head.

    Only this head has a query bias.
    """
    model = AlbertModel(dataclasses.replace(WIDE, **changes))
    model.build()
    said = start_heads(model, str(tokenizer_dir if known else tmp_path))
    assert ("same word elsewhere" in said) == repeats
    (attention,) = model.encoder.attentions.values()
    size = model.config.head_size
    marked = attention.query.bias.numpy().nonzero()[0].tolist()
    assert marked == ([3 * size - 1] if repeats else [])
