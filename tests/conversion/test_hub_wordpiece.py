"""WordPiece vocabularies in Hugging Face folders keep ids and known rules."""

import json
import re

import pytest
import vocabularies
from hub_tokenizers import BERT, of_transformers, replace, word_pieces, write

from albert_tf.base.errors import InputError
from albert_tf.conversion.hub_tokenizer import read_tokenizer


def sequence(*rules) -> dict:
    """Return a `Sequence` normalizer; each rule is a dict or a rule's name."""
    rules = [{"type": x} if isinstance(x, str) else x for x in rules]
    return {"type": "Sequence", "normalizers": rules}


SPLITS = {
    "type": "Sequence",
    "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Punctuation"}],
}


@pytest.mark.parametrize(
    ("rule", "settings", "lower", "strip"),
    [
        (BERT, {}, True, True),
        (BERT | {"lowercase": False}, {}, False, True),
        (BERT | {"strip_accents": False}, {}, True, False),
        (BERT, {"strip_accents": False}, True, False),
        (BERT, {"strip_accents": None, "do_lower_case": False}, False, True),
        ({"type": "BertNormalizer"}, {}, True, True),
        ({"type": "Lowercase"}, {}, True, False),
        (sequence("NFD", "Lowercase", "StripAccents"), {}, True, True),
        (sequence("Lowercase", "StripAccents"), {}, True, False),
        (sequence("NFD", "Lowercase"), {}, True, False),
        (sequence("NFD", "StripAccents"), {}, False, False),
        (None, {}, False, False),
        (None, {"do_lower_case": True, "strip_accents": True}, True, True),
        (None, {"do_lower_case": "true", "keep_accents": "false"}, True, True),
        (BERT, {"do_lower_case": "false", "strip_accents": 0}, False, False),
        (BERT | {"lowercase": "false", "strip_accents": "0"}, {}, False, False),
    ],
)
def test_settings_of_word_pieces(rule, settings, lower, strip, tmp_path):
    """Rules for case and accents apply unless settings override the rules."""
    folder = write(tmp_path, word_pieces(normalizer=rule), **settings)
    tokenizer, _ = read_tokenizer(folder)
    assert tokenizer.config.do_lower_case == lower
    assert tokenizer.config.strip_accents == strip


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, None),
        (
            {"normalizer": sequence(BERT, "Strip", replace(" ", "▁"))},
            None,
        ),
        ({"pre_tokenizer": SPLITS}, None),
        ({"normalizer": sequence(BERT, replace("a", "b"))}, "for Replace in"),
        ({"normalizer": {"type": "NFKC"}}, "no equivalent for NFKC"),
        (
            {"normalizer": sequence("NFKD", "Lowercase", "StripAccents")},
            "for NFKD in",
        ),
        (
            {"normalizer": sequence("NFD", "StripAccents")},
            "for NFD in.*for StripAccents in",
        ),
        ({"normalizer": {"type": "Lowercase"}}, "tokenize_chinese_chars"),
        ({"pre_tokenizer": None}, "the pre-tokenizer none in"),
        (
            {"normalizer": BERT | {"lowercase": False, "strip_accents": True}},
            "StripAccents without Lowercase",
        ),
        ({"normalizer": BERT | {"clean_text": False}}, "without clean_text"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "the pre-tokenizer White"),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [
                        {"Sequence": {"id": "A", "type_id": 0}},
                        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
                    ],
                }
            },
            r"packs texts as A:0 \[SEP\]:0 but",
        ),
        (
            {
                "post_processor": {
                    "type": "Sequence",
                    "processors": [
                        {"type": "ByteLevel"},
                        {"type": "RobertaProcessing"},
                    ],
                }
            },
            "packs texts as <s>:0 A:0 </s>:0 </s>:0 B:0 </s>:0 but",
        ),
        (
            {"normalizer": BERT | {"handle_chinese_chars": False}},
            "tokenize_chinese_chars",
        ),
    ],
)
def test_rules_of_word_pieces_that_are_not_ours(changes, named, tmp_path):
    """A warning names each unsupported rule; `strict` raises an error."""
    folder = write(tmp_path, word_pieces(**changes))
    _, warnings = read_tokenizer(folder)
    if named is None:
        assert not warnings and read_tokenizer(folder, strict=True)
        return
    with pytest.raises(InputError, match=f"With `strict`.*{named}"):
        read_tokenizer(folder, strict=True)
    assert re.search(named, "; ".join(warnings))


@pytest.mark.parametrize("setting", [True, "false"])
def test_the_setting_of_ideographs_overrides_the_rule(setting, tmp_path):
    """`tokenize_chinese_chars` overrides the rule of the normalizer.

    There is a warning about Chinese text only if ideographs are not split.
    """
    apart = setting is True
    content = word_pieces(normalizer=BERT | {"handle_chinese_chars": not apart})
    folder = write(tmp_path, content, tokenize_chinese_chars=setting)
    _, warnings = read_tokenizer(folder)
    assert any("ids of Chinese" in line for line in warnings) != apart


def test_numbers_of_word_pieces_stay(tmp_path):
    """Pieces keep their ids, even if the vocabulary skips some ids."""
    content = word_pieces()
    vocab = content["model"]["vocab"]
    moved = {piece: id + 3 * (id > 9) for piece, id in vocab.items()}
    plain, _ = read_tokenizer(write(tmp_path, content))
    content["model"]["vocab"] = moved
    found, _ = read_tokenizer(write(tmp_path, content))
    for text in vocabularies.TEXTS:
        pieces = plain.pieces(plain.encode(text))
        assert list(found.encode(text)) == [moved[x] for x in pieces]


def test_the_pieces_that_count_are_those_of_the_json(tmp_path):
    """If `tokenizer.json` differs from `vocab.txt`, `vocab.txt` is ignored."""
    content = word_pieces()
    pieces = list(content["model"]["vocab"])
    others = [*pieces[:6], *reversed(pieces[6:])]
    (tmp_path / "vocab.txt").write_text("\n".join(others), "utf-8")
    found, _ = read_tokenizer(write(tmp_path, content))
    assert found.pieces(range(found.vocab_size)) == pieces != others


def test_another_prefix_is_named(tmp_path):
    """A warning names a continuation prefix other than `##`."""
    content = word_pieces()
    content["model"]["continuing_subword_prefix"] = "@@"
    _, (warning,) = read_tokenizer(write(tmp_path, content))
    assert "no equivalent for the prefix '@@' in" in warning


def test_added_pieces_are_found_as_words(tmp_path):
    """An added word is lower-cased, unless it is split.

    It replaces a piece of the vocabulary with the same text, as in
    transformers.
    """
    content = word_pieces()
    size = len(content["model"]["vocab"])
    rows = [("Covid", 0), ("Zed", 1), ("The", 0), ("[E1]", 0), ("[E2]", 1)]
    for id, (name, special) in enumerate(rows, size + 2):
        row = {"id": id, "content": name}
        row |= {"special": True} if special else {}
        content["added_tokens"].append(row)
    found, warnings = read_tokenizer(write(tmp_path, content))
    assert found.pieces(range(size, found.vocab_size)) == [
        *(f"[unused{size}]", f"[unused{size + 1}]", "covid", "zed", "the"),
        *("[E1]", "[E2]"),
    ]
    assert found.encode("the") == [size + 4]
    assert warnings == [
        f"the added piece {piece} never matches, because WordPiece splits it"
        for piece in ("[E1]", "[E2]")
    ]


@pytest.mark.parametrize("special", [False, True])
def test_added_pieces_of_several_words_keep_their_rows(special, tmp_path):
    """An added piece that contains a space is unused; ids stay the same."""
    content = word_pieces()
    size = len(content["model"]["vocab"])
    for id, name in enumerate(["the cat", "the\u3000end", "zed"], size):
        row = {"id": id, "content": name, "special": special}
        content["added_tokens"].append(row)
    found, warnings = read_tokenizer(write(tmp_path, content))
    unused = [f"[unused{size}]", f"[unused{size + 1}]"]
    assert found.pieces(range(size, found.vocab_size)) == [*unused, "zed"]
    assert len(warnings) == 2


def test_a_vocabulary_alone_has_the_rules_of_bert(tmp_path):
    """A lone `vocab.txt` is kept byte for byte, and BERT's rules apply."""
    content = vocabularies.chinese().content
    (tmp_path / "vocab.txt").write_bytes(content)
    tokenizer, warnings = read_tokenizer(str(tmp_path))
    assert tokenizer.content == content and warnings == []
    assert tokenizer.config == vocabularies.chinese().config
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"strip_accents": True}))
    assert read_tokenizer(str(tmp_path))[1] == []
    path.write_text(json.dumps({"strip_accents": 1, "do_lower_case": False}))
    _, (warning,) = read_tokenizer(str(tmp_path))
    assert "StripAccents without Lowercase" in warning
    path.write_text(json.dumps({"do_lower_case": False}))
    assert read_tokenizer(str(tmp_path))[1] == []
    size = tokenizer.vocab_size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"zed": size}))
    found, _ = read_tokenizer(str(tmp_path))
    assert found.pieces([size]) == ["zed"]
    (tmp_path / "vocab.txt").write_bytes(b"a\nb\n")
    with pytest.raises(InputError, match="vocab.txt: .* must contain"):
        read_tokenizer(str(tmp_path))


@pytest.mark.parametrize("beside", [False, True])
def test_special_pieces_of_other_names(beside, tmp_path):
    """Special pieces swap names with pieces that have the released names.

    This is also the case if there is a `vocab.txt` with the same pieces.
    """
    content = word_pieces()
    vocab = content["model"]["vocab"]
    swap = {"[CLS]": "<s>", "the": "[CLS]", "[SEP]": "</s>"}
    content["model"]["vocab"] = {swap.get(x, x): i for x, i in vocab.items()}
    content["added_tokens"] = []
    if beside:
        lines = "\n".join(content["model"]["vocab"])
        (tmp_path / "vocab.txt").write_text(lines, "utf-8")
    folder = write(tmp_path, content, cls_token="<s>")
    found, warnings = read_tokenizer(folder)
    pieces = list(vocab)
    pieces[pieces.index("the")] = "<s>"
    assert found.pieces(range(found.vocab_size)) == pieces
    assert "<s> to [CLS], </s> to [SEP]" in " ".join(warnings)


def test_the_vocabulary_is_of_the_models_kind(tmp_path):
    """A `vocab.txt` next to a Unigram model in `tokenizer.json` is not read."""
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    content = of_transformers(vocabularies.english())
    tokenizer, warnings = read_tokenizer(write(tmp_path, content))
    assert tokenizer.kind == "sentencepiece" and not warnings
