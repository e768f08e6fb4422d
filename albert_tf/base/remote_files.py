"""TensorFlow's file system, for remote paths such as `gs://` paths.

Errors from TensorFlow become user errors. TensorFlow is imported on first use.
"""

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

from albert_tf.base.errors import InputError, first_line, require


class RemoteError(InputError, OSError):
    """An error about a `://` path that cannot be reached, read or written."""


def is_of_storage(error: Exception) -> bool:
    """Return whether storage, not a file's content, caused an error."""
    number = getattr(error, "errno", None)
    return isinstance(error, RemoteError) or number is not None


@contextlib.contextmanager
def _gfile(path: str) -> Iterator[Any]:
    """Yield TensorFlow's file system; convert its errors to `RemoteError`."""
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        # Some of these errors have no message; others are very long.
        reason = first_line(error, error.message)
        raise RemoteError(
            f"A remote path must exist, be reachable and grant access: "
            f"{reason}. Received: {path}"
        ) from None


def remote(operation: str, *paths: str, **kwargs) -> Any:
    """Call the function `operation` of `tf.io.gfile` with one or two paths."""
    with _gfile(" to ".join(paths)) as gfile:
        return getattr(gfile, operation)(*paths, **kwargs)


def remote_glob(pattern: str) -> list[str]:
    """Return the remote paths that match a pattern."""
    rule = "A pattern for remote files must use one `*` per folder, not `**`."
    require("**" not in pattern, rule, pattern=pattern)
    return remote("glob", pattern)


class RawRemoteFile(io.RawIOBase):
    """An unbuffered file at a `://` path; `mode` is `rb` or `wb`."""

    def __init__(self, path: str, mode: str):
        super().__init__()
        self._path, self._mode = path, mode
        with _gfile(path) as gfile:
            self._file = gfile.GFile(path, mode)

    def readable(self) -> bool:
        return self._mode == "rb"

    def writable(self) -> bool:
        return self._mode == "wb"

    def seekable(self) -> bool:
        return self._mode == "rb"

    def readinto(self, buffer) -> int:
        with _gfile(self._path):
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def write(self, content) -> int:
        with _gfile(self._path):
            self._file.write(bytes(content))
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _gfile(self._path):
            self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        with _gfile(self._path):
            return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _gfile(self._path):
                self._file.close()
