"""What ends a fine-tuning run, what it keeps, and its facts."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tiny
from tiny_runs import build, eagerly, run, weights

from albert_tf.base.errors import InputError
from albert_tf.finetuning import finetuning_run
from albert_tf.finetuning.evaluation import TaskEvaluator
from albert_tf.finetuning.finetuning_run import EarlyStopping
from albert_tf.finetuning.finetuning_setup import Job, Split
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import find
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.history import History
from albert_tf.training.hooks import Evaluate, KeepBest
from albert_tf.training.run import Hook


def scripted(scores, monkeypatch):
    """Make evaluations return the given main metric of each step."""

    def after(self, run, window):
        run.record("eval", {"accuracy": scores[run.step - 1]})

    monkeypatch.setattr(Evaluate, "after", after)


SCORES = [0.5, 0.6, 0.6, 0.6, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6]
EVERY_STEP = {
    "num_train_steps": 10,
    "eval_steps": 1,
    "save_checkpoints_steps": 1,
    "do_train": True,
    "do_eval": True,
}


@pytest.mark.slow
def test_early_stopping(shallow, opinions, tmp_path, monkeypatch):
    """A run ends after the given number of evaluations without a gain.

    The run is then complete, so it rejects different settings.
    """
    scripted(SCORES, monkeypatch)
    values = opinions | EVERY_STEP | {"early_stopping": 3}
    output = str(tmp_path / "o")
    for _ in range(2):  # the second time, nothing is left to do
        found = run(model_dir=shallow, output_dir=output, **values)
        assert checkpoint_files.latest(output).endswith("ckpt-8")
        assert checkpoints.for_inference(output).endswith("ckpt-5")
    assert found["eval"]["examples"] == 53
    flags = (tmp_path / "o/run.flags").read_text("utf-8")
    with pytest.raises(
        InputError, match="completed run .* label_smoothing was"
    ):
        run(model_dir=shallow, output_dir=output, **values, label_smoothing=0.5)
    assert (tmp_path / "o/run.flags").read_text("utf-8") == flags


def test_where_a_run_was_stopped_does_not_count(tmp_path):
    """Only regular evaluations count for early stopping and plateaus.

    A run also evaluates when it stops at `stop_step`. A run that ended early
    prints the message again when it is resumed.
    """
    run = mock.Mock(history=History(str(tmp_path)))
    recipe = RecipeConfig(early_stopping=2, plateau_patience=2)
    follow = EarlyStopping(4, recipe, "accuracy")
    for step, over in ((4, False), (5, False), (8, False), (12, True)):
        run.history.add(step, "eval", {"accuracy": 0.5})
        follow.after(run, None)
        assert run.ended_early is over
        assert run.progress.message.called is over
        rate = 0.5 if over else 1.0
        run.trainer.rate.factor.assign.assert_called_with(rate)
    (message,) = run.progress.message.call_args.args
    assert "`accuracy` has not increased in 2 evaluations" in message
    follow.begin(run)
    assert run.progress.message.call_count == 2
    run.trainer.reset_mock()
    for patience, over in ((0, False), (1, True)):
        recipe = RecipeConfig(early_stopping=patience)
        EarlyStopping(4, recipe, "accuracy").after(run, None)
        assert run.ended_early is over
    run.trainer.rate.factor.assign.assert_not_called()


@pytest.mark.parametrize(
    ("run", "values", "over", "kept"),
    [
        ({}, {}, True, True),
        ({"evaluated": 5}, {}, True, False),
        ({"best": "o/ckpt-5"}, {}, True, False),
        ({"best": "o/ckpt-5"}, {"ema_decay": 0.5}, True, True),
        ({"chief": False}, {}, True, False),
        ({"step": 4}, {}, False, False),
        ({"step": 4, "ended_early": True}, {}, True, True),
    ],
)
def test_what_the_end_of_a_run_keeps(run, values, over, kept, monkeypatch):
    """The last weights are saved unless they were evaluated or selected before.

    An average that was not evaluated is always saved. Only the chief saves
    weights. An unfinished run saves nothing and restores no weights.
    """
    how = {"step": 5, "evaluated": 3, "best": "o/best/ckpt-3"} | run
    how = {"ended_early": False, "chief": True, "last_good": "o/ckpt-5"} | how
    rows = [{"step": how.pop("evaluated"), "split": "eval"}]
    rows.append({"step": how["step"], "split": "train"})
    trainer = mock.Mock(step=how["step"], strategy=tf.distribute.get_strategy())
    made = mock.Mock(history=mock.Mock(rows=rows), **how)
    restored, steps, keep = mock.Mock(), mock.Mock(), mock.Mock()
    monkeypatch.setattr(finetuning_run, "Run", lambda *_: made)
    monkeypatch.setattr(finetuning_run, "train_run", steps)
    monkeypatch.setattr(checkpoints, "for_inference", lambda _: how["best"])
    monkeypatch.setattr(checkpoints, "restore_weights", restored)
    values = {"num_train_steps": 5, "do_train": True} | values
    s = build(model_dir="m", output_dir="o", init="random", **values)
    ended = finetuning_run.run_training(s, trainer, None, None, keep)
    assert ended == (restored.return_value if over else "")
    steps.assert_called_once()
    assert keep.keep.mock_calls == [mock.call(made)] * kept
    assert restored.mock_calls == [mock.call(trainer.model, "o")] * over


@pytest.mark.parametrize("evaluates", [True, False])
def test_hooks_of_a_run(evaluates, monkeypatch):
    """A run calls a user's hooks, and keeps or stops only if it evaluates."""
    train = mock.Mock(side_effect=InterruptedError)
    monkeypatch.setattr(finetuning_run, "Run", mock.Mock())
    monkeypatch.setattr(finetuning_run, "train_run", train)
    how = {"num_train_steps": 5, "do_train": True, "init": "random"}
    s = build(model_dir="m", output_dir="o", do_eval=evaluates, **how)
    own, keep = Hook(), KeepBest(3, "f1")
    s = dataclasses.replace(s, hooks=(own,))
    with pytest.raises(InterruptedError):
        finetuning_run.run_training(s, None, "batches", "evaluate", keep)
    _, batches, hooks = train.call_args.args
    assert batches == "batches" and own in hooks
    assert (keep in hooks) is evaluates
    stopping = [hook for hook in hooks if isinstance(hook, EarlyStopping)]
    assert [(x.every, x.metric) for x in stopping] == [(20, "f1")] * evaluates


def test_every_setting_with_a_change_is_a_fact(monkeypatch):
    """Every setting with metadata `change` is among the facts of the run."""
    how = {"num_train_steps": 5, "do_train": True, "init": "random"}
    s = build(model_dir="m", output_dir="o", **how)
    fields = [f for config in s.configs() for f in dataclasses.fields(config)]
    for field in fields:
        changed = {**field.metadata, "change": "another loss"}
        monkeypatch.setattr(field, "metadata", changed)
    run = mock.Mock(side_effect=InterruptedError)
    monkeypatch.setattr(finetuning_run, "Run", run)
    with pytest.raises(InterruptedError):
        finetuning_run.run_training(s, None, None, None, None)
    *_, facts = run.call_args.args
    names = {f.name for f in fields}
    assert facts.keys() == names | {"first weights", "length_bucketing=all"}
    assert facts["first weights"].value == "random"
    assert facts["model_dir"] == ("m", "another loss")


@pytest.mark.parametrize("bucketing", ["none", "evaluation", "all"])
def test_facts_of_examples_and_their_order(bucketing):
    """Facts state which examples a run used, and whether they were sorted.

    The number of examples may be equal although the examples differ.
    """
    how = {"num_train_steps": 5, "do_train": True, "init": "random"}
    how |= {"model_dir": "m", "output_dir": "o"}
    s = build(**how, length_bucketing=bucketing)
    facts = []
    for token in (7, 8):
        rows = [(np.array([2, token, 3], np.int32), 3)]
        features = Features.from_rows(rows, {}, 0, 16)
        splits = [Split(name, ["x"], features) for name in ("train", "eval")]
        train, evaluation = ((split,) for split in splits)
        job = Job(find("sst-2"), None, None, train, evaluation, (), "t")
        facts.append(finetuning_run.run_facts(s, job))
    by_length = facts[0]["length_bucketing=all"]
    assert by_length.value is (bucketing == "all")
    assert by_length.change == "other batches"
    assert facts[0]["teacher weights"].value == "t"
    names = {"train data of sst-2", "eval data of sst-2"}
    assert {k for k in facts[0] if facts[0][k] != facts[1][k]} == names
    train, other = (facts[0][name].change for name in sorted(names)[::-1])
    assert "training continues" in train and "evaluations" in other


def rates(folder):
    return History.read(folder).column("train", "learning_rate")[1]


@pytest.mark.slow
@eagerly()
def test_the_rate_falls_on_plateaus(shallow, opinions, tmp_path, monkeypatch):
    """The rate is halved after two evaluations in a row without a gain."""
    scripted(SCORES, monkeypatch)
    values = opinions | EVERY_STEP | {"model_dir": shallow}
    values |= {
        "schedule": "constant",
        "num_warmup_steps": 0,
        "plateau_patience": 2,
    }
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    run(output_dir=whole, **values)
    expected = [1e-2] * 4 + [5e-3] * 3 + [2.5e-3] * 2 + [1.25e-3]
    np.testing.assert_allclose(rates(whole), expected, rtol=1e-5)
    run(output_dir=parts, stop_step=6, **values)
    run(output_dir=parts, **values)
    np.testing.assert_array_equal(rates(parts), rates(whole))
    name = "albert/pooler/kernel"
    np.testing.assert_array_equal(weights(parts, name), weights(whole, name))


@pytest.mark.slow
@eagerly()
def test_averaged_weights_are_what_is_evaluated(
    shallow, opinions, tmp_path, monkeypatch
):
    """Evaluations and the best weights use the average at their step."""
    evaluated = []

    def metrics(self, splits):
        weights = self.model.weights.items()
        evaluated.append({name: w.numpy() for name, w in weights})
        return {"accuracy": [0.5, 0.9, 0.7][len(evaluated) - 1]}

    monkeypatch.setattr(TaskEvaluator, "metrics", metrics)
    output = str(tmp_path / "o")
    arguments = opinions | EVERY_STEP | {"num_train_steps": 3}
    run(
        model_dir=shallow,
        output_dir=output,
        ema_decay=0.9,
        keep_checkpoint_max=3,
        **arguments,
    )
    for step, found in enumerate(evaluated, start=1):
        read = checkpoints.reader(f"{output}/ckpt-{step}")
        average = {n: read(f"optimizer/average/{n}") for n in found}
        assert tiny.largest_difference(average, found) == 0.0
    own = {n: read(n) for n in found}
    assert tiny.largest_difference(own, found) > 1e-4
    read = checkpoints.reader(f"{output}/best/ckpt-2")
    best = {name: read(name) for name in evaluated[1]}
    assert tiny.largest_difference(best, evaluated[1]) == 0.0


@pytest.mark.slow
@eagerly()
def test_averaged_weights_are_what_is_kept(shallow, opinions, tmp_path):
    """Without evaluations, a run saves the average, even if it was resumed."""
    values = {k: opinions[k] for k in ("task", "train_file")} | {
        "model_dir": shallow,
        "do_train": True,
        "ema_decay": 0.5,
        "num_train_steps": 6,
    }
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    run(output_dir=whole, **values)
    run(output_dir=parts, stop_step=3, **values)
    assert not checkpoint_files.latest(f"{parts}/best")
    run(output_dir=parts, **values)
    name = "classifier/kernel"
    found = weights(f"{parts}/best", name)
    np.testing.assert_array_equal(found, weights(f"{whole}/best", name))
    assert np.any(found != weights(parts, name))
    average = weights(parts, f"optimizer/average/{name}")
    np.testing.assert_array_equal(found, average)
