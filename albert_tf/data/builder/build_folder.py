"""The output folder of a build, and the files of an unfinished build."""

import concurrent.futures
import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.base.remote_files import is_of_storage
from albert_tf.data.builder.shards import PROGRESS_FILE
from albert_tf.data.file_kinds import BadData
from albert_tf.data.records.metadata import (
    METADATA_FILE,
    PIECE_COUNTS_FILE,
    Metadata,
    is_described,
    load_metadata,
)

MANIFEST_FILE = "manifest.json"

# With this setting, the first pass stops at a bad item. Up to this item, the
# shards are the same as with any other value of `on_bad_text`, so the build can
# be resumed with any value.
STRICT = {"on_bad_text": "fail"}


def _digest(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")  # paths need not be UTF-8
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def own_name(kind: str, output_dir: str) -> str:
    """Return the name of a folder that only builds into `output_dir` use."""
    return f"{kind}-{_digest(files.absolute(output_dir))}"


@contextlib.contextmanager
def disk_errors(output_dir: str) -> Iterator[None]:
    """Add advice to errors about files that cannot be read or written."""
    try:
        yield
    except OSError as error:
        if not is_of_storage(error):
            raise  # the message already explains what to do
        raise OSError(
            f"A file could not be read or written ({error}); fix the cause (if "
            "the disk is full, free some space) and run the same command again "
            f"to resume. Received: output_dir={output_dir}"
        ) from None


class BuildFolder:
    """A folder of records, and the temporary files of an unfinished build.

    Attributes:
      scratch: the folder of the first pass, which only this build uses.

    Args:
      output_dir: the folder.
      scratch_dir: the parent of `scratch`; None means `output_dir`.
      identity: a dict that distinguishes this build from others; see
        `BuildSpec.identity`.
    """

    def __init__(
        self, output_dir: str, scratch_dir: str | None, identity: dict
    ):
        self.output_dir = output_dir
        # The identity after it is written to JSON and read back, which turns
        # tuples into lists.
        self.identity = json.loads(json.dumps(identity))
        self._manifest = files.join(output_dir, MANIFEST_FILE)
        # The path of `scratch` is unique to this output folder and to these
        # settings.
        self._work_dir = scratch_dir or output_dir
        self._name = f"scratch-{_digest('')}"
        if scratch_dir:
            self._name = own_name("scratch", output_dir)
        self.scratch = self._scratch_of(identity)

    def _scratch_of(self, identity: dict) -> str:
        name = _digest(json.dumps(identity, sort_keys=True))
        return files.join(self._work_dir, f"{self._name}-{name}")

    def _require_same(self, identity: dict) -> None:
        """Raise `InputError` if the folder belongs to a different build."""
        names = sorted(identity.keys() | self.identity.keys())
        changes = {
            name: f"{identity.get(name)} then, {self.identity.get(name)} now"
            for name in names
            if identity.get(name) != self.identity.get(name)
        }
        if "builder_version" in changes:  # hashes differ as a consequence
            changes = {"builder_version": changes["builder_version"]}
        listed = ", ".join(f"{name}: {text}" for name, text in changes.items())
        require(
            not changes,
            "`output_dir` contains records made from different settings, text "
            "or tokenizer, or by a different version; use another folder or "
            "remove this one.",
            output_dir=f"{self.output_dir} ({listed})",
        )

    def _records(self) -> list[str]:
        return files.matches("*.tfrecord", self.output_dir)

    def _is_complete(self, vocabulary: tuple[str, ...]) -> bool:
        """Return whether a finished build has all its files.

        If a file is missing or has the wrong size, mark the build as
        unfinished. If the build has a different identity, raise `InputError`.
        """
        metadata = load_metadata(self.output_dir)
        self._require_same(metadata.settings)
        sizes = dict.fromkeys((*vocabulary, PIECE_COUNTS_FILE))
        sizes |= {entry.file: entry.bytes for _, entry in metadata.entries()}
        paths = {name: files.join(self.output_dir, name) for name in sizes}

        def is_damaged(name: str) -> bool:
            if not files.exists(paths[name]):
                return True
            return sizes[name] not in (None, files.size(paths[name]))

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            flags = pool.map(is_damaged, sizes)
            damaged = list(itertools.compress(sizes, flags))
        if not damaged:
            return True
        print(
            "Warning: building the records again, because "
            f"{paths[damaged[0]]} is missing or has the wrong size",
            flush=True,
        )
        files.write_json(self._manifest, self.identity)
        marker = vocabulary[-1:] if {*damaged} & {*vocabulary} else ()
        for name in {*damaged, *marker}:
            if files.exists(paths[name]):
                files.remove(paths[name])
        files.remove(files.join(self.output_dir, METADATA_FILE))
        return False

    def claim(self, vocabulary: tuple[str, ...] = ()) -> bool:
        """Claim the folder; return whether the build is already complete.

        Args:
          vocabulary: the names of the vocabulary's files, in the order of
            writing.

        Raises:
          InputError: if the folder belongs to a different build.
        """
        if is_described(self.output_dir) and self._is_complete(vocabulary):
            return True
        if files.exists(self._manifest):
            what = f"`{MANIFEST_FILE}`"
            begun = files.read_json_object(self._manifest, what)
            if begun != self.identity | STRICT:
                self._require_same(begun)
        else:
            require(
                not self._records(),
                "`output_dir` must not contain other records; use another "
                "folder.",
                output_dir=self.output_dir,
            )
        self._take_over()
        for name in filter(files.is_unfinished, files.names(self.output_dir)):
            files.remove(files.join(self.output_dir, name))
        files.write_json(self._manifest, self.identity)
        return False

    def _take_over(self) -> None:
        """Keep the shards that allow this build to resume; remove all others.

        The kept shards belong to this build or, if it has none, to a run that a
        bad item stopped.
        """
        strict = self._scratch_of(self.identity | STRICT)
        local = not files.is_remote(strict)
        if local and files.exists(strict) and not files.exists(self.scratch):
            files.rename(strict, self.scratch)
        for path in files.matches(f"{self._name}-*", self._work_dir):
            if path != self.scratch:
                files.remove_folder(path)

    def clean(self) -> None:
        """Remove the files that only an unfinished build needs."""
        if files.is_folder(self.scratch):
            files.remove_folder(self.scratch)
        if files.exists(self._manifest):
            files.remove(self._manifest)

    @contextlib.contextmanager
    def _discarded_on_input_error(
        self, vocabulary: tuple[str, ...]
    ) -> Iterator[None]:
        """Remove records and temporary files after an `InputError`.

        All files are kept if remote storage failed. Shards are kept if the
        error concerns a single item of the text. The vocabulary is removed if
        this build wrote it, so that the next build can use a different one.
        """
        paths = [files.join(self.output_dir, name) for name in vocabulary]
        new = [path for path in paths if not files.exists(path)]
        try:
            yield
        except InputError as error:
            if is_of_storage(error):
                raise
            for path in (*self._records(), *filter(files.exists, new)):
                files.remove(path)
            shards = files.is_folder(self.scratch) and files.names(self.scratch)
            if isinstance(error, BadData) and PROGRESS_FILE in (shards or ()):
                files.remove(self._manifest)
            else:
                self.clean()
            raise

    def build(
        self, make: Callable[[], None], vocabulary: tuple[str, ...]
    ) -> Metadata:
        """Build the records unless they are complete; return their metadata.

        Args:
          make: a function that writes or completes all files.
          vocabulary: see `claim`.

        Raises:
          InputError: if the folder belongs to a different build or is in use.
        """
        with files.locked(self.output_dir, "output_dir"):
            if not self.claim(vocabulary):
                with (
                    files.locked(self.scratch, "scratch_dir"),
                    self._discarded_on_input_error(vocabulary),
                ):
                    make()
            self.clean()
        return load_metadata(self.output_dir)


PIECE_BYTES = 1 << 26
READ_BYTES = 1 << 22
DIGEST_BYTES = 16


def pieces(paths: list[str]) -> list[tuple[str, int]]:
    """Return the (path, byte offset) of each piece of a text."""
    return [
        (path, offset)
        for path in paths
        for offset in range(0, files.size(path), PIECE_BYTES)
    ]


def digest(path: str, offset: int) -> bytes:
    """Return the digest of the piece of a file at byte `offset`."""
    hashed = hashlib.blake2b(
        offset.to_bytes(8, "little"), digest_size=DIGEST_BYTES
    )
    left = PIECE_BYTES
    with files.opened(path, "rb") as file:
        file.seek(offset)
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
    """Return the hash of a corpus, computed in several threads.

    Threads help because reading and hashing release the GIL.
    """
    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        return joined(pool.map(digest, *zip(*pieces(paths), strict=True)))
