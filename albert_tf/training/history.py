"""The history of a run: metrics in a file, as curves and in TensorBoard."""

import dataclasses
import json
from collections.abc import Sequence

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import near, require
from albert_tf.base.packages import is_installed
from albert_tf.training import checkpoint_files

HISTORY_FILE = "history.jsonl"
CURVES_FILE = "curves.png"
# Patterns for the files that a training run writes. Other files may match too.
RUN_FILES = (*(HISTORY_FILE, CURVES_FILE, "task.json"), *checkpoint_files.FILES)
HEALTH = "health"  # the split of rows that have a `kind` and a `note`
SPLITS = ("train", "eval", HEALTH)
RESUMED = "resumed"  # the kind of notes on settings that changed


def read_row(line: str, where: str) -> dict:
    """Parse a row of a history; raise an error if the row is damaged.

    Args:
      line: the text of the row.
      where: PATH:LINE, for the error message.
    """
    try:
        row = files.json_value(line)
        legal = isinstance(row["step"], int) and isinstance(row["split"], str)
    except (ValueError, TypeError, LookupError):
        legal = False
    rule = f"{where}: the history is damaged; remove this line."
    require(legal, rule, line=repr(line[:60]))
    return row


def means_of(names: Sequence[str], report: np.ndarray) -> dict[str, float]:
    """Convert a report to means, with the total `loss` first.

    A mean is 0 if its weight is 0.

    Args:
      names: the columns of the report; names of losses end with `_loss`.
      report: [2, names], sums and their weights.
    """
    sums, weights = report
    with np.errstate(invalid="ignore"):
        means = np.where(weights > 0, sums / np.maximum(weights, 1e-9), 0)
    values = dict(zip(names, means.tolist(), strict=True))
    losses = (v for name, v in values.items() if name.endswith("_loss"))
    return {"loss": sum(losses), **values}


class History:
    """The history of a run: rows {"step", "split", metric: value}.

    A row of the split "train" also has the column "steps": its losses and
    metrics are means over this number of steps.

    Args:
      directory: the model directory.
      step: the step from which the run resumes; rows of later steps are
        dropped, because these steps will run again. 0 means an empty history.
    """

    def __init__(self, directory: str, step: int = 0):
        self.path = files.join(directory, HISTORY_FILE)
        self.rows: list[dict] = []
        if step and files.exists(self.path):
            earlier = History.read(directory).rows
            self.rows = [row for row in earlier if row["step"] <= step]

    @classmethod
    def read(cls, directory: str) -> "History":
        """Return the whole history of a model directory."""
        history = cls(directory)
        text = files.read_text(history.path, "The history")
        # A crash may have cut off the last line.
        lines = text.split("\n")[:-1]
        history.rows = [
            read_row(line, f"{history.path}:{number}")
            for number, line in enumerate(lines, 1)
        ]
        return history

    def add(self, step: int, split: str, values: dict) -> None:
        """Append a row; `split` is "train", "eval" or `HEALTH`."""
        self.rows.append({"step": step, "split": split, **values})

    def resume(self, step: int, changes: Sequence[str]) -> None:
        """Add a note for each setting that changes at the step of a resume.

        Notes of an earlier process that resumed at the same step are dropped,
        because its steps were not saved.
        """
        dropped = {"step": step, "kind": RESUMED}.items()
        self.rows = [r for r in self.rows if not dropped <= r.items()]
        for note in changes:
            self.add(step, HEALTH, {"kind": RESUMED, "note": note})

    def save(self) -> None:
        """Write all rows, one JSON object per line."""
        lines = [json.dumps(row) + "\n" for row in self.rows]
        files.write_text(self.path, "".join(lines))

    def last(self, split: str) -> dict[str, float]:
        """Return the values of a split's last row, or {} if there is none."""
        rows = [row for row in self.rows if row["split"] == split]
        values = rows[-1] if rows else {}
        return {k: v for k, v in values.items() if k not in ("step", "split")}

    def curve(self, split: str, name: str) -> tuple[list, list]:
        """Return `column`, or two empty lists if there is no such metric."""
        rows = [r for r in self.rows if r["split"] == split and name in r]
        return [r["step"] for r in rows], [r[name] for r in rows]

    def column(self, split: str, name: str) -> tuple[list, list]:
        """Return the steps and the values of one metric in a split.

        Raises:
          InputError: if rows of the split exist, but none has this metric.
        """
        rule = f"`split` must be {', '.join(SPLITS)}."
        require(split in SPLITS, rule, split=split)
        rows = [row for row in self.rows if row["split"] == split]
        names = dict.fromkeys(n for row in rows for n in row if n != "split")
        rule = f"`name` must be among {', '.join(names)}{near(name, names)}"
        require(not rows or name in names, rule, name=name)
        return self.curve(split, name)


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
      output_dir: the model directory, or the folder of the results. `history`
        reads it later, so the path is absolute.
      metrics: {split: {name: value}} of the last evaluation.
    """

    output_dir: str
    metrics: dict[str, dict[str, float]]

    @property
    def history(self) -> History | None:
        """The training history, or None if nothing was trained.

        The history is also None after a run with several seeds: each seed has a
        history in its folder `seed_N`.
        """
        if files.exists(files.join(self.output_dir, HISTORY_FILE)):
            return History.read(self.output_dir)
        return None


def draw_curves(history: History, directory: str, names: tuple) -> None:
    """Plot each metric's training and evaluation curves in `curves.png`.

    Without matplotlib, nothing is drawn.
    """
    if not is_installed("matplotlib"):
        return
    from matplotlib.figure import Figure

    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, name in zip(axes, names, strict=False):
        axis.plot(*history.curve("train", name), lw=1, label="train")
        axis.plot(*history.curve("eval", name), "o-", ms=3, label="eval")
        axis.set(title=name, xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend()
    for axis in list(figure.axes)[len(names) :]:
        axis.set_visible(False)
    path = files.join(directory, CURVES_FILE)
    with files.atomic_path(path) as temporary:
        with files.opened(temporary, "wb") as file:
            figure.savefig(file, format="png", dpi=110)


class Scalars:
    """TensorBoard scalars of a run, with a folder for each split.

    Scalars are buffered until `flush`, because in remote storage (`gs://`),
    every write uploads the whole file again. This class writes the same events
    as `tf.summary.scalar`, which would need TensorBoard. Only `flush` imports
    TensorFlow, because some runs do not need TensorFlow.
    """

    def __init__(self, directory: str):
        self.directory = directory
        self.writers: dict = {}
        self.waiting: dict[str, list] = {}

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """Buffer the scalars of a split at a step."""
        self.waiting.setdefault(split, []).append((step, values))

    def flush(self) -> None:
        """Write the buffered scalars."""
        import tensorflow as tf
        from tensorflow.core.framework import summary_pb2

        metadata = summary_pb2.SummaryMetadata()
        metadata.plugin_data.plugin_name = "scalars"
        for split, rows in self.waiting.items():
            if split not in self.writers:
                folder = files.join(self.directory, "tensorboard", split)
                self.writers[split] = tf.summary.create_file_writer(folder)
            with self.writers[split].as_default():  # flushes on exit
                for step, values in rows:
                    for name, value in values.items():
                        number = tf.cast(value, tf.float32)
                        tf.summary.write(name, number, step, metadata)
        self.waiting = {}
