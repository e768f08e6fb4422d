"""transformers and Sentence Transformers load the folders that we write."""

import dataclasses
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tiny_tasks
import vocabularies
from exporting import (
    TEXTS,
    finetuned,
    of_kind,
    packed,
    server_of,
    strings,
)

from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.hub_tokenizer import read_tokenizer
from albert_tf.conversion.huggingface import write_tokenizer
from albert_tf.conversion.sources import find_tokenizer
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.minimal_pairs import load_scorer
from albert_tf.tasks.registry import KINDS, load_task
from albert_tf.text.packing import INPUTS
from albert_tf.text.tokenizers import load_saved_tokenizer
from albert_tf.training import checkpoints

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
def folder(pretrained_dir, tmp_path_factory):
    """Return the path of a pretrained model in the format of Hugging Face."""
    output = str(tmp_path_factory.mktemp("hub") / "pretrained")
    convert(pretrained_dir, output, "huggingface")
    return output


def test_ids_are_ours(transformers, folder, pretrained_dir):
    """For difficult texts and pairs, transformers' ids equal ours."""
    tokenizer = load_saved_tokenizer(pretrained_dir)
    wanted = [tokenizer.encode_masked(text) for text in NASTY]
    for text, one, other in zip(
        NASTY, wanted, transformers("ids", folder, NASTY), strict=True
    ):
        assert other == one, text
    first, second = ["she reads", "the house"], ["he writes", "over, under"]
    inputs = packed(tokenizer, first, second, length=24)
    names = ("input_ids", "attention_mask", "token_type_ids")
    theirs = transformers("packed", folder, first, second)
    for name, rows in zip(names, inputs, strict=True):
        width = theirs[name].shape[1]
        np.testing.assert_array_equal(theirs[name], rows[:, :width])


def test_ids_of_word_pieces(transformers, pretrained, tmp_path):
    """With a WordPiece vocabulary, transformers' ids equal ours."""
    folder = str(tmp_path / "out")
    convert(pretrained, folder, "huggingface")
    tokenizer = load_saved_tokenizer(pretrained)
    texts = ["The film, WAS  great!", "não 中文 x", *tiny_tasks.FILLERS[:3], ""]
    wanted = [tokenizer.encode(text) for text in texts]
    assert transformers("ids", folder, texts) == wanted
    for settings in ({}, {"strip_accents": False}, {"do_lower_case": False}):
        tokenizer = vocabularies.chinese(**settings)
        write_tokenizer(folder, tokenizer, 64)
        texts = ["οΣ ΣΟ, Σ. 10Σ", "The Café, 中a文", "cafe\u0301 Un"]
        wanted = [tokenizer.encode(text) for text in texts]
        assert transformers("ids", folder, texts) == wanted, settings


def test_vocabulary_that_transformers_saves(transformers, folder, tmp_path):
    """Reading the `tokenizer.json` that transformers saves keeps all ids.

    The tokenizer that is read does not split numbers, and replaces quotation
    marks with `"`.
    """
    again = str(tmp_path / "again")
    shutil.copytree(folder, again)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        os.remove(os.path.join(again, name))
    transformers("save_tokenizer", again, str(tmp_path / "saved"))
    assert not os.path.exists(tmp_path / "saved" / "spiece.model")
    saved, _ = read_tokenizer(str(tmp_path / "saved"))
    tokenizer = find_tokenizer([folder])
    rules = {"digit_comma": "none", "replace_quotes": True}
    config = dataclasses.replace(tokenizer.config, **rules)
    tokenizer = type(tokenizer)(tokenizer.content, config)
    for text in NASTY:
        assert saved.encode_masked(text) == tokenizer.encode_masked(text), text


def test_masks_are_filled_alike(transformers, folder, pretrained_dir):
    """`pipeline("fill-mask")` returns our server's pieces and probabilities."""
    text = "she walks over the [MASK]."
    server = server_of(pretrained_dir)
    ours = server.call("fill_mask", strings([text]))
    theirs = transformers("fill_masks", folder, text)
    np.testing.assert_allclose(
        [score for _, score in theirs], ours["probabilities"][0, 0], atol=1e-5
    )
    pieces = [piece.decode() for piece in ours["pieces"][0, 0].numpy()]
    assert [piece for piece, _ in theirs] == [
        piece.removeprefix("▁") for piece in pieces
    ]


def test_sentences_are_scored_alike(transformers, folder, pretrained_dir):
    """Pseudo-log-likelihoods equal those that transformers computes."""
    scorer = load_scorer(pretrained_dir)
    texts = ["she walks", "over the house", "walks she"]
    theirs = transformers(
        "pseudo_log_likelihoods", folder, texts, scorer.tokenizer.mask_id
    )
    np.testing.assert_allclose(scorer(texts), theirs, rtol=1e-4)


def test_labels_go_along(transformers, pretrained_dir, tmp_path):
    """`pipeline("text-classification")` returns our server's probabilities."""
    source, output = str(tmp_path / "model"), str(tmp_path / "out")
    names = ("bad", "fair", "好")
    finetuned(source, pretrained_dir, "classification", names)
    convert(source, output, "huggingface")
    text = "the small garden"
    ours = server_of(source).call("classify", strings([text]))
    theirs = transformers("labels", output, text)
    assert set(theirs) == set(names)
    np.testing.assert_allclose(
        [theirs[name] for name in names], ours["probabilities"][0], atol=1e-5
    )


def batch_for(kind, tokenizer) -> dict[str, np.ndarray]:
    """Return {name: array}, the inputs for four padded texts and pairs.

    For multiple choice, the rows are two questions with two choices each.
    """
    texts = TEXTS[:2] + TEXTS[3:5]
    inputs = packed(tokenizer, texts, ["", "she walks", "", "over"], length=12)
    if kind == "multiple_choice":
        inputs = [x.reshape(2, 2, 12) for x in inputs]
    return dict(zip(INPUTS, inputs, strict=True))


def check_alike(ours, theirs, mask) -> None:
    """Assert that our outputs equal transformers', except at padding."""
    outputs = ours if isinstance(ours, dict) else {"logits": ours}
    for name, values in outputs.items():
        real = np.ones(values.shape, bool)
        if name != "logits":
            real = mask > 0  # our answers never lie in padding
        np.testing.assert_allclose(
            theirs[name][real], values.numpy()[real], atol=2e-5
        )


WITH_HEAD = [kind for kind in KINDS if KINDS[kind].hub_head]


@pytest.mark.parametrize("kind", WITH_HEAD)
def test_heads_of_tasks(kind, transformers, pretrained_dir, tmp_path):
    """transformers loads each kind of head and returns our model's outputs."""
    source, output = str(tmp_path / "model"), str(tmp_path / "out")
    model = of_kind(kind, source, pretrained_dir)
    convert(source, output, "huggingface")
    batch = batch_for(kind, load_saved_tokenizer(pretrained_dir))
    hub_class = KINDS[kind].hub_class
    theirs, loading = transformers("logits", output, hub_class, batch)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    ours = model(*map(tf.constant, batch.values()))
    check_alike(ours, theirs, batch["input_mask"])


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("kind", WITH_HEAD)
def test_heads_from_there(
    kind, pickled, transformers, pretrained_dir, tmp_path
):
    """A model converted from transformers returns transformers' outputs."""
    hub, out = str(tmp_path / "hub"), str(tmp_path / "out")
    values = dataclasses.asdict(AlbertConfig.from_model_dir(pretrained_dir))
    del values["sharing"], values["embedding_norm"]
    values |= {"hidden_act": "gelu_new", "num_hidden_groups": 2}
    number = {"regression": 1, "question_answering": 2}.get(kind, 3)
    values |= {"num_labels": number}
    if kind == "multilabel":
        values["problem_type"] = "multi_label_classification"
    transformers("make_head", hub, KINDS[kind].hub_class, values)
    if pickled:
        transformers("pickle_weights", hub)
        os.remove(f"{hub}/model.safetensors")
    convert(hub, out, "model_dir")
    task = load_task(out)
    assert task.kind == kind
    if task.has_classes:
        assert task.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    model = task.build_model(AlbertConfig.from_model_dir(out), "float32")
    checkpoints.restore_weights(model, out)
    batch = batch_for(kind, load_saved_tokenizer(pretrained_dir))
    theirs, _ = transformers("logits", hub, KINDS[kind].hub_class, batch)
    ours = model(*map(tf.constant, batch.values()))
    check_alike(ours, theirs, batch["input_mask"])


@pytest.mark.parametrize("tuned", [False, True])
def test_sentence_transformers_has_our_vectors(
    tuned, transformers, pretrained_dir, tmp_path
):
    """Sentence Transformers and an exported model return equal unit vectors."""
    source, output = pretrained_dir, str(tmp_path / "out")
    if tuned:
        source = str(tmp_path / "model")
        of_kind("embedding", source, pretrained_dir)
    convert(source, output, "sentence_transformers")
    texts = [text for text in TEXTS if "[CLS]" not in text]
    server = server_of(source)
    served = server.call("embed", strings(texts))
    ours = served["embedding" if tuned else "mean"].numpy()
    ours /= np.linalg.norm(ours, axis=1, keepdims=True)
    theirs = transformers("sentence_vectors", output, texts)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
