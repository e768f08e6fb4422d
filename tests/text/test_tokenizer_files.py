"""A tokenizer's files are complete; errors state what is wrong with them."""

import ast
import json
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from vocabularies import (
    SPECIAL,
    TEXTS,
    WORDPIECES,
    chinese,
    english,
    sentencepiece_model,
)

from albert_tf.base.errors import InputError
from albert_tf.text import normalization
from albert_tf.text.normalization import TextConfig
from albert_tf.text.sentencepiece_models import compiler_version
from albert_tf.text.tokenizers import (
    SentencePieceTokenizer,
    load_saved_tokenizer,
    tokenizer_from_files,
)
from albert_tf.text.wordpiece import vocabulary_lines


@pytest.mark.parametrize(
    "tokenizer",
    [
        english(do_lower_case=False, digit_comma="none"),
        english(strip_accents=False, replace_quotes=True),
        chinese(do_lower_case=False),
    ],
)
def test_save_and_load(tokenizer, tmp_path):
    """A saved and loaded tokenizer has the same class, fingerprint and ids."""
    tokenizer.save(str(tmp_path))
    loaded = load_saved_tokenizer(str(tmp_path))
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    for text in TEXTS:
        assert loaded.encode(text) == tokenizer.encode(text)


def no_compiling(tokenizer):
    """Return a placeholder for compiled rules."""
    return b"compiled anew"


def test_compiled_rules_are_read(tmp_path, monkeypatch):
    """However a vocabulary is loaded, compiled rules next to it are used."""
    tokenizer = english()
    tokenizer.save(str(tmp_path))
    monkeypatch.setattr(SentencePieceTokenizer, "_compile", no_compiling)
    loaded = load_saved_tokenizer(str(tmp_path))
    named = tokenizer_from_files(spm_model_file=str(tmp_path / "spiece.model"))
    assert loaded.with_rules == named.with_rules == tokenizer.with_rules
    loaded.save(str(tmp_path / "copy"))
    copied = load_saved_tokenizer(str(tmp_path / "copy"))
    assert copied.with_rules == tokenizer.with_rules


def test_rules_of_wordpiece_are_saved_if_compiled(tmp_path, monkeypatch):
    """WordPiece needs compiled rules only for offsets and for graphs."""
    tokenizer, folders = chinese(), [tmp_path / "a", tmp_path / "b"]
    tokenizer.save(str(folders[0]))
    rules = tokenizer.with_rules
    tokenizer.save(str(folders[1]))
    monkeypatch.setattr(type(tokenizer), "_compile", no_compiling)
    loaded = [load_saved_tokenizer(str(folder)) for folder in folders]
    assert [x.with_rules for x in loaded] == [b"compiled anew", rules]


@pytest.mark.parametrize(
    "change",
    ["setting", "pieces", "unicode", "sentencepiece", "none", "bit"],
)
def test_compiled_rules_of_something_else_are_ignored(
    change, tmp_path, monkeypatch
):
    """Rules of a different vocabulary, setting or version are replaced.

    The versions are those of Unicode and SentencePiece. Damaged and missing
    rules are also compiled anew.
    """
    english().save(str(tmp_path))
    monkeypatch.setattr(SentencePieceTokenizer, "_compile", no_compiling)
    if change == "pieces":
        proto = ModelProto.FromString(english().content)
        proto.pieces.add(piece="more", score=0.0, type=1)
        (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    elif change == "unicode":
        monkeypatch.setattr("unicodedata.unidata_version", "1.0")
    elif change == "sentencepiece":
        monkeypatch.setattr("sentencepiece.__version__", "0.1")
    elif change == "none":
        (tmp_path / "compiled_rules.bin").unlink()
    elif change == "bit":
        content = bytearray((tmp_path / "compiled_rules.bin").read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / "compiled_rules.bin").write_bytes(content)
    lower = change != "setting"
    path = str(tmp_path / "spiece.model")
    loaded = tokenizer_from_files(spm_model_file=path, do_lower_case=lower)
    assert loaded.with_rules == b"compiled anew"


@pytest.mark.parametrize("kind", [OSError, TypeError])
def test_an_application_without_source_compiles_rules(
    kind, tmp_path, monkeypatch
):
    """If the source is not available, stored rules are compiled again."""
    english().save(str(tmp_path))
    expected = load_saved_tokenizer(str(tmp_path)).with_rules
    monkeypatch.setattr("inspect.getsource", mock.Mock(side_effect=kind))
    english().save(str(tmp_path / "new"))
    for folder in (tmp_path, tmp_path / "new"):
        assert load_saved_tokenizer(str(folder)).with_rules == expected
    monkeypatch.setattr(SentencePieceTokenizer, "_compile", no_compiling)
    loaded = load_saved_tokenizer(str(tmp_path))
    assert loaded.with_rules == b"compiled anew"


@pytest.mark.parametrize(
    "code, same",
    [
        ("X = 1\n\ndef f(x):\n    return x\n", True),
        ("X=1  # one\ndef f(x):\n    'The same.'\n    return (x)\n", True),
        ("'About.'\nX = 1\ndef f(x):\n    return x\n", True),
        ("X = 2\ndef f(x):\n    return x\n", False),
        ("X = 1\ndef f(x):\n    return -x\n", False),
        ("X = 1\ndef f(x):\n    return 'x'\n", False),
        ("X = 1\ndef f(x):\n    g()\n    return x\n", False),
    ],
)
def test_only_code_makes_compiled_rules_outdated(code, same, monkeypatch):
    """Only changes of code, not of comments, change the compiler's version.

    Docstrings count as comments.
    """
    first = "X = 1  # a constant\n\n\ndef f(x):\n    'Text.'\n    return x\n"
    sources = [first, code]
    monkeypatch.setattr("inspect.getsource", lambda module: sources.pop(0))
    versions = [compiler_version([normalization]) for _ in range(2)]
    assert (versions[0] == versions[1]) == same


def test_threads_parse_code_one_at_a_time(monkeypatch):
    """Threads that load tokenizers do not create syntax trees concurrently.

    CPython 3.11.7 sometimes raises a SystemError if they do.
    """
    parse, running, most = ast.parse, [], []

    def slowly(source):
        running.append(source)
        time.sleep(0.01)  # lets the other thread run
        most.append(len(running))
        running.pop()
        return parse(source)

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr("ast.parse", slowly)
        versions = [*pool.map(compiler_version, [[normalization]] * 4)]
    assert len({*versions}) == 1 and most == [1] * 4


@pytest.mark.parametrize(
    "name, content",
    [
        ("spiece.model", b"another model"),
        ("vocab.txt", b"[PAD]"),
        ("tokenizer.json", b'{"version": "1.0", "model": {"type": "Unigram"}}'),
        ("symbols.json", b"{}"),
        ("model.safetensors", b""),
        ("pytorch_model-00001-of-00002.bin", b""),
        ("tf_model.h5", b""),
        ("flax_model.msgpack", b""),
    ],
)
@pytest.mark.parametrize("copied", [False, True])
def test_foreign_files_are_kept(copied, name, content, tmp_path):
    """A tokenizer is not saved beside another vocabulary or library's files.

    A copy of the tokenizer's vocabulary is not foreign. The error names the
    files, and no file changes.
    """
    own = {english().file_name: english().content} if copied else {}
    contents = own | {name: content}
    for file, data in contents.items():
        (tmp_path / file).write_bytes(data)
    listed = ", ".join(sorted(contents))
    with pytest.raises(InputError, match=f"delete these.* with {listed}"):
        english().save(str(tmp_path))
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == contents


def test_a_tokenizer_is_not_replaced(tmp_path):
    """A tokenizer can be saved over a tokenizer only if the two are equal."""
    english().save(str(tmp_path))
    with pytest.raises(InputError, match="another tokenizer.*model, token"):
        english(do_lower_case=False).save(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    english().save(str(tmp_path))
    assert load_saved_tokenizer(str(tmp_path)).config.do_lower_case


def test_an_interrupted_save_is_repeated(tmp_path):
    """A repeated `save` completes the files of an interrupted `save`."""
    english().save(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    english().save(str(tmp_path))
    assert load_saved_tokenizer(str(tmp_path)).config.do_lower_case


def write(path, content):
    """Write a file of bytes and return its path as a string."""
    path.write_bytes(content)
    return str(path)


def test_fingerprint_depends_on_everything(tmp_path):
    """Fingerprints of tokenizers with different settings or pieces differ."""
    other = write(tmp_path / "vocab.txt", "\n".join(WORDPIECES[:9]).encode())
    prints = {
        english().fingerprint(),
        english(do_lower_case=False).fingerprint(),
        english(digit_comma="strip").fingerprint(),
        chinese().fingerprint(),
        chinese(do_lower_case=False).fingerprint(),
        tokenizer_from_files(vocab_file=other).fingerprint(),
    }
    assert len(prints) == 6


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    "pad, unk", [("[PAD]", "[UNK]"), ("<PAD>", "⁇"), ("<pad>", "[UNK]")]
)
def test_pieces_that_the_file_names(pad, unk, tmp_path):
    """The model file defines the pieces for padding and unknown text.

    The ids match a model with the usual names.
    """
    proto = ModelProto.FromString(sentencepiece_model())
    usual = SentencePieceTokenizer(sentencepiece_model(), TextConfig())
    pieces, spec = proto.pieces, proto.trainer_spec
    pieces[usual.pad_id].piece = spec.pad_piece = pad
    pieces[usual.unk_id].piece = spec.unk_piece = unk
    path = write(tmp_path / "m", proto.SerializeToString())
    tokenizer = tokenizer_from_files(spm_model_file=path)
    tokenizer.save(str(tmp_path))
    for found in (tokenizer, load_saved_tokenizer(str(tmp_path))):
        assert found.pieces([found.pad_id, found.unk_id]) == [pad, unk]
        assert found.not_words.tolist() == usual.not_words.tolist()
        assert [found.encode(t) for t in TEXTS] == [
            usual.encode(t) for t in TEXTS
        ]


@pytest.mark.parametrize("name", ["<pad>", "[CLS]", "[MASK]"])
def test_vocabulary_without_a_special_piece(name, tmp_path):
    """The error names the special piece that is missing from the model."""
    special = tuple(s for s in SPECIAL if s != name)
    path = write(tmp_path / "m", sentencepiece_model(special))
    with pytest.raises(InputError, match=rf"/m: .* without \{name}"):
        tokenizer_from_files(spm_model_file=path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n", r"without \[MASK\]"),
        (b"[PAD]\na\nb\na\n", "'a' in lines 2 and 4"),
        (b"[PAD]\n\xff\n", "UTF-8"),
        (b"", r"without \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
    ],
)
def test_bad_wordpiece_vocabulary(content, message, tmp_path):
    """A one-line error describes the fault of a WordPiece vocabulary."""
    path = write(tmp_path / "vocab.txt", content)
    with pytest.raises(InputError, match=message) as error:
        tokenizer_from_files(vocab_file=path)
    assert "\n" not in str(error.value) and path in str(error.value)


def test_a_vocabulary_that_windows_saved(tmp_path):
    """Byte-order marks and CRLF line endings are not parts of pieces."""
    text = "\r\n".join(WORDPIECES)
    path = write(tmp_path / "vocab.txt", text.encode("utf-8-sig"))
    windows = tokenizer_from_files(vocab_file=path)
    assert windows.pieces(range(windows.vocab_size)) == list(WORDPIECES)
    # Google's Chinese vocabulary has a line separator as a piece.
    lines = vocabulary_lines("a b\r\n\u2028\r\nc\n ".encode())
    assert lines == ["a", "\u2028", "c"]


def test_a_blank_line_of_a_vocabulary_has_an_id():
    """Blank lines are pieces, so that later ids stay; the last is dropped."""
    assert vocabulary_lines(b"a\n\nb\n") == ["a", "", "b"]
    assert vocabulary_lines(b"a\nb\n\n") == ["a", "b", ""]


@pytest.mark.parametrize("content", [b"", b"no model", b"\x0a\x03abc"])
def test_not_a_sentencepiece_model(content, tmp_path):
    """A `spiece.model` that is not a SentencePiece model raises an error."""
    path = write(tmp_path / "spiece.model", content)
    with pytest.raises(InputError, match="spiece.model"):
        tokenizer_from_files(spm_model_file=path)


def test_one_vocabulary_must_be_given(tmp_path):
    """Two vocabularies, no vocabulary or a missing file raise an error."""
    path = write(tmp_path / "m", sentencepiece_model())
    with pytest.raises(InputError, match="Set exactly one of"):
        tokenizer_from_files(spm_model_file=path, vocab_file=path)
    with pytest.raises(InputError, match="Set exactly one of"):
        tokenizer_from_files()
    with pytest.raises(InputError, match="existing file. Received: .*none"):
        tokenizer_from_files(vocab_file=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ('{"type": "byte"}', "type=byte"),
        ("[]", "type=None"),
        ('{"type": "sentencepiece", "model": {}}', "model in"),
        ('{"type": "sentencepiece", "digit_comma": "x"}', "digit_comma=x"),
        (
            '{"type": "sentencepiece", "do_lower_case": "no"}',
            "tokenizer.json: `do_lower_case` must be true or false.*'no'",
        ),
        (
            '{"type": "sentencepiece", "strip_accents": null}',
            "`strip_accents` must be true or false",
        ),
    ],
)
def test_bad_description(description, message, tmp_path):
    """An invalid `tokenizer.json` raises an error."""
    english().save(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(description)
    with pytest.raises(InputError, match=message):
        load_saved_tokenizer(str(tmp_path))


def test_a_flag_that_is_written_as_text(tmp_path):
    """In `tokenizer.json`, the strings "false" and "0" also mean False."""
    english().save(str(tmp_path))
    path = tmp_path / "tokenizer.json"
    for value in ("false", False, 0, "0", "False"):
        path.write_text(
            json.dumps({"type": "sentencepiece", "do_lower_case": value})
        )
        assert load_saved_tokenizer(str(tmp_path)).config.do_lower_case is False
