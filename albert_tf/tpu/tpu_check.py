"""The command that compiles a pretraining step for a TPU, without a TPU.

With `step_file`, the command writes the step to a file instead.
"""

import dataclasses

from albert_tf.base import program
from albert_tf.base.console import counted
from albert_tf.base.errors import require
from albert_tf.base.settings import (
    ACTIONS,
    Validated,
    field_of,
    flagfile,
    setting,
    variant,
)
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.records.metadata import WORDS, read_metadata
from albert_tf.model.config import AlbertConfig
from albert_tf.model.ops import CompiledForTpu
from albert_tf.tpu.chips import Topology, parse
from albert_tf.tpu.compiled_step import Plan, Step, largest, write_step
from albert_tf.tpu.compiler import GIB, Compiled, require_versions
from albert_tf.training.distribution import DistributionConfig, with_dtype
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.phases import batch_in_tokens, folders
from albert_tf.training.pretraining import run_setup
from albert_tf.training.pretraining.pretrain import start
from albert_tf.training.pretraining.run_setup import PretrainingConfig
from albert_tf.training.training_config import TrainingConfig


@dataclasses.dataclass(frozen=True)
class TpuCheckConfig(Validated):
    """The settings of the check, in addition to the settings of the run."""

    help_group = ACTIONS

    topology: str = setting(
        "v5e-8",
        "TPU slice of generation v2 to v6e, such as v5e-8, v5litepod-8 or "
        "v5e:2x4.",
    )
    max_seq_length: int | None = variant(
        field_of(PairsConfig, "max_seq_length"),
        None,
        group=ACTIONS,
        means="the length of the records in data_dir, or the model's maximum",
    )
    max_predictions_per_seq: int | None = variant(
        field_of(MaskingConfig, "max_predictions_per_seq"),
        means="the number in the records, or 15% of the tokens",
        group=ACTIONS,
    )
    find_largest_batch: bool = setting(
        False,
        "Also find the largest micro-batch per replica that fits in memory.",
    )
    step_file: str | None = setting(
        None,
        "Write the step and its initial weights to this zip file instead of "
        "compiling; `python -m albert_tf.run_step` trains from the file under "
        "JAX.",
    )


# All settings of the program; `data_dir` and `output_dir` are optional.
SETTINGS = (
    *(TpuCheckConfig, PretrainingConfig, OptimizerConfig),
    *(TrainingConfig, DistributionConfig),
)
OPTIONAL = ("data_dir", "output_dir")


def lengths(
    check: TpuCheckConfig, data_dir: str | None, config: AlbertConfig
) -> tuple[int, int]:
    """Return the numbers of tokens and predictions per sequence."""
    tokens, predictions = check.max_seq_length, check.max_predictions_per_seq
    if data_dir:
        metadata = read_metadata(data_dir)
        rule = "`data_dir` must contain records made with --task=words."
        require(metadata.task == WORDS, rule, data_dir=data_dir)
        tokens = tokens or metadata.max_seq_length
        predictions = predictions or metadata.max_predictions_per_seq
    longest = config.max_position_embeddings
    tokens = tokens or longest
    predictions = predictions or max(1, round(0.15 * tokens))
    require(
        predictions <= tokens <= longest,
        "`max_seq_length` must be at most `max_position_embeddings`, and "
        "`max_predictions_per_seq` at most `max_seq_length`.",
        max_seq_length=tokens,
        max_predictions_per_seq=predictions,
        max_position_embeddings=longest,
    )
    return tokens, predictions


def make_plan(
    check: TpuCheckConfig,
    run: PretrainingConfig,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
) -> Plan:
    """Return the plan for the last phase of the run described by settings."""
    config = AlbertConfig.from_json_file(run.albert_config_file)
    read = folders(run.data_dir or "")
    first, last = read[0], read[-1]
    tokens, predictions = lengths(check, last, config)
    first_tokens = lengths(check, first, config)[0]
    if first != last:
        unit = parse(check.topology).replicas
        unit *= training.gradient_accumulation_steps
        batch = batch_in_tokens(
            training.train_batch_size,
            first_tokens,
            tokens,
            unit,
        )
        training = dataclasses.replace(training, train_batch_size=batch)
    training = with_dtype(training, CompiledForTpu())
    return Plan(config, run.compat, optimizer, training, tokens, predictions)


def gib(number: int) -> str:
    """Format a number of bytes in GiB."""
    return f"{number / GIB:.2f} GiB"


def plan_lines(plan: Plan, topology: Topology) -> list[str]:
    """Return the lines that describe the step to compile."""
    t, bodies = plan.training, len(plan.config.shared_layers())
    replicas = counted(topology.replicas, "replica")
    loop = plan.loop.form
    if loop == "while":
        loop += f", {counted(bodies, 'compiled layer')} for "
        loop += f"{plan.config.num_hidden_layers} layers"
    return [
        f"{topology} ({topology.accelerator_type}): "
        f"{counted(topology.chips, 'chip')}, {replicas}",
        f"batch {t.train_batch_size} = {replicas} x "
        f"{counted(t.gradient_accumulation_steps, 'accumulation step')} x "
        f"{counted(plan.micro_batch(topology.replicas), 'example')} of "
        f"{plan.tokens} tokens, {plan.predictions} predictions, {t.dtype}",
        f"encoder loop: {loop}, "
        f"{'layers' if plan.loop.rematerialize else 'nothing'} rematerialized",
    ]


def compiled_lines(
    compiled: Compiled, memory: int, topology: Topology
) -> list[str]:
    """Return the lines that report whether the step compiles and fits.

    Args:
      compiled: the compiled step.
      memory: bytes that a replica may use.
      topology: the slice.
    """
    name, needed = topology.generation, compiled.needed
    source = f"according to the TPU compiler ({compiled.seconds:.0f} s)"
    if not compiled.fits:
        amount = "more than" if needed is None else f"{gib(needed)} of"
        return [
            f"does not fit on {name}: needs {amount} {gib(memory)}, {source}"
        ]
    parts = ", ".join(f"{k} {gib(n)}" for k, n in compiled.parts.items())
    return [
        f"compiles for {name} and fits, {source}",
        f"peak memory of a replica: {gib(needed)} of {gib(memory)}, "
        f"{gib(memory - needed)} left ({parts})",
    ]


def compile_and_report(config: TpuCheckConfig, plan: Plan) -> None:
    """Compile the step and print the results."""
    topology = parse(config.topology)
    require_versions("tpu-check")
    print(*plan_lines(plan, topology), sep="\n")
    step = Step(plan, topology)
    memory = step.compiler.memory()
    micro_batch = plan.micro_batch(topology.replicas)
    compiled = step.compile(micro_batch)
    print(*compiled_lines(compiled, memory, topology), sep="\n")
    if config.find_largest_batch:
        find_largest(step, {micro_batch: compiled}, memory)


def find_largest(step: Step, tried: dict[int, Compiled], memory: int) -> None:
    """Find and print the largest micro-batch that fits in memory."""

    def compile_size(size: int) -> Compiled:
        compiled = step.compile(size)
        result = compiled_lines(compiled, memory, step.topology)[0]
        print(f"micro-batch of {size}: {result}")
        return compiled

    largest_size = largest(compile_size, tried, memory)
    print(f"largest micro-batch per replica that fits: {largest_size}")


def write_step_file(config: TpuCheckConfig, step: Step, run, *configs) -> None:
    """Write the step file of a run, including the run's initial state."""
    names = "budget_hours", "depth_schedule", "mask_schedule"
    changing = {n: getattr(run, n) for n in names if getattr(run, n)}
    rule = "A step file contains a single step, for a fixed number of steps; "
    rule += "omit the budget and the schedules, or write a file for each phase."
    require(not changing, rule, **changing)
    if run.data_dir:
        architecture, strategy = step.plan.config, step.trainer.strategy
        records = run_setup.read(run.data_dir, architecture, True)
        vocabulary = run_setup.check_start(run, architecture, records)
        setup = run_setup.Setup(
            run, *configs, architecture, records, vocabulary, strategy
        )
        start(setup, step.trainer)
    else:
        require(
            not run.init_checkpoint and run.initial_weights == "random",
            "`step_file` needs `data_dir` unless the initial weights are "
            "random.",
            init_checkpoint=run.init_checkpoint,
            initial_weights=run.initial_weights,
        )
    lines = flagfile(run, *configs).splitlines(keepends=True)
    excluded = tuple(f"--{name}=" for name in OPTIONAL)
    lines = [line for line in lines if not line.startswith(excluded)]
    write_step(config.step_file, step, "".join(lines))


@program.command(*SETTINGS, optional=OPTIONAL)
def tpu_check(config, run, optimizer, training, devices) -> None:
    """Compile a pretraining step for a TPU, or write the step to a file."""
    plan = make_plan(config, run, optimizer, training)
    if config.step_file:
        step = Step(plan, parse(config.topology))
        write_step_file(config, step, run, optimizer, training, devices)
    else:
        compile_and_report(config, plan)


cli = tpu_check.program.cli
