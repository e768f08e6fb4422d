"""Dynamic records store text without masks; readers mask the text."""

import dataclasses
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tiny_corpus import make_records
from tiny_records import serialized, write

from albert_tf.base.errors import InputError
from albert_tf.data.layout import id_type, vocabulary_beside
from albert_tf.data.masking import DYNAMIC, MaskingConfig
from albert_tf.data.records import input_pipeline, metadata, parsing, tfrecord
from albert_tf.data.records.metadata import read_metadata
from albert_tf.text.tokenizers import load_saved_tokenizer
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.pretraining.run_setup import check_readers

T = 32


def run(corpus, output, **changes):
    """Build records from a corpus; return the metadata."""
    return make_records(corpus, output, dupe_factor=1, **changes)


def read(folder):
    """Return the raw training records, in file order."""
    return [
        data
        for path in sorted(folder.glob("train-*"))
        for data in tfrecord.read(str(path))
    ]


def test_each_split_is_checked_in_its_own_form(kinds):
    """A run always checks held-out records as static records.

    Static records that a folder lists as dynamic are rejected, and vice versa.
    """
    for kind in ("static", "dynamic"):
        folder = str(kinds / kind)
        described = read_metadata(folder)
        training, held_out = (described.splits[x] for x in ("train", "eval"))
        assert training and held_out and described.form("eval") == "static"
        input_pipeline.check_files(folder, described)
    splits = {"train": held_out, "eval": training}
    exchanged = dataclasses.replace(described, splits=splits)
    for split, entries in splits.items():
        one = dataclasses.replace(exchanged, splits={split: entries})
        with pytest.raises(InputError, match=f"{entries[0].file}, record 0: "):
            input_pipeline.check_files(folder, one)


def test_same_text_as_static(kinds):
    """Dynamic records equal static records whose masks are removed."""
    static, dynamic = read(kinds / "static"), read(kinds / "dynamic")
    assert len(static) == len(dynamic) > 100
    special = {-1: 2, -2: 3}  # [CLS], [SEP] of the vocabulary
    for both in zip(static, dynamic, strict=True):
        left, right = map(tfrecord.decode, both)
        ids = [special.get(i, i) for i in right.input_ids.tolist()]
        assert left.originals().tolist() == ids
        assert right.input_ids.dtype == np.int64
        np.testing.assert_array_equal(left.segment_ids, right.segment_ids)
        assert left.swapped == right.swapped
        features = list(map(tfrecord.parse, both))
        boundary = np.array(features[0]["token_boundary"])[: len(ids)]
        packed = np.frombuffer(features[1]["word_starts"][0], np.uint8)
        text = right.input_ids >= 0
        starts = np.unpackbits(packed, count=text.sum())
        np.testing.assert_array_equal(boundary[text], starts)
        assert boundary[~text].all()
        assert left.positions.size and not right.positions.size


def test_held_out_records_are_the_static_ones(kinds):
    """Static and dynamic builds hold out the same records, with fixed masks."""
    static, dynamic = (
        {p.name: p.read_bytes() for p in (kinds / kind).glob("eval*")}
        for kind in ("static", "dynamic")
    )
    assert static == dynamic and static


def batches(kinds, count, batch_size=8, seed=5, **kwargs):
    """Return `count` training batches of dynamic records as dicts of arrays."""
    folder = str(kinds / "dynamic")
    metadata = read_metadata(folder)
    dataset = input_pipeline.train_batches(
        folder, metadata, batch_size=batch_size, seed=seed, **kwargs
    )
    return [
        {name: value.numpy() for name, value in batch.items()}
        for batch in dataset.take(count)
    ]


def rows(found):
    """Return the rows of batches as bytes, which can be compared."""
    return [
        b"".join(batch[name][i].tobytes() for name in sorted(batch))
        for batch in found
        for i in range(len(batch["input_ids"]))
    ]


def test_batches_hold_what_static_ones_hold(kinds):
    """Batches of static and dynamic records have the same `element_spec`."""
    shapes = []
    for kind in ("static", "dynamic"):
        folder = str(kinds / kind)
        dataset = input_pipeline.train_batches(
            folder, metadata.read_metadata(folder), batch_size=4, seed=1
        )
        shapes.append(dataset.element_spec)
    assert shapes[0] == shapes[1]
    assert shapes[1]["input_ids"].shape == (4, T)
    assert shapes[1]["masked_lm_positions"].shape == (4, 5)


def restored(batch, row):
    """Return a row's ids before masking, and its masked positions."""
    weights, ids = batch["masked_lm_weights"][row], batch["input_ids"][row]
    where = batch["masked_lm_positions"][row, weights > 0]
    ids = ids.copy()
    ids[where] = batch["masked_lm_ids"][row, weights > 0]
    return ids, where


def test_batches_restore_the_records(kinds):
    """With masked tokens restored, an epoch contains each record once."""
    count = metadata.read_metadata(str(kinds / "dynamic")).count("train")
    tokenizer = load_saved_tokenizer(str(kinds / "dynamic"))
    found = []
    for batch in batches(kinds, count, batch_size=1):
        ids, _ = restored(batch, 0)
        length = batch["input_mask"][0].sum()
        assert not ids[length:].any() and batch["input_mask"][0, :length].all()
        assert (
            ids[0] == tokenizer.cls_id and ids[length - 1] == tokenizer.sep_id
        )
        segments = batch["segment_ids"][0]
        assert segments.sum() == segments[:length].sum()
        found.append(
            (
                tuple(ids[:length]),
                int(segments.sum()),
                int(batch["sentence_order_labels"][0]),
            )
        )
    static = [
        (tuple(e.originals()), int(e.segment_ids.sum()), int(e.swapped))
        for e in map(tfrecord.decode, read(kinds / "static"))
    ]
    assert sorted(found) == sorted(static)


def test_records_can_be_masked_at_another_rate(kinds):
    """At a mask rate of 30%, about 30% of the tokens in a batch are masked."""
    folder = str(kinds / "dynamic")
    metadata = read_metadata(folder).masked_at(0.3)
    dataset = input_pipeline.train_batches(
        folder, metadata, batch_size=64, seed=1
    )
    batch = next(iter(dataset))
    config = MaskingConfig(masking="dynamic", masked_lm_prob=0.3)
    assert batch["masked_lm_positions"].shape == (64, config.predictions(T))
    assert config.predictions(T) == round(0.3 * T)
    lengths = tf.reduce_sum(batch["input_mask"], 1).numpy()
    used = tf.reduce_sum(batch["masked_lm_weights"], 1).numpy()
    assert used.sum() / lengths.sum() == pytest.approx(0.3, abs=0.015)


def other(field):
    """Return a legal value, other than the default, for a setting."""
    if choices := field.metadata["choices"]:
        return next(value for value in choices if value != field.default)
    if field.name == "mask_same_random":
        return "0.9", "0.0", "0.1"
    if isinstance(field.default, bool):
        return not field.default
    if isinstance(field.default, tuple):
        return *field.default, "1"
    return 2 * (field.default or 2)


@pytest.mark.parametrize("usual", ["masking", "do_permutation"])
def test_readers_mask_as_the_build_was_told(corpus, tmp_path, usual):
    """Every masking setting of a build is read back from its metadata.

    A repeated build with the same settings is complete. Only static records can
    be permuted.
    """
    fields = dataclasses.fields(MaskingConfig)
    values = {field.name: other(field) for field in fields}
    values[usual] = getattr(MaskingConfig(), usual)
    for _ in range(2):
        run(corpus, tmp_path, **values)
        found = read_metadata(str(tmp_path)).masking_config()
        assert dataclasses.asdict(found) == values


def test_words_are_masked_whole(kinds):
    """Masking follows the word boundaries stored in the records."""
    tokenizer = load_saved_tokenizer(str(kinds / "dynamic"))
    follow = tokenizer.pieces(range(tokenizer.vocab_size)).index("##x")
    special, whole = [tokenizer.cls_id, tokenizer.sep_id], 0
    for batch in batches(kinds, 20):
        for row in range(len(batch["input_ids"])):
            ids, where = restored(batch, row)
            positions = np.flatnonzero(ids == follow)
            positions = positions[~np.isin(ids[positions - 1], special)]
            inside, before = np.isin([positions, positions - 1], where)
            np.testing.assert_array_equal(inside, before)
            whole += inside.sum()
    assert whole > 20


def test_masks_change_with_the_epoch(kinds):
    """A record has different masks in the second epoch than in the first."""
    count = metadata.read_metadata(str(kinds / "dynamic")).count("train")
    found = rows(batches(kinds, 2 * count // 4, batch_size=4))
    assert len(set(found)) > 1.9 * count


def test_masks_change_with_the_seed(kinds, monkeypatch):
    """Runs with different seeds mask the same text at the same position."""
    monkeypatch.setattr(
        input_pipeline, "_permutation", lambda size, key: tf.range(size)
    )
    first, second = (batches(kinds, 1, 16, seed)[0] for seed in (5, 6))
    for row in range(16):
        texts = [restored(batch, row)[0] for batch in (first, second)]
        np.testing.assert_array_equal(*texts)
    same = first["masked_lm_positions"] == second["masked_lm_positions"]
    assert np.mean(same.all(axis=1)) < 0.5


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("start", [24, 400])
def test_resume_is_exact(kinds, start):
    """The batch at a position does not depend on where reading starts."""
    whole = rows(batches(kinds, (start + 40) // 8))
    assert rows(batches(kinds, 5, start=start)) == whole[start:]


@pytest.mark.slow
def test_batch_size_changes_no_mask(kinds):
    """The batch size does not affect the masks of one or several readers."""
    for reader in ({}, {"num_shards": 2, "shard": 1}):
        whole = rows(batches(kinds, 12, **reader))
        assert rows(batches(kinds, 16, batch_size=6, **reader)) == whole


def test_no_two_readers_share_a_mask(kinds, monkeypatch):
    """Readers share neither positions, which determine masks, nor records.

    Each record comes with a name for error messages: its file and its number.
    """

    def positions_read(data_dir, metadata, seed):
        return lambda positions, names, records: {
            "input_ids": positions[:, None],
            "names": names,
            "records": records,
        }

    readers = input_pipeline.READERS
    monkeypatch.setitem(readers, DYNAMIC, positions_read)
    found = [
        batch
        for shard in range(3)
        for batch in batches(kinds, 7, 4, start=6, num_shards=3, shard=shard)
    ]
    positions = [x for b in found for x in b["input_ids"][:, 0].tolist()]
    assert sorted(positions) == list(range(6, 90))
    names = {x for batch in found for x in batch["names"].tolist()}
    assert len(names) == len(positions)  # all of the first epoch
    stored = {
        f"{path}, record {number}".encode(): record
        for path in (kinds / "dynamic").glob("train-*")
        for number, record in enumerate(tfrecord.read(str(path)))
    }
    for batch in found:
        assert [stored[x] for x in batch["names"]] == batch["records"].tolist()


def test_another_tokenizer_is_refused(corpus, tmp_path):
    """Dynamic records can be read only with the tokenizer that made them."""
    metadata = run(corpus, tmp_path / "out", masking="dynamic")
    for change in (
        {"tokenizer_fingerprint": "other"},
        {"vocab_size": metadata.vocab_size + 1},
        {"statistics": {"word_labels": 2}},
    ):
        changed = dataclasses.replace(metadata, **change)
        with pytest.raises(InputError, match="of its build; make"):
            vocabulary_beside(str(tmp_path / "out"), changed)
    with pytest.raises(InputError, match="of its build; make"):
        input_pipeline.train_batches(
            str(tmp_path / "out"), changed, batch_size=2, seed=0
        )


@pytest.mark.parametrize(
    "sizes, message",
    [
        ((20, 20), "sum to 40 instead of 1 to 29"),
        ((3, 4), "`token_ids` is 6 bytes long for 7 tokens"),
    ],
)
def test_wrong_records_are_named(corpus, tmp_path, sizes, message):
    """An inconsistent record raises an error before and during training."""
    metadata = run(corpus, tmp_path / "out", masking="dynamic")
    entry = metadata.splits["train"][0]
    record = serialized(
        token_ids=[b"\5\0" * 3],
        word_starts=[b"\xff"],
        segment_lengths=sizes,
        next_sentence_labels=[0],
    )
    path = str(tmp_path / "out" / entry.file)
    write(path, [record] * 4)
    size = tf.io.gfile.stat(path).length
    entry = dataclasses.replace(entry, records=4, bytes=size)
    metadata = dataclasses.replace(metadata, splits={"train": (entry,)})
    metadata.write(str(tmp_path / "out"))
    with pytest.raises(InputError, match=message):
        input_pipeline.check_files(str(tmp_path / "out"), metadata)
    with pytest.raises(InputError, match=message):
        with input_pipeline.errors_explained({str(tmp_path / "out"): metadata}):
            batches = input_pipeline.train_batches(
                str(tmp_path / "out"), metadata, batch_size=2, seed=0
            )
            next(iter(batches))


def test_a_reader_elsewhere_cannot_mask(kinds):
    """For a remote TPU, dynamic records are rejected, but not static ones."""
    folders = {
        kind: {str(kinds / kind): metadata.read_metadata(str(kinds / kind))}
        for kind in ("static", "dynamic")
    }
    remote = DistributionConfig(tpu_name="grpc://10.0.0.2:8470")
    for devices in (DistributionConfig(), DistributionConfig(tpu_name="local")):
        check_readers(folders["dynamic"], devices)
    check_readers(folders["static"], remote)
    message = "masked in Python.*tpu_name=grpc://10.0.0.2:8470, data_dir="
    with pytest.raises(InputError, match=message):
        check_readers(folders["dynamic"], remote)


def test_the_type_of_ids_depends_on_the_vocabulary():
    """Ids have two bytes for up to 65,536 pieces, and four for more pieces."""
    assert (id_type(1 << 16), id_type((1 << 16) + 1)) == ("<u2", "<i4")


def test_ids_of_a_large_vocabulary_are_stored(kinds, corpus, tmp_path):
    """With more than 65,536 pieces, the records contain the same words."""
    special, shift = 5, 1 << 16
    lines = (corpus / "vocab.txt").read_text().splitlines()
    lines[special:special] = [f"unused{i}" for i in range(shift)]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(lines) + "\n")
    changes = {"single_segment_policy": "keep", "masking": "dynamic"}
    large = tmp_path / "large"
    run(corpus, large, vocab_file=vocabulary, **changes)

    def tokens(folder, dtype):
        records = map(tfrecord.parse, read(folder))
        stored = [np.frombuffer(x["token_ids"][0], dtype) for x in records]
        return sorted(ids.tolist() for ids in stored)

    wanted = tokens(kinds / "dynamic", "<u2")
    assert tokens(large, "<i4") == [[i + shift for i in x] for x in wanted]


def test_a_function_is_quiet_after_its_last_call(monkeypatch):
    """A `Called` function becomes quiet 0.1 seconds after its last call ends.

    `_wait` returns when the function is quiet, or no longer exists.
    """
    now, quiet = [9.0], []

    def sleep(seconds):
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(parsing, "time", clock)
    called = parsing.Called(lambda x: quiet.append(called.is_quiet()) or x + 1)
    assert called.is_quiet()
    assert called(1) == 2 and quiet == [False]
    assert not called.is_quiet()
    parsing._wait(lambda: called)
    assert 9.1 < now[0] < 9.13 and called.is_quiet()
    called.running.add(1)
    assert not called.is_quiet()
    parsing._wait(lambda: None)


EXIT = """
from albert_tf.data.records import input_pipeline, metadata

described = metadata.read_metadata({folder!r})
batches = iter(
    input_pipeline.train_batches({folder!r}, described, batch_size=64, seed=1)
)
for _ in range(10):
    next(batches)
"""


@pytest.mark.slow
def test_a_process_ends_while_masks_are_drawn(kinds):
    """A program can exit while threads of the pipeline draw masks."""
    program = EXIT.format(folder=str(kinds / "dynamic"))
    for _ in range(3):
        command = [sys.executable, "-c", program]
        subprocess.run(command, check=True, timeout=120)
