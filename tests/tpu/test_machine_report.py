"""The report of a machine: one check never stops another."""

import json

import programs
import pytest

from albert_tf.base.errors import InputError
from albert_tf.tpu.hardware_checks import HardwareReportConfig, NotRun, Outcome
from albert_tf.tpu.machine_report import report
from albert_tf.training.machines.distribution import DistributionConfig

ABSENT = "the program ended before"


def test_whatever_a_check_does_the_others_are_made(tmp_path):
    """Each is a row: passed, failed, not run, or an error with its place."""
    pages = []

    def kept(outcome):
        def function(bench):
            pages.append((tmp_path / "report.md").read_text())
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return "as expected", function

    table = (("step", "loss"), ("20", "5.3"))
    checks = {
        "good": kept(Outcome(True, "seen", table)),
        "broken": kept(ZeroDivisionError("by zero\nand more")),
        "bad": kept(Outcome(False, "else")),
        "absent": kept(NotRun("no such device")),
    }
    config = HardwareReportConfig(output_dir=str(tmp_path))
    rows = report(config, DistributionConfig(), checks)
    verdicts = ["pass", "fail", "fail", "not run"]
    assert [row.verdict for row in rows] == verdicts
    assert rows[1].got == "ZeroDivisionError: by zero"
    assert "in function" in rows[1].trace and not rows[2].trace
    # What is known is on disk before the next check begins.
    assert [page.count(ABSENT) for page in pages] == [4, 3, 2, 1]
    page = (tmp_path / "report.md").read_text()
    assert "1 pass, 2 fail, 1 not run" in page
    assert "| bad | as expected | else | **fail** | 0 |" in page
    assert "## good\n\n| step | loss |\n|---|---|\n| 20 | 5.3 |" in page
    data = json.loads((tmp_path / "report.json").read_text())
    assert [row["verdict"] for row in data["checks"]] == verdicts
    assert data["machine"]["replicas"] == "1"


def test_runs_of_something_else_stay(tmp_path):
    """A folder of that name is removed where a report was made alone."""
    (tmp_path / "runs").mkdir()
    config = HardwareReportConfig(output_dir=str(tmp_path))
    with pytest.raises(InputError, match="must have no `runs` but those"):
        report(config, DistributionConfig(), {})
    assert (tmp_path / "runs").exists()
    (tmp_path / "runs").rmdir()
    report(config, DistributionConfig(), {})
    (tmp_path / "runs").mkdir()
    report(config, DistributionConfig(), {})
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_report_of_this_machine(tmp_path):
    """Two replicas on CPUs: nothing fails; what wants a GPU or TPU is not run.

    Half of the steps: the committed losses hold for them too.
    """
    result = programs.run(
        *("-m", "albert_tf.hardware_report", f"--output_dir={tmp_path}"),
        *("--num_steps=100", "--num_cpu_replicas=2", "--peak_tflops=1"),
    )
    assert result.returncode == 0, result.stderr
    data = json.loads((tmp_path / "report.json").read_text())
    verdicts = {row["name"]: row["verdict"] for row in data["checks"]}
    passed = [name for name, verdict in verdicts.items() if verdict == "pass"]
    assert "fail" not in verdicts.values(), (tmp_path / "report.md").read_text()
    assert {"losses of 200 steps", "save and resume", "evaluation"} <= {*passed}
    assert "lowered module of base_v5e-8" in passed
    [speed] = [row["got"] for row in data["checks"] if "small" in row["name"]]
    assert "of the peak" in speed
