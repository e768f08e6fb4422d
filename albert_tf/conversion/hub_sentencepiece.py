"""Conversion of a Hugging Face folder's tokenizer to a SentencePiece model.

If `TextConfig` can express all text rules, the rules become its settings.
Otherwise, the rules are compiled into the model's character map.
"""

import contextlib
import json
import re
import unicodedata
from collections.abc import Callable

from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.base import files
from albert_tf.base.errors import input_errors
from albert_tf.conversion.text_rules import (
    NotExpressible,
    charsmap_in,
    flat,
    only_spaces,
    python_pattern,
    table_of,
)
from albert_tf.conversion.tokenizer_files import (
    Added,
    HubFiles,
    fitting,
    flag_of,
    rename_special,
)
from albert_tf.conversion.tokenizer_json import (
    FINAL_SIGMA,
    NEVER,
    TOKENIZER_JSON,
    UNIGRAM,
)
from albert_tf.text.added_pieces import text_of_piece
from albert_tf.text.normalization import DIGIT_COMMA, TextConfig
from albert_tf.text.sentencepiece_models import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    WORD_MARK,
    charsmap_of,
)
from albert_tf.text.tokenizers import SentencePieceTokenizer, Tokenizer
from albert_tf.text.wordpiece import is_punctuation

SETTINGS_OFF = ("do_lower_case", "strip_accents", "replace_quotes")
# The rules that `TextConfig` can express, in order.
SETTINGS = re.compile(
    r"(Open Close )?((?:NFKD )StripAccents )?(Lowercase )?(?:Precompiled )?"
)
QUOTES = {"``": "Open", "''": "Close", "``|''": "Open Close"}


def plain_settings(rules: list[dict], characters: str) -> dict | None:
    """Return the `TextConfig` settings equivalent to a normalizer, or None.

    Args:
      rules: rules of a normalizer.
      characters: all characters of the vocabulary. This package defines an
        accent as a character with a combining class; `tokenizers` defines it as
        a nonspacing mark. If the definitions differ for a character in the
        vocabulary, no setting is equivalent.
    """
    names: list[str] = []
    for rule in rules:
        name = rule["type"]
        if name == "Replace":
            text = rule["pattern"].get("Regex", rule["pattern"].get("String"))
            if text == FINAL_SIGMA or only_spaces(
                rule["pattern"], rule["content"]
            ):
                continue
            if text in QUOTES and rule["content"] == '"':
                name = QUOTES[text]
            elif text.startswith(r"[\x{300}-") and not rule["content"]:
                name = "StripAccents"  # as `tokenizer_json` writes it
        elif name == "StripAccents" and any(
            unicodedata.category(c) == "Mn" and not unicodedata.combining(c)
            for c in characters
        ):
            return None
        if name != "Strip" and names[-1:] != [name]:
            names.append(name)
    match = SETTINGS.fullmatch("".join(f"{name} " for name in names))
    keys = ("replace_quotes", "strip_accents", "do_lower_case")
    return match and {
        key: bool(value)
        for key, value in zip(keys, match.groups(), strict=True)
    }


def keeps_spaces(content: dict, rules: list[dict]) -> bool:
    """Return whether a tokenizer preserves trailing or repeated spaces.

    Args:
      content: the content of `tokenizer.json`.
      rules: the rules of its normalizer.
    """
    pre_tokenizers = flat(content.get("pre_tokenizer"))
    if any(rule["type"] == "WhitespaceSplit" for rule in pre_tokenizers):
        return False
    text = "a  b "
    for rule in rules:
        if rule["type"] == "Strip" and flag_of(rule, "strip_right", True):
            text = text.rstrip()
        if rule["type"] == "Replace":
            with contextlib.suppress(NotExpressible):
                pattern = python_pattern(rule["pattern"])
                text = pattern.sub(lambda _, r=rule: r["content"], text)
    return text.replace(WORD_MARK, " ").lstrip() != "a b"


def is_digit(character: str) -> bool:
    """Return whether `tokenizers` classifies a character as numeric."""
    return unicodedata.category(character).startswith("N")


def splitter(rule: dict) -> tuple[Callable[[str], bool], bool] | None:
    """Return a predicate for the characters that a pre-tokenizer splits off.

    Returns:
      The predicate, and whether the pre-tokenizer splits off each character
      instead of each run of characters; None if it splits only at white space.

    Raises:
      NotExpressible: if the pre-tokenizer splits in any other way.
    """
    kind, behavior = rule["type"], rule.get("behavior", "Isolated").lower()
    if kind == "WhitespaceSplit":
        return None
    if kind == "Digits":
        return is_digit, flag_of(rule, "individual_digits", False)
    if kind == "BertPreTokenizer" or (
        kind == "Punctuation" and behavior in ("isolated", "contiguous")
    ):
        return is_punctuation, behavior == "isolated"
    raise NotExpressible(kind)


def _is_split(
    piece: str, predicate: Callable[[str], bool], individually: bool
) -> bool:
    """Return whether a splitter would cut a piece."""
    matches = [predicate(c) for c in piece]
    if individually:
        return len(piece) > 1 and any(matches)
    return any(matches) and not all(matches)


class SentencePieceReader:
    """A builder of a SentencePiece model from a Hugging Face folder.

    Args:
      hub: the tokenizer's files, whose `differences` and `notes` are extended.
      path: the SentencePiece model, or None if only `tokenizer.json` contains
        the vocabulary.
    """

    def __init__(self, hub: HubFiles, path: str | None):
        self.hub = hub
        self.content = files.read_bytes(path) if path else b""
        self.proto = ModelProto()
        if path:
            rule = "The vocabulary must be a SentencePiece model"
            with input_errors(DecodeError, rule, path=path):
                self.proto.ParseFromString(self.content)
        vocab = hub.model.get("vocab", ())
        pieces = [piece.piece for piece in self.proto.pieces]
        json_pieces = [piece for piece, _ in vocab]
        if json_pieces and json_pieces != pieces:
            if pieces:
                hub.notes.append(
                    f"the pieces come from {TOKENIZER_JSON}; the pieces in "
                    f"{path} differ"
                )
            self._from_json()
        self.original = self.proto.SerializeToString()

    def _from_json(self) -> None:
        model, proto = self.hub.model, self.proto
        proto.Clear()
        types = {
            token["content"]: CONTROL
            if flag_of(token, "special", False)
            else USER_DEFINED
            for token in self.hub.content["added_tokens"]
        }
        types[model["vocab"][model["unk_id"]][0]] = UNKNOWN
        fallback = flag_of(model, "byte_fallback", False)
        for piece, score in model["vocab"]:
            score -= NEVER * (score < NEVER)  # undo `tokenizer_json.scored`
            kind = types.get(piece, NORMAL)
            if fallback and re.fullmatch("<0x[0-9A-F]{2}>", piece):
                kind = BYTE
            proto.pieces.add(piece=piece, score=score, type=kind)
        proto.trainer_spec.model_type = UNIGRAM
        proto.trainer_spec.byte_fallback = fallback

    def digit_comma(self) -> str:
        """Return `digit_comma`, inferred if no file sets it.

        It is inferred from the scores in `tokenizer.json`. Without this file,
        the result is "strip", as in the slow `AlbertTokenizer`.
        """
        setting = self.hub.settings.get("digit_comma")
        if setting in DIGIT_COMMA:
            return setting
        if not self.hub.content:
            return "strip"
        scores = [
            score
            for piece, score in self.hub.model.get("vocab", ())
            if re.search(r"\d,\Z", piece)
        ]
        return "none" if scores and min(scores) > NEVER else "released"

    def text_config(self) -> TextConfig:
        """Return the text settings.

        If settings cannot express all rules, the rules are compiled into the
        model's character map instead, and all settings that change text are
        turned off.
        """
        hub, digit_comma = self.hub, self.digit_comma()
        # The rules of `AlbertTokenizer` that SentencePiece lacks.
        settings = {"replace_quotes": True}
        if hub.content:
            rules = list(flat(hub.content.get("normalizer")))
            split_rules = self._split_pieces()
            if keeps_spaces(hub.content, rules):
                hub.differences.append(
                    "only the source encodes trailing and repeated spaces"
                )
            characters = "".join(piece.piece for piece in self.proto.pieces)
            settings = plain_settings(rules, characters)
            if settings is None or split_rules:
                self._compile([*rules, *split_rules])
                off = dict.fromkeys(settings or SETTINGS_OFF, False)
                return TextConfig(**off, digit_comma=digit_comma)
            spec = self.proto.normalizer_spec
            charsmap = b"".join(map(charsmap_in, rules))
            if spec.precompiled_charsmap != charsmap:
                spec.precompiled_charsmap = charsmap
        if not hub.uses_only_json:
            settings |= hub.accents() | hub.flags(*SETTINGS_OFF)
        return TextConfig(**settings, digit_comma=digit_comma)

    def _split_pieces(self) -> list[dict]:
        """Apply the pre-tokenizer to the pieces; return rules for texts.

        A split before `Metaspace` becomes a rule that puts spaces around
        characters; a split after `Metaspace` disables the pieces that it would
        cut.
        """
        rules = list(flat(self.hub.content.get("pre_tokenizer")))
        kinds = [rule["type"] for rule in rules]
        if "Metaspace" not in kinds:
            name = ", ".join(kinds) or "none"
            self._report_unsupported(
                f"a pre-tokenizer without Metaspace ({name})"
            )
            return []
        index = kinds.index("Metaspace")
        always_prefixed = self._apply_metaspace(rules[index])
        isolating_rules = []
        for i, rule in enumerate(rules):
            try:
                split = splitter(rule) if i != index else None
                if split and i < index:
                    where, individually = split
                    if not (always_prefixed and individually):
                        raise NotExpressible(rule["type"])
                    isolating_rules.append({"type": "Isolate", "where": where})
                elif split:
                    self._disable_pieces(
                        lambda piece, split=split: _is_split(piece, *split)
                    )
                    self._report_unsupported(
                        f"{rule['type']}, which also splits text that is not "
                        "in the vocabulary,"
                    )
            except NotExpressible as error:
                self._report_unsupported(f"the pre-tokenizer {error}")
        return isolating_rules

    def _apply_metaspace(self, rule: dict) -> bool:
        """Apply `Metaspace`; return whether each text begins with ▁."""
        has_prefix = flag_of(rule, "add_prefix_space", True)
        scheme = rule.get("prepend_scheme", "always" if has_prefix else "never")
        if rule.get("replacement", WORD_MARK) != WORD_MARK:
            self._report_unsupported(f"Metaspace by {rule['replacement']!r}")
        spec = self.proto.normalizer_spec
        if spec.add_dummy_prefix != (scheme != "never"):
            spec.add_dummy_prefix = scheme != "never"
        if flag_of(rule, "split", True):
            self._disable_pieces(lambda piece: WORD_MARK in piece[1:])
        return scheme == "always"

    def _disable_pieces(self, is_split: Callable[[str], bool]) -> None:
        """Mark the pieces that the pre-tokenizer would split as unused."""
        for piece in self.proto.pieces:
            if piece.type == NORMAL and is_split(piece.piece):
                piece.type = UNUSED

    def _report_unsupported(self, feature: str) -> None:
        self.hub.differences.append(
            f"ids may differ: this package has no equivalent for {feature} in "
            f"{TOKENIZER_JSON}"
        )

    def _compile(self, rules: list[dict]) -> None:
        """Compile rules into the model's character map.

        The model also stores the rules themselves, as JSON.
        """
        table, unsupported = table_of(rules)
        for name in unsupported:
            self._report_unsupported(name)
        spec = self.proto.normalizer_spec
        spec.precompiled_charsmap = charsmap_of(table)
        spec.remove_extra_whitespaces = True
        keys = ("normalizer", "pre_tokenizer", "decoder")
        self._score_symbols()
        spec.normalization_rule_tsv = json.dumps(
            {key: self.hub.content.get(key) for key in keys}
        )
        names = ", ".join(rule["type"] for rule in rules) or "none"
        self.hub.notes.append(
            f"the text rules of {TOKENIZER_JSON} are compiled into the "
            f"vocabulary's character map: {names}"
        )

    def _score_symbols(self) -> None:
        """Turn user-defined symbols into scored pieces, as in `tokenizer.json`.

        Otherwise, a SentencePiece model would match the symbols before it
        applies its character map.
        """
        scores = dict(self.hub.model["vocab"])
        tokens = self.hub.content["added_tokens"]
        added = {token["content"] for token in tokens}
        for piece in self.proto.pieces:
            if piece.type == USER_DEFINED and piece.piece not in added:
                piece.type, piece.score = NORMAL, scores[piece.piece]

    def tokenizer(self, rows: int | None) -> Tokenizer:
        """Return the tokenizer that the files describe.

        For `rows`, see `hub_tokenizer.read_tokenizer`.
        """
        pieces = self.proto.pieces
        config, markers = self.text_config(), self.hub.markers()
        for token in self.hub.content.get("added_tokens", ()):
            id, special = token["id"], flag_of(token, "special", False)
            in_vocabulary = id < len(pieces) and pieces[id].type == NORMAL
            is_marker = id < len(pieces) and token["content"] in markers
            if is_marker or (in_vocabulary and not special):
                self._report_unsupported(
                    f"the added piece {token['content']}, which is in the "
                    "vocabulary,"
                )
        self._add(self.hub.added(len(pieces)), rows, config)
        names = [piece.piece for piece in pieces]
        for name in rename_special(self.hub, names, "sentencepiece"):
            if name in names:  # another name may have replaced it
                kind = UNKNOWN if name == "<unk>" else CONTROL
                pieces[names.index(name)].type = kind
        for piece, name in zip(pieces, names, strict=True):
            piece.piece = name
        content = self.proto.SerializeToString()
        if content == self.original and self.content:
            content = self.content  # byte for byte
        return SentencePieceTokenizer(content, config)

    def _add(self, added: list[Added], rows, config: TextConfig) -> None:
        """Append pieces at their ids; fill gaps with unused pieces."""
        for piece in fitting(self.hub, added, rows):
            while len(self.proto.pieces) < piece.id:
                name = f"[unused{len(self.proto.pieces)}]"
                self.proto.pieces.add(piece=name, score=0.0, type=UNUSED)
            name, kind = piece.piece, CONTROL
            if not piece.special:
                name = text_of_piece("sentencepiece", config, name)
                kind = USER_DEFINED
            for i, old in enumerate(self.proto.pieces):
                if old.piece == name:  # no longer matched in texts
                    old.piece, old.type = f"[unused{i}]", UNUSED
            self.proto.pieces.add(piece=name, score=0.0, type=kind)
