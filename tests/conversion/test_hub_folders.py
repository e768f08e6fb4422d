"""Folders as the hub has them, used by the libraries that load them."""

import dataclasses
import importlib.util

import numpy as np
import other_process
import pytest
import tensorflow as tf
import tiny_tasks
import vocabularies
from exporting import (
    TEXTS,
    finetuned,
    model_dir,
    packed,
    question_task,
    server_of,
    strings,
)

from albert_tf.conversion.converter import convert
from albert_tf.serving.pseudo_likelihood import load_scorer
from albert_tf.tasks.registry import find
from albert_tf.tasks.task import TaskConfig
from albert_tf.text.tokenizers import load_tokenizer

# Only looked for: they are imported in a process without TensorFlow.
for package in ("sentence_transformers", "torch", "transformers"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"could not import {package}", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.interchange]

NASTY = [
    *(t for t in (*TEXTS, *vocabularies.TEXTS) if "[CLS]" not in t),
    "  a  film\twas\n good ",
    "Élève naïve CAFÉ ﬁne Ⅷ ① ½ ㎏ x²y₃ Ａｂｃ１２３",
    "ΟΔΥΣΣΕΥΣ ΣΑΣ, Σ ΑΣ' 3Σ",
    "İstanbul ǅ ß ſ ı \u1e9b\u0323 a¨b",
    "क्षि हिन्दी ประเทศไทย שָׁלוֹם مُحَمَّد 한국어 日本語",
    "\x1cfoo\x1fbar\x7f a\u200bb\u00a0c\u3000d \ufeffe word\u00adsoft",
    "🏳️‍🌈 😀 ’‘“”…— (x) - y – z £5 €6 ...?!",
    "A" * 300,
    "Paris is [MASK].",
    "the [MASK] of the [MASK] [MASK], (x) [MASK]",
    "[MASK]",
    "no[MASK], [MASK]; “[MASK]”",
]


@pytest.fixture(scope="module")
def there():
    """Return what calls a function of `transformers_side` by its name."""
    with other_process.calling("transformers_side") as call:
        yield call


@pytest.fixture(scope="module")
def folder(pretrained_dir, tmp_path_factory):
    """Return the converted folder of a pretrained model."""
    output = str(tmp_path_factory.mktemp("hub") / "pretrained")
    convert(pretrained_dir, output, "huggingface")
    return output


def test_ids_are_ours(there, folder, pretrained_dir):
    """Nasty texts have the ids that the records were made of."""
    tokenizer = load_tokenizer(pretrained_dir)
    wanted = [tokenizer.encode_masked(text) for text in NASTY]
    for text, one, other in zip(
        NASTY, wanted, there("ids", folder, NASTY), strict=True
    ):
        assert other == one, text
    first, second = ["she reads", "the house"], ["he writes", "over, under"]
    inputs = packed(tokenizer, first, second, length=24)
    names = ("input_ids", "attention_mask", "token_type_ids")
    theirs = there("packed", folder, first, second)
    for name, rows in zip(names, inputs, strict=True):
        width = theirs[name].shape[1]
        np.testing.assert_array_equal(theirs[name], rows[:, :width])


def test_ids_of_word_pieces(there, pretrained, tmp_path):
    """A WordPiece vocabulary goes the same way."""
    folder = str(tmp_path / "out")
    convert(pretrained, folder, "huggingface")
    tokenizer = load_tokenizer(pretrained)
    texts = ["The film, WAS  great!", "não 中文 x", *tiny_tasks.FILLERS[:3], ""]
    wanted = [tokenizer.encode(text) for text in texts]
    assert there("ids", folder, texts) == wanted


def test_masks_are_filled_alike(there, folder, pretrained_dir):
    """`pipeline("fill-mask")` has our pieces and probabilities."""
    text = "she walks over the [MASK]."
    server = server_of(pretrained_dir)
    ours = server.call("fill_mask", strings([text]))
    theirs = there("fill_masks", folder, text)
    np.testing.assert_allclose(
        [score for _, score in theirs], ours["probabilities"][0, 0], atol=1e-5
    )
    pieces = [piece.decode() for piece in ours["pieces"][0, 0].numpy()]
    assert [piece for piece, _ in theirs] == [
        piece.removeprefix("▁") for piece in pieces
    ]


def test_sentences_are_scored_alike(there, folder, pretrained_dir):
    """Pseudo-log-likelihoods are those of a loop over masks there."""
    scorer = load_scorer(pretrained_dir)
    texts = ["she walks", "over the house", "walks she"]
    theirs = there(
        "pseudo_log_likelihoods", folder, texts, scorer.tokenizer.mask_id
    )
    np.testing.assert_allclose(scorer(texts), theirs, rtol=1e-4)


def make(kind, folder, pretrained_dir):
    """Write a model directory of a kind of task; return its model."""

    task = find(kind)
    if kind == "multiple_choice":
        return model_dir(folder, pretrained_dir, task)
    if kind == "question_answering":
        return model_dir(folder, pretrained_dir, question_task("simple"))
    if task.has_classes:
        task = dataclasses.replace(task, labels=("O", "B-x", "I-x"))
    return model_dir(
        folder, pretrained_dir, task.with_config(TaskConfig(max_seq_length=12))
    )


CLASSES = {
    "classification": "AlbertForSequenceClassification",
    "regression": "AlbertForSequenceClassification",
    "token_classification": "AlbertForTokenClassification",
    "multiple_choice": "AlbertForMultipleChoice",
    "question_answering": "AlbertForQuestionAnswering",
}


def test_labels_go_along(there, pretrained_dir, tmp_path):
    """`pipeline("text-classification")` says our labels."""
    source, output = str(tmp_path / "model"), str(tmp_path / "out")
    names = ("bad", "fair", "好")
    finetuned(source, pretrained_dir, "classification", names)
    convert(source, output, "huggingface")
    text = "the small garden"
    ours = server_of(source).call("classify", strings([text]))
    theirs = there("labels", output, text)
    assert set(theirs) == set(names)
    np.testing.assert_allclose(
        [theirs[name] for name in names], ours["probabilities"][0], atol=1e-5
    )


@pytest.mark.parametrize("kind", CLASSES)
def test_heads_of_tasks(kind, there, pretrained_dir, tmp_path):
    """Heads load whole, and give our outputs."""
    source, output = str(tmp_path / "model"), str(tmp_path / "out")
    model = make(kind, source, pretrained_dir)
    convert(source, output, "huggingface")
    tokenizer = load_tokenizer(pretrained_dir)
    inputs = packed(tokenizer, TEXTS[:2] + TEXTS[3:5], length=12)
    if kind == "multiple_choice":
        inputs = [x.reshape(2, 2, 12) for x in inputs]
    ours = model(*map(tf.constant, inputs))
    if kind != "question_answering":
        ours = {"logits": ours}
    names = ("input_ids", "input_mask", "segment_ids")
    batch = dict(zip(names, inputs, strict=True))
    theirs, loading = there("logits", output, CLASSES[kind], batch)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    for name, values in ours.items():
        real = np.ones(values.shape, bool)
        if kind == "question_answering":
            real = inputs[1] > 0  # padding is no answer here
        np.testing.assert_allclose(
            theirs[name][real], values.numpy()[real], atol=2e-5
        )


@pytest.mark.parametrize("tuned", [False, True])
def test_sentence_transformers_has_our_vectors(
    tuned, there, pretrained_dir, tmp_path
):
    """Its vectors are those that are served, of length one."""
    source, output = pretrained_dir, str(tmp_path / "out")
    if tuned:
        source = str(tmp_path / "model")
        make("embedding", source, pretrained_dir)
    convert(source, output, "sentence_transformers")
    texts = [text for text in TEXTS if "[CLS]" not in text]
    server = server_of(source)
    served = server.call("embed", strings(texts))
    ours = served["embedding" if tuned else "mean"].numpy()
    ours /= np.linalg.norm(ours, axis=1, keepdims=True)
    theirs = there("sentence_vectors", output, texts)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
