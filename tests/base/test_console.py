"""Progress on a terminal or in a log, and text tables."""

import sys

import pytest

from albert_tf.base import console
from albert_tf.base.console import Progress, counted, format_table


@pytest.fixture
def clock(monkeypatch):
    """Return a list of one number, the time in seconds, for tests to change."""
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_a_log_has_a_line_every_twenty_seconds(clock, capsys):
    """A log gets a line every 20 seconds, with an estimate of the time left.

    The estimate follows from the pace of this process; steps that an earlier,
    interrupted process made do not count. The last step always gets a line.
    """
    progress = Progress(10, done=2)
    clock[0] += 19.5
    progress.advance(1, "loss 3")
    assert capsys.readouterr().err == ""
    clock[0] += 0.5
    progress.advance(1, "loss 2")
    assert capsys.readouterr().err == "4/10 loss 2, 01:00 left\n"
    clock[0] += 19.5
    progress.advance(1, "loss 1")
    assert progress.total == 10
    progress.total = 6
    progress.advance(1, "loss 0")
    assert capsys.readouterr().err == "6/6 loss 0, 00:00 left\n"
    progress.message("done")
    progress.close()
    assert capsys.readouterr() == ("", "done\n")


class Log(list):
    """A replacement for a stream, as some scripts use it."""

    write, flush = list.append, list.copy


def test_a_stream_may_be_replaced(clock, monkeypatch, capsys):
    """Standard error may be None, or have only `write` and `flush`."""
    log = Log()
    for stream in (log, None):
        monkeypatch.setattr(sys, "stderr", stream)
        progress = Progress(1)
        progress.advance(1, "loss 1")
        progress.close()
    assert "".join(log) == "1/1 loss 1, 00:00 left\n"
    assert capsys.readouterr().err == ""


def test_a_job_without_steps_has_a_line(clock, capsys):
    """Until a step has ended, each step is assumed to take the elapsed time."""
    progress = Progress(5)
    clock[0] += 30
    progress.advance(0, "wait")
    assert capsys.readouterr().err == "0/5 wait, 02:30 left\n"


def test_a_terminal_has_a_bar(clock, monkeypatch, capsys):
    """On a terminal, a bar shows the count, the unit and the values.

    Steps that an earlier process made count, and the total may change. Messages
    are printed above the bar.
    """
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress(4, done=2, unit="text")
    progress.bar.mininterval = progress.bar.miniters = 0
    clock[0] += 30
    progress.total = 9
    progress.advance(3, "loss 1")
    written = []
    write = console.tqdm.write
    monkeypatch.setattr(
        console.tqdm,
        "write",
        lambda text, file: written.append(text) or write(text, file=file),
    )
    progress.message("saved")
    progress.close()
    assert written == ["saved"]  # above the bar
    shown = capsys.readouterr().err
    assert "5/9" in shown and "text" in shown and "loss 1" in shown
    assert "saved\n" in shown and "left" not in shown


def test_the_first_column_of_a_table_is_on_the_left():
    """The first column is left-aligned; all other columns are right-aligned.

    Lines have no trailing spaces.
    """
    rows = [("name", "loss"), ("a", "0.25"), ("longer", ""), ("b", "12.125")]
    assert format_table(rows) == [
        "name      loss",
        "a         0.25",
        "longer",
        "b       12.125",
    ]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (12345, "12,345 rows")],
)
def test_only_one_thing_is_singular(number, text):
    """The noun is plural unless the number is 1."""
    assert counted(number, "row") == text
