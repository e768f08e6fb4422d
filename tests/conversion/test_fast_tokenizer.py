"""The vocabulary of a folder that has nothing but a `tokenizer.json`."""

import base64
import json

import pytest
import vocabularies
from conversions import release
from sentencepiece import sentencepiece_model_pb2

from albert_tf.base.errors import InputError
from albert_tf.conversion.converter import convert
from albert_tf.conversion.fast_tokenizer import (
    differences,
    read_tokenizer_json,
    settings_in,
    tokenizer_json,
)
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizers import SentencePieceTokenizer, load_tokenizer

CASED = TextConfig(do_lower_case=False)


def write(folder, content) -> str:
    """Write a `tokenizer.json`; return its folder."""
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return str(folder)


def with_symbols() -> SentencePieceTokenizer:
    """Return a tokenizer with user-defined pieces, as the released one has."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(
        vocabularies.sentencepiece_model()
    )
    for symbol in ("–", "''", "caf"):
        proto.pieces.add(piece=symbol, score=0.0, type=4)
    return SentencePieceTokenizer(proto.SerializeToString(), CASED)


def of_transformers(tokenizer: SentencePieceTokenizer) -> dict:
    """Return what transformers 5 writes of a SentencePiece model."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.content)
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap)
    rule = {"type": "Precompiled", "precompiled_charsmap": charsmap.decode()}
    return {
        "normalizer": {"normalizers": [{"type": "NFKD"}, rule]},
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
    folder = write(tmp_path, of_transformers(tokenizer))
    again = read_tokenizer_json(folder, CASED)
    texts = [*vocabularies.TEXTS, "x – ''cafe'' ① ＡＢ [MASK]"]
    for text in texts:
        assert again.encode_masked(text) == tokenizer.encode_masked(text), text
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
    again = read_tokenizer_json(folder, TextConfig())
    for text in vocabularies.TEXTS:
        assert again.encode(text) == tokenizer.encode(text), text


def test_a_folder_without_another_vocabulary(pretrained_dir, tmp_path):
    """Its texts are treated as `tokenizer_config.json` says."""
    folder, again = tmp_path / "there", str(tmp_path / "again")
    convert(pretrained_dir, str(folder), "huggingface")
    (folder / "spiece.model").unlink()
    for cased in (True, False):
        path = folder / "tokenizer_config.json"
        values = json.loads(path.read_text()) | {"do_lower_case": not cased}
        path.write_text(json.dumps(values))
        convert(str(folder), f"{again}{cased}", "model_dir")
        ids = load_tokenizer(f"{again}{cased}").encode("The FILM was good")
        before = load_tokenizer(pretrained_dir).encode("the film was good")
        assert (ids == before) == (not cased)


BERT = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}


@pytest.mark.parametrize(
    ("rule", "settings", "lower", "strip"),
    [
        (BERT, {}, True, True),
        (BERT | {"lowercase": False}, {}, False, True),
        (BERT | {"strip_accents": False}, {}, True, False),
        (BERT, {"strip_accents": False}, True, False),
        (BERT, {"strip_accents": None, "do_lower_case": False}, False, True),
        ({"normalizers": [{"type": "Lowercase"}]}, {}, True, False),
        ({"normalizers": [{"type": "StripAccents"}]}, {}, False, True),
        (None, {}, False, False),
        (None, {"do_lower_case": True, "keep_accents": False}, True, True),
        (None, {"do_lower_case": "true", "keep_accents": "false"}, True, True),
        (BERT, {"do_lower_case": "false", "strip_accents": 0}, False, False),
        (BERT | {"lowercase": "false", "strip_accents": "0"}, {}, False, False),
    ],
)
def test_text_is_treated_as_there(rule, settings, lower, strip, tmp_path):
    """What the settings do not say, the rules do; released are the last."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    known = settings_in(write(tmp_path, {"normalizer": rule}))
    assert known == {"do_lower_case": lower, "strip_accents": strip}
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    assert settings_in(str(tmp_path)) == {}


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (BERT, {"do_lower_case": "no"}),
        (BERT, {"keep_accents": []}),
        (BERT | {"lowercase": "yes"}, {}),
        (BERT | {"lowercase": None}, {}),
    ],
)
def test_a_flag_that_says_neither(rule, settings, tmp_path):
    """It is an error, and not the value of an empty or a full text."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    folder = write(tmp_path, {"normalizer": rule})
    with pytest.raises(InputError, match="tokenizer"):
        settings_in(folder)


def test_pieces_that_were_added_there(pretrained_dir, tmp_path):
    """Ours has no place for them: a warning names them, each once."""
    convert(pretrained_dir, str(tmp_path / "there"), "huggingface")
    path = tmp_path / "there" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append(
        content["added_tokens"][0] | {"content": "x"}
    )
    path.write_text(json.dumps(content))
    more = {"x": 50, "xyz": 51, content["added_tokens"][0]["content"]: 0}
    (tmp_path / "there" / "added_tokens.json").write_text(json.dumps(more))
    lines = convert(str(tmp_path / "there"), str(tmp_path / "a"), "model_dir")
    assert "warning: no pieces here for the added x, xyz" in lines


@pytest.mark.parametrize(
    ("rules", "settings", "said"),
    [
        ({}, {}, False),
        ({"handle_chinese_chars": True}, {}, False),
        ({"handle_chinese_chars": False}, {}, True),
        ({}, {"tokenize_chinese_chars": False}, True),
        (
            {"handle_chinese_chars": False},
            {"tokenize_chinese_chars": True},
            False,
        ),
    ],
)
def test_chinese_characters_that_are_no_words_there(
    rules, settings, said, tmp_path
):
    """Ours are words by themselves, but for SentencePiece's: a warning."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    folder = write(tmp_path, {"normalizer": BERT | rules})
    for make, known in (("chinese", said), ("english", False)):
        warnings = differences(folder, getattr(vocabularies, make)())
        assert any("tokenize_chinese_chars" in w for w in warnings) == known


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
    """Another model is no vocabulary of ours, and a broken file an error."""
    assert read_tokenizer_json(str(tmp_path), CASED) is None
    folder = write(tmp_path, {"model": {"type": "BPE"}})
    assert read_tokenizer_json(folder, CASED) is None
    content = of_transformers(with_symbols())
    for key in ("normalizer", "added_tokens", "model"):
        folder = write(tmp_path, content | {key: "odd"})
        with pytest.raises(InputError, match=r"must be one of.*\.json"):
            read_tokenizer_json(folder, CASED)
