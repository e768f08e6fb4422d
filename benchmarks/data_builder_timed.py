"""One build as create_pretraining_data.py makes it, and how long it took.

Takes the flags of that script. Prints as JSON the (wall, CPU) seconds of the
first pass, of all after it, of the leak probe alone, and of the whole build.
CPU seconds are this process's: all there are, if it works alone. Imports what
the script imports and no more, as its workers import it too.
"""

import json
import time

import numpy as np

from albert_tf.base import settings
from albert_tf.data.builder import build
from create_pretraining_data import CONFIGS


def now() -> np.ndarray:
    """Return the time on the wall and of the CPU."""
    return np.array([time.perf_counter(), time.process_time()])


def note(name: str, moments: dict) -> None:
    """Let a function of the builder note when it begins and ends."""
    function = getattr(build, name)

    def noted(*args):
        begin = now()
        result = function(*args)
        moments[name] = begin, now()
        return result

    setattr(build, name, noted)


def main() -> None:
    """Build, and print how long the parts took."""
    moments: dict = {}
    note("hold_out", moments)
    note("probe_leak", moments)
    begin = now()
    build.run(*map(settings.from_flags, CONFIGS))
    whole = now() - begin
    first = moments["hold_out"][0] - begin
    probe = np.subtract(*moments["probe_leak"][::-1])
    parts = {
        "first": first,
        "second": whole - first,
        "probe": probe,
        "all": whole,
    }
    print(json.dumps({name: part.tolist() for name, part in parts.items()}))


if __name__ == "__main__":
    settings.define_flags(*CONFIGS)
    settings.run(main)
