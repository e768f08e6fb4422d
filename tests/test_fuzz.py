"""Damaged files and requests are read, or rejected with a message."""

import dataclasses
import struct

import numpy as np
import pytest
import tiny_tasks
import vocabularies
from fuzz import mutators, trials
from fuzz.trials import READERS
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.base.errors import InputError
from albert_tf.data.records import tfrecord
from albert_tf.tasks.registry import find
from albert_tf.text.sentencepiece_models import read_model
from albert_tf.text.tokenizers import load_saved_tokenizer
from albert_tf.training import checkpoint_files

CASES = [
    pytest.param(name, marks=[] if reader.quick else pytest.mark.slow)
    for name, reader in READERS.items()
]
DEEP = b"[" * mutators.DEPTH
LEVELS = b'{"vocab_size": %b1%b}' % (b"[" * 400, b"]" * 400)
LENGTH = struct.pack("<Q", 2**63)
HUGE = LENGTH + struct.pack("<I", tfrecord.masked_crc32c(LENGTH))
# {reader: contents of files that once raised an error other than `InputError`}
FAILED = {
    "static records": {"metadata.json": DEEP, "piece_counts.json": DEEP},
    "records without metadata": {"train-00000-of-00004.tfrecord": HUGE},
    "model directory": {"albert_config.json": DEEP},
    "TF1 release": {"albert_config.json": LEVELS},
    "run files": {"metadata.json": DEEP},
    "sentence-transformers": {
        "tokenizer.json": DEEP,
        "modules.json": b'[{"type": "Transformer", "path": 1}]',
        "config_sentence_transformers.json": b'{"prompts": ["query"]}',
    },
    "phoneme tables": {
        "config.yml": b"model_params: 2001-99-99",
        "words.json": b'{"x": 2}',
    },
    "task.json": {
        "regression/task.json": b"""{"kind": "regression", "name": "x",
        "main_metric": "pearson", "config": {}}"""
    },
    "table": {"saved/state.json": b"[]"},
    "table of a task": {"regression.tsv": b"text\tlabel" + b"\tx" * 10**5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder for the valid files of all readers."""
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("name", CASES)
def test_damaged_files_are_refused_or_read(folder, name):
    """A damaged file is read or rejected within five seconds.

    No other error occurs, and no file changes.
    """
    trials.make(name, folder)
    valid = trials.valid_folder(name, folder)
    for number in range(2):
        outcome = trials.trial(READERS[name], valid, f"{name} {number}")
        assert outcome.kind != trials.FAILED, outcome
        assert outcome.seconds < 5, outcome
    for file, content in FAILED.get(name, {}).items():
        intact = (valid / file).read_bytes()
        (valid / file).write_bytes(content)
        with pytest.raises(InputError):
            READERS[name].read(valid, file)
        (valid / file).write_bytes(intact)


def test_a_record_has_its_length(tmp_path):
    """A wrong record length raises an error even if checksums are correct.

    TensorFlow's reader would write beyond the memory that it has allocated.
    """
    path = tmp_path / "x.tfrecord"
    tfrecord.write(str(path), [b"record"])
    path.write_bytes(HUGE + path.read_bytes()[len(HUGE) :])
    with pytest.raises(InputError, match="damaged or truncated in record 0"):
        list(tfrecord.read(str(path)))


@pytest.mark.parametrize("size", range(8))
def test_a_cut_head_may_have_a_correct_checksum(tmp_path, size):
    """A file that ends inside a record's length field is reported as damaged.

    A correct checksum of the preceding bytes makes no difference.
    """
    path = tmp_path / "x.tfrecord"
    tfrecord.write(str(path), [b"record"])
    start = bytes(size)
    checksum = tfrecord.masked_crc32c(start).to_bytes(4, "little")
    path.write_bytes(path.read_bytes() + start + checksum)
    with pytest.raises(InputError, match="damaged or truncated in record 1"):
        list(tfrecord.read(str(path)))


def test_a_huge_number_of_choices_is_refused():
    """A task with more than 1,000 choices raises an error.

    A batch has a row for each choice.
    """
    with pytest.raises(InputError, match="must be from 0 to 1000"):
        dataclasses.replace(find("multiple_choice"), number=10**20)


def test_a_path_with_a_null_character_names_no_checkpoint(tmp_path):
    """A damaged `checkpoint` file is treated like a missing file."""
    state = b'model_checkpoint_path: "ckpt-1\0"\n'
    (tmp_path / "checkpoint").write_bytes(state)
    (tmp_path / "ckpt-3.json").touch()
    found = checkpoint_files.listed(str(tmp_path))
    assert found == [checkpoint_files.prefix(str(tmp_path), 3)]


def test_damaged_character_maps_are_refused():
    """A character map that refers beyond its own end raises an error."""
    proto = ModelProto.FromString(vocabularies.sentencepiece_model())
    intact = proto.normalizer_spec.precompiled_charsmap
    size = int.from_bytes(intact[:4], "little")
    units = np.frombuffer(intact, "<u4", size // 4, 4)
    leaf = 4 + 4 * int(np.flatnonzero(units >> 31)[0])
    for offset, number in {
        0: size + 4,  # the size of the array
        4: units[0] | 0x3FFFF << 10,  # a child beyond the array
        leaf: 0xFFFFFFFF,  # a replacement beyond the end
        len(intact) - 4: 0x61616161,  # a last replacement without an end
    }.items():
        number = int(number).to_bytes(4, "little")
        damaged = intact[:offset] + number + intact[offset + 4 :]
        proto.normalizer_spec.precompiled_charsmap = damaged
        with pytest.raises(InputError, match="map of a SentencePiece model"):
            read_model(proto.SerializeToString())


@pytest.mark.parametrize("piece", ["", "a\0b", "a" * 2001])
def test_pieces_that_end_the_process_are_refused(piece):
    """Pieces that would crash SentencePiece raise an error instead."""
    proto = ModelProto.FromString(vocabularies.sentencepiece_model())
    proto.pieces[-1].piece = piece
    with pytest.raises(InputError, match="1 to 2,000 characters"):
        read_model(proto.SerializeToString())


def test_a_changed_vocabulary_is_noticed(tmp_path):
    """A changed vocabulary raises an error unless its checksum is removed."""
    tiny_tasks.make_tokenizer(tmp_path).save(str(tmp_path))
    path = tmp_path / "vocab.txt"
    path.write_text(path.read_text().replace("film", "fylm"))
    with pytest.raises(InputError, match="remove `vocabulary_sha256`"):
        load_saved_tokenizer(str(tmp_path))
    vocabularies.exchange(tmp_path, path.read_text().split("\n"))
    assert "fylm" in load_saved_tokenizer(str(tmp_path))._pieces
