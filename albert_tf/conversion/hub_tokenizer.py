"""The tokenizer of a Hugging Face folder, as its files describe it.

`tokenizer.json` has the text rules and the vocabulary, `spiece.model` or
`vocab.txt` only the vocabulary, `tokenizer_config.json` settings and names.
Whatever has no equivalent here is named in a warning.
"""

import re

from albert_tf.base.errors import require
from albert_tf.conversion.fast_tokenizer import TOKENIZER_JSON
from albert_tf.conversion.hub_sentencepiece import SentencePieceReader
from albert_tf.conversion.hub_wordpiece import wordpiece_tokenizer
from albert_tf.conversion.tokenizer_files import (
    HubFiles,
    find_vocabulary,
    whole,
)
from albert_tf.text.tokenizers import Tokenizer

# By the type of the model in `tokenizer.json`: the kind of tokenizer.
MODELS = {"Unigram": "sentencepiece", "WordPiece": "wordpiece"}
# Classes that treat text as ours do if there is no `tokenizer.json`.
CLASSES = re.compile(r"(Albert|Bert|PreTrained)Tokenizer(Fast)?|None")

# Texts are always padded and cut at the end here.
SIDES = {
    "padding_side": "texts are padded at the beginning",
    "truncation_side": "texts are cut at the beginning",
}
PIECE, TEXT = "SpecialToken", "Sequence"
SINGLE = [(PIECE, 0), (TEXT, 0), (PIECE, 0)]
# How texts are packed here: parts and their segments.
PACKED = {"single": SINGLE, "pair": [*SINGLE, (TEXT, 1), (PIECE, 1)]}


def _packs_otherwise(hub: HubFiles) -> str | None:
    """Return how `tokenizer.json` packs texts if not as we do."""
    rule = hub.content.get("post_processor") or {}
    rules = rule.get("processors", [rule])
    kinds = [rule.get("type") for rule in rules]
    if not hub.content or "BertProcessing" in kinds:
        return None
    if "RobertaProcessing" in kinds:
        return "<s>:0 A:0 </s>:0 </s>:0 B:0 </s>:0"
    if "TemplateProcessing" not in kinds:
        return "A B, without special pieces,"
    rule = rules[kinds.index("TemplateProcessing")]
    for name, ours in PACKED.items():
        parts = [next(iter(part.items())) for part in rule[name]]
        if [(kind, x["type_id"]) for kind, x in parts] != ours:
            return " ".join(f"{x['id']}:{x['type_id']}" for _, x in parts)
    return None


def _vocabulary(hub: HubFiles) -> tuple[str | None, str | None]:
    """Return the kind of a folder's tokenizer, and its vocabulary's path.

    The path is None if only `tokenizer.json` has the vocabulary. A model that
    cannot be read here is noted and removed from `hub`.
    """
    kind, path = find_vocabulary([hub.folder]) or (None, None)
    type_there = hub.type if hub.content else None
    if hub.content and type_there not in MODELS:
        hub.differences.append(
            f"{TOKENIZER_JSON} has a {type_there} model; only "
            f"{' and '.join(MODELS)} models can be read here"
        )
        hub.content = {}
    elif hub.content and MODELS[type_there] != kind:
        kind, path = MODELS[type_there], None
    name = str(hub.settings.get("tokenizer_class"))
    if kind and not hub.content and not CLASSES.fullmatch(name):
        hub.differences.append(
            f"ids may differ: the vocabulary belongs to a {name}, whose rules "
            "are not known here; `save_pretrained` of transformers writes a "
            f"{TOKENIZER_JSON} with them"
        )
    return kind, path


def _note_layout(hub: HubFiles) -> None:
    """Note if texts are packed, padded or cut differently there."""
    if packed := _packs_otherwise(hub):
        hub.differences.append(
            f"texts are packed as {packed} there, and here as [CLS]:0 A:0 "
            "[SEP]:0 B:1 [SEP]:1"
        )
    for name, what in SIDES.items():
        if hub.settings.get(name) == "left":
            hub.differences.append(f"{what} there, and at the end here")


def read_tokenizer(
    folder: str, rows: int | None = None, strict: bool = False
) -> tuple[Tokenizer | None, list[str]]:
    """Return the tokenizer of a Hugging Face folder, and warnings.

    Args:
      folder: where its files are.
      rows: of the word table; None accepts any number of pieces.
      strict: whether a difference from the tokenizer there is an error.

    Raises:
      InputError: a file is malformed, or `strict` is set and ids may differ.
    """
    hub, tokenizer = HubFiles.of(folder), None
    with whole(folder):
        kind, path = _vocabulary(hub)
        if kind == "sentencepiece":
            tokenizer = SentencePieceReader(hub, path).tokenizer(rows)
        elif kind == "wordpiece":
            tokenizer = wordpiece_tokenizer(hub, path, rows)
        _note_layout(hub)
    rule = "With `strict` the tokenizer must have an equivalent here: "
    require(
        not (strict and hub.differences),
        f"{rule}{'; '.join(hub.differences)}.",
        input=folder,
    )
    return tokenizer, [*hub.differences, *hub.notes]
