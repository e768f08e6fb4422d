"""Strings become model inputs eagerly, in `map` and in a graph."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.library import preprocessor
from albert_tf.library.preprocessor import Preprocessor, is_pair

TEXTS = ["The small garden on the river.", "", "naïve cafés, 1,000 in 2010"]
PAIRS = ["she walked quickly over the bridge " * 9, "music", ""]
LENGTH = 24


@pytest.fixture(scope="module")
def layer(tokenizer):
    """Return a layer that outputs short rows."""
    return Preprocessor(tokenizer, LENGTH)


def agree(found, wanted):
    """Assert that two batches are equal."""
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)


def test_all_ways_agree_with_the_tokenizer(layer, tokenizer):
    """For lists, mapped texts and batched pairs, ids equal the tokenizer's."""
    wanted = tokenizer(TEXTS, max_length=LENGTH)
    agree(layer(TEXTS), wanted)
    texts = tf.data.Dataset.from_tensor_slices(TEXTS)
    agree(next(iter(texts.map(layer).batch(3))), wanted)
    pairs = tokenizer(TEXTS, PAIRS, LENGTH)
    agree(layer((TEXTS, PAIRS)), pairs)
    both = tf.data.Dataset.from_tensor_slices((TEXTS, PAIRS)).batch(3)
    agree(next(iter(both.map(layer))), pairs)
    one = {name: rows[0] for name, rows in tokenizer(["a"], [""]).items()}
    agree(Preprocessor(tokenizer, len(one["input_ids"]))("a", ""), one)


def test_a_mask_is_text(layer, tokenizer):
    """Eagerly and in a graph, `[MASK]` is ordinary text, as in `encode`."""
    texts = ["the [MASK] of the river"]
    ids = [tokenizer.cls_id, *tokenizer.encode(texts[0]), tokenizer.sep_id]
    mapped = tf.data.Dataset.from_tensor_slices(texts).map(layer)
    for row in (layer(texts)["input_ids"][0], next(iter(mapped))["input_ids"]):
        assert row.numpy()[: len(ids)].tolist() == ids


def test_what_keras_passes_is_read(layer, tokenizer):
    """The layer accepts texts [B, 1], and a list of two columns.

    The layer also works in functional and sequential models.
    """
    wanted, texts = tokenizer(TEXTS, max_length=LENGTH), tf.constant(TEXTS)
    for column in (
        texts[:, None],
        [[x] for x in TEXTS],
        texts[:, None].numpy(),
    ):
        agree(layer(column), wanted)
    pairs = tokenizer(TEXTS, PAIRS, LENGTH)
    agree(layer([texts, tf.constant(PAIRS)]), pairs)
    agree(layer((texts[:, None], tf.constant(PAIRS)[:, None])), pairs)
    both = [keras.Input((), dtype="string") for _ in range(2)]
    agree(keras.Model(both, layer(both))([texts, tf.constant(PAIRS)]), pairs)
    agree(keras.Sequential([layer])(texts), wanted)
    text = keras.Input((1,), dtype="string")
    model = keras.Sequential([text, layer])
    agree(model(texts[:, None]), wanted)
    shapes = {x.shape for x in layer(text).values()}
    assert shapes == {(None, LENGTH)}
    text = keras.Input(batch_shape=(3,), dtype="string")
    assert {x.shape for x in layer(text).values()} == {(3, LENGTH)}


@pytest.mark.parametrize(
    ("texts", "pair"),
    [
        (("a", "b"), True),
        (["a", "b"], False),
        ([np.array(["a"]), np.array(["b"])], True),
        ([np.array("a"), np.array("b")], False),
        ([np.array(["a"])] * 3, False),
        ([["a"], ["b"]], False),
        (np.array(["a", "b"]), False),
    ],
)
def test_two_arrays_are_a_pair(texts, pair):
    """A tuple, or a list of two arrays, contains both columns of pairs."""
    assert is_pair(texts) == pair


@pytest.mark.parametrize(
    ("shape", "new_shape"),
    [((), [1]), ((2,), [2]), ((2, 1), [2]), ((1, 2), [1, 2])],
)
def test_a_column_of_a_tensor_is_flattened(shape, new_shape):
    """A scalar and a tensor [B, 1] become [B]; other tensors are unchanged."""
    texts = tf.fill(shape, "a")
    assert preprocessor.column(texts).shape.as_list() == new_shape


def test_a_column_of_lists_is_a_list():
    """Lists that contain one text each become texts; others are unchanged."""
    for texts, wanted in (
        ([["a"], ("b",)], ["a", "b"]),
        ([["a"], ["b", "c"]], [["a"], ["b", "c"]]),
        (b"a", [b"a"]),
        (["a"], ["a"]),
    ):
        assert preprocessor.column(texts) == wanted


def test_the_layer_has_128_tokens_and_no_weights(tokenizer, tokenizer_dir):
    """By default, the layer outputs 128 tokens; it is not trainable.

    Files of earlier versions store the tokenizer as an asset.
    """
    layer = Preprocessor(tokenizer)
    assert layer.max_length == 128 and not layer.trainable and layer.built
    loaded = Preprocessor.load(str(tokenizer_dir))
    assert loaded.max_length == 128
    agree(loaded(["a"]), layer(["a"]))
    empty = Preprocessor()
    for folder in (None, str(tokenizer_dir / "none")):
        empty.load_assets(folder)
        assert empty.tokenizer is None
    empty.load_assets(str(tokenizer_dir))
    loaded_tokenizer = empty.tokenizer
    assert loaded_tokenizer.fingerprint() == tokenizer.fingerprint()
    empty.load_assets(str(tokenizer_dir / "none"))
    assert empty.tokenizer is loaded_tokenizer


def test_a_copy_has_the_vocabulary(layer):
    """`from_config` creates an equal layer from a JSON config."""
    config = json.loads(json.dumps(layer.get_config()))
    agree(Preprocessor.from_config(config)(TEXTS), layer(TEXTS))


@pytest.mark.slow
def test_a_new_global_seed_changes_nothing(layer, tokenizer):
    """After `set_random_seed`, the layer still returns the same ids."""
    texts = tf.data.Dataset.from_tensor_slices(TEXTS).batch(3).map(layer)
    first = next(iter(texts))
    keras.utils.set_random_seed(7)
    agree(next(iter(texts)), first)
    agree(layer(TEXTS), tokenizer(TEXTS, max_length=LENGTH))


def test_a_saved_layer_has_its_vocabulary(layer, tmp_path):
    """A `.keras` file restores the layer and its tokenizer."""
    text = keras.Input((), dtype="string")
    model = keras.Model(text, layer(text))
    model.save(tmp_path / "ids.keras")
    again = keras.models.load_model(tmp_path / "ids.keras")
    agree(again(tf.constant(TEXTS)), layer(TEXTS))


@pytest.mark.slow
def test_a_model_of_strings_is_exported_by_keras(words, tmp_path):
    """A SavedModel that Keras exports returns the ids of strings.

    All calls of a layer share its lookup table, which outlasts a new seed.
    """
    layer, text = Preprocessor(words, LENGTH), keras.Input((), dtype="string")
    ids = [layer(text)["input_ids"], layer(text, text)["input_ids"]]
    model, texts = keras.Model(text, ids), tf.constant(["a good film", "", "x"])
    model.export(tmp_path / "saved", verbose=False)
    keras.utils.set_random_seed(7)
    saved = tf.saved_model.load(str(tmp_path / "saved"))
    wanted = [words(texts, x, LENGTH)["input_ids"] for x in (None, texts)]
    for found in (saved.serve(texts), model(texts)):
        np.testing.assert_array_equal(found, wanted)


def test_refuses_what_is_no_text(layer):
    """Numbers, a missing tokenizer and too short a length raise errors."""
    with pytest.raises(InputError, match="must be a list of strings"):
        layer([1, 2])
    with pytest.raises(InputError, match="`tokenizer` must be set"):
        Preprocessor()(TEXTS)
    with pytest.raises(InputError, match="`max_length` must be at least 3"):
        Preprocessor(layer.tokenizer, 2)


@pytest.mark.parametrize(
    ("columns", "received"),
    [
        ((TEXTS, [1, 0, 1]), "types=string, int32"),
        (((TEXTS, PAIRS), [1, 0, 1]), "columns=3"),
        (((TEXTS, PAIRS, TEXTS),), "columns=3"),
    ],
)
def test_labels_are_not_texts(layer, columns, received):
    """In `map`, labels and third columns raise an error that names a remedy."""
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    with pytest.raises(InputError, match=received) as error:
        dataset.map(layer)
    assert "(preprocessor(x), y)" in str(error.value)


@pytest.mark.parametrize("form", [np.array, list])
def test_the_pairs_in_map_may_be_constants(layer, form):
    """In `map`, an array or a list may contain the pairs of a batch."""
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(len(TEXTS))
    (found,) = dataset.map(lambda texts: layer(texts, form(PAIRS)))
    agree(found, layer(TEXTS, PAIRS))
