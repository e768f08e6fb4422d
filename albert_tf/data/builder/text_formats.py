"""Formats of text files, and settings for reading such files."""

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.packages import need
from albert_tf.base.settings import READING, Validated, setting
from albert_tf.data.builder.boundaries import RULES
from albert_tf.data.file_kinds import (
    JSONL,
    TEXT,
    BadData,
    Refused,
    Source,
    require_lines,
    with_line_feeds,
)
from albert_tf.data.table_sources import as_sources
from albert_tf.text.normalization import AUTO, REPLACEMENT, SPACES, SURROGATE

# The largest JSON document, which must be read as a whole.
RECORD_BYTES = 1 << 26

Lines = Sequence[str | None]  # None marks a line to skip


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive whole lines of one file.

    `document` is the hash of a document continued from the previous block, and
    `piece` counts the earlier blocks of that document; they are None and 0 if
    the block starts with a new document. `layout` is one of `FORMATS`;
    `skipped` counts the bad items between the previous block and this one.
    """

    path: str
    first_line: int  # counted from 1
    offset: int  # position in the decompressed file, in bytes
    data: bytes
    document: int | None = None
    piece: int = 0
    layout: str = "lines"
    skipped: Counter = dataclasses.field(default_factory=Counter)


# {name of a count of bad items: (item, description of the fault)}
BAD_ITEMS = {
    "bad_lines": ("line", "not UTF-8"),
    "bad_rows": ("row", "without readable text"),
    "bad_files": ("file", "damaged"),
}

# A key with this prefix contains the error of the first bad item.
FIRST = "first: "


def first_bad_item(counts: Counter) -> str:
    """Return the error of the first bad item, or "" if there is none."""
    errors = (key for key in counts if key.startswith(FIRST))
    return next(errors, "").removeprefix(FIRST)


def merge(counts: Counter, other: Counter) -> None:
    """Add `other` to `counts`; the first bad item of `counts` stays first."""
    if first_bad_item(counts):
        new = {k: n for k, n in other.items() if not k.startswith(FIRST)}
        other = Counter(new)
    counts.update(other)


def bad_items(counts: Mapping[str, int]) -> str:
    """Return the counts of bad items as text, or "" if there are none."""
    return ", ".join(
        f"1 {noun} was {what}" if n == 1 else f"{n:,} {noun}s were {what}"
        for name, (noun, what) in BAD_ITEMS.items()
        if (n := counts.get(name, 0))
    )


def warn_of_bad_items(counts: Counter, on_bad_text: str) -> None:
    """Print the counts of skipped or replaced items, and the first error."""
    if message := bad_items(counts):
        print(
            f"Warning: --on_bad_text={on_bad_text}: {message}. The first: "
            f"{first_bad_item(counts)}",
            flush=True,
        )


class BadItems:
    """A handler for bad items, with the behavior that `on_bad_text` selects.

    Args:
      on_bad_text: the setting.
      counts: the counts to which skipped and replaced items are added.

    Attributes:
      lines: the number of lines that were not UTF-8.
    """

    def __init__(self, on_bad_text: str, counts: Counter):
        self._choice, self._counts = on_bad_text, counts
        self.lines = 0

    def __call__(
        self, error: BadData, line: bytes = b"", name: str = "bad_rows"
    ) -> str | None:
        """Raise the error, or count the item and replace or skip it.

        Return the text that replaces the item, or None if it is skipped.

        Args:
          error: the error, which names the file and the line.
          line: the bytes of a line that is not UTF-8.
          name: the count to increment for any other item.
        """
        if isinstance(error, Refused):  # already handled by a row reader
            raise error
        name = "bad_lines" if line else name
        self.lines += bool(line)
        if self._choice == "skip" or (line and self._choice == "replace"):
            merge(self._counts, Counter({name: 1, f"{FIRST}{error}": 1}))
            skipped = self._choice == "skip"
            return None if skipped else line.decode("utf-8", "replace")
        legal = "replace or skip" if line else "skip"
        rule, _, received = str(error).partition(" Received: ")
        raise Refused(
            f"{rule.rstrip('.')}; fix it, or pass --on_bad_text={legal}. "
            f"Received: {received}"
        ) from None


@dataclasses.dataclass(frozen=True)
class Format:
    """A layout of documents in a file.

    Attributes:
      cut: a function that takes a buffer of whole lines, and returns the length
        of the complete documents in the buffer, or 0 if there are none.
      parse: a function that takes a block, its lines, the name of the text
        field and the handler for bad items, and returns documents of stripped,
        non-blank lines. A document may be empty; the caller counts and drops
        it.
      longest_line: the maximum number of bytes in a line, if lines must stay
        whole.
    """

    cut: Callable[[bytes], int]
    parse: Callable[[Block, Lines, str, BadItems], list[list[str]]]
    longest_line: int | None = None


def _after_blank_line(buffer: bytes) -> int:
    """Return the end of a buffer's last blank line, or 0 if there is none."""
    end = buffer.rfind(b"\n")
    while end >= 0:
        begin = buffer.rfind(b"\n", 0, end) + 1
        if not buffer[begin:end].decode("utf-8", "replace").strip(SPACES):
            return end + 1
        end = begin - 1
    return 0


def _after_article(buffer: bytes) -> int:
    """Return the end of a buffer's last article, or 0 if there is none."""
    end = buffer.rfind(b"\n</doc>") + 1
    ends = end or buffer.startswith(b"</doc>")
    return buffer.find(b"\n", end) + 1 if ends else 0


def _strip(lines: Lines) -> list[str]:
    stripped = (line.strip(SPACES) for line in lines if line)
    return [line for line in stripped if line]


def lines_of(text: str) -> list[str]:
    """Return the stripped, non-blank lines of a document."""
    text = SURROGATE.sub(REPLACEMENT, text)
    return _strip(with_line_feeds(text).split("\n"))


def _parse_lines(
    block: Block, lines: Lines, field: str, bad: BadItems
) -> list[list[str]]:
    stripped = [line.strip(SPACES) for line in lines if line is not None]
    documents = [
        list(group) for text, group in itertools.groupby(stripped, bool) if text
    ]
    ends_before = block.document is not None and stripped[:1] == [""]
    return [[], *documents] if ends_before else documents


def _parse_file(
    block: Block, lines: Lines, field: str, bad: BadItems
) -> list[list[str]]:
    document = _strip(lines)
    return [document] if document else []


def _parse_articles(
    block: Block, lines: Lines, field: str, bad: BadItems
) -> list[list[str]]:
    documents: list[list[str]] = [[]]
    for text in _strip(lines):
        if text == "</doc>":
            documents.append([])
        elif not ARTICLE.match(text):
            documents[-1].append(text)
    continued = block.document is not None
    return [d for i, d in enumerate(documents) if d or (continued and not i)]


def _received(record: object, field: str) -> str:
    """Describe a record in which `field` is not text, for error messages."""
    if not isinstance(record, dict):
        return "no object"
    if field in record:
        return f"{field}={json.dumps(record[field]):.60}"
    return f"fields {', '.join(record)[:200] or 'none'}"


def _text_of(line: str, field: str, location: str) -> str:
    """Return the text of a JSON record; errors contain its `location`."""
    try:
        record = files.json_value(line)
    except ValueError as error:
        raise BadData(
            "`input_file` must have a JSON object on every line. Received: "
            f"{getattr(error, 'msg', error)} in {location}"
        ) from None
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise BadData(
            "`text_field` must name a string in every JSON object. Received: "
            f"text_field={field}, with {_received(record, field)} in {location}"
        )
    return text


def encoded(text: str) -> bytes:
    """Return a text as UTF-8, with lone surrogates replaced."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return SURROGATE.sub(REPLACEMENT, text).encode()


def json_record(field: str, text: str) -> bytes:
    """Return a document as a line of JSON."""
    return encoded(json.dumps({field: text}, ensure_ascii=False) + "\n")


def _parse_jsonl(
    block: Block, lines: Lines, field: str, bad: BadItems
) -> list[list[str]]:
    documents = []
    for number, line in enumerate(lines, block.first_line):
        if line and line.strip():
            try:
                text = _text_of(line, field, f"{block.path}, line {number}")
            except BadData as error:
                bad(error)
                continue
            documents.append(lines_of(text))
    return documents


# The first line of an article in the plain-text output of WikiExtractor.
ARTICLE = re.compile('<doc id="[^"]*" .*>')

FORMATS = {
    "lines": Format(_after_blank_line, _parse_lines),
    "files": Format(lambda buffer: 0, _parse_file),
    "jsonl": Format(
        lambda buffer: buffer.rfind(b"\n") + 1, _parse_jsonl, RECORD_BYTES
    ),
    "wikiextractor": Format(_after_article, _parse_articles),
}


TEXT_FILES = (
    "Text, JSON lines, CSV or TSV files, compressed or not, Parquet files, or "
    "folders written by `save_to_disk` of `datasets`: a comma-separated list "
    "of globs"
)
CORPUS = setting(
    None,
    f"{TEXT_FILES}; - reads standard input.",
    required=True,
    convert=as_sources,
)


@dataclasses.dataclass(frozen=True)
class TextFilesConfig(Validated):
    """Settings for reading text files."""

    help_group = READING

    input_format: str | None = setting(
        None,
        "Layout of documents in a file: lines (blank lines, or empty rows of a "
        "table, separate documents), files (one document per file), jsonl (one "
        "JSON object per line) or wikiextractor (one document per <doc>).",
        means="lines for text, or wikiextractor if the text begins with <doc>; "
        "each table row and each JSON object is a document",
        choices=FORMATS,
    )
    text_field: str = setting(
        "text", "Field of a JSON object, or column of a table, to read."
    )
    on_bad_text: str = setting(
        "fail",
        "What to do with lines that are not UTF-8. skip also skips rows "
        "without text and the unreadable rest of damaged files.",
        choices=("fail", "replace", "skip"),
    )


def check_table_layout(
    what: str, input_format: str | None, source: object
) -> None:
    """Raise `InputError` if `input_format` is not legal for JSON or a table.

    Args:
      what: "JSON lines" or "tables", for error messages.
      input_format: the setting.
      source: the file or the table in memory, for error messages.
    """
    require(
        input_format in (None, "jsonl", "lines"),
        f"`input_format` must be jsonl or lines, or not set, for {what}.",
        input_format=f"{input_format} with {source}",
    )


def layout_of(source: Source, input_format: str | None, path: str) -> str:
    """Return the key in `FORMATS` for a file's layout.

    Args:
      source: the open file.
      input_format: the setting.
      path: the file, for error messages.
    """
    require_lines(source.kind, path)
    if source.kind == TEXT:
        start = source.head.decode("utf-8", "replace").lstrip("\ufeff \r\n")
        default = "wikiextractor" if ARTICLE.match(start) else "lines"
        return input_format or default
    if source.kind == JSONL:
        check_table_layout("JSON lines", input_format, path)
    return "lines" if input_format == "lines" else "jsonl"


# Two or three letters, optionally followed by a script or a region.
LANGUAGE = re.compile("[a-z]{2,3}(-[a-z0-9]+)*", re.IGNORECASE)


# All two-letter codes, and common three-letter codes with a two-letter
# equivalent.
ISO_639_1 = frozenset(
    """aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce
    ch co cr cs cu cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy
    ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu
    ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu
    lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om
    or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so
    sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz
    ve vi vo wa wo xh yi yo za zh zu""".split()
)
SHORTER = frozenset(
    """ara ben bul cat ces chi cze dan deu dut ell eng est fas fin fra fre ger
    gre heb hin hrv hun ind isl ita jpn kat kaz kor lav lit mal mar may msa
    nld nor per pol por ron rum rus slk slo slv spa sqi srp swe tam tel tha
    tur ukr urd vie zho""".split()
)


def is_language(code: str) -> bool:
    """Return whether sentencex may support a language code.

    sentencex treats unknown codes as English, without a warning.
    """
    name = code.lower().split("-")[0]
    is_listed = name in ISO_639_1 or (len(name) == 3 and name not in SHORTER)
    return is_listed and bool(LANGUAGE.fullmatch(code))


@dataclasses.dataclass(frozen=True)
class SentencesConfig(TextFilesConfig):
    """Settings for splitting text into sentences."""

    help_group = READING

    split_sentences: str | None = setting(
        None,
        "Language code, such as en, of the rules that split lines into "
        "sentences.",
        means="each line is one sentence",
    )

    def __post_init__(self):
        super().__post_init__()
        require(
            is_language(self.split_sentences or "en"),
            "`split_sentences` must be an ISO 639 code, with two letters if "
            "the language has such a code, for example en, zh or pt-br.",
            split_sentences=self.split_sentences,
        )
        if self.split_sentences:
            requested = {"split_sentences": self.split_sentences}
            need("`split_sentences`", "sentencex", **requested)


@dataclasses.dataclass(frozen=True)
class ReadingConfig(SentencesConfig):
    """Settings for finding words and for selecting documents."""

    help_group = READING

    word_boundaries: str | None = setting(
        None,
        "Rule for finding words. chinese uses jieba; segmented splits at "
        "spaces; auto uses unicode for a SentencePiece model with letters "
        "other than a to z.",
        means="english (the released rule) for a SentencePiece model, "
        "wordpiece for a WordPiece vocabulary",
        choices=(*RULES, AUTO),
    )
    min_document_tokens: int = setting(
        1, "Omit documents with fewer tokens.", minimum=1, maximum=10_000
    )
    drop_duplicates: bool = setting(
        False, "Omit documents whose text has already occurred."
    )


def split_sentences(lines: list[str], language: str | None) -> Iterator[str]:
    """Yield the sentences in stripped, non-blank lines.

    If `language` is None, each line is one sentence.
    """
    if language is None:
        yield from lines
        return
    from sentencex import segment

    for line in lines:
        for sentence in segment(language.lower(), line):
            if sentence := sentence.strip():
                yield sentence
