"""Write a run's curves, settings and health notes as one HTML page.

    python -m albert_tf.report MODEL_DIR [--output=FILE]

The page needs no network and no other file: its curves are inline SVG. It is
written to `report.html` in the model directory unless told otherwise.
"""

import argparse
import html
import json
import sys

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.base.settings import FLAG_FILE
from albert_tf.model.config import CONFIG_FILE
from albert_tf.training.history import HEALTH, HISTORY_FILE, History
from albert_tf.training.report_chart import chart

REPORT_FILE = "report.html"

# Panels in their order: metrics drawn together, and how they are scaled.
PANELS = (
    ("Loss", ("loss",), {}),
    ("Masked-LM loss", ("mlm_loss",), {}),
    ("Sentence-order loss", ("sop_loss",), {}),
    ("Masked-LM accuracy", ("mlm_accuracy",), {}),
    ("Sentence-order accuracy", ("sop_accuracy",), {"level": 0.5}),
    ("Learning rate", ("learning_rate",), {"zero": True}),
    ("Norm of the gradient", ("gradient_norm",), {"log": True}),
    (
        "LAMB's trust ratio",
        ("trust_ratio_min", "trust_ratio_median", "trust_ratio_max"),
        {"log": True},
    ),
    ("Tokens per second", ("tokens_per_second",), {"zero": True}),
    ("Model FLOPs utilisation", ("model_flops_utilization",), {"zero": True}),
    ("Skipped updates", ("skipped_updates",), {"zero": True}),
)
# Measured, and shown nowhere: they follow from what is.
HIDDEN = ("steps", "examples_per_second", "hours_left")

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6b7e;
  --line: #d9dfe7; --card: #ffffff; --page: #f4f6f9; --train: #2f6fde;
  --eval: #d9562b; --third: #2f9e62; --warn: #fff4dc; --edge: #e0a52c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf2; --soft: #9aa8ba;
  --line: #364152; --card: #1d2530; --page: #131920; --train: #7aa7ff;
  --eval: #ff9366; --third: #6fd09d; --warn: #3a3118; --edge: #b98a25; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 24px 60px; max-width: 1240px;
  font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--page); }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 10px; }
p.lead { color: var(--soft); margin: 2px 0 18px; }
.facts { display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.fact, figure, .box { background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
.fact { padding: 10px 14px; }
.fact b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.fact span { color: var(--soft); font-size: 13px; }
.charts { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fill, minmax(360px, 1fr)); }
figure { margin: 0; padding: 10px 12px 6px; }
figcaption { display: flex; flex-wrap: wrap; gap: 0 14px; }
figcaption b { flex-basis: 100%; }
figcaption span { color: var(--soft); font-size: 13px; }
figcaption i { display: inline-block; width: 14px; height: 3px;
  margin-right: 5px; vertical-align: 4px; border-radius: 2px; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
.box { padding: 6px 14px; overflow-x: auto; }
.notes { margin: 0; padding: 0; list-style: none; display: grid; gap: 8px; }
.notes li { background: var(--warn); border-left: 4px solid var(--edge);
  padding: 8px 14px; border-radius: 4px; }
.good { color: var(--soft); }
.tables { display: grid; gap: 14px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(360px, 1fr)); }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
td { padding: 3px 8px 3px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
td:first-child { color: var(--soft); white-space: nowrap; }
"""


def number(value: object) -> str:
    """Return a value as a person reads it."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(number, value))
    return str(value)


def table(title: str, rows: dict) -> str:
    """Return a titled table of names and values; empty without rows."""
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td>{html.escape(str(name))}</td>"
        f"<td>{html.escape(number(value))}</td></tr>"
        for name, value in rows.items()
    )
    return (
        f'<section><h2>{title}</h2><div class="box"><table>{cells}</table>'
        "</div></section>"
    )


def read_flags(model_dir: str) -> dict[str, str]:
    """Return {flag: value} of a run's flagfile; {} without one."""
    path = files.join(model_dir, FLAG_FILE)
    if not files.exists(path):
        return {}
    lines = files.read_text(path, "The flagfile").splitlines()
    pairs = [line.lstrip("-").partition("=") for line in lines if line]
    return {name: value for name, _, value in pairs}


def read_statistics(flags: dict[str, str]) -> dict:
    """Return the statistics of the run's records; {} if they are gone."""
    path = files.join(flags.get("data_dir", ""), "metadata.json")
    if not flags.get("data_dir") or not files.exists(path):
        return {}
    metadata = files.read_json(path, "`metadata.json`")
    top = ("max_seq_length", "max_predictions_per_seq", "vocab_size")
    values = {key: metadata[key] for key in top if key in metadata}
    return values | metadata.get("statistics", {})


def panels(history: History) -> list[tuple[str, tuple[str, ...], dict]]:
    """Return the panels that the history has values for."""
    measured = {
        name
        for row in history.rows
        if row["split"] != HEALTH
        for name in row
        if name not in ("step", "split", *HIDDEN)
    }
    known = [
        (title, tuple(name for name in names if name in measured), options)
        for title, names, options in PANELS
    ]
    shown = {name for _, names, _ in known for name in names}
    others = [(name, (name,), {}) for name in sorted(measured - shown)]
    return [panel for panel in known if panel[1]] + others


def facts(history: History, flags: dict[str, str]) -> dict[str, str]:
    """Return what is shown at the top."""
    train = [row for row in history.rows if row["split"] == "train"]
    evals = [row for row in history.rows if row["split"] == "eval"]
    total = flags.get("num_train_steps")
    last = max(row["step"] for row in history.rows)
    values = {"steps": f"{last:,}" + (f" of {int(total):,}" if total else "")}
    row = (evals or train)[-1]
    where = "held out" if evals else "training"
    for name in ("loss", "mlm_accuracy", "sop_accuracy", "accuracy"):
        if name in row:
            values[f"{name.replace('_', ' ')}, {where}"] = f"{row[name]:.4g}"
    speeds = sorted(r["examples_per_second"] for r in train)
    if speeds:
        median = number(speeds[len(speeds) // 2])
        values["examples per second, median"] = median
    skipped = sum(r.get("skipped_updates", 0) for r in train)
    if skipped:
        values["updates skipped, not finite"] = f"{skipped:.0f}"
    return values


def notes(history: History) -> str:
    """Return the warnings of the run, or that there were none."""
    rows = [row for row in history.rows if row["split"] == HEALTH]
    if not rows:
        return '<p class="good">No warnings.</p>'
    items = "".join(
        f"<li><b>Step {row['step']:,}</b> {html.escape(row['note'])}</li>"
        for row in rows
    )
    return f'<ul class="notes">{items}</ul>'


def page(model_dir: str) -> str:
    """Return the HTML of a model directory's report."""
    if not files.exists(files.join(model_dir, HISTORY_FILE)):
        raise InputError(
            f"`MODEL_DIR` must hold a {HISTORY_FILE}, as a run leaves it at "
            f"its first checkpoint. Received: {model_dir}"
        )
    history, flags = History.read(model_dir), read_flags(model_dir)
    if not history.rows:
        raise InputError(f"The history is empty. Received: {model_dir}")
    path = files.join(model_dir, CONFIG_FILE)
    exists = files.exists(path)
    config = files.read_json(path, "The config") if exists else {}
    cards = "".join(
        f'<div class="fact"><b>{html.escape(value)}</b>'
        f"<span>{html.escape(name)}</span></div>"
        for name, value in facts(history, flags).items()
    )
    charts = "".join(
        chart(title, history, names, **options)
        for title, names, options in panels(history)
    )
    tables = (
        table("Architecture", config)
        + table("Data", read_statistics(flags))
        + table("Flags", flags)
    )
    name = html.escape(model_dir)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Run {name}</title><style>{STYLE}</style></head><body>
<h1>{name}</h1><p class="lead">Report of a training run</p>
<div class="facts">{cards}</div>
<h2>Health</h2>{notes(history)}
<h2>Curves</h2><div class="charts">{charts}</div>
<div class="tables">{tables}</div>
</body></html>
"""


def cli(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m albert_tf.report",
        description="Write a run's curves and settings as one HTML page.",
    )
    parser.add_argument("model_dir", help="the run's model directory")
    parser.add_argument("--output", help="the page, or report.html there")
    given = parser.parse_args(arguments)
    path = given.output or files.join(given.model_dir, REPORT_FILE)
    try:
        files.write_text(path, page(given.model_dir))
    except json.JSONDecodeError as error:
        print(f"error: {HISTORY_FILE} is damaged: {error}", file=sys.stderr)
        return 1
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(cli())
