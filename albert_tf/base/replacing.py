"""Folders that are replaced only if a program wrote all that they hold."""

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from albert_tf.base import files
from albert_tf.base.errors import require


class Contents(NamedTuple):
    """What a program writes into a folder.

    Attributes:
      needed: files without which a folder is none of the program's.
      patterns: of all files, those too.
    """

    needed: frozenset[str]
    patterns: tuple[str, ...]


def contents(folder: str) -> list[str]:
    """Return the paths in a folder: files, links, folders with nothing."""
    found = []
    for place, folders, names in files.walk(folder):
        place = files.join(place.rstrip("/"), "")
        inner = place.removeprefix(files.join(folder, ""))
        # What a link leads to is not walked through.
        links = [x for x in folders if os.path.islink(place + x)]
        found += [inner + name for name in (*names, *links)]
        if inner and not (folders or names):
            found.append(inner)
    return sorted(found)


def foreign_files(folder: str, forms: Iterable[Contents]) -> list[str]:
    """Return what lies in a folder and no program writes, of the likeliest.

    All of it is foreign where a file that is needed is missing.
    """
    there = contents(folder)
    return min(
        (
            [x for x in there if not any(fnmatchcase(x, p) for p in patterns)]
            if needed <= {*there}
            else there
            for needed, patterns in forms
        ),
        key=len,
    )


def check_replaceable(
    name: str, folder: str, forms: Iterable[Contents], rule: str
) -> None:
    """Refuse a folder, neither new nor empty, that holds anything foreign.

    Args:
      name: of the setting.
      folder: what would be replaced.
      forms: what a program writes.
      rule: what the folder must be.
    """
    if files.is_free(folder):
        return
    require(files.is_folder(folder), rule, **{name: folder})
    foreign = foreign_files(folder, forms)
    more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
    there = f"{folder} with {', '.join(foreign[:3])}{more}"
    require(not foreign, rule, **{name: there})
