"""Conversion of a tokenizer to a `tokenizer.json` for the `tokenizers` library.

The text rules become rules of that library, so Hugging Face's classes produce
the same ids as our tokenizers, except in six cases:

- Special pieces in a text: Hugging Face's classes match all of them, but our
  tokenizers match only `[MASK]`.
- Numbers with a comma inside a word: see `digit_comma`.
- Words directly after `[MASK]` that are not a single piece.
- Texts with two segmentations of equal score.
- Decomposed letters of six bytes or more, which `Precompiled` does not compose.
- Texts whose first characters `Replace` replaces or drops, such as ``` `` ```:
  they do not begin with ▁ if no piece begins with ▁ and their first character.
"""

import base64
import functools
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable

from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.text.normalization import TextConfig, ranges
from albert_tf.text.sentencepiece_models import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    WORD_MARK,
)
from albert_tf.text.tokenizers import Tokenizer

TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
ADDED_TOKENS = "added_tokens.json"
# The roles of special pieces, in the order of `Tokenizer.special`.
ROLES = ("pad", "unk", "cls", "sep", "mask")
UNIGRAM = 1  # `ModelType` of a SentencePiece model
NEVER = -100.0  # a score so low that SentencePiece never chooses the piece

# A capital sigma at the end of a word. It needs a separate rule, because
# `tokenizers` lower-cases one character at a time.
FINAL_SIGMA = r"(?<=\p{Cased})Σ(?!\p{Case_Ignorable}*\p{Cased})"
END = r" +$"


def character_class(characters: Iterable[str]) -> str:
    """Return a regular expression that matches any of the characters."""
    texts = [f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in ranges(characters)]
    return f"[{''.join(texts)}]"


@functools.cache
def class_of(predicate: Callable[[str], object]) -> str:
    """Return a regular expression for characters that satisfy a predicate."""
    return character_class(
        filter(predicate, map(chr, range(sys.maxunicode + 1)))
    )


def replace(pattern: str, content: str) -> dict:
    """Return the rule that replaces matches of a pattern with a string."""
    regex = {"Regex": pattern}
    return {"type": "Replace", "pattern": regex, "content": content}


def text_rules(config: TextConfig) -> list[dict]:
    """Return the rules equivalent to `normalization.normalize`."""
    rules = [replace(f"{class_of(str.isspace)}+", " ")]
    if config.replace_quotes:
        rules.append(replace("``|''", '"'))
    if config.strip_accents:
        marks = class_of(unicodedata.combining)
        rules += [{"type": "NFKD"}, replace(marks, "")]
    if config.do_lower_case:
        rules += [replace(FINAL_SIGMA, "ς"), {"type": "Lowercase"}]
    return rules


def scored(proto, tokenizer: Tokenizer) -> list[list]:
    """Return [piece, score] pairs with SentencePiece's scores.

    The scores of pieces that our tokenizer never finds in a text are so low
    that these pieces are never chosen.
    """
    # As in SentencePiece, the best score is at least 0.
    best = max(0.0, *(p.score for p in proto.pieces if p.type == NORMAL))
    split = tokenizer.config.digit_comma != "none"
    textless = {
        piece.piece
        for piece in proto.pieces
        if piece.type in (BYTE, CONTROL, UNUSED)
    }
    textless -= {*tokenizer.special}  # matched before scores are used

    def score(piece) -> float:
        text = piece.piece
        if piece.type == USER_DEFINED:
            return len(text) * best - 0.1
        if text in textless or (split and re.search(r"\d,\Z", text)):
            return NEVER + piece.score
        return piece.score

    return [[piece.piece, score(piece)] for piece in proto.pieces]


def unigram(tokenizer: Tokenizer) -> dict | None:
    """Return the rules and the vocabulary of a SentencePiece model.

    The result is None if the model is not a unigram model, or if ▁ marks the
    ends of words.
    """
    proto = ModelProto.FromString(tokenizer.content)
    spec, trained = proto.normalizer_spec, proto.trainer_spec
    if trained.model_type != UNIGRAM or trained.treat_whitespace_as_suffix:
        return None
    model = {
        "type": "Unigram",
        "unk_id": tokenizer.unk_id,
        "vocab": scored(proto, tokenizer),
        "byte_fallback": trained.byte_fallback,
    }
    if spec.normalization_rule_tsv.startswith("{"):
        # These rules were compiled into the model's character map.
        return json.loads(spec.normalization_rule_tsv) | {"model": model}
    rules = text_rules(tokenizer.config)
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        rules.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    rules += [replace(" {2,}", " "), replace(END, "")]
    if not spec.add_dummy_prefix:
        rules.append(replace("^ +", ""))
    # After `[MASK]`, insert ▁ before a character that follows ▁ in a piece.
    pieces = [piece.piece for piece in proto.pieces]
    words = [x for x in pieces if x[:1] == WORD_MARK and x[1:]]
    splits = not any(WORD_MARK in piece[1:] for piece in pieces)
    if words and spec.add_dummy_prefix:
        letters = character_class(x[1] for x in words)
        rules.append(replace(f"^(?={letters})", " "))
    mark = {"type": "Metaspace", "replacement": WORD_MARK, "split": splits}
    schemes = ("first", "always") if spec.add_dummy_prefix else ("never",) * 2
    return {
        "normalizer": {"type": "Sequence", "normalizers": rules},
        "pre_tokenizer": mark | {"prepend_scheme": schemes[0]},
        "decoder": mark | {"prepend_scheme": schemes[1]},
        "model": model,
    }


def wordpiece(tokenizer: Tokenizer) -> dict:
    """Return the rules and the vocabulary of a WordPiece tokenizer."""
    config = tokenizer.config
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    prefix = "##"
    bert = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": config.do_lower_case and config.strip_accents,
        "lowercase": config.do_lower_case,
    }
    sigma = [replace(FINAL_SIGMA, "ς")] if config.do_lower_case else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*sigma, bert]},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": prefix, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": prefix,
            "max_input_chars_per_word": 200,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
        },
    }


def template(tokenizer: Tokenizer) -> dict:
    """Return the rule that packs one or two texts: `[CLS] a [SEP] b [SEP]`."""

    def special(name: str, segment: int) -> dict:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def text(name: str, segment: int) -> list[dict]:
        sequence = {"Sequence": {"id": name, "type_id": segment}}
        return [sequence, special("[SEP]", segment)]

    single = [special("[CLS]", 0), *text("A", 0)]
    ids = {"[CLS]": tokenizer.cls_id, "[SEP]": tokenizer.sep_id}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *text("B", 1)],
        "special_tokens": {
            name: {"id": name, "ids": [id], "tokens": [name]}
            for name, id in ids.items()
        },
    }


def special_pieces(tokenizer: Tokenizer) -> list[dict]:
    """Return the special pieces; [MASK] also matches the space before it."""
    mask = tokenizer.special[-1]
    ids = [getattr(tokenizer, f"{role}_id") for role in ROLES]
    return [
        {
            "id": id,
            "content": name,
            "single_word": False,
            "lstrip": name == mask,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for id, name in sorted(zip(ids, tokenizer.special, strict=True))
    ]


def tokenizer_json(tokenizer: Tokenizer) -> dict | None:
    """Return the content of `tokenizer.json`, or None; see `unigram`."""
    makers = {"sentencepiece": unigram, "wordpiece": wordpiece}
    rules = makers[tokenizer.kind](tokenizer)
    if rules is None:
        return None
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_pieces(tokenizer),
        "post_processor": template(tokenizer),
        **rules,
    }


def tokenizer_config(tokenizer: Tokenizer, max_length: int) -> dict:
    """Return the content of `tokenizer_config.json`."""
    text, names = tokenizer.config, [f"{role}_token" for role in ROLES]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "do_lower_case": text.do_lower_case,
        "keep_accents": not text.strip_accents,
        "replace_quotes": text.replace_quotes,
        "digit_comma": text.digit_comma,
        **dict(zip(names, tokenizer.special, strict=True)),
    }
