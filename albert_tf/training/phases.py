"""Phases: parts of a run that differ in data, masks or depth.

A schedule has the form `VALUE:SHARE,VALUE:SHARE,VALUE`. Each value applies to
its share of the run's steps or, with a budget, of the run's time; the last
value applies to the rest of the run. The boundaries of all schedules together
divide a run into phases.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from albert_tf.base.console import counted, format_table
from albert_tf.base.errors import require
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records.metadata import LABELS, TRAIN, Metadata
from albert_tf.model.config import AlbertConfig, training_flops

# A pattern for the end of a value in a schedule. A value may contain commas, as
# in a list of globs, or colons, as in gs://.
_SHARE = re.compile(r":([0-9.]+),")
_LAST_SHARE = re.compile(r":[0-9.]+$")


class Scheduled(NamedTuple):
    """A value of a schedule, and the fraction of the run at which it ends."""

    value: Any
    until: float


Schedule = tuple[Scheduled, ...]


def read_schedule(name: str, text: str, convert: Callable = str) -> Schedule:
    """Return a schedule, parsed from the text of its setting.

    Args:
      name: the setting, for error messages.
      text: `VALUE:SHARE,VALUE:SHARE,VALUE`, or a single value.
      convert: a function that converts the text of a value; a `ValueError` is
        reported to the user.
    """
    *pairs, last = _SHARE.split(text)
    try:
        shares = [float(share) for share in pairs[1::2]]
        values = [convert(value) for value in (*pairs[::2], last)]
        valid = min(shares, default=1) > 0 and sum(shares) < 1
        valid &= not (pairs and _LAST_SHARE.search(last))
    except ValueError:
        valid = False
    require(
        valid,
        f"`{name}` must be a value, or VALUE:SHARE,VALUE:SHARE,VALUE, with "
        "shares of the run that add up to less than 1; the last value applies "
        "to the rest.",
        **{name: text},
    )
    ends = [sum(shares[: i + 1]) for i in range(len(shares))]
    return tuple(map(Scheduled, values, (*ends, 1.0)))


def folders(data_dir: str) -> list[str]:
    """Return the folders in `data_dir`, in the order of the run."""
    return [folder for folder, _ in read_schedule("data_dir", data_dir)]


@dataclasses.dataclass(frozen=True)
class Schedules:
    """The schedules of a run.

    Attributes:
      data_dir: folders or globs of records.
      layers: number of layers to run.
      masked_lm_prob: the rate of dynamic masks; None means the records' own
        rate.
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
    """Parse a run's schedules; check the scheduled depths against `config`."""
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
    """Raise an error if a depth schedule does not suit the architecture.

    The layers of a group must share all their weights, and every phase must run
    layers of each group; otherwise, some weights would not be trained at first.
    The last phase must run all layers.

    Args:
      text: the value of `depth_schedule`, for error messages.
      depths: the parsed schedule.
      config: the architecture.
    """
    max_depth, min_depth = config.num_hidden_layers, config.num_hidden_groups
    require(
        config.sharing == "all",
        "`depth_schedule` needs layers that share all their weights; "
        "otherwise, some weights would not be trained at first.",
        depth_schedule=text,
        sharing=config.sharing,
    )
    require(
        depths[-1].value == max_depth
        and all(min_depth <= depth <= max_depth for depth, _ in depths),
        "`depth_schedule` must end with `num_hidden_layers` of the model, "
        f"{max_depth}, and never exceed it or fall below `num_hidden_groups`, "
        f"{min_depth}.",
        depth_schedule=text,
    )


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run in which data, masks and depth stay the same.

    Attributes:
      begin: the schedule position at which the phase begins; see `clock.py`.
      end: the schedule position at which the phase ends.
      batch_size: examples per step, over all replicas.
      data_dir: the folder of the phase's records; empty if the run's `batches`
        are not read from a folder of records.
      metadata: the records' metadata, as read in this phase.
      layers: number of layers to run; None means all.
      masked_lm_prob: the scheduled mask rate; None means the records' own rate.
    """

    begin: int
    end: int
    batch_size: int
    data_dir: str = ""
    metadata: Metadata | None = None
    layers: int | None = None
    masked_lm_prob: float | None = None

    @property
    def records(self) -> str:
        """The fingerprint of the records, which may move during a run."""
        return self.metadata.fingerprint() if self.metadata else ""

    @property
    def shape(self) -> tuple:
        """The sizes of a step; phases with equal sizes share a compilation."""
        records = self.metadata
        lengths = records and (
            records.max_seq_length,
            records.max_predictions_per_seq,
        )
        return self.batch_size, self.layers, lengths

    def reader(self, batches: Callable) -> Callable:
        """Return `batches`, bound to this phase's folder if it has one.

        Args:
          batches: a function that creates batches; its first arguments are
            `data_dir` and `metadata`.
        """
        if self.metadata is None:
            return batches
        return functools.partial(batches, self.data_dir, self.metadata)

    @property
    def masks(self) -> str:
        """The scheduled mask rate as text, or "" for the records' own rate."""
        rate = self.masked_lm_prob
        return "" if rate is None else f"{rate:g}"

    def summary(self) -> str:
        """Return a line that describes the phase's steps."""
        masks = f", masks {self.masks}" if self.masks else ""
        return (
            f"batches of {self.batch_size} x {self.metadata.max_seq_length} "
            f"tokens from {self.data_dir}, {counted(self.layers, 'layer')}"
            f"{masks}"
        )


def phase_at(phases: Sequence[Phase], position: float) -> Phase:
    """Return the phase at a schedule position; past the end, the last phase."""
    return next((p for p in phases if position < p.end), phases[-1])


def examples_read(phases: Sequence[Phase], steps: int) -> dict[str, int]:
    """Return {`Phase.records`: examples read} after the first `steps` steps."""
    read = dict.fromkeys((phase.records for phase in phases), 0)
    for phase in phases:
        last = steps if phase is phases[-1] else min(steps, phase.end)
        phase_steps = max(last - phase.begin, 0)
        read[phase.records] += phase_steps * phase.batch_size
    return read


def batch_in_tokens(size: int, tokens: int, new_tokens: int, unit: int) -> int:
    """Return the size of a batch of longer or shorter examples.

    The batch has about as many tokens as before.

    Args:
      size: number of examples in a batch.
      tokens: length of these examples.
      new_tokens: the new length of examples.
      unit: a divisor of the result.
    """
    return max(1, round(size * tokens / new_tokens / unit)) * unit


def last_steps(name: str, schedule: Schedule, steps: int) -> list[int]:
    """Return the step at which each value of a schedule ends."""
    ends = [round(until * steps) for _, until in schedule]
    require(
        all(a < b for a, b in zip([0, *ends], ends, strict=False)),
        f"Each value in the schedule of `{name}` must have at least one step.",
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
    """Return the phases of a run.

    Batches have about the same number of tokens in all phases. If a folder
    occurs again, reading continues after the last example read.

    Args:
      schedules: the schedules of data, depth and masks.
      records: the metadata of each folder.
      num_train_steps: number of steps in the whole run.
      batch_size: examples per step with the first folder.
      unit: a common divisor of all batch sizes.
    """
    timelines = {
        name: (schedule, last_steps(name, schedule, num_train_steps))
        for name, schedule in vars(schedules).items()
    }
    first_length = records[schedules.data_dir[0].value].max_seq_length
    phases: list[Phase] = []
    for last in sorted({end for _, ends in timelines.values() for end in ends}):
        first = phases[-1].end if phases else 0
        values = {
            name: next(
                x.value for x, end in zip(*timeline, strict=True) if last <= end
            )
            for name, timeline in timelines.items()
        }
        metadata, rate = records[values["data_dir"]], values["masked_lm_prob"]
        if rate is not None:
            metadata = metadata.masked_at(rate)
        size = batch_in_tokens(
            batch_size, first_length, metadata.max_seq_length, unit
        )
        phases.append(Phase(first, last, size, metadata=metadata, **values))
    return tuple(phases)


def check_mask_schedule(text: str, records: Mapping[str, Metadata]) -> None:
    """Raise an error for a mask schedule if records are already masked."""
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
    """Return the FLOPs of one step in a phase."""
    return phase.batch_size * training_flops(
        config.with_layers(phase.layers),
        phase.metadata.max_seq_length,
        phase.metadata.max_predictions_per_seq,
        phase.metadata.statistics.get(LABELS, 0),
    )


def mean_work(phases: Sequence[Phase], config: AlbertConfig) -> float:
    """Return the mean FLOPs per example over all examples of a run.

    A phase's share of the schedule is assumed to be its share of the training
    time.
    """
    examples_per_flop = 0.0
    for phase in phases:
        share = (phase.end - phase.begin) / phases[-1].end
        examples_per_flop += share * phase.batch_size / step_work(phase, config)
    return 1.0 / examples_per_flop


def description(phases: Sequence[Phase]) -> str:
    """Return a description that reveals whether a resumed run's phases changed.

    The description omits the records and the last step of the run.
    """
    parts = []
    for phase in phases:
        masks = f", masks {phase.masks}" if phase.masks else ""
        end = "the end" if phase is phases[-1] else f"step {phase.end}"
        parts.append(
            f"to {end}: {counted(phase.layers, 'layer')}, "
            f"batches of {phase.batch_size}{masks}"
        )
    return f"({'; '.join(parts)})"


COLUMNS = ("steps", "layers", "batch", "tokens", "predicted", "masks", "data")


def row(phase: Phase) -> tuple[str, ...]:
    """Return the row of a phase in a table with the columns `COLUMNS`."""
    metadata = phase.metadata
    return (
        f"{phase.begin:,} to {phase.end:,}",
        str(phase.layers),
        f"{phase.batch_size:,}",
        f"{metadata.max_seq_length:,}",
        str(metadata.max_predictions_per_seq),
        phase.masks,
        phase.data_dir,
    )


def table_of(phases: Sequence[Phase]) -> str:
    """Format the phases as a table."""
    return "\n".join(format_table([COLUMNS, *map(row, phases)]))
