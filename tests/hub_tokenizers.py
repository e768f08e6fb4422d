"""Tokenizers in the format of Hugging Face folders."""

import base64
import json

import vocabularies
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.conversion.tokenizer_json import template, tokenizer_json
from albert_tf.text.normalization import TextConfig
from albert_tf.text.sentencepiece_models import NORMAL, USER_DEFINED
from albert_tf.text.tokenizers import SentencePieceTokenizer

CASED = TextConfig(do_lower_case=False)
BERT = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}
METASPACE = {"type": "Metaspace", "prepend_scheme": "always"}
WORDS = {
    "type": "Sequence",
    "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE],
}


def write(folder, content, **settings) -> str:
    """Write `tokenizer.json` and settings; return the folder."""
    (folder / "tokenizer.json").write_text(json.dumps(content))
    if settings:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(settings))
    return str(folder)


def with_symbols() -> SentencePieceTokenizer:
    """Return a tokenizer with user-defined pieces, as in the release."""
    proto = ModelProto.FromString(vocabularies.sentencepiece_model())
    for symbol in ("–", "''", "caf"):
        proto.pieces.add(piece=symbol, score=0.0, type=USER_DEFINED)
    return SentencePieceTokenizer(proto.SerializeToString(), CASED)


def replace(text: str, content: str) -> dict:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def of_transformers(tokenizer: SentencePieceTokenizer, *rules) -> dict:
    """Return a tokenizer's `tokenizer.json` as transformers 5 writes it.

    `rules` are normalizers that come before the tokenizer's own.
    """
    proto = ModelProto.FromString(tokenizer.content)
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap)
    rule = {"type": "Precompiled", "precompiled_charsmap": charsmap.decode()}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*rules, rule]},
        "pre_tokenizer": WORDS,
        "post_processor": template(tokenizer),
        "added_tokens": [
            {"id": i, "content": p.piece}
            | ({"special": True} if p.type != USER_DEFINED else {})
            for i, p in enumerate(proto.pieces)
            if p.type != NORMAL
        ],
        "model": {
            "type": "Unigram",
            "unk_id": 1,
            "vocab": [[p.piece, p.score] for p in proto.pieces],
        },
    }


def word_pieces(**content) -> dict:
    """Return a `tokenizer.json` for a WordPiece vocabulary."""
    return tokenizer_json(vocabularies.chinese()) | content
