"""The tokenizer of a Hugging Face folder, as its files describe it.

`tokenizer.json` has the text rules and the vocabulary, `spiece.model` or
`vocab.txt` the vocabulary alone, `tokenizer_config.json` settings and names.
What cannot be done here is named.
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
# Classes that treat text as ours do where no `tokenizer.json` tells.
CLASSES = re.compile(r"(Albert|Bert|PreTrained)Tokenizer(Fast)?|None")


def _packs_otherwise(hub: HubFiles) -> str | None:
    """Return how `tokenizer.json` packs a text, if not as `[CLS] a [SEP]`."""
    rule = hub.content.get("post_processor") or {}
    if rule.get("type") != "TemplateProcessing":
        return None
    parts = [next(iter(part.items())) for part in rule["single"]]
    kinds = [kind for kind, _ in parts]
    if kinds == ["SpecialToken", "Sequence", "SpecialToken"]:
        return None
    return " ".join(value["id"] for _, value in parts)


def read_tokenizer(
    folder: str, rows: int | None = None, strict: bool = False
) -> tuple[Tokenizer | None, list[str]]:
    """Return the tokenizer of a Hugging Face folder, and warnings.

    Args:
      folder: where its files are.
      rows: how many rows the word table has, None if that does not matter.
      strict: whether a difference from the tokenizer there is an error.

    Raises:
      InputError: a file is not what it should be, or a difference is not
        allowed.
    """
    hub = HubFiles.of(folder)
    kind, path = find_vocabulary([folder]) or (None, None)
    tokenizer = None
    with whole(folder):
        type_there = hub.model.get("type", "Unigram") if hub.content else None
        if hub.content and type_there not in MODELS:
            hub.differences.append(
                f"{TOKENIZER_JSON} has a {type_there} model, of which there is "
                f"no tokenizer here, only of {' and '.join(MODELS)}"
            )
            hub.content = {}
        elif hub.content and MODELS[type_there] != kind:
            kind, path = MODELS[type_there], None
        name = str(hub.settings.get("tokenizer_class"))
        if kind and not hub.content and not CLASSES.fullmatch(name):
            hub.differences.append(
                f"ids may differ: the vocabulary is one of {name}, whose rules "
                "are not known here; `save_pretrained` of transformers writes "
                f"a {TOKENIZER_JSON}"
            )
        if kind == "sentencepiece":
            tokenizer = SentencePieceReader(hub, path).tokenizer(rows)
        elif kind == "wordpiece":
            tokenizer = wordpiece_tokenizer(hub, path, rows)
        packed = _packs_otherwise(hub)
    if packed:
        hub.differences.append(
            f"texts are packed as {packed} there, and as [CLS] a [SEP] here"
        )
    rule = "With `strict` the tokenizer must be expressible here: "
    require(
        not (strict and hub.differences),
        f"{rule}{'; '.join(hub.differences)}.",
        input=folder,
    )
    return tokenizer, [*hub.differences, *hub.notes]
