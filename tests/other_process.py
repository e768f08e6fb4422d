"""Calls to functions in modules that this process must not import."""

import concurrent.futures
import contextlib
import importlib
import multiprocessing
from collections.abc import Callable, Iterator


def _call(module: str, name: str, *arguments):
    return getattr(importlib.import_module(module), name)(*arguments)


@contextlib.contextmanager
def calling(module: str) -> Iterator[Callable]:
    """Yield a function that calls a module's functions in a new process."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as process:
        yield lambda *call: process.submit(_call, module, *call).result()
