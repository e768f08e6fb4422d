"""Glob patterns for local files, in which `**` matches folders of any depth."""

import os
from collections.abc import Iterator
from glob import escape, glob


def folders_in(folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield a folder and the folders below it, except hidden folders.

    A link to a folder is followed, unless the link is inside that folder: such
    a cycle would never end.

    Args:
      folder: a path that ends in a slash, or "" for the current folder.
      above: the real paths of the folders between the start and `folder`.
    """
    real = os.path.realpath(folder)
    if real not in above:
        yield folder
        for below in glob(f"{escape(folder)}*/"):
            yield from folders_in(below, (*above, real))


def local_glob(pattern: str) -> list[str]:
    """Return the paths that match a pattern, in no particular order."""
    parts = pattern.split("/")
    if "**" not in parts:
        return glob(pattern)
    depth = parts.index("**")
    top = "/".join([*parts[:depth], ""])
    rest = "/".join(parts[depth + 1 :]) or "*"
    return [
        path
        for start in (glob(top) if top else [""])
        for folder in folders_in(start)
        for path in local_glob(escape(folder) + rest)
    ]
