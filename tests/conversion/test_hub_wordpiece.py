"""WordPiece vocabularies in Hugging Face folders: settings and rules."""

import re

import pytest
import vocabularies
from hub_tokenizers import BERT, word_pieces, write

from albert_tf.base.errors import InputError
from albert_tf.conversion.hub_tokenizer import read_tokenizer


@pytest.mark.parametrize(
    ("rule", "settings", "lower", "strip"),
    [
        (BERT, {}, True, True),
        (BERT | {"lowercase": False}, {}, False, True),
        (BERT | {"strip_accents": False}, {}, True, False),
        (BERT, {"strip_accents": False}, True, False),
        (BERT, {"strip_accents": None, "do_lower_case": False}, False, True),
        ({"type": "Lowercase"}, {}, True, False),
        (None, {}, False, False),
        (None, {"do_lower_case": True, "strip_accents": True}, True, True),
        (None, {"do_lower_case": "true", "keep_accents": "false"}, True, True),
        (BERT, {"do_lower_case": "false", "strip_accents": 0}, False, False),
        (BERT | {"lowercase": "false", "strip_accents": "0"}, {}, False, False),
    ],
)
def test_settings_of_word_pieces(rule, settings, lower, strip, tmp_path):
    """The rules in the file apply where the settings are silent."""
    folder = write(tmp_path, word_pieces(normalizer=rule), **settings)
    tokenizer, _ = read_tokenizer(folder)
    assert tokenizer.config.do_lower_case == lower
    assert tokenizer.config.strip_accents == strip


@pytest.mark.parametrize(
    ("rule", "settings", "name"),
    [
        (BERT, {"do_lower_case": "yes"}, "do_lower_case"),
        (BERT, {"keep_accents": []}, "keep_accents"),
        (BERT | {"lowercase": "yes"}, {}, "lowercase"),
    ],
)
def test_flags_must_be_booleans(rule, settings, name, tmp_path):
    """A flag that is not a Boolean raises an error instead of a default."""
    folder = write(tmp_path, word_pieces(normalizer=rule), **settings)
    with pytest.raises(InputError, match=f"`{name}` must be true or false"):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, None),
        ({"normalizer": {"type": "NFKC"}}, "no equivalent for NFKC"),
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
    assert any(re.search(named, line) for line in warnings)


@pytest.mark.parametrize("setting", [True, "false"])
def test_the_setting_of_ideographs_overrides_the_rule(setting, tmp_path):
    """Chinese ids cause a warning only if ideographs are not split."""
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
