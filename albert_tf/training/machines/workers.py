"""Worker processes on several machines: how they meet, and miss each other."""

import contextlib
import functools
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from albert_tf.base.errors import InputError, require

CONNECT_SECONDS = 20.0
# How long workers wait for each other to start, and for a sign of life.
START_SECONDS = 600
SILENCE_SECONDS = 60
COORDINATION = "/tensorflow.CoordinationService/"  # a service, in messages


def read_cluster() -> dict[str, list[str]]:
    """Return {job: addresses} of TF_CONFIG, {} without it, or refuse it."""
    if not os.environ.get("TF_CONFIG"):
        os.environ.pop("TF_CONFIG", None)  # TensorFlow refuses an empty one
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        jobs = resolver.cluster_spec().as_dict()
        addresses = [each for job in jobs.values() for each in job]
        legal = not jobs or (
            jobs.keys() <= {"chief", "worker"}
            and all(re.search(r".:\d+$", address) for address in addresses)
            and 0 <= resolver.task_id < len(jobs[resolver.task_type])
        )
    except (ValueError, TypeError, LookupError):
        legal = False
    require(
        legal,
        '`TF_CONFIG` must be as {"cluster": {"worker": ["HOST:PORT", ...]}, '
        '"task": {"type": "worker", "index": 0}}, with or without a `chief`, '
        "and its task one of the cluster.",
        TF_CONFIG=os.environ.get("TF_CONFIG"),
    )
    return jobs


def check_reachable(address: str) -> None:
    """Raise `OSError` unless something listens at a grpc:// address.

    TensorFlow's own connection waits without an end.
    """
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise OSError(f"{address} does not answer ({error})") from None


def wait_for_workers(addresses: Sequence[str]) -> None:
    """Wait until all workers listen, or refuse; TensorFlow waits an hour."""
    end = time.monotonic() + START_SECONDS
    for address in addresses:
        while True:
            try:
                check_reachable(address)
                break
            except OSError as error:
                require(
                    time.monotonic() < end,
                    "All workers of TF_CONFIG must start within "
                    f"{START_SECONDS} s: {error}",
                )
                time.sleep(1)


@functools.cache  # TensorFlow meets the others once in a process.
def multi_worker_strategy() -> tf.distribute.Strategy:
    """Return a strategy over the processes of TF_CONFIG, once all are there.

    After 10 s without a sign of life, as while a machine is moved, TensorFlow
    gives one up by default.
    """
    jobs = read_cluster()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    addresses = jobs.get("chief", []) + jobs.get("worker", [])
    if jobs and jobs[resolver.task_type][resolver.task_id] == addresses[0]:
        wait_for_workers(addresses[1:])  # which listen, and wait for this one
    context = eager_context.context()
    context.configure_coordination_service = functools.partial(
        context.configure_coordination_service,
        cluster_register_timeout_in_ms=START_SECONDS * 1000,
        heartbeat_timeout_in_ms=SILENCE_SECONDS * 1000,
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise InputError(
            "Workers must meet before a Python process does anything else "
            f"with TensorFlow. Received: {error}"
        ) from None


def vanished(message: str) -> str:
    """Return which workers are gone, by TensorFlow's account of it."""
    jobs = read_cluster()
    reason = message.partition("aborted by: ")[2] or message
    named = set(re.findall(r"/job:(\w+)(?:/replica:0)?/task:(\d+)", reason))
    if COORDINATION in reason:  # which the first one keeps
        named = {("chief" if "chief" in jobs else "worker", "0")}
    names = [f"{job} {i} at {jobs[job][int(i)]}" for job, i in sorted(named)]
    return ", ".join(names) or "Another worker"


@contextlib.contextmanager
def vanishing_explained() -> Iterator[None]:
    """Turn what TensorFlow raises when a worker is gone into an `InputError`.

    It may name a worker that ended because another one had.
    """
    try:
        yield
    except tf.errors.OpError as error:
        message = error.message or ""
        if not re.search(f"ollective ops is aborted|{COORDINATION}", message):
            raise
        raise InputError(
            f"{vanished(message)} has ended or gives no sign of life; its last "
            "lines may say why. Start all workers again: the run goes on from "
            "its last checkpoint"
        ) from None
