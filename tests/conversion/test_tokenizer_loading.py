"""The public `load_tokenizer` reads every folder that `load` reads."""

import json
import shutil
from pathlib import Path

import pytest
from conversions import update

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.sources import open_source
from albert_tf.library.preprocessor import Preprocessor
from albert_tf.text import tokenizers

WEIGHTS = ("*.safetensors", "model.ckpt*", "checkpoint", "*.bin")


def without_weights(folder: Path) -> None:
    """Delete a model's weights."""
    for path in (path for name in WEIGHTS for path in folder.glob(name)):
        path.unlink()


@pytest.mark.parametrize("layout", ["tf1", "huggingface"])
@pytest.mark.parametrize("kind", ["pretrained_dir", "shallow"])
def test_every_folder_of_a_model_has_its_tokenizer(
    kind, layout, request, tmp_path
):
    """A folder's tokenizer equals the model's, even if weights are missing."""
    source, folder = request.getfixturevalue(kind), tmp_path / layout
    own = tokenizers.load_saved_tokenizer(source)
    assert albert_tf.load_tokenizer(source).fingerprint() == own.fingerprint()
    convert(source, str(folder), layout)
    wanted = open_source(str(folder)).tokenizer.fingerprint()
    found = albert_tf.load_tokenizer(folder)
    assert found.fingerprint() == wanted == own.fingerprint()
    layer = Preprocessor.load(folder)
    assert layer.tokenizer.fingerprint() == wanted
    without_weights(folder)
    assert albert_tf.load_tokenizer(folder).fingerprint() == wanted


@pytest.mark.parametrize("kind", ["pretrained_dir", "shallow"])
def test_rules_survive_tensorflow_1(kind, request, tmp_path):
    """A cased model stays cased when it is converted to TF1 and back.

    A `tokenizer.json` that a user adds to a release also takes effect.
    """
    source = shutil.copytree(request.getfixturevalue(kind), tmp_path / "cased")
    update(source / "tokenizer.json", do_lower_case=False)
    convert(str(source), str(tmp_path / "tf1"), "tf1")
    convert(str(tmp_path / "tf1"), str(tmp_path / "again"), "model_dir")
    wanted, found = map(
        tokenizers.load_saved_tokenizer, (str(source), str(tmp_path / "again"))
    )
    assert found.description() == wanted.description()
    settings = {"type": wanted.kind, "do_lower_case": False}
    (tmp_path / "tf1" / "tokenizer.json").write_text(json.dumps(settings))
    tokenizer = open_source(str(tmp_path / "tf1")).tokenizer
    assert not tokenizer.config.do_lower_case


@pytest.mark.parametrize("kind", ["pretrained_dir", "shallow"])
def test_a_lone_vocabulary_is_a_tokenizer(kind, request, tmp_path):
    """A folder with one vocabulary suffices; two vocabularies are an error."""
    source = request.getfixturevalue(kind)
    own = tokenizers.load_saved_tokenizer(source)
    vocabulary = Path(source) / own.file_name
    shutil.copy(vocabulary, tmp_path)
    found = albert_tf.load_tokenizer(tmp_path)
    assert found.content == own.content and found.kind == own.kind
    ending = vocabulary.suffix
    vocabulary = shutil.move(tmp_path / own.file_name, tmp_path / "vocab_1")
    for name in "ab":
        shutil.copy(vocabulary, tmp_path / f"vocab_{name}{ending}")
    with pytest.raises(InputError, match="only one vocabulary"):
        albert_tf.load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["pretrained_dir", "shallow"])
def test_a_wrong_description_is_an_error(kind, request, tmp_path):
    """An error names a wrong type, or a vocabulary that is missing."""
    source = Path(request.getfixturevalue(kind))
    own = tokenizers.load_saved_tokenizer(str(source))
    shutil.copy(source / "tokenizer.json", tmp_path)
    message = f"vocabulary must be an existing.*{own.file_name}"
    with pytest.raises(InputError, match=message):
        albert_tf.load_tokenizer(tmp_path)
    name = f"vocab_1{Path(own.file_name).suffix}"
    shutil.copy(source / own.file_name, tmp_path / name)
    found = albert_tf.load_tokenizer(tmp_path)
    assert found.description() == own.description()
    update(tmp_path / "tokenizer.json", type="sentence_piece")
    with pytest.raises(InputError, match="`type` must be one of"):
        albert_tf.load_tokenizer(tmp_path)


def test_the_vocabulary_of_the_saved_kind_is_read(shallow, tmp_path):
    """A SentencePiece model beside a saved `vocab.txt` is not read."""
    own = tokenizers.load_saved_tokenizer(shallow)
    for name in ("tokenizer.json", "vocab.txt"):
        shutil.copy(Path(shallow) / name, tmp_path)
    (tmp_path / "other.model").write_bytes(b"no model")
    found = albert_tf.load_tokenizer(tmp_path)
    assert found.fingerprint() == own.fingerprint()


def test_warnings_about_a_tokenizer_are_printed(shallow, tmp_path, capsys):
    """Each warning is printed on its own line."""
    shutil.copy(Path(shallow) / "vocab.txt", tmp_path)
    settings = {"tokenizer_class": "OddTokenizer", "padding_side": "left"}
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(settings))
    assert albert_tf.load_tokenizer(tmp_path).kind == "wordpiece"
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("warning: ids may differ: ")
    assert second.startswith("warning: texts are padded at the beginning")


def test_a_folder_without_a_tokenizer(tmp_path):
    """The error for a folder without a tokenizer lists the supported files."""
    (tmp_path / "tokenizer_config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="`path` must be a folder with a"):
            albert_tf.load_tokenizer(path)
