"""SentencePiece models, their character maps and rules for their pieces."""

import ast
import functools
import inspect
import io
import itertools
import os
import re
import secrets
import tempfile
import threading
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType

import numpy as np
import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.base.errors import InputError, input_errors, require

WORD_MARK = "▁"
# Types of pieces in a SentencePiece model.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# SentencePiece recurses once per byte; a very long piece overflows the stack.
LONGEST_PIECE = 2_000


INTACT_MAP = "The character map of a SentencePiece model must be intact."
MOST_PATHS = 1 << 26  # maximum total bytes of all prefixes of keys


def _parts_of(charsmap: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return a map's double-array trie, and a bool for each replacement byte.

    The bool is true if the byte begins a character.
    """
    size = int.from_bytes(charsmap[:4], "little")
    replacements = charsmap[4 + size :]
    sound = size > 0 and size % 4 == 0 and replacements[-1:] == b"\0"
    try:
        replacements.decode()
    except UnicodeDecodeError:
        sound = False
    require(sound, INTACT_MAP, size=size, bytes=len(charsmap))
    first_bytes = np.frombuffer(replacements, np.uint8) & 0xC0 != 0x80
    return np.frombuffer(charsmap, "<u4", size // 4, 4), first_bytes


@functools.lru_cache(maxsize=8)
def charsmap_keys(charsmap: bytes) -> tuple[str, ...]:
    """Return the texts that a compiled character map replaces.

    The map consists of the size of a double-array trie, the trie itself
    (https://github.com/s-yata/darts-clone), and the replacements. This function
    checks that the indices in the trie are within its bounds, because
    SentencePiece follows them without a check.

    Raises:
      InputError: if the map is damaged.
    """
    if not charsmap:
        return ()
    units, legal = _parts_of(charsmap)
    # Bits 0 to 7 of a unit are the label of the edge from its parent, bit 8 is
    # set if a key ends at the unit, and bit 31 if the unit is a value instead.
    # The bits from 10 on, shifted by 8 if bit 9 is set, are an offset: a node's
    # base is its index ^ its offset, and its children are at base ^ label.
    labels = units & 0x800000FF
    bases = np.arange(len(units)) ^ (units >> 10 << ((units & 512) >> 6))
    inner = np.flatnonzero((labels > 0) & (labels < 256))
    parents = inner ^ labels[inner]  # the base of the parent node
    order = np.argsort(parents)
    inner, parents = inner[order], parents[order]
    keys, nodes, paths = [], np.array([0]), np.zeros([1, 0], np.uint8)
    seen = 0
    while len(nodes):
        first = np.searchsorted(parents, bases[nodes], side="left")
        last = np.searchsorted(parents, bases[nodes], side="right")
        seen += np.sum(last - first) * (paths.shape[1] + 1)
        sound = seen <= MOST_PATHS and np.all(bases[nodes] | 255 < len(units))
        require(sound, f"{INTACT_MAP} Received: a damaged array")
        rows = np.repeat(np.arange(len(nodes)), last - first)
        shift = last - np.cumsum(last - first)
        nodes = inner[np.arange(len(rows)) + shift[rows]]
        paths = np.column_stack([paths[rows], labels[nodes].astype(np.uint8)])
        ends = (units[nodes] & 256) > 0
        # The next iteration checks the bases.
        leaves = np.take(units, bases[nodes[ends]], mode="clip")
        offsets = leaves & 0x7FFFFFFF
        sound = np.all(offsets < len(legal)) and np.all(legal[offsets])
        text = np.pad(paths[ends], [[0, 0], [0, 1]]).tobytes()
        try:
            keys += text.decode().split("\0")[:-1]
        except UnicodeDecodeError:
            sound = False
        require(sound, f"{INTACT_MAP} Received: damaged entries")
    return tuple(keys)


def map_function(charsmap: bytes) -> Callable[[str], str]:
    """Return a function that applies a compiled map to text."""
    charsmap_keys(charsmap)  # raises an error if the map is damaged
    proto = ModelProto()
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = charsmap
    spec.add_dummy_prefix = spec.escape_whitespaces = False
    spec.remove_extra_whitespaces = False
    proto.pieces.add(piece="<unk>", type=UNKNOWN)
    normalizer = sentencepiece.SentencePieceNormalizer(
        model_proto=proto.SerializeToString()
    )
    return normalizer.normalize


def read_model(content: bytes) -> ModelProto:
    """Parse a SentencePiece model; reject models that would crash the process.

    Raises:
      InputError: if a piece or the character map is damaged.
      DecodeError: if the content is not a SentencePiece model.
    """
    proto = ModelProto.FromString(content)
    for number, piece in enumerate(x.piece for x in proto.pieces):
        if not piece or "\0" in piece or len(piece) > LONGEST_PIECE:
            raise InputError(
                f"A piece must have 1 to {LONGEST_PIECE:,} characters, and no "
                "null character. Received: "
                f"piece={piece!r:.60}, characters={len(piece)}, number={number}"
            )
    charsmap_keys(proto.normalizer_spec.precompiled_charsmap)
    # SentencePiece uses this map when it decodes ids.
    charsmap_keys(proto.denormalizer_spec.precompiled_charsmap)
    return proto


def load_model(
    content: bytes,
) -> tuple[sentencepiece.SentencePieceProcessor, list[str], list[int]]:
    """Load a serialized model; raise an error if it is damaged.

    Returns:
      The processor, the pieces, and the ids of pieces that never match text.
    """
    model = sentencepiece.SentencePieceProcessor()
    rule = "The vocabulary must be a SentencePiece model"
    with input_errors((DecodeError, RuntimeError), rule, bytes=len(content)):
        proto = read_model(content)
        model.load_from_serialized_proto(content)
    pieces = enumerate(proto.pieces)
    unused = [i for i, x in pieces if x.type in (CONTROL, UNUSED)]
    return model, [x.piece for x in proto.pieces], unused


def charsmap_of(table: dict[str, str]) -> bytes:
    """Compile a table into the character map of a SentencePiece model."""

    def codes(text: str) -> str:
        return text.encode("utf-32-be").hex(" ", 4)

    if not table:
        return b""
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rules.tsv")
        with open(path, "w", encoding="utf-8") as file:
            for text in sorted(table):
                file.write(f"{codes(text)}\t{codes(table[text])}\n")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a"]),
            model_writer=model,
            model_type="char",
            vocab_size=4,
            hard_vocab_limit=False,
            bos_id=-1,
            eos_id=-1,
            normalization_rule_tsv=path,
            minloglevel=2,
        )
    proto = ModelProto.FromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


# Some versions of CPython raise a SystemError if two threads create syntax
# trees at the same time.
ONE_PARSER = threading.Lock()


def _code(module: ModuleType) -> str:
    """Return a module's syntax tree as text, without docstrings.

    Without the source, as in a frozen application, the text is random. Stored
    rules then never match, so they are compiled again.
    """
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):
        return secrets.token_hex()
    with ONE_PARSER:
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            texts = [s for s in body if isinstance(s, ast.Expr)]
            texts = [s for s in texts if isinstance(s.value, ast.Constant)]
            node.body = [s for s in body if s not in texts]
    return ast.dump(tree)


def compiler_version(sources: Iterable[ModuleType]) -> str:
    """Return a string that changes if the compilation of rules may change.

    The string consists of the versions of Unicode and SentencePiece, and of the
    code in `sources`.

    Args:
      sources: the modules that define the rules and compile them.
    """
    versions = unicodedata.unidata_version, sentencepiece.__version__
    return "\n".join([*versions, *map(_code, sources)])


# A piece that consists of the characters in ENGLISH continues a word, unless
# the piece is a single symbol.
SYMBOLS = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
ENGLISH = frozenset("abcdefghijklmnopqrstuvwxyz") | SYMBOLS

# A byte piece that continues a character. The bytes of a character become
# pieces if the vocabulary does not contain the character.
LATER_BYTE = re.compile("<0x[89AB][0-9A-F]>")

# An id, and its start and end in the text.
Span = tuple[int, int, int]


def is_word_start(piece: str) -> bool:
    """Return whether a piece begins a word under the released English rule.

    A piece begins a word if it is a single symbol, or contains a character that
    is not in ENGLISH, such as a word-boundary marker (▁), a digit, an
    apostrophe or an accented letter. Source: google-research/albert
    `_is_start_piece_sp`. A byte piece that continues a character does not begin
    a word; the released vocabularies have no byte pieces.
    """
    if LATER_BYTE.fullmatch(piece):
        return False
    return piece in SYMBOLS or not ENGLISH.issuperset(piece.lower())


def _drop_word_mark(
    model: sentencepiece.SentencePieceProcessor, spans: list[Span]
) -> list[Span]:
    """Remove a ▁ at the start of the first piece.

    If the first piece is only ▁, it is dropped. If the rest of a longer piece
    is not in the vocabulary, the unknown piece replaces it.
    """
    id, begin, end = spans[0]
    first = model.id_to_piece(id)
    if not first.startswith(WORD_MARK):
        return spans
    if first == WORD_MARK:
        return spans[1:]
    return [(model.piece_to_id(first[1:]), begin, end), *spans[1:]]


def digit_comma_splits(
    model: sentencepiece.SentencePieceProcessor,
    pieces: Sequence[str],
    variant: str,
) -> dict[int, list[Span]]:
    """Split each piece that ends in a digit and a comma.

    Args:
      model: the SentencePiece model.
      pieces: the model's pieces.
      variant: one of `normalization.DIGIT_COMMA`.

    Returns:
      {id of the piece: the ids that replace it, each with its span in the text
      of the piece without ▁}. Source: google-research/albert `encode_pieces`.
    """
    splits: dict[int, list[Span]] = {}
    if variant == "none":
        return splits
    comma = model.piece_to_id(",")
    for i, piece in enumerate(pieces):
        if piece[-1:] != "," or not piece[-2:-1].isdigit():
            continue
        number = piece[:-1].replace(WORD_MARK, "")
        proto = model.encode(number, out_type="immutable_proto")
        spans = [(piece.id, piece.begin, piece.end) for piece in proto.pieces]
        if variant == "strip" and not piece.startswith(WORD_MARK):
            spans = _drop_word_mark(model, spans)
        splits[i] = [*spans, (comma, len(number), len(number) + 1)]
    return splits


def expansion_table(
    splits: dict[int, list[Span]], vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids that replace each id, as values and row splits.

    Row i contains the ids that replace id i, usually i itself. The values are
    int32, and the row splits are int64 [V + 1].

    Args:
      splits: as returned by `digit_comma_splits`.
      vocab_size: V.
    """
    rows = [
        [id for id, _, _ in splits[i]] if i in splits else [i]
        for i in range(vocab_size)
    ]
    lengths = [len(row) for row in rows]
    values = np.array([id for row in rows for id in row], np.int32)
    return values, np.concatenate([[0], np.cumsum(lengths)])


def concatenated(
    rows: Sequence[Sequence[int]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated int32 ids of rows, and the end of each row."""
    ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return ids, np.cumsum([len(row) for row in rows], dtype=np.int64)


def expand(
    ids: Sequence[Sequence[int]], values: np.ndarray, splits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Replace each id in each row with its row of an expansion table.

    Returns:
      The concatenated new ids of all rows, and the end of each row.
    """
    flat, ends = concatenated(ids)
    lengths = np.diff(splits)[flat]
    new_ends = np.append(0, np.cumsum(lengths))
    shift = np.repeat(splits[flat] - new_ends[:-1], lengths)
    return values[shift + np.arange(new_ends[-1])], new_ends[ends]


def piece_shares(model: sentencepiece.SentencePieceProcessor) -> np.ndarray:
    """Return each piece's share [V] of the training text.

    Scores are logarithms of shares. In BPE models, scores are ranks instead;
    all pieces with negative scores then get the same share.
    """
    scores = np.array(model.get_score(list(range(len(model)))))
    ranks = np.array_equal(scores, np.round(scores))
    # Predefined symbols have a score of 0.
    weights = (scores < 0) * (1.0 if ranks else np.exp(scores))
    return weights / max(weights.sum(), np.finfo(float).tiny)
