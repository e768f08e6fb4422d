"""SentencePiece models in Hugging Face folders keep their pieces and rules."""

import json

import pytest
import vocabularies
from conversions import update
from hub_tokenizers import (
    METASPACE,
    of_transformers,
    replace,
    with_symbols,
    write,
)
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.base.errors import InputError
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.hub_tokenizer import read_tokenizer
from albert_tf.conversion.tokenizer_json import tokenizer_json
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizers import (
    SentencePieceTokenizer,
    load_saved_tokenizer,
)


def test_pieces_are_those_of_the_model(tmp_path):
    """Pieces keep their strings, types and scores, and texts keep their ids."""
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
        ModelProto.FromString(t.content) for t in (tokenizer, again)
    )
    assert list(after.pieces) == list(before.pieces)


def test_a_folder_without_another_vocabulary(pretrained_dir, tmp_path):
    """Without `spiece.model`, an `AlbertTokenizer` obeys `do_lower_case`."""
    folder, again = tmp_path / "there", str(tmp_path / "again")
    convert(pretrained_dir, str(folder), "huggingface")
    (folder / "spiece.model").unlink()
    for cased in (True, False):
        settings = {"tokenizer_class": "AlbertTokenizer"}
        settings["do_lower_case"] = not cased
        update(folder / "tokenizer_config.json", **settings)
        convert(str(folder), f"{again}{cased}", "model_dir")
        ids = load_saved_tokenizer(f"{again}{cased}").encode(
            "The FILM was good"
        )
        before = load_saved_tokenizer(pretrained_dir).encode(
            "the film was good"
        )
        assert (ids == before) == (not cased)


@pytest.mark.slow_after(2)
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
    """The normalizer's rules change a text before it is encoded.

    All rules of the source are written back, even if they were compiled.
    """
    tokenizer = vocabularies.english()
    plain = SentencePieceTokenizer(
        tokenizer.content,
        TextConfig(do_lower_case=False, strip_accents=False),
    )
    content = of_transformers(tokenizer, *rules)
    for part in content["normalizer"]["normalizers"][len(rules) :]:
        part["precompiled_charsmap"] = ""
    content["decoder"] = METASPACE | {"prepend_scheme": "never"}
    found, warnings = read_tokenizer(write(tmp_path, content))
    assert found.encode(text) == plain.encode(same_as)
    assert sum("compiled into" in line for line in warnings) == len(warnings)
    written = tokenizer_json(found)
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        assert written[name] == content[name] or not warnings
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
    """No piece crosses a pre-tokenizer's split."""
    vocabulary = vocabularies.english()
    content = of_transformers(vocabulary)
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splits}
    tokenizer, _ = read_tokenizer(write(tmp_path, content))
    found = tokenizer.pieces(tokenizer.encode(text))
    assert found[: len(parts)] == parts


def test_words_behind_the_vocabulary(tmp_path):
    """Words added after the vocabulary are encoded as single pieces."""
    tokenizer = vocabularies.english()
    content = tokenizer_json(tokenizer)
    size = tokenizer.vocab_size
    word = {"id": size, "content": "[E1]", "special": False}
    content["added_tokens"] = [*content["added_tokens"], word]
    again, warnings = read_tokenizer(write(tmp_path, content), size + 1)
    assert again.encode("the [E1] cat").count(size) == 1 and not warnings


def test_the_pieces_that_count_are_those_of_the_json(tmp_path):
    """If the two vocabularies differ, the one in `tokenizer.json` is read.

    A note states that the vocabularies differ; `strict` allows it, because the
    ids are those of the source.
    """
    tokenizer = vocabularies.english()
    (tmp_path / "spiece.model").write_bytes(tokenizer.content)
    content = of_transformers(tokenizer)
    folder = write(tmp_path, content)
    assert read_tokenizer(folder)[0].content == tokenizer.content
    content["model"]["vocab"].append(["more", -1.0])
    again, notes = read_tokenizer(write(tmp_path, content), strict=True)
    assert again.vocab_size == tokenizer.vocab_size + 1
    assert any("spiece.model differ" in line for line in notes)


def test_a_spiece_alone_is_treated_as_alberts(tmp_path):
    """A lone `spiece.model` is read with the rules of `AlbertTokenizer`.

    Its bytes do not change. Doubled quotation marks become `"`. A different
    class causes a warning.
    """
    trainer, pieces = ModelProto(), ModelProto()
    pieces.ParseFromString(vocabularies.sentencepiece_model())
    trainer.trainer_spec.CopyFrom(pieces.trainer_spec)
    pieces.ClearField("trainer_spec")
    # The library that writes models would write the pieces first.
    content = trainer.SerializeToString() + pieces.SerializeToString()
    (tmp_path / "spiece.model").write_bytes(content)
    tokenizer, _ = read_tokenizer(str(tmp_path))
    assert tokenizer.content == content and tokenizer.config.replace_quotes
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"keep_accents": True}))
    config = read_tokenizer(str(tmp_path))[0].config
    assert config == TextConfig(
        strip_accents=False, replace_quotes=True, digit_comma="strip"
    )
    path.write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))
    _, warnings = read_tokenizer(str(tmp_path))
    assert "XLMRobertaTokenizer, whose rules" in warnings[0]


def test_an_added_piece_takes_the_place_of_another(tmp_path):
    """With lower-casing, an added piece can replace a lower-case piece."""
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
    """With `strict`, conflicting pieces and other word markers raise errors.

    An added piece must not have the id of an ordinary piece, and the marker of
    word boundaries must be ▁.
    """
    content = of_transformers(vocabularies.english())
    piece = next(
        i
        for i, (x, _) in enumerate(content["model"]["vocab"])
        if i > 5 and x.isalpha()
    )
    row = {"id": piece, "content": "x", "special": False}
    content["added_tokens"].append(row)
    (tmp_path / "spiece.model").write_bytes(vocabularies.sentencepiece_model())
    with pytest.raises(InputError, match="the added piece x, which is in"):
        read_tokenizer(write(tmp_path, content), strict=True)
    content["added_tokens"].pop()
    content["pre_tokenizer"] = METASPACE | {"replacement": "_"}
    with pytest.raises(InputError, match="Metaspace by '_'"):
        read_tokenizer(write(tmp_path, content), strict=True)
