"""The importance of attention heads, and how heads are pruned."""

import dataclasses

import goldens
import numpy as np
import pytest
import tensorflow as tf
from reference import albert_numpy

from albert_tf.finetuning import shrink

DIRECTION = np.linspace(-1.0, 1.0, goldens.CONFIG.hidden_size)
VARIANTS = ["shared", "groups", "unshared"]


def variant_config(variant):
    return dataclasses.replace(goldens.CONFIG, **goldens.VARIANTS[variant])


def blocks_of(table):
    """Return the names of the attention blocks in a table of weights."""
    parts = (name.split("/") for name in table)
    return sorted({p[2] for p in parts if p[2:3] and "attention_" in p[2]})


def silenced(table, config, selected):
    """Return weights with which the pruned heads output 0."""
    table = {name: value.copy() for name, value in table.items()}
    size = config.hidden_size // config.num_attention_heads
    for block, heads in selected.items():
        for head in set(range(config.num_attention_heads)) - set(heads):
            columns = slice(head * size, (head + 1) * size)
            value = f"albert/encoder/{block}/value"
            table[f"{value}/kernel"][:, columns] = 0.0
            table[f"{value}/bias"][columns] = 0.0
    return table


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("number", [1, 2])
def test_a_pruned_model_is_the_whole_one_with_silent_heads(variant, number):
    """Outputs match a full NumPy model whose pruned heads output 0."""
    config = variant_config(variant)
    table = goldens.random_weights(config)
    rng = np.random.default_rng(4)
    selected = {
        block: np.sort(rng.permutation(3)[:number])
        for block in blocks_of(table)
    }
    pruned = goldens.build(*shrink.without_heads(config, table, selected))
    inputs = goldens.random_inputs(config)
    out = pruned(*inputs.values(), return_all=True)
    silent = silenced(table, config, selected)
    assert out["attention_probs"][0].shape[1] == number
    for b in range(3):
        ids, mask, segments, _ = (v[b] for v in inputs.values())
        _, layers, maps, pooled = albert_numpy.encode(
            silent, config, ids, mask, segments
        )
        np.testing.assert_allclose(out["pooled_output"][b], pooled, 1e-4, 2e-5)
        for ours, theirs in zip(out["hidden_states"], layers, strict=True):
            np.testing.assert_allclose(ours[b], theirs, 1e-4, 2e-5)
        first = selected[blocks_of(table)[0]]
        np.testing.assert_allclose(
            out["attention_probs"][0][b], maps[0][first], 1e-4, 2e-5
        )


class Direction:
    """An objective: the projection of the pooled output onto a direction."""

    def losses(self, model, batch, seed):
        names = ("input_ids", "input_mask", "segment_ids")
        pooled = model.albert(*(batch[n] for n in names))["pooled_output"]
        return {"task": tf.reduce_sum(pooled * DIRECTION.astype("f4"))}, {}


def oracle_losses(table, config, inputs):
    """Return the objective of every example, computed with the NumPy model."""
    rows = zip(*list(inputs.values())[:3], strict=True)
    return np.array(
        [albert_numpy.encode(table, config, *r)[-1] @ DIRECTION for r in rows]
    )


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("variant", VARIANTS)
def test_importance_is_the_mean_size_of_the_derivative(variant):
    """A head's importance is the mean of |L(1 + e) - L(1 - e)| / 2e in NumPy.

    L(f) is an example's loss if the head's output is multiplied by f.
    """
    config = variant_config(variant)
    table = goldens.random_weights(config)
    inputs = goldens.random_inputs(config)
    batches = tf.data.Dataset.from_tensor_slices(inputs).batch(1)
    model = goldens.build(config, table)
    found = shrink.importances(model, Direction(), batches)
    assert sorted(found) == blocks_of(table)
    size, step = config.head_size, 1e-4
    for block, worth in found.items():
        name = f"albert/encoder/{block}/output/kernel"
        for head in range(config.num_attention_heads):
            rows = slice(head * size, (head + 1) * size)
            sides = []
            for factor in (1 + step, 1 - step):
                kernel = table[name].astype(np.float64)
                kernel[rows] *= factor
                changed = table | {name: kernel}
                sides.append(oracle_losses(changed, config, inputs))
            slopes = (sides[0] - sides[1]) / (2 * step)
            np.testing.assert_allclose(
                worth[head], np.abs(slopes).mean(), 2e-3, 1e-5
            )


def test_the_most_important_heads_stay_in_order():
    """The most important heads are kept in order; in ties, the first heads."""
    worth = np.array([0.3, 0.9, 0.1, 0.9, 0.3])
    for number, heads in ((1, [1]), (2, [1, 3]), (3, [0, 1, 3])):
        found = shrink.most_important(worth, number)
        assert found.tolist() == heads
