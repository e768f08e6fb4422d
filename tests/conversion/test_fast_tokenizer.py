"""A `tokenizer.json` that we write can be read back."""

import pytest
import vocabularies
from conversions import release
from hub_tokenizers import with_symbols, write
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.hub_tokenizer import read_tokenizer
from albert_tf.conversion.huggingface import write_tokenizer
from albert_tf.conversion.tokenizer_json import (
    FINAL_SIGMA,
    character_class,
    replace,
    tokenizer_config,
    tokenizer_json,
)
from albert_tf.text.normalization import TextConfig
from albert_tf.text.sentencepiece_models import CONTROL, NORMAL, UNUSED
from albert_tf.text.tokenizers import (
    SentencePieceTokenizer,
    load_saved_tokenizer,
)


def with_all_letters():
    """Return a tokenizer whose words begin with any letter."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    content = vocabularies.trained(
        sentence_iterator=iter([f"{a}e {a}o {a}" for a in letters] * 20),
        vocab_size=100,
    )
    tokenizer = SentencePieceTokenizer(content, TextConfig())
    pieces = {tokenizer.pieces([i])[0] for i in range(tokenizer.vocab_size)}
    assert pieces >= {f"▁{letter}" for letter in letters}
    return tokenizer


def without_prefix():
    """Return a tokenizer that does not add ▁ to the beginning of a text."""
    proto = ModelProto.FromString(with_all_letters().content)
    proto.normalizer_spec.add_dummy_prefix = False
    return SentencePieceTokenizer(proto.SerializeToString(), TextConfig())


@pytest.mark.parametrize(
    "make",
    [
        vocabularies.english,
        vocabularies.chinese,
        with_all_letters,
        without_prefix,
    ],
)
def test_what_is_written_is_read(make, tmp_path):
    """A tokenizer is written and read back without a change or a warning."""
    tokenizer = make()
    folder = write(tmp_path, tokenizer_json(tokenizer))
    again, warnings = read_tokenizer(folder)
    assert again.config == tokenizer.config and not warnings
    for text in vocabularies.TEXTS:
        assert again.encode(text) == tokenizer.encode(text), text


def test_settings_go_there_and_back(golden, tmp_path):
    """A round trip through Hugging Face's format keeps a tokenizer's rules."""
    for i, settings in enumerate(
        (
            {"replace_quotes": True, "do_lower_case": False},
            {"digit_comma": "strip", "strip_accents": False},
            {},
        )
    ):
        config = golden.config
        source = release(tmp_path / f"in{i}", config, golden.weights)
        tokenizer = vocabularies.english(**settings)
        hub, back = str(tmp_path / f"hub{i}"), str(tmp_path / f"back{i}")
        convert(source, str(tmp_path / f"dir{i}"), "model_dir")
        convert(str(tmp_path / f"dir{i}"), hub, "huggingface")
        write_tokenizer(hub, tokenizer, 64)
        convert(hub, back, "model_dir")
        assert (
            load_saved_tokenizer(back).fingerprint() == tokenizer.fingerprint()
        )


@pytest.mark.parametrize("half_precision", [False, True])
def test_another_kind_of_sentencepiece(half_precision, golden, tmp_path):
    """For a BPE model, a warning replaces the `tokenizer.json`."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    (tmp_path / "text").write_text("the cat sat on the mat abc def\n" * 20)
    model = vocabularies.trained(
        vocab_size=50, input=str(tmp_path / "text"), model_type="bpe"
    )
    (tmp_path / "in" / "spiece.model").write_bytes(model)
    lines = convert(
        source, str(tmp_path / "out"), "huggingface", half_precision
    )
    assert any("cannot load the tokenizer" in line for line in lines)
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_the_rules_of_word_pieces_are_berts():
    """The `BertNormalizer` strips accents only if it also lower-cases text.

    It lower-cases one character at a time, so a rule before it writes the final
    sigma.
    """
    for lower, strip in ((True, True), (True, False), (False, True)):
        written = tokenizer_json(
            vocabularies.chinese(do_lower_case=lower, strip_accents=strip)
        )
        *sigma, bert = written["normalizer"]["normalizers"]
        assert sigma == [replace(FINAL_SIGMA, "ς")] * lower
        assert bert == {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": lower and strip,
            "lowercase": lower,
        }
    assert written["model"]["max_input_chars_per_word"] == 200
    assert written["decoder"]["cleanup"] is True


def test_special_pieces_are_matched_as_they_are():
    """Of the special pieces, only [MASK] absorbs the space before it."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    flags |= {"normalized": False, "special": True}
    names = [*vocabularies.SPECIAL]
    wanted = [{"id": i, "content": x, **flags} for i, x in enumerate(names)]
    wanted[4]["lstrip"] = True
    written = tokenizer_json(vocabularies.english())
    assert written["added_tokens"] == wanted


def test_marks_at_the_ends_of_words_cannot_be_written():
    """No `tokenizer.json` has the ids of a model with ▁ at the end of words."""
    proto = ModelProto.FromString(with_all_letters().content)
    proto.trainer_spec.treat_whitespace_as_suffix = True
    content = proto.SerializeToString()
    assert not tokenizer_json(SentencePieceTokenizer(content, TextConfig()))


def test_scores_are_those_that_sentencepiece_uses():
    """In `tokenizer.json`, a user-defined symbol wins against other pieces.

    Its length matters only if a piece has a positive score. The scores of
    pieces that are not found in texts are lowered by 100, so they are never
    chosen.
    """
    tokenizer = with_symbols()
    proto = ModelProto.FromString(tokenizer.content)
    proto.pieces.add(piece="cat", score=-2.0, type=UNUSED)
    proto.pieces.add(piece="<sep>", score=0.0, type=CONTROL)
    for rule in ("released", "none"):
        written = tokenizer_json(
            SentencePieceTokenizer(
                proto.SerializeToString(), TextConfig(digit_comma=rule)
            )
        )
        scores = dict(written["model"]["vocab"])
        assert scores["''"] == scores["caf"] == -0.1
        assert scores["<sep>"] == -100.0
        assert scores["cat"] == -102.0 and -11 < scores["▁cat"] < 0
        assert (scores["▁2010,"] < -100) == (rule == "released")
        assert scores[","] > -11
    proto.pieces.add(piece="sat", score=0.5, type=NORMAL)
    positive = SentencePieceTokenizer(proto.SerializeToString(), TextConfig())
    scores = dict(tokenizer_json(positive)["model"]["vocab"])
    assert scores["''"] == pytest.approx(2 * 0.5 - 0.1)
    assert scores["caf"] == pytest.approx(3 * 0.5 - 0.1)


def test_the_names_of_bytes_are_not_found_in_texts():
    """The scores of byte pieces are as low as those of unused pieces."""
    content = vocabularies.trained(
        sentence_iterator=iter(["the cat sat"] * 20),
        vocab_size=275,
        byte_fallback=True,
    )
    written = tokenizer_json(SentencePieceTokenizer(content, TextConfig()))
    scores = dict(written["model"]["vocab"])
    assert scores["<0x41>"] == -100.0 and written["model"]["byte_fallback"]


def test_the_settings_name_all_inputs():
    """`tokenizer_config.json` names every input, role and text rule.

    Without segment ids among the inputs, transformers would not distinguish the
    texts of a pair.
    """
    rules = {"do_lower_case": False, "replace_quotes": True}
    tokenizer = vocabularies.english(**rules, digit_comma="none")
    assert tokenizer_config(tokenizer, 64) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 64,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "keep_accents": False,
        "digit_comma": "none",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        **rules,
    }


def test_pieces_across_words_stay(tmp_path):
    """Pieces that span words are written as such, and read back unchanged."""
    proto = ModelProto.FromString(vocabularies.english().content)
    proto.pieces.add(piece="▁the▁cat", score=-0.5, type=NORMAL)
    tokenizer = SentencePieceTokenizer(proto.SerializeToString(), TextConfig())
    written = tokenizer_json(tokenizer)
    assert written["pre_tokenizer"]["split"] is False
    again, warnings = read_tokenizer(write(tmp_path, written))
    assert not warnings
    ids = again.encode("The cat sat")
    assert ids == tokenizer.encode("The cat sat")
    assert again.pieces(ids)[0] == "▁the▁cat"
    written = tokenizer_json(vocabularies.english())
    assert written["pre_tokenizer"]["split"] is True


def test_a_text_without_a_prefix_has_no_space_before_it():
    """If texts get no prefix, spaces at the beginning of a text are removed."""
    written = tokenizer_json(without_prefix())
    rules = written["normalizer"]["normalizers"]
    assert rules[-1] == replace("^ +", "")
    for name in ("pre_tokenizer", "decoder"):
        assert written[name]["prepend_scheme"] == "never"


def test_a_word_behind_a_mask_begins_with_a_space():
    """The normalizer's last rule adds a space at the beginning of a text.

    It does so only if the first character of the text can begin a word.
    """
    written = tokenizer_json(vocabularies.english())
    rules = written["normalizer"]["normalizers"]
    letters = character_class("0129tcsn[")
    assert rules[-1] == replace(f"^(?={letters})", " ")
    mark = {"type": "Metaspace", "replacement": "▁", "split": True}
    assert written["pre_tokenizer"] == mark | {"prepend_scheme": "first"}
