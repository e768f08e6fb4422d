"""Fixtures for the builder's tests: a corpus and a finished build."""

import pytest
import tiny_phonemes
from tiny_corpus import make_records, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Return a folder with a vocabulary and two text files of random words."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def whole(corpus, tmp_path_factory):
    """Return the output folder and metadata of an uninterrupted build."""
    output = tmp_path_factory.mktemp("whole") / "out"
    return output, make_records(corpus, output)


@pytest.fixture(scope="session")
def kinds(corpus, tmp_path_factory):
    """Return a folder with static and dynamic records in several files.

    Some of these records have only one segment.
    """
    folder = tmp_path_factory.mktemp("kinds")
    changes = {"single_segment_policy": "keep", "dupe_factor": 1}
    for kind in ("static", "dynamic"):
        found = make_records(corpus, folder / kind, masking=kind, **changes)
        assert 0 < found.statistics["unpaired_share"] < 0.5
    return folder


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Build records from rows; return their folder, metadata and summary."""
    folder = tmp_path_factory.mktemp("phonemes")
    path = tiny_phonemes.write_rows(
        folder / "rows.jsonl", tiny_phonemes.make_rows()
    )
    return folder / "out", *tiny_phonemes.build(folder / "out", path)
