"""Warm starts load exactly the weights that they list."""

import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
import vocabularies
from tiny_runs import eagerly

from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.text.symbols import preset
from albert_tf.training import checkpoints
from albert_tf.training.pretraining import warm_start


def make(config, seed):
    keras.utils.set_random_seed(seed)
    config = dataclasses.replace(config, initializer_range=0.5)
    return AlbertForPretraining(config)


def table(model):
    named = checkpoints.named_variables(model)
    return {name: variable.numpy() for name, variable in named.items()}


def saved(folder, config, without=("none",)):
    """Save a model with random weights; return {name: value}."""
    model = make(config, 1)
    named = checkpoints.named_variables(model)
    included = {n: v for n, v in named.items() if not n.startswith(without)}
    config.save(str(folder))
    checkpoints.save(str(folder), included)
    return table(model)


def change(**kwargs):
    return dataclasses.replace(tiny.CONFIG, **kwargs)


def started(folder, config):
    model = make(config, 2)
    text = warm_start.start_weights(model, str(folder), config)
    return table(model), "\n".join(text), model


def assert_equal(found, expected, names=None):
    for name in names or expected:
        np.testing.assert_array_equal(found[name], expected[name], name)


def test_shared_weights_serve_more_layers(tmp_path):
    """A six-layer model gets all shared weights of a two-layer model."""
    expected = saved(tmp_path, tiny.CONFIG)
    found, text, _ = started(tmp_path, change(num_hidden_layers=6))
    assert found.keys() == expected.keys()
    assert_equal(found, expected)
    assert "6 layers from 2" in text and "positions" not in text


@pytest.mark.parametrize(
    "source, target, origins, expected_text",
    [
        ({"num_hidden_groups": 2}, {}, [0], ""),
        (
            {"num_hidden_groups": 2},
            {"num_hidden_layers": 8, "num_hidden_groups": 4},
            [0, 0, 1, 1],
            "ffn_3_* from ffn_1_*",
        ),
        (
            {"num_hidden_layers": 2, "sharing": "attention"},
            {"sharing": "attention"},
            [0, 0, 1, 1],
            "4 layers from 2",
        ),
    ],
)
def test_blocks_come_from_the_same_depth(
    tmp_path, source, target, origins, expected_text
):
    """Each block is loaded from the same relative depth in the source.

    Blocks are groups or layers; a group's first layer determines its depth.
    """
    layers = {"num_hidden_layers": 4}
    expected = saved(tmp_path, change(**layers | source))
    found, text, _ = started(tmp_path, change(**layers | target))
    for name, value in found.items():
        theirs = re.sub(r"_(\d)_", lambda m: f"_{origins[int(m[1])]}_", name)
        np.testing.assert_array_equal(value, expected[theirs], name)
    assert expected_text in text


def test_blocks_are_described_in_order():
    """Lines about blocks are in the order of their numbers, 9 before 10."""
    source = change(sharing="none", num_hidden_layers=1)
    target = change(sharing="none", num_hidden_layers=12)
    blocks = [f"albert/encoder/ffn_{i}_0/output/kernel" for i in range(12)]
    names = {n: warm_start.source_name(n, source, target) for n in blocks}
    first, *lines = warm_start.describe_warm_start(source, target, names)
    assert first == "12 layers from 1"
    assert lines == [f"ffn_{i}_* from ffn_0_*" for i in range(1, 12)]


def test_the_best_weights_are_taken_where_they_are_kept(tmp_path):
    """The weights in `best/` take precedence over the newest checkpoint."""
    saved(tmp_path, tiny.CONFIG)
    model = make(tiny.CONFIG, 5)
    best = checkpoints.named_variables(model)
    checkpoints.save(str(tmp_path / checkpoints.BEST), best)
    found, text, _ = started(tmp_path, tiny.CONFIG)
    assert_equal(found, table(model))
    assert f"{checkpoints.BEST}/ckpt-0" in text


POSITIONS = "albert/embeddings/position_embeddings"


@pytest.mark.parametrize(
    "positions, expected_text",
    [
        (40, "40 positions from 16, which are repeated"),
        (8, "the first 8 of 16"),
    ],
)
def test_positions_are_repeated_or_cut(tmp_path, positions, expected_text):
    """A longer position table repeats the source's table.

    A shorter table is the beginning of the source's table.
    """
    expected = saved(tmp_path, tiny.CONFIG)[POSITIONS]
    target = change(max_position_embeddings=positions)
    found, text, _ = started(tmp_path, target)
    repeated = np.concatenate([expected] * 3)[:positions]
    np.testing.assert_array_equal(found[POSITIONS], repeated)
    assert expected_text in text


@pytest.mark.parametrize("head", ["mlm/", "sop/"])
def test_a_head_that_the_source_lacks_stays_new(tmp_path, head):
    """A head that the source lacks stays random; other weights are loaded."""
    expected = saved(tmp_path, tiny.CONFIG, without=(head,))
    fresh = table(make(tiny.CONFIG, 2))
    found, text, _ = started(tmp_path, tiny.CONFIG)
    absent = [name for name in found if name.startswith(head)]
    assert_equal(found, fresh, absent)
    assert_equal(found, expected, found.keys() - set(absent))
    assert f"a new {head[:-1]} head" in text


def test_a_missing_weight_is_named(tmp_path):
    """The error names a weight that the source's encoder lacks."""
    saved(tmp_path, tiny.CONFIG, without=("albert/pooler/bias",))
    with pytest.raises(InputError, match="without albert/pooler/bias"):
        started(tmp_path, tiny.CONFIG)


@pytest.mark.parametrize(
    "key, value",
    [
        ("hidden_size", 32),
        ("vocab_size", 60),
        ("type_vocab_size", 3),
        ("num_attention_heads", 4),
        ("hidden_act", "relu"),
        ("inner_group_num", 2),
        ("intermediate_size", 64),
        ("embedding_size", 4),
        ("embedding_norm", "hidden"),
        (
            "attention_head_size",
            4,
        ),  # the same number of heads, but of a different size
    ],
)
def test_another_kind_of_model_is_refused(key, value):
    """A source with a different architecture setting raises an error.

    Even a setting that changes no shape, such as `hidden_act`, must be equal.
    """
    message = {"attention_head_size": "head_size=8 instead of 4"}
    message = message.get(key, f"{key}={getattr(tiny.CONFIG, key)}")
    with pytest.raises(InputError, match=message):
        warm_start.check_source(tiny.CONFIG, change(**{key: value}))


@pytest.mark.parametrize(
    ("model_dir", "vocabulary", "message"),
    [
        (None, vocabularies.english(), "None with no tokenizer, .*a tokenizer"),
        ("source", None, "source with a tokenizer, records=with no tokenizer"),
        ("bare", vocabularies.english(), "bare with no tokenizer, records=.*a"),
        ("bare", None, "bare with no tokenizer, records=with no tokenizer"),
        ("source", preset("kokoro"), "a tokenizer, records=with phoneme symb"),
        ("spoken", vocabularies.english(), "phoneme symbols, records=with a t"),
    ],
)
def test_a_transplant_needs_two_vocabularies_of_a_kind(
    tmp_path, vocabulary, model_dir, message
):
    """A transplant needs two tokenizers, or two tables of phoneme symbols.

    A source with a different hidden size also raises an error.
    """
    for name in ("source", "bare", "spoken"):
        tiny.CONFIG.save(str(tmp_path / name))
    vocabularies.english().save(str(tmp_path / "source"))
    preset("plbert").save(str(tmp_path / "spoken"))
    saved(tmp_path / "source", tiny.CONFIG)
    where = model_dir and str(tmp_path / model_dir)
    target = change(vocab_size=60)
    with pytest.raises(InputError, match=f"that both have a token.*{message}"):
        warm_start.check_warm_start(where, "transplant", target, vocabulary)
    allowed = str(tmp_path / "source"), "transplant"
    warm_start.check_warm_start(*allowed, target, vocabularies.chinese())
    with pytest.raises(InputError, match="hidden_size=16 instead of 32"):
        wider = change(vocab_size=60, hidden_size=32)
        warm_start.check_warm_start(*allowed, wider, vocabularies.chinese())


@eagerly()
def test_the_slots_and_the_step_can_be_taken_too(tmp_path):
    """With `init_state=run`, slots and the step are loaded, too.

    They are those of the newest checkpoint, not of the best one.
    """
    trainer = tiny.new_trainer()
    tiny.run_steps(trainer, 1)
    best = str(tmp_path / checkpoints.BEST)
    checkpoints.save(best, trainer.state(), 1)
    tiny.run_steps(trainer, 1)
    expected = tiny.values(trainer)
    tiny.SHALLOW.save(str(tmp_path))
    checkpoints.save(str(tmp_path), trainer.state(), 2)
    trainer = tiny.new_trainer()  # with the initial weights
    text = warm_start.start_run(str(tmp_path), trainer.state())
    found = tiny.values(trainer)
    assert found["optimizer/iterations"] == 2 and "step 2" in text[0]
    assert_equal(found, expected, found)


def test_a_run_to_continue_must_be_named():
    """`init_state=run` without a source is an error, not a new run."""
    with pytest.raises(InputError, match="needs an .*init_checkpoint=None$"):
        warm_start.check_warm_start(None, "run", tiny.CONFIG, None)
    warm_start.check_warm_start(None, "weights", tiny.CONFIG, None)


def test_slots_of_another_architecture_are_refused(tmp_path):
    """Missing slots, and slots of a different architecture, raise an error."""
    saved(tmp_path, tiny.CONFIG)
    source, other = str(tmp_path), change(num_hidden_layers=3)
    with pytest.raises(InputError, match="needs the architecture"):
        warm_start.check_warm_start(source, "run", other, None)
    state = {"optimizer/albert/pooler/bias/m": tf.Variable(0.0)}
    with pytest.raises(InputError, match=f"with the optimizer.*{source}/ckpt"):
        warm_start.start_run(source, state)
