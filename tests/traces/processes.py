"""Functions for the processes that perform runs, and their environment.

This module does not import TensorFlow, because `ENVIRONMENT` must be set before
the import.
"""

import contextlib
import io
import tempfile
from pathlib import Path

from traces import comparison

# TensorFlow and its libraries read these variables on import. The partition of
# sums depends on the number of threads and the vector width. On processors with
# AVX-512, TensorFlow would use oneDNN, which aborts if it must compute bfloat16
# products with AVX2.
ENVIRONMENT = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_NUM_INTRAOP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
}


def run(name: str) -> comparison.Recorded:
    """Perform a run in a temporary folder, without printing its output."""
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
    """Return the names of all runs."""
    from traces import runs

    return list(runs.all_runs())
