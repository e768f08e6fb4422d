"""Break builds and runs with machine faults, resume them, and compare output.

    PYTHONPATH=tests python benchmarks/machine_faults.py [FAULT...] [--runs=50]

Each trial breaks a build of records or a pretraining run of a tiny model,
starts the program again without the fault, and compares the records or the
checkpoint with the output of an unbroken program. A broken program must end
with a one-line message, never with a traceback. The faults are:

full-disk-build, full-disk-run: a random write fails in the middle of a file,
  and all later writes fail.
killed-build, killed-run: SIGKILL arrives at a random write, or at a random call
  to a hook.
short-reads-build, short-reads-run: reads return fewer bytes than requested.
jumping-clock: the time of day jumps forward and back, and the monotonic clock
  jumps forward, during a run with `max_hours`.
sigint, sigterm: the signal arrives at a random moment of a run.

Each trial runs in a process that is forked after the import of TensorFlow.
Functions run eagerly, which is faster for a few steps.
"""

import argparse
import contextlib
import dataclasses
import errno
import glob
import io
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from unittest import mock

from albert_tf.base import program

with program.quiet_start():
    import tensorflow as tf
    import tiny
    import tiny_pretraining
    import vocabularies

    import albert_tf
    from albert_tf.base import files
    from albert_tf.training import checkpoints
    from albert_tf.training.history import History
    from albert_tf.training.run import Hook

SECONDS = 600  # a process that takes longer is hanging, even on a busy machine
STEPS = 4
SETTINGS = {
    "num_train_steps": STEPS,
    "train_batch_size": 4,
    "eval_batch_size": 4,
    "eval_steps": 4,
    "do_eval": True,
    "save_checkpoints_steps": 2,
    "steps_per_loop": 1,
    "num_warmup_steps": 2,
    "learning_rate": 0.01,
}
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclasses.dataclass
class CallCounter:
    """A counter of an operation's calls, which can make calls fail.

    Attributes:
      first: the first call to break, counted from 1; 0 breaks no call. Later
        calls fail too.
      kills: whether to kill the process at this call instead of failing.
      calls: the number of calls so far.
    """

    first: int = 0
    kills: bool = False
    calls: int = 0

    def broken(self) -> bool:
        """Count a call; return whether this call must fail."""
        self.calls += 1
        if self.kills and self.calls == self.first:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0 < self.first <= self.calls and not self.kills

    def around(self, function: Callable) -> Callable:
        """Wrap a function to count its calls, and to make broken calls fail."""

        def call(*args, **kwargs):
            if self.broken():
                raise FULL
            return function(*args, **kwargs)

        return call


class Writer(io.RawIOBase):
    """A file whose writes a `CallCounter` counts and may break."""

    def __init__(self, file, counter: CallCounter):
        self._file, self._counter = file, counter

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        """Write data, or write half of the data and raise an error."""
        data = bytes(data)
        if self._counter.broken():
            self._file.write(data[: len(data) // 2])
            raise FULL
        return self._file.write(data)

    def close(self) -> None:
        super().close()
        self._file.close()


@contextlib.contextmanager
def counted_writes(counter: CallCounter) -> Iterator[None]:
    """Within the `with` block, count all operations that change the disk."""
    opened, write = files.opened, checkpoints._write

    def open_counted(path, mode):
        if mode == "rb":
            return opened(path, mode)
        return Writer(counter.around(opened)(path, mode), counter)

    def write_counted(prefix, variables):
        full = counter.broken()
        write(prefix, variables)
        if full:
            for path in map(pathlib.Path, glob.glob(f"{prefix}.data*")):
                os.truncate(path, path.stat().st_size // 2)
            message = "No space left on device"
            raise tf.errors.ResourceExhaustedError(None, None, message)

    names = "rename", "copy", "make_folder"
    changed = {name: counter.around(getattr(files, name)) for name in names}
    with (
        mock.patch.multiple(files, opened=open_counted, **changed),
        mock.patch.object(checkpoints, "_write", write_counted),
    ):
        yield


def subclasses(cls: type) -> list[type]:
    """Return a class and all classes that inherit from it."""
    return [cls, *(x for c in cls.__subclasses__() for x in subclasses(c))]


@contextlib.contextmanager
def counted_hooks(counter: CallCounter) -> Iterator[None]:
    """Within the `with` block, count every call to a hook."""
    with contextlib.ExitStack() as stack:
        for cls in subclasses(Hook):
            for name in {"begin", "after", "end"} & vars(cls).keys():
                changed = counter.around(vars(cls)[name])
                stack.enter_context(mock.patch.object(cls, name, changed))
        yield


class ShortReader(io.RawIOBase):
    """A file that returns fewer bytes than requested."""

    def __init__(self, file, draw: random.Random):
        self._file, self._draw = file, draw

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, *position) -> int:
        return self._file.seek(*position)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer) -> int:
        data = self._file.read(self._draw.randint(1, max(len(buffer) // 3, 1)))
        buffer[: len(data)] = data
        return len(data)


@contextlib.contextmanager
def short_reads(draw: random.Random) -> Iterator[None]:
    """Within the `with` block, make the library's reads return fewer bytes."""
    opened = files.opened

    def open_short(path, mode):
        if mode != "rb":
            return opened(path, mode)
        return io.BufferedReader(ShortReader(opened(path, mode), draw))

    with mock.patch.object(files, "opened", open_short):
        yield


@contextlib.contextmanager
def jumping_clock(draw: random.Random) -> Iterator[None]:
    """Within the `with` block, make both clocks jump at some readings."""
    now, monotonic, ahead = time.time, time.monotonic, [0.0]

    def jumping_time() -> float:
        jumps = draw.random() < 0.2
        return now() + (draw.uniform(-1e6, 1e6) if jumps else 0.0)

    def jumping_monotonic() -> float:
        if draw.random() < 0.1:
            ahead[0] += draw.choice((1.0, 60.0, 3600.0))
        return monotonic() + ahead[0]

    with (
        mock.patch.object(time, "time", jumping_time),
        mock.patch.object(time, "monotonic", jumping_monotonic),
    ):
        yield


class World:
    """The inputs of all trials, and the outputs of runs without faults."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.spiece = folder / "spiece.model"
        self.spiece.write_bytes(vocabularies.sentencepiece_model())
        self.text = folder / "text.txt"
        lines = [f"the cat s at cafe {i}\nthe 12, {i} cat\n" for i in range(99)]
        self.text.write_text("\n".join(lines))
        pieces = len(vocabularies.english()._pieces)
        changes = {"vocab_size": pieces, "num_hidden_layers": 1}
        config = dataclasses.replace(tiny.CONFIG, **changes)
        self.config = folder / "config.json"
        self.config.write_text(config.to_json())
        self.records = folder / "records"
        self.model = folder / "model"

    def build(self, output: pathlib.Path) -> None:
        """Build records from the text of all trials."""
        build = tiny_pretraining.build_records
        build(self.text, output, self.spiece, 16)

    def train(self, output: pathlib.Path, **more) -> None:
        """Pretrain as the program does, and exit with its status."""
        tf.config.run_functions_eagerly(True)
        tf.config.set_visible_devices([], "GPU")
        paths = {
            "data_dir": self.records,
            "albert_config_file": self.config,
            "output_dir": output,
        }
        flags = (paths | SETTINGS | more).items()
        arguments = ["pretrain.py", *(f"--{k}={value}" for k, value in flags)]
        with mock.patch.object(sys, "argv", arguments):
            albert_tf.pretrain.program.cli()


def run_as_command(action: Callable[[], None]) -> None:
    """Perform an action; report errors and exit as a command would."""
    status = 1
    try:
        action()
        status = 0
    except SystemExit as error:
        status = error.code or 0
    except (albert_tf.InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@dataclasses.dataclass(frozen=True)
class Ended:
    """The result of a process.

    Attributes:
      status: the exit status, or minus the number of the signal that ended it.
      output: everything that the process printed.
      seconds: the duration of the process.
    """

    status: int
    output: str
    seconds: float


def run(
    action: Callable[[], None],
    during: Callable[[int], None] = lambda process: None,
) -> Ended:
    """Fork a process that performs an action; return how the process ended.

    Args:
      action: the function that the process calls.
      during: a function that is called with the ID of the running process.
    """
    with tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        start = time.monotonic()
        process = os.fork()
        if not process:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            signal.alarm(SECONDS)
            run_as_command(action)
        during(process)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        seconds = time.monotonic() - start
        log.seek(0)
        return Ended(status, log.read().decode(errors="replace"), seconds)


def record_bytes(folder: pathlib.Path) -> dict[str, bytes]:
    """Return {name: content} of all records and their metadata."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def last_bits(folder: pathlib.Path) -> dict[str, bytes]:
    """Return the last checkpoint and the held-out metrics as bytes."""
    table = tiny_pretraining.values(folder)
    rows = [r for r in History.read(str(folder)).rows if r["split"] == "eval"]
    bits = {name: value.tobytes() for name, value in table.items()}
    return bits | {"history": repr(rows).encode()}


EQUAL, FAILED = "equal bits", "FAILED"
Action = Callable[[pathlib.Path], None]


@dataclasses.dataclass(frozen=True)
class Task:
    """The program that a trial breaks.

    Attributes:
      work: a function that writes to a folder.
      read: a function that returns {name: bytes} to compare between folders.
      whole: the output folder of the unbroken program.
    """

    work: Action
    read: Callable[[pathlib.Path], dict[str, bytes]]
    whole: pathlib.Path

    def outcome(self, output: pathlib.Path, broken: Ended, statuses) -> str:
        """Resume a broken program without the fault; return the outcome.

        `statuses` are the exit statuses that the broken program may have.
        """
        if "Traceback" in broken.output or broken.status not in statuses:
            return f"{FAILED}, status {broken.status}: {broken.output[-1500:]}"
        resumed = run(lambda: self.work(output))
        if resumed.status:
            return f"{FAILED} to resume: {resumed.output[-1500:]}"

        def compare():
            raise SystemExit(self.read(output) != self.read(self.whole))

        equal = run(compare).status == 0
        shutil.rmtree(output)
        return EQUAL if equal else f"{FAILED}: other bits"


class Trials:
    """Trials of faults; the methods yield the outcome of each trial."""

    def __init__(self, world: World, runs: int, seed: int):
        self.world, self.runs, self.draw = world, runs, random.Random(seed)
        self.tasks = {
            "build": Task(world.build, record_bytes, world.records),
            "run": Task(world.train, last_bits, world.model),
        }
        self.number = 0

    def new_folder(self) -> pathlib.Path:
        """Return the path of a new output folder for a trial."""
        self.number += 1
        return self.world.folder / f"trial-{self.number}"

    def call_numbers(self, counted, work: Action) -> list[int]:
        """Return the numbers of up to `runs` random calls, in order."""
        counter, output = CallCounter(), self.new_folder()

        def count():
            with contextlib.suppress(SystemExit), counted(counter):
                work(output)
            print(f"calls={counter.calls}")

        calls = int(run(count).output.rpartition("calls=")[2])
        drawn = self.draw.sample(range(1, calls + 1), min(calls, self.runs))
        return sorted(drawn)

    def at_each(self, counted, task: str, kills: bool) -> Iterator[str]:
        """Break a random call to an operation in each trial; yield outcomes."""
        task = self.tasks[task]
        statuses = (-signal.SIGKILL,) if kills else (0, 1)
        for number in self.call_numbers(counted, task.work):
            output, counter = self.new_folder(), CallCounter(number, kills)

            def action(output=output, counter=counter):
                with counted(counter):
                    task.work(output)

            yield task.outcome(output, run(action), statuses)

    def under(self, fault, task: str, **settings) -> Iterator[str]:
        """Run whole programs under a fault that must not break them.

        Yield the outcomes.
        """
        task = self.tasks[task]
        for _ in range(self.runs):
            output, draw = self.new_folder(), random.Random(self.draw.random())

            def action(output=output, draw=draw):
                with fault(draw):
                    task.work(output, **settings)

            yield task.outcome(output, run(action), (0,))

    def signals(self, number: signal.Signals, statuses) -> Iterator[str]:
        """Send each run a signal at a random moment; yield the outcomes."""
        task = self.tasks["run"]
        whole = run(lambda: task.work(self.new_folder())).seconds
        for _ in range(self.runs):
            output, delay = self.new_folder(), self.draw.uniform(0.05, whole)

            def send(process, delay=delay):
                time.sleep(delay)
                os.kill(process, number)

            broken = run(lambda output=output: task.work(output), send)
            yield task.outcome(output, broken, statuses)


FAULTS: dict[str, Callable[[Trials], Iterator[str]]] = {
    "full-disk-build": lambda t: t.at_each(counted_writes, "build", False),
    "full-disk-run": lambda t: t.at_each(counted_writes, "run", False),
    "killed-build": lambda t: t.at_each(counted_writes, "build", True),
    "killed-run": lambda t: t.at_each(counted_hooks, "run", True),
    "short-reads-build": lambda t: t.under(short_reads, "build"),
    "short-reads-run": lambda t: t.under(short_reads, "run"),
    "jumping-clock": lambda t: t.under(jumping_clock, "run", max_hours=2),
    "sigint": lambda t: t.signals(signal.SIGINT, (0, 130)),
    "sigterm": lambda t: t.signals(signal.SIGTERM, (0, -signal.SIGTERM)),
}


def attack(faults: list[str], runs: int, seed: int) -> int:
    """Run the trials and print a table; return the number of failures."""
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        world = World(pathlib.Path(temporary))
        for action in (
            lambda: world.build(world.records),
            lambda: world.train(world.model),
        ):
            ended = run(action)
            if ended.status:
                raise ChildProcessError(ended.output)
        trials = Trials(world, runs, seed)
        for fault in faults:
            start, outcomes = time.monotonic(), Counter()
            for outcome in FAULTS[fault](trials):
                outcomes[outcome.split(",")[0].split(":")[0]] += 1
                if outcome != EQUAL:
                    print(f"{fault}: {outcome}", flush=True)
                    failed += 1
            found = ", ".join(f"{n} {what}" for what, n in outcomes.items())
            seconds = time.monotonic() - start
            print(f"{fault:20} {found} ({seconds:.0f} s)", flush=True)
    return failed


def main() -> int:
    """Test the faults in the arguments; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", help=f"among {', '.join(FAULTS)}")
    parser.add_argument("--runs", type=int, default=50, help="trials per fault")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    faults = arguments.faults or [*FAULTS]
    return 1 if attack(faults, arguments.runs, arguments.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
