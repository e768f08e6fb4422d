"""Console output: progress bars or log lines, and text tables."""

import sys
import time
from typing import Any

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 20.0


def counted(number: int, noun: str) -> str:
    """Format a count with its noun, such as "1 step" or "1,000 steps"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal.

    In a program without a console, or if a script replaces the stream, it may
    be None or an object that has only `write` and `flush`.
    """
    return hasattr(stream, "isatty") and stream.isatty()


class Progress:
    """A progress bar with current values, the rate and the time left.

    If standard error is not a terminal, log lines replace the bar.

    Args:
      total: total number of steps; callers may change the attribute `total`.
      done: number of steps completed before the job was resumed.
      unit: the noun for one step, in the singular.
    """

    def __init__(self, total: int, done: int = 0, unit: str = "step"):
        self.terminal = is_terminal(sys.stderr)
        self.bar = tqdm(
            total=total,
            initial=done,
            unit=unit,
            dynamic_ncols=True,
            disable=not self.terminal,
        )
        self.total = total
        self.done = self.first = done
        self.start = self.last_line = time.monotonic()

    def advance(self, steps: int, text: str) -> None:
        """Advance by a number of steps, and display `text`.

        If log lines replace the bar, a line is printed at most every 20
        seconds, and at the end.
        """
        self.done += steps
        self.bar.total = self.total
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(steps)
        now = time.monotonic()
        is_due = now - self.last_line >= SECONDS_BETWEEN_LINES
        if not self.terminal and (is_due or self.done >= self.total):
            self.last_line = now
            pace = (now - self.start) / max(self.done - self.first, 1)
            left = tqdm.format_interval(pace * (self.total - self.done))
            self.message(f"{self.done}/{self.total} {text}, {left} left")

    def message(self, text: str) -> None:
        """Print a line without disrupting the bar."""
        if self.terminal:
            tqdm.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the bar."""
        self.bar.close()


def format_table(rows: list[tuple[str, ...]]) -> list[str]:
    """Format a table as lines of text; left-align only the first column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
