"""Builds and runs resume after faults of the machine."""

import programs
import pytest
from project_file import ROOT


@pytest.mark.slow
def test_faults_change_no_bits():
    """After any fault, a restart yields the same bits as an undisturbed run."""
    script = ROOT / "benchmarks/machine_faults.py"
    done = programs.run(script, "--runs=1")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if "equal bits" in line]
    assert len(rows) == 9
