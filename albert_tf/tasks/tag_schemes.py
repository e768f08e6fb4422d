"""The meaning of tags: entities by their prefixes, or plain classes.

`B-PER` begins an entity of type `PER`; a part of speech such as `NOUN` is a
class. A set of tags marks entities if most of its tags have a prefix.
"""

import re
from collections.abc import Iterable, Sequence

OUTSIDE = "O"
UNTYPED = "_"  # the type in tags that are a prefix alone, as in seqeval

# The prefixes of all schemes (BIO, IOE, BIOES, BMES, BILOU, BMEWO) and what
# each does: begin an entity, continue it, end it, or be one by itself.
ROLES = dict(B="B", I="I", M="I", E="E", L="E", S="S", U="S", W="S")
TAG = re.compile(rf"([{''.join(ROLES)}])(?:([-_])(.+))?", re.DOTALL)

CLASSES = "classes"  # the scheme of tags that mark no entities
# For each scheme, the roles that begin an entity, continue it and end it.
SCHEMES = {
    "IO": ("IE", "IE", "IE"),  # with the IOE schemes
    "BIO": ("B", "I", "BI"),
    "BIOES": ("BS", "IE", "ES"),
}
# Prefixes that are used together; the first set that covers those in the data
# completes them.
FAMILIES = ("I", "BI", "IE", "BIES", "BMES", "BILU", "BMEW")


def parts(tag: str) -> tuple[str, str]:
    """Return a tag's role and type, `("B", "PER")`; `("O", "")` of others."""
    match = TAG.fullmatch(tag)
    return (ROLES[match[1]], match[3] or UNTYPED) if match else (OUTSIDE, "")


def find_scheme(tags: Iterable[str]) -> str:
    """Return the scheme of a set of tags: `CLASSES`, or a key of `SCHEMES`."""
    inside = {*tags} - {OUTSIDE}
    roles = [parts(tag)[0] for tag in inside]
    marks = {*roles} - {OUTSIDE}
    if 2 * roles.count(OUTSIDE) >= len(inside):
        return CLASSES
    if not marks & {"B", "S"}:
        return "IO"  # and IOE, where any tag may follow any other too
    return "BIOES" if marks & {"E", "S"} else "BIO"


def all_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the classes in order: for entities, `O` and all tags per type.

    A type gets every prefix of its family, even if absent from the data.
    """
    tags = {*tags}
    if find_scheme(tags) == CLASSES:
        return tuple(sorted(tags, key=lambda tag: (tag != OUTSIDE, tag)))
    others = sorted(tag for tag in tags - {OUTSIDE} if not parts(tag)[1])
    marks = [match for match in map(TAG.fullmatch, tags) if match]
    letters = {match[1] for match in marks}
    prefixes = next((x for x in FAMILIES if letters <= {*x}), sorted(letters))
    types = sorted({(match[2] or "") + (match[3] or "") for match in marks})
    return (OUTSIDE, *(p + kind for kind in types for p in prefixes), *others)


def entity_spans(tags: Sequence[str]) -> list[list]:
    """Return `[first word, last word, type]` of the entities that tags mark.

    Tags are read as CoNLL's script `conlleval` reads them, whatever the
    scheme, even if a tag cannot follow the one before it.
    """
    spans: list[list] = []
    before, closed = "", True
    for i, (role, kind) in enumerate(map(parts, tags)):
        if kind and (closed or kind != before or role in ("B", "S")):
            spans.append([i, i, kind])
        elif kind:
            spans[-1][1] = i
        before, closed = kind, role in ("E", "S")
    return spans


def breaks_of(tags: Sequence[str], scheme: str) -> list[int]:
    """Return the words whose tags cannot follow the tags before them.

    An entity that is left open counts at the word after it.
    """
    if scheme not in SCHEMES:
        return []
    begins, _, ends = SCHEMES[scheme]
    pairs = [(OUTSIDE, ""), *map(parts, tags), (OUTSIDE, "")]
    broken = []
    for i in range(len(tags) + 1):
        (old_role, old_kind), (role, kind) = pairs[i : i + 2]
        continues = role not in {OUTSIDE, *begins}
        is_open = old_role not in {OUTSIDE, *ends}
        may_continue = old_role not in {OUTSIDE, *"ES"} and old_kind == kind
        if continues and not may_continue or is_open and not continues:
            broken.append(i)
    return broken


def only_separates(tags: Sequence[str]) -> bool:
    """Return whether each B follows an entity of its type, as in IOB1."""
    pairs = [(OUTSIDE, ""), *map(parts, tags)]
    return all(
        role != "B" or pairs[i][1] == kind
        for i, (role, kind) in enumerate(pairs[1:])
    )
