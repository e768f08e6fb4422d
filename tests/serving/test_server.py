"""The basic signatures agree with the Python tokenizer and model."""

import re

import numpy as np
import pytest
import tensorflow as tf
from exporting import (
    LENGTH,
    TEXTS,
    close,
    concrete,
    finetuned,
    operations,
    packed,
    server_of,
    strings,
    xla_operations,
)
from tiny_records import serialized

from albert_tf.serving.server import ensure_shape
from albert_tf.tasks import losses
from albert_tf.text.packing import INPUTS


def test_ids_equal_the_python_model(signatures, pretrained_model, tokenizer):
    """For any batch size and length, `ids` returns the model's outputs."""
    for texts, length in ((TEXTS, 24), (TEXTS[:1], 9)):
        inputs = packed(tokenizer, texts, length=length)
        wanted = pretrained_model.albert(*map(tf.constant, inputs))
        tensors = map(tf.constant, inputs)
        found = signatures["ids"](**dict(zip(INPUTS, tensors, strict=True)))
        assert set(found) == {"sequence_output", "pooled_output", "sop_logits"}
        assert not xla_operations(signatures["ids"])
        close(found["sequence_output"], wanted["sequence_output"])
        close(found["pooled_output"], wanted["pooled_output"])
        close(
            found["sop_logits"], pretrained_model.sop(wanted["pooled_output"])
        )


def test_a_server_needs_no_loss(tmp_path, pretrained_dir, monkeypatch):
    """A served model has the layers of a task, but not the task's loss."""
    finetuned(tmp_path / "m", pretrained_dir, "classification", ("a", "b"))
    monkeypatch.setattr(losses, "OBJECTIVES", {})
    assert "classify" in server_of(tmp_path / "m").signatures


@pytest.mark.slow
def test_every_signature_encodes_once(
    tmp_path, pretrained_dir, pretrained_model
):
    """Each signature runs the encoder only once, even to compute heads."""
    layers = pretrained_model.config.num_hidden_layers
    how = {"labels": ("a", "b"), "layers": layers}
    finetuned(tmp_path / "m", pretrained_dir, "classification", **how)
    products = 2 * layers
    for folder, names in (
        (pretrained_dir, ("ids", "embed", "sentence_order")),
        (str(tmp_path / "m"), ("ids", "text", "classify")),
    ):
        server = server_of(folder)
        for name, served in concrete(server, *names).items():
            # Keras 3.12 adds one product for a layer over all tokens.
            number = operations(served, "BatchMatMulV2")
            assert products <= number < 2 * products, name


@pytest.mark.parametrize("pair", [False, True])
def test_tokenize_equals_the_python_tokenizer(signatures, tokenizer, pair):
    """Ids, mask and segments of all kinds of texts equal those in Python."""
    second = TEXTS[::-1] if pair else None
    ids, mask, segments = packed(tokenizer, TEXTS, second)
    name, texts = "tokenize", {"text": strings(TEXTS)}
    if pair:
        name, texts["text_pair"] = "tokenize_pair", strings(second)
    found = signatures[name](**texts)
    for key, value in zip(INPUTS, (ids, mask, segments), strict=True):
        np.testing.assert_array_equal(found[key], value)
    pieces = [p.decode() for p in found["pieces"].numpy()[0]]
    assert pieces == tokenizer.pieces(ids[0])


def test_text_equals_the_python_model(signatures, pretrained_model, tokenizer):
    """`text` and `text_pair` return the outputs of the Python model."""
    inputs = map(tf.constant, packed(tokenizer, TEXTS))
    wanted = pretrained_model.albert(*inputs)
    for name in ("text", "serving_default"):
        found = signatures[name](strings(TEXTS))
        close(found["sequence_output"], wanted["sequence_output"])
        close(found["pooled_output"], wanted["pooled_output"])
    second = TEXTS[::-1]
    inputs = map(tf.constant, packed(tokenizer, TEXTS, second))
    wanted = pretrained_model.albert(*inputs)
    arguments = {"text": strings(TEXTS), "text_pair": strings(second)}
    found = signatures["text_pair"](**arguments)
    close(found["sequence_output"], wanted["sequence_output"])
    order = tf.nn.softmax(pretrained_model.sop(wanted["pooled_output"]))[:, 0]
    close(signatures["sentence_order"](**arguments)["in_order"], order)


def test_inputs_are_as_long_as_the_longest_text(signatures, tokenizer):
    """Unless the length is fixed, the longest text of a batch determines it."""
    ids = tokenizer.encode(TEXTS[0])
    found = signatures["tokenize"](strings([TEXTS[0], "a"]))
    assert found["input_ids"].shape == [2, len(ids) + 2]


def test_embeddings_are_the_outputs_and_their_mean(
    signatures, pretrained_model, tokenizer
):
    """`embed` returns the pooled output, the tokens' outputs and their mean."""
    ids, mask, segments = packed(tokenizer, TEXTS)
    wanted = pretrained_model.albert(*map(tf.constant, (ids, mask, segments)))
    found = signatures["embed"](strings(TEXTS))
    close(found["pooled"], wanted["pooled_output"])
    close(found["tokens"], wanted["sequence_output"])
    rows = np.array(wanted["sequence_output"])
    means = [x[m == 1].mean(0) for x, m in zip(rows, mask, strict=True)]
    close(found["mean"], means)
    outputs = {"pooled", "mean", "tokens", "input_mask", "pieces"}
    assert set(found) == outputs


def test_a_batch_of_nothing_has_no_results(signatures):
    """For an empty batch of texts, all outputs have 0 rows."""
    for name, function in signatures.items():
        if name == "ids":
            continue
        arguments = function.structured_input_signature[1]
        found = function(**{name: strings([]) for name in arguments})
        assert all(value.shape[0] == 0 for value in found.values()), name


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 25),) * 3, "1 to 24 tokens"),
        (((2, 0),) * 3, "1 to 24 tokens"),
        (((2, 5), (2, 4), (2, 5)), "equal shapes"),
        (((2, 5), (2, 5), (2, 1)), "equal shapes"),
        (((2, 5), (1, 5), (2, 5)), "equal shapes"),
    ],
)
def test_ids_of_a_wrong_shape_are_refused(signatures, shapes, message):
    """Inputs with unequal shapes or an invalid length are rejected."""
    ones = [tf.ones(shape, tf.int32) for shape in shapes]
    inputs = dict(zip(INPUTS, ones, strict=True))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signatures["ids"](**inputs)


def test_pairs_of_unequal_number_are_refused(signatures):
    """A text without a partner is rejected, and no text is broadcast."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number"):
        signatures["text_pair"](
            text=strings(["a", "b"]), text_pair=strings(["c"])
        )


def test_shapes_can_be_fixed(pretrained_dir):
    """Settings can fix the batch size and the length in every signature."""
    server = server_of(
        pretrained_dir, max_seq_length=10, fixed_length=True, batch_size=2
    )
    taken = {
        name: [spec.shape for spec in signature.inputs]
        for name, signature in server.signatures.items()
    }
    assert taken["ids"] == [[2, 10]] * 3
    assert server.number_inputs[3].shape == [2, 8]
    assert taken["text_pair"] == [[2]] * 2
    outputs = concrete(server, "ids")["ids"].structured_outputs
    assert outputs["sequence_output"].shape == [2, 10, 16]
    found = server.call("text", strings(["a", TEXTS[0] * 9]))
    assert found["sequence_output"].shape == [2, 10, 16]


@pytest.fixture(scope="module")
def fixed(pretrained_dir, tmp_path_factory):
    """Return signatures for batches of 2 texts with 10 tokens.

    The signatures are loaded from a SavedModel, because TensorFlow simplifies
    its graphs more than graphs in memory.
    """
    settings = {"max_seq_length": 10, "fixed_length": True, "batch_size": 2}
    server = server_of(pretrained_dir, **settings)
    root, folder = tf.Module(), str(tmp_path_factory.mktemp("fixed"))
    root.weights, root.graphs = server.weights, server.encoder.graphs
    made = concrete(server, "ids", "text", "tf_example")
    tf.saved_model.save(root, folder, made)
    return tf.saved_model.load(folder)


@pytest.mark.parametrize(
    ("name", "rows", "length", "message"),
    [
        ("ids", 3, 10, r"_of_shape \[3,10\] .*\[2,10\]"),
        ("ids", 2, 8, r"_of_shape \[2,8\] .*\[2,10\]"),
        ("text", 1, None, r"text_of_shape \[1\] .*\[2\]"),
        ("text", 3, None, r"text_of_shape \[3\] .*\[2\]"),
        ("tf_example", 3, None, r"examples.* \[3\] .*\[2\]"),
    ],
)
def test_other_sizes_are_refused(fixed, name, rows, length, message):
    """A request whose size is not the export's fixed size raises an error."""
    example = serialized(text=["a"], text_pair=["b"])
    ids = tf.ones([rows, length or 1], tf.int32)
    request = {
        "ids": dict.fromkeys(INPUTS, ids),
        "text": {"text": strings(["a"] * rows)},
        "tf_example": {"examples": tf.constant([example] * rows)},
    }[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        fixed.signatures[name](**request)


@pytest.mark.parametrize("text", ["a [MASK]", [["a [MASK]"], ["a"]]])
@pytest.mark.parametrize("name", ["text", "fill_mask", "attention"])
def test_other_ranks_are_refused(signatures, name, text):
    """A text that is not in a list, or in a column, raises a clear error."""
    values = tf.constant(text)
    request = {"text": values}
    if name == "attention":
        request["text_pair"] = values
    shape = str(values.shape.as_list()).replace(" ", "")
    message = rf"text.*_of_shape {re.escape(shape)} .* expected shape \[\?\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signatures[name](**request)


@pytest.mark.parametrize(("shape", "fits"), [((3, 4), True), ((3, 5), False)])
def test_one_size_may_be_fixed(shape, fits):
    """If only the length is fixed, requests of any number of rows fit."""
    spec = tf.TensorSpec([None, 4], tf.int32, "input_ids")
    size = tf.function(lambda x: ensure_shape(spec, x), autograph=False)
    size = size.get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    if fits:
        assert size(tf.ones(shape, tf.int32)).shape == shape
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="_of_shape"):
        size(tf.ones(shape, tf.int32))


def test_shorter_inputs_can_be_asked_for(pretrained_dir, tokenizer):
    """Texts are truncated to `max_seq_length`, as in training.

    Rows of ids may still be as long as the model's positions allow.
    """
    server = server_of(pretrained_dir, max_seq_length=8)
    ids = tf.ones([2, LENGTH], tf.int32)
    assert server.call("ids", ids, ids, ids)["pooled_output"].shape[0] == 2
    found = server.call("tokenize_pair", strings(TEXTS), strings(TEXTS[::-1]))
    wanted = packed(tokenizer, TEXTS, TEXTS[::-1], length=8)[0]
    np.testing.assert_array_equal(found["input_ids"], wanted)


@pytest.mark.parametrize("pair", [False, True])
def test_attention_is_that_of_every_head(
    signatures, pretrained_model, tokenizer, pair
):
    """`attention` returns the attention [B, L, A, T, T] of the Python model."""
    second = TEXTS[::-1] if pair else [""] * len(TEXTS)
    inputs = packed(tokenizer, TEXTS, second)
    wanted = pretrained_model.albert(
        *map(tf.constant, inputs), return_all=True
    )["attention_probs"]
    found = signatures["attention"](
        text=strings(TEXTS), text_pair=strings(second)
    )
    close(found["attention"], np.stack(wanted, axis=1))
    np.testing.assert_array_equal(found["segment_ids"], inputs[2])
    outputs = {"attention", "input_mask", "segment_ids", "pieces"}
    assert set(found) == outputs


def test_examples_in_bulk_give_embeddings(
    signatures, pretrained_model, tokenizer
):
    """Serialized examples with one or two texts are pooled as in Python."""
    second = ["the night", ""] * (len(TEXTS) // 2)
    examples = [
        serialized(text=[a], **{"text_pair": [b]} if b else {})
        for a, b in zip(TEXTS, second, strict=True)
    ]
    found = signatures["tf_example"](tf.constant(examples))
    inputs = packed(tokenizer, TEXTS, second)
    wanted = pretrained_model.albert(*map(tf.constant, inputs))
    assert set(found) == {"pooled", "mean"}
    close(found["pooled"], wanted["pooled_output"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="text"):
        signatures["tf_example"](tf.constant([serialized(other=["a"])]))
