"""Tokenizers, which convert text to ids and back, and tokenizer files."""

import abc
import base64
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sentencepiece

from albert_tf.base import files
from albert_tf.base.errors import InputError, errors_in, require
from albert_tf.base.json_values import flag_in
from albert_tf.base.settings import TOKENIZER, setting, types_of
from albert_tf.text import normalization, sentencepiece_models, wordpiece
from albert_tf.text.normalization import (
    AUTO,
    REPLACEMENT,
    SPACES,
    SURROGATE,
    TextConfig,
    final_sigma,
    with_rules,
)
from albert_tf.text.packing import (
    MASK_TEXT,
    checked_ids,
    checked_text,
    checked_texts,
    packed_inputs,
    row_length,
)
from albert_tf.text.sentencepiece_models import (
    WORD_MARK,
    compiler_version,
    concatenated,
    digit_comma_splits,
    expand,
    expansion_table,
    is_word_start,
    load_model,
    piece_shares,
)
from albert_tf.text.vocabulary import Vocabulary, refuse_symbols
from albert_tf.text.wordpiece import (
    DROPPED,
    WordPiece,
    rules_model,
    vocabulary_lines,
)

TOKENIZER_FILE, RULES_FILE = "tokenizer.json", "compiled_rules.bin"
CHECKSUM = "vocabulary_sha256"  # a key of `tokenizer.json`, but not a setting
# (concatenated ids of texts, end of each text), and (ids, starts, ends)
JoinedIds = tuple[np.ndarray, np.ndarray]
IdsAndSpans = tuple[list[int], list[int], list[int]]


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(TextConfig):
    """Settings for the vocabulary and for text normalization."""

    help_group = TOKENIZER

    spm_model_file: str | None = setting(
        None, "SentencePiece model; set this or `vocab_file`."
    )
    vocab_file: str | None = setting(
        None, "WordPiece vocabulary, one piece per line (Chinese models)."
    )


class Tokenizer(Vocabulary):
    """The base class of tokenizers, with the vocabulary and its files.

    Attributes:
      vocab_size: number of pieces, V.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special pieces.
      word_starts: bool [V], true for [CLS], [SEP] and pieces that begin a word.
      not_words: int32, ids that represent no text (special, control, unused).
      config: the `TextConfig`.
      content: the bytes of the vocabulary file.
      with_rules: a SentencePiece model with the rules of `config` compiled in.
        Compilation takes about a second, so `save` writes the model too.
      encodes_with_rules: whether `encode_joined` uses `with_rules`.
      rules_file: the path at which `save` may have written `with_rules`.
      final_sigma: a regular expression for a capital sigma that ends a word.
        No character map can express this rule. None if the tokenizer does not
        lower-case text.
    """

    kind: str  # the `type` in `tokenizer.json`
    file_name: str  # name of the vocabulary in a model directory
    special: tuple[str, str, str, str, str]  # pad, unk, cls, sep, mask
    encodes_with_rules: bool
    has_marks: Callable[[str], bool]  # whether a text has accents to strip
    settings: tuple[str, ...]  # fields of `TextConfig` that the tokenizer uses
    normalize: Callable[[str, TextConfig], str]
    rules_file = ""
    lone_mark: Sequence[int | None] = ()  # [id of the piece ▁]

    def __init__(
        self, content: bytes, pieces: Sequence[str], config: TextConfig
    ):
        if config.strip_accents == AUTO:
            has_accents = any(map(self.has_marks, pieces))
            config = dataclasses.replace(config, strip_accents=not has_accents)
        self.content = content
        self.config = config
        self.vocab_size = len(pieces)
        self._pieces = tuple(pieces)
        self._ids = ids = {piece: i for i, piece in enumerate(pieces)}
        missing = [name for name in self.special if name not in ids]
        if missing:
            raise InputError(
                f"A {self.kind} vocabulary must contain "
                f"{', '.join(f'`{name}`' for name in self.special)}. "
                f"Received: {len(pieces)} pieces without {', '.join(missing)}"
            )
        special = [ids[name] for name in self.special]
        self.pad_id, self.unk_id, self.cls_id = special[:3]
        self.sep_id, self.mask_id = special[3:]
        self.not_words = np.unique(np.int32([*special, *self._unused()]))
        self.word_starts = np.array([self._starts_word(p) for p in pieces])
        self.word_starts[[self.cls_id, self.sep_id]] = True

    @abc.abstractmethod
    def _unused(self) -> list[int]:
        """Return the ids, other than special pieces, that represent no text."""

    @abc.abstractmethod
    def _starts_word(self, piece: str) -> bool:
        """Return whether a piece begins a word."""

    @abc.abstractmethod
    def _compile(self) -> bytes:
        """Compile the rules of `config` into a model; see `with_rules`."""

    def _rules_hash(self, rules: bytes) -> bytes:
        """Return a hash of `with_rules` and everything that determines it."""
        sources = normalization, sentencepiece_models, wordpiece
        source = f"{self.fingerprint()} {compiler_version(sources)}".encode()
        return hashlib.sha256(source + rules).digest()

    @functools.cached_property
    def with_rules(self) -> bytes:
        path = self.rules_file
        stored = files.read_bytes(path) if path and files.exists(path) else b""
        rules = stored[hashlib.sha256().digest_size :]
        sound = stored == self._rules_hash(rules) + rules
        return rules if sound else self._compile()

    @functools.cached_property
    def final_sigma(self) -> str | None:
        lowers = self.config.do_lower_case
        return final_sigma(self.normalize, self.config) if lowers else None

    @functools.cached_property
    def spaces(self) -> list[str]:
        """The characters of `SPACES` that separate words, as a space does."""
        ids = [self.encode(f"a{c}a") for c in SPACES]
        return [SPACES[i] for i, x in enumerate(ids) if x == self.encode("a a")]

    def _prepared(self, text: str) -> str:
        """Replace lone surrogates with U+FFFD, and each final Σ with ς."""
        if text.isascii():
            return text
        text = SURROGATE.sub(REPLACEMENT, text)
        if "Σ" in text and self.final_sigma:
            text = re.sub(self.final_sigma, r"\1ς\2", text)
        return text

    @abc.abstractmethod
    def encode_joined(self, texts: Sequence[str]) -> JoinedIds:
        """Return the concatenated ids of texts, and the end of each text."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the int32 ids of each text."""
        ids, ends = self.encode_joined(checked_texts(texts, "texts"))
        return [ids[a:b] for a, b in itertools.pairwise([0, *ends.tolist()])]

    @abc.abstractmethod
    def encode_with_offsets(self, text: str) -> IdsAndSpans:
        """Return the ids of a text, and each id's start and end in the text.

        Offsets count characters (code points) of `text` before any
        normalization; ends are exclusive. A piece that covers no characters,
        such as a lone word-boundary marker (▁), has an empty span. If
        several pieces come from one character, such as a ligature, only the
        last piece covers it.
        """

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Convert ids to text, ignoring ids in `not_words`."""

    def __call__(
        self,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        max_length: int | None = None,
        masks: bool = True,
    ) -> dict[str, np.ndarray]:
        """Return the model's inputs for texts or pairs: {name: int32 [B, T]}.

        Args:
          texts: B strings.
          text_pairs: the second text of each pair; "" if there is none.
          max_length: T; longer rows are truncated. The default is the length of
            the longest row.
          masks: whether `[MASK]` means the mask, as in `encode_masked`, or is
            plain text, as in `encode` and in task data.
        """
        first = self._segments(texts, "texts", masks)
        second: Sequence = [()] * len(first)
        if text_pairs is not None:
            second = self._segments(text_pairs, "text_pairs", masks)
        return packed_inputs(self, first, second, row_length(max_length))

    def _segments(self, texts: Any, name: str, masks: bool) -> Sequence:
        """Return the ids of each text; see `__call__`."""
        texts = checked_texts(texts, name)
        if masks and any(MASK_TEXT in text for text in texts):
            return list(map(self.encode_masked, texts))
        return self.encode_batch(texts)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.encode_batch([checked_text(text)])[0].tolist()

    def encode_masked(self, text: str) -> list[int]:
        """Return the ids of a text, where `[MASK]` is one piece.

        A lone word-boundary marker (▁) follows `[MASK]` only if white space
        follows `[MASK]` in the text.
        """
        parts = checked_text(text).split(MASK_TEXT)
        first, *rest = (ids.tolist() for ids in self.encode_batch(parts))
        for part, ids in zip(parts[1:], rest, strict=True):
            no_word = ids[:1] == self.lone_mark and part[:1] not in self.spaces
            first += [self.mask_id, *ids[no_word:]]
        return first

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces for ids, as written in the vocabulary."""
        return [self._pieces[i] for i in checked_ids(ids, self.vocab_size)]

    def _words(self, ids: Sequence[int]) -> list[int]:
        ids = checked_ids(ids, self.vocab_size)
        return [i for i in ids if i not in self.not_words]

    def description(self) -> dict:
        """Return the content of `tokenizer.json`, except the checksum."""
        values = {name: getattr(self.config, name) for name in self.settings}
        return {"type": self.kind, **values}

    def get_config(self) -> dict:
        """Return JSON values from which `tokenizer_of` can create a copy."""
        content = base64.b64encode(zlib.compress(self.content)).decode()
        return {**self.description(), "content": content}

    def fingerprint(self) -> str:
        """Return the SHA-256 hash of the vocabulary and of `description`."""
        text = json.dumps(self.description(), sort_keys=True).encode()
        return hashlib.sha256(self.content + text).hexdigest()

    def checksum(self) -> str:
        """Return the SHA-256 hash of the vocabulary."""
        return hashlib.sha256(self.content).hexdigest()

    @staticmethod
    def stored_in(folder: str) -> "Tokenizer | None":
        """Return this project's tokenizer in a folder, or None if absent."""
        values = files.read_optional_json(folder, TOKENIZER_FILE)
        return load_saved_tokenizer(folder) if values.get("type") else None

    def save(self, model_dir: str) -> None:
        """Write the tokenizer's files to a model directory."""
        self.check_claim(model_dir)
        files.make_folder(model_dir)
        files.write_bytes(files.join(model_dir, self.file_name), self.content)
        path = files.join(model_dir, TOKENIZER_FILE)
        values = self.description() | {CHECKSUM: self.checksum()}
        files.write_json(path, values)
        if self.encodes_with_rules or "with_rules" in vars(self):
            content = self._rules_hash(self.with_rules) + self.with_rules
            files.write_bytes(files.join(model_dir, RULES_FILE), content)


class SentencePieceTokenizer(Tokenizer):
    """The tokenizer of the English models.

    Attributes:
      expansion: the ids that replace each id under the digit-comma rule, as
        int32 values and int64 row splits [V + 1].
    """

    kind = "sentencepiece"
    encodes_with_rules = True
    file_name = "spiece.model"
    special = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    has_marks = staticmethod(normalization.has_marks)
    normalize = staticmethod(normalization.normalize)
    settings = tuple(field.name for field in dataclasses.fields(TextConfig))

    def __init__(self, content: bytes, config: TextConfig):
        self._model, pieces, self._textless = load_model(content)
        # The model file defines these two pieces, regardless of their names.
        pad_id, unk_id = self._model.pad_id(), self._model.unk_id()
        pad = pieces[pad_id] if pad_id >= 0 else self.special[0]
        self.special = (pad, pieces[unk_id], *self.special[2:])
        super().__init__(content, pieces, config)
        self.lone_mark = [self._ids.get(WORD_MARK)]
        self.splits = digit_comma_splits(
            self._model, pieces, self.config.digit_comma
        )
        self.expansion = expansion_table(self.splits, self.vocab_size)

    def piece_shares(self) -> np.ndarray:
        """Return each piece's share [V] of the training text."""
        return piece_shares(self._model)

    def _unused(self) -> list[int]:
        return [self._model.unk_id(), *self._textless]

    def _starts_word(self, piece: str) -> bool:
        return is_word_start(piece)

    def _compile(self) -> bytes:
        return with_rules(self.content, self.config)

    @functools.cached_property
    def _encoder(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.with_rules)

    def encode_joined(self, texts: Sequence[str]) -> JoinedIds:
        prepared = list(map(self._prepared, texts))
        ids = self._encoder.encode(prepared, num_threads=1)
        return expand(ids, *self.expansion)

    def encode_with_offsets(self, text: str) -> IdsAndSpans:
        text = checked_text(text)
        proto = self._encoder.encode(
            self._prepared(text), out_type="immutable_proto"
        )
        ids, starts, ends = [], [], []
        for piece in proto.pieces:
            begin, end = piece.begin, piece.end
            while begin < end and text[begin].isspace():
                begin += 1
            unsplit = [(piece.id, 0, end - begin)]
            for id, first, last in self.splits.get(piece.id, unsplit):
                last = min(begin + last, end)
                ids.append(id)
                starts.append(min(begin + first, last))
                ends.append(last)
        return ids, starts, ends

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode(self._words(ids))


class WordPieceTokenizer(Tokenizer):
    """The tokenizer of the Chinese models."""

    kind = "wordpiece"
    encodes_with_rules = False
    file_name = "vocab.txt"
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    has_marks = staticmethod(wordpiece.has_marks)
    normalize = staticmethod(wordpiece.normalize)
    settings = ("do_lower_case", "strip_accents")

    def __init__(self, content: bytes, config: TextConfig):
        super().__init__(content, vocabulary_lines(content), config)
        self._model = WordPiece(self._ids, self.unk_id, self.config)

    def _unused(self) -> list[int]:
        pattern = re.compile(r"\[unused\d+\]")
        return [i for i, p in enumerate(self._pieces) if pattern.fullmatch(p)]

    def _starts_word(self, piece: str) -> bool:
        return not piece.startswith("##")

    def encode_joined(self, texts: Sequence[str]) -> JoinedIds:
        return concatenated([self._model.encode(text) for text in texts])

    def _compile(self) -> bytes:
        return rules_model(self._pieces, self.config)

    @functools.cached_property
    def _normalizer(self) -> sentencepiece.SentencePieceNormalizer:
        return sentencepiece.SentencePieceNormalizer(
            model_proto=self.with_rules
        )

    def encode_with_offsets(self, text: str) -> IdsAndSpans:
        text = self._prepared(checked_text(text).replace("\0", DROPPED))
        return self._model.encode_with_offsets(text, self._normalizer)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.pieces(self._words(ids))).replace(" ##", "")


TOKENIZERS = {t.kind: t for t in (SentencePieceTokenizer, WordPieceTokenizer)}


def tokenizer_of(config: dict | None) -> Tokenizer | None:
    """Create a tokenizer from the result of `get_config`; None yields None."""
    if config is None:
        return None
    text = {k: v for k, v in config.items() if k not in ("type", "content")}
    content = zlib.decompress(base64.b64decode(config["content"]))
    return TOKENIZERS[config["type"]](content, TextConfig(**text))


def _load(kind: str, path: str, config: TextConfig) -> Tokenizer:
    files.require_file(files.is_file(path), f"The {kind} vocabulary", path)
    with errors_in(path):
        tokenizer = TOKENIZERS[kind](files.read_bytes(path), config)
    tokenizer.rules_file = files.join(os.path.dirname(path), RULES_FILE)
    return tokenizer


def description_beside(path: str, kind: str) -> dict:
    """Return the `tokenizer.json` next to a vocabulary, or {} if there is none.

    Files with this name from other libraries have other types and are ignored.
    """
    file = files.join(os.path.dirname(path), TOKENIZER_FILE)
    values = files.read_json(file, "A file") if files.exists(file) else {}
    if not isinstance(values, dict) or values.get("type") != kind:
        return {}
    return {name: x for name, x in values.items() if name != CHECKSUM}


def build_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Return the tokenizer that a config describes."""
    require(
        bool(config.spm_model_file) != bool(config.vocab_file),
        "Set exactly one of `spm_model_file` and `vocab_file`.",
        spm_model_file=config.spm_model_file,
        vocab_file=config.vocab_file,
    )
    kind = "sentencepiece" if config.spm_model_file else "wordpiece"
    path = config.spm_model_file or config.vocab_file
    if config.strip_accents == AUTO:
        stored = description_beside(path, kind).get("strip_accents", AUTO)
        config = dataclasses.replace(config, strip_accents=stored)
    return _load(kind, path, config)


def tokenizer_from_files(**settings: str | bool | None) -> Tokenizer:
    """Return a tokenizer; the arguments are fields of `TokenizerConfig`."""
    return build_tokenizer(TokenizerConfig(**settings))


def tokenizer_in(folder: str) -> Tokenizer | None:
    """Return the tokenizer in a folder, or None if there is none."""
    path = files.join(folder, TOKENIZER_FILE)
    return load_saved_tokenizer(folder) if files.exists(path) else None


def load_saved_tokenizer(model_dir: str, vocabulary: str = "") -> Tokenizer:
    """Return the tokenizer in a model directory.

    `vocabulary` is the path of the vocabulary, if it has a different name.
    """
    path = files.join(model_dir, TOKENIZER_FILE)
    if not files.exists(path):
        refuse_symbols(model_dir)
    values = files.read_json(path, f"`{TOKENIZER_FILE}`")
    kind = values.pop("type", None) if isinstance(values, dict) else None
    checksum = values.pop(CHECKSUM, None) if kind else None
    rule = f"`type` must be one of {', '.join(TOKENIZERS)}."
    require(kind in [*TOKENIZERS], rule, type=f"{kind} in {path}")
    settings = TOKENIZERS[kind].settings
    unknown = sorted(set(values) - set(settings))
    rule = f"A tokenizer's settings must be among {', '.join(settings)}."
    require(not unknown, rule, others=f"{', '.join(unknown)} in {path}")
    name = TOKENIZERS[kind].file_name
    vocabulary = vocabulary or files.join(model_dir, name)
    fields = dataclasses.fields(TextConfig)
    flags = {field.name for field in fields if bool in types_of(field)}
    for name in flags & values.keys():
        values[name] = flag_in(values, name, path)
        rule = f"{path}: `{name}` must be true or false."
        require(values[name] is not None, rule, **{name: None})
    tokenizer = _load(kind, vocabulary, TextConfig(**values))
    require(
        checksum in (None, tokenizer.checksum()),
        "The vocabulary must be the one that was saved with "
        f"`{TOKENIZER_FILE}`; copy both files again or, if you changed the "
        f"vocabulary on purpose, remove `{CHECKSUM}` from {path}.",
        vocabulary=vocabulary,
    )
    return tokenizer
