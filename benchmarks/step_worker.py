"""A process that makes steps of a library on demand."""

import json
import os
import subprocess
import tempfile


class Worker:
    """A library's step, in a process of its own.

    Args:
      name: of `IMPLEMENTATIONS`.
      case: of `CASES`, or a case's fields as JSON.
      python: to run it with.
      script: that makes the steps.
      environment: beside this process's own.
    """

    def __init__(
        self,
        name: str,
        case: str,
        python: str,
        script: str = "train_step_peers.py",
        environment: dict[str, str] | None = None,
    ):
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")
        script = os.path.join(os.path.dirname(__file__), script)
        self.process = subprocess.Popen(
            [python, script, name, case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | (environment or {}),
        )
        self.seconds: list[float] = []
        self.last: dict = {}
        self.hello = self._read()

    def _read(self) -> dict:
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return {"missing": (lines or ["it ended"])[-1]}

    def step(self) -> None:
        """Make one step and keep its time."""
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        self.last = self._read()
        self.seconds.append(self.last["seconds"])

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()
