"""Signals are noticed while C or C++ code runs; a second Ctrl-C exits."""

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import termios
import threading
import time

import pytest

from albert_tf.base.interrupts import handling, seen_at_once


@pytest.fixture
def handled():
    """Return the list of signals that Python has handled."""
    numbers = []
    earlier = signal.signal(signal.SIGUSR1, lambda n, _: numbers.append(n))
    yield numbers
    signal.signal(signal.SIGUSR1, earlier)


def test_a_signal_is_seen_before_it_is_handled(handled):
    """Nested blocks both see a signal while the main thread runs C code."""
    seen = []

    def see(number):
        seen.append((number, time.monotonic(), len(handled)))

    def send():
        os.kill(os.getpid(), signal.SIGUSR1)

    with seen_at_once(see), seen_at_once(see):
        threading.Timer(0.1, send).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)  # stays in C
        end = time.monotonic()
    assert [(n, before) for n, _, before in seen] == [(signal.SIGUSR1, 0)] * 2
    assert max(when for _, when, _ in seen) < end - 0.1
    assert handled == [signal.SIGUSR1]


def test_an_earlier_block_is_back_after_an_inner_one(handled):
    """After an inner block ends, signals reach the outer block again."""
    inner, outer = [], []
    with seen_at_once(outer.append):
        with seen_at_once(inner.append):
            pass
        os.kill(os.getpid(), signal.SIGUSR1)
    assert (inner, outer) == ([], [signal.SIGUSR1])
    assert signal.set_wakeup_fd(-1) == -1


def test_earlier_handlers_are_restored(handled):
    """A block handles a signal; then the earlier handler is back.

    The earlier handler is also back after an error in the block.
    """
    inner, before = [], signal.getsignal(signal.SIGUSR1)
    for error in (None, ValueError):
        with contextlib.suppress(ValueError):
            with handling(lambda n, _: inner.append(n), signal.SIGUSR1):
                signal.raise_signal(signal.SIGUSR1)
                if error:
                    raise error
        assert signal.getsignal(signal.SIGUSR1) is before
    assert (inner, handled) == ([signal.SIGUSR1] * 2, [])


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
)
def test_ignored_signals_stay_ignored(number):
    """A job in the background, or under `nohup`, still ignores signals."""
    numbers = []
    earlier = signal.signal(number, signal.SIG_IGN)
    try:
        with handling(lambda n, _: numbers.append(n), number):
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, earlier)
    assert not numbers


# A program that prints lines after its terminal was closed.
HUNG_UP = """
import signal, sys, time
from albert_tf.base.interrupts import cleaning_up, handling
numbers = []
with {block}:
    print("ready", flush=True)
    while not numbers:
        time.sleep(0.01)
    print("saving", flush=True)
    print("saving", file=sys.stderr, flush=True)
sys.exit(numbers != [signal.SIGHUP])
"""


@pytest.mark.parametrize(
    "block, status",
    [
        ("handling(lambda n, _: numbers.append(n), signal.SIGHUP)", 0),
        ("cleaning_up()", 128 + signal.SIGHUP),
    ],
    ids=["handling", "cleaning_up"],
)
def test_a_program_continues_after_its_terminal_is_closed(block, status):
    """Output after SIGHUP causes no error, and blocks end as usual."""
    terminal, stream = os.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", HUNG_UP.format(block=block)],
        stdin=stream,
        stdout=stream,
        stderr=stream,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(stream)
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    assert program.wait(60) == status


# A program that runs C code, which Python cannot interrupt.
STUCK = """
import hashlib
from albert_tf.base import program
def main():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
program.run(main)
"""


def test_a_second_interrupt_ends_a_program_at_once():
    """A second Ctrl-C ends a program in C code with exit status 130."""
    program = subprocess.Popen(
        [sys.executable, "-c", STUCK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout.readline() == "ready\n"
    # Wait until the program runs C code; earlier, one interrupt would end it.
    time.sleep(1)
    program.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.5)
    program.send_signal(signal.SIGINT)
    errors = program.communicate(timeout=20)[1]
    assert (program.returncode, errors) == (130, "error: interrupted\n")
