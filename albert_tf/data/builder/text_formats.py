"""The formats of text files, and the settings of reading them."""

import dataclasses
import importlib.util
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from albert_tf.base.errors import require
from albert_tf.base.settings import Checked, setting
from albert_tf.data.builder.boundaries import RULES
from albert_tf.data.file_kinds import (
    JSONL,
    TEXT,
    BadData,
    Refused,
    require_lines,
)
from albert_tf.text.normalization import AUTO, REPLACEMENT, SURROGATE

# A document in JSON must be read whole.
RECORD_BYTES = 1 << 26

Lines = Sequence[str | None]  # None: a line to skip


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive whole lines of one file.

    `document` is the hash of the document that goes on from the block before,
    and `piece` counts the blocks of that document; they are None and 0 where
    the block begins with a document of its own. `layout` is one of `FORMATS`;
    `skipped` counts the bad items between the block before and this one.
    """

    path: str
    first_line: int  # counted from 1
    offset: int  # bytes before the block in the (decompressed) file
    data: bytes
    document: int | None = None
    piece: int = 0
    layout: str = "lines"
    skipped: Counter = dataclasses.field(default_factory=Counter)


# {count of items that cannot be used: (item, what is wrong with it)}
BAD_ITEMS = {
    "bad_lines": ("line", "not UTF-8"),
    "bad_rows": ("row", "without a readable text"),
    "bad_files": ("file", "damaged"),
}

# The key with this prefix carries the error of the first bad item.
FIRST = "first: "


def first_bad_item(counts: Counter) -> str:
    """Return the error of the first bad item, "" without one."""
    found = (key for key in counts if key.startswith(FIRST))
    return next(found, "").removeprefix(FIRST)


def merge(counts: Counter, more: Counter) -> None:
    """Add `more` to `counts`, whose first bad item stays the first."""
    if first_bad_item(counts):
        new = {k: n for k, n in more.items() if not k.startswith(FIRST)}
        more = Counter(new)
    counts.update(more)


def bad_items(counts: Mapping[str, int]) -> str:
    """Return how many items of each kind were bad, "" if none was."""
    numbers = {name: counts.get(name, 0) for name in BAD_ITEMS}
    return ", ".join(
        f"1 {noun} was {what}" if n == 1 else f"{n:,} {noun}s were {what}"
        for n, (noun, what) in zip(
            numbers.values(), BAD_ITEMS.values(), strict=True
        )
        if n
    )


def warn_of_bad_items(counts: Counter, on_bad_text: str) -> None:
    """Print how many items were skipped or replaced, and the first of them."""
    if said := bad_items(counts):
        print(
            f"Warning: --on_bad_text={on_bad_text}: {said}. The first: "
            f"{first_bad_item(counts)}",
            flush=True,
        )


class BadItems:
    """Handles items that cannot be used as `on_bad_text` asks.

    Args:
      on_bad_text: the setting.
      counts: receives the number of items that are skipped or replaced.

    Attributes:
      lines: the number of lines that were not UTF-8.
    """

    def __init__(self, on_bad_text: str, counts: Counter):
        self._choice, self._counts = on_bad_text, counts
        self.lines = 0

    def __call__(
        self, error: BadData, line: bytes = b"", name: str = "bad_rows"
    ) -> str | None:
        """Raise the error, or count it and return the text to read instead.

        Args:
          error: names file and line.
          line: the bytes of a line that is not UTF-8.
          name: the count of any other item.
        """
        if isinstance(error, Refused):  # passed on by a reader of rows
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
    """How documents lie in a file.

    Attributes:
      cut: from a buffer of whole lines to the length of the whole documents
        in it, 0 if it holds one unfinished document.
      parse: from a block, its lines, the name of the field with the text
        and the handler of bad items to documents of stripped, non-blank
        lines.
      longest_line: the most bytes of a line, where lines must stay whole.
    """

    cut: Callable[[bytes], int]
    parse: Callable[[Block, Lines, str, BadItems], list[list[str]]]
    longest_line: int | None = None


def _after_blank_line(buffer: bytes) -> int:
    """Return where the last blank line of a buffer ends; 0 without one."""
    end = buffer.rfind(b"\n")
    while end >= 0:
        begin = buffer.rfind(b"\n", 0, end) + 1
        if not buffer[begin:end].decode("utf-8", "replace").strip():
            return end + 1
        end = begin - 1
    return 0


def _strip(lines: Lines) -> list[str]:
    return [line.strip() for line in lines if line and line.strip()]


def _parse_lines(
    block: Block, lines: Lines, field: str, bad: BadItems
) -> list[list[str]]:
    stripped = [line.strip() for line in lines if line is not None]
    documents = [
        list(group) for text, group in itertools.groupby(stripped, bool) if text
    ]
    ends_before = block.document is not None and stripped[:1] == [""]
    return [[], *documents] if ends_before else documents


def _parse_file(
    block: Block, lines: Lines, field: str, bad: BadItems
) -> list[list[str]]:
    return [_strip(lines)]


def _received(record: object, field: str) -> str:
    """Return what a record has instead of a text, for errors."""
    if not isinstance(record, dict):
        return "no object"
    if field in record:
        return f"{field}={json.dumps(record[field]):.60}"
    return f"fields {', '.join(record)[:200] or 'none'}"


def _text_of(line: str, field: str, place: str) -> str:
    """Return the text of a JSON record; `place` tells where it stands."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadData(
            "`input_file` must hold a JSON object on every line. Received: "
            f"{getattr(error, 'msg', 'too deep')} in {place}"
        ) from None
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise BadData(
            "`text_field` must name a text in every JSON object. Received: "
            f"text_field={field}, with {_received(record, field)} in {place}"
        )
    return SURROGATE.sub(REPLACEMENT, text)


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
            documents.append(_strip(text.split("\n")))
    return [document for document in documents if document]


FORMATS = {
    "lines": Format(_after_blank_line, _parse_lines),
    "files": Format(lambda buffer: 0, _parse_file),
    "jsonl": Format(
        lambda buffer: buffer.rfind(b"\n") + 1, _parse_jsonl, RECORD_BYTES
    ),
}


@dataclasses.dataclass(frozen=True)
class TextFilesConfig(Checked):
    """How text lies in files."""

    input_format: str | None = setting(
        None,
        "How documents lie in a file: lines (a blank line, or an empty row of "
        "a table, between documents), files (one document per file) or jsonl "
        "(a JSON object per line). By default text is read as lines, and every "
        "row of a table and every JSON object is a document.",
        choices=FORMATS,
    )
    text_field: str = setting(
        "text", "The field of a JSON object, or column of a table, to read."
    )
    on_bad_text: str = setting(
        "fail",
        "What to do with lines that are not UTF-8. skip also skips rows "
        "without a text and the unreadable rest of damaged files.",
        choices=("fail", "replace", "skip"),
    )


def layout_of(kind: str, input_format: str | None, path: str) -> str:
    """Return which of `FORMATS` a file has.

    Args:
      kind: of the file, see `file_kinds`.
      input_format: the setting.
      path: for errors.
    """
    require_lines(kind, path)
    if kind == TEXT:
        return input_format or "lines"
    require(
        kind != JSONL or input_format != "files",
        "`input_format` must be jsonl for files of JSON lines.",
        input_format=f"{input_format} with {path}",
    )
    return "lines" if input_format == "lines" else "jsonl"


# Two or three letters, perhaps with a script or a region.
LANGUAGE = re.compile("[a-z]{2,3}(-[a-z0-9]+)*", re.IGNORECASE)


# The two-letter codes, and three-letter codes that have a two-letter one.
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
    """Return whether sentencex may know the language of a code.

    It treats all others as English, without a warning.
    """
    name = code.lower().split("-")[0]
    known = name in ISO_639_1 or (len(name) == 3 and name not in SHORTER)
    return known and bool(LANGUAGE.fullmatch(code))


@dataclasses.dataclass(frozen=True)
class SentencesConfig(TextFilesConfig):
    """How text in files becomes sentences."""

    split_sentences: str | None = setting(
        None,
        "Language code, like en, by whose rules lines are split into "
        "sentences; by default every line is one sentence.",
    )

    def __post_init__(self):
        super().__post_init__()
        require(
            is_language(self.split_sentences or "en"),
            "`split_sentences` must be an ISO 639 code, of two letters if the "
            "language has one, such as en, zh or pt-br.",
            split_sentences=self.split_sentences,
        )
        require(
            not self.split_sentences or importlib.util.find_spec("sentencex"),
            "`split_sentences` needs sentencex: "
            "pip install 'albert-tf[sentences]'.",
            split_sentences=self.split_sentences,
        )


@dataclasses.dataclass(frozen=True)
class ReadingConfig(SentencesConfig):
    """How text becomes documents of sentences, and which are kept."""

    word_boundaries: str | None = setting(
        None,
        "What a word is: by default english (the released rule) with a "
        "SentencePiece model and wordpiece with a vocabulary. chinese finds "
        "words with jieba; in segmented text spaces part words; auto uses "
        "unicode for a SentencePiece model with letters beyond a to z.",
        choices=(*RULES, AUTO),
    )
    min_document_tokens: int = setting(
        1, "Shorter documents are left out.", minimum=1, maximum=10_000
    )
    drop_duplicates: bool = setting(
        False, "Leave out documents whose text was there before."
    )


def split_sentences(lines: list[str], language: str | None) -> Iterator[str]:
    """Yield the sentences of lines, stripped and non-blank."""
    if language is None:
        yield from lines
        return
    from sentencex import segment

    for line in lines:
        for sentence in segment(language, line):
            if sentence := sentence.strip():
                yield sentence
