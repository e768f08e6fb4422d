"""Trials: a file is damaged at random and read, and the outcome is judged.

A sandbox is a forked process that runs trials, with a limit on its memory. A
crash or a hang is thus the outcome of one trial.
"""

import contextlib
import dataclasses
import errno
import os
import pathlib
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing import Pipe

from fuzz import phoneme_files, user_files, written_files
from fuzz.reader import Reader

from albert_tf.base.errors import InputError

READERS = written_files.READERS | user_files.READERS | phoneme_files.READERS
SECONDS = 2.0  # maximum additional processor time for a damaged file
BYTES = 1 << 30  # maximum additional memory for a damaged file
# Maximum memory that may be reserved, including thread stacks.
RESERVED = 4 << 30
HANG = 120.0  # seconds after which a trial is ended, even on a busy machine
# Errors about paths that a file names.
ABOUT_PATHS = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
    *(errno.EACCES, errno.ELOOP),
}
REFUSED, ACCEPTED, FAILED = "refused", "accepted", "failed"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a trial.

    Attributes:
      kind: `REFUSED`, `ACCEPTED` or `FAILED`.
      file: the damaged file.
      how: the mutator.
      seconds: the processor time for reading the folder.
      note: the error message, or a description of the fault.
    """

    kind: str
    file: str = ""
    how: str = ""
    seconds: float = 0.0
    note: str = ""


def _state(folder: pathlib.Path) -> dict:
    """Return {path: (time, content)} for the files outside `model/`."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "model/" not in str(path)
    }


def _judged(reader: Reader, folder: pathlib.Path, name: str) -> Outcome:
    """Read a folder with a damaged file; return the outcome."""
    try:
        reader.read(folder, name)
    except (InputError, *reader.refusals) as error:
        return Outcome(REFUSED, note=f"{type(error).__name__}: {error}")
    except OSError as error:
        # A program prints the system's errors as one line.
        if error.errno in ABOUT_PATHS:
            return Outcome(REFUSED, note=str(error))
        return Outcome(FAILED, note=traceback.format_exc())
    except (Exception, SystemExit):
        return Outcome(FAILED, note=traceback.format_exc())
    return Outcome(ACCEPTED)


def damage(reader: Reader, folder: pathlib.Path, seed: str) -> tuple[str, str]:
    """Damage a file; return the names of the file and of the mutator."""
    draw = random.Random(seed)
    name = draw.choice(reader.names(folder))
    how, mutate = draw.choice([*reader.mutators(name).items()])
    path = folder / name
    path.write_bytes(mutate(path.read_bytes(), draw))
    return name, how


def trial(reader: Reader, valid: pathlib.Path, seed: str) -> Outcome:
    """Copy the valid files, damage one of the copies, and read the folder.

    Args:
      reader: the reader.
      valid: the folder with the reader's valid files, which are not changed.
      seed: the seed that determines the damage.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "in"
        shutil.copytree(valid, folder, copy_function=os.link)
        for name in reader.names(folder):  # linked files must not change
            content = (folder / name).read_bytes()
            (folder / name).unlink()
            (folder / name).write_bytes(content)
        name, how = damage(reader, folder, seed)
        before, start = _state(folder), time.process_time()
        outcome = _judged(reader, folder, name)
        spent = time.process_time() - start
        if _state(folder) != before:
            outcome = Outcome(FAILED, note="files changed")
    return dataclasses.replace(outcome, file=name, how=how, seconds=spent)


def valid_folder(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Return the folder to which `make` writes the files of a reader."""
    return folder / name.replace(" ", "-").replace(".", "")


def make(name: str, folder: pathlib.Path) -> None:
    """Write the valid files of a reader, and read them."""
    valid = valid_folder(name, folder)
    valid.mkdir()
    READERS[name].make(valid)
    for file in READERS[name].names(valid):
        READERS[name].read(valid, file)


def _memory(name: str) -> int:
    """Return a memory figure of this process in bytes; see proc(5)."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(x.split()[1]) for x in lines if x.startswith(name))


def _limit_memory() -> None:
    limit = _memory("VmData") + RESERVED
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _usual_seconds(reader: Reader, valid: pathlib.Path) -> dict[str, float]:
    """Return {file: processor time for reading the intact file}.

    Each file is read twice: the first time also loads libraries and starts
    their threads.
    """

    def seconds(name: str) -> float:
        start = time.process_time()
        reader.read(valid, name)
        return time.process_time() - start

    return {n: min(seconds(n), seconds(n)) for n in reader.names(valid)}


def _measured(
    reader: Reader, valid: pathlib.Path, seed: str, usual: dict[str, float]
) -> Outcome:
    """Run a trial; also judge the time and the memory that it took."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _memory("VmRSS")
    outcome = trial(reader, valid, seed)
    used = _memory("VmHWM") - before
    spent = outcome.seconds - usual[outcome.file]
    if spent > SECONDS or used > BYTES:
        note = f"{spent:.1f} s, {used:,} bytes; {outcome.note}"
        return dataclasses.replace(outcome, kind=FAILED, note=note)
    return outcome


def _serve(pipe, name: str, folder: pathlib.Path, log: str) -> None:
    """Run the trials that the parent requests, in a forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    reader, valid = READERS[name], valid_folder(name, folder)
    usual = _usual_seconds(reader, valid)
    _limit_memory()
    while seed := pipe.recv():
        os.ftruncate(1, 0)
        pipe.send(_measured(reader, valid, seed, usual))


class Sandbox:
    """A process that runs trials, forked again after a crash or a hang.

    The parent must not have started TensorFlow's threads.
    """

    def __init__(self, name: str, folder: pathlib.Path):
        self._name, self._folder, self._process = name, folder, None

    def _start(self) -> None:
        self._pipe, pipe = Pipe()
        self._log = str(self._folder / f"log-{os.getpid()}")
        self._process = os.fork()
        if self._process:
            pipe.close()
            return
        self._pipe.close()
        try:
            _serve(pipe, self._name, self._folder, self._log)
        except (EOFError, BrokenPipeError):
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def end(self) -> int:
        """End the process; return its exit status."""
        if not self._process:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        status = os.waitpid(self._process, 0)[1]
        self._process = None
        self._pipe.close()
        return os.waitstatus_to_exitcode(status)

    def run(self, seed: str) -> Outcome:
        """Run one trial; return its outcome."""
        if not self._process:
            self._start()
        try:
            self._pipe.send(seed)
            if self._pipe.poll(HANG):
                return self._pipe.recv()
            note = f"no end after {HANG:.0f} s"
        except (EOFError, OSError):
            note = "crash"
        with contextlib.suppress(ChildProcessError):
            done, status = os.waitpid(self._process, os.WNOHANG)
            if done:
                note += f", status {os.waitstatus_to_exitcode(status)}"
                self._process = None
        self.end()
        tail = pathlib.Path(self._log).read_bytes()[-600:]
        return Outcome(FAILED, note=f"{note}: {tail.decode(errors='replace')}")


def in_child(function, *arguments) -> None:
    """Call a function in a forked process; raise an error if it fails."""
    child = os.fork()
    if not child:
        try:
            function(*arguments)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    if status:
        raise ChildProcessError(f"{function.__name__}{arguments} failed")


def seeds(name: str, start: int = 0) -> Iterator[str]:
    """Yield the seeds of a reader's trials."""
    number = start
    while True:
        yield f"{name} {number}"
        number += 1
