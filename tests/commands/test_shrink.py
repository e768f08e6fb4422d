"""A shrunken model's outputs equal those of its remaining layers."""

import dataclasses
import os
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
import tiny_phonemes
import tiny_runs
from exporting import TEXTS, close, finetuned, of_kind, packed

from albert_tf.base.errors import InputError
from albert_tf.data.table_sources import as_source
from albert_tf.finetuning import shrink
from albert_tf.finetuning.shrink import (
    ShrinkConfig,
    importances,
    keeps_variable,
    shorter,
    shrink_model,
    valid_layer_counts,
)
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.registry import load_task
from albert_tf.tasks.task_config import DataConfig
from albert_tf.text.symbols import table_in
from albert_tf.text.tokenizers import load_saved_tokenizer
from albert_tf.training import checkpoints


def restored(folder):
    """Return the pretraining model in a folder."""
    model = AlbertForPretraining(AlbertConfig.from_model_dir(str(folder)))
    checkpoints.restore_weights(model, str(folder))
    return model


HINT = "With --data_dir or --eval_file, this table includes metrics."


def test_fewer_layers_are_the_first_ones(
    pretrained_dir, pretrained_model, tokenizer, tmp_path, capsys
):
    """A model shrunk to one layer has the outputs of the original's layer 1.

    The table has the number of parameters, which the layers share.
    The model card states the number of layers and names the original model.
    """
    out = str(tmp_path / "out")
    shrink_model(ShrinkConfig(pretrained_dir, out, num_layers=1), DataConfig())
    size = sum(
        value.numpy().size
        for value in checkpoints.named_variables(pretrained_model).values()
    )
    rows = ["parameters", f"original {size:,}", f"num_layers=1 {size:,}"]
    *printed, hint, wrote = capsys.readouterr().out.splitlines()
    assert [" ".join(row.split()) for row in printed] == rows
    assert (hint, wrote) == (HINT, f"Wrote {out}")
    card = (tmp_path / "out/README.md").read_text()
    assert "(1 layer, " in card
    assert f"First weights: `{pretrained_dir}`" in card
    inputs = [tf.constant(x) for x in packed(tokenizer, TEXTS)]
    states = pretrained_model.albert(*inputs, return_all=True)["hidden_states"]
    found = restored(out).albert(*inputs)["sequence_output"]
    close(found, states[0])


def test_fine_tuned_models_keep_their_task(pretrained_dir, tmp_path):
    """A shrunken classifier keeps its task; all its weights can be restored.

    The optimizer's variables are not kept.
    """
    folder, out = tmp_path / "model", str(tmp_path / "out")
    labels = ("a", "b")
    kind = "classification", labels
    source = finetuned(folder, pretrained_dir, *kind, layers=2)
    state = {"optimizer/iterations": tf.Variable(7, dtype=tf.int64)}
    state |= checkpoints.named_variables(source)
    checkpoints.save(str(folder), state, 7)
    shrink_model(ShrinkConfig(str(folder), out, num_layers=1), DataConfig())
    task = load_task(out)
    config = AlbertConfig.from_model_dir(out)
    model = task.build_model(config, "float32")
    prefix = checkpoints.restore_weights(model, out)
    stored = checkpoints.read_table(prefix)
    assert stored.keys() == checkpoints.named_variables(model).keys()
    assert task.labels == ("a", "b") and config.num_hidden_layers == 1


def test_layers_keep_their_groups():
    """Layers stay in their groups, and unshared layers stay unshared."""
    config = AlbertConfig(num_hidden_layers=12, num_hidden_groups=3)
    assert valid_layer_counts(config) == [1, 2, 3, 4, 7, 8, 11, 12]
    assert shorter(config, 8).num_hidden_groups == 2
    with pytest.raises(InputError, match="one of 1, 2, 3, 4, 7, 8, 11, 12"):
        shorter(config, 9)
    assert shorter(config, 12) == config
    for layers in {*range(1, 13)} - {*valid_layer_counts(config)}:
        with pytest.raises(
            InputError, match="must keep each layer in its group"
        ):
            shorter(config, layers)
    query = "albert/encoder/attention_{}_0/query/kernel"
    eight = shorter(config, 8)
    kept = [keeps_variable(query.format(i), eight) for i in range(3)]
    assert kept == [True, True, False]
    own = dataclasses.replace(config, num_hidden_groups=12, sharing="none")
    few = shorter(own, 5)
    assert few.num_hidden_groups == 5
    for block in ("attention_{}_0/query/kernel", "ffn_{}_0/output/bias"):
        remaining = [
            i
            for i in range(12)
            if keeps_variable(f"albert/encoder/{block.format(i)}", few)
        ]
        assert remaining == [0, 1, 2, 3, 4]
    assert keeps_variable("albert/pooler/kernel", few)
    with pytest.raises(InputError, match="at most.*12"):
        shorter(config, 13)


def test_existing_folders_are_not_touched(pretrained_dir, tmp_path):
    """Shrinking into a folder that is not empty raises an error."""
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match="output_dir.*new"):
        shrink_model(ShrinkConfig(pretrained_dir, str(tmp_path)), DataConfig())


def test_an_output_is_checked_before_the_model_is_read(tmp_path, monkeypatch):
    """A folder that cannot be written raises an error at the start."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    config = ShrinkConfig("no model", str(tmp_path / "new"))
    with pytest.raises(InputError, match="`output_dir` must be writable"):
        shrink_model(config, DataConfig())


def test_the_importance_of_heads():
    """A head's importance is the mean of |dL/dm| over the examples.

    The factor m multiplies the head's rows of the output kernel. The loss is
    linear in the kernels, so the derivatives are known.
    """
    rng = np.random.default_rng(0)
    heads, width, size = 3, 2, 5
    kernels = rng.normal(size=[2, heads * width, size]).astype("f4")
    factors = rng.normal(size=[4, 2, heads * width, size]).astype("f4")

    def block(name, kernel):
        projection = types.SimpleNamespace(kernel=keras.Variable(kernel))
        return types.SimpleNamespace(name=name, output_projection=projection)

    names = ["attention_0_0", "attention_1_0"]
    blocks = dict(enumerate(map(block, names, kernels)))
    albert = types.SimpleNamespace(
        config=types.SimpleNamespace(num_attention_heads=heads),
        encoder=types.SimpleNamespace(attentions=blocks),
    )

    def losses(model, batch, seed):
        values = [b.output_projection.kernel.value for b in blocks.values()]
        pairs = zip(values, tf.unstack(batch["x"]), strict=True)
        return {i: tf.reduce_sum(a * b) for i, (a, b) in enumerate(pairs)}, None

    found = importances(
        types.SimpleNamespace(albert=albert),
        types.SimpleNamespace(losses=losses),
        tf.data.Dataset.from_tensor_slices({"x": factors}),
    )
    slopes = kernels * factors
    slopes = slopes.reshape(4, 2, heads, width * size).sum(axis=-1)
    wanted = np.abs(slopes).mean(axis=0)
    assert [*found] == names
    np.testing.assert_allclose([*found.values()], wanted, rtol=1e-5)


def test_removed_heads_are_heads_without_output():
    """Without a head, outputs are those of a model that ignores the head.

    The heads that stay differ between the blocks.
    """
    config = dataclasses.replace(
        tiny.CONFIG,
        num_attention_heads=4,
        num_hidden_groups=2,
        initializer_range=0.5,
    )
    model = AlbertForPretraining(config)
    weights = {
        name: variable.numpy()
        for name, variable in checkpoints.named_variables(model).items()
    }
    removed = {"attention_0_0": [0, 2], "attention_1_0": [1, 2]}
    new, few = shrink.without_heads(
        config,
        weights,
        {k: np.setdiff1d(range(4), x) for k, x in removed.items()},
    )
    assert (new.num_attention_heads, new.attention_head_size) == (2, 4)
    for block, heads in removed.items():
        kernel = weights[f"albert/encoder/{block}/output/kernel"]
        for head in heads:
            kernel[4 * head : 4 * head + 4] = 0.0
    smaller = AlbertForPretraining(new)
    shrink.Model(config, weights).restore(model)
    shrink.Model(new, few).restore(smaller)
    ids = np.arange(10, 22).reshape(2, 6)
    found, wanted = (
        m.albert(tf.constant(ids))["sequence_output"] for m in (smaller, model)
    )
    close(found, wanted)


@pytest.mark.slow
def test_heads_are_removed_and_the_cost_is_told(
    finished, opinions, tmp_path, capsys
):
    """The metrics printed after shrinking equal those of a later evaluation."""
    source, metrics = finished
    out = str(tmp_path / "out")
    data = {k: v for k, v in opinions.items() if k != "predict_file"}
    config = ShrinkConfig(source, out, num_heads=1)
    shrink_model(config, DataConfig(**data))
    lines = capsys.readouterr().out.splitlines()
    (start,) = (i for i, line in enumerate(lines) if "parameters" in line)
    assert lines[start].split() == ["parameters", "accuracy", "loss"]
    rows = map(str.split, lines[start + 1 : start + 3])
    rows = {row[0]: row[-2:] for row in rows}
    assert list(rows) == ["original", "num_heads=1"]
    found = AlbertConfig.from_model_dir(out)
    assert (found.num_attention_heads, found.attention_head_size) == (1, 8)
    del data["train_file"]
    after = tiny_runs.run(
        model_dir=out, output_dir=str(tmp_path / "x"), do_eval=True, **data
    )
    for name, wanted in (("original", metrics), ("num_heads=1", after)):
        values = [wanted["eval"][k] for k in ("accuracy", "loss")]
        close([float(cell) for cell in rows[name]], values, 1e-4)


@pytest.mark.slow
def test_the_head_that_matters_most_stays(finished, opinions, tmp_path):
    """Shrinking keeps the head with the largest effect on the loss."""
    source, out = finished[0], str(tmp_path / "out")
    data = DataConfig(train_file=opinions["train_file"])
    shrink_model(ShrinkConfig(source, out, num_heads=1), data)
    task, tokenizer = load_task(source), load_saved_tokenizer(source)
    config = AlbertConfig.from_model_dir(source)
    model = task.build_model(config, "float32")
    checkpoints.restore_weights(model, source)
    examples = task.read("train", opinions["train_file"])
    batches = evaluation_batches(task.features(examples, tokenizer), 1)
    worth = importances(model, task.objective, batches)
    worth = worth["attention_0_0"]
    assert abs(worth[0] - worth[1]) > 1e-3 * worth.max()
    best = slice(8 * worth.argmax(), 8 * worth.argmax() + 8)
    new = checkpoints.reader(checkpoints.for_inference(out))
    for part, variable in checkpoints.named_variables(model).items():
        if part.endswith("attention_0_0/query/kernel"):
            np.testing.assert_array_equal(new(part), variable[:, best])


def test_so_many_examples_say_what_heads_are_worth(
    finished, opinions, tmp_path, monkeypatch, capsys
):
    """Heads are ranked with at most `HEAD_EXAMPLES` training examples.

    The examples are a random sample, because files may be sorted. Layers can be
    removed along with heads.
    """
    ids = []

    def importances(network, task, batches):
        ids.extend(np.array(batch["input_ids"]) for batch in batches)
        return {"attention_0_0": np.array([0.0, 1.0])}

    monkeypatch.setattr(shrink, "importances", importances)
    out = str(tmp_path / "out")
    data = DataConfig(train_file=opinions["train_file"])
    monkeypatch.setattr(shrink, "HEAD_EXAMPLES", 7)
    config = ShrinkConfig(finished[0], out, num_layers=1, num_heads=1)
    shrink_model(config, data)
    assert [len(row) for row in ids] == [1] * 7
    task, tokenizer = load_task(out), load_saved_tokenizer(out)
    examples = task.read("train", opinions["train_file"])[:7]
    first = evaluation_batches(task.features(examples, tokenizer), 1)
    texts = {row[row > 0].tobytes() for row in ids}
    assert texts != {
        x[x > 0].tobytes() for x in (b["input_ids"].numpy() for b in first)
    }
    found = AlbertConfig.from_model_dir(out)
    assert (found.num_hidden_layers, found.num_attention_heads) == (1, 1)
    assert HINT in capsys.readouterr().out
    part = "albert/encoder/attention_0_0/query/kernel"
    old, new = (
        checkpoints.reader(checkpoints.for_inference(folder))(part)
        for folder in (finished[0], out)
    )
    np.testing.assert_array_equal(new, old[:, 8:])


def table(name, *columns):
    rows = [dict(zip(columns, TEXTS[i : i + 3], strict=False)) for i in (0, 3)]
    return DataConfig(**{name: as_source(name, rows)})


@tiny_runs.eagerly()
def test_pairs_that_nobody_rated(pretrained_dir, tmp_path, capsys):
    """Pairs without scores suffice for the metrics of a shrunken model.

    To rank heads, each pair needs a negative. Without one, the loss of a pair
    depends on other pairs.
    """
    folder, out = tmp_path / "model", str(tmp_path / "out")
    of_kind("embedding", folder, pretrained_dir, layers=2)
    config = ShrinkConfig(str(folder), out, num_layers=1)
    shrink_model(config, table("eval_file", "text", "text_pair"))
    printed = capsys.readouterr().out
    assert HINT not in printed
    lines = map(str.split, printed.splitlines())
    assert ["parameters", "mrr", "loss"] in lines
    config = ShrinkConfig(str(folder), f"{out}2", num_heads=4)  # all of them
    for columns in (["text"], ["text", "text_pair"]):
        with pytest.raises(InputError, match="does not depend.*num_heads=4"):
            shrink_model(config, table("train_file", *columns))
    shrink_model(config, table("train_file", "text", "text_pair", "negative"))


def test_heads_need_a_task_and_its_training_data(
    pretrained_dir, finished, opinions, tmp_path
):
    """Missing tasks or training files, and too many heads, raise errors."""
    out = str(tmp_path / "out")
    with pytest.raises(InputError, match="fine-tuned model.*model_dir="):
        shrink_model(
            ShrinkConfig(pretrained_dir, out, num_heads=1), DataConfig()
        )
    with pytest.raises(InputError, match="train_file"):
        shrink_model(ShrinkConfig(finished[0], out, num_heads=1), DataConfig())
    data = DataConfig(train_file=opinions["train_file"])
    with pytest.raises(InputError, match="at most the model's 2"):
        shrink_model(ShrinkConfig(finished[0], out, num_heads=3), data)
    assert not (tmp_path / "out").exists()


def test_symbols_are_kept(tmp_path):
    """A shrunken phoneme model keeps its symbols, words and heads."""
    source, out = str(tmp_path / "in"), str(tmp_path / "out")
    table = tiny_phonemes.save_model(source)
    shrink_model(ShrinkConfig(source, out, num_layers=1), DataConfig())
    assert table_in(out) == table
    assert "words/kernel" in checkpoints.read_table(f"{out}/ckpt-0")
