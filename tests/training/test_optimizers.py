"""LAMB, AdamW and schedules agree with NumPy and with the released code."""

import functools
import json
import pathlib

import goldens
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
from tiny_runs import eagerly

from albert_tf.base.errors import InputError
from albert_tf.training.optimizer import (
    AVERAGE,
    SCHEDULES,
    Optimizer,
    OptimizerConfig,
    WeightAverage,
    clip,
    with_rate,
)
from albert_tf.training.pretraining.run_setup import with_compat
from albert_tf.training.training_config import TrainingConfig
from albert_tf.training.update_rules import (
    FUSED_SIZE,
    RULES,
    debias,
    update_rule,
)

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"


def oracle(w, gradients, rates, decayed, c):
    """Return w, m and v after steps of AdamW or LAMB.

    LAMB is Algorithm 2 of the LAMB paper.
    """
    b1, b2, eps, decay = 0.9, 0.999, 1e-6, 0.01 * decayed
    m = v = np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t) if c.bias_correction else m
        v_hat = v / (1 - b2**t) if c.bias_correction else v
        direction = m_hat / (v_hat**0.5 + eps) + decay * w
        norms = np.sqrt((w**2).sum()), np.sqrt((direction**2).sum())
        adapts = c.optimizer == "lamb" and decayed
        step = direction * (norms[0] / norms[1] if adapts else 1.0)
        w = w - rate * step
    return w, m, v


def check(shape, rates, tolerance, excluded=False, **values):
    """Compare updates for random gradients with the oracle's updates."""
    rng, config = np.random.default_rng(7), OptimizerConfig(**values)
    w, gradients = rng.normal(size=shape), rng.normal(size=(len(rates), *shape))
    expected = oracle(w, gradients, rates, not excluded, config)
    found = [tf.constant(w, tf.float32)] + [tf.zeros(shape)] * 2
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        g, t = tf.constant(g, tf.float32), tf.constant(float(t))
        found = update_rule(found[0], g, *found[1:], rate, t, excluded, config)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, tolerance, tolerance / 20)


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
@pytest.mark.parametrize("excluded", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
def test_three_steps_equal_the_papers(optimizer, excluded, corrected):
    """After three steps, each rule with each option agrees with NumPy.

    NumPy computes in float64.
    """
    values = {"optimizer": optimizer, "bias_correction": corrected}
    check((5, 4), [0.1, 0.2, 0.05], 2e-5, excluded, **values)


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_large_variables_are_updated_as_small_ones(optimizer):
    """The compiled update of large variables also agrees with NumPy."""
    shape = (260, 256)
    assert shape[0] * shape[1] >= FUSED_SIZE
    check(shape, [0.1, 0.2], 5e-5, optimizer=optimizer)


def test_a_zero_weight_moves_by_the_plain_update():
    """If the norm of a weight or of its update is 0, the trust ratio is 1."""
    config = OptimizerConfig(weight_decay_rate=0.0)
    ones, zeros = tf.ones([3]), tf.zeros([3])
    slots = zeros, zeros, 0.5, 1.0, False, config
    w, _, _ = update_rule(zeros, ones, *slots)
    np.testing.assert_allclose(w, -0.5 * 0.1 / (0.001**0.5 + 1e-6), rtol=1e-5)
    w, _, _ = update_rule(ones, zeros, *slots)
    np.testing.assert_array_equal(w, ones)


def test_norms_and_biases_are_excluded_and_tables_are_not():
    """Layer norms and biases, recognized by name, have no weight decay.

    Slots and averages are named after their variables.
    """
    optimizer = tiny.new_trainer().optimizer
    names = set(optimizer.names)
    kept = names - set(filter(optimizer.is_excluded, names))
    ends = "/kernel", "_embeddings"
    assert kept == {name for name in names if name.endswith(ends)}
    assert "mlm/output_bias" in names - kept
    slots = {f"optimizer/{name}/{slot}" for name in names for slot in "mv"}
    assert set(optimizer.state()) == slots | {"optimizer/iterations"}
    optimizer = Optimizer(OptimizerConfig(ema_decay=0.5), 0.1)
    optimizer.build([keras.Variable([1.0])], ["w"])
    assert {"optimizer/w/v", "optimizer/average/w"} < optimizer.state().keys()


MATRIX = "albert/encoder/ffn_0_0/output/kernel"


@pytest.mark.parametrize("optimizer", RULES)
@pytest.mark.parametrize("name", [MATRIX, "mlm/transform/kernel"])
def test_only_included_variables_decay(optimizer, name):
    """Every rule decays all variables except excluded variables.

    The gradient is 0, so nothing else changes the variable.
    """
    config = OptimizerConfig(optimizer=optimizer, weight_decay_rate=0.1)
    w, zeros = tf.fill([3, 2], 2.0), tf.zeros([3, 2])
    for excluded in (True, False):
        slots = zeros, zeros, zeros, 0.5, 1.0, excluded, config, name
        found, m, v = update_rule(w, *slots)
        assert (found.numpy() == 2.0).all() == excluded
        assert (found.numpy() <= 2.0).all()
        assert not (m.numpy().any() or v.numpy().any())


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(
    "optimizer", [name for name in RULES if RULES[name].has_trust_ratio]
)
def test_trust_ratios_are_those_of_the_update(optimizer, corrected):
    """`Optimizer.trust_ratios` are the factors by which updates are scaled.

    Without the factor, the update equals an excluded variable's, plus decay.
    The learning rate is 0, so the update leaves the weights unchanged.
    """
    rng = np.random.default_rng(5)
    config = OptimizerConfig(
        optimizer=optimizer, bias_correction=corrected, clip_norm=0.0
    )
    names = MATRIX, "mlm/output_bias", "mlm/transform/kernel"
    arrays = rng.normal(size=(2, 3, 4, 2)).astype(np.float32)
    weights, gradients = ([*map(tf.constant, x)] for x in arrays)
    found = Optimizer(config, 0.0)
    found.build([*map(tf.Variable, weights)], names)
    found.apply(gradients)
    ratios = iter(found.trust_ratios().numpy())
    for name, w, g in zip(names, weights, gradients, strict=True):
        if found.is_excluded(name):
            continue
        slots = tf.zeros_like(w), tf.zeros_like(w), 1.0, tf.constant(1.0)
        scaled, plain = (
            w - update_rule(w, g, *slots, excluded, config, name)[0]
            for excluded in (False, True)
        )
        plain += config.weight_decay_rate * w
        np.testing.assert_allclose(scaled, next(ratios) * plain, rtol=1e-4)
    assert next(ratios, None) is None


def test_clipping_scales_only_above_the_limit():
    """Clipping limits the gradients' norm and keeps their direction.

    A limit of 0 turns clipping off. If a gradient is NaN, the reported norm is
    NaN.
    """
    gradients = [tf.constant([3.0]), tf.constant([[4.0]])]
    scaled, norm = clip(gradients, 1.0)
    assert float(norm) == 5.0
    np.testing.assert_allclose(scaled[0], [0.6])
    np.testing.assert_allclose(scaled[1], [[0.8]])
    np.testing.assert_array_equal(clip(gradients, 6.0)[0][0], [3.0])
    np.testing.assert_array_equal(clip(gradients, 0.0)[0][0], [3.0])
    assert np.isnan(clip([tf.constant([np.nan])], 1.0)[1])


def test_each_replica_may_clip_its_own_share():
    """With `per_replica`, each replica clips its gradient before the mean."""
    strategy = tiny.make_strategy(tiny.DistributionConfig(num_cpu_replicas=2))
    for own, limit, sums, norm in (
        (True, 1.0, [0.6, 0.8], 1.0),
        (True, 20.0, [6.0, 8.0], 10.0),
        (False, 5.0, [3.0, 4.0], 10.0),
    ):
        optimizer = Optimizer(OptimizerConfig(clip_norm=limit), 0.1)
        assert optimizer.per_replica is False
        optimizer.per_replica = own

        def share(optimizer=optimizer):
            return optimizer.reduce([tf.constant([3.0]), tf.constant([4.0])])

        reduced = tf.function(
            functools.partial(strategy.run, share), autograph=False
        )()
        found, size = tf.nest.map_structure(
            lambda x: strategy.experimental_local_results(x)[1], reduced
        )
        np.testing.assert_allclose(np.concatenate(found), sums, rtol=1e-6)
        assert float(size) == pytest.approx(norm)


@pytest.mark.parametrize(
    ("healthy", "gradient", "moves"),
    [
        *((None, 3.0, True), (True, 3.0, True), (False, 3.0, False)),
        *((True, np.inf, False), (True, np.nan, False)),
    ],
)
def test_an_unhealthy_step_is_only_counted(healthy, gradient, moves):
    """Without a healthy loss and norm, no weight and no slot changes.

    The step and the average advance in any case. All of these, except the
    weights, are the optimizer's state.
    """
    optimizer = Optimizer(OptimizerConfig(ema_decay=0.5), 0.1)
    weights = [keras.Variable([2.0, 4.0]), keras.Variable([[7.0]])]
    optimizer.build(weights, ("a", "b/c"))
    state = optimizer.state()
    step = state.pop("optimizer/iterations")
    averages = [state.pop(f"{AVERAGE}{name}") for name in ("a", "b/c")]
    slots = [f"optimizer/{name}/{x}" for name in ("a", "b/c") for x in "mv"]
    assert list(state) == slots
    kept = [*weights, *state.values()]
    before = [variable.numpy() for variable in kept]
    gradients = [tf.constant([1.0, gradient]), tf.constant([[5.0]])]
    healthy = None if healthy is None else tf.constant(healthy)
    optimizer.apply(gradients, healthy=healthy)
    for variable, value in zip(kept, before, strict=True):
        assert (variable.numpy() != value).all() == moves
        assert (variable.numpy() == value).all() != moves
    assert step == 1
    for average, weight in zip(averages, weights, strict=True):
        np.testing.assert_array_equal(average, weight)


def test_an_average_follows_the_weights():
    """At step t, a new average contains (t - 1) / (t + 9) of the old average.

    This share is at most `decay`; the weights make up the rest. The block
    in which averages replace the weights may raise an error.
    """
    strategy = tf.distribute.get_strategy()
    weights = {"w": tf.Variable([2.0, 4.0])}
    average = WeightAverage(0.5, weights)
    expected = np.zeros(2)
    for t, kept in ((1, 0), (2, 1 / 11), (7, 6 / 16), (100, 0.5)):
        weights["w"].assign_add([1.0, -3.0])
        average.move(strategy, tf.constant(float(t)))
        expected = kept * expected + (1 - kept) * weights["w"].numpy()
        (mean,) = average.state().values()
        np.testing.assert_allclose(mean, expected, rtol=1e-6)
    current = weights["w"].numpy()
    with pytest.raises(KeyboardInterrupt):
        with average.swapped_in():
            np.testing.assert_allclose(weights["w"], expected, rtol=1e-6)
            raise KeyboardInterrupt
    np.testing.assert_array_equal(weights["w"], current)
    assert WeightAverage(0.0, weights).state() == {}


def test_a_moment_without_memory_needs_no_correction():
    """The divisor for bias correction is 1 - beta^t, and 1 if beta is 0."""
    assert debias(0.0, tf.constant(1.0)) == 1.0
    assert float(debias(0.5, tf.constant(2.0))) == pytest.approx(0.75)


def rates_of(schedule, steps, total, warmup, rate=1.0, **values):
    """Return the learning rates at steps that are counted from 0."""
    config = OptimizerConfig(
        learning_rate=rate, num_warmup_steps=warmup, **values
    )
    at = tf.constant(steps, tf.float32)
    return SCHEDULES[schedule](config, total, at).numpy()


def test_released_schedule_equals_the_recorded_rates():
    """Learning rates match the released code, even below 0."""
    cases = json.loads((TESTDATA / "lr_schedule.json").read_text())
    assert len(cases) > 3
    for case in cases:
        wanted, steps = case.pop("lr"), case.pop("steps")
        run = case.pop("num_train_steps"), case.pop("num_warmup_steps")
        names = "poly_power", "start_warmup_step"
        values = {name: case[name] for name in names}
        found = rates_of("released", steps, *run, case["init_lr"], **values)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("rule", ["lamb", "adamw"])
@eagerly()
def test_three_steps_equal_the_released_ones(rule):
    """After steps 1 and 3, the weights match the released code.

    The steps include the schedule, clipping and exclusions from weight decay.
    """
    golden = goldens.load("g1")
    batch = dict(golden.inputs)
    batch["sentence_order_labels"] = batch.pop("next_sentence_labels")[:, 0]
    batch["example_weights"] = np.ones(len(batch["input_ids"]), np.float32)
    size = len(batch["input_ids"])
    optimizer = OptimizerConfig(rule, learning_rate=0.01, num_warmup_steps=0)
    batches = {"train_batch_size": size, "eval_batch_size": size}
    trainer = tiny.make_trainer(
        config=golden.config,
        optimizer=with_compat(optimizer, "google"),
        num_train_steps=10,
        per_replica=True,
        **batches,
    )
    weights = goldens.to_ours(golden.weights, golden.config)
    goldens.assign(trainer.model, weights)
    endless = tf.data.Dataset.from_tensors(batch).repeat()
    iterator = trainer.iterator(lambda **_: endless, 0)
    with np.load(goldens.FOLDER / "g1_train.npz") as arrays:
        for step in (1, 2, 3):
            trainer.run_steps(iterator, tf.constant(1))
            if step == 2:
                continue
            recorded = goldens.section(arrays, f"{rule}_nowarm/step{step}/")
            expected = goldens.to_ours(recorded, golden.config)
            for name, value in expected.items():
                found = trainer.weights[name].numpy()
                # AdamW divides a gradient that is nearly 0 by its own size.
                # With steps of 0.01, machines differ by up to 2.3e-5.
                np.testing.assert_allclose(found, value, atol=5e-5)


def test_the_automatic_rate_is_the_square_root_rule(capsys):
    """The rate `auto` is proportional to the square root of the batch size.

    For a batch size of 4096, it is the learning rate of the ALBERT paper.
    """
    auto = OptimizerConfig(learning_rate="auto")
    rates = {4096: 0.00176, 1024: 0.00088, 64: 0.00022, 50: 0.00019445436}
    for batch, rate in rates.items():
        training = TrainingConfig(train_batch_size=batch)
        found = with_rate(auto, training).learning_rate
        assert found == pytest.approx(rate)
        assert f"sqrt({batch} / 4096) = {rate:g}" in capsys.readouterr().out
    fixed = OptimizerConfig(learning_rate=0.5)
    assert with_rate(fixed, training).learning_rate == 0.5


def test_the_automatic_rate_is_lambs():
    """The rate `auto` requires LAMB; no other word is a legal rate."""
    adamw = OptimizerConfig(learning_rate="auto", optimizer="adamw")
    with pytest.raises(InputError, match="optimizer=adamw"):
        with_rate(adamw, TrainingConfig())
    with pytest.raises(InputError, match="a number or one of auto"):
        OptimizerConfig(learning_rate="fast")
