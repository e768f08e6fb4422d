"""Models fine-tuned with Hugging Face's classes load with their heads."""

import dataclasses
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import released_files
import safetensors.numpy
import tensorflow as tf
from conversions import refuse, rewrite, update, weights_of
from exporting import TEXTS, finetuned, of_kind, packed
from reference import albert_numpy

from albert_tf.base.errors import InputError
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.huggingface_heads import (
    WITHOUT_POOLER,
    head_of,
    task_in,
)
from albert_tf.library.models import Classifier, MultipleChoice, PairClassifier
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.registry import KINDS, find, load_task
from albert_tf.tasks.task import TASK_FILE
from albert_tf.text.packing import INPUTS
from albert_tf.training import checkpoints

LABELS = ("bad", "fair", "good")
SEVERAL = "multi_label_classification"


def foreign(folder, **changes) -> pathlib.Path:
    """Make a folder that we wrote look like one from another program."""
    (folder / TASK_FILE).unlink()
    update(folder / "config.json", **changes)
    return folder


@pytest.fixture(scope="module")
def converted(pretrained_dir, tmp_path_factory):
    """Return a folder with a three-class classifier in two formats."""
    folder = tmp_path_factory.mktemp("classifier")
    finetuned(folder / "ours", pretrained_dir, "classification", LABELS)
    convert(str(folder / "ours"), str(folder / "hf"), "huggingface")
    return folder


@pytest.fixture
def classifier(converted, tmp_path):
    """Return a copy of the Hugging Face folder that a test may change."""
    shutil.copytree(converted, tmp_path, dirs_exist_ok=True)
    return tmp_path / "hf"


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind, pretrained_dir, tmp_path):
    """A round trip keeps the task and the weights of every kind of model.

    The exception is the pooler, which some Hugging Face classes lack. Messages
    report the loss and the number of tensors in the file.
    """
    ours, hub, back = (str(tmp_path / name) for name in ("a", "b", "c"))
    of_kind(kind, ours, pretrained_dir)
    written = "\n".join(convert(ours, hub, "huggingface"))
    with safetensors.safe_open(f"{hub}/model.safetensors", "numpy") as file:
        assert f"(huggingface, {len(file.keys())} tensors)" in written
    warning = "2 tensors of the pooler are omitted"
    lacks_pooler = KINDS[kind].hub_class in WITHOUT_POOLER
    assert (warning in written) == lacks_pooler
    lines = convert(hub, back, "model_dir")
    assert load_task(back) == load_task(ours)
    left, right = weights_of(ours), weights_of(back)
    if lacks_pooler:
        assert any("has no pooler" in line for line in lines)
        right |= {name: left[name] for name in left if "/pooler/" in name}
    released_files.assert_same(left, right)


def test_several_numbers_there_and_back(pretrained_dir, tmp_path):
    """A round trip keeps the names and the order of several numbers."""
    ours, hub, back = (str(tmp_path / name) for name in ("a", "b", "c"))
    names = ("joy", "fear", "awe")
    finetuned(ours, pretrained_dir, "regression", names)
    convert(ours, hub, "huggingface")
    values = json.loads((tmp_path / "b" / "config.json").read_text())
    assert values["id2label"] == {str(i): x for i, x in enumerate(names)}
    foreign(tmp_path / "b")
    convert(hub, back, "model_dir")
    task = load_task(back)
    assert (task.kind, task.labels) == ("regression", names)
    released_files.assert_same(weights_of(ours), weights_of(back))


@pytest.mark.parametrize(
    ("values", "kind", "labels"),
    [
        ({}, "classification", ("LABEL_0", "LABEL_1")),
        ({"num_labels": 1}, "regression", ()),
        ({"id2label": {}}, "classification", ("LABEL_0", "LABEL_1")),
        ({"id2label": {"1": 7, "0": "b"}}, "classification", ("b", "7")),
        (
            {"id2label": {str(i): f"L{i}" for i in range(11)}},
            "classification",
            tuple(f"L{i}" for i in range(11)),
        ),
        ({"problem_type": SEVERAL}, "multilabel", ("LABEL_0", "LABEL_1")),
        (
            {"problem_type": "regression", "num_labels": 3},
            "regression",
            ("LABEL_0", "LABEL_1", "LABEL_2"),
        ),
    ],
)
def test_what_a_config_says(values, kind, labels):
    """Keys that a `config.json` omits get transformers' defaults."""
    values |= {"architectures": [KINDS[kind].hub_class]}
    task = task_in(values | {"classifier_dropout_prob": 0.3}, None, 512, False)
    assert (task.kind, task.labels) == (kind, labels)
    assert task.config.classifier_dropout == 0.3


@pytest.mark.parametrize(
    ("kind", "limit", "positions", "length"),
    [
        ("classification", None, 512, 128),
        ("classification", 10**30, 512, 512),
        ("token_classification", 100, 512, 100),
        ("multiple_choice", None, 64, 64),
        ("question_answering", 512, 512, 384),
        ("question_answering", 100, 512, 100),
        ("question_answering", None, 512, 384),
        ("question_answering", 10**30, 48, 48),
    ],
)
def test_lengths(kind, limit, positions, length):
    """The tokenizer's length limit applies, up to the number of positions.

    Without a limit, the task's default applies; for question answering, this
    default is also the maximum.
    """
    values = {"architectures": [KINDS[kind].hub_class]}
    task = task_in(values, limit, positions, pairs=False)
    assert task.config.max_seq_length == length
    assert task.config.classifier_dropout == 0.1
    answers = kind == "question_answering"
    assert getattr(task, "impossible", False) is answers
    assert getattr(task, "scoring", "squad2" * answers) == "squad2" * answers


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "embedding"])
def test_only_classifiers_have_pairs(kind):
    """`pairs` changes only tasks of the sequence classification class."""
    values = {"architectures": [KINDS[kind].hub_class], "num_labels": 3}
    values |= {"problem_type": KINDS[kind].problem_type}
    single, pair = (task_in(values, None, 512, pairs) for pairs in (0, 1))
    assert (single != pair) == bool(KINDS[kind].problem_type)
    assert getattr(pair, "is_pair", False) == (single != pair)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_head_says(kind):
    """A `config.json` has the labels of tasks that predict labels or scores."""
    task = find(kind).replaced(classifier_dropout=0.2)
    if task.has_classes:
        task = dataclasses.replace(task, labels=("a", "b"))
    values = head_of(task)
    assert values.pop("architectures") == [KINDS[kind].hub_class]
    labels = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}
    score = {"id2label": {0: "score"}, "label2id": {"score": 0}}
    problem = {"problem_type": "single_label_classification"}
    rate = {"classifier_dropout_prob": 0.2}
    assert (
        values
        == {
            "classification": rate | problem | labels,
            "multilabel": rate | {"problem_type": SEVERAL} | labels,
            "regression": rate | {"problem_type": "regression"} | score,
            "token_classification": rate | labels,
            "multiple_choice": rate,
            "question_answering": rate,
            "embedding": {},
        }[kind]
    )


def test_a_beam_has_no_place_there():
    """transformers has no equivalent of the released head for SQuAD 2.0."""
    task = find("squad-2.0").replaced(answer_head="beam")
    with pytest.raises(InputError, match="answer_head=beam.*task=squad-2.0"):
        head_of(task)


def test_logits_are_those_of_the_weights(classifier):
    """Logits of padded pairs equal those that NumPy computes from the file."""
    model = PairClassifier.load(foreign(classifier))
    inputs = packed(model.tokenizer, TEXTS[:4], TEXTS[3:7])
    assert inputs[1].min() == 0 and inputs[2].max() == 1
    logits = model(dict(zip(INPUTS, inputs, strict=True)))
    table = safetensors.numpy.load_file(classifier / "model.safetensors")
    encoder = {name: v.numpy() for name, v in model.named_weights().items()}
    for i, row in enumerate(zip(*inputs, strict=True)):
        *_, pooled = albert_numpy.encode(encoder, model.config, *row)
        wanted = table["classifier.weight"] @ pooled + table["classifier.bias"]
        np.testing.assert_allclose(logits[i], wanted, atol=2e-5)


def test_pairs_are_said(classifier, pretrained_dir, tmp_path):
    """A classifier accepts single texts unless `pairs` is set."""
    update(classifier / "tokenizer_config.json", model_max_length=20)
    out = str(tmp_path / "out")
    convert(str(foreign(classifier)), out, "model_dir", pairs=True)
    task = load_task(out)
    assert task.is_pair and task.config.max_seq_length == 20
    assert not Classifier.load(classifier).task.is_pair
    with pytest.raises(InputError, match="`pairs` needs a classifier"):
        convert(pretrained_dir, str(tmp_path / "x"), "model_dir", pairs=True)
    update(classifier / "tokenizer_config.json", model_max_length="20")
    with pytest.raises(InputError, match="`model_max_length` must be a number"):
        convert(str(classifier), str(tmp_path / "x"), "model_dir")


def test_the_tokenizer_has_the_length_of_the_task(classifier):
    """The length of a task remains if transformers saves the folder again."""
    tuned = Classifier.load(classifier)
    assert tuned.max_length < tuned.config.max_position_embeddings
    assert Classifier.load(foreign(classifier)).max_length == tuned.max_length


@pytest.mark.parametrize("limit", [None, 10**30])
def test_positions_limit_a_tokenizer_without_a_limit(classifier, limit):
    """If the tokenizer has no limit, a row is as long as the model allows."""
    update(classifier / "tokenizer_config.json", model_max_length=limit)
    model = Classifier.load(foreign(classifier))
    positions = model.config.max_position_embeddings
    assert model.task.config.max_seq_length == positions


def test_choices_of_any_number(pretrained_dir, tmp_path):
    """A multiple-choice model accepts any number of choices."""
    of_kind("multiple_choice", tmp_path / "ours", pretrained_dir)
    convert(str(tmp_path / "ours"), str(tmp_path / "hf"), "huggingface")
    model = MultipleChoice.load(foreign(tmp_path / "hf"))
    choices = [["the river", "the bridge"], ["a", "garden", "at night"]]
    found = model.predict((["she walks"] * 2, ["over"] * 2, choices), verbose=0)
    assert found.shape == (2, 3) and found[0, 2] == 0
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)


def test_a_masked_language_model_gets_a_pooler(pretrained_dir, tmp_path):
    """A missing pooler gets random weights; all other weights are kept."""
    convert(pretrained_dir, str(tmp_path / "hf"), "huggingface")
    path = tmp_path / "hf" / "model.safetensors"
    table = safetensors.numpy.load_file(path)
    gone = ("sop_classifier.", "albert.pooler.")
    rewrite(
        path.parent, {n: v for n, v in table.items() if not n.startswith(gone)}
    )
    tables = []
    for name in (["AlbertForMaskedLM"], None):
        update(path.parent / "config.json", architectures=name)
        out = str(tmp_path / f"out_{len(tables)}")
        lines = convert(str(path.parent), out, "model_dir")
        assert any("has no pooler" in line for line in lines)
        tables.append(weights_of(out))
    released_files.assert_same(*tables)
    found = tables[0]
    kernel = found.pop("albert/pooler/kernel")
    spread = AlbertConfig.from_model_dir(out).initializer_range
    assert 0.5 * spread < kernel.std() < spread
    drawn = keras.initializers.TruncatedNormal(stddev=spread, seed=0)
    np.testing.assert_array_equal(kernel.T, drawn(kernel.shape))
    assert not found.pop("albert/pooler/bias").any()
    ours = weights_of(pretrained_dir)
    released_files.assert_same(found, {name: ours[name] for name in found})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("architectures", ["AlbertForX"], "`architectures` must be one of"),
        ("architectures", ["AlbertModel"], r"unexpected classifier.bias \[3\]"),
        ("architectures", {"a": 1}, "`architectures` must be a list"),
        ("num_labels", "3", "`num_labels` must be a whole number.*'3'"),
        ("id2label", {0: "a", 1: "b"}, r"\[3, 16\] instead of \[2, 16\]"),
        ("id2label", {0: "a", 2: "b", 3: "c"}, "must map the ids 0, 1"),
        ("id2label", {0: "a", 1: "a", 2: "b"}, "distinct names"),
        ("id2label", {0: "a", 1: None, 2: "b"}, "distinct names"),
        ("id2label", {0: "a"}, "one label, it must be regression"),
        ("id2label", "", "must map the ids 0, 1"),
        ("architectures", "", "`architectures` must be a list"),
        ("problem_type", "ranking", "`problem_type` must be one of"),
    ],
)
def test_configs_that_fit_no_head(key, value, message, classifier, tmp_path):
    """The error for a `config.json` that fits no head names the wrong value."""
    refuse(tmp_path, foreign(classifier, **{key: value}), message)


def test_weights_are_all_there(classifier, tmp_path):
    """A missing weight raises an error; it is not initialized at random."""
    foreign(classifier)
    table = safetensors.numpy.load_file(classifier / "model.safetensors")
    for gone in ("classifier.bias", "albert.pooler."):
        remaining = {n: v for n, v in table.items() if not n.startswith(gone)}
        rewrite(classifier, remaining)
        message = refuse(tmp_path, classifier, f"missing {gone}")
        assert "transformers would initialize missing" in message
    rewrite(classifier, {f"module.{n}": v for n, v in table.items()})
    refuse(tmp_path, classifier, "unexpected module.albert.embeddings")


@pytest.mark.parametrize("labels", ["abc", ("fair", "bad", "good")])
def test_a_description_must_be_of_the_model(classifier, labels, tmp_path):
    """A `task.json` with other labels, or in another order, is rejected."""
    update(classifier / "config.json", id2label=dict(enumerate(labels)))
    refuse(tmp_path, classifier, "`task.json` must describe the head")


def test_the_task_is_described(classifier, tmp_path):
    """The report on the conversion of a fine-tuned model states the task."""
    lines = convert(str(classifier), str(tmp_path / "out"), "model_dir")
    assert lines[1] == "model: not the sizes of a released model"
    assert (
        "task: classification (classification), 12 tokens, labels: bad, "
        in (lines[3])
    )


def test_an_optimizer_is_left_behind(pretrained_dir, tmp_path):
    """Converting a fine-tuned model drops the optimizer's slots."""
    ours = tmp_path / "ours"
    finetuned(ours, pretrained_dir, "classification", LABELS)
    weights = weights_of(ours)
    slot = {"optimizer/classifier/bias/m": weights["classifier/bias"]}
    tables = weights | slot | {"optimizer/iterations": np.int64(3)}
    checkpoints.save(str(ours), {n: tf.Variable(v) for n, v in tables.items()})
    assert Classifier.load(ours).task.labels == LABELS
    for source, out in (("ours", "huggingface"), ("huggingface", "model_dir")):
        convert(str(tmp_path / source), str(tmp_path / out), out)
    released_files.assert_same(weights_of(tmp_path / "model_dir"), weights)
