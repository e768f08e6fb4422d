"""Runs of programs in processes that have already imported TensorFlow.

A server, which is forked right after the import of TensorFlow, forks a process
for each program. Apart from the import, the process is like a new `python`:
TensorFlow has not yet looked for devices, and no flags are defined.
"""

import contextlib
import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback

from absl import flags


@contextlib.contextmanager
def temporary_flags():
    """Remove the flags that the block defines."""
    before = set(flags.FLAGS)
    try:
        yield
    finally:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)


def _execute(arguments: list[str]) -> int:
    """Act like `python` with the given arguments; return the exit status."""
    kind, *sys.argv = arguments if arguments[0][0] == "-" else ("", *arguments)
    name = sys.argv[0]
    try:
        if kind == "-m":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv[0] = kind
            exec(name, {"__name__": "__main__"})
        else:
            sys.path.insert(0, os.path.dirname(name))
            runpy.run_path(name, run_name="__main__")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else bool(error.code)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _start(arguments: list[str], cwd: str, streams: list[str]) -> None:
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR), number)
    sys.stdin = open(0, encoding="utf-8")
    sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8") for n in (1, 2))
    os.chdir(cwd)
    status = _execute(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _serve(requests, answers) -> None:
    """Run the program in each request line; reply with its exit status."""
    for name in [n for n in sys.modules if n.split(".")[0] == "albert_tf"]:
        del sys.modules[name]
    for line in requests:
        if not (child := os.fork()):
            _start(**json.loads(line))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, file=answers, flush=True)


@functools.cache
def server():
    """Fork the server; return its pipes for requests and replies."""
    (requests, request_pipe), (answered, answers) = os.pipe(), os.pipe()
    if not os.fork():
        os.close(request_pipe)
        _serve(open(requests), open(answers, "w"))
        os._exit(0)
    os.close(requests)
    os.close(answers)
    return open(request_pipe, "w"), open(answered)


def run(*arguments: object, cwd: object = ".", stdin: str = ""):
    """Run `python` with arguments; return a `subprocess.CompletedProcess`."""
    command = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        streams = [os.path.join(folder, str(number)) for number in range(3)]
        for path, text in zip(streams, (stdin, "", ""), strict=True):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        request = {"arguments": command, "cwd": str(cwd), "streams": streams}
        requests, answered = server()
        print(json.dumps(request), file=requests, flush=True)
        status = int(answered.readline())
        outputs = []
        for path in streams[1:]:
            with open(path, encoding="utf-8") as file:
                outputs.append(file.read())
    return subprocess.CompletedProcess(command, status, *outputs)


def new(*arguments: object, **how: object) -> subprocess.CompletedProcess:
    """Run a new `python`; return the completed process."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, **{"text": True} | how)


def fresh(*arguments: object, **how: object) -> str:
    """Run a new `python`, which must succeed; return its output."""
    done = new(*arguments, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout
