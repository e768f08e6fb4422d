"""ALBERT's layers support the usual operations of Keras."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.base.errors import InputError
from albert_tf.model import albert, phonemes, task_heads
from albert_tf.model.albert import AlbertForPretraining, AlbertModel
from albert_tf.model.task_heads import (
    AlbertChooser,
    AlbertClassifier,
    AlbertEmbedder,
    AlbertForBeamSpans,
    AlbertForSpans,
    AlbertTokenClassifier,
)
from albert_tf.text.packing import INPUTS
from albert_tf.training.checkpoints import named_variables

BATCH = {name: tiny.make_data()[name][:6] for name in INPUTS}
LAYERS = {
    "encoder": lambda: AlbertModel(tiny.SHALLOW),
    "pretraining": lambda: AlbertForPretraining(tiny.SHALLOW),
    "classifier": lambda: AlbertClassifier(
        tiny.SHALLOW, 3, classifier_dropout=0.4
    ),
    "chooser": lambda: AlbertChooser(tiny.SHALLOW),
    "tagger": lambda: AlbertTokenClassifier(tiny.SHALLOW, 4),
    "spans": lambda: AlbertForSpans(tiny.SHALLOW),
    "embedder": lambda: AlbertEmbedder(tiny.SHALLOW),
    "beam": lambda: AlbertForBeamSpans(tiny.SHALLOW, 3, 2),
}


def test_keras_finds_all_layers_by_name():
    """All classes of layers and models are registered with Keras by name."""
    classes = {
        cls
        for module in (albert, phonemes, task_heads)
        for cls in vars(module).values()
        if isinstance(cls, type) and cls.__module__ == module.__name__
    }
    classes -= {task_heads.AlbertWithHead, task_heads.AlbertWithOutputs}
    assert len(classes) == 15
    for cls in classes:
        name = f"albert_tf>{cls.__name__}"
        assert keras.saving.get_registered_object(name) is cls


def functional(layer, name="model"):
    """Return a functional model that calls a layer on a dict of inputs."""
    rank = 2 if isinstance(layer, AlbertChooser) else 1
    inputs = {
        n: keras.Input((None,) * rank, dtype="int32", name=n) for n in INPUTS
    }
    return keras.Model(inputs, layer(inputs), name=name)


def batch_of(layer):
    """Return the batch, with an axis of choices if the layer needs one."""
    if isinstance(layer, AlbertChooser):
        return {n: x.reshape(3, 2, -1) for n, x in BATCH.items()}
    return BATCH


def arrays(outputs):
    """Return all arrays in an output of any structure."""
    return [np.asarray(x) for x in tf.nest.flatten(outputs)]


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_saved_functional_model_is_the_same(kind, tmp_path):
    """A `.keras` file of any layer restores outputs and the dropout rate."""
    layer = LAYERS[kind]()
    model = functional(layer)
    path = str(tmp_path / "x.keras")
    model.save(path)
    again = keras.saving.load_model(path)
    batch = batch_of(layer)
    for left, right in zip(
        arrays(model(batch)), arrays(again(batch)), strict=1
    ):
        np.testing.assert_array_equal(left, right)
    config = layer.get_config()
    assert again.get_layer(layer.name).get_config() == config
    if kind == "classifier":
        assert config["classifier_dropout"] == 0.4


def test_inputs_are_a_dict_keywords_or_defaults():
    """All forms of inputs are equivalent; mask and segments have defaults."""
    model = LAYERS["encoder"]()
    ids = BATCH["input_ids"]
    zeros = np.zeros_like(ids)
    for left, right in (
        (model(BATCH), model(*BATCH.values())),
        (model(BATCH), model(**BATCH)),
        (model(ids), model(ids, zeros + 1, zeros)),
        (model({"input_ids": ids}), model(ids, zeros + 1, zeros)),
    ):
        for a, b in zip(arrays(left), arrays(right), strict=True):
            np.testing.assert_array_equal(a, b)
    some = BATCH["input_mask"].min(1) == 0
    assert some.any()
    padded = model(BATCH)["pooled_output"] - model(ids)["pooled_output"]
    assert (np.abs(padded).max(1) > 0)[some].all()


@pytest.mark.parametrize("kind", ["encoder", "beam"])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64"])
def test_ids_have_any_integer_type(kind, dtype):
    """Ids and masks of any integer types produce equal outputs."""
    model = LAYERS[kind]()
    ids, mask = BATCH["input_ids"], BATCH["input_mask"]
    for left, right in zip(
        arrays(model(ids.astype(dtype), mask)),
        arrays(model(ids, mask)),
        strict=True,
    ):
        np.testing.assert_array_equal(left, right)


def test_pretraining_predicts_everywhere_by_default():
    """Without positions, MLM logits are computed for all tokens."""
    model = LAYERS["pretraining"]()
    positions = np.array([[3, 1]] * 6, np.int32)
    few = model(*BATCH.values(), positions)["mlm_logits"]
    both = model(BATCH | {"masked_lm_positions": positions})["mlm_logits"]
    all_logits = model(BATCH)["mlm_logits"].numpy()
    np.testing.assert_array_equal(few, both)
    np.testing.assert_allclose(few, all_logits[:, [3, 1]], atol=1e-6)


def test_dropout_follows_training():
    """Dropout is active only if `training=True`, and has the given rate.

    A rate of 0 is not the default.
    """
    config = dataclasses.replace(tiny.CONFIG, hidden_size=512)
    model = AlbertClassifier(config, 512, classifier_dropout=0.4)
    model.classifier.kernel.assign(np.eye(512))
    shares = [
        np.mean(model(BATCH, training=training).numpy() == 0.0)
        for training in (True, False, None)
    ]
    assert abs(shares[0] - 0.4) < 0.05 and shares[1:] == [0.0, 0.0]
    first, second = (model(BATCH, training=True).numpy() for _ in range(2))
    assert np.mean((first == 0) != (second == 0)) > 0.3
    # The project's argument `seed` determines the masks.
    seed = tf.constant([1, 2])
    np.testing.assert_array_equal(
        model(BATCH, seed=seed), model(BATCH, seed=seed)
    )
    exact = AlbertClassifier(tiny.SHALLOW, 3, classifier_dropout=0.0)
    np.testing.assert_allclose(exact(BATCH, seed=seed), exact(BATCH), 0, 1e-6)


def test_dropout_acts_in_every_block_under_fit():
    """Training a frozen model uses dropout, with new masks in each step."""
    rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
    config = dataclasses.replace(tiny.CONFIG, **rates)
    model = functional(AlbertModel(config))
    pooled = keras.Model(model.inputs, model.output["pooled_output"])
    pooled.trainable = False
    pooled.compile("sgd", "mse", run_eagerly=True)
    wanted = pooled.predict(BATCH, verbose=0)
    losses = [pooled.train_on_batch(BATCH, wanted) for _ in range(2)]
    still = pooled.evaluate(BATCH, wanted, verbose=0)
    assert min(losses) > 1e3 * still and losses[0] != losses[1]


def test_initial_weights_do_not_depend_on_dropout():
    """Dropout does not change the seeds of the initial weights."""
    keras.utils.set_random_seed(5)
    drawn = keras.initializers.TruncatedNormal(stddev=0.02)
    kernel = keras.layers.Embedding(50, 8, embeddings_initializer=drawn)
    kernel.build()
    keras.utils.set_random_seed(5)
    table = LAYERS["pretraining"]().albert.embeddings.word_embeddings
    np.testing.assert_array_equal(table, kernel.embeddings)
    # The seed of dropout is NumPy's next random number.
    wanted = np.random.RandomState(3).randint(2**31)
    np.random.seed(3)
    assert LAYERS["encoder"]().seed_generator.state.numpy()[0] == wanted


@pytest.mark.slow
def test_two_replicas_drop_different_units():
    """Equal rows have different dropout masks on each replica."""
    strategy = tiny.make_strategy(tiny.DistributionConfig(num_cpu_replicas=2))
    with strategy.scope():
        model = LAYERS["classifier"]()
        model(BATCH)

    @tf.function(autograph=False)
    def outputs():
        return strategy.run(lambda: model(BATCH, training=True))

    first, second = strategy.experimental_local_results(outputs())
    assert np.abs(first - second).max() > 1e-4


def test_parts_can_be_frozen():
    """`fit` trains the head and does not change frozen parts."""
    layer = LAYERS["classifier"]()
    layer.albert.trainable = False
    model = functional(layer)
    learning = {v.path.split("/")[-2] for v in model.trainable_variables}
    assert learning == {"classifier"}
    before = {k: v.numpy() for k, v in named_variables(layer).items()}
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    model.compile("adam", loss, run_eagerly=True)
    model.fit(BATCH, np.arange(6) % 3, verbose=0)
    for name, variable in named_variables(layer).items():
        same = np.array_equal(before[name], variable)
        assert same == name.startswith("albert/"), name


def test_gradient_reaches_the_embeddings():
    """`embedding_output` has gradients, so users can compute saliency."""
    model = LAYERS["encoder"]()
    with tf.GradientTape() as tape:
        outputs = model(BATCH, return_all=True)
        total = tf.reduce_sum(outputs["pooled_output"][:, 0])
    gradient = tape.gradient(total, outputs["embedding_output"])  # [B, T, E]
    size = np.abs(gradient).sum(-1)
    assert (size[:, 0] > 0).all()


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"input_ids": BATCH["input_ids"] * 1.0}, "must be integers"),
        ({"input_ids": np.ones((2, 17), np.int32)}, "at most `max_position"),
        (BATCH | {"attention_mask": BATCH["input_mask"]}, "attention_mask"),
        ({"input_mask": BATCH["input_mask"]}, "must have `input_ids`"),
        (BATCH | {"positions": BATCH["input_ids"]}, "are input_ids.*positions"),
        (BATCH | {"masks": BATCH["input_ids"]}, "are input_ids.*masks"),
        (BATCH["input_ids"][0], "must have the shape"),
        (
            BATCH | {"input_mask": BATCH["input_mask"][:, :3]},
            "`input_mask` must have the shape of `input_ids`",
        ),
        ([[1] * 40, [1]], "rows of equal length. Received: .{60}$"),
        (tf.ragged.constant([[1, 2], [1]]), "`input_ids` must be padded to "),
    ],
)
def test_wrong_inputs_are_named(wrong, message):
    """An error names the input whose type, length or name is wrong."""
    with pytest.raises(InputError, match=message):
        LAYERS["encoder"]()(wrong)
