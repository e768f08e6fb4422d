"""Steps of a recipe, what ends a run, and the lengths of batches."""

import dataclasses
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
from tiny_runs import build, eagerly, run, weights

from albert_tf.base.errors import InputError
from albert_tf.finetuning import finetuning_trainer
from albert_tf.finetuning.evaluation import TaskEvaluator, bucketed
from albert_tf.finetuning.finetuning_trainer import (
    EarlyStopping,
    FinetuningTrainer,
    make_batches,
    training_step,
)
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.ops import CompiledForTpu
from albert_tf.tasks.features import Features
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.distribution import DistributionConfig, make_strategy
from albert_tf.training.history import History
from albert_tf.training.hooks import Evaluate
from albert_tf.training.objectives import PretrainingObjective
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.training_config import TrainingConfig

WORDS = "albert/embeddings/word_embeddings"


def make_trainer(replicas=1, training=None, ema_decay=0.0, **recipe):
    settings = TrainingConfig(
        num_train_steps=20,
        train_batch_size=16,
        eval_batch_size=16,
        **training or {},
    )
    keras.utils.set_random_seed(3)
    return FinetuningTrainer(
        make_strategy(DistributionConfig(num_cpu_replicas=replicas)),
        lambda: AlbertForPretraining(tiny.SHALLOW),
        PretrainingObjective(),
        OptimizerConfig(
            optimizer="adamw",
            learning_rate=0.01,
            num_warmup_steps=0,
            ema_decay=ema_decay,
        ),
        settings,
        recipe=RecipeConfig(**recipe),
        config=tiny.SHALLOW,
    )


def values(trainer):
    return {name: v.numpy() for name, v in trainer.weights.items()}


def trained(steps, **kwargs):
    trainer = make_trainer(**kwargs)
    tiny.run_steps(trainer, steps)
    return values(trainer)


@pytest.fixture(scope="module")
@eagerly()
def plain():
    """Return {steps: weights} after two and four steps without a recipe."""
    trainer, found = make_trainer(), {}
    for steps in (2, 4):
        tiny.run_steps(trainer, 2)
        found[steps] = values(trainer)
    return found


def check_average(plain, replicas, rounding):
    """Compare the average over four steps with an average in NumPy.

    The weights must equal those of a run without averaging.
    """
    trainer = make_trainer(replicas, ema_decay=0.15)
    expected = {}
    for t in range(1, 5):
        tiny.run_steps(trainer, 1)
        d = min(0.15, (t - 1) / (t + 9))
        for name, w in values(trainer).items():
            w = w.astype("f8")
            expected[name] = d * expected.get(name, w) + (1 - d) * w
    last = values(trainer)
    with trainer.evaluated_weights():
        found = values(trainer)
    assert tiny.largest_difference(expected, found) < 1e-6
    assert tiny.largest_difference(last, found) > 1e-3
    assert tiny.largest_difference(last, values(trainer)) == 0.0
    assert tiny.largest_difference(last, plain[4]) <= rounding


@eagerly()
def test_the_average_is_that_of_the_formula(plain):
    """At step t, an average's decay is min(ema_decay, (t - 1) / (t + 9)).

    The expected average is computed in float64. The weights equal the weights
    of a run without averaging.
    """
    check_average(plain, 1, 0)


@pytest.mark.slow
def test_replicas_have_the_average_of_the_formula(plain):
    """Two replicas have the average of one replica, up to rounding."""
    check_average(plain, 2, 3e-5)


def test_adversarial_gradients_are_those_of_moved_words():
    """Adversarial training adds the gradients for perturbed word embeddings.

    The perturbation changes the table rows of the example's words; no word
    repeats.
    """
    trainer = make_trainer(fgm_epsilon=0.7)
    example = {k: x[:1].copy() for k, x in tiny.make_data().items()}
    example["input_ids"][0] = np.arange(10, 18)
    batch = {k: tf.constant(x) for k, x in example.items()}
    objective, model = PretrainingObjective(), trainer.model
    divisors = objective.weights(batch)
    table = trainer.weights[WORDS]

    def gradients(tape, loss, sources):
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, sources)]

    def loss():
        # The masked-LM head also uses the table, but not the moved rows.
        sums, _ = objective.losses(model, batch, None)
        return sums["sop"] / divisors["sop"]

    divisors = {"mlm": tf.constant(1e30), "sop": divisors["sop"]}
    found, _ = trainer._micro_gradients(batch, divisors, None)
    sources = [
        v for n, v in trainer.trained.items() if not n.startswith("mlm/")
    ]
    with tf.GradientTape() as tape:
        first = loss()
    before = gradients(tape, first, sources)
    g = before[[id(v) for v in sources].index(id(table))].numpy()
    r = np.zeros_like(g)
    r[10:18] = 0.7 * g[10:18] / np.sqrt((g[10:18] ** 2).sum())
    table.assign_add(r)
    with tf.GradientTape() as tape:
        second = loss()
    after = gradients(tape, second, sources)
    for name, f in zip(trainer.trained, found, strict=True):
        if not name.startswith("mlm/") and name != WORDS:
            i = [id(v) for v in sources].index(id(trainer.trained[name]))
            np.testing.assert_allclose(f, before[i] + after[i], atol=2e-6)
    assert second > first


@pytest.fixture(scope="module")
@eagerly()
def adversarial():
    return trained(2, fgm_epsilon=0.5)


@pytest.mark.slow
def test_adversaries_change_the_steps(adversarial, plain):
    """Adversarial training and plain training reach different weights."""
    assert tiny.largest_difference(adversarial, plain[2]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "kwargs",
    [
        {"training": {"gradient_accumulation_steps": 4}},
        {"replicas": 2},
        {"training": {"jit_compile": True}},
    ],
    ids=str,
)
def test_adversaries_do_not_depend_on_how_the_batch_is_cut(adversarial, kwargs):
    """Micro-batches, replicas and XLA do not affect adversarial training."""
    found = trained(2, fgm_epsilon=0.5, **kwargs)
    assert tiny.largest_difference(adversarial, found) < 2e-5


@eagerly()
def test_frozen_parts_keep_their_bits():
    """Frozen parts do not change and have no slots; other parts change."""
    trainer = make_trainer(freeze=("embeddings", "encoder"))
    before = values(trainer)
    tiny.run_steps(trainer, 2)
    moved = {n for n, v in values(trainer).items() if np.any(v != before[n])}
    still = ("albert/embeddings/", "albert/encoder/")
    assert moved == {n for n in before if not n.startswith(still)}
    slots = {n for n in trainer.state() if n.endswith("/m")}
    assert slots == {f"optimizer/{n}/m" for n in moved}


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

    It is then complete, so it rejects different settings.
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
    with pytest.raises(InputError, match="complete run .* label_smoothing was"):
        run(model_dir=shallow, output_dir=output, **values, label_smoothing=0.5)
    assert (tmp_path / "o/run.flags").read_text("utf-8") == flags


def test_where_a_run_was_stopped_does_not_count(tmp_path):
    """Only regular evaluations count for early stopping and plateaus.

    A run also evaluates when it stops at `stop_step`. A run that ended early
    says so again when it is resumed.
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
    monkeypatch.setattr(finetuning_trainer, "Run", lambda *_: made)
    monkeypatch.setattr(finetuning_trainer, "train_run", steps)
    monkeypatch.setattr(checkpoints, "for_inference", lambda _: how["best"])
    monkeypatch.setattr(checkpoints, "restore_weights", restored)
    values = {"num_train_steps": 5, "do_train": True} | values
    s = build(model_dir="m", output_dir="o", init="random", **values)
    ended = finetuning_trainer.run_training(s, trainer, None, None, keep)
    assert ended == (restored.return_value if over else "")
    steps.assert_called_once()
    assert keep.keep.mock_calls == [mock.call(made)] * kept
    assert restored.mock_calls == [mock.call(trainer.model, "o")] * over


def test_every_setting_with_a_change_is_a_fact(monkeypatch):
    """Every setting with metadata `change` is among the facts of the run."""
    how = {"num_train_steps": 5, "do_train": True, "init": "random"}
    s = build(model_dir="m", output_dir="o", **how)
    fields = [f for config in s.configs() for f in dataclasses.fields(config)]
    for field in fields:
        changed = {**field.metadata, "change": "another loss"}
        monkeypatch.setattr(field, "metadata", changed)
    run = mock.Mock(side_effect=InterruptedError)
    monkeypatch.setattr(finetuning_trainer, "Run", run)
    with pytest.raises(InterruptedError):
        finetuning_trainer.run_training(s, None, None, None, None)
    *_, facts = run.call_args.args
    names = {f.name for f in fields}
    assert facts.keys() == names | {"first weights", "length_bucketing=all"}
    assert facts["first weights"].value == "random"
    assert facts["model_dir"] == ("m", "another loss")


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
        evaluated.append(values(self.model))
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


@pytest.mark.parametrize(
    ("bucketing", "jit_compile", "step"),
    [
        ("none", None, 0),
        ("evaluation", None, 1),
        ("all", False, 1),
        ("evaluation", True, 0),
        ("all", True, 16),
    ],
)
def test_lengths_are_few_where_each_is_compiled(bucketing, jit_compile, step):
    """Batch lengths are rounded up to multiples of a step, which flags set.

    A step of 0 means that all lengths are equal. With XLA, nonzero steps are
    larger than without it; on a TPU, the step is always 0.
    """
    s = build(
        output_dir="out",
        model_dir="in",
        do_train=True,
        length_bucketing=bucketing,
        jit_compile=jit_compile,
    )
    here = tf.distribute.get_strategy()
    assert training_step(s.run, s.training, here, 200) == step
    assert training_step(s.run, s.training, CompiledForTpu(), 200) == 0
    for part, settings in (("train", {"all"}), ("eval", {"all", "evaluation"})):
        assert bucketed(s.run, here, part) == (bucketing in settings)
        assert not bucketed(s.run, CompiledForTpu(), part)


@pytest.mark.parametrize(("bucketing", "group"), [("none", 0), ("all", 6)])
def test_a_task_has_a_part_of_each_batch(bucketing, group, monkeypatch):
    """A task's batch size and position are proportional to the task's share.

    Each task has its own seed.
    """
    monkeypatch.setattr(
        finetuning_trainer, "training_batches", lambda _, **how: how
    )
    s = build(
        output_dir="out",
        model_dir="in",
        do_train=True,
        length_bucketing=bucketing,
        random_seed=5,
    )
    row = np.zeros(3, np.int32), 3
    features = Features.from_rows([row], {}, 0, 16)
    here = tf.distribute.get_strategy()
    make = make_batches(features, s.run, s.training, here, 6, 2)
    assert make(start=32, num_shards=2, shard=1, batch_size=8) == {
        "batch_size": 3,
        "seed": 7,
        "start": 12,
        "num_shards": 2,
        "shard": 1,
        "group": group,
        "step": 0 if bucketing == "none" else 1,
    }


@pytest.mark.slow
def test_cut_batches_train_to_the_same_weights(shallow, opinions, tmp_path):
    """Batches with less padding lead to the same weights, up to rounding."""
    values = {k: opinions[k] for k in ("task", "train_file")}
    values |= {"model_dir": shallow, "num_train_steps": 10}
    values |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    for how in ("none", "evaluation"):
        output = str(tmp_path / how)
        run(do_train=True, output_dir=output, length_bucketing=how, **values)
    for name in ("classifier/kernel", "albert/embeddings/word_embeddings"):
        padded, cut = (
            weights(str(tmp_path / how), name) for how in ("none", "evaluation")
        )
        assert np.abs(padded).max() > 0.01
        np.testing.assert_allclose(cut, padded, atol=2e-4)
