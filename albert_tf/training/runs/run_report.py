"""The page that shows a run: its curves, settings and health notes."""

import base64
import importlib.resources
import io
import os
from collections.abc import Iterator

import jinja2
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.settings import FLAG_FILE
from albert_tf.data.builder.statistics import TITLES
from albert_tf.model.config import CONFIG_FILE
from albert_tf.training.pretraining.phases import folders
from albert_tf.training.runs.history import HEALTH, HISTORY_FILE, History

# Metrics that come first, in this order; the others follow by their names.
FIRST = """loss mlm_loss sop_loss mlm_accuracy sop_accuracy learning_rate
gradient_norm trust_ratio""".split()
# Measured, and drawn nowhere: they follow from what is, or are no curve.
HIDDEN = {"step", "split", "steps", "examples_per_second", "hours_left"}
LOGARITHMIC = ("gradient_norm", "masked_spread", "trust_ratio")
TOGETHER = ("trust_ratio",)  # the smallest, the median and the largest
CHANCE = {"sop_accuracy": 0.5}
SHAPES = ("max_seq_length", "max_predictions_per_seq", "vocab_size")
MOST_POINTS = 300  # of a curve; more are averaged down
# Text stays text, in the reader's font; the same run gives the same page.
RC = {"svg.fonttype": "none", "svg.hashsalt": "", "font.size": 9}


def number(value: object) -> str:
    """Return a value as a person reads it."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(number, value))
    whole = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if whole else str(value)


def panels(history: History) -> dict[str, list[str]]:
    """Return {title: metrics drawn together}, in the order of the page."""
    rows = (row for row in history.rows if row["split"] != HEALTH)
    titles: dict[str, list[str]] = {}
    for name in sorted({name for row in rows for name in row} - HIDDEN):
        title = next((t for t in TOGETHER if name.startswith(t)), name)
        titles.setdefault(title, []).append(name)
    first = {title: titles.pop(title) for title in FIRST if title in titles}
    return first | titles


def thinned(steps: list, values: list) -> tuple[list, list]:
    """Return at most `MOST_POINTS` points, each the mean of its neighbours."""
    pieces = min(len(steps), MOST_POINTS) or 1
    return (
        [piece[-1] for piece in np.array_split(steps, pieces)],
        [piece.mean() for piece in np.array_split(values, pieces)],
    )


def chart(history: History, title: str, names: list[str]) -> bytes:
    """Return the SVG of some metrics' course, in training and held out."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(4.2, 2.7), layout="constrained")
        axis = figure.subplots()
        for name in names:
            label = name.removeprefix(f"{title}_").replace(title, "")
            for split, style in (("train", "-"), ("eval", "o-")):
                steps, values = history.column(split, name)
                if steps:
                    said = " ".join(filter(None, (split, label)))
                    points = thinned(steps, values)
                    axis.plot(*points, style, ms=3, lw=1.3, label=said)
        if title in CHANCE:
            axis.axhline(CHANCE[title], ls=":", c="grey", label="chance")
        axis.set(title=title.replace("_", " "), xlabel="step")
        axis.set_yscale("log" if title in LOGARITHMIC else "linear")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.xaxis.set_major_formatter(EngFormatter())
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def facts(history: History, total: str | None) -> Iterator[tuple[str, str]]:
    """Yield what is shown at the top: names and values."""
    step = f"{max(row['step'] for row in history.rows):,}"
    yield "steps", f"{step} of {int(total):,}" if total else step
    splits = {row["split"]: row for row in history.rows}
    last = splits.get("eval", splits.get("train", {}))
    where = "held out" if "eval" in splits else "training"
    for name in ("loss", "mlm_accuracy", "sop_accuracy", "accuracy"):
        if name in last:
            yield f"{name.replace('_', ' ')}, {where}", number(last[name])
    speeds = history.column("train", "examples_per_second")[1]
    if speeds:
        yield "examples per second, median", number(float(np.median(speeds)))


def read_flags(model_dir: str) -> dict[str, str]:
    """Return {flag: value} of a run's flagfile; {} without one."""
    path = files.join(model_dir, FLAG_FILE)
    if not files.exists(path):
        return {}
    lines = files.read_text(path, "The flagfile").splitlines()
    pairs = [line.lstrip("-").partition("=") for line in lines if line]
    return {name: value for name, _, value in pairs}


def read_if_there(folder: str, name: str) -> dict:
    """Return a JSON object of a folder, {} if it is gone or was not named."""
    path = files.join(folder, name)
    there = folder and files.exists(path)
    return files.read_json(path, f"`{name}`") if there else {}


def runs_in(folder: str) -> list[str]:
    """Return a run's folder, or those of the runs with several seeds in it."""
    if files.exists(files.join(folder, HISTORY_FILE)):
        return [folder]
    histories = files.matches(f"*/{HISTORY_FILE}", folder)
    return [os.path.dirname(path) for path in histories] or [folder]


def page(model_dir: str) -> str:
    """Return the HTML of a model directory's report."""
    history, flags = History.read(model_dir), read_flags(model_dir)
    rule = f"`model_dir` must hold a {HISTORY_FILE} with rows."
    require(history.rows, rule, model_dir=model_dir)
    last = folders(flags.get("data_dir", ""))[-1]
    metadata = read_if_there(last, "metadata.json")
    data = {name: metadata[name] for name in SHAPES if name in metadata}
    data |= metadata.get("statistics", {})
    groups = {k: data.pop(k) for k in [*data] if isinstance(data[k], dict)}
    template = importlib.resources.files(__package__) / "run_report.html"
    environment = jinja2.Environment(autoescape=True)
    environment.filters["number"] = number
    return environment.from_string(template.read_text("utf-8")).render(
        name=model_dir,
        facts=facts(history, flags.get("num_train_steps")),
        notes=[row for row in history.rows if row["split"] == HEALTH],
        charts={
            title: base64.b64encode(chart(history, title, names)).decode()
            for title, names in panels(history).items()
        },
        tables={
            "Architecture": read_if_there(model_dir, CONFIG_FILE),
            "Data": data,
            **{
                TITLES.get(k, k).capitalize(): rows
                for k, rows in groups.items()
            },
            "Flags": flags,
        },
    )
