"""The tokenizer of a folder: its vocabulary, its rules, its special pieces."""

import base64
import json
import re

import pytest
import vocabularies
from conversions import release
from sentencepiece import sentencepiece_model_pb2

from albert_tf.base.errors import InputError
from albert_tf.conversion.converter import convert
from albert_tf.conversion.fast_tokenizer import template, tokenizer_json
from albert_tf.conversion.hub_tokenizer import read_tokenizer
from albert_tf.conversion.huggingface import write_tokenizer
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizers import SentencePieceTokenizer, load_tokenizer

CASED = TextConfig(do_lower_case=False)
METASPACE = {"type": "Metaspace", "prepend_scheme": "always"}
WORDS = {
    "type": "Sequence",
    "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE],
}


def write(folder, content, **settings) -> str:
    """Write a `tokenizer.json`, and settings; return the folder."""
    (folder / "tokenizer.json").write_text(json.dumps(content))
    if settings:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(settings))
    return str(folder)


def with_symbols() -> SentencePieceTokenizer:
    """Return a tokenizer with user-defined pieces, as the released one has."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(
        vocabularies.sentencepiece_model()
    )
    for symbol in ("–", "''", "caf"):
        proto.pieces.add(piece=symbol, score=0.0, type=4)
    return SentencePieceTokenizer(proto.SerializeToString(), CASED)


def replace(text: str, content: str) -> dict:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def of_transformers(tokenizer: SentencePieceTokenizer, *rules) -> dict:
    """Return what transformers 5 writes of a SentencePiece model."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.content)
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap)
    rule = {"type": "Precompiled", "precompiled_charsmap": charsmap.decode()}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*rules, rule]},
        "pre_tokenizer": WORDS,
        "post_processor": template(tokenizer),
        "added_tokens": [
            {"id": i, "content": p.piece, "special": p.type != 4}
            for i, p in enumerate(proto.pieces)
            if p.type != 1
        ],
        "model": {
            "type": "Unigram",
            "unk_id": 1,
            "vocab": [[p.piece, p.score] for p in proto.pieces],
        },
    }


def test_pieces_are_those_of_the_model(tmp_path):
    """Pieces, their kinds and what comes before them are as they were."""
    tokenizer = with_symbols()
    folder = write(tmp_path, of_transformers(tokenizer), digit_comma="released")
    again, warnings = read_tokenizer(folder)
    assert not warnings
    texts = [*vocabularies.TEXTS, "x – ''cafe'' ① ＡＢ [MASK]"]
    for text in texts:
        ids = SentencePieceTokenizer(
            tokenizer.content, TextConfig(False, False)
        ).encode_masked(text)
        assert again.encode_masked(text) == ids, text
    assert again.special == tokenizer.special
    before, after = (
        sentencepiece_model_pb2.ModelProto.FromString(t.content)
        for t in (tokenizer, again)
    )
    assert list(after.pieces) == list(before.pieces)


@pytest.mark.parametrize("make", ["english", "chinese"])
def test_what_is_written_is_read(make, tmp_path):
    """A `tokenizer.json` of ours has a whole vocabulary too."""
    tokenizer = getattr(vocabularies, make)()
    folder = write(tmp_path, tokenizer_json(tokenizer))
    again, warnings = read_tokenizer(folder)
    assert again.config == tokenizer.config and not warnings
    for text in vocabularies.TEXTS:
        assert again.encode(text) == tokenizer.encode(text), text


def test_a_folder_without_another_vocabulary(pretrained_dir, tmp_path):
    """Of a class with settings, texts are treated as those say."""
    folder, again = tmp_path / "there", str(tmp_path / "again")
    convert(pretrained_dir, str(folder), "huggingface")
    (folder / "spiece.model").unlink()
    for cased in (True, False):
        path = folder / "tokenizer_config.json"
        values = json.loads(path.read_text())
        values |= {"do_lower_case": not cased}
        values["tokenizer_class"] = "AlbertTokenizer"
        path.write_text(json.dumps(values))
        convert(str(folder), f"{again}{cased}", "model_dir")
        ids = load_tokenizer(f"{again}{cased}").encode("The FILM was good")
        before = load_tokenizer(pretrained_dir).encode("the film was good")
        assert (ids == before) == (not cased)


def test_settings_go_there_and_back(golden, tmp_path):
    """A tokenizer of a folder that we wrote has all of its settings."""
    for i, settings in enumerate(
        ({"replace_quotes": True}, {"digit_comma": "strip"}, {})
    ):
        config = golden.config
        source = release(tmp_path / f"in{i}", config, golden.weights)
        tokenizer = vocabularies.english(**settings)
        hub, back = str(tmp_path / f"hub{i}"), str(tmp_path / f"back{i}")
        convert(source, str(tmp_path / f"dir{i}"), "model_dir")
        convert(str(tmp_path / f"dir{i}"), hub, "huggingface")
        write_tokenizer(hub, tokenizer, 64)
        convert(hub, back, "model_dir")
        assert load_tokenizer(back).fingerprint() == tokenizer.fingerprint()


BERT = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}


def word_pieces(**content) -> dict:
    """Return a `tokenizer.json` of a WordPiece vocabulary."""
    return tokenizer_json(vocabularies.chinese()) | content


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
def test_word_pieces_are_treated_as_there(
    rule, settings, lower, strip, tmp_path
):
    """What the settings do not say, the rules do."""
    folder = write(tmp_path, word_pieces(normalizer=rule), **settings)
    tokenizer, _ = read_tokenizer(folder)
    assert tokenizer.config.do_lower_case == lower
    assert tokenizer.config.strip_accents == strip


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (BERT, {"do_lower_case": "no"}),
        (BERT, {"keep_accents": []}),
        (BERT | {"lowercase": "yes"}, {}),
    ],
)
def test_a_flag_that_says_neither(rule, settings, tmp_path):
    """Text that is not a boolean is an error, not true for being non-empty."""
    folder = write(tmp_path, word_pieces(normalizer=rule), **settings)
    with pytest.raises(InputError, match="must be true or false"):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, None),
        ({"normalizer": {"type": "NFKC"}}, "nothing like NFKC"),
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
            r"packed as A:0 \[SEP\]:0 there",
        ),
        (
            {"normalizer": BERT | {"handle_chinese_chars": False}},
            "tokenize_chinese_chars",
        ),
    ],
)
def test_rules_of_word_pieces_that_are_not_ours(changes, named, tmp_path):
    """Each is named in a warning, and an error where none is allowed."""
    folder = write(tmp_path, word_pieces(**changes))
    _, warnings = read_tokenizer(folder)
    if named is None:
        assert not warnings and read_tokenizer(folder, strict=True)
        return
    with pytest.raises(InputError, match=f"With `strict`.*{named}"):
        read_tokenizer(folder, strict=True)
    assert any(re.search(named, line) for line in warnings)


def test_settings_are_booleans(tmp_path):
    """A text in the place of true is no default."""
    folder = write(tmp_path, word_pieces(), do_lower_case="yes")
    with pytest.raises(InputError, match="`do_lower_case` must be true or"):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    ("rules", "text", "same_as"),
    [
        ([{"type": "Lowercase"}, replace("cat", "the")], "a Cat", "a the"),
        ([{"type": "StripAccents"}], "cafe\u0301", "cafe"),
        ([{"type": "Nmt"}, {"type": "NFKC"}], "①\u200b2", "1 2"),
        ([replace("``", '"')], "``a''", "\"a''"),
        ([{"type": "NFD"}, {"type": "StripAccents"}], "Café", "Cafe"),
    ],
)
def test_rules_of_sentencepiece(rules, text, same_as, tmp_path):
    """Whatever the rules are, ids are those of the text that they make."""
    tokenizer = vocabularies.english()
    plain = SentencePieceTokenizer(
        tokenizer.content,
        TextConfig(do_lower_case=False, strip_accents=False),
    )
    content = of_transformers(tokenizer, *rules)
    for part in content["normalizer"]["normalizers"][len(rules) :]:
        part["precompiled_charsmap"] = ""
    found, warnings = read_tokenizer(write(tmp_path, content))
    assert found.encode(text) == plain.encode(same_as)
    assert sum("compiled into" in line for line in warnings) == len(warnings)
    written = tokenizer_json(found)
    assert written["normalizer"] == content["normalizer"] or not warnings
    assert written["pre_tokenizer"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("splits", "text", "parts"),
    [
        ([METASPACE, {"type": "Digits"}], "12 cat", ["▁", "1", "2", "▁cat"]),
        (
            [METASPACE, {"type": "Digits", "individual_digits": True}],
            "000",
            ["▁", "0", "0", "0"],
        ),
        ([{"type": "Punctuation"}, METASPACE], "a,b", [*"▁a▁,▁b"]),
    ],
)
def test_pre_tokenizers_of_sentencepiece(splits, text, parts, tmp_path):
    """No piece crosses what is divided there."""
    vocabulary = vocabularies.english()
    content = of_transformers(vocabulary)
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splits}
    tokenizer, _ = read_tokenizer(write(tmp_path, content))
    found = tokenizer.pieces(tokenizer.encode(text))
    assert found[: len(parts)] == parts


def test_special_pieces_of_other_names(tmp_path):
    """They get the released names; the settings say which is which."""
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
        assert "<mask> is [MASK]" in " ".join(warnings)
        for text in ("the cat [MASK]", "12, cafe"):
            plain = SentencePieceTokenizer(
                tokenizer.content, again.config
            ).encode_masked(text)
            assert again.encode_masked(text) == plain


@pytest.mark.parametrize("make", ["english", "chinese"])
def test_special_pieces_behind_the_vocabulary(make, tmp_path):
    """Those of `added_tokens.json` get their ids, gaps being filled."""
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
    assert "no pieces here for the added far" in " ".join(warnings)
    with pytest.raises(InputError, match="no row in the word table of"):
        read_tokenizer(folder, rows=size + 8, strict=True)


def test_words_behind_the_vocabulary(tmp_path):
    """They are found in texts as one piece."""
    tokenizer = vocabularies.english()
    content = tokenizer_json(tokenizer)
    size = tokenizer.vocab_size
    word = {"id": size, "content": "[E1]", "special": False}
    content["added_tokens"] = [*content["added_tokens"], word]
    again, warnings = read_tokenizer(write(tmp_path, content), size + 1)
    assert again.encode("the [E1] cat").count(size) == 1 and not warnings


def test_the_pieces_that_count_are_those_of_the_json(tmp_path):
    """Of two vocabularies that differ the one that transformers reads."""
    tokenizer = vocabularies.english()
    (tmp_path / "spiece.model").write_bytes(tokenizer.content)
    content = of_transformers(tokenizer)
    folder = write(tmp_path, content)
    assert read_tokenizer(folder)[0].content == tokenizer.content
    content["model"]["vocab"].append(["more", -1.0])
    again, warnings = read_tokenizer(write(tmp_path, content))
    assert again.vocab_size == tokenizer.vocab_size + 1
    assert any("spiece.model has others" in line for line in warnings)


def test_a_spiece_alone_is_treated_as_alberts(tmp_path):
    """Quotes of two marks become one, if nothing says otherwise."""
    content = vocabularies.sentencepiece_model()
    (tmp_path / "spiece.model").write_bytes(content)
    assert read_tokenizer(str(tmp_path))[0].config.replace_quotes
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"keep_accents": True}))
    config = read_tokenizer(str(tmp_path))[0].config
    assert config == TextConfig(strip_accents=False, replace_quotes=True)
    path.write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))
    _, warnings = read_tokenizer(str(tmp_path))
    assert "XLMRobertaTokenizer, whose rules" in warnings[0]


def test_another_kind_of_sentencepiece(golden, tmp_path):
    """The library has no rules that make the same pieces of BPE."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    (tmp_path / "text").write_text("the cat sat on the mat abc def\n" * 20)
    model = vocabularies.trained(
        vocab_size=50, input=str(tmp_path / "text"), model_type="bpe"
    )
    (tmp_path / "in" / "spiece.model").write_bytes(model)
    lines = convert(source, str(tmp_path / "out"), "huggingface")
    assert any("loads no tokenizer" in line for line in lines)
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_other_files(tmp_path):
    """Another model has no tokenizer here, and a broken file is an error."""
    assert read_tokenizer(str(tmp_path)) == (None, [])
    folder = write(tmp_path, {"model": {"type": "BPE"}})
    tokenizer, (warning,) = read_tokenizer(folder)
    assert tokenizer is None and "a BPE model" in warning
    content = of_transformers(with_symbols())
    for key in ("normalizer", "added_tokens", "model"):
        folder = write(tmp_path, content | {key: "odd"})
        with pytest.raises(InputError, match=r"must be one of.*\.json"):
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
    """Also of pairs alone, of their segments, and where nothing is added."""
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
    assert len(warnings) == 1 and "packed as" in warnings[0]


@pytest.mark.parametrize("make", ["english", "chinese"])
def test_the_left_side_is_named(make, tmp_path):
    """Where texts are cut, or padded, at the beginning."""
    content = tokenizer_json(getattr(vocabularies, make)())
    for name, word in (("padding_side", "padded"), ("truncation_side", "cut")):
        folder = write(tmp_path, content, **{name: "left"})
        with pytest.raises(InputError, match=f"{word} at the beginning"):
            read_tokenizer(folder, strict=True)


@pytest.mark.parametrize("lower", [True, False])
def test_rules_count_where_a_class_has_no_settings(lower, tmp_path):
    """`PreTrainedTokenizerFast` lower-cases as its rules do, not otherwise."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": not lower,
        "replace_quotes": True,
    }
    rules = [{"type": "Lowercase"}] if lower else []
    content = of_transformers(vocabularies.english(), *rules)
    tokenizer, _ = read_tokenizer(write(tmp_path, content, **settings))
    assert tokenizer.config.do_lower_case == lower
    assert not tokenizer.config.replace_quotes
    bert = BERT | {"lowercase": lower}
    content = word_pieces(normalizer=bert)
    tokenizer, _ = read_tokenizer(write(tmp_path, content, **settings))
    assert tokenizer.config.do_lower_case == lower


@pytest.mark.parametrize("make", ["english", "chinese"])
def test_older_files_leave_the_type_out(make, tmp_path):
    """The vocabulary tells the kind of model."""
    content = tokenizer_json(getattr(vocabularies, make)())
    wanted, _ = read_tokenizer(write(tmp_path, content))
    del content["model"]["type"]
    found, _ = read_tokenizer(write(tmp_path, content))
    assert found.fingerprint() == wanted.fingerprint()


def test_numbers_of_word_pieces_stay(tmp_path):
    """Where a vocabulary leaves numbers out, the others are as they were."""
    content = word_pieces()
    vocab = content["model"]["vocab"]
    moved = {piece: id + 3 * (id > 9) for piece, id in vocab.items()}
    plain, _ = read_tokenizer(write(tmp_path, content))
    content["model"]["vocab"] = moved
    found, _ = read_tokenizer(write(tmp_path, content))
    for text in vocabularies.TEXTS:
        pieces = plain.pieces(plain.encode(text))
        assert list(found.encode(text)) == [moved[x] for x in pieces]


def test_an_added_piece_takes_the_place_of_another(tmp_path):
    """One that is in the vocabulary too, lower-cased, has the new number."""
    tokenizer = vocabularies.english()
    content = of_transformers(tokenizer, {"type": "Lowercase"})
    size = tokenizer.vocab_size
    piece = next(
        x for x in tokenizer.pieces(range(5, size)) if x.isalpha() and x[1:]
    )
    row = {"id": size, "content": piece.title(), "special": False}
    content["added_tokens"].append(row)
    found, _ = read_tokenizer(write(tmp_path, content))
    assert size in found.encode(f"a {piece}")
    assert found.vocab_size == size + 1


def test_an_added_piece_of_the_vocabulary_is_named(tmp_path):
    """And so is a mark of words that is not SentencePiece's."""
    content = of_transformers(vocabularies.english())
    piece = next(
        i
        for i, (x, _) in enumerate(content["model"]["vocab"])
        if i > 5 and x.isalpha()
    )
    row = {"id": piece, "content": "x", "special": False}
    content["added_tokens"].append(row)
    (tmp_path / "spiece.model").write_bytes(vocabularies.sentencepiece_model())
    with pytest.raises(InputError, match="the added x, of the vocabulary"):
        read_tokenizer(write(tmp_path, content), strict=True)
    content["added_tokens"].pop()
    content["pre_tokenizer"] = METASPACE | {"replacement": "_"}
    with pytest.raises(InputError, match="Metaspace by '_'"):
        read_tokenizer(write(tmp_path, content), strict=True)
