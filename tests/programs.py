"""Programs in processes of their own that need not import TensorFlow.

A server imports it once and forks a process for each program; there, all else
is as after `python`: no device was looked for, no flag is known.
"""

import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback


def _execute(arguments: list[str]) -> int:
    """Do what `python` does with these arguments; return its exit status."""
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
    os.chdir(cwd)
    status = _execute(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def serve() -> None:
    """Run what stands in lines on stdin; answer with exit statuses."""
    import keras  # noqa: F401
    import tensorflow_text  # noqa: F401

    for line in sys.stdin:
        if not (child := os.fork()):
            _start(**json.loads(line))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)


@functools.cache
def _server() -> subprocess.Popen:
    code = f"import sys; sys.path.append({os.path.dirname(__file__)!r})"
    return subprocess.Popen(
        [sys.executable, "-c", f"{code}; import programs; programs.serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def run(*arguments: object, cwd: object = ".", stdin: str = ""):
    """Run `python` with arguments; return a `subprocess.CompletedProcess`."""
    command = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        streams = [os.path.join(folder, str(number)) for number in range(3)]
        for path, text in zip(streams, (stdin, "", ""), strict=True):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        asked = {"arguments": command, "cwd": str(cwd), "streams": streams}
        server = _server()
        print(json.dumps(asked), file=server.stdin, flush=True)
        status = int(server.stdout.readline())
        outputs = []
        for path in streams[1:]:
            with open(path, encoding="utf-8") as file:
                outputs.append(file.read())
    return subprocess.CompletedProcess(command, status, *outputs)
