"""Special pieces, packing and settings of Hugging Face tokenizers are read."""

import json

import pytest
import vocabularies
from hub_tokenizers import (
    BERT,
    of_transformers,
    with_symbols,
    word_pieces,
    write,
)

from albert_tf.base.errors import InputError
from albert_tf.conversion.hub_tokenizer import read_tokenizer
from albert_tf.conversion.tokenizer_json import tokenizer_json
from albert_tf.text.tokenizers import SentencePieceTokenizer


def test_special_pieces_of_other_names(tmp_path):
    """Special pieces with different names get the released names.

    A warning lists the changed names.
    """
    tokenizer = vocabularies.english()
    content = of_transformers(tokenizer)
    names = {"<pad>": "[PAD]", "<unk>": "[UNK]", "[CLS]": "<s>"}
    names |= {"[SEP]": "</s>", "[MASK]": "<mask>"}
    for row in content["model"]["vocab"]:
        row[0] = names.get(row[0], row[0])
    for token in content["added_tokens"]:
        token["content"] = names[token["content"]]
    folder = write(tmp_path, content)
    config = {"cls_token": {"content": "<s>"}, "mask_token": "<mask>"}
    for settings in ({}, config):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        again, warnings = read_tokenizer(folder)
        assert "<mask> to [MASK]" in " ".join(warnings)
        for text in ("the cat [MASK]", "12, cafe"):
            plain = SentencePieceTokenizer(
                tokenizer.content, again.config
            ).encode_masked(text)
            assert again.encode_masked(text) == plain


MARKERS = [
    {"additional_special_tokens": ["[E1]", {"content": "zed"}, "<mask>"]},
    {"extra_special_tokens": ["[E1]", "zed", "<mask>"]},
    {"extra_special_tokens": {"one": "[E1]", "two": "zed", "three": "<mask>"}},
]


@pytest.mark.parametrize(
    "settings", [*MARKERS, {}], ids=["list", "new", "dict", "none"]
)
def test_markers_are_found_in_texts(settings, tmp_path):
    """Special pieces that have no role, such as markers, are found in texts.

    As in transformers, the settings need not list these pieces. Texts do not
    contain other special pieces.
    """
    tokenizer = vocabularies.english()
    content, size = tokenizer_json(tokenizer), tokenizer.vocab_size
    for id, name in enumerate(("[E1]", "[E2]", "zed", "<mask>"), size):
        row = {"id": id, "content": name, "special": True}
        content["added_tokens"].append(row)
    folder = write(tmp_path, content, mask_token="<mask>", **settings)
    again, _ = read_tokenizer(folder)
    ids = again.encode("the [E1]cat [E2] zed <mask>")
    assert [id - size for id in ids if id >= size] == [0, 1, 2]


def test_markers_of_the_vocabulary_are_named(tmp_path):
    """A warning names a marker that a tokenizer would not find in texts."""
    settings = {"additional_special_tokens": ["[X1]"]}
    content = word_pieces()
    vocab = content["model"]["vocab"]
    vocab["[X1]"] = len(vocab)
    _, warnings = read_tokenizer(write(tmp_path, content, **settings))
    (warning,) = [line for line in warnings if "[X1]" in line]
    assert "[X1] never matches, because WordPiece splits it" in warning
    content = of_transformers(vocabularies.english())
    content["model"]["vocab"].append(["[X1]", 0.0])
    id = len(content["model"]["vocab"]) - 1
    row = {"id": id, "content": "[X1]", "special": True}
    content["added_tokens"].append(row)
    _, (warning,) = read_tokenizer(write(tmp_path, content, **settings))
    assert "the added piece [X1], which is in the vocabulary" in warning


@pytest.mark.parametrize("make", ["english", "chinese"])
def test_special_pieces_behind_the_vocabulary(make, tmp_path):
    """Pieces in `added_tokens.json` keep their ids; gaps in ids are filled."""
    tokenizer = getattr(vocabularies, make)()
    size = tokenizer.vocab_size
    folder = write(tmp_path, tokenizer_json(tokenizer))
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    rename = {"[MASK]": "old1", "[CLS]": "old2"}
    if make == "english":
        for row in vocab:
            row[0] = rename.get(row[0], row[0])
    else:
        content["model"]["vocab"] = {
            rename.get(piece, piece): id for piece, id in vocab.items()
        }
    content["added_tokens"] = []
    write(tmp_path, content, mask_token="[MASK]", cls_token="[CLS]")
    added = {"[CLS]": size, "[MASK]": size + 2, "cat": 1, "far": 9999}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    again, warnings = read_tokenizer(folder, rows=size + 8)
    assert (again.cls_id, again.mask_id) == (size, size + 2)
    assert again.vocab_size == size + 3
    assert again.encode_masked("[MASK]")[-1:] == [size + 2]
    assert "the added pieces far are omitted" in " ".join(warnings)
    with pytest.raises(InputError, match="embedding table has only"):
        read_tokenizer(folder, rows=size + 8, strict=True)


def test_other_files(tmp_path):
    """An unsupported model causes a warning, and a broken file is rejected.

    The error names both files whose content may be the cause.
    """
    assert read_tokenizer(str(tmp_path)) == (None, [])
    folder = write(tmp_path, {"model": {"type": "BPE"}})
    tokenizer, (warning,) = read_tokenizer(folder)
    assert tokenizer is None and "a BPE model" in warning
    content = of_transformers(with_symbols())
    for key in ("normalizer", "added_tokens", "model"):
        folder = write(tmp_path, content | {key: "odd"})
        with pytest.raises(InputError, match=rf"\.json.*folder={folder}$"):
            read_tokenizer(folder)
    folder = write(tmp_path, content, added_tokens_decoder={"5": "odd"})
    with pytest.raises(InputError, match="`tokenizer_config.json` must"):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda rule: None,
        lambda rule: {"type": "ByteLevel"},
        lambda rule: {"type": "RobertaProcessing"},
        lambda rule: rule | {"pair": [*rule["single"], *rule["pair"][2:]]},
        lambda rule: rule | {"pair": rule["pair"][:3] + rule["pair"][:2]},
        lambda rule: {
            "type": "Sequence",
            "processors": [rule | {"single": rule["single"][1:]}],
        },
    ],
)
def test_another_packing_is_named(change, tmp_path):
    """A warning names any unsupported packing of texts, pairs or segments."""
    usual = tokenizer_json(vocabularies.english())
    rule = usual["post_processor"]
    for same in (
        rule,
        {"type": "BertProcessing"},
        {"type": "Sequence", "processors": [{"type": "ByteLevel"}, rule]},
    ):
        folder = write(tmp_path, usual | {"post_processor": same})
        assert read_tokenizer(folder, strict=True)[1] == []
    folder = write(tmp_path, usual | {"post_processor": change(rule)})
    _, warnings = read_tokenizer(folder)
    assert len(warnings) == 1 and "packs them as" in warnings[0]


@pytest.mark.parametrize("make", ["english", "chinese"])
def test_the_left_side_is_named(make, tmp_path):
    """With `strict`, truncation or padding at the beginning raises an error."""
    content = tokenizer_json(getattr(vocabularies, make)())
    for name, word in {
        "padding_side": "padded",
        "truncation_side": "truncated",
    }.items():
        folder = write(tmp_path, content, **{name: "left"})
        with pytest.raises(InputError, match=f"{word} at the beginning"):
            read_tokenizer(folder, strict=True)
        folder = write(tmp_path, content, **{name: "right"})
        assert read_tokenizer(folder)[1] == []


@pytest.mark.parametrize(
    ("rule", "word"), [("padding", "padded"), ("truncation", "truncated")]
)
def test_the_left_side_of_a_rule_is_named(rule, word, tmp_path):
    """Without a side in the settings, the rule in `tokenizer.json` counts.

    transformers writes only this rule if the side is set after loading.
    """
    content = tokenizer_json(vocabularies.chinese())
    content[rule] = {"direction": "Left"}
    _, (warning,) = read_tokenizer(write(tmp_path, content))
    assert f"{word} at the beginning" in warning
    folder = write(tmp_path, content, **{f"{rule}_side": "right"})
    assert read_tokenizer(folder)[1] == []


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(
    ("name", "has_settings"),
    [
        ("PreTrainedTokenizerFast", False),
        ("TokenizersBackend", False),  # its name in transformers 5
        ("AlbertTokenizerFast", True),
        ("BertTokenizerFast", True),
    ],
)
def test_rules_count_where_a_class_has_no_settings(
    name, has_settings, lower, tmp_path
):
    """For `PreTrainedTokenizerFast`, settings for lower-casing are ignored.

    Only the rules in `tokenizer.json` apply. For other classes, the settings
    apply, too.
    """
    settings = {
        "tokenizer_class": name,
        "do_lower_case": not lower,
        "replace_quotes": True,
    }
    rules = [{"type": "Lowercase"}] if lower else []
    content = of_transformers(vocabularies.english(), *rules)
    tokenizer, _ = read_tokenizer(write(tmp_path, content, **settings))
    lowers = lower != has_settings
    assert tokenizer.config.do_lower_case == lowers
    assert tokenizer.config.replace_quotes == has_settings
    bert = BERT | {"lowercase": lower}
    content = word_pieces(normalizer=bert)
    tokenizer, _ = read_tokenizer(write(tmp_path, content, **settings))
    assert tokenizer.config.do_lower_case == lowers


@pytest.mark.parametrize("make", ["english", "chinese"])
def test_older_files_leave_the_type_out(make, tmp_path):
    """If a file omits the model's type, the vocabulary determines the type."""
    content = tokenizer_json(getattr(vocabularies, make)())
    wanted, _ = read_tokenizer(write(tmp_path, content))
    del content["model"]["type"]
    found, _ = read_tokenizer(write(tmp_path, content))
    assert found.fingerprint() == wanted.fingerprint()
