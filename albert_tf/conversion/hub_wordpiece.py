"""A WordPiece tokenizer made from a Hugging Face folder's."""

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.conversion.fast_tokenizer import TOKENIZER_JSON
from albert_tf.conversion.text_rules import flat, only_spaces
from albert_tf.conversion.tokenizer_files import (
    HubFiles,
    Like,
    fitting,
    flag_of,
    renamed,
)
from albert_tf.text.added_pieces import text_of_piece
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizers import KINDS, Tokenizer
from albert_tf.text.wordpiece import vocabulary_lines

CHINESE = "tokenize_chinese_chars"  # of `tokenizer_config.json`


def wordpiece_tokenizer(
    hub: HubFiles, path: str | None, rows: int | None
) -> Tokenizer:
    """Return the WordPiece tokenizer of a folder's files."""
    content = files.read_bytes(path) if path else b""
    lines = vocabulary_lines(content) if path else []
    ids = hub.model.get("vocab", {})
    theirs = [f"[unused{i}]" for i in range(max(ids.values(), default=-1) + 1)]
    for piece, id in ids.items():
        theirs[id] = piece
    if theirs and theirs != lines:
        lines, content = theirs, b""
    config = wordpiece_config(hub)
    added = fitting(hub, hub.added(len(lines)), rows)
    for piece in added:
        while len(lines) < piece.id:
            lines.append(f"[unused{len(lines)}]")
        name = text_of_piece(Like("wordpiece", config), piece.piece)
        if not piece.special and name is None:
            hub.differences.append(
                f"the added {piece.piece} is never found in texts, because "
                "WordPiece splits it"
            )
        fresh = name and not piece.special and name not in lines
        lines.append(name if fresh else piece.piece)
    names = renamed(hub, lines, "wordpiece")
    for old, new in names.items():
        place = lines.index(old)
        if new in lines:
            lines[lines.index(new)] = old
        lines[place] = new
    if not content or added or names:
        content = "\n".join(lines).encode()
    try:
        return KINDS["wordpiece"](content, config)
    except InputError as error:
        raise InputError(f"{error} ({path or hub.folder})") from None


def _normalizer(hub: HubFiles) -> tuple[dict[str, bool], dict, list[str]]:
    """Read the normalizer of `tokenizer.json`.

    Returns:
      the settings of `TextConfig` that its rules imply; its `BertNormalizer`,
      or {}; and the rules for which WordPiece has no setting.
    """
    rules = [
        rule
        for rule in flat(hub.content.get("normalizer"))
        if rule["type"] != "Strip"
        and not (
            rule["type"] == "Replace"
            and only_spaces(rule["pattern"], rule["content"])
        )
    ]
    others = {rule["type"] for rule in rules} - {"BertNormalizer"}
    bert = next((r for r in rules if r["type"] == "BertNormalizer"), {})
    if bert:
        unclean = not flag_of(bert, "clean_text", True)
        cannot = ["BertNormalizer without clean_text"] * unclean
        known = {
            "do_lower_case": flag_of(bert, "lowercase", True),
            # By default accents are stripped along with capitals.
            "strip_accents": flag_of(bert, "strip_accents", True),
        }
        return known, bert, [*cannot, *sorted(others)]
    if not hub.content:
        return {}, bert, []
    strips = {"StripAccents", "Lowercase"} <= others
    strips = strips and bool(others & {"NFD", "NFKD"})
    known = {"do_lower_case": "Lowercase" in others, "strip_accents": strips}
    others -= {"Lowercase", *(("NFD", "StripAccents") if strips else ())}
    return known, bert, sorted(others)


def wordpiece_config(hub: HubFiles) -> TextConfig:
    """Return the settings of WordPiece; note what they cannot express."""
    known, bert, cannot = _normalizer(hub)
    apart = bool(bert) or not hub.content
    apart = flag_of(bert, "handle_chinese_chars", apart)
    known |= hub.accents()
    strips = flag_of(bert, "strip_accents", False)
    if not hub.rules_alone:
        given = hub.flags("do_lower_case", "strip_accents")
        known |= given
        strips = strips or given.get("strip_accents")
        apart = hub.flags(CHINESE).get(CHINESE, apart)
    if strips and not known.get("do_lower_case", True):
        cannot.append("StripAccents without Lowercase")
    for name in [*cannot, *_other_splits(hub)]:
        hub.differences.append(
            f"ids may differ: WordPiece here has no equivalent for {name}, of "
            f"{TOKENIZER_JSON}"
        )
    if not apart:
        hub.differences.append(
            "here each Chinese character is a word; there "
            f"{CHINESE} is false, and ids of Chinese differ"
        )
    return TextConfig(**known)


def _other_splits(hub: HubFiles) -> list[str]:
    """Return the parts of the pre-tokenizer that are not BERT's."""
    if not hub.content:
        return []
    rules = list(flat(hub.content.get("pre_tokenizer")))
    names = [rule["type"] for rule in rules]
    prefix = hub.model.get("continuing_subword_prefix", "##")
    found = [f"the prefix {prefix!r}"] if prefix != "##" else []
    if names == ["BertPreTokenizer"] or {*names} == {
        "WhitespaceSplit",
        "Punctuation",
    }:
        return found
    return [*found, f"the pre-tokenizer {', '.join(names) or 'none'}"]
