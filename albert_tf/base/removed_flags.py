"""Flags that programs no longer have, though an old `run.flags` may."""

from collections.abc import Container, Iterable

from albert_tf.base.errors import InputError

# {flag: (what to do without it, values with which it changed nothing)}
REMOVED: dict[str, tuple[str, tuple[str, ...]]] = {
    "feature_cache_dir": (
        "each run converts its examples anew, so leave it out",
        (),
    ),
    "layer_decay": (
        "all weights learn at `learning_rate`, and `freeze` stops whole parts",
        ("1", "1.0"),
    ),
}


def gone(name: str, value: object) -> InputError:
    """Return the error about a flag in `REMOVED` and what to do without it."""
    advice, _ = REMOVED[name]
    return InputError(f"`{name}` is gone: {advice}. Received: {name}={value}")


def without_removed(
    arguments: Iterable[str], known: Container[str]
) -> list[str]:
    """Leave out removed flags that changed nothing; refuse the others.

    Args:
      arguments: of a command line, with the lines of its flagfiles.
      known: names of the program's own flags, which are never left out.
    """
    kept = []
    for argument in arguments:
        name, _, value = argument.lstrip("-").partition("=")
        removed = argument.startswith("-") and name not in known
        if not removed or name not in REMOVED:
            kept.append(argument)
        elif value not in REMOVED[name][1]:
            raise gone(name, value)
    return kept
