"""A `tokenizer.json` that we write can be read back."""

import pytest
import vocabularies
from conversions import release
from hub_tokenizers import write

from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.hub_tokenizer import read_tokenizer
from albert_tf.conversion.huggingface import write_tokenizer
from albert_tf.conversion.tokenizer_json import tokenizer_json
from albert_tf.text.tokenizers import load_tokenizer


@pytest.mark.parametrize("make", ["english", "chinese"])
def test_what_is_written_is_read(make, tmp_path):
    """A tokenizer produces the same ids after a round trip through a file."""
    tokenizer = getattr(vocabularies, make)()
    folder = write(tmp_path, tokenizer_json(tokenizer))
    again, warnings = read_tokenizer(folder)
    assert again.config == tokenizer.config and not warnings
    for text in vocabularies.TEXTS:
        assert again.encode(text) == tokenizer.encode(text), text


def test_settings_go_there_and_back(golden, tmp_path):
    """A round trip keeps all settings of a tokenizer."""
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


def test_another_kind_of_sentencepiece(golden, tmp_path):
    """No `tokenizer.json` is written for BPE; no rules reproduce its pieces."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    (tmp_path / "text").write_text("the cat sat on the mat abc def\n" * 20)
    model = vocabularies.trained(
        vocab_size=50, input=str(tmp_path / "text"), model_type="bpe"
    )
    (tmp_path / "in" / "spiece.model").write_bytes(model)
    lines = convert(source, str(tmp_path / "out"), "huggingface")
    assert any("cannot load the tokenizer" in line for line in lines)
    assert not (tmp_path / "out" / "tokenizer.json").exists()
