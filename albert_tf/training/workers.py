"""Connect workers on several machines, and report lost workers."""

import contextlib
import faulthandler
import functools
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from albert_tf.base.errors import InputError, first_line, require
from albert_tf.base.interrupts import in_main_thread

CONNECT_SECONDS = 20.0
# Seconds for which workers wait for each other to start, for TensorFlow to
# connect them, and for a heartbeat.
START_SECONDS = 600
MEET_SECONDS = 300
SILENCE_SECONDS = 60
# In seconds: the timeout of one attempt to reach a worker, the time until
# missing workers are first reported, and the interval between later reports.
ATTEMPT_SECONDS = 2.0
FIRST_REPORT_SECONDS, REPORT_SECONDS = 3.0, 30.0
LAYOUT = (
    '{"cluster": {"worker": ["HOST:PORT", ...]}, '
    '"task": {"type": "worker", "index": 0}}'
)
COORDINATION = "/tensorflow.CoordinationService/"  # in error messages


def read_cluster() -> dict[str, list[str]]:
    """Return {job: addresses} from TF_CONFIG, or {} if it is not set."""
    if not os.environ.get("TF_CONFIG"):
        os.environ.pop("TF_CONFIG", None)  # TensorFlow rejects an empty value
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        jobs = resolver.cluster_spec().as_dict()
        addresses = [address for job in jobs.values() for address in job]
        ports = [re.fullmatch(r".+:(\d+)", address)[1] for address in addresses]
        valid = not jobs or (
            jobs.keys() <= {"chief", "worker"}
            and len(set(addresses)) == len(addresses)
            and all(0 < int(port) < 1 << 16 for port in ports)
            and 0 <= resolver.task_id < len(jobs[resolver.task_type])
        )
    except (ValueError, TypeError, LookupError):
        valid = False
    require(
        valid,
        f"`TF_CONFIG` must look like {LAYOUT}, with an optional `chief`. Its "
        "addresses must differ, and its task must be in the cluster.",
        TF_CONFIG=os.environ.get("TF_CONFIG"),
    )
    return jobs


def fault(address: str, seconds: float) -> str:
    """Return the reason why an address does not answer, or "" if it answers.

    Args:
      address: HOST:PORT, with an optional grpc:// prefix.
      seconds: the timeout.
    """
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        endpoint = host.strip("[]"), int(port)
        socket.create_connection(endpoint, seconds).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def check_reachable(address: str) -> None:
    """Raise `OSError` unless a server is listening at a grpc:// address.

    TensorFlow itself would wait forever.
    """
    if reason := fault(address, CONNECT_SECONDS):
        raise OSError(f"{address} does not answer ({reason})")


@contextlib.contextmanager
def listening(port: int) -> Iterator[None]:
    """Accept connections on a port of this machine while the block runs."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        server = socket.create_server(
            ("", port), family=family, dualstack_ipv6=dual
        )
    except OSError as error:
        raise InputError(
            "The port of this worker in `TF_CONFIG` must be free "
            f"({error.strerror or error}). Received: port={port}"
        ) from None
    with server:
        yield


def faults(workers: Mapping[str, str]) -> dict[str, str]:
    """Return {name: reason} for the workers that cannot be reached.

    Args:
      workers: {name: address}.
    """
    reasons = {n: fault(a, ATTEMPT_SECONDS) for n, a in workers.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def wait_for_workers(workers: Mapping[str, str]) -> None:
    """Wait until all workers listen; report the missing workers.

    Args:
      workers: {name: address}.

    Raises:
      InputError: if workers are still missing after `START_SECONDS`.
    """
    start, report = time.monotonic(), FIRST_REPORT_SECONDS
    while reasons := faults(workers):
        workers = {name: workers[name] for name in reasons}
        descriptions = (
            f"{n} at {a} ({reasons[n]})" for n, a in workers.items()
        )
        missing, waited = ", ".join(descriptions), time.monotonic() - start
        require(
            waited < START_SECONDS,
            f"All workers of TF_CONFIG must start within {START_SECONDS} s. "
            f"Missing: {missing}",
        )
        if waited >= report:
            print(f"Waiting for {missing}", file=sys.stderr, flush=True)
            report = waited + REPORT_SECONDS
        time.sleep(1)


@contextlib.contextmanager
def ended_from_outside() -> Iterator[None]:
    """End this process on Ctrl-C, or if the block takes too long.

    TensorFlow holds Python's global interpreter lock while it connects workers,
    and the first worker waits an hour for the other workers. TensorFlow's own
    handler ignores SIGTERM, and no Python code can run to replace this handler.
    The earlier handlers are restored after the block.
    """
    numbers = [signal.SIGINT, signal.SIGTERM] if in_main_thread() else []
    earlier = {number: signal.getsignal(number) for number in numbers}
    if earlier.get(signal.SIGINT, signal.SIG_IGN) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with open(os.devnull, "w") as devnull:
        # This timer runs in C, without the lock. TensorFlow itself usually
        # stops earlier.
        faulthandler.dump_traceback_later(
            MEET_SECONDS + 10, exit=True, file=devnull
        )
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            for number, handler in earlier.items():
                signal.signal(number, handler or signal.SIG_DFL)


def meet(jobs: Mapping[str, list[str]], job: str, index: int) -> None:
    """Wait until all workers have started.

    Each worker listens on the address that TensorFlow will use, so that no
    worker waits inside TensorFlow for a worker that has not started.

    Args:
      jobs: {job: addresses}.
      job: this worker's job.
      index: the index of this worker in its job.
    """
    workers = {
        f"{name} {i}": address
        for name, addresses in jobs.items()
        for i, address in enumerate(addresses)
    }
    port = int(workers.pop(f"{job} {index}").rpartition(":")[2])
    if workers:
        with listening(port):
            wait_for_workers(workers)
        print(
            "All workers have started; TensorFlow connects them within "
            f"{MEET_SECONDS} s, or this process ends. Until then, the process "
            "ignores SIGTERM; Ctrl-C ends it",
            file=sys.stderr,
            flush=True,
        )


@functools.cache  # TensorFlow connects a process only once.
def multi_worker_strategy() -> tf.distribute.Strategy:
    """Return a strategy over the processes of TF_CONFIG once all have started.

    TensorFlow gives up on a worker after `SILENCE_SECONDS` without a heartbeat.
    The default of 10 s is too short while a machine is being migrated.
    """
    jobs = read_cluster()
    require(
        jobs,
        "`TF_CONFIG` must be set with distribution_strategy=multi_worker, for "
        f"example to {LAYOUT}.",
        TF_CONFIG=os.environ.get("TF_CONFIG"),
    )
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    meet(jobs, resolver.task_type, resolver.task_id)
    context = eager_context.context()
    context.configure_coordination_service = functools.partial(
        context.configure_coordination_service,
        cluster_register_timeout_in_ms=MEET_SECONDS * 1000,
        heartbeat_timeout_in_ms=SILENCE_SECONDS * 1000,
    )
    try:
        with ended_from_outside():
            return tf.distribute.MultiWorkerMirroredStrategy()
    except tf.errors.OpError as error:
        raise InputError(
            "The workers of TF_CONFIG have started, but TensorFlow could not "
            f"connect them within {MEET_SECONDS} s. A worker may have ended in "
            "the meantime, or belong to an earlier run. Restart all workers. "
            f"Received: {first_line(error, error.message or str(error))}"
        ) from None
    except RuntimeError as error:
        raise InputError(
            "Workers must be connected before a Python process does anything "
            f"else with TensorFlow. Received: {error}"
        ) from None


def lost_workers(message: str) -> str:
    """Return the names of the workers that an error message reports as lost.

    The result is "Another worker" if the message names none.
    """
    jobs = read_cluster()
    reason = message.partition("aborted by: ")[2] or message
    tasks = set(re.findall(r"/job:(\w+)(?:/replica:0)?/task:(\d+)", reason))
    if COORDINATION in reason:  # a service of the first worker
        tasks = {("chief" if "chief" in jobs else "worker", "0")}
    names = [f"{job} {i} at {jobs[job][int(i)]}" for job, i in sorted(tasks)]
    return ", ".join(names) or "Another worker"


@contextlib.contextmanager
def explaining_lost_workers() -> Iterator[None]:
    """Convert TensorFlow's errors about lost workers to an `InputError`.

    The error may name a worker that ended only because another worker ended.
    """
    try:
        yield
    except tf.errors.OpError as error:
        message = error.message or ""
        if not re.search(f"ollective ops is aborted|{COORDINATION}", message):
            raise
        raise InputError(
            f"{lost_workers(message)} has ended or stopped responding; the "
            "last lines of its output may show the reason. Start all workers "
            "again: the run resumes from its last checkpoint"
        ) from None
