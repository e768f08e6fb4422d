"""A report of a machine: what it is, and what came of each check."""

import dataclasses
import os
import platform
import time
import traceback
from collections.abc import Callable, Collection, Mapping

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.tpu.compiler import version
from albert_tf.tpu.hardware_checks import (
    CHECKS,
    Bench,
    HardwareReportConfig,
    NotRun,
    Outcome,
)
from albert_tf.training.machines.distribution import DistributionConfig

PACKAGES = """albert-tf tensorflow tensorflow-tpu keras tensorflow-text libtpu
numpy""".split()
NVIDIA_DRIVER = "/proc/driver/nvidia/version"
PAGE, DATA = "report.md", "report.json"


@dataclasses.dataclass(frozen=True)
class Row:
    """A check and what came of it.

    Attributes:
      name, expected: of the check.
      got: what was seen, why nothing was, or the error.
      verdict: pass, fail or not run.
      seconds: that it took, with the runs that it was the first to need.
      table: more of what was seen.
      trace: where an error came from.
    """

    name: str
    expected: str
    got: str = "the program ended before"
    verdict: str = "not run"
    seconds: float = 0.0
    table: tuple[tuple[str, ...], ...] = ()
    trace: str = ""


def tried(row: Row, function: Callable[[Bench], Outcome], bench: Bench) -> Row:
    """Return the row of a check that was run, whatever came of it."""
    start, trace = time.monotonic(), ""
    try:
        outcome = function(bench)
        verdict = "pass" if outcome.passed else "fail"
    except NotRun as reason:
        outcome, verdict = Outcome(False, str(reason)), "not run"
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        outcome = Outcome(False, f"{type(error).__name__}: {said}")
        verdict, trace = "fail", traceback.format_exc()
    seconds = round(time.monotonic() - start, 1)
    more = seconds, outcome.table, trace
    return Row(row.name, row.expected, outcome.got, verdict, *more)


def device_names(bench: Bench) -> str:
    """Return what runs use, as its driver calls it."""
    if bench.kind == "TPU":
        system = bench.strategy.cluster_resolver.get_tpu_system_metadata()
        cores = f"{system.num_cores} TPU cores, {system.num_hosts} hosts"
        return f"{cores}, said to be {bench.config.topology or 'of any slice'}"
    gpus = tf.config.list_physical_devices("GPU")
    details = map(tf.config.experimental.get_device_details, gpus)
    names = [x.get("device_name", "unknown") for x in details]
    return ", ".join(names) or f"{os.cpu_count()} CPUs, {platform.machine()}"


def machine(bench: Bench) -> dict[str, str]:
    """Return what the machine and its software are."""
    driver = "none of NVIDIA"
    if files.exists(NVIDIA_DRIVER):
        driver = files.read_text(NVIDIA_DRIVER, "").splitlines()[0]
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        "driver": driver,
        "devices": device_names(bench),
        "replicas": str(bench.strategy.num_replicas_in_sync),
    }


def markdown_table(head: tuple[str, ...], *rows: tuple[str, ...]) -> list[str]:
    """Return the lines of a table."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:], ""]


def page(facts: Mapping[str, str], rows: Collection[Row]) -> str:
    """Return the report as Markdown."""
    verdicts = [row.verdict for row in rows]
    shown, tables = [], []
    for r in rows:
        verdict, seconds = f"**{r.verdict}**", f"{r.seconds:.0f}"
        shown.append((r.name, r.expected, r.got, verdict, seconds))
        if r.table:
            tables += [f"## {r.name}", "", *markdown_table(*r.table)]
    counts = [f"{verdicts.count(v)} {v}" for v in ("pass", "fail", "not run")]
    return "\n".join(
        [
            *("# Hardware report", "", ", ".join(counts), ""),
            *markdown_table(("machine", ""), *facts.items()),
            *markdown_table(("check", "expected", "got", "", "s"), *shown),
            *tables,
        ]
    )


def write(
    output_dir: str, facts: Mapping[str, str], rows: Collection[Row]
) -> None:
    """Write the report, and the same as JSON."""
    data = {"machine": facts, "checks": list(map(dataclasses.asdict, rows))}
    files.write_text(files.join(output_dir, PAGE), page(facts, rows))
    files.write_json(files.join(output_dir, DATA), data)


def report(
    config: HardwareReportConfig,
    devices: DistributionConfig,
    checks: Mapping[str, tuple[str, Callable]] = CHECKS,
) -> list[Row]:
    """Make every check, and write what is known before and after each."""
    bench = Bench(config, devices)
    if files.exists(bench.folder):
        rule = f"`output_dir` must have no `runs` but those of its {DATA}."
        earlier = files.exists(files.join(config.output_dir, DATA))
        require(earlier, rule, output_dir=config.output_dir)
        files.remove_folder(bench.folder)
    facts = machine(bench)
    rows = {name: Row(name, expected) for name, (expected, _) in checks.items()}
    write(config.output_dir, facts, rows.values())
    for name, (_, function) in checks.items():
        rows[name] = row = tried(rows[name], function, bench)
        print(f"{name}: {row.verdict}: {row.got}", flush=True)
        write(config.output_dir, facts, rows.values())
    return list(rows.values())
