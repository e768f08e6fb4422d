"""The standard hooks: finite losses, measurements and best weights."""

import math

import numpy as np
import pytest
import tensorflow as tf
import tiny
from tiny_runs import eagerly
from tiny_training import Crash, go, make_run

from albert_tf.base.errors import InputError
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.health import Monitor
from albert_tf.training.history import History
from albert_tf.training.hooks import Measure, Warn, check_hooks
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.run import Hook


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("steps_per_loop", [1, 6])
@eagerly()
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, steps_per_loop):
    """The error for a non-finite loss names the step and the last checkpoint.

    The first update is larger than 1e29, so the loss of the second step is not
    finite.
    """
    wild = OptimizerConfig("adamw", learning_rate=1e30, num_warmup_steps=8)
    save_steps, good = (1, "ckpt-1") if steps_per_loop == 1 else (7, "none yet")
    how = {"steps_per_loop": steps_per_loop, "optimizer": wild}
    started = make_run(tmp_path, save_checkpoints_steps=save_steps, **how)
    with pytest.raises(InputError, match=f"at step 2;.*{good}$"):
        go(started)
    if steps_per_loop == 1:
        good = checkpoint_files.latest(str(tmp_path))
        state = tiny.values(started.trainer).items()
        table = {name: tf.Variable(value) for name, value in state}
        checkpoints.restore(good, table, ignore=())
        assert all(bool(tf.reduce_all(v == v)) for v in table.values())


def poisoned(bad_examples):
    """Return a function that makes batches with some infinite losses."""

    def batches(start, num_shards, shard, batch_size):
        data = tiny.make_data()
        for example in bad_examples:
            data["masked_lm_weights"][example] = np.inf
        dataset = tf.data.Dataset.from_tensor_slices(data)
        dataset = dataset.repeat().skip(start % tiny.EXAMPLES)
        return dataset.batch(batch_size, drop_remainder=True)

    return batches


CADENCE = "stop_step", "steps_per_loop", "save_checkpoints_steps"


@eagerly()
def test_skipping_leaves_out_the_bad_update_alone(tmp_path):
    """If non-finite updates are skipped, all other updates stay the same."""
    steps = dict.fromkeys(CADENCE, 3)
    skipping = make_run(tmp_path, on_nonfinite="skip", **steps)
    go(skipping, batches=poisoned([20]))  # in the second batch of 16
    expected = tiny.new_trainer()
    iterator = expected.iterator(tiny.train_batches, 0)
    expected.run_steps(iterator, tf.constant(1))
    next(iterator)
    expected.optimizer.iterations.assign(2)
    expected.run_steps(iterator, tf.constant(1))
    found, wanted = tiny.values(skipping.trainer), tiny.values(expected)
    assert tiny.largest_difference(found, wanted) == 0.0
    row = skipping.history.rows[0]
    assert row["skipped_updates"] == 1.0 and row["steps"] == 3
    assert math.isfinite(row["loss"]) and 1 < row["mlm_loss"] < 10


@eagerly()
def test_only_updates_skipped_in_a_row_end_a_run(tmp_path, monkeypatch):
    """Four skipped updates in a row end a run; two of every three do not."""
    monkeypatch.setattr("albert_tf.training.health.MAX_BAD_STEPS", 4)
    values = {"on_nonfinite": "skip", "steps_per_loop": 2}
    with pytest.raises(InputError, match="in all of the last 4 steps"):
        go(make_run(tmp_path, **values), batches=poisoned(range(48)))
    steps = {"stop_step": 6, "save_checkpoints_steps": 6}
    skipping = make_run(tmp_path, **steps, **values)
    go(skipping, batches=poisoned(range(32)))
    assert skipping.step == 6
    skipped = [r.get("skipped_updates") for r in skipping.history.rows[:2]]
    assert skipped == [1, 1]


def test_scalars_reach_the_disk_at_evaluations_and_saves(tmp_path):
    """Scalars are written only at evaluations and saves.

    With remote storage, each write uploads the whole file.
    """
    sizes = []

    class Look(Hook):
        def after(self, run, window):
            paths = tmp_path.glob("tensorboard/train/*")
            sizes.append(sum(path.stat().st_size for path in paths))

    started = make_run(
        tmp_path, stop_step=9, steps_per_loop=1, save_checkpoints_steps=6
    )
    go(started, Look())
    grew = [i for i in range(1, 9) if sizes[i] > sizes[i - 1]]
    assert grew == [6]  # after the save at step 6


def test_trust_ratios_and_speed_are_measured(tmp_path):
    """Trust ratios in the history match NumPy.

    The utilization of a model is its FLOP/s divided by the peak.
    """
    monitor = Monitor(8, 1e6, 16, peak_flops=1e9, masked_share=0.04)
    measured = make_run(
        tmp_path, stop_step=9, steps_per_loop=3, save_checkpoints_steps=3
    )
    watch = Measure(lambda run: monitor), Warn(3, lambda run: monitor)
    trainer = go(measured, *watch)
    values, ratios = tiny.values(trainer), []
    for name in trainer.trained:
        if "layer_norm/" in name or name.endswith("bias"):
            continue
        w, m, v = (
            values[n].astype("f8")
            for n in (name, f"optimizer/{name}/m", f"optimizer/{name}/v")
        )
        u = m / (np.sqrt(v) + 1e-6) + 0.01 * w
        ratios.append(np.linalg.norm(w) / np.linalg.norm(u))
    rows = measured.history.rows
    first, second, row = (r for r in rows if r["split"] == "train")
    assert row["trust_ratio_min"] == pytest.approx(min(ratios), rel=1e-4)
    assert row["trust_ratio_max"] == pytest.approx(max(ratios), rel=1e-4)
    median = sorted(ratios)[len(ratios) // 2]
    assert row["trust_ratio_median"] == pytest.approx(median, rel=1e-4)
    speed = row["examples_per_second"]
    assert row["tokens_per_second"] == pytest.approx(8 * speed)
    assert row["model_flops_utilization"] == pytest.approx(speed * 1e-3)
    assert first["learning_rate"] == pytest.approx(0.01 * 3 / 5)
    left = 3 * 16 / second["examples_per_second"] / 3600
    assert second["hours_left"] == pytest.approx(left)
    assert "hours_left" not in first  # its time includes compilation
    assert row["hours_left"] == 0 and 0 < row["gradient_norm"] < 100
    kinds = [r["kind"] for r in rows if r["split"] == "health"]
    assert kinds == ["mask_rate"]  # once, at the first step that is due


@pytest.mark.parametrize("windows", [1, 2])
def test_hours_are_told_once_the_pace_is_measured(tmp_path, capfd, windows):
    """The hours left are printed only after a second window of steps.

    The first window includes compilation, so it does not show the pace.
    """

    class Stop(Hook):
        def after(self, run, window):
            if run.step == windows:
                run.stop("a test")

    go(make_run(tmp_path, steps_per_loop=1), Stop())
    printed = capfd.readouterr().err
    assert f"Stopped by a test at step {windows} of 20" in printed
    assert ("hours at this pace" in printed) == (windows > 1)


@pytest.mark.parametrize("form", ["one", "a generator", "a list"])
def test_hooks_are_taken_as_they_come(form):
    """Hooks may be a single hook, an iterator or a list."""
    hook = Hook()
    forms = {"one": hook, "a generator": iter([hook]), "a list": [hook]}
    assert check_hooks(forms[form]) == (hook,)


def test_the_best_weights_are_kept(tmp_path):
    """`best/` has the weights of the best evaluation, not of the last one.

    The metric may be negative, for example a correlation.
    """
    scores, seen = iter([-0.1, -0.9]), []
    started = make_run(tmp_path)

    def evaluate():
        seen.append(tiny.values(started.trainer))
        return {"mlm_accuracy": next(scores)}

    trainer = go(started, evaluate=evaluate)
    checkpoints.restore_weights(trainer.model, str(tmp_path))
    found = tiny.values(trainer)
    for name in trainer.weights:
        assert (found[name] == seen[0][name]).all(), name


@pytest.mark.parametrize(
    "scores, best", [((0.5, 0.9, 0.7), 20), ((0.5, 0.9, 0.5), 10)]
)
def test_an_evaluation_at_a_stop_is_not_the_best(tmp_path, scores, best):
    """An evaluation at a stop does not affect `best/`."""
    scores = iter(scores)

    def evaluate():
        return {"mlm_accuracy": next(scores)}

    go(make_run(tmp_path, stop_step=12), evaluate=evaluate)
    resumed = make_run(tmp_path)
    go(resumed, evaluate=evaluate)
    assert resumed.history.column("eval", "mlm_accuracy")[0] == [10, 12, 20]
    assert checkpoints.for_inference(str(tmp_path)).endswith(
        f"best/ckpt-{best}"
    )


@pytest.mark.slow
def test_a_longer_run_beats_the_best_of_the_shorter_one(tmp_path):
    """The evaluation at the end of a shorter run counts in a longer run."""
    scores = iter([0.5, 0.9, 0.7])

    def evaluate():
        return {"mlm_accuracy": next(scores)}

    go(make_run(tmp_path, num_train_steps=12), evaluate=evaluate)
    go(make_run(tmp_path), evaluate=evaluate)
    assert checkpoints.for_inference(str(tmp_path)).endswith("best/ckpt-12")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("save_steps", [7, 99])
def test_evaluations_outlive_a_kill(tmp_path, save_steps):
    """The history of a killed and resumed run lists each evaluation once."""
    saves = {"save_checkpoints_steps": save_steps, "steps_per_loop": 1}
    with pytest.raises(KeyboardInterrupt):
        go(make_run(tmp_path, **saves), Crash(11))
    evaluated = History.read(str(tmp_path))
    assert evaluated.column("eval", "loss")[0] == [10]
    last = evaluated.last("eval")
    go(make_run(tmp_path, **saves))
    evaluated = History.read(str(tmp_path))
    assert evaluated.column("eval", "loss")[0] == [10, 20]
    first = [row for row in evaluated.rows if row["split"] == "eval"][0]
    assert {k: first[k] for k in last} == last
