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
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from albert_tf.base import files, processes, program
from albert_tf.base.console import SECONDS_BETWEEN_LINES, counted
from albert_tf.base.errors import require
from albert_tf.base.packages import need
from albert_tf.base.settings import (
    OUTPUT_DIR,
    READING,
    field_of,
    setting,
    variant,
)
from albert_tf.data.builder import text_blocks, text_formats
from albert_tf.data.builder.boundaries import chinese
from albert_tf.data.builder.build_folder import (
    BuildFolder,
    corpus_hash,
    disk_errors,
)
from albert_tf.data.builder.build_settings import OUTPUT_SAME, BuildConfig
from albert_tf.data.builder.text_formats import Block
from albert_tf.data.table_sources import InMemoryTable

# {punctuation mark: its symbol}. Each mark is a separate word; marks without a
# symbol are omitted.
MARKS = (
    {mark: mark for mark in ';:,.!?¡¿—…"«»“”()'}
    | dict(
        zip("，。、！？：；（）「」『』《》", ",.,!?:;()“”“”«»", strict=True)
    )
    # Arabic, Devanagari, Armenian, Ethiopic and Burmese marks
    | dict(zip("،؛؟۔।॥՝։፣፤።፧၊။", ",;?...,.,;.?,.", strict=True))
    | dict(zip("–„[]{}", "—“()()", strict=True))
    | dict.fromkeys("‘‚‹›", "")
)
SYMBOLS = frozenset(MARKS.values())
_MARK = re.escape("".join(MARKS))
# Marks before a word, the word, and marks or apostrophes after it. The pattern
# for the word is greedy, because a lazy one takes minutes for many marks.
_PARTS = re.compile(f"([{_MARK}]*)((?:.*[^{_MARK}'’])?)([{_MARK}'’]*)")
# {pattern: replacement}, for marks that may touch the adjacent words, and for
# hyphens between spaces.
_BETWEEN = {r"\.{3,}|…": " … ", r"-{2,}|—|(?<!\S)-(?!\S)": " — "}

# {first part of a language code: {word: phonemes}}, for words that espeak-ng
# pronounces like names of letters if they are not part of a sentence.
READINGS = {"en": {"a": "ɐ", "A": "ɐ"}}

# Incremented whenever a code change makes the same settings and text produce
# different rows.
PHONEMIZER_VERSION = 2

# A process clears its cache when the cache contains more words than this.
MAX_CACHED_WORDS = 1_000_000
SHOWN = 10  # maximum number of words in the warning about missing phonemes

# A document's number combines the index of its first block and, in this many
# low bits, the index of the document in that block.
DOCUMENT_BITS = 20

# {choice of `word_boundaries`: function that cuts a sentence into words}
WORDS = {"segmented": str.split, "chinese": chinese}


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
class PhonemizeConfig(text_formats.SentencesConfig):
    """Settings for the conversion of text to phonemes."""

    input_file: str | InMemoryTable = variant(
        text_formats.CORPUS, help=f"{text_formats.TEXT_FILES}."
    )
    output_dir: str = variant(OUTPUT_DIR)
    language: str = setting(
        "",
        "Language code of espeak-ng, such as en-us, de or cmn. For an unknown "
        "code, the error message lists similar codes or, if there are none, "
        "all codes.",
        required=True,
        group=READING,
    )
    word_boundaries: str = setting(
        "segmented",
        "Rule for finding words: segmented splits at spaces, chinese uses "
        "jieba.",
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
        if self.word_boundaries == "chinese":
            need("`word_boundaries=chinese`", "jieba")
        if self.output_format == "parquet":
            need("`output_format=parquet`", "pyarrow")
        source = self.input_file
        require(
            isinstance(source, str) and not text_blocks.has_pipes(source),
            "`input_file` must name files, because a resumed run reads them "
            "again.",
            input_file=source,
        )

    def path(self, number: int) -> str:
        """Return the path of a block's output file."""
        name = f"phonemes-{number:05d}.{self.output_format}"
        return files.join(self.output_dir, name)

    def identity(self, paths: list[str]) -> dict:
        """Return every value that affects the output."""
        values = {k: v for k, v in vars(self).items() if k not in OUTPUT_SAME}
        return values | {
            "phonemizer_version": PHONEMIZER_VERSION,
            "corpus": corpus_hash(paths, processes.available()),
        }


def require_language(language: str, voices: Mapping[str, str]) -> None:
    """Raise an error unless espeak-ng supports a language.

    The error lists the languages whose code or name contains the first word of
    `language` or, if there are none, all languages.

    Args:
      language: the language code.
      voices: {code: name} of the languages that espeak-ng supports.
    """
    word = re.split(r"[\W_]", language.lower())[0]
    texts = [f"{code}: {name.strip()}" for code, name in voices.items()]
    similar = [
        text
        for text in texts
        # A suffix, such as ", latin as English", describes the script.
        if word in re.findall(r"\w+", text.lower().partition(", latin")[0])
    ]
    listed = "; ".join(similar or texts)
    hint = f"; did you mean one of {listed}?" if similar else f": {listed}."
    rule = f"`language` must be a language code of espeak-ng{hint}"
    require(language in voices, rule, language=language)


def speaker(language: str) -> Callable[[list[str]], list[str]]:
    """Return a function that converts words to phonemes.

    Raises:
      InputError: if espeak-ng is not installed or does not support the
        language.
    """
    for package in ("phonemizer", "espeakng_loader"):
        need("`language`", package, language=language)
    import espeakng_loader
    from phonemizer.backend import EspeakBackend
    from phonemizer.backend.espeak.wrapper import EspeakWrapper
    from phonemizer.separator import Separator

    EspeakWrapper.set_library(espeakng_loader.get_library_path())
    EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
    require_language(language, EspeakBackend.supported_languages())
    logging.getLogger("phonemizer").setLevel(logging.CRITICAL)
    espeak = EspeakBackend(
        language,
        # espeak-ng itself interprets marks inside words and numbers.
        punctuation_marks=re.compile("(?!)"),
        with_stress=True,
        language_switch="remove-flags",
        logger=logging.getLogger("phonemizer"),
    )
    separator = Separator(phone="", syllable="", word=" ")
    readings = READINGS.get(language.partition("-")[0], {})

    def speak(words: list[str]) -> list[str]:
        outputs = espeak.phonemize(words, separator=separator, strip=True)
        return [
            readings.get(word, " ".join(phonemes.split()))
            for word, phonemes in zip(words, outputs, strict=True)
        ]

    return speak


@functools.cache
def _cached_speaker(language: str) -> tuple[Callable, dict[str, str]]:
    """Return this process's speaker and its cache, {word: phonemes}."""
    return speaker(language), {}


def words_of(sentence: str, word_boundaries: str) -> Iterator[str]:
    """Yield the words of a sentence, in NFC, and its punctuation marks.

    The marks are converted to `SYMBOLS`, or dropped if they have no symbol.
    """
    sentence = unicodedata.normalize("NFC", sentence)
    for pattern, symbol in _BETWEEN.items():
        sentence = re.sub(pattern, symbol, sentence)
    for run in WORDS[word_boundaries](sentence):
        before, word, after = _PARTS.fullmatch(run.strip()).groups()
        marks = ([MARKS.get(mark, "") for mark in x] for x in (before, after))
        first, last = marks
        yield from filter(None, (*first, word, *last))


def _sentences(
    config: PhonemizeConfig, number: int, start: int, block: Block, counts
) -> Iterator[tuple[int, list[str]]]:
    """Yield the document number and the words of each sentence in a block.

    `number` is the index of the block, and `start` is the index of the block in
    which its first document begins.
    """
    documents = text_blocks.read_documents(block, config, counts)
    for index, lines in enumerate(documents):
        # Only the first document may begin in an earlier block.
        document = ((number if index else start) << DOCUMENT_BITS) + index
        language = config.split_sentences
        for sentence in text_formats.split_sentences(lines, language):
            yield document, [*words_of(sentence, config.word_boundaries)]


def convert_block(
    config: PhonemizeConfig, item: tuple[int, int, Block]
) -> tuple[Counter, Counter]:
    """Convert a block to phonemes, and write its rows to a file.

    Args:
      config: the settings.
      item: the index of the block, the index of the block in which its first
        document begins, and the block.

    Returns:
      The counts of sentences, words and bad items, and the count of each word
      without phonemes.
    """
    counts, silent, rows = Counter(), Counter(), []
    sentences = [*_sentences(config, *item, counts)]
    speak, cache = _cached_speaker(config.language)
    if len(cache) > MAX_CACHED_WORDS:
        cache.clear()
    unique = dict.fromkeys(word for _, words in sentences for word in words)
    new = [w for w in unique if w not in cache and w not in SYMBOLS]
    cache.update(zip(new, speak(new), strict=True))
    for document, words in sentences:
        # Symbols are not in `cache`, because they remain unchanged.
        pairs = [(word, cache.get(word, word)) for word in words]
        silent.update(word for word, phonemes in pairs if not phonemes)
        pairs = [pair for pair in pairs if pair[1]]
        words, phonemes = ([pair[i] for pair in pairs] for i in range(2))
        row = {"document": document, "words": words, "phonemes": phonemes}
        rows += [row] if pairs else []
        counts["words"] += len(pairs)
    counts["sentences"] += len(rows)
    content = FORMATS[config.output_format](rows)
    files.write_bytes(config.path(item[0]), content)
    return counts, silent


def _items(
    config: PhonemizeConfig, paths: list[str], counts: Counter
) -> Iterator[tuple[int, int, Block]]:
    """Yield a `convert_block` item for each block without an output file."""
    number = start = 0
    for path in paths:
        for block in text_blocks.blocks(path, 0, config):
            start = start if block.document is not None else number
            if files.exists(config.path(number)):
                counts["finished"] += 1
            else:
                yield number, start, block
            number += 1


def _run(config: PhonemizeConfig, paths: list[str]) -> tuple[Counter, Counter]:
    """Convert unfinished blocks; return the sums of their counts."""
    counts, silent = Counter(), Counter()
    begin = last = time.monotonic()
    number = config.num_processes or processes.available()
    convert = functools.partial(convert_block, config)
    with processes.Workers(number, __name__) as workers:
        for block_counts, silent_words in workers.map(
            convert, _items(config, paths, counts)
        ):
            text_formats.merge(counts, block_counts)
            silent.update(silent_words)
            if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                rate = counts["words"] / (last - begin)
                print(f"{counts['words']:,} words, {rate:,.0f}/s", flush=True)
    return counts, silent


@dataclasses.dataclass(frozen=True)
class Phonemized:
    """The result of a conversion, excluding files that earlier runs finished.

    Attributes:
      output_dir: the folder that contains the phoneme files.
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
    speaker(config.language)  # raises its errors before the text is read
    paths = text_blocks.input_paths(config.input_file, config.output_dir)
    text_blocks.check_files(paths, config)
    folder = config.output_dir
    with (
        disk_errors(folder),
        files.locked(folder, "output_dir"),
    ):
        BuildFolder(folder, None, config.identity(paths)).claim()
        counts, silent = _run(config, paths)
    text_formats.warn_of_bad_items(counts, config.on_bad_text)
    earlier = f"; {counted(counts['finished'], 'file')} already finished"
    print(
        f"{folder}: {counted(counts['sentences'], 'sentence')}, "
        f"{counted(counts['words'], 'word')} and marks"
        f"{earlier * bool(counts['finished'])}"
    )
    if silent:
        examples = (f"{word} ({n:,})" for word, n in silent.most_common(SHOWN))
        print(
            f"Warning: omitted {counted(silent.total(), 'word')} without "
            f"phonemes, such as {', '.join(examples)}"
        )
    sizes = counts["sentences"], counts["words"], silent.total()
    return Phonemized(folder, *sizes)


cli = phonemize.program.cli
