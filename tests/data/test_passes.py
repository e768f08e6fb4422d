"""The parts, shards and files of records equal those computed by hand."""

import dataclasses
import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_corpus import contents, make_records, settings
from vocabularies import chinese

from albert_tf.data.builder import passes
from albert_tf.data.builder.build_settings import BuildConfig, BuildSpec
from albert_tf.data.builder.held_out import Border, HeldOut
from albert_tf.data.builder.text_formats import Block, ReadingConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.records.metadata import EVAL, TRAIN
from albert_tf.data.records.tfrecord import decoded


def recipe(folder="out", **reading):
    """Return the settings of a build that uses training text twice."""
    configs = settings("corpus", folder, num_shards=7, **reading)
    build, _, pairs, masking, reading = configs
    return BuildSpec(build, pairs, masking, reading, "", 100)


def test_a_part_has_the_shard_of_its_hash():
    """A part's shard is the remainder of a hash of document, piece and part."""
    for numbers in ((1, 2, 3), (2**64 - 1, 0, 0)):
        data = b"".join(number.to_bytes(8, "little") for number in numbers)
        digest = hashlib.blake2b(data, digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        assert passes._shard_of(*numbers, 1000) == number % 1000


def test_documents_are_cut_into_parts():
    """A part has the sentences that begin in one range of 32,768 tokens.

    A range in which no sentence begins has no part. Keys are consecutive.
    """
    most = 32_768
    sizes = np.array([most - 1, 2, 5, 3 * most, 4])
    found = list(passes._parts(recipe(), sizes, 9, 1, 2**64 - 1))
    keys = [2**64 - 1, 0, 1]
    assert [(int(n), d, key) for n, d, key, _ in found] == [
        (n, 9, key) for n, key in zip((2, 2, 1), keys, strict=True)
    ]
    shard_numbers = [passes._shard_of(9, 1, part, 7) for part in range(3)]
    assert [shard for *_, shard in found] == shard_numbers
    assert len({*shard_numbers}) > 1


def test_short_documents_are_dealt_to_no_shard():
    """A document with some text, but too few tokens, goes to no shard.

    A document that spans blocks is never too short.
    """
    documents = [["a"], ["b"], [], ["c"]]
    sizes = [np.array(x, int) for x in ([3, 0], [2, 2], [], [1])]
    how = recipe(min_document_tokens=4)
    counts = passes.Counter()
    block = Block("x", 1, 0, b"")
    parts = passes._deal(how, block, documents, sizes, counts)
    assert counts["short_documents"] == 2
    assert parts["sentences"].tolist() == [1, 2, 1]
    assert (parts["shard"] == -1).tolist() == [True, False, True]
    keys = [passes.document_hash([x], how.build.random_seed) for x in "abc"]
    assert parts["hash"].tolist() == parts["key"].tolist() == keys
    goes_on = dataclasses.replace(block, document=5, piece=2)
    parts = passes._deal(how, goes_on, documents, sizes, counts)
    assert counts["short_documents"] == 3
    assert parts["hash"].tolist() == [5, *keys[1:]]
    assert parts["shard"][0] == passes._shard_of(5, 2, 0, 7)


@pytest.mark.parametrize(
    "document, text, counts",
    [
        (None, "un qq un\n\x01\nun qq qq\n\n\nun\n", (2, 3, 1, 7, 3)),
        (5, "un un\n\nqq\n\nun\n", (2, 3, 0, 4, 1)),
        (5, "\nun un\n\nqq\n\nun\n", (3, 3, 0, 4, 1)),
    ],
)
def test_a_block_is_counted(document, text, counts):
    """A document that began in an earlier block is not counted again.

    The counts include documents, sentences with and without tokens, tokens and
    unknown tokens.
    """
    recipe = SimpleNamespace(
        build=BuildConfig(input_file="x", output_dir="y", num_shards=3),
        reading=ReadingConfig(),
        tokenizer=chinese(),
        id_type=np.dtype("<u2"),
    )
    block = Block("x", 1, 0, text.encode(), document=document)
    names = "documents sentences sentences_without_tokens tokens unknown_tokens"
    found = passes.deal_block(recipe, block)[1]
    assert tuple(found[name] for name in names.split()) == counts
    assert (found["blocks"], found["bytes"]) == (1, len(text))


@pytest.mark.parametrize("compat", ["none", "google"])
def test_random_words_of_the_released_code_may_be_special(tmp_path, compat):
    """Only with `compat=google` do special tokens replace words."""
    words = [f"w{i}" for i in range(5)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *words]) + "\n")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(words, 6)) for _ in range(400)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    changes = {"compat": compat, "eval_fraction": 0.0, "dupe_factor": 1}
    changes["input_file"] = tmp_path / "a.txt"
    made = make_records(tmp_path, tmp_path / "out", **changes)
    found = set()
    for entry in made.splits["train"]:
        for example in decoded(f"{tmp_path}/out/{entry.file}"):
            found |= {*example.input_ids[example.positions].tolist()}
    assert found >= {*range(4, 10)}
    assert bool(found & {0, 1, 2, 3}) == (compat == "google")


def test_jobs_are_files_of_shards_and_duplicates():
    """Held-out shards are used once, and training shards once per duplicate."""
    text = HeldOut(Border(3), 0, {EVAL: [4], TRAIN: [1, 4]}, {}, [])
    jobs = passes.file_jobs(recipe(), text, "scratch")
    assert [(j.split, j.duplicate, j.shard) for j in jobs] == [
        (EVAL, 0, 4),
        *((TRAIN, d, s) for d in range(2) for s in (1, 4)),
    ]
    assert jobs[-1].path == "out/train-00003-of-00004.tfrecord"
    assert jobs[-1].counts_path == "scratch/train-00003-of-00004.json"
    assert jobs[-1].shard_path == "scratch/shard-00004"
    draws = {job.rng().integers(2**60) for job in jobs}
    assert len(draws) == len(jobs) and not any(job.dynamic for job in jobs)
    unmasked = dataclasses.replace(
        recipe(), masking=MaskingConfig(masking="dynamic")
    )
    jobs = passes.file_jobs(unmasked, text, "scratch")
    assert [job.dynamic for job in jobs] == [False] + [True] * 4


def test_batches_change_no_record(corpus, whole, tmp_path, monkeypatch):
    """Records do not depend on how many are laid out and masked together."""
    monkeypatch.setattr(passes, "BATCH", 10)
    make_records(corpus, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(whole[0])
