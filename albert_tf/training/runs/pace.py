"""How many steps a run makes before it returns to Python."""

import dataclasses
from collections.abc import Sequence

SECONDS_PER_LOOP, LEAST_SECONDS = 5.0, 1.0
# From SIGTERM to the end of a machine that is taken away.
NOTICE_SECONDS = 30.0


@dataclasses.dataclass
class Pace:
    """How many steps to run before returning to Python."""

    fixed: int
    seconds: float = 0.0  # of one step; 0 until it is measured
    compiled: bool = False

    def steps(self, save_seconds: float = 0.0) -> int:
        """Return the steps of the next stretch, in which no signal is seen.

        Args:
          save_seconds: what a checkpoint takes of a notice.
        """
        if self.fixed:
            return self.fixed
        if not self.compiled:
            return 1
        most = max(LEAST_SECONDS, NOTICE_SECONDS - save_seconds)
        most = min(most, SECONDS_PER_LOOP)
        seconds = self.seconds or SECONDS_PER_LOOP / 2
        return max(1, min(int(most / seconds), 1000))

    def measure(self, steps: int, seconds: float) -> None:
        """Take in a stretch; the first one compiles and does not count."""
        if self.compiled:
            self.seconds = seconds / steps
        self.compiled = True


def next_stop(step: int, last: int, cadences: Sequence[int]) -> int:
    """Return the first step after `step` at which something is due."""
    return min([last, *((step // c + 1) * c for c in cadences)])
