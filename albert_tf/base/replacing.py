"""Folders that are replaced only if a program wrote everything in them."""

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from albert_tf.base import files
from albert_tf.base.errors import require


class Contents(NamedTuple):
    """The files that a program writes into a folder.

    Attributes:
      needed: files that every such folder has.
      patterns: of all files that it may have, the needed ones included.
    """

    needed: frozenset[str]
    patterns: tuple[str, ...]


def contents(folder: str) -> list[str]:
    """Return the paths of files, links and empty folders in a folder."""
    found = []
    for place, folders, names in files.walk(folder):
        place = files.join(place.rstrip("/"), "")
        inner = place.removeprefix(files.join(folder, ""))
        # `walk` does not follow links to folders.
        links = [x for x in folders if os.path.islink(place + x)]
        found += [inner + name for name in (*names, *links)]
        if inner and not (folders or names):
            found.append(inner)
    return sorted(found)


def foreign_files(folder: str, forms: Iterable[Contents]) -> list[str]:
    """Return the files in a folder that are not part of any form.

    The form with the fewest such files counts. All files are foreign to a form
    whose needed files are missing.
    """
    found = contents(folder)
    return min(
        (
            [x for x in found if not any(fnmatchcase(x, p) for p in patterns)]
            if needed <= {*found}
            else found
            for needed, patterns in forms
        ),
        key=len,
    )


def check_replaceable(
    name: str, folder: str, forms: Iterable[Contents], rule: str
) -> None:
    """Raise `InputError` if a folder has files that no program wrote.

    Args:
      name: of the setting, for the error.
      folder: the folder to replace, if it exists.
      forms: the contents that it may have.
      rule: what the folder must be, for the error.
    """
    if files.is_free(folder):
        return
    require(files.is_folder(folder), rule, **{name: folder})
    foreign = foreign_files(folder, forms)
    more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
    received = f"{folder} with {', '.join(foreign[:3])}{more}"
    require(not foreign, rule, **{name: received})
