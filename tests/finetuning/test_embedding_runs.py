"""Embedding models learn from pairs, single texts and rated pairs."""

import contextlib
import json

import numpy as np
import pytest
import tensorflow as tf
import tiny_tasks
from tiny_runs import refusal, run

from albert_tf.base.errors import InputError
from albert_tf.finetuning.finetuning_setup import FinetuningConfig, prepare
from albert_tf.library.embed import EmbedConfig, embed_texts
from albert_tf.library.models import Embedder
from albert_tf.serving.server import load_server
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.registry import load_task
from albert_tf.tasks.task_config import DataConfig, TaskConfig
from albert_tf.text.tokenizers import load_saved_tokenizer
from albert_tf.training.history import History

PAIRS = {"text": list("abcd"), "text_pair": list("efgh")}
WORDS = (*tiny_tasks.GOOD, *tiny_tasks.BAD)


def sentence(rng, topic):
    return tiny_tasks.opinion(rng, WORDS[topic])


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Return {kind: path} for files of triplets, rated pairs and texts."""
    folder, rng = tmp_path_factory.mktemp("topics"), np.random.default_rng(1)
    topics = rng.permutation(np.arange(240) % 6)
    triplets, scored, texts = [], [], []
    for i, topic in enumerate(topics.tolist()):
        text, pair = sentence(rng, topic), sentence(rng, topic)
        other = sentence(rng, (topic + 1) % 6)
        row = {"text": text, "text_pair": pair, "negative": other}
        triplets.append(json.dumps(row))
        alike = {"text": text, "text_pair": (other, pair)[i % 2]}
        scored.append(json.dumps(alike | {"score": 5 * (i % 2)}))
        texts.append(text)
    contents = {"triplets.jsonl": triplets, "scored.jsonl": scored}
    contents["texts.txt"] = texts
    for name, lines in contents.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {name.split(".")[0]: str(folder / name) for name in contents}


@pytest.fixture(scope="module")
def trained(shallow, tables, tmp_path_factory):
    """Return the folder and metrics of a model trained on triplets."""
    folder = str(tmp_path_factory.mktemp("embedding") / "output")
    metrics = run(
        task="embedding",
        model_dir=shallow,
        output_dir=folder,
        do_train=True,
        do_eval=True,
        do_predict=True,
        train_file=tables["triplets"],
        eval_file=tables["scored"],
        predict_file=tables["texts"],
        learning_rate=0.003,
        num_train_steps=40,
        train_batch_size=30,
    )
    return folder, metrics


def test_pairs_are_learned(trained):
    """Training on triplets moves matching texts closer together."""
    folder, metrics = trained
    assert set(metrics) == {"eval"} and metrics["eval"]["spearman"] > 0.6
    assert load_task(folder).main_metric == "spearman"


@pytest.mark.slow
def test_every_way_gives_the_same_vectors(trained, tables, tmp_path):
    """Prediction, `embed` and exports for texts or ids return equal vectors."""
    folder, _ = trained
    lines = open(tables["texts"], encoding="utf-8").read().splitlines()
    vectors = np.load(f"{folder}/predictions.npy")[:, 0]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    server = load_server(folder, ServingConfig())
    served = server.call("embed", tf.constant(lines[:20]))
    assert server.default == "embed" and set(served) == {"embedding"}
    close = {"atol": 1e-5}
    np.testing.assert_allclose(served["embedding"], vectors[:20], **close)
    ids = load_saved_tokenizer(folder).encode(lines[3])
    row = tf.constant([[2, *ids, 3]])
    one = server.call("ids", row, tf.ones_like(row), tf.zeros_like(row))
    np.testing.assert_allclose(one["embedding"][0], vectors[3], **close)
    out = str(tmp_path / "x.npy")
    embed_texts(EmbedConfig(folder, tables["texts"], out))
    np.testing.assert_allclose(np.load(out), vectors, **close)


def test_a_model_is_evaluated_elsewhere(trained, tables, tmp_path):
    """A model can be evaluated by rank metrics on triplets."""
    metrics = run(
        model_dir=trained[0],
        output_dir=str(tmp_path / "results"),
        do_eval=True,
        eval_file=tables["triplets"],
        max_seq_length=None,
    )
    # With random ranks, the MRR is 0.014; a model that knows only the topic
    # reaches 0.05 to 0.1.
    assert metrics["eval"]["mrr"] > 0.03
    vectors = np.load(tmp_path / "results" / "eval_predictions.npy")
    assert vectors.shape[:2] == (240, 3)


def test_the_loss_is_that_of_the_real_rows(trained, tables):
    """The loss is a cross entropy over matches and negatives, not padding."""
    folder, _ = trained
    task = load_task(folder)
    examples = task.read("train", tables["triplets"])[:5]
    features = task.features(examples, load_saved_tokenizer(folder))
    vectors = np.random.default_rng(3).normal(size=[8, 3, 4]).astype("f4")
    (batch,) = evaluation_batches(features, 8)
    outputs = {"embedding": tf.constant(vectors)}
    losses = task.objective.example_losses(outputs, batch).numpy()
    real = vectors[:5]
    others = np.concatenate([real[:, 1], real[:, 2]])
    logits = real[:, 0] @ others.T / 0.05
    logits -= logits.max(1, keepdims=True)
    expected = np.log(np.exp(logits).sum(1)) - np.diag(logits)
    np.testing.assert_allclose(losses[:5], expected, rtol=1e-4, atol=1e-4)
    weights = task.objective.loss_weights(batch).numpy()
    assert weights.tolist() == [1] * 5 + [0] * 3


@pytest.mark.slow
def test_texts_and_scores_train_too(shallow, tables, tmp_path):
    """Training also works on single texts, with crops, and on rated pairs."""
    common = {"task": "embedding", "model_dir": shallow, "do_train": True}
    common |= {"num_train_steps": 2, "steps_per_loop": 2, "eval_steps": 2}
    pairs = run(
        **common,
        do_eval=True,
        output_dir=str(tmp_path / "texts"),
        train_file=tables["texts"],
        eval_file=tables["triplets"],
        length_bucketing="all",
    )
    assert set(pairs["eval"]) == {"loss", "mrr", "accuracy", "examples"}
    scored = run(
        **common,
        do_eval=True,
        output_dir=str(tmp_path / "scored"),
        train_file=tables["scored"],
        eval_file=tables["scored"],
    )
    assert 0 < scored["eval"]["loss"] < 1
    message = refusal(
        **common,
        output_dir=str(tmp_path / "no"),
        train_file=tables["texts"],
        label_smoothing=0.1,
    )
    assert "label_smoothing" in message and "embedding" in message


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "values",
    [
        {"train_batch_size": 1},
        {"train_batch_size": 4, "gradient_accumulation_steps": 4},
    ],
)
def test_examples_need_wrong_answers(shallow, tmp_path, values):
    """Micro-batches of one text or pair raise an error; triplets do not.

    The loss would be 0, because there is only one answer to choose from.
    """
    how = {
        "task": "embedding",
        "model_dir": shallow,
        "num_train_steps": 1,
        "do_train": True,
        "max_seq_length": 8,
    }
    output, wrong = str(tmp_path / "pairs"), "2 examples per replica and micro"
    for table in (PAIRS, {"text": PAIRS["text"]}):
        with pytest.raises(InputError, match=wrong):
            run(train_file=table, output_dir=output, **how, **values)
    negatives = PAIRS | {"negative": list("ijkl")}
    output = str(tmp_path / "negatives")
    run(train_file=negatives, output_dir=output, **how, **values)
    losses = History.read(output).rows
    assert losses[0]["loss"] > 0


@pytest.mark.parametrize(
    ("kind", "rates", "is_refused"),
    [
        ("texts", (0.0, 0.0), True),
        ("texts", (0.1, 0.0), False),
        ("texts", (0.0, 0.1), False),
        ("triplets", (0.0, 0.0), False),
    ],
)
def test_equal_copies_teach_nothing(shallow, tables, kind, rates, is_refused):
    """Without crops and dropout, single texts are rejected for training."""
    names = "hidden_dropout_prob", "attention_probs_dropout_prob"
    rates = dict(zip(names, rates, strict=True))
    config = FinetuningConfig(shallow, "unwritten", do_train=True, **rates)
    data = DataConfig(task="embedding", train_file=tables[kind])
    refused = pytest.raises(InputError, match="`crop_rate` must be above 0")
    with refused if is_refused else contextlib.nullcontext():
        prepare(config, data, TaskConfig(crop_rate=0.0))
    model = Embedder.load(shallow, crop_rate=0.0, **rates)
    with refused if is_refused else contextlib.nullcontext():
        model.examples(tables[kind], None, "train")
