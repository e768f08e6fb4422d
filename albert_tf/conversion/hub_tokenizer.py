"""Reader for the tokenizer of a Hugging Face folder.

`tokenizer.json` contains the text rules and the vocabulary. `spiece.model` or
`vocab.txt` contains only the vocabulary. `tokenizer_config.json` contains the
settings and the names of special pieces. Warnings list everything that has no
equivalent in this package.
"""

import re

from albert_tf.base import files
from albert_tf.base.errors import errors_in, input_errors, require
from albert_tf.conversion.hub_sentencepiece import SentencePieceReader
from albert_tf.conversion.text_rules import flat, only_spaces
from albert_tf.conversion.tokenizer_files import (
    MALFORMED,
    Added,
    HubFiles,
    check_ids,
    find_vocabulary,
    fitting,
    flag_of,
    rename_special,
)
from albert_tf.conversion.tokenizer_json import (
    FINAL_SIGMA,
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
    replace,
)
from albert_tf.text.added_pieces import text_of_piece
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizers import TOKENIZERS, Tokenizer
from albert_tf.text.wordpiece import vocabulary_lines

CHINESE = "tokenize_chinese_chars"  # in `tokenizer_config.json`


def _append(lines: list[str], added: list[Added], config: TextConfig) -> None:
    """Append pieces to a vocabulary at their ids; fill gaps in the ids."""
    for piece in added:
        while len(lines) < piece.id:
            lines.append(f"[unused{len(lines)}]")
        name = piece.piece
        if not piece.special:
            name = text_of_piece("wordpiece", config, name) or name
        if len(name.split()) != 1:  # a line can contain only one word
            name = f"[unused{piece.id}]"
        if name in lines:  # no longer matched in texts
            old = lines.index(name)
            lines[old] = f"[unused{old}]"
        lines.append(name)


def wordpiece_tokenizer(
    hub: HubFiles, path: str | None, rows: int | None
) -> Tokenizer:
    """Return the WordPiece tokenizer that a folder's files describe.

    Args:
      hub: the files, whose `differences` and `notes` are extended.
      path: the vocabulary, or None if only `tokenizer.json` contains it.
      rows: see `read_tokenizer`.
    """
    content = files.read_bytes(path) if path else b""
    lines = vocabulary_lines(content) if path else []
    ids = hub.model.get("vocab", {})
    check_ids(ids.values(), 0)
    json_pieces = [
        f"[unused{i}]" for i in range(max(ids.values(), default=-1) + 1)
    ]
    for piece, id in ids.items():
        json_pieces[id] = piece
    if json_pieces and json_pieces != lines:
        lines, content = json_pieces, b""
    config = wordpiece_config(hub)
    added = fitting(hub, hub.added(len(lines)), rows)
    in_texts = [piece.piece for piece in added if not piece.special]
    for name in [*sorted(hub.markers() & {*lines}), *in_texts]:
        if text_of_piece("wordpiece", config, name) is None:
            hub.differences.append(
                f"the added piece {name} never matches, because WordPiece "
                "splits it"
            )
    _append(lines, added, config)
    renamed = rename_special(hub, lines, "wordpiece")
    if not content or added or renamed:
        content = "\n".join(lines).encode()
    with errors_in(path or hub.folder):
        return TOKENIZERS["wordpiece"](content, config)


def _normalizer(hub: HubFiles) -> tuple[dict[str, bool], dict, list[str]]:
    """Read the normalizer of `tokenizer.json`.

    Returns:
      The settings of `TextConfig` that the rules imply; the `BertNormalizer`,
      or {}; and the rules that WordPiece cannot express.
    """
    rules = [
        rule
        for rule in flat(hub.content.get("normalizer"))
        if rule["type"] != "Strip"
        and rule != replace(FINAL_SIGMA, "ς")
        and not (
            rule["type"] == "Replace"
            and only_spaces(rule["pattern"], rule["content"])
        )
    ]
    types = {rule["type"] for rule in rules} - {"BertNormalizer"}
    bert = next((r for r in rules if r["type"] == "BertNormalizer"), {})
    if bert:
        unclean = not flag_of(bert, "clean_text", True)
        unsupported = ["BertNormalizer without clean_text"] * unclean
        settings = {
            "do_lower_case": flag_of(bert, "lowercase", True),
            # By default, lower-casing also strips accents.
            "strip_accents": flag_of(bert, "strip_accents", True),
        }
        return settings, bert, [*unsupported, *sorted(types)]
    if not hub.content:
        return {}, bert, []
    strips_accents = {"StripAccents", "Lowercase"} <= types
    strips_accents = strips_accents and bool(types & {"NFD", "NFKD"})
    settings = {
        "do_lower_case": "Lowercase" in types,
        "strip_accents": strips_accents,
    }
    types -= {"Lowercase", *(("NFD", "StripAccents") if strips_accents else ())}
    return settings, bert, sorted(types)


def wordpiece_config(hub: HubFiles) -> TextConfig:
    """Return WordPiece settings; record rules that settings cannot express."""
    settings, bert, unsupported = _normalizer(hub)
    isolates_chinese = bool(bert) or not hub.content
    isolates_chinese = flag_of(bert, "handle_chinese_chars", isolates_chinese)
    settings |= hub.accents()
    strips_accents = flag_of(bert, "strip_accents", False)
    if not hub.uses_only_json:
        flags = hub.flags("do_lower_case", "strip_accents")
        settings |= flags
        strips_accents = strips_accents or flags.get("strip_accents")
        isolates_chinese = hub.flags(CHINESE).get(CHINESE, isolates_chinese)
    if strips_accents and not settings.get("do_lower_case", True):
        unsupported.append("StripAccents without Lowercase")
    for name in [*unsupported, *_split_differences(hub)]:
        hub.differences.append(
            "ids may differ: the WordPiece of this package has no equivalent "
            f"for {name} in {TOKENIZER_JSON}"
        )
    if not isolates_chinese:
        hub.differences.append(
            "this package isolates Chinese characters, but the source sets "
            f"{CHINESE} to false, so ids of Chinese text differ"
        )
    return TextConfig(**settings)


def _split_differences(hub: HubFiles) -> list[str]:
    """Return descriptions of how word splitting differs from BERT's."""
    if not hub.content:
        return []
    rules = list(flat(hub.content.get("pre_tokenizer")))
    names = [rule["type"] for rule in rules]
    prefix = hub.model.get("continuing_subword_prefix", "##")
    differences = [f"the prefix {prefix!r}"] if prefix != "##" else []
    if names == ["BertPreTokenizer"] or {*names} == {
        "WhitespaceSplit",
        "Punctuation",
    }:
        return differences
    return [*differences, f"the pre-tokenizer {', '.join(names) or 'none'}"]


# {model type in `tokenizer.json`: kind of tokenizer}
MODELS = {"Unigram": "sentencepiece", "WordPiece": "wordpiece"}
# Classes that, without a `tokenizer.json`, process text as our tokenizers do.
CLASSES = re.compile(r"(Albert|Bert|PreTrained)Tokenizer(Fast)?|None")

# Our tokenizers always pad and truncate texts at the end.
SIDES = {"padding": "padded", "truncation": "truncated"}
PIECE, TEXT = "SpecialToken", "Sequence"
SINGLE = [(PIECE, 0), (TEXT, 0), (PIECE, 0)]
# How our tokenizers pack texts: parts and their segment ids.
PACKED = {"single": SINGLE, "pair": [*SINGLE, (TEXT, 1), (PIECE, 1)]}


def _different_packing(hub: HubFiles) -> str | None:
    """Return the packing of texts or pairs if ours differs, otherwise None."""
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
    for name, expected in PACKED.items():
        parts = [next(iter(part.items())) for part in rule[name]]
        if [(kind, x["type_id"]) for kind, x in parts] != expected:
            return " ".join(f"{x['id']}:{x['type_id']}" for _, x in parts)
    return None


def _vocabulary(hub: HubFiles) -> tuple[str | None, str | None]:
    """Return the kind of a folder's tokenizer and the vocabulary's path.

    The path is None if only `tokenizer.json` contains the vocabulary. The
    function records a model of an unsupported type as a difference and removes
    the model from `hub`.
    """
    kind, path = find_vocabulary([hub.folder]) or (None, None)
    model_type = hub.type if hub.content else None
    if hub.content and model_type not in MODELS:
        hub.differences.append(
            f"{TOKENIZER_JSON} has a {model_type} model; only "
            f"{' and '.join(MODELS)} models are supported"
        )
        hub.content.clear()
    elif hub.content and MODELS[model_type] != kind:
        kind, path = MODELS[model_type], None
    name = str(hub.settings.get("tokenizer_class"))
    if kind and not hub.content and not CLASSES.fullmatch(name):
        hub.differences.append(
            f"ids may differ: the vocabulary belongs to a {name}, whose rules "
            "are unknown; `save_pretrained` of transformers writes the rules "
            f"to a {TOKENIZER_JSON}"
        )
    return kind, path


def _note_layout(hub: HubFiles) -> None:
    """Record differences in packing, padding and truncation."""
    if packing := _different_packing(hub):
        hub.differences.append(
            f"the source packs texts as {packing} but this package packs them "
            "as [CLS]:0 A:0 [SEP]:0 B:1 [SEP]:1"
        )
    for name, verb in SIDES.items():
        # If the settings omit the side, `tokenizer.json` may contain it.
        side = (hub.content.get(name) or {}).get("direction")
        side = hub.settings.get(f"{name}_side") or side
        if str(side).lower() == "left":
            hub.differences.append(
                f"texts are {verb} at the beginning in the source, and at the "
                "end in this package"
            )


def read_tokenizer(
    folder: str, rows: int | None = None, strict: bool = False
) -> tuple[Tokenizer | None, list[str]]:
    """Read the tokenizer of a Hugging Face folder; return it and warnings.

    The tokenizer is None if the folder has no supported vocabulary.

    Args:
      folder: the folder with the tokenizer's files.
      rows: the number of rows in the embedding table, which limits the number
        of pieces; None means no limit.
      strict: whether a difference from the source tokenizer is an error.

    Raises:
      InputError: if a file is malformed, or if the tokenizers differ and
        `strict` is set.
    """
    hub, tokenizer = HubFiles.of(folder), None
    rule = f"`{TOKENIZER_JSON}` and `{TOKENIZER_CONFIG}` must have the form "
    rule += "that transformers writes"
    with input_errors(MALFORMED, rule, folder=folder):
        kind, path = _vocabulary(hub)
        if kind == "sentencepiece":
            tokenizer = SentencePieceReader(hub, path).tokenizer(rows)
        elif kind == "wordpiece":
            tokenizer = wordpiece_tokenizer(hub, path, rows)
        _note_layout(hub)
    rule = "With `strict`, the tokenizer must have an exact equivalent: "
    require(
        not (strict and hub.differences),
        f"{rule}{'; '.join(hub.differences)}.",
        input=folder,
    )
    return tokenizer, [*hub.differences, *hub.notes]
