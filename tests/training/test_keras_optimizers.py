"""The optimizers for `compile` update weights as the training loop does."""

import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
from tiny_runs import eagerly

from albert_tf.base.errors import InputError
from albert_tf.training.keras_optimizers import AdamW, Lamb, WarmupDecay
from albert_tf.training.optimizer import Optimizer, OptimizerConfig, RunRate

SHAPES = {
    "kernel": (300, 256),  # large enough for the compiled update
    "bias": (5,),
    "gamma": (4,),
    "table": (7, 3),
}
RULES = {"lamb": Lamb, "adamw": AdamW}


def layer_with(values):
    """Return a layer with variables of the given names and values."""
    layer = keras.layers.Layer(name="root")
    for name, value in values.items():
        weight = layer.add_weight(shape=value.shape, name=name)
        weight.assign(value)
    return layer


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("variant", [{}, {"bias_correction": True}])
def test_three_steps_equal_the_loop_s(rule, variant):
    """After three steps, weights match the training loop's optimizer.

    The steps include the schedule, clipping and exclusions from weight decay.
    """
    rng = np.random.default_rng(2)
    start = {n: rng.normal(size=s).astype("f4") for n, s in SHAPES.items()}
    gradients = [
        {n: rng.normal(size=s).astype("f4") for n, s in SHAPES.items()}
        for _ in range(3)
    ]
    config = OptimizerConfig(
        optimizer=rule, learning_rate=0.05, num_warmup_steps=2, clip_norm=3.0,
        weight_decay_rate=0.1, beta_2=0.97, **variant,
    )  # fmt: skip
    variables = {n: tf.Variable(x) for n, x in start.items()}
    loop = Optimizer(config, RunRate(config, 5))
    loop.build(list(variables.values()), list(variables))
    layer = layer_with(start)
    optimizer = RULES[rule](
        WarmupDecay(0.05, num_train_steps=5, num_warmup_steps=2),
        weight_decay=0.1, beta_2=0.97, global_clipnorm=3.0, **variant,
    )  # fmt: skip
    for step in gradients:
        loop.apply([tf.constant(g) for g in step.values()])
        optimizer.apply(
            [tf.constant(g) for g in step.values()], layer.trainable_variables
        )
    for weight, (name, variable) in zip(
        layer.weights, variables.items(), strict=True
    ):
        np.testing.assert_allclose(weight, variable, rtol=2e-6, atol=1e-7)
        assert np.abs(weight - start[name]).max() > 1e-3


def test_rows_of_a_table_count_as_a_whole_gradient():
    """Gradients of the same table row are summed before clipping.

    A missing gradient counts as 0, so weight decay still changes the variable.
    """
    start = {"table": np.ones((7, 3), "f4"), "kernel": np.ones((2, 2), "f4")}
    rows = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([4, 4]), [7, 3])
    layers = [layer_with(start) for _ in range(2)]
    whole = [tf.convert_to_tensor(rows), tf.zeros((2, 2))]
    for layer, gradients in zip(layers, ([rows, None], whole), strict=True):
        AdamW(0.1, weight_decay=0.5).apply(gradients, layer.trainable_variables)
    for left, right in zip(layers[0].weights, layers[1].weights, strict=True):
        np.testing.assert_array_equal(left, right)
    assert (layers[0].weights[1].numpy() < 1.0).all()


@pytest.mark.parametrize("rule", RULES)
@eagerly()
def test_a_saved_model_goes_on_as_if_never_saved(rule, tmp_path):
    """A model from a `.keras` file trains exactly as the saved model does.

    The file contains the optimizer's moments, schedule and hyperparameters.
    """
    x, y = np.ones((4, 3), "f4"), np.zeros((4, 2), "f4")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    rate = WarmupDecay(0.1, 9, num_warmup_steps=3, schedule="cosine")
    model.compile(RULES[rule](rate, beta_2=0.9, excluded="kernel$"), "mse")
    model.train_on_batch(x, y)
    path = str(tmp_path / "x.keras")
    model.save(path)
    again = keras.saving.load_model(path)
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, again):
        for _ in range(3):
            each.train_on_batch(x, y)
    for left, right in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.slow
def test_two_replicas_learn_as_one():
    """With two mirrored replicas, `fit` reaches the weights of one replica."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 2))
    kernels = []
    for replicas in (1, 2):
        strategy = tiny.make_strategy(
            tiny.DistributionConfig(num_cpu_replicas=replicas)
        )
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
            model.layers[0].kernel.assign(np.ones((3, 2)))
            model.compile(Lamb(0.1, global_clipnorm=None), "mse")
        model.fit(x, y, batch_size=8, epochs=3, verbose=0)
        kernels.append(model.layers[0].kernel.numpy())
    np.testing.assert_allclose(*kernels, rtol=1e-5)
    assert np.abs(kernels[0] - 1.0).max() > 0.05


def test_defaults_are_the_released_ones():
    """LAMB and AdamW share the released defaults, except for the learning rate.

    `global_clipnorm=None` turns clipping off. Settings of Keras's optimizers
    that these optimizers lack raise an error.
    """
    released = {
        "weight_decay": 0.01,
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-6,
        "bias_correction": False,
        "global_clipnorm": 1.0,
    }
    for rule, rate in ((Lamb, 0.00176), (AdamW, 2e-5)):
        optimizer = rule()
        found = optimizer.get_config()
        assert {name: found[name] for name in released} == released
        assert found["learning_rate"] == pytest.approx(rate)
        assert optimizer.compiled and not optimizer.per_replica
    free = Lamb(1, global_clipnorm=None)
    assert free.config.clip_norm == 0.0
    assert free.get_config()["global_clipnorm"] is None
    assert free.get_config()["learning_rate"] == 1.0
    with pytest.raises(InputError, match="settings=.*clipvalue"):
        Lamb(clipvalue=0.5, use_ema=False)


@pytest.mark.parametrize("rule", RULES)
def test_exclusions_that_keras_s_method_adds(rule):
    """Excluded variables keep their values if their gradients are zero.

    Keras's `exclude_from_weight_decay` adds variables and patterns for the last
    part of a path; norms and biases remain excluded, and a config contains all
    exclusions.
    """
    names = ("kernel", "bias", "table", "other_table", "decayed")
    layer = layer_with({n: np.ones((2, 2), "f4") for n in names})
    optimizer = RULES[rule](0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(layer.weights[:1], ["table", "root"])
    again = RULES[rule].from_config(optimizer.get_config())
    zeros = [tf.zeros_like(w) for w in layer.weights]
    for each in (optimizer, again):
        each.apply(zeros, layer.trainable_variables)
    changed = [np.any(w.numpy() != 1.0) for w in layer.weights]
    assert changed == [False, False, False, False, True]
    with pytest.raises(InputError, match="before the optimizer is built"):
        optimizer.exclude_from_weight_decay(var_names=["decayed"])


def test_an_empty_pattern_excludes_no_variable():
    """With `excluded=""`, all variables decay except variables added later."""
    layer = layer_with({n: np.ones((2, 2), "f4") for n in ("bias", "kernel")})
    optimizer = AdamW(0.1, weight_decay=0.5, excluded="")
    assert not optimizer.is_excluded("root/bias")
    optimizer.exclude_from_weight_decay(var_names=["kernel"])
    zeros = [tf.zeros_like(w) for w in layer.weights]
    optimizer.apply(zeros, layer.trainable_variables)
    changed = [np.any(w.numpy() != 1.0) for w in layer.weights]
    assert changed == [True, False]


@pytest.mark.parametrize(
    ("pattern", "excluded"),
    [
        ("^table$", {"a/table", "table"}),
        ("table", None),
        ("^other", {"x/other"}),
    ],
)
def test_patterns_match_the_names_of_variables(pattern, excluded):
    """As in Keras, `^` and `$` are the ends of the name, not of the path."""
    paths = {"a/table", "table", "x/other_table", "table/b", "x/other"}
    expected = {
        path for path in paths if re.search(pattern, path.rpartition("/")[2])
    }
    assert excluded is None or excluded <= expected
    optimizer = RULES["lamb"]()
    optimizer.exclude_from_weight_decay(var_names=[pattern])
    assert {path for path in paths if optimizer.is_excluded(path)} == expected


def test_an_invalid_pattern_is_named():
    """A pattern that is not a regular expression excludes nothing."""
    optimizer = RULES["adamw"]()
    before = optimizer.excluded
    with pytest.raises(InputError, match="regular expressions: .*bias"):
        optimizer.exclude_from_weight_decay(var_names=["(bias"])
    assert optimizer.excluded == before


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"weight_decay": 0.25}, 0.75),
        ({"weight_decay": np.float32(0.25)}, 0.75),
        ({"weight_decay": None}, 1.0),
        ({"global_clipnorm": 0.125}, 0.5),
    ],
)
def test_attributes_can_be_changed_before_training(changes, expected):
    """An update, and a copy from the config, use the new values.

    With a gradient of zero and a rate of 1, the weight loses its decay.
    """
    layer = layer_with({"kernel": np.ones((1, 1), "f4")})
    optimizer = AdamW(1.0, weight_decay=0.5)
    for name, value in changes.items():
        setattr(optimizer, name, value)
    again = AdamW.from_config(optimizer.get_config())
    for each in (optimizer, again):
        layer.weights[0].assign([[1.0]])
        each.apply([tf.zeros((1, 1))], layer.trainable_variables)
        assert layer.weights[0].numpy() == expected
        for name, value in changes.items():
            assert getattr(each, name) == (value or 0.0)


def test_a_changed_limit_of_the_norm_clips():
    """An update clips to a limit that is assigned after construction."""

    def update(limit, assigned=None):
        layer = layer_with({"kernel": np.zeros((1, 1), "f4")})
        optimizer = AdamW(1.0, epsilon=1.0, global_clipnorm=limit)
        if assigned:
            optimizer.global_clipnorm = assigned
        optimizer.apply([tf.fill((1, 1), 4.0)], layer.trainable_variables)
        return layer.weights[0].numpy().item()

    assert update(3.0, 0.5) == update(0.5) != update(3.0)


@pytest.mark.parametrize("rule", RULES)
def test_attributes_show_the_values_in_use(rule):
    """Keras's attributes and the signature contain the arguments in use."""
    optimizer = RULES[rule](weight_decay=0.5, global_clipnorm=3)
    assert optimizer.weight_decay == optimizer.config.weight_decay_rate == 0.5
    assert optimizer.global_clipnorm == optimizer.config.clip_norm == 3.0
    assert RULES[rule](global_clipnorm=None).global_clipnorm is None
    assert "bias_correction" in inspect.signature(RULES[rule]).parameters


def test_a_schedule_has_a_step():
    """A schedule without warm-up may have one step, but not zero steps."""
    found = WarmupDecay(0.1, 1).get_config()
    expected = {"learning_rate": 0.1, "num_warmup_steps": 0}
    assert found == expected | {"num_train_steps": 1}
    with pytest.raises(InputError, match="at least 1.*num_train_steps=0"):
        WarmupDecay(0.1, 0)


def test_files_of_earlier_releases_load():
    """An earlier release's config loads if its `decay_placement` is `update`.

    Any other placement of weight decay raises an error.
    """
    config = Lamb().get_config()
    assert Lamb.from_config(config | {"decay_placement": "update"})
    with pytest.raises(InputError, match="decay_placement=decoupled"):
        Lamb.from_config(config | {"decay_placement": "decoupled"})


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_variables_of_other_types(rule, dtype):
    """Variables of other types change like float32 ones, up to rounding."""
    rng = np.random.default_rng(5)
    shapes = {"kernel": (3, 4), "bias": (5,)}
    values = {n: rng.normal(size=s) for n, s in shapes.items()}
    gradients = [rng.normal(size=s) for s in shapes.values()]
    results = []
    for name in ("float32", dtype):
        layer = keras.layers.Layer(dtype=name)
        for key, value in values.items():
            own = "float32" if key == "bias" else name
            layer.add_weight(shape=value.shape, name=key, dtype=own)
            layer.weights[-1].assign(value)
        optimizer = RULES[rule](0.1)
        types = [v.dtype for v in layer.weights]
        typed = [tf.cast(g, t) for g, t in zip(gradients, types, strict=True)]
        optimizer.apply(typed, layer.trainable_variables)
        assert [v.dtype for v in layer.weights] == types
        results.append([tf.cast(v, tf.float32) for v in layer.weights])
    for old, new in zip(*results, strict=True):
        np.testing.assert_allclose(new, old, atol=0.02)
    assert np.abs(results[1][0] - values["kernel"]).max() > 0.05


def test_gradients_belong_to_their_variables():
    """Gradients may come in any order, but not for another model.

    The variables have equal shapes, so only their identity distinguishes them.
    """
    first, second = (
        layer_with({name: np.ones([2, 2], "f4") * n for n, name in pairs})
        for pairs in (((1, "a"), (2, "b")), ((3, "a"), (4, "b")))
    )
    optimizer = AdamW(0.1, weight_decay=0.0)
    a, b = first.trainable_variables
    optimizer.build([a, b])
    optimizer.apply_gradients([(tf.zeros([2, 2]), b), (tf.ones([2, 2]), a)])
    assert (np.asarray(b) == 2.0).all() and (np.asarray(a) < 1.0).all()
    before = np.asarray(a)
    for others in (second.trainable_variables, [a, a], [a], [a, b, a]):
        gradients = [tf.ones([2, 2])] * len(others)
        with pytest.raises(InputError, match="with a new optimizer"):
            optimizer.apply(gradients, others)
    assert (np.asarray(a) == before).all()


def test_variables_that_cannot_be_updated():
    """Float8 variables and variables unknown to `build` raise errors."""
    layer = layer_with({"kernel": np.ones([2, 2], "f4")})
    optimizer = AdamW(0.1)
    optimizer.build(layer.trainable_variables)
    with pytest.raises(InputError, match="call `compile` again"):
        optimizer.apply([tf.ones([2, 2])] * 2, layer.trainable_variables * 2)
    layer.weights[0].overwrite_with_gradient = True
    with pytest.raises(InputError, match="Keras's optimizers.*AdamW"):
        AdamW(0.1).build(layer.trainable_variables)
