"""Models with LoRA or quantized kernels are trained, saved and loaded."""

import dataclasses
import gc
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
import tiny_tasks
from tiny_fits import LABELS, RATE

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.library.changed_layers import (
    add_low_rank,
    change_layers,
    layer_changes,
    merged_weights,
)
from albert_tf.library.models import Classifier
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.layers import Dense
from albert_tf.model.task_heads import AlbertForBeamSpans, token_mean
from albert_tf.training import checkpoint_files, checkpoints

TEXTS, NAMES = map(list, zip(*tiny_tasks.opinions(16, 1), strict=True))
BATCH = {"batch_size": 16, "shuffle": False, "verbose": 0}


def probabilities(model):
    """Return the probabilities of all texts, computed eagerly."""
    return tf.nn.softmax(model(model.tokenizer(TEXTS))).numpy()


@pytest.fixture(scope="module")
def low_rank(shallow):
    """Return a model with low-rank matrices, trained for one epoch."""
    keras.utils.set_random_seed(2)
    model = Classifier.load(
        shallow, LABELS, lora_rank=3, classifier_dropout=0.0
    )
    model.compile(albert_tf.AdamW(RATE), run_eagerly=True)
    model.fit(TEXTS, NAMES, **BATCH)
    return model


def test_low_rank_matrices_and_the_head_alone_learn(low_rank, shallow):
    """Training changes low-rank matrices and the head, but no other kernel."""
    learned = {v.path.rpartition("/")[2] for v in low_rank.trainable_variables}
    assert learned == {"lora_kernel_a", "lora_kernel_b", "bias", "kernel"}
    heads = [v for v in low_rank.trainable_variables if v.name == "kernel"]
    assert [v.path.split("/")[-2] for v in heads] == ["classifier"]
    read = checkpoints.reader(checkpoint_files.latest(shallow))
    for name, variable in low_rank.named_weights().items():
        same = "lora" in name or "classifier" in name or "bias" in name
        if not same:
            np.testing.assert_array_equal(variable, read(name))
    query = low_rank.albert.encoder.attention_0_0.query
    assert np.abs(query.lora_kernel_b).max() > 0


def test_a_folder_has_the_sum(low_rank, tmp_path):
    """Saving to a folder merges the low-rank matrices into the kernels."""
    low_rank.save(tmp_path / "folder")
    query = low_rank.albert.encoder.attention_0_0.query
    sum_ = query._kernel.numpy() + (
        query.lora_kernel_a.numpy() @ query.lora_kernel_b.numpy()
    )
    again = Classifier.load(tmp_path / "folder")
    kernel = again.albert.encoder.attention_0_0.query.kernel
    np.testing.assert_allclose(kernel, sum_, atol=1e-6)
    wanted = probabilities(low_rank)
    np.testing.assert_allclose(probabilities(again), wanted, atol=1e-6)


def test_a_keras_file_learns_on(low_rank, tmp_path):
    """Training resumed from a `.keras` file equals an uninterrupted run."""
    low_rank.save(tmp_path / "a.keras")
    again = keras.models.load_model(tmp_path / "a.keras")
    again.run_eagerly = True
    np.testing.assert_array_equal(probabilities(again), probabilities(low_rank))
    for model in (again, low_rank):
        model.fit(TEXTS, NAMES, **BATCH)
    for found, wanted in zip(again.weights, low_rank.weights, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_keras_own_call_is_saved_too(shallow, tmp_path):
    """Layers changed by Keras's own `enable_lora` are saved, too."""
    model = Classifier.load(shallow, LABELS)
    dense = model.albert.encoder.ffn_0_0.intermediate
    dense.enable_lora(2, lora_alpha=6)
    dense.lora_kernel_b.assign(tf.ones_like(dense.lora_kernel_b.value))
    model.albert.pooler.enable_lora(1)
    wanted = probabilities(model)
    model.save(tmp_path / "folder")
    model.save(tmp_path / "a.keras")
    for again in (
        Classifier.load(tmp_path / "folder"),
        keras.models.load_model(tmp_path / "a.keras"),
    ):
        np.testing.assert_allclose(probabilities(again), wanted, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_a_quantized_model_is_saved_by_keras_alone(shallow, tmp_path, mode):
    """A quantized model can be saved only to a `.keras` file.

    It cannot be saved to a folder or exported.
    """
    model = Classifier.load(shallow, LABELS)
    exact = probabilities(model)
    model.quantize(mode)
    wanted = probabilities(model)
    assert np.abs(wanted - exact).max() > 0
    model.save(tmp_path / "a.keras")
    again = keras.models.load_model(tmp_path / "a.keras")
    np.testing.assert_array_equal(probabilities(again), wanted)
    for write in (model.save, model.export):
        with pytest.raises(InputError, match="`.keras`"):
            write(tmp_path / "folder")
        assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_a_quantized_layer_is_described(mode):
    """The changes name the layer and its mode; such a layer is not merged."""
    models = []
    for _ in range(2):
        models.append(keras.Sequential([keras.Input([4]), Dense(6), Dense(3)]))
    models[0].layers[1].quantize(mode)
    change_layers(models[1], layer_changes(models[0]))
    first, second = models[1].layers
    assert (first.quantization_mode, second.quantization_mode) == (None, mode)
    with pytest.raises(InputError, match=f"saved as `.keras`.*={mode}$"):
        merged_weights(models[0], {})


def test_a_mode_that_needs_calibration_is_refused():
    """A quantization mode that cannot be restored is an error."""
    layer = types.SimpleNamespace(quantization_mode="gptq")
    model = types.SimpleNamespace(_flatten_layers=lambda: [layer])
    rule = "must be int8 or int4 or float8. Received: mode=gptq"
    with pytest.raises(InputError, match=rule):
        layer_changes(model)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.quantize("int8"),
        lambda model: add_low_rank(model.albert, 1),
    ],
)
def test_embed_uses_changed_layers(shallow, change):
    """`embed` uses layers as they are, even if they changed after a call.

    The graph of the earlier layers, which has a copy of them, is freed.
    """
    model = albert_tf.load(shallow)
    before = model.embed(TEXTS)
    graph = weakref.ref(model._step("mean", model.config.num_hidden_layers))
    change(model)
    for layer in model.albert.encoder._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            layer.lora_kernel_b.assign_add(1.0 + 0.0 * layer.lora_kernel_b)
    wanted = model(model.tokenizer(TEXTS))["sequence_output"]
    mask = model.tokenizer(TEXTS)["input_mask"]
    found = model.embed(TEXTS)
    gc.collect()
    assert graph() is None
    np.testing.assert_allclose(found, token_mean(wanted, mask), atol=1e-5)
    assert np.abs(found - before).max() > 1e-4


@pytest.mark.parametrize(
    ("mode", "error"), [("int8", 0.005), ("int4", 0.08), ("float8", 0.07)]
)
def test_a_quantized_kernel_is_read_as_numbers(mode, error):
    """A quantized kernel is read as floats, with a small error.

    The error is relative to the largest value of the kernel.
    """
    keras.utils.set_random_seed(3)
    dense = Dense(5, bias_initializer="ones")
    dense.build([None, 4])
    wanted = dense.kernel.numpy()
    np.testing.assert_array_equal(dense.float_kernel(), wanted)
    dense.quantize(mode)
    room = error * np.abs(wanted).max()
    np.testing.assert_allclose(dense.float_kernel(), wanted, atol=room)


@pytest.mark.slow
def test_heads_read_quantized_kernels():
    """An int8 layer hardly changes the outputs of mask and span heads."""
    keras.utils.set_random_seed(3)
    config = dataclasses.replace(tiny.CONFIG, embedding_norm="hidden")
    ids = np.arange(12, dtype=np.int32).reshape(2, 6)
    words = AlbertForPretraining(config)
    spans = AlbertForBeamSpans(tiny.CONFIG, 2, 2)
    for model, dense, name in (
        (words, words.albert.embeddings.projection, "mlm_logits"),
        (spans, spans.end_transform, "end_top_log_probs"),
    ):
        wanted = model(ids, segment_ids=np.ones_like(ids))[name].numpy()
        dense.quantize("int8")
        found = model(ids, segment_ids=np.ones_like(ids))[name].numpy()
        np.testing.assert_allclose(found, wanted, atol=0.05 * wanted.std())


def test_an_earlier_file_is_read(low_rank):
    """Old configs that lack the tokenizer and the layer changes can be read."""
    config = low_rank.get_config()
    for name in ("tokenizer", "learns", "changes"):
        del config[name]
    model = Classifier.from_config(config)
    assert model.tokenizer is None and model.config == low_rank.config
    assert not any("lora" in v.path for v in model.weights)


@pytest.mark.parametrize("rank", [0, -1, 2.5, "8", True])
def test_refuses_what_is_no_rank(shallow, rank):
    """An invalid rank raises an error when the model loads."""
    with pytest.raises(InputError, match="`lora_rank` must be"):
        albert_tf.load(shallow, lora_rank=rank)


def test_a_copy_has_the_tokenizer_and_the_changes(low_rank):
    """`clone_model` and `from_config` copy the tokenizer and all changes."""
    text = keras.Input((), dtype="string")
    outer = keras.Model(text, low_rank(low_rank.preprocessor(text)))
    strings, ids = tf.constant(TEXTS), low_rank.tokenizer(TEXTS)
    copies = [
        (low_rank, keras.models.clone_model(low_rank), ids),
        (outer, keras.models.clone_model(outer), strings),
        (outer, keras.Model.from_config(outer.get_config()), strings),
    ]
    for model, copy, inputs in copies:
        copy.set_weights(model.get_weights())
        np.testing.assert_array_equal(copy(inputs), model(inputs))
    fingerprint = copies[0][1].tokenizer.fingerprint()
    assert fingerprint == low_rank.tokenizer.fingerprint()
