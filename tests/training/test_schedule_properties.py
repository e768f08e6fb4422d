"""Properties of learning rates, phases and clocks for any settings."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tiny
from hypothesis import assume, example, given
from hypothesis import strategies as st
from properties import examples

from albert_tf.data.records.metadata import Metadata
from albert_tf.training.clock import LAST_SHARE, BudgetClock, Clock
from albert_tf.training.optimizer import SCHEDULES, OptimizerConfig, RunRate
from albert_tf.training.phases import (
    examples_read,
    make_phases,
    phase_at,
    read_schedules,
)


@st.composite
def runs(draw):
    """Draw the settings of a schedule, and the number of steps in its run."""
    steps = draw(st.integers(1, 300) | st.sampled_from([10**4, 10**6]))
    warmup = draw(st.just(0) | st.integers(0, steps))
    start = draw(st.just(0) | st.integers(0, steps - warmup))
    assume(start + warmup < steps)
    config = OptimizerConfig(
        learning_rate=draw(st.sampled_from([1.0, 1e-4, 0.00176])),
        num_warmup_steps=warmup,
        start_warmup_step=start,
        poly_power=draw(st.sampled_from([1.0, 2.0, 0.5])),
        schedule=draw(
            st.sampled_from([s for s in SCHEDULES if s != "released"])
        ),
    )
    return config, steps


def rates_of(config, steps, positions):
    """Return the learning rates at positions as shares of the peak rate."""
    at = tf.constant(positions, tf.float32)
    rates = SCHEDULES[config.schedule](config, steps, at).numpy()
    return rates / np.float32(config.learning_rate)


@examples(60)
@given(run=runs())
@example(run=(OptimizerConfig(num_warmup_steps=0), 1))
@example(run=(OptimizerConfig(num_warmup_steps=0, schedule="cosine"), 10**6))
@example(run=(OptimizerConfig(num_warmup_steps=3), 4))
def test_rates_rise_to_the_peak_and_fall_to_the_end(run):
    """No rate is negative or above the peak, and only the last may be 0.

    Warm-up rises by equal steps to the peak, where decay starts; decay falls to
    zero at the end, without jumps. Steps before warm-up belong to the run that
    is being continued.
    """
    config, steps = run
    start = config.start_warmup_step
    peak = start + config.num_warmup_steps
    some = np.linspace(0, steps, 50).astype(int)
    near = [max(x, 0) + d for x in (start, peak, steps) for d in (-2, -1, 0, 1)]
    positions = np.unique(np.clip([*some, *near], 0, steps))
    rates = rates_of(config, steps, positions)
    assert ((rates >= 0) & (rates <= 1 + 1e-6)).all()
    assert (rates[:-1] > 0).all()
    ends_at = 1.0 if config.schedule == "constant" else 0.0
    assert rates[-1] == pytest.approx(ends_at, abs=1e-6)
    warm = (positions >= start) & (positions < peak)
    ramp = (positions[warm] - start + 1) / max(config.num_warmup_steps, 1)
    np.testing.assert_allclose(rates[warm], ramp, rtol=1e-5)
    if config.num_warmup_steps and peak < steps:
        before, first = rates_of(config, steps, [peak - 1, peak])
        assert (before, first) == pytest.approx((1.0, 1.0), rel=1e-5)
    left = np.where(positions < start, 1 - positions / steps, 0.0)
    left = np.where(
        positions >= peak, (steps - positions) / (steps - peak), left
    )
    wanted = {
        "corrected": left**config.poly_power,
        "cosine": 0.5 - 0.5 * np.cos(np.pi * left),
        "constant": np.ones_like(left),
    }[config.schedule]
    decays = (positions < start) | (positions >= peak)
    np.testing.assert_allclose(
        rates[decays], wanted[decays], rtol=0.02, atol=1e-6
    )


@examples(15)
@given(run=runs(), kept=st.floats(0, 1), pace=st.floats(0.1, 10))
def test_a_rate_follows_its_clock(run, kept, pace):
    """Once the clock sets the pace, rates follow the clock's positions."""
    config, steps = run
    rate = RunRate(config, steps)
    clock = Clock(steps, 7, float(np.float32(kept * steps)), pace)
    rate.follow(clock)
    later = [7, 8, 20]
    positions = [clock.at(step) for step in later]
    np.testing.assert_allclose(
        rate(tf.constant(later)) / config.learning_rate,
        rates_of(config, steps, positions),
        atol=1e-3,
        rtol=1e-3,
    )


RECORDS = {
    name: Metadata(tokens, 2, 50, "", {}, {"masking": "dynamic"})
    for name, tokens in (("a", 64), ("b", 128), ("c", 512))
}
SHARES = st.lists(st.integers(1, 40), max_size=3).filter(lambda x: sum(x) < 95)


def schedule_of(values, shares):
    """Return a schedule as `VALUE:SHARE,VALUE:SHARE,VALUE`."""
    pairs = zip(values, shares, strict=False)
    text = "".join(f"{value}:{share / 100:g}," for value, share in pairs)
    return text + f"{values[len(shares)]}"


@examples(30)
@given(
    shares=st.tuples(SHARES, SHARES, SHARES),
    folders=st.permutations([*"abca"]),
    depths=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    steps=st.integers(100, 5000),
    size=st.integers(1, 100),
    unit=st.sampled_from([1, 2, 8]),
    data=st.data(),
)
def test_phases_fill_the_run(shares, folders, depths, steps, size, unit, data):
    """Phases follow each other from 0 to the last step, each with steps.

    At every step, folder, depth and masks follow the schedules, and the
    examples that were read add up. Past the end, the last phase goes on.
    """
    depths = [*depths[: len(shares[1])], 6]
    masks = [0.4, 0.3, 0.2, 0.15]
    texts = [
        schedule_of(x, s)
        for x, s in zip((folders, depths, masks), shares, strict=True)
    ]
    config = tiny.CONFIG.with_layers(6)
    schedules = read_schedules(*texts, config)
    phases = make_phases(schedules, RECORDS, steps, batch_size=size, unit=unit)
    assert phases[0].begin == 0 and phases[-1].end == steps
    assert all(a.end == b.begin for a, b in itertools.pairwise(phases))
    assert all(p.begin < p.end and p.batch_size % unit == 0 for p in phases)
    step = data.draw(st.integers(0, steps - 1), "step")
    phase = phase_at(phases, step)
    assert phase.begin <= step < phase.end
    found = phase.data_dir, phase.layers, phase.masked_lm_prob
    for value, values, parts in zip(
        found, (folders, depths, masks), shares, strict=True
    ):
        ends = [
            round(sum(parts[: i + 1]) / 100 * steps) for i in range(len(parts))
        ]
        legal = {
            values[sum(step >= end + d for end in ends)] for d in (-1, 0, 1)
        }
        assert value in legal
    read = examples_read(phases, step)
    made = [
        (p.records, (min(p.end, step) - p.begin) * p.batch_size)
        for p in phases
        if p.begin < step
    ]
    assert sum(read.values()) == sum(number for _, number in made)
    for name, number in read.items():
        assert number == sum(n for records, n in made if records == name)
    last, whole = phases[-1], examples_read(phases, steps)
    whole[last.records] += 7 * last.batch_size
    assert examples_read(phases, steps + 7) == whole


@st.composite
def clocks(draw):
    """Draw a clock in the middle of a run with a budget."""
    end = draw(st.integers(10, 2000))
    return BudgetClock(
        end,
        draw(st.integers(0, 500)),
        draw(st.floats(0, end)),
        draw(st.floats(0.05, 20)),
        seconds=draw(st.floats(0, 5000)),
        step_seconds=draw(st.floats(0.01, 20)),
        eval_steps=draw(st.sampled_from([0, 1, 10, 300])),
        save_steps=draw(st.sampled_from([1, 25, 500])),
        evaluation=draw(st.floats(0, 50)),
        checkpoint=draw(st.floats(0, 20)),
        compiling=draw(st.floats(0, 30)),
        now=lambda: 0.0,
    )


@examples(60)
@given(
    clock=clocks(),
    over=st.booleans(),
    phases=st.integers(0, 3),
    ahead=st.integers(0, 5),
)
def test_a_turn_of_a_budget_ends_at_the_end(clock, over, phases, ahead):
    """The position stays where it is, and later steps lead exactly to the end.

    Each phase to come has a step, no step covers more of the schedule than
    time requires, and the rate never turns back.
    """
    step = clock.step + ahead
    before, left = clock.at(step), clock.left()
    assume(before <= clock.end)
    clock.turn(step, {}, over, phases)
    assert clock.step == step
    steps = clock.steps_to(clock.end, step)
    assert steps >= phases or before >= clock.end
    assert clock.most(step) <= max(steps, 1)
    if not steps:
        assert clock.position == clock.end and clock.state()["budget"]["over"]
        return
    assert clock.position == pytest.approx(before) and clock.advance >= 0
    assert clock.at(step + steps) == pytest.approx(clock.end)
    each = clock.step_seconds + clock.checkpoint / clock.save_steps
    if clock.eval_steps:
        share = clock.evaluation / clock.eval_steps
        each += clock.step_seconds * share
    fit = left / each
    least = (clock.end - before) / (LAST_SHARE * clock.end)
    if fit > max(least, phases) + 1:
        assert steps == pytest.approx(fit, abs=1)
