"""Scores of minimal pairs equal scores computed row by row."""

import dataclasses
import functools
import json
import os
import shutil
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.base.errors import InputError
from albert_tf.finetuning import shrink
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.tasks import minimal_pairs
from albert_tf.tasks.minimal_pairs import (
    BATCH_TOKENS,
    MinimalPairsConfig,
    Pair,
    Scorer,
    load_scorer,
    read_pairs,
)
from albert_tf.training import checkpoints

ROWS = [
    ("the cat", "cat the", "order", "words"),
    ("a b c", "c b a", "order", "words"),
    ("one two", "two two", "number", "agreement"),
]


def make_scorer(tokenizer, **changes):
    """Return a scorer whose predictions for a word depend on other words."""
    config = dataclasses.replace(
        tiny.SHALLOW,
        **{"vocab_size": tokenizer.vocab_size, "initializer_range": 0.3},
        **changes,
    )
    return Scorer(AlbertForPretraining(config), tokenizer)


@pytest.fixture(scope="module")
def scorer(tokenizer):
    """Return a scorer that uses a typical model."""
    return make_scorer(tokenizer)


@functools.cache
def one_by_one(scorer, sentence):
    """Return a sentence's score by its definition, one row at a time."""
    ids, total = scorer.row(sentence), 0.0
    for i in range(1, len(ids) - 1):
        row = ids.copy()
        row[i] = scorer.tokenizer.mask_id
        logits = scorer.model(row[None])["mlm_logits"][0, i]
        total += tf.nn.log_softmax(logits)[ids[i]].numpy()
    return total


def test_scores_equal_their_definition(scorer, monkeypatch):
    """At any batch size, scores equal their definition, in sentence order."""
    sentences = [s for row in ROWS for s in row[:2]] * 2
    expected = [one_by_one(scorer, s) for s in sentences]
    assert len({round(x, 3) for x in expected}) > 4
    for tokens in (BATCH_TOKENS, 30):
        monkeypatch.setattr(minimal_pairs, "BATCH_TOKENS", tokens)
        np.testing.assert_allclose(scorer(sentences), expected, rtol=1e-5)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 2, "num_hidden_groups": 2, "inner_group_num": 2},
        {"sharing": "ffn", "embedding_norm": "hidden", "hidden_act": "relu"},
    ],
)
def test_whatever_is_shared(tokenizer, changes):
    """Scores follow the definition even if layers share fewer weights."""
    scorer = make_scorer(tokenizer, **changes)
    sentences = ROWS[0][:2]
    expected = [one_by_one(scorer, s) for s in sentences]
    np.testing.assert_allclose(scorer(sentences), expected, rtol=1e-5)


NAMES = "good", "bad", "UID", "phenomenon"
OF_BLIMP = "sentence_good", "sentence_bad", "UID", "linguistics_term"


def write(path, rows, names=NAMES):
    """Write rows as JSON lines; return the path."""
    lines = [json.dumps(dict(zip(names, row, strict=False))) for row in rows]
    path.write_text("\n".join(lines))
    return str(path)


def score(path, output, model_dir="model"):
    """Score the pairs in a file; return the summary."""
    return minimal_pairs.minimal_pairs(
        model_dir=model_dir, input_file=str(path), output_file=str(output)
    )


@pytest.mark.parametrize("names", [NAMES, OF_BLIMP])
def test_files_are_scored(scorer, tmp_path, monkeypatch, names, capsys):
    """The accuracies in the output file follow from the sentences' scores.

    The program prints the same accuracies.
    """
    monkeypatch.setattr(minimal_pairs, "load_scorer", lambda _: scorer)
    path = write(tmp_path / "x.jsonl", ROWS, names)
    summary = score(path, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == summary
    right = [one_by_one(scorer, r[0]) > one_by_one(scorer, r[1]) for r in ROWS]
    assert summary["paradigm"]["number"]["accuracy"] == right[2]
    assert summary["paradigm"]["order"]["accuracy"] == np.mean(right[:2])
    header, *rows, mean, last = capsys.readouterr().out.splitlines()
    assert header.split() == ["paradigm", "accuracy", "from", "to", "pairs"]
    for row, (name, values) in zip(
        rows, summary["paradigm"].items(), strict=True
    ):
        shares = [f"{values[k]:.1%}" for k in ("accuracy", "low", "high")]
        assert row.split() == [name, *shares, str(values["pairs"])]
    assert mean == f"mean over paradigms: {summary['accuracy']:.1%}"
    assert last == f"Wrote {tmp_path}/out.json"


def test_a_summary_of_unequal_paradigms():
    """The overall accuracy is the mean over paradigms, not over pairs.

    Paradigms and phenomena are sorted by name. The intervals are Wilson's for
    95%, as statsmodels computes them.
    """
    rows = [("b", "y", 1), ("c", "x", 0), ("a", "x", 8)]
    pairs, correct = [], []
    for paradigm, phenomenon, right in rows:
        for i in range(10 if paradigm != "b" else 2):
            pairs.append(Pair("good", "bad", paradigm, phenomenon))
            correct.append(i < right)
    found = minimal_pairs.summarize(pairs, correct)
    assert found["accuracy"] == pytest.approx((0.8 + 0.5 + 0) / 3, abs=1e-5)
    assert found["paradigm"]["a"] == {
        "accuracy": 0.8,
        "low": 0.49016,
        "high": 0.94332,
        "pairs": 10,
    }
    assert found["paradigm"]["c"]["high"] == 0.27753
    assert list(found["paradigm"]) == ["a", "b", "c"]
    assert [x["pairs"] for x in found["phenomenon"].values()] == [20, 2]
    assert found["phenomenon"]["x"]["accuracy"] == 0.4


def test_scores_name_the_weights_that_were_read(
    pretrained, tmp_path, monkeypatch
):
    """Results name the weights that were read, even if a run saves new ones.

    The encoder and the masked-LM head have the weights in the folder.
    """
    folder = str(shutil.copytree(pretrained, tmp_path / "model"))
    prefix = checkpoints.for_inference(folder)
    expected = checkpoints.fingerprint(prefix)
    read = checkpoints.reader(prefix)

    def score_rows(scorer, rows):
        found = checkpoints.named_variables(scorer.model)
        names = [n for n in found if n.startswith(("albert/", "mlm/"))]
        assert any(name.startswith("mlm/") for name in names)
        for name in names:
            np.testing.assert_array_equal(found[name], read(name))
        checkpoints.save(folder, {"x": tf.Variable(1.0)}, 10**6)
        return np.zeros(len(rows))

    monkeypatch.setattr(Scorer, "score_rows", score_rows)
    path = write(tmp_path / "x.jsonl", ROWS)
    assert score(path, tmp_path / "out.json", folder)["model"] == expected


@pytest.mark.parametrize(
    "rows, message",
    [
        ([ROWS[0], ("a", "b", "order")], "x.jsonl:2: a line must be"),
        ([(1, "b", "order", "words")], "x.jsonl:1: a line must be"),
        ([("", "b", "order", "words")], "x.jsonl:1: a line must be"),
        ([], "must not be empty"),
    ],
)
def test_wrong_lines_are_named(rows, message, tmp_path):
    """The error names the file and the line of a malformed pair."""
    path = write(tmp_path / "x.jsonl", rows)
    with pytest.raises(InputError, match=message):
        read_pairs(MinimalPairsConfig("m", path, "out"))


@pytest.mark.parametrize("output", ["x.jsonl", "y/../x.jsonl", "y"])
def test_what_is_read_is_not_written(output, tmp_path):
    """An output path that is an input file or a folder is rejected early."""
    (tmp_path / "y").mkdir()
    path = write(tmp_path / "x.jsonl", ROWS)
    with pytest.raises(InputError, match="`output_file` must not be a folder"):
        score(path, tmp_path / output)


def test_a_place_for_scores_is_checked_early(tmp_path, monkeypatch):
    """An output file that cannot be written is found before scoring."""
    path = write(tmp_path / "x.jsonl", ROWS)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="`output_file` must be writable.*new"):
        score(path, tmp_path / "new")


def test_no_sentence_is_better_than_itself(scorer, monkeypatch):
    """Sentences with equal ids have equal scores, regardless of rounding."""
    monkeypatch.setattr(scorer, "score_rows", lambda rows: np.arange(len(rows)))
    assert scorer(["the cat", "cat", "The  cat"]).tolist() == [0, 1, 0]


def test_a_model_that_diverged_has_no_scores(tokenizer):
    """Scores that are not finite are an error, not an accuracy of zero."""
    scorer = make_scorer(tokenizer)
    for variable in scorer.model.trainable_variables:
        variable.assign(tf.fill(variable.shape, np.float32(1e30)))
    with pytest.raises(InputError, match="not finite: its weights are too"):
        scorer(["the cat"])


def test_a_note_counts_pairs_that_the_tokenizer_makes_equal(
    scorer, tmp_path, monkeypatch, capsys
):
    """A note counts the pairs that no model can get right, if there are any.

    These pairs count as wrong.
    """
    monkeypatch.setattr(minimal_pairs, "load_scorer", lambda _: scorer)
    equal = ("The cat", "the cat", "case", "words")
    for rows, notes in ((ROWS, 0), ([*ROWS, equal], 1)):
        path = write(tmp_path / "x.jsonl", rows)
        summary = score(path, tmp_path / "out.json")
        found = capsys.readouterr().out
        assert found.count("Note: 1 of 4 pairs count as wrong") == notes
    assert summary["paradigm"]["case"]["accuracy"] == 0


def test_a_model_without_the_head_is_refused(scorer, tmp_path):
    """Without a masked-LM head, an error names the model's folder."""
    encoder = checkpoints.named_variables(scorer.model.albert)
    checkpoints.save(str(tmp_path), encoder)
    scorer.model.config.save(str(tmp_path))
    with pytest.raises(InputError, match=f"masked-LM head.*{tmp_path}"):
        load_scorer(str(tmp_path))


@pytest.mark.parametrize("read", [load_scorer, shrink.load])
def test_another_layout_must_be_converted(read, tmp_path):
    """The error for a Hugging Face folder contains the command to convert it.

    The same applies to the program `shrink`.
    """
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(InputError, match="convert_checkpoint --input"):
        read(str(tmp_path))


def test_a_row_has_one_piece_or_as_many_as_fit():
    """A row is [CLS], 1 to 14 pieces and [SEP]; other numbers are rejected."""
    tokenizer = mock.Mock(encode=lambda text: [7] * len(text), cls_id=2)
    own = mock.Mock(tokenizer=tokenizer)
    tokenizer.sep_id, own.model.config.max_position_embeddings = 3, 16
    for number in (1, 14):
        row = Scorer.row(own, "x" * number)
        assert row.tolist() == [2, *[7] * number, 3]
    for text, shown in (("", "''"), ("x" * 15, f"'{'x' * 15}'")):
        wanted = f"^A sentence .* 1 to 14 .*={shown}, {len(text)} pieces"
        with pytest.raises(InputError, match=wanted):
            Scorer.row(own, text)


def test_a_sentence_that_is_too_long_is_found(scorer, tmp_path, monkeypatch):
    """The error for a sentence that is too long or empty names the line."""
    monkeypatch.setattr(minimal_pairs, "load_scorer", lambda _: scorer)
    limit = scorer.model.config.max_position_embeddings
    long = " ".join(["river"] * limit)
    for number, row in enumerate(
        ((long, "a river"), ("a river", long), (" ", "a"))
    ):
        path = tmp_path / f"{number}.jsonl"
        write(path, [ROWS[0], (*row, *ROWS[0][2:])])
        message = f"{number}.jsonl:2: a sentence must have 1 to"
        with pytest.raises(InputError, match=message) as error:
            score(path, tmp_path / "out.json")
        assert len(str(error.value)) < 300
