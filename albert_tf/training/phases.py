"""Phases: stretches of a run between which its data, masks or depth change.

A schedule is written `VALUE:SHARE,VALUE:SHARE,VALUE`, with shares of the
run's steps, of which the last value takes the rest. The borders of all
schedules together cut a run into phases.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from albert_tf.base.console import table
from albert_tf.base.errors import require
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records.metadata import TRAIN, Metadata
from albert_tf.model.config import AlbertConfig, training_flops

# Where a value of a schedule ends. Values may have commas themselves, as
# lists of globs do, and colons, as gs:// does.
_SHARE = re.compile(r":([0-9.]+),")
_LAST_SHARE = re.compile(r":[0-9.]+$")


class Scheduled(NamedTuple):
    """A value of a schedule, and the share of the run that is then over."""

    value: Any
    until: float


Schedule = tuple[Scheduled, ...]


def read_schedule(name: str, text: str, convert: Callable = str) -> Schedule:
    """Read a schedule.

    Args:
      name: of the setting, for error messages.
      text: `VALUE:SHARE,VALUE:SHARE,VALUE`, or one value alone.
      convert: makes a value of its text; a `ValueError` is a user's mistake.
    """
    *pairs, last = _SHARE.split(text)
    try:
        shares = [float(share) for share in pairs[1::2]]
        values = [convert(value) for value in (*pairs[::2], last)]
        legal = min(shares, default=1) > 0 and sum(shares) < 1
        legal &= not (pairs and _LAST_SHARE.search(last))
    except ValueError:
        legal = False
    require(
        legal,
        f"`{name}` must be a value, or VALUE:SHARE,VALUE:SHARE,VALUE, with "
        "shares of the run that are together below 1; the last value takes "
        "the rest.",
        **{name: text},
    )
    ends = [sum(shares[: i + 1]) for i in range(len(shares))]
    return tuple(map(Scheduled, values, (*ends, 1.0)))


def folders(data_dir: str) -> list[str]:
    """Return what `data_dir` names, in the order of the run."""
    return [folder for folder, _ in read_schedule("data_dir", data_dir)]


@dataclasses.dataclass(frozen=True)
class Schedules:
    """What a run is asked to change on its way.

    Attributes:
      data_dir: folders, or globs, of records.
      layers: how many layers run.
      masked_lm_prob: the rate of dynamic masks; None is that of the records.
    """

    data_dir: Schedule
    layers: Schedule
    masked_lm_prob: Schedule = (Scheduled(None, 1.0),)


def read_schedules(
    data_dir: str,
    depth_schedule: str | None,
    mask_schedule: str | None,
    config: AlbertConfig,
) -> Schedules:
    """Return the schedules of three settings, the depth fit for a config."""
    depth = depth_schedule or str(config.num_hidden_layers)
    schedules = {
        "data_dir": read_schedule("data_dir", data_dir),
        "layers": read_schedule("depth_schedule", depth, int),
    }
    if depth_schedule:
        check_depths(depth_schedule, schedules["layers"], config)
    if mask_schedule:
        rates = read_schedule("mask_schedule", mask_schedule, float)
        schedules["masked_lm_prob"] = rates
    return Schedules(**schedules)


def check_depths(text: str, depths: Schedule, config: AlbertConfig) -> None:
    """Refuse depths at which some weights would not be trained."""
    most, least = config.num_hidden_layers, config.num_hidden_groups
    require(
        config.sharing == "all",
        "`depth_schedule` needs layers that share all their weights, for "
        "others would stand still.",
        depth_schedule=text,
        sharing=config.sharing,
    )
    require(
        depths[-1].value == most
        and all(least <= depth <= most for depth, _ in depths),
        "`depth_schedule` must end with `num_hidden_layers` of the model, "
        f"{most}, and never have more, nor less than `num_hidden_groups`, "
        f"{least}.",
        depth_schedule=text,
    )


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run over which nothing changes.

    Attributes:
      begin: the place where it begins, see `clock`.
      end: the place where it ends.
      batch_size: examples per step, over all replicas.
      data_dir: its records; empty where they are not the run's to choose.
      metadata: of the records, as they are read in this phase.
      layers: how many run; None is all.
      masked_lm_prob: a scheduled rate; None is that of the records.
    """

    begin: int
    end: int
    batch_size: int
    data_dir: str = ""
    metadata: Metadata | None = None
    layers: int | None = None
    masked_lm_prob: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens of a step, padding included."""
        return self.batch_size * self.metadata.max_seq_length

    @property
    def shape(self) -> tuple:
        """The sizes of a step; phases of equal ones compile once."""
        records = self.metadata
        lengths = records and (
            records.max_seq_length,
            records.max_predictions_per_seq,
        )
        return self.batch_size, self.layers, lengths

    def reader(self, batches: Callable) -> Callable:
        """Return what makes batches of the records, if there are any.

        Args:
          batches: takes them before other things: `data_dir`, `metadata`.
        """
        if self.metadata is None:
            return batches
        return functools.partial(batches, self.data_dir, self.metadata)

    def summary(self) -> str:
        """Say what the steps do."""
        rate = self.masked_lm_prob
        masks = "" if rate is None else f", masks {rate:g}"
        return (
            f"batches of {self.batch_size} x {self.metadata.max_seq_length} "
            f"tokens of {self.data_dir}, {self.layers} layers{masks}"
        )


def at(phases: Sequence[Phase], place: float) -> Phase:
    """Return the phase of a place; the last one has no end."""
    return next((p for p in phases if place < p.end), phases[-1])


def examples_read(phases: Sequence[Phase], steps: int) -> dict[str, int]:
    """Return {folder: examples read} by a run of steps that was not changed."""
    read = dict.fromkeys((phase.data_dir for phase in phases), 0)
    for phase in phases:
        last = steps if phase is phases[-1] else min(steps, phase.end)
        made = max(last - phase.begin, 0)
        read[phase.data_dir] += made * phase.batch_size
    return read


def batch_in_tokens(size: int, tokens: int, now: int, unit: int) -> int:
    """Return how many examples of another length have as many tokens.

    Args:
      size: of a batch.
      tokens: of its examples.
      now: of the other examples.
      unit: what the number must be a multiple of.
    """
    return max(1, round(size * tokens / now / unit)) * unit


def last_steps(name: str, schedule: Schedule, steps: int) -> list[int]:
    """Return the step at which each value of a schedule ends."""
    ends = [round(until * steps) for _, until in schedule]
    require(
        all(a < b for a, b in zip([0, *ends], ends, strict=False)),
        f"Every value of the schedule of `{name}` must have a step.",
        num_train_steps=steps,
        shares=", ".join(f"{until:g}" for _, until in schedule),
    )
    return ends


def make_phases(
    schedules: Schedules,
    records: Mapping[str, Metadata],
    num_train_steps: int,
    *,
    batch_size: int,
    unit: int = 1,
) -> tuple[Phase, ...]:
    """Return the phases of a run, which follow from nothing else.

    A batch has as many tokens in all of them. A folder that comes again goes
    on where it was left.

    Args:
      schedules: what changes.
      records: the metadata of each folder.
      num_train_steps: of the whole run.
      batch_size: examples of the first folder in a step.
      unit: what every batch is a multiple of.
    """
    courses = {
        name: (schedule, last_steps(name, schedule, num_train_steps))
        for name, schedule in vars(schedules).items()
    }
    first_length = records[schedules.data_dir[0].value].max_seq_length
    phases: list[Phase] = []
    for last in sorted({end for _, ends in courses.values() for end in ends}):
        first = phases[-1].end if phases else 0
        now = {
            name: next(
                x.value for x, end in zip(*course, strict=True) if last <= end
            )
            for name, course in courses.items()
        }
        metadata, rate = records[now["data_dir"]], now["masked_lm_prob"]
        if rate is not None:
            metadata = metadata.masked_at(rate)
        size = batch_in_tokens(
            batch_size, first_length, metadata.max_seq_length, unit
        )
        phases.append(Phase(first, last, size, metadata=metadata, **now))
    return tuple(phases)


def check_mask_schedule(text: str, records: Mapping[str, Metadata]) -> None:
    """Refuse a schedule of masks that are in the records already."""
    static = [
        folder
        for folder, metadata in records.items()
        if metadata.masking(TRAIN) != DYNAMIC
    ]
    require(
        not static,
        "`mask_schedule` needs records that are masked while they are read: "
        "create_pretraining_data.py --masking=dynamic.",
        mask_schedule=text,
        data_dir=f"{', '.join(static)} with masks",
    )


def step_work(phase: Phase, config: AlbertConfig) -> float:
    """Return the FLOPs of a step of a phase."""
    return phase.batch_size * training_flops(
        config.with_layers(phase.layers),
        phase.metadata.max_seq_length,
        phase.metadata.max_predictions_per_seq,
    )


def facts(phases: Sequence[Phase]) -> list[list]:
    """Return what tells the phases of one run from those of another."""
    return [[p.end, p.batch_size, p.layers, p.masked_lm_prob] for p in phases]


COLUMNS = "steps layers batch tokens predicted masks data".split()


def row(phase: Phase) -> tuple[str, ...]:
    """Return a phase as a row below `COLUMNS`."""
    metadata, rate = phase.metadata, phase.masked_lm_prob
    return (
        f"{phase.begin:,} to {phase.end:,}",
        str(phase.layers),
        f"{phase.batch_size:,}",
        f"{metadata.max_seq_length:,}",
        str(metadata.max_predictions_per_seq),
        "" if rate is None else f"{rate:g}",
        phase.data_dir,
    )


def mean_work(phases: Sequence[Phase], config: AlbertConfig) -> float:
    """Return the mean FLOPs of an example, where shares are of the time."""
    each = 0.0
    for phase in phases:
        share = (phase.end - phase.begin) / phases[-1].end
        each += share * phase.batch_size / step_work(phase, config)
    return 1.0 / each


def table_of(phases: Sequence[Phase]) -> str:
    """Return the phases for a reader."""
    heads = tuple(name.replace("_", " ") for name in COLUMNS)
    return "\n".join(table([heads, *map(row, phases)]))
