"""Steps of a recipe, the lengths of batches, and settings of workers."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
import tiny_tasks
from tiny_runs import build, eagerly, run, weights

from albert_tf.finetuning import finetuning_trainer
from albert_tf.finetuning.evaluation import bucketed
from albert_tf.finetuning.finetuning_setup import prepare
from albert_tf.finetuning.finetuning_trainer import (
    FinetuningTrainer,
    make_batches,
    require_alike,
    training_step,
)
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.ops import CompiledForTpu
from albert_tf.tasks.features import Features
from albert_tf.training import distribution
from albert_tf.training.distribution import DistributionConfig, make_strategy
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

    The weights must equal the weights of a run without averaging.
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
    assert training_step(s, here, 200) == step
    assert training_step(s, CompiledForTpu(), 200) == 0
    for part, settings in (("train", {"all"}), ("eval", {"all", "evaluation"})):
        assert bucketed(s.run, here, part) == (bucketing in settings)
        assert not bucketed(s.run, CompiledForTpu(), part)


@pytest.mark.parametrize(("bucketing", "group"), [("none", 0), ("all", 6)])
def test_a_task_has_a_part_of_each_batch(bucketing, group, monkeypatch):
    """A task's batch size and position are proportional to the task's share.

    Each task has a different seed.
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
    make = make_batches(features, s, here, 6, 2)
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


def test_workers_need_the_same_settings_and_examples(
    pretrained, opinions, tmp_path, monkeypatch
):
    """Workers must have equal settings and examples.

    Paths and devices may differ.
    """
    compared = []
    monkeypatch.setattr(
        distribution,
        "require_alike",
        lambda _, values: compared.append(values),
    )

    def differences(**changes):
        for values in ({}, changes):
            how = {"model_dir": pretrained, "do_train": True, "do_eval": True}
            s = build(**{**how, "output_dir": "o", **opinions, **values})
            job = prepare(s.run, s.data, s.task)
            require_alike("several workers", s, job)
        one, two = compared[-2:]
        return {k for k in one | two if one.get(k) != two.get(k)}

    elsewhere = shutil.copy(opinions["train_file"], tmp_path / "t.tsv")
    assert not differences(train_file=elsewhere, output_dir="p")
    assert not differences(peak_tflops=2.0)  # devices may differ
    other = tiny_tasks.write_opinions(tmp_path / "other.tsv", 300, 5)
    assert differences(train_file=other) == {"train examples of classification"}
    assert differences(num_train_epochs=1.0) == {"num_train_epochs"}
    assert differences(label_smoothing=0.1) == {"label_smoothing"}
    examples = "predict examples of classification"
    assert differences(do_predict=True) == {"do_predict", examples}
    require_alike(None, *[None] * 2)  # a single process
