"""Vocabularies have ALBERT's symbols, and training is repeatable."""

import errno
import gzip
import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import programs
import pytest

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data import train_tokenizer as vocabulary
from albert_tf.data.train_tokenizer import (
    TrainTokenizerConfig,
    cut,
    make_vocabulary,
    text_blocks,
    warnings,
)
from albert_tf.text.tokenizers import load_saved_tokenizer

SYMBOLS = '<pad> <unk> [CLS] [SEP] [MASK] ( ) " - . – £ €'.split()
ANIMALS = ("Cat", "dögs", "fox", "hare", "ﬁsh", "Owl", "mole", "newt")
VERBS = ("sees", "hears", "chases", "finds", "avoids", "follows")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return the folder of two text files, one of them compressed."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [
        f"The {a} {verb} the {b} in {1900 + i}, they say.\n"
        for i, a in enumerate(ANIMALS)
        for b in ANIMALS
        for verb in VERBS
    ]
    half = len(lines) // 2
    (folder / "a.txt").write_text("".join(lines[:half]), "utf-8")
    with gzip.open(folder / "b.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines[half:]))
    return str(folder)


def config(corpus, output_dir, **settings):
    """Return settings for a small vocabulary."""
    settings = {"vocab_size": 55, "input_file": f"{corpus}/*"} | settings
    return TrainTokenizerConfig(output_dir=str(output_dir), **settings)


def test_vocabulary(corpus, tmp_path, capfd):
    """A vocabulary begins with ALBERT's symbols and covers the corpus."""
    counts = make_vocabulary(config(corpus, tmp_path))
    assert counts["sentences"] == len(ANIMALS) ** 2 * len(VERBS)
    tokenizer = load_saved_tokenizer(str(tmp_path))
    assert tokenizer.vocab_size == 55
    assert tokenizer.pieces(range(len(SYMBOLS))) == SYMBOLS
    assert tokenizer.not_words.tolist() == [0, 1, 2, 3, 4]
    ids = tokenizer.encode("The Dogs chases the fish in 1903, they say.")
    assert tokenizer.unk_id not in ids and len(ids) < 30
    # The text is normalized first, so no piece has capitals or accents.
    text = "".join(tokenizer.pieces(range(len(SYMBOLS), 55)))
    assert text == text.lower() and not set(text) & set("öﬁ\u0308")
    listed = (tmp_path / "spiece.vocab").read_text("utf-8").splitlines()
    pieces = [line.split("\t")[0] for line in listed]
    assert pieces == tokenizer.pieces(range(55))
    # The trainer's log is hidden.
    assert capfd.readouterr() == ("", "")


def test_texts_in_memory_have_the_lines_of_a_file(tmp_path):
    """Lone surrogates, line ends and blanks are those of JSON lines."""
    text = "KISA a\ud83d\rb\r\n\u200b\n c\u200e\n"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}))
    found = []
    for source in ({"text": [text]}, str(tmp_path / "a.jsonl")):
        sentences = vocabulary.Sentences(config("", "", input_file=source))
        found.append([*sentences])
        assert sentences.error is None
        assert sentences.letters.counts()["letters"] == 7
    assert found == [["kisa a\ufffd", "b", "c"]] * 2


def test_same_settings_give_the_same_vocabulary(corpus, tmp_path, monkeypatch):
    """Training twice with the same sample size gives equal vocabularies.

    A different sample size gives a different vocabulary.
    """
    prints = Counter()
    for i, size in enumerate((101, 101, 384)):
        folder = tmp_path / str(i)
        monkeypatch.setattr(vocabulary, "MAX_SENTENCES", size)
        make_vocabulary(config(corpus, folder))
        prints[load_saved_tokenizer(str(folder)).fingerprint()] += 1
    assert sorted(prints.values()) == [1, 2]


def test_too_large_vocabulary(corpus, tmp_path):
    """If a vocabulary is too large, the error states the maximum size."""
    output = tmp_path / "out"
    with pytest.raises(InputError) as error:
        make_vocabulary(config(corpus, output, vocab_size=5000))
    with pytest.raises(InputError, match="must be at most"):
        config(corpus, output, vocab_size=2**31)
    assert not output.exists()
    size = int(re.search(r"possible value is (\d+)", str(error.value))[1])
    make_vocabulary(config(corpus, output, vocab_size=size))
    assert load_saved_tokenizer(str(output)).vocab_size == size


def test_too_small_vocabulary(corpus, tmp_path):
    """If a vocabulary is too small, the error states the minimum size."""
    with pytest.raises(InputError, match="at least [3-9][0-9]"):
        make_vocabulary(config(corpus, tmp_path, vocab_size=20))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        ("\n \n\u0301\n".encode(), "0 sentences, 0 longer"),
        (b"x" * 5000, "1 sentences, 1 longer"),
        (b"fine\nbad \xff\n", "input.txt, line 2"),
    ],
)
def test_bad_input(content, message, tmp_path):
    """Unusable text raises a one-line error that names the file."""
    path = tmp_path / "input.txt"
    path.write_bytes(content)
    output = tmp_path / "out"
    with pytest.raises(InputError, match=message) as error:
        make_vocabulary(config("", output, input_file=str(path)))
    assert "\n" not in str(error.value) and not output.exists()


@pytest.mark.parametrize(
    "name", "ckpt-7.index metadata.json model.safetensors tf_model.h5".split()
)
def test_a_models_folder_is_refused(tmp_path, name):
    """An output folder that contains a model or records is rejected early."""
    (tmp_path / name).touch()
    with pytest.raises(InputError, match="contain a model.*=.*test_a_models"):
        make_vocabulary(config("nowhere", tmp_path))


@pytest.mark.parametrize(
    "name", ["spiece.model", "vocab.txt", "tokenizer.json"]
)
def test_a_foreign_tokenizer_is_refused(tmp_path, name):
    """An output folder with another library's tokenizer is rejected early."""
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=f"another tokenizer.*with {name}"):
        make_vocabulary(config("nowhere", tmp_path))


def test_mistakes_that_need_no_text(tmp_path):
    """Low character coverage, or a file as the output folder, is rejected."""
    with pytest.raises(InputError, match="must be at least 0.98"):
        config("nowhere", tmp_path, character_coverage=0.97)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="must not be a file"):
        make_vocabulary(config("nowhere", tmp_path / "file"))


@pytest.mark.slow
def test_bad_line_after_good_ones(corpus, tmp_path):
    """A line that is not UTF-8 stops training, even after much good text.

    With `skip`, the other lines are used.
    """
    path = tmp_path / "input.txt"
    # Text is read in blocks of 1 MiB; this text is longer.
    good = Path(corpus, "a.txt").read_bytes() * 400
    path.write_bytes(good + b"bad \xff\n")
    lines = 400 * 192
    output = tmp_path / "out"
    with pytest.raises(InputError, match=f"line {lines + 1}"):
        make_vocabulary(config("", output, input_file=str(path)))
    assert not output.exists()
    settings = config("", output, input_file=str(path), on_bad_text="skip")
    assert make_vocabulary(settings)["sentences"] == lines


def made_of(tmp_path, name, text, **settings):
    """Return the model trained on a text, and the counts."""
    path = tmp_path / f"{name}.txt"
    path.write_text(text, "utf-8")
    settings |= {"input_file": str(path)}
    counts = make_vocabulary(config("", tmp_path / name, **settings))
    return (tmp_path / name / "spiece.model").read_bytes(), counts


@pytest.mark.slow
def test_long_lines_are_cut(corpus, tmp_path):
    """Long lines are cut without losing text.

    Words and pieces are the same as for a text with short lines.
    """
    lines = Path(corpus, "a.txt").read_text("utf-8")
    short, _ = made_of(tmp_path, "short", lines)
    for size in (192, 40):
        parts = lines.splitlines()
        text = "\n".join(
            " ".join(parts[i : i + size]) for i in range(0, 192, size)
        )
        long, counts = made_of(tmp_path, f"{size}", text)
        assert max(map(len, text.encode().split(b"\n"))) < 4192 or size == 192
        assert counts["long"] == counts["long_bytes"] == 0
        assert counts["sentences"] == len(text.splitlines())
        pieces = [
            {*load_saved_tokenizer(str(tmp_path / name)).pieces(range(55))}
            for name in ("short", str(size))
        ]
        assert pieces[0] == pieces[1]


@pytest.mark.parametrize(
    "line",
    ["人人生而自由,在尊严和权利上一律平等。" * 200, "ab, " * 3000, "ก" * 5000],
)
def test_text_without_spaces_is_cut(line):
    """A line without spaces is cut into parts that the trainer can read.

    Apart from spaces, the joined parts equal the line.
    """
    pieces = list(cut(line.strip()))
    assert len(pieces) > 1
    assert "".join(pieces).replace(" ", "") == line.replace(" ", "")
    assert all(len(piece.encode()) <= 4192 for piece in pieces)


def test_places_to_cut_by_hand():
    """A long line is cut before a word, and a long word after punctuation."""
    word = "a" * 4000
    assert list(cut(f"{word},{word}.b")) == [f"{word},", f"{word}.b"]
    assert list(cut(f"{word},b;{word}")) == [f"{word},b;", word]
    assert list(cut("ä" * 3000)) == ["ä" * 3000]  # cannot be cut
    half = "a" * 2095
    assert list(cut(f"{half} {half}")) == [f"{half} {half}"]
    assert list(cut(f"{half} {half}a b")) == [half, f"{half}a b"]
    most = "a" * 4191
    assert list(cut(f"b {most} b {most}")) == ["b", most, "b", most]


def test_longest_sentences_by_hand(tmp_path):
    """A word of 4192 bytes is read, and a longer one is counted as skipped."""
    text = "a b\n" + "x" * 4192 + "\n\n" + "x" * 4193 + " y\n"
    (tmp_path / "x.txt").write_text(text)
    source = str(tmp_path / "x.txt")
    sentences = vocabulary.Sentences(config("", "out", input_file=source))
    parts = ["a b", "x" * 4192, "x" * 4193, "y"]
    assert list(sentences) == parts and sentences.error is None
    assert sentences.counts == Counter(
        sentences=3, long=1, long_bytes=4193, bytes=3 + 4192 + 4193 + 1
    )


def test_warnings_at_their_limits():
    """Skipping 1% of the bytes or keeping accents causes no warning."""
    few = Counter(bytes=1000, long_bytes=10, letters=100, marked=50)
    assert not list(warnings(few))
    (warning,) = warnings(few + Counter(long_bytes=1))
    assert warning.startswith("1% of the bytes were skipped")
    (warning,) = warnings(few + Counter(accents_dropped=1))
    assert warning.startswith("50.0% of the letters lose an accent")


def test_turkish_capitals_in_lower_case(corpus, tmp_path):
    """If lower-cased text contains more than a few ı, a warning names I."""
    text = Path(corpus, "a.txt").read_text("utf-8")
    turkish = text + "KISA kısa ışık.\n" * 100

    def warned(name, text, **settings):
        _, counts = made_of(tmp_path, name, text, **settings)
        return "--nodo_lower_case" in "".join(warnings(counts))

    assert warned("lower", turkish)
    assert not warned("cased", turkish, do_lower_case=False)
    assert not warned("english", text)


def test_what_is_left_out_is_told_in_bytes(corpus, tmp_path):
    """Only overlong words are skipped; a warning states their share.

    The share is the percentage of the bytes.
    """
    lines = Path(corpus, "a.txt").read_text("utf-8")
    _, counts = made_of(tmp_path, "x", f"{lines}A cat {'x' * 90_000} sees.\n")
    assert counts["long"] == 1 and counts["long_bytes"] == 90_000
    (warning,) = [
        warning for warning in warnings(counts) if "skipped" in warning
    ]
    share = 90_000 / (90_000 + len(lines.encode()))
    assert abs(int(re.search(r"(\d+)%", warning)[1]) - 100 * share) < 2
    assert "skipped" not in "".join(
        warnings(counts - Counter(long_bytes=89_900))
    )


def test_paragraphs_are_split(corpus, tmp_path):
    """With `split_sentences`, lines with several sentences are split."""
    pytest.importorskip("sentencex")
    lines = Path(corpus, "a.txt").read_text("utf-8").splitlines()
    text = "\n".join(" ".join(lines[i : i + 6]) for i in range(0, 192, 6))
    single, _ = made_of(tmp_path, "single", "\n".join(lines))
    split, counts = made_of(tmp_path, "split", text, split_sentences="en")
    assert counts["sentences"] == len(lines) and split == single
    with pytest.raises(InputError, match="`split_sentences`"):
        config("", tmp_path / "no", split_sentences="xx")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_text_that_breaks_off(corpus, tmp_path, monkeypatch, error):
    """After an error or Ctrl-C while reading, no vocabulary is written."""
    read = text_blocks.read_documents

    def broken(*arguments):
        yield from read(*arguments)
        raise error("of a source")

    monkeypatch.setattr(text_blocks, "read_documents", broken)
    with pytest.raises(error, match="of a source"):
        make_vocabulary(config(corpus, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_command_line(corpus, tmp_path):
    """The program writes the tokenizer and prints the number of sentences."""
    printed = programs.fresh(
        *("-m", "albert_tf.train_tokenizer", f"--input_file={corpus}/*"),
        *(f"--output_dir={tmp_path}", "--vocab_size=55", "--nodo_lower_case"),
    )
    assert "55 pieces from 384 sentences, 0 skipped" in printed
    assert "longer than 4192 bytes; accents dropped\n" in printed
    tokenizer = load_saved_tokenizer(str(tmp_path))
    assert tokenizer.vocab_size == 55
    assert not tokenizer.config.do_lower_case
    assert "T" in "".join(tokenizer.pieces(range(55)))
    assert tokenizer.unk_id not in tokenizer.encode("The Cat")


def test_a_vocabulary_is_no_text(corpus, tmp_path):
    """Input patterns skip a vocabulary in a subfolder."""
    shutil.copytree(corpus, tmp_path / "data")
    output = tmp_path / "data" / "tokenizer"
    made = []
    for _ in range(2):
        make_vocabulary(
            TrainTokenizerConfig(
                input_file=f"{tmp_path}/data/*",
                output_dir=str(output),
                vocab_size=60,
            )
        )
        made.append((output / "spiece.model").read_bytes())
    assert made[0] == made[1]


def test_another_tokenizer_is_kept(corpus, tmp_path):
    """A folder's tokenizer may be overwritten only by an identical one."""
    make_vocabulary(config(corpus, tmp_path))
    before = (tmp_path / "spiece.model").read_bytes()
    make_vocabulary(config(corpus, tmp_path))
    for change in (
        {"vocab_size": 60},
        {"do_lower_case": False},
        {"input_file": f"{corpus}/a.txt"},
    ):
        with pytest.raises(InputError, match="must not contain another token"):
            make_vocabulary(config(corpus, tmp_path, **change))
    assert (tmp_path / "spiece.model").read_bytes() == before


@pytest.mark.parametrize("calls", [0, 2, 3])
def test_full_disk(corpus, tmp_path, monkeypatch, calls):
    """The error for a full disk advises repeating the command.

    The repeated command completes the files of the tokenizer.
    """
    write, made = files.write_bytes, []

    def full(*args):
        if len(made) == calls:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        made.append(write(*args))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", full)
        with pytest.raises(OSError, match="same command.*output_dir=.*out$"):
            make_vocabulary(config(corpus, tmp_path / "out"))
    names = "spiece.model tokenizer.json compiled_rules.bin spiece.vocab"
    make_vocabulary(config(corpus, tmp_path / "out"))
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found == set(names.split())
