"""Convert text to phonemes with espeak-ng, word by word.

espeak-ng and phonemizer are licensed under GPL-3. They are optional, and only
`speaker` imports them.
"""

import dataclasses
import functools
import io
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from albert_tf.base import files, processes, program
from albert_tf.base.console import SECONDS_BETWEEN_LINES
from albert_tf.base.errors import InputError, near, require
from albert_tf.base.packages import is_installed, need
from albert_tf.base.settings import (
    OUTPUT_DIR,
    READING,
    field_of,
    setting,
    variant,
)
from albert_tf.data.builder import text_blocks
from albert_tf.data.builder.boundaries import chinese
from albert_tf.data.builder.build_folder import changed, corpus_hash, listed
from albert_tf.data.builder.build_settings import BuildConfig
from albert_tf.data.builder.text_formats import (
    CORPUS,
    Block,
    SentencesConfig,
    merge,
    split_sentences,
    warn_of_bad_items,
)

# {punctuation mark: its symbol}. A mark is a word of its own; one without a
# symbol is omitted.
MARKS = (
    {mark: mark for mark in ';:,.!?¡¿—…"«»“”()'}
    | dict(
        zip("，。、！？：；（）「」『』《》", ",.,!?:;()“”“”«»", strict=True)
    )
    | dict(zip("–„[]{}", "—“()()", strict=True))
    | dict.fromkeys("‘‚‹›", "")
)
_MARK = re.escape("".join(MARKS))
# Marks before a word, the word, and marks or apostrophes after it.
_PARTS = re.compile(f"([{_MARK}]*)(.*?)([{_MARK}'’]*)")
# Marks that need no space before the next word, and single hyphens.
_BETWEEN = {r"\.{3,}|…": " … ", r"-{2,}|—|(?<!\S)-(?!\S)": " — "}

# {first part of a language code: words that espeak-ng reads as the name of a
# letter when they stand alone}
READINGS = {"en": {"a": "ɐ", "A": "ɐ"}}

# A process that knows this many words forgets them.
MOST_KNOWN = 1_000_000
# A block reports at most this many different words without phonemes.
MOST_SILENT = 1000
SHOWN = 10  # of them in the warning
SILENT = "silent: "  # the prefix of their counts

SETTINGS_FILE = "phonemes.json"
# The number of a document: that of its first block, then its place in it.
DOCUMENT_BITS = 20

# {choice of `word_boundaries`: cuts a sentence into words}
WORDS: dict[str, Callable[[str], Iterable[str]]] = {
    "segmented": str.split,
    "chinese": chinese,
}


def _jsonl(rows: list[dict]) -> bytes:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return "".join(lines).encode()


def _parquet(rows: list[dict]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    texts, file = pyarrow.list_(pyarrow.string()), io.BytesIO()
    types = {"document": pyarrow.int64(), "words": texts, "phonemes": texts}
    table = pyarrow.Table.from_pylist(rows, pyarrow.schema(types))
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()


FORMATS = {"jsonl": _jsonl, "parquet": _parquet}


@dataclasses.dataclass(frozen=True)
class PhonemizeConfig(SentencesConfig):
    """Settings of the conversion of text to phonemes."""

    input_file: str = variant(CORPUS, convert=None)
    output_dir: str = variant(OUTPUT_DIR)
    language: str = setting(
        "",
        "Language of espeak-ng, such as en-us, de or cmn; an unknown one "
        "prints them all.",
        required=True,
        group=READING,
    )
    word_boundaries: str = setting(
        "segmented",
        "What separates words: segmented splits at spaces, chinese uses jieba.",
        choices=WORDS,
        group=READING,
    )
    output_format: str = setting(
        "jsonl", "Format of the output files.", choices=FORMATS
    )
    num_processes: int | None = variant(
        field_of(BuildConfig, "num_processes"),
        help="Number of processes; does not affect the output.",
    )

    def __post_init__(self):
        super().__post_init__()
        uses = {"chinese": "jieba", "parquet": "pyarrow"}
        for name in ("word_boundaries", "output_format"):
            value = getattr(self, name)
            if value in uses:
                need(f"`{name}`", uses[value], **{name: value})
        require(
            not text_blocks.has_pipes(self.input_file),
            "`input_file` must name files, which a resumed run reads again.",
            input_file=self.input_file,
        )

    def identity(self, paths: list[str]) -> dict:
        """Return every value that the output depends on."""
        values = dataclasses.asdict(self)
        for name in ("input_file", "output_dir", "num_processes"):
            del values[name]
        return values | {"corpus": corpus_hash(paths, processes.available())}


def speaker(language: str) -> Callable[[list[str]], list[str]]:
    """Return a function from words to their phonemes.

    Raises:
      InputError: espeak-ng or the language is missing.
    """
    need("`language`", "phonemizer", language=language)
    from phonemizer.backend import EspeakBackend
    from phonemizer.backend.espeak.wrapper import EspeakWrapper
    from phonemizer.separator import Separator

    if is_installed("espeakng_loader"):
        import espeakng_loader

        EspeakWrapper.set_library(espeakng_loader.get_library_path())
        EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
    try:
        legal = EspeakBackend.supported_languages()
    except RuntimeError as error:
        raise InputError(
            "`language` needs the library of espeak-ng: pip install "
            f"'albert-tf[phonemes]'. Received: {error}"
        ) from None
    rule = f"`language` must be a language of espeak-ng{near(language, legal)}"
    rule += f" It has {', '.join(legal)}."
    require(language in legal, rule, language=language)
    logger = logging.getLogger("phonemizer")
    logger.setLevel(logging.CRITICAL)
    espeak = EspeakBackend(
        language,
        # espeak-ng reads the marks inside words and numbers itself.
        punctuation_marks=re.compile("(?!)"),
        with_stress=True,
        language_switch="remove-flags",
        logger=logger,
    )
    separator = Separator(phone="", syllable="", word=" ")
    return functools.partial(espeak.phonemize, separator=separator, strip=True)


class Reader:
    """The phonemes of words; each new word is converted once.

    Args:
      speak: returns the phonemes of words.
      readings: {word: phonemes} of words with phonemes of their own.
    """

    def __init__(
        self,
        speak: Callable[[list[str]], list[str]],
        readings: dict[str, str],
    ):
        self._speak, self._readings = speak, readings
        self._known = dict(readings)

    def __call__(self, words: Iterable[str]) -> dict[str, str]:
        """Return {word: phonemes} for these words, and maybe for others."""
        words = dict.fromkeys(words)
        if len(self._known) + len(words) > MOST_KNOWN:
            self._known = dict(self._readings)
        new = [word for word in words if word not in self._known]
        phonemes = (" ".join(said.split()) for said in self._speak(new))
        self._known.update(zip(new, phonemes, strict=True))
        return self._known


@functools.cache
def _reader(language: str) -> Reader:
    """Return the reader of a process."""
    readings = READINGS.get(language.partition("-")[0], {})
    return Reader(speaker(language), readings)


def words_of(sentence: str, word_boundaries: str) -> Iterator[str]:
    """Yield the words of a sentence, and its marks as symbols."""
    for pattern, symbol in _BETWEEN.items():
        sentence = re.sub(pattern, symbol, sentence)
    for run in WORDS[word_boundaries](sentence):
        before, word, after = _PARTS.fullmatch(run.strip()).groups()
        symbols = ([MARKS.get(mark, "") for mark in x] for x in (before, after))
        first, last = symbols
        yield from filter(None, (*first, word, *last))


def _sentences(
    config: PhonemizeConfig, number: int, start: int, block: Block, counts
) -> Iterator[tuple[int, list[str]]]:
    """Yield the document's number and the words of every sentence."""
    documents = text_blocks.read_documents(block, config, counts)
    for index, lines in enumerate(documents):
        goes_on = not index and block.document is not None
        document = start if goes_on else number
        for sentence in split_sentences(lines, config.split_sentences):
            words = [*words_of(sentence, config.word_boundaries)]
            yield (document << DOCUMENT_BITS) + index, words


def _path(config: PhonemizeConfig, number: int) -> str:
    name = f"phonemes-{number:05d}.{config.output_format}"
    return files.join(config.output_dir, name)


def convert_block(
    config: PhonemizeConfig, item: tuple[int, int, Block]
) -> Counter:
    """Write the rows of one block; return counts.

    Args:
      config: the settings.
      item: the block's number, the number of the block where its first
        document starts, and the block.
    """
    counts: Counter = Counter()
    sentences = [*_sentences(config, *item, counts)]
    read = _reader(config.language)
    symbols = {*MARKS.values()}
    known = read(w for _, words in sentences for w in words if w not in symbols)
    silent: Counter = Counter()
    rows = []
    for document, words in sentences:
        said = [(w, w if w in symbols else known[w]) for w in words]
        silent.update(word for word, phonemes in said if not phonemes)
        said = [pair for pair in said if pair[1]]
        if said:
            words, phonemes = map(list, zip(*said, strict=True))
            row = {"document": document, "words": words, "phonemes": phonemes}
            rows.append(row)
            counts["words"] += len(words)
    path = _path(config, item[0])
    files.write_bytes(path, FORMATS[config.output_format](rows))
    counts["sentences"] += len(rows)
    counts["silent"] += silent.total()
    for word, number in silent.most_common(MOST_SILENT):
        counts[SILENT + word] = number
    return counts


def _items(
    config: PhonemizeConfig, paths: list[str], done: Counter
) -> Iterator[tuple[int, int, Block]]:
    """Yield the arguments of `convert_block` for blocks without a file."""
    number = start = 0
    for path in paths:
        for block in text_blocks.blocks(path, 0, config):
            start = start if block.document is not None else number
            if files.exists(_path(config, number)):
                done["files"] += 1
            else:
                yield number, start, block
            number += 1


def _claim(config: PhonemizeConfig, identity: dict) -> None:
    """Check that the output folder belongs to this run."""
    path = files.join(config.output_dir, SETTINGS_FILE)
    if files.exists(path):
        then = files.read_json_object(path, f"`{SETTINGS_FILE}`")
        changes = changed(then, identity)
        require(
            not changes,
            "`output_dir` contains phonemes made from other settings or text; "
            "use another folder or remove it.",
            output_dir=f"{config.output_dir} ({listed(changes)})",
        )
    for name in filter(files.is_unfinished, files.names(config.output_dir)):
        files.remove(files.join(config.output_dir, name))
    files.write_json(path, identity)


def _run(config: PhonemizeConfig, paths: list[str]) -> tuple[Counter, Counter]:
    """Convert all blocks; return counts of this run and of earlier ones."""
    counts: Counter = Counter()
    done: Counter = Counter()
    begin = last = time.monotonic()
    number = config.num_processes or processes.available()
    convert = functools.partial(convert_block, config)
    with processes.Workers(number, __name__) as workers:
        for more in workers.map(convert, _items(config, paths, done)):
            merge(counts, more)
            now = time.monotonic()
            if now - last >= SECONDS_BETWEEN_LINES:
                rate, last = counts["words"] / (now - begin), now
                print(f"{counts['words']:,} words, {rate:,.0f}/s", flush=True)
    return counts, done


@dataclasses.dataclass(frozen=True)
class Phonemized:
    """The result of a conversion, without the files finished by earlier runs.

    Attributes:
      output_dir: the folder of the files.
      sentences: the number of sentences.
      words: the number of words and marks.
      silent: the number of words omitted because they have no phonemes.
    """

    output_dir: str
    sentences: int
    words: int
    silent: int


@program.command(PhonemizeConfig)
def phonemize(config: PhonemizeConfig) -> Phonemized:
    """Convert text to phonemes with espeak-ng, word by word."""
    speaker(config.language)  # before the text is read
    paths = text_blocks.input_paths(config.input_file, config.output_dir)
    text_blocks.check_files(paths, config)
    with files.locked(config.output_dir, "output_dir"):
        _claim(config, config.identity(paths))
        counts, done = _run(config, paths)
    warn_of_bad_items(counts, config.on_bad_text)
    earlier = f"; {done['files']:,} files were finished before"
    print(
        f"{config.output_dir}: {counts['sentences']:,} sentences, "
        f"{counts['words']:,} words and marks{earlier * bool(done)}"
    )
    silent = Counter(
        {k.removeprefix(SILENT): n for k, n in counts.items() if SILENT in k}
    )
    if silent:
        examples = (f"{word} ({n:,})" for word, n in silent.most_common(SHOWN))
        print(
            f"Warning: {counts['silent']:,} words without phonemes are "
            f"omitted, such as {', '.join(examples)}"
        )
    result = (counts[name] for name in ("sentences", "words", "silent"))
    return Phonemized(config.output_dir, *result)


cli = phonemize.program.cli
