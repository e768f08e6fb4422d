"""Filled masks and sentence orders agree with the Python model."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from exporting import (
    LENGTH,
    MASKED,
    close,
    copied,
    product_flops,
    server_of,
    strings,
)

from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig, forward_flops
from albert_tf.text.packing import INPUTS, pack
from albert_tf.training import checkpoints


def test_masks_are_filled_as_by_the_python_model(
    signatures, pretrained_model, tokenizer
):
    """Every `[MASK]` that truncation keeps gets its most probable pieces."""
    found = {
        k: v.numpy()
        for k, v in signatures["fill_mask"](strings(MASKED)).items()
    }
    most = 0
    for row, text in enumerate(MASKED):
        inputs = pack(tokenizer, tokenizer.encode_masked(text), [], LENGTH)
        positions = np.flatnonzero(inputs[0] == tokenizer.mask_id)
        most = max(most, len(positions))
        assert found["mask_count"][row] == len(positions)
        batch = [tf.constant(x[None], tf.int32) for x in (*inputs, positions)]
        logits = len(positions) and pretrained_model(*batch)["mlm_logits"][0]
        for i, position in enumerate(positions):
            assert found["positions"][row, i] == position
            probabilities = tf.nn.softmax(logits[i]).numpy()
            best = np.argsort(-probabilities)[:5]
            close(found["probabilities"][row, i], probabilities[best])
            pieces = [p.decode() for p in found["pieces"][row, i]]
            assert pieces == tokenizer.pieces(best)
        rest = len(positions)
        assert (found["positions"][row, rest:] == -1).all()
        assert (found["probabilities"][row, rest:] == 0).all()
        assert (found["pieces"][row, rest:] == b"").all()
    assert found["pieces"].shape == (len(MASKED), most, 5)


def test_attention_has_an_axis_of_layers_before_the_axis_of_heads(
    pretrained_dir, pretrained_model, tokenizer
):
    """Served attention [B, layers, heads, T, T] equals the model's."""
    server = server_of(pretrained_dir, max_seq_length=LENGTH)
    text, pair = "the small garden", "a river"
    found = server.call("attention", strings([text]), strings([pair]))
    ids = map(tokenizer.encode, (text, pair))
    inputs = [tf.constant(x[None]) for x in pack(tokenizer, *ids, LENGTH)]
    expected = pretrained_model.albert(*inputs, return_all=True)
    config = pretrained_model.albert.config
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    assert layers != heads
    size = found["attention"].shape[-1]
    assert found["attention"].shape == (1, layers, heads, size, size)
    for layer, attention in enumerate(expected["attention_probs"]):
        close(found["attention"][:, layer], attention[..., :size, :size])


def test_rows_of_the_table_beyond_the_pieces_are_never_filled_in(
    pretrained_dir, tokenizer, tmp_path
):
    """Rows of the embedding table without a piece never fill a mask.

    These rows still receive a share of the probability.
    """
    folder = copied(pretrained_dir, tmp_path / "model")
    pieces_number = tokenizer.vocab_size
    config = AlbertConfig.from_model_dir(folder)
    config = dataclasses.replace(config, vocab_size=2 * pieces_number)
    config.save(folder)
    model = AlbertForPretraining(config)
    checkpoints.save(folder, checkpoints.named_variables(model))
    server = server_of(folder, top_k=pieces_number)
    found = server.call("fill_mask", strings(["a [MASK]"]))
    found = found["probabilities"][0, 0]
    inputs = pack(tokenizer, tokenizer.encode_masked("a [MASK]"), [], LENGTH)
    position = np.flatnonzero(inputs[0] == tokenizer.mask_id).astype(np.int32)
    logits = model(*(tf.constant(x[None]) for x in (*inputs, position)))
    shares = tf.nn.softmax(logits["mlm_logits"])[0, 0, :pieces_number].numpy()
    close(found, -np.sort(-shares))
    assert shares.sum() < 0.99


def test_a_batch_without_masks_has_no_fillings(signatures):
    """If a batch has no masks, results have width 0."""
    found = signatures["fill_mask"](strings(["no", "mask"]))
    assert found["pieces"].shape == [2, 0, 5]
    assert found["mask_count"].numpy().tolist() == [0, 0]


def test_absent_heads_are_not_served(
    pretrained_dir, pretrained_model, tmp_path
):
    """A model without a head has no signature or output of this head."""
    folder = copied(pretrained_dir, tmp_path / "model")
    weights = checkpoints.named_variables(pretrained_model)
    for absent, rest in (
        (("sop/",), {"fill_mask"}),
        (("mlm/",), {"sentence_order"}),
        (("sop/", "mlm/"), set()),
    ):
        present = {k: v for k, v in weights.items() if not k.startswith(absent)}
        checkpoints.save(folder, present)
        server = server_of(folder)
        heads = {"fill_mask", "sentence_order"}
        assert heads.intersection(server.signatures) == rest
        assert set(server.weights) == set(present)
        outputs = server.call("text", strings(["a"]))
        assert ("sop_logits" in outputs) == ("sentence_order" in rest)
        names = {spec.name for spec in server.number_inputs}
        assert ("mlm_positions" in names) == ("fill_mask" in rest)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "positions", "absent"),
    [("fill_mask", 2, ["sentence-order head"]), ("sentence_order", 0, [])],
)
def test_the_last_block_has_the_places_asked_for(
    pretrained_dir, name, positions, absent
):
    """The last block computes outputs only at the requested positions.

    The matrix products in the graph agree with the FLOP formula.
    """
    server = server_of(pretrained_dir)
    encoder = server.encoder
    # Put all products into one graph.
    encoder.encode, encoder.pool = encoder.outputs, encoder.pooled
    run, computes = encoder.run, []

    def recorded(compute, inputs):
        computes.append(compute)
        return run(compute, inputs)

    encoder.run = recorded
    server.call(name, *[strings(["a"])] * len(server.signatures[name].inputs))
    compute = tf.function(computes[0].python_function, autograph=False)
    specs = dict.fromkeys(INPUTS, tf.TensorSpec([1, 11], tf.int32))
    if positions:
        specs["positions"] = tf.TensorSpec([1, positions], tf.int32)
    graph = compute.get_concrete_function(**specs).graph
    expected = forward_flops(encoder.albert.config, 11, positions)
    for head in absent:
        del expected[head]
    assert product_flops(graph) == sum(expected.values())
