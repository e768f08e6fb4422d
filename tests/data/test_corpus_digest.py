"""The hash of a corpus is computed from its pieces as defined."""

import hashlib

import pytest

from albert_tf.data.builder import build_folder

PIECE = 10


@pytest.fixture
def hash_of(tmp_path, monkeypatch):
    """Return a function that writes texts to files and returns their hash."""
    monkeypatch.setattr(build_folder, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(build_folder, "READ_BYTES", 4)

    def write(*texts, num_threads=2):
        paths = [str(tmp_path / str(i)) for i in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            with open(path, "wb") as file:
                file.write(text)
        return build_folder.corpus_hash(paths, num_threads)

    return write


def blake(data):
    """Return the BLAKE2b hash object of data, with a digest of 16 bytes."""
    return hashlib.blake2b(data, digest_size=16)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_definition(hash_of, num_threads):
    """The hash covers, in order, the digests and offsets of all pieces."""
    pieces = [
        bytes(8) + b"0123456789",
        (10).to_bytes(8, "little") + b"abcdefghij",
        (20).to_bytes(8, "little") + b"k",
        bytes(8) + b"second",
    ]
    expected = blake(b"".join(blake(piece).digest() for piece in pieces))
    texts = (b"0123456789abcdefghijk", b"second")
    assert hash_of(*texts, num_threads=num_threads) == expected.hexdigest()


def test_pieces_have_64_megabytes(tmp_path):
    """A piece has 64 MiB; only the last piece of a file may be shorter."""
    paths = [str(tmp_path / name) for name in "ab"]
    for path, size in zip(paths, (1 << 26, (1 << 26) + 1), strict=True):
        with open(path, "wb") as file:
            file.truncate(size)
    pieces = [(paths[0], 0), (paths[1], 0), (paths[1], 1 << 26)]
    assert build_folder.pieces(paths) == pieces
