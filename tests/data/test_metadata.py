"""Metadata are read back as written, and damaged metadata raise errors."""

import dataclasses
import json

import pytest

from albert_tf.base.errors import InputError
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records.metadata import (
    BY_FREQUENCY,
    LABELS,
    PHONEMES,
    Metadata,
    RecordFile,
    load_metadata,
    read_piece_counts,
)

ACCURACY = {"masked_symbol_accuracy": 0.1}
METADATA = Metadata(
    max_seq_length=0,
    max_predictions_per_seq=0,
    vocab_size=0,
    tokenizer_fingerprint="",
    splits={"eval": (RecordFile("a", 2, 32),)},
    settings={"task": PHONEMES, "masking": DYNAMIC},
    statistics={LABELS: 2, BY_FREQUENCY: ACCURACY},
)


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"version": 0}', "must have version 1"),
        ("[]", "must have version 1"),
        ('{"version": 1}', "is damaged"),
        ('{"version": 1, "splits": {}, "new": 2}', "is damaged"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    """A `metadata.json` that is damaged, or of another version, is rejected."""
    (tmp_path / "metadata.json").write_text(text)
    with pytest.raises(InputError, match=message):
        load_metadata(str(tmp_path))


@pytest.mark.parametrize("seed, labels", [(0, 2), (2**63 - 1, 3)])
def test_limits_of_values(tmp_path, seed, labels):
    """Metadata with the smallest or the largest legal values can be read."""
    legal = dataclasses.replace(
        METADATA,
        settings=METADATA.settings | {"random_seed": seed},
        statistics=METADATA.statistics | {LABELS: labels},
    )
    legal.write(str(tmp_path))
    assert load_metadata(str(tmp_path)) == legal


@pytest.mark.parametrize(
    "part, name, value",
    [
        (None, "max_seq_length", -1),
        (None, "vocab_size", True),
        (None, "tokenizer_fingerprint", 1),
        (None, "settings", []),
        *(("file", "records", x) for x in (-1, 10**6)),
        *(("file", "bytes", x) for x in (31, "32")),
        *(("file", "file", x) for x in ("a\0b", "a\ud800", 3)),
        *(("statistics", LABELS, x) for x in (None, "42", 1, -1, 2.0)),
        *(("statistics", BY_FREQUENCY, x) for x in (None, [], {}, {"a": 1})),
        ("statistics", BY_FREQUENCY, {"masked_symbol_accuracy": "0.1"}),
        ("statistics", BY_FREQUENCY, {"masked_symbol_accuracy": None}),
        *(("settings", "task", x) for x in ("words ", ["phonemes"])),
        *(("settings", "masking", x) for x in ("static", None, "x", ["x"])),
        *(("settings", "random_seed", x) for x in ("1", -1, 2**63, 10**30)),
        *(("settings", "masked_lm_prob", x) for x in ("x", 0, 10**400)),
        *(("settings", "mask_same_random", x) for x in ("x", 1, [10**400])),
    ],
)
def test_damaged_values_are_named(tmp_path, part, name, value):
    """The error names a value of a wrong type or range, or a missing value.

    A record has at least 16 bytes.
    """
    METADATA.write(str(tmp_path))
    path = tmp_path / "metadata.json"
    values = json.loads(path.read_text())
    parts = values | {None: values, "file": values["splits"]["eval"][0]}
    parts[part][name] = value
    if value is None:
        del parts[part][name]
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=f"json is damaged.*`{name}`"):
        load_metadata(str(tmp_path))


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_file_that_is_listed_twice(tmp_path, split):
    """No file may be listed twice, neither in one split nor in both."""
    first, second = (RecordFile(n, 2, 32) for n in "ab")
    splits = {"train": (first, second), "eval": ()}
    splits[split] += (second,)
    dataclasses.replace(METADATA, splits=splits).write(str(tmp_path))
    with pytest.raises(InputError, match="each `file` once.*'b'"):
        load_metadata(str(tmp_path))


def test_a_fingerprint_tells_records_from_others():
    """The fingerprint depends on record counts, lengths and file sizes."""
    entry = RecordFile("train-0", 327, 9000)

    def fingerprint(length=16, **changes):
        train = (dataclasses.replace(entry, **changes),)
        return Metadata(length, 3, 50, "", {"train": train}).fingerprint()

    found = fingerprint()
    assert found.startswith("327 records of 16 tokens, ")
    assert fingerprint(file="elsewhere") == found
    others = {fingerprint(32), fingerprint(records=9), fingerprint(bytes=9001)}
    assert len(others - {found}) == 3
    four = [RecordFile(f"{i}", 10**i, 20_000 + i) for i in range(4)]
    splits = {"train": (*four[:3], four[0])}, {"train": (*four,)}
    first, second = (Metadata(16, 3, 50, "", x) for x in splits)
    assert [x.count("train") for x in (first, second)] == [112, 1111]
    sizes = [x.fingerprint().rpartition(" ")[2] for x in (first, second)]
    assert sizes[0] != sizes[1]


def test_another_mask_rate_has_its_own_number_of_slots():
    """At another mask rate, the number of slots follows from the rate."""
    settings = {"masking": DYNAMIC, "max_predictions_per_seq": 3}
    found = Metadata(32, 3, 50, "", {}, settings | {"ngram": 2}).masked_at(0.3)
    assert found.max_predictions_per_seq == 10
    config = found.masking_config()
    assert (config.masked_lm_prob, config.ngram) == (0.3, 2)
    assert config.max_masked(32) == 10


@pytest.mark.parametrize("counts", ["[]", "[1.5]", "[3, -1]", "[1, 2, 3, 4]"])
def test_wrong_counts_of_pieces_are_refused(counts, tmp_path):
    """Invalid piece counts raise an error."""
    (tmp_path / "piece_counts.json").write_text(counts)
    with pytest.raises(InputError, match="piece_counts.json(`|: .*`) must"):
        read_piece_counts(str(tmp_path), 3)
    (tmp_path / "piece_counts.json").write_text("[0, 2, 1]")
    assert read_piece_counts(str(tmp_path), 3).tolist() == [0, 2, 1]
