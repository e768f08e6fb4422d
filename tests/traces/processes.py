"""What a process that makes runs is asked to do.

This module is imported before TensorFlow, whose environment it states.
"""

import contextlib
import io
import tempfile
from pathlib import Path

from traces import comparison

# Read by TensorFlow and its libraries when a process imports them. How a sum
# is divided depends on the number of threads and the width of vectors.
ENVIRONMENT = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
}


def run(name: str) -> comparison.Recorded:
    """Make a run in a folder of its own, without its output."""
    from traces import runs

    output = io.StringIO()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            trace = runs.all_runs()[name](Path(folder))
    except Exception as error:
        raise RuntimeError(f"{name}: {error}\n{output.getvalue()}") from error
    return comparison.Recorded(comparison.machine(), **vars(trace))


def all_names() -> list[str]:
    """Return the names of all runs, as a process of its own lists them."""
    from traces import runs

    return list(runs.all_runs())
