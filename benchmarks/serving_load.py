"""Good and bad requests to the local page from many clients at once.

    python benchmarks/serving_load.py --saved_model=DIR [--minutes=10]

Starts `python -m albert_tf.playground` in a process of its own, asks it from
several clients for some minutes, and prints how many answers of each status
there were, their latency, and the server's memory at the start and the end.
Every good request is one of a few whose answer was asked for alone before: an
answer that differs is counted as wrong. Needs `pip install 'albert-tf[demo]'`.
"""

import argparse
import collections
import http.client
import json
import random
import subprocess
import sys
import threading
import time

HOST = "127.0.0.1"
TEXTS = (
    "The small garden lies behind the old house.",
    "It rained all day, so we stayed in.",
    "Der Bär 😀 שלום עולם 中文",
    "1,000 houses in 2010, and naïve cafés",
    "walk " * 600,
)
BAD = (
    b"",
    b"\xff\xfe{",
    b"[]",
    b'{"text": 5}',
    b'{"text": ""}',
    b'{"nonsense": "a"}',
    json.dumps({"text": "a" * 150_000}).encode(),
    b'{"text": "' + b"a" * 1_000_000 + b'"}',
)


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    raise ValueError(f"no VmRSS of process {pid}")


def post(port: int, path: str, body: bytes) -> tuple[int, bytes]:
    """Send one request; return status and body."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(
            "POST", path, body, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def good_requests(tools: list[str]) -> list[tuple[str, bytes]]:
    """Return requests with an answer, for each tool of the model."""
    requests = []
    for tool in tools:
        for text in TEXTS:
            fields = {
                "fill_mask": {"text": f"[MASK] {text}"},
                "answer": {"question": "who?", "context": text},
                "choose": {
                    "context": text,
                    "question": "what?",
                    "choices": "a\nb",
                },
                "entities": {"text": text},
                "attention": {"text": text[:40]},
            }.get(tool, {"text": text, "text_pair": text})
            requests.append((f"/ask/{tool}", json.dumps(fields).encode()))
    return requests


def same(found: bytes, wanted: bytes) -> bool:
    """Return whether answers agree, but for the last digits and the time."""

    def rounded(value):
        if isinstance(value, float):
            return round(value, 3)
        if isinstance(value, list):
            return [rounded(x) for x in value]
        if isinstance(value, dict):
            return {k: rounded(x) for k, x in value.items() if k != "seconds"}
        return value

    return rounded(json.loads(found)) == rounded(json.loads(wanted))


class Clients:
    """Clients that ask until a time, and what they saw."""

    def __init__(self, port: int, tools: list[str]):
        self.port, self.known = port, []
        self.statuses = collections.Counter()
        self.seconds: list[float] = []
        self.wrong = self.failed = 0
        self.lock = threading.Lock()
        for path, body in good_requests(tools):
            # Some models take one text alone.
            status, answer = post(port, path, body)
            if status == 400 and b"The fields are text" in answer:
                body = json.dumps({"text": json.loads(body)["text"]}).encode()
                status, answer = post(port, path, body)
            if status == 200:
                self.known.append((path, body, answer))

    def run(self, seed: int, until: float) -> None:
        """Ask good and bad requests in turn until a time."""
        rng = random.Random(seed)
        while time.monotonic() < until:
            path, body, wanted = rng.choice(self.known)
            if rng.random() < 0.3:
                body, wanted = rng.choice(BAD), None
            start = time.monotonic()
            try:
                status, answer = post(self.port, path, body)
            except (OSError, http.client.HTTPException) as error:
                # A body that is too large may be refused while it is sent.
                status, answer = type(error).__name__, b""
            with self.lock:
                self.statuses["good" if wanted else "bad", status] += 1
                if wanted and status == 200:
                    self.seconds.append(time.monotonic() - start)
                    self.wrong += not same(answer, wanted)
                elif wanted and status != 503:
                    self.failed += 1


def start_server(saved_model: str, port: int) -> subprocess.Popen:
    """Start the page and wait until it answers."""
    command = [sys.executable, "-m", "albert_tf.playground"]
    command += [f"--saved_model={saved_model}", f"--port={port}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for _ in range(240):
        try:
            connection = http.client.HTTPConnection(HOST, port, timeout=5)
            connection.request("GET", "/health")
            server.tools = json.loads(connection.getresponse().read())["tools"]
            return server
        except OSError:
            if server.poll() is not None:
                raise SystemExit("The page did not start.") from None
            time.sleep(0.5)
    server.terminate()
    raise SystemExit("The page did not answer within two minutes.")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saved_model", required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--port", type=int, default=8123)
    args = parser.parse_args()
    server = start_server(args.saved_model, args.port)
    try:
        clients = Clients(args.port, server.tools)
        # Sizes that come up first make TensorFlow allocate.
        warm = threading.Thread(
            target=clients.run, args=(0, time.monotonic() + 5)
        )
        warm.start()
        warm.join()
        first, until = (
            memory_mb(server.pid),
            time.monotonic() + 60 * args.minutes,
        )
        threads = [
            threading.Thread(target=clients.run, args=(seed, until))
            for seed in range(1, args.clients + 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        last, alive = memory_mb(server.pid), server.poll() is None
    finally:
        server.terminate()
        server.wait(30)
    report(clients, args, first, last, alive)


def report(clients: Clients, args, first: float, last: float, alive: bool):
    """Print what was seen."""
    seconds = sorted(clients.seconds)
    print(f"{args.clients} clients, {args.minutes:g} minutes")
    for (kind, status), number in sorted(
        clients.statuses.items(), key=lambda item: str(item[0])
    ):
        print(f"  {kind:5} {status!s:24} {number:8,}")
    print(f"good requests answered otherwise than alone: {clients.wrong}")
    print(
        f"good requests failed, 503 (come back later) aside: {clients.failed}"
    )
    if seconds:
        p50, p95 = (seconds[int(q * (len(seconds) - 1))] for q in (0.5, 0.95))
        print(f"latency of good ones: p50 {p50:.3f} s, p95 {p95:.3f} s")
    print(f"memory {first:.0f} MB at the start, {last:.0f} MB at the end")
    print(f"server alive at the end: {alive}")


if __name__ == "__main__":
    main()
