"""Text is converted to phonemes; a substitute replaces phonemizer."""

import itertools
import json
import re
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from tiny_corpus import change_times, contents, interrupted

import albert_tf
from albert_tf import InputError
from albert_tf.data import phonemize
from albert_tf.data.builder import text_blocks

FAKE = {
    "espeakng_loader.py": "get_library_path = get_data_path = str",
    "phonemizer/__init__.py": "",
    "phonemizer/separator.py": "Separator = dict",
    "phonemizer/backend/__init__.py": """
from pathlib import Path

class EspeakBackend:
    def __init__(self, language, with_stress, **kwargs):
        self.stress = "ˈ" * with_stress

    @staticmethod
    def supported_languages():
        return {
            "de": "German",
            "en-us": "English (America)",
            "cmn": "Chinese (Mandarin, latin as English)",
        }

    def phonemize(self, text, separator, strip):
        with open(Path(__file__).with_name("words"), "a") as file:
            file.write("".join(f"{word}\\n" for word in text))
        mark = self.stress
        said = ["  ".join(w) if w.isdigit() else mark + w for w in text]
        return ["" if "*" in phonemes else phonemes for phonemes in said]
""",
    "phonemizer/backend/espeak/__init__.py": "",
    "phonemizer/backend/espeak/wrapper.py": """
class EspeakWrapper:
    set_library = set_data_path = staticmethod(lambda path: None)
""",
}
TEXT = """Ein Haus, ein *** Wort.
Noch 12 Worte!

*** ***
Ein Ende
"""


@pytest.fixture
def spoken(tmp_path, monkeypatch) -> Path:
    """Replace phonemizer with a substitute; return its log of words."""
    folder = tmp_path / "site"
    for name, code in FAKE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code)

    def loaded() -> list[str]:
        return [n for n in sys.modules if n.startswith(("phonem", "espeak"))]

    for name in loaded():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)
    phonemize._cached_speaker.cache_clear()
    yield folder / "phonemizer" / "backend" / "words"
    phonemize._cached_speaker.cache_clear()
    for name in loaded():
        del sys.modules[name]


@pytest.fixture
def convert(tmp_path, spoken):
    """Return a function that converts a text and returns the output folder.

    In the text, surrogates represent bytes that are not UTF-8.
    """

    def run(text: str = TEXT, folder: str = "out", **settings) -> Path:
        content = text.encode("utf-8", "surrogateescape")
        (tmp_path / "text.txt").write_bytes(content)
        values = {"language": "de", "num_processes": 1} | settings
        albert_tf.phonemize(
            input_file=str(tmp_path / "text.txt"),
            output_dir=str(tmp_path / folder),
            **values,
        )
        return tmp_path / folder

    return run


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut the text into many blocks."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 16)
    monkeypatch.setattr(text_blocks, "LINE_BYTES", 16)


def rows_in(folder: Path) -> list[dict]:
    """Return the rows of all files in a folder."""
    paths = sorted(folder.glob("phonemes-*.jsonl"))
    lines = [line for p in paths for line in p.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def grouped(rows: list[dict]) -> list[list[list[str]]]:
    """Return the words of each sentence, grouped by document."""
    groups = itertools.groupby(rows, lambda row: row["document"])
    return [[row["words"] for row in group] for _, group in groups]


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("„Ja“, sagt er...", ["“", "Ja", "“", ",", "sagt", "er", "…"]),
        ("don't 3.14 (U.S.)", ["don't", "3.14", "(", "U.S", ".", ")"]),
        ("so--or - well-known", ["so", "—", "or", "—", "well-known"]),
        ("‘it’s’ the dogs' ¿qué?", "it’s the dogs ¿ qué ?".split()),
        ("U\u0308ber, Noe\u0308l", ["Über", ",", "Noël"]),
        ("\u0930\u093e\u092e\u0964", ["\u0930\u093e\u092e", "."]),
        ("\u0623\u0628\u060c 7\u061f", ["\u0623\u0628", ",", "7", "?"]),
    ],
)
def test_marks_are_words_of_their_own(sentence, words):
    """Punctuation marks are separate words unless they are inside a word."""
    assert [*phonemize.words_of(sentence, "segmented")] == words


def test_many_marks_in_a_word_take_little_time():
    """The time for a word is proportional to its length, not to the square."""
    word, start = f"a{'!' * 20_000}a", time.process_time()
    assert [*phonemize.words_of(word, "segmented")] == [word]
    assert time.process_time() - start < 1


def test_packages_and_pipes_are_checked_first(monkeypatch):
    """A setting whose package is missing, or a pipe as input, raises an error.

    The error is raised when the config is created.
    """

    def config(**settings):
        values = {"input_file": "x", "output_dir": "y", "language": "de"}
        return phonemize.PhonemizeConfig(**values | settings)

    for package in ("jieba", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    assert config().path(7) == "y/phonemes-00007.jsonl"
    for name, value in (
        ("word_boundaries", "chinese"),
        ("output_format", "parquet"),
    ):
        with pytest.raises(InputError, match=f"`{name}={value}` needs"):
            config(**{name: value})
    for source in ("-", {"text": ["Eins.", "Zwei."]}):
        with pytest.raises(InputError, match="must name files"):
            config(input_file=source)


def test_chinese_marks_are_folded(monkeypatch):
    """Chinese words come from a segmenter; Chinese marks become ASCII marks."""
    cut = "我们|走|，|好| |。".split("|")
    monkeypatch.setitem(phonemize.WORDS, "chinese", lambda line: cut)
    words = [*phonemize.words_of("", "chinese")]
    assert words == ["我们", "走", ",", "好", "."]


def test_a_row_is_a_sentence_with_its_document(convert):
    """A row has the phonemes of each word; words without any are omitted."""
    assert rows_in(convert()) == [
        {
            "document": 0,
            "words": ["Ein", "Haus", ",", "ein", "Wort", "."],
            "phonemes": ["ˈEin", "ˈHaus", ",", "ˈein", "ˈWort", "."],
        },
        {
            "document": 0,
            "words": ["Noch", "12", "Worte", "!"],
            "phonemes": ["ˈNoch", "1 2", "ˈWorte", "!"],
        },
        {
            "document": 1,
            "words": ["Ein", "Ende"],
            "phonemes": ["ˈEin", "ˈEnde"],
        },
    ]


def test_files_may_be_a_list(tmp_path, spoken):
    """In Python, `input_file` may be a list of paths; each is read once."""
    paths = [tmp_path / "b.txt", tmp_path / "a.txt"]
    paths[0].write_text("Zwei. Drei.\nVier.\n")
    paths[1].write_text("Eins.\n")
    albert_tf.phonemize(
        input_file=[*paths, str(paths[0])],
        output_dir=tmp_path / "out",
        language="de",
        num_processes=1,
    )
    found = [row["words"][0] for row in rows_in(tmp_path / "out")]
    assert sorted(found) == ["Eins", "Vier", "Zwei"]


def test_silent_words_are_counted(convert, capsys):
    """A warning states the number of words without phonemes, and examples."""
    convert("** a *** ***\n")
    printed = capsys.readouterr().out
    assert "1 sentence, 1 word and" in printed
    assert "3 words without phonemes" in printed
    assert "*** (2), ** (1)" in printed
    convert(" ".join("*" * n for n in range(1, 13)), "other")
    assert capsys.readouterr().out.count("* (1)") == 10
    convert("a\n", "third")
    assert "Warning" not in capsys.readouterr().out


def test_parquet_has_the_same_rows(convert):
    """JSON lines and Parquet files contain the same rows."""
    folder = convert(folder="parquet", output_format="parquet")
    (path,) = folder.glob("phonemes-*")
    assert pyarrow.parquet.read_table(path).to_pylist() == rows_in(convert())


def test_a_word_is_read_once(convert, spoken, small_blocks):
    """A process caches words, so it converts a repeated word only once."""
    convert("so so la\n\n" + "la so ti\n" * 3)
    assert sorted(spoken.read_text().split()) == ["la", "so", "ti"]


def test_an_article_is_not_a_letter(convert):
    """In English text, the word `a` is pronounced as an article."""
    assert rows_in(convert("a\n", "en", language="en-us"))[0]["phonemes"] == [
        "ɐ"
    ]
    assert rows_in(convert("a\n"))[0]["phonemes"] == ["ˈa"]


def test_few_words_are_remembered(convert, monkeypatch):
    """Rows do not depend on how many words a process caches."""
    whole = rows_in(convert())
    monkeypatch.setattr(phonemize, "MAX_CACHED_WORDS", 1)
    assert rows_in(convert(folder="forgetful")) == whole


LONG = TEXT + "\n" + "Viele Worte hier\n" * 4 + "\nEin Ende\n\nNoch eins\n"


def test_documents_do_not_depend_on_blocks(convert, small_blocks, monkeypatch):
    """A document in several blocks has one number."""
    cut = rows_in(folder := convert(LONG))
    names = sorted(path.name for path in folder.glob("phonemes-*.jsonl"))
    assert names[0] == "phonemes-00000.jsonl" and len(names) > 5
    # A number consists of the index of the block in which the document begins
    # and of the document's position in this block.
    numbers = [divmod(row["document"], 1 << 20) for row in cut]
    blocks, positions = zip(*numbers, strict=True)
    assert max(blocks) < len(names) and {*positions} <= {0, 1}
    monkeypatch.undo()
    assert grouped(cut) == grouped(rows_in(convert(LONG, "whole")))


def test_output_does_not_depend_on_processes(convert, small_blocks):
    """Two processes write the same files as one process."""
    one, two = convert(LONG), convert(LONG, "two", num_processes=2)
    assert contents(one) == contents(two)


def test_a_run_resumes(convert, small_blocks, spoken, capsys, monkeypatch):
    """A repeated run keeps finished files and writes a missing file.

    The bytes of the missing file are the same as before.
    """
    folder = convert(LONG)
    assert "before" not in (printed := capsys.readouterr().out)
    assert "words, " not in printed
    before = contents(folder)
    lost = sorted(folder.glob("phonemes-*.jsonl"))[2]
    finished = change_times(folder.glob("*0.jsonl"))
    lost.unlink()
    spoken.unlink()
    phonemize._cached_speaker.cache_clear()
    monkeypatch.setattr(phonemize, "SECONDS_BETWEEN_LINES", 0)
    assert convert(LONG) == folder
    printed = capsys.readouterr().out
    number = len([*folder.glob("phonemes-*.jsonl")]) - 1
    assert f"marks; {number} files already finished\n" in printed
    assert re.search(r"^\d+ words, [\d,]+/s$", printed, re.MULTILINE)
    assert contents(folder) == before
    assert change_times(finished) == finished
    assert {*spoken.read_text().split()} < {*LONG.split()}


def test_an_interrupted_run_leaves_whole_files(convert, small_blocks, tmp_path):
    """An interruption while a file is written leaves no part of the file."""
    whole = contents(convert(LONG, "whole"))
    with interrupted(phonemize.files, "rename", 4):
        convert(LONG)
    left = contents(tmp_path / "out")
    assert 1 < len(left) < len(whole)
    assert left.items() < whole.items()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"language": "en-us"}, "language: de then, en-us now"),
        ({"output_format": "parquet"}, "output_format: jsonl then"),
        ({"text": "Ein anderer Text\n"}, "corpus: "),
    ],
)
def test_other_settings_need_another_folder(convert, change, message):
    """In an earlier run's folder, different settings or text raise an error."""
    convert()
    with pytest.raises(InputError, match=message):
        convert(**change)


@pytest.mark.parametrize(
    ("on_bad_text", "words"),
    [("skip", []), ("replace", ["da \ufffd"])],
)
def test_a_run_goes_on_after_a_bad_line(
    convert, small_blocks, on_bad_text, words, tmp_path
):
    """After an error for a bad line, a run that skips the line resumes.

    A run that fails at bad lines does not resume a run that skipped them.
    """
    text = "Ein Haus ist hier\n\n" * 3 + "Das\nda \udcff\nan\n\nEnde\n"
    with pytest.raises(InputError, match="on_bad_text=replace or skip.*line 8"):
        convert(text)
    finished = change_times((tmp_path / "out").glob("phonemes-*"))
    assert finished
    folder = convert(text, on_bad_text=on_bad_text)
    assert change_times(finished) == finished
    found = [" ".join(row["words"]) for row in rows_in(folder)]
    assert found == ["Ein Haus ist hier"] * 3 + ["Das", *words, "an", "Ende"]
    with pytest.raises(InputError, match=f"bad_text: {on_bad_text} then, fail"):
        convert(text)


def test_rows_of_another_version_are_not_mixed(convert, monkeypatch):
    """A run that another version began is not resumed."""
    convert()
    monkeypatch.setattr(phonemize, "PHONEMIZER_VERSION", 1)
    with pytest.raises(InputError, match="phonemizer_version: 2 then, 1 now"):
        convert()


@pytest.mark.parametrize(
    ("language", "message"),
    [
        ("en", "did you mean one of en-us: English (America)? Received"),
        ("english", "did you mean one of en-us: English (America)? Received"),
        ("DE_de", "did you mean one of de: German? Received"),
        ("zh", "espeak-ng: de: German; en-us: English (America); cmn: "),
        ("gl", "espeak-ng: de: German; en-us: English (America); cmn: "),
    ],
)
def test_an_unknown_language_is_an_error(convert, language, message):
    """The error for an unknown language lists similar languages.

    A language is similar if its code or name contains the first word of the
    unknown code, except after ", latin". If no language is similar, all are
    listed.
    """
    with pytest.raises(InputError, match=re.escape(message)):
        convert(language=language)


@pytest.mark.parametrize("package", ["phonemizer", "espeakng_loader"])
def test_a_missing_package_is_named(spoken, monkeypatch, package):
    """The error names the missing package and the setting that needs it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"`language` needs {package}.*=de$"):
        phonemize.speaker("de")


@pytest.mark.interchange
def test_espeak_reads_words(tmp_path):
    """With espeak-ng, phonemes have stress marks; numbers are spelled out.

    Phonemes contain no language-switch marks, and do not depend on the order of
    the words.
    """
    pytest.importorskip("phonemizer")
    speak = phonemize.speaker("de")
    words = "Straße 1990 Meeting ***".split()
    straight = speak(words)
    assert straight[0] == "ʃtɾˈɑːsə"
    assert " " in straight[1] and not set("()") & set("".join(straight))
    assert speak(words[::-1])[::-1] == straight
