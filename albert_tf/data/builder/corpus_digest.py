"""What text a build is made of, as one hash that many readers can make.

Files are hashed in pieces, as they lie on disk, `.gz` or not. A digest is over
where a piece begins in its file and over its bytes; the hash of the text is
over the digests of all pieces, in the order of files and places.
"""

import concurrent.futures
import hashlib
from collections.abc import Iterable

from albert_tf.base import files

PIECE_BYTES = 1 << 26
READ_BYTES = 1 << 22
DIGEST_BYTES = 16


def pieces(paths: list[str]) -> list[tuple[str, int]]:
    """Return the file of each piece of a text, and where in it it begins."""
    return [
        (path, place)
        for path in paths
        for place in range(0, files.size(path), PIECE_BYTES)
    ]


def digest(path: str, place: int) -> bytes:
    """Return the digest of one piece of a file."""
    hashed = hashlib.blake2b(
        place.to_bytes(8, "little"), digest_size=DIGEST_BYTES
    )
    left = PIECE_BYTES
    with files.opened(path, "rb") as file:
        file.seek(place)
        while data := file.read(min(left, READ_BYTES)):
            hashed.update(data)
            left -= len(data)
    return hashed.digest()


def joined(digests: Iterable[bytes]) -> str:
    """Return the hash of a text from the digests of its pieces, in order."""
    return hashlib.blake2b(
        b"".join(digests), digest_size=DIGEST_BYTES
    ).hexdigest()


def corpus_hash(paths: list[str], num_threads: int) -> str:
    """Return the hash of a text; Python lets threads read and hash at once."""
    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        return joined(pool.map(digest, *zip(*pieces(paths), strict=True)))
