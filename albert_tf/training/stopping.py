"""What ends a run before its last step: SIGTERM, and the hours it may take."""

import dataclasses
import signal
import time


class StopRequest:
    """Whether SIGTERM came, as it does before a machine is taken away.

    Outside of the `with` block the signal means what it meant before.
    """

    received = False

    def __enter__(self) -> "StopRequest":
        self._earlier = signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(self, *_) -> None:
        # None: a handler that is not Python's and cannot be put back.
        signal.signal(signal.SIGTERM, self._earlier or signal.SIG_DFL)

    def _receive(self, *_) -> None:
        self.received = True


@dataclasses.dataclass
class Budget:
    """The hours that a run may take, saving included."""

    hours: float
    start: float = dataclasses.field(default_factory=time.monotonic)
    longest: float = 0.0  # seconds of a stretch
    saving: float = 0.0  # seconds of a checkpoint

    def spent(self) -> bool:
        """Return whether another stretch and a checkpoint may not fit."""
        if not self.hours:
            return False
        ahead = self.longest + 2 * self.saving
        return time.monotonic() - self.start + ahead >= self.hours * 3600
