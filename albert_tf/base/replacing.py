"""Before replacing a folder, check that our programs wrote all its files."""

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from albert_tf.base import files
from albert_tf.base.errors import require


def matches(path: str, pattern: str) -> bool:
    """Return whether a path matches a pattern of the same depth."""
    depths = path.count("/"), pattern.count("/")
    return depths[0] == depths[1] and fnmatchcase(path, pattern)


class Contents(NamedTuple):
    """The files that a program writes to a folder.

    Attributes:
      needed: files that every such folder contains.
      patterns: patterns of all files that the folder may contain, including the
        needed files; `*` does not match a slash.
    """

    needed: frozenset[str]
    patterns: tuple[str, ...]

    def foreign(self, paths: list[str]) -> list[str]:
        """Return the paths that the program did not write.

        If a needed file is missing, return all paths.
        """
        if not self.needed <= {*paths}:
            return paths
        return [
            path
            for path in paths
            if not any(matches(path, pattern) for pattern in self.patterns)
        ]


def paths_in(folder: str) -> list[str]:
    """Return the relative paths of files, links and empty subfolders."""
    found = []
    for place, folders, names in files.walk(folder):
        place = files.join(place.rstrip("/"), "")
        inner = place.removeprefix(files.join(folder, ""))
        # `walk` lists a link to a folder as a folder but does not follow it.
        links = [x for x in folders if os.path.islink(place + x)]
        found += [inner + name for name in (*names, *links)]
        if inner and not (folders or names):
            found.append(inner)
    return sorted(found)


def check_replaceable(
    name: str, folder: str, forms: Iterable[Contents], rule: str
) -> None:
    """Raise `InputError` if a folder contains files that we did not write.

    The error lists the files that are foreign to the most similar form.

    Args:
      name: the setting that names the folder.
      folder: the folder to be replaced; it may be new or empty.
      forms: the alternative contents that our programs may write.
      rule: the requirement, for the error message.
    """
    if files.is_free(folder):
        return
    require(files.is_folder(folder), rule, **{name: folder})
    paths = paths_in(folder)
    foreign = min((form.foreign(paths) for form in forms), key=len)
    more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
    received = f"{folder} with {', '.join(foreign[:3])}{more}"
    require(not foreign, rule, **{name: received})
