"""Records are printed in a readable form."""

import shutil
import sys
from pathlib import Path

import numpy as np
import programs
import pytest
import vocabularies
from tiny_records import serialized, write

from albert_tf.base.errors import InputError
from albert_tf.data.records import inspect_records
from albert_tf.data.records.inspect_records import InspectConfig
from albert_tf.data.records.metadata import Metadata
from albert_tf.text.tokenizers import TokenizerConfig, load_saved_tokenizer

ROOT = Path(__file__).parents[2]
PIECES = (
    """[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat ##s on mat . dog""".split()
)


def ids(text):
    """Return the ids of the space-separated pieces in a text."""
    return [PIECES.index(piece) for piece in text.split()]


def static(swapped, **changes):
    """Return a serialized masked example of 12 tokens and 3 predictions.

    The last token and the last prediction are padding.
    """
    shown = ids("[CLS] the [MASK] ##s sat [SEP] on the dog . [SEP]")
    features = dict(
        input_ids=[*shown, 0],
        input_mask=[1] * 11 + [0],
        segment_ids=[0] * 6 + [1] * 5 + [0],
        masked_lm_positions=[2, 8, 0],
        masked_lm_ids=ids("cat mat [PAD]"),
        masked_lm_weights=[1.0, 1.0, 0.0],
        next_sentence_labels=[swapped],
    )
    return serialized(**features | changes)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a vocabulary and two examples."""
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (tmp_path / "tokenizer.json").write_text('{"type": "wordpiece"}')
    write(tmp_path / "a.tfrecord", [static(0), static(1)])
    return tmp_path


def printed(capsys, path, tokenizer=None, **changes):
    """Return the printed description of a file."""
    inspect_records.inspect_file(
        str(path), InspectConfig(**changes), tokenizer or TokenizerConfig()
    )
    return capsys.readouterr().out


def test_examples_as_text(folder, capsys):
    """The text, lengths and label of an example are printed.

    For each prediction, the replacement and the original piece are shown.
    """
    text = printed(capsys, folder / "a.tfrecord")
    expected = "[CLS] the [[MASK] → cat]s sat [SEP] on the [dog → mat] . [SEP]"
    assert text.count(expected) == 2
    assert "Example 0: sentence order 0, in order; 11 tokens of 12; " in text
    assert "A 4, B 4; 2 of 3 predictions (18.2%)" in text
    assert "Example 1: sentence order 1, swapped" in text
    assert "\033" not in text


def test_labels_of_next_sentence_pairs(folder, capsys):
    """If the metadata say so, the label states whether B was replaced."""
    for chosen, label in ((True, "1, B was replaced"), (False, "1, swapped")):
        settings = {"random_next_sentence": chosen}
        Metadata(12, 3, 0, "", {"train": ()}, settings).write(str(folder))
        text = printed(capsys, folder / "a.tfrecord")
        assert f"Example 1: {'next' if chosen else 'sentence'}" in text
        assert label in text and ("B belongs to A" in text) == chosen


def test_a_word_of_a_lone_mark_and_letters(tmp_path, capsys):
    """A word-boundary marker is shown as a space, unless it was masked."""
    tokenizer = vocabularies.english()
    tokenizer.save(str(tmp_path))
    tokens = tokenizer.encode("the bed bed")
    assert tokenizer.pieces(tokens) == ["▁the", *"▁bed", *"▁bed"]
    example = {
        "input_ids": [2, *tokens, 3],
        "input_mask": [1] * 11,
        "segment_ids": [0] * 11,
        "masked_lm_positions": [6],
        "masked_lm_ids": tokens[5:6],
        "masked_lm_weights": [1.0],
        "next_sentence_labels": [0],
    }
    write(tmp_path / "a.tfrecord", [serialized(**example)])
    line = "[CLS] the bed [▁ → ▁]bed [SEP]"
    assert line in printed(capsys, tmp_path / "a.tfrecord")


def test_a_record_of_one_segment(folder, capsys):
    """A record of one segment is shown with a segment B of length 0."""
    write(folder / "a.tfrecord", [static(0, segment_ids=[0] * 12)])
    text = printed(capsys, folder / "a.tfrecord")
    assert "one segment, no order; 11 tokens of 12; A 9, B 0; " in text


def test_a_record_without_masks(folder, capsys):
    """A record without masks is shown with special tokens around its segments.

    A space precedes every segment, even one that begins inside a word.
    """
    pieces = ids("##s [PAD] cat ##s dog")
    example = {
        "token_ids": [np.array(pieces, "<u2").tobytes()],
        "word_starts": [b"\xff"],
        "segment_lengths": [3, 2],
        "next_sentence_labels": [1],
    }
    write(folder / "a.tfrecord", [serialized(**example)])
    text = printed(capsys, folder / "a.tfrecord")
    assert "8 tokens of 8; A 3, B 2; masked during training\n" in text
    assert "\n[CLS] s [PAD] cat [SEP] s dog [SEP]\n" in text


def test_colors(folder, capsys, monkeypatch):
    """On a terminal, segments, masks and special tokens differ in color."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = printed(capsys, folder / "a.tfrecord")
    assert "\033[36mthe\033[0m" in text  # in A
    assert "\033[33mthe\033[0m" in text  # in B
    assert "\033[1;31m[dog → mat]\033[0m" in text
    assert "\033[2m[SEP]\033[0m" in text


def test_without_tokenizer(folder, capsys):
    """Ids are printed if no tokenizer is next to the file or in the flags."""
    (folder / "tokenizer.json").unlink()
    text = printed(capsys, folder / "a.tfrecord", num_examples=1)
    assert "folder contains no tokenizer" in text and "Example 1" not in text
    assert "2 5 [4 → 6] 8 7 3 9 5 [12 → 10] 11 3" in text
    tokenizer = TokenizerConfig(vocab_file=str(folder / "vocab.txt"))
    named = printed(capsys, folder / "a.tfrecord", tokenizer)
    assert "the [[MASK] → cat]s sat" in named


def test_another_tokenizer(folder, capsys):
    """An id outside the vocabulary raises an error that states the id."""
    (folder / "vocab.txt").write_text("\n".join(PIECES[:12]) + "\n")
    with pytest.raises(InputError, match="vocab_size=12, id=12"):
        printed(capsys, folder / "a.tfrecord")


def test_the_vocabulary_of_the_metadata(folder, capsys):
    """If `metadata.json` has a fingerprint, the vocabulary must match it.

    The rule applies to a vocabulary from the flags and to a vocabulary beside
    the records.
    """
    tokenizer = load_saved_tokenizer(str(folder))
    path, about = folder / "a.tfrecord", (len(PIECES), tokenizer.fingerprint())
    Metadata(12, 3, *about, {"train": ()}).write(str(folder))
    assert "cat" in printed(capsys, path)
    other = folder / "vocab.txt", folder / "other.txt"
    other[1].write_text("\n".join([*PIECES[:5], *PIECES[:4:-1]]))
    chosen = TokenizerConfig(vocab_file=str(other[1]))
    with pytest.raises(InputError, match="match the records; .*a.tfrecord"):
        printed(capsys, path, chosen)
    shutil.copy(other[1], other[0])
    with pytest.raises(InputError, match="match the records; .*a.tfrecord"):
        printed(capsys, path)
    Metadata(12, 3, 0, "", {"train": ()}).write(str(folder))
    assert "dog" in printed(capsys, path)


def test_find_paths(folder):
    """Folders, patterns and files may be mixed; temporary files are skipped."""
    (folder / "b.tf_record").write_bytes(b"")
    (folder / "b.tf_record.tmp41-0a1b2c3d").write_bytes(b"half")
    a, b = (str(folder / name) for name in ("a.tfrecord", "b.tf_record"))
    assert inspect_records.find_paths(str(folder)) == [a, b]
    assert inspect_records.find_paths(f"{a},{folder}/b*") == [a, b]
    with pytest.raises(InputError, match="match at least one file"):
        inspect_records.find_paths(str(folder / "c"))
    (folder / "x, [1]").mkdir()
    c = (folder / "b.tf_record").rename(folder / "x, [1]/c.tfrecord")
    assert inspect_records.find_paths(f"{folder}/x, [1]") == [str(c)]


@pytest.mark.parametrize(
    "content, message",
    [(b"something else", "uncompressed TFRecord"), (None, "record 0")],
)
def test_files_that_are_no_records(folder, capsys, content, message):
    """The error for a file without records states the file's name."""
    path = folder / "a.tfrecord"
    if content:
        path.write_bytes(content)
    else:
        write(path, [serialized()])
    with pytest.raises(InputError, match=f"{message}|Received: .*{message}"):
        printed(capsys, path)


def test_command(folder):
    """The command accepts files without a flag; an error is a single line."""
    command = "-m", "albert_tf.inspect_records"
    good = programs.run(*command, folder / "a.tfrecord", "--num_examples=1")
    assert good.returncode == 0 and "Example 0" in good.stdout
    bad = programs.run(*command)
    errors = [x for x in bad.stderr.splitlines() if x.startswith("error:")]
    assert bad.returncode == 1 and len(errors) == 1
    assert "Traceback" not in bad.stderr
