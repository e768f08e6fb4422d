"""Pretrain from a step file under JAX, without TensorFlow.

A step file is a zip file written by `tpu_check --step_file`. It contains the
training step and the evaluation of a batch as artifacts of `jax.export`, a
description of their inputs and outputs, and a checkpoint with the initial
values of all variables. This module is independent of the model: it passes
batches and variables to the two programs. `pretrain.py` can resume from the
model directory that this module writes.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import signal
import time
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from albert_tf.base import files, interrupts, program
from albert_tf.base.console import Progress, counted
from albert_tf.base.errors import input_errors, require
from albert_tf.base.processes import in_order
from albert_tf.base.replacing import check_unused
from albert_tf.base.settings import FLAG_FILE, Validated, setting
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records.metadata import (
    EVAL,
    TRAIN,
    WORDS,
    Metadata,
    read_metadata,
)
from albert_tf.data.records.record_stream import RecordStream
from albert_tf.text.tokenizers import tokenizer_in
from albert_tf.tpu import tensor_bundle
from albert_tf.training import checkpoint_files
from albert_tf.training.clock import Pace, next_stop
from albert_tf.training.health import FiniteSteps, require_finite
from albert_tf.training.history import (
    RUN_FILES,
    History,
    RunResult,
    means_of,
)

# Names of files in a step file, in addition to the checkpoint `ckpt-0`.
STEP, EVALUATION, INFO = "step.jax", "evaluation.jax", "step.json"
FIRST = "ckpt-0"
BEST, ITERATIONS = "best", "optimizer/iterations"
READERS, BATCHES_AHEAD = 2, 4
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Arrays = dict[str, np.ndarray]


def jax_for_steps():
    """Import JAX and enable 64-bit types, which the step number needs."""
    rule = "Step files run under JAX: pip install flatbuffers jax (for a GPU, "
    rule += "'jax[cuda13]'; for a TPU, 'jax[tpu]')"
    with input_errors(ImportError, rule):
        import flatbuffers  # noqa: F401, needed to read artifacts
        import jax
        import jax.export
    jax.config.update("jax_enable_x64", True)
    return jax


# Errors raised by Python's libraries for damaged archives.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


class StepFile:
    """A step file, with its two programs as JAX functions.

    Args:
      path: the file.

    Attributes:
      info: the description of the step.
      bundle: the checkpoint with the initial values.
      programs: the serialized training step and evaluation.
      shapes: {name: shape} of the step's arguments, in order.
    """

    def __init__(self, path: str):
        self.jax, self.path = jax_for_steps(), path
        files.require_file(files.is_file(path), "`step_file`", path)
        rule = "`step_file` must be a file written by this version of "
        rule += "`tpu_check --step_file`"
        data = io.BytesIO(files.read_bytes(path))
        with input_errors(DAMAGE, rule, file=path):
            archive = zipfile.ZipFile(data)
            content = {n: archive.read(n) for n in archive.namelist()}
            self.info = json.loads(content[INFO])
            self.programs = content[STEP], content[EVALUATION]
            self.bundle = tensor_bundle.Bundle(
                content[f"{FIRST}.index"],
                lambda *n: content[tensor_bundle.data_file(FIRST, *n)],
            )
            arguments = self.info["arguments"]
            self.shapes = {x["name"]: tuple(x["shape"]) for x in arguments}

    def constants(self) -> Arrays:
        """Return {name: value} for the variables that no step changes."""
        values = self.info["constants"].items()
        return {name: np.array(value, np.float32) for name, value in values}

    @functools.cached_property
    def advance(self):
        """A function (state, sums, batch) -> (new state, new sums)."""
        numpy, outputs = self.jax.numpy, self.info["outputs"]
        call = self.jax.export.deserialize(bytearray(self.programs[0])).call

        def advance(state, sums, batch):
            inputs = state | batch
            out = call(*(inputs[name] for name in self.shapes))
            out = dict(zip(outputs, out, strict=True))
            report, norm = out["report"], out["norm"]
            finite = numpy.isfinite(report).all() & numpy.isfinite(norm)
            norms = sums["norm"], numpy.where(finite, norm, 0)
            sums = {
                "report": sums["report"] + numpy.where(finite, report, 0),
                "norm": numpy.maximum(*norms),
                "bad": sums["bad"] + ~finite,
            }
            return {name: out.get(name, state[name]) for name in state}, sums

        return self.jax.jit(advance, donate_argnums=(0, 1))

    def zero_sums(self) -> Arrays:
        """Return the sums before the first step, which are all zero."""
        return {
            "report": np.zeros([2, len(self.info["names"])], np.float32),
            "norm": np.zeros([], np.float32),
            "bad": np.zeros([], np.int64),
        }

    @functools.cached_property
    def evaluation(self):
        """A function (state, batch) -> report of a held-out batch."""
        names = self.info["evaluation"]
        call = self.jax.export.deserialize(bytearray(self.programs[1])).call

        def evaluate(state, batch):
            inputs = state | batch
            (report,) = call(*(inputs[name] for name in names))
            return report

        return self.jax.jit(evaluate)

    def check_sizes(self, tokens: int, predictions: int) -> None:
        """Raise `InputError` unless the step can use records of these sizes."""
        length, slots = self.info["tokens"], self.shapes["masked_lm_ids"][1]
        require(
            tokens == length and predictions <= slots,
            f"The records must have {length} tokens and at most {slots} "
            "predictions per example, as the step requires.",
            records=f"{tokens} tokens, {predictions} predictions",
            step_file=self.path,
        )

    def fitted(self, batch: Arrays) -> Arrays:
        """Pad a batch to the step's number of predictions."""
        slots = self.shapes["masked_lm_ids"][1]
        extra = slots - batch["masked_lm_ids"].shape[1]
        return {
            n: np.pad(x, [(0, 0), (0, extra)]) if n.startswith("masked") else x
            for n, x in batch.items()
        }

    def summarize(self, report: np.ndarray) -> dict[str, float]:
        """Convert a report to means, with the total `loss` first."""
        return means_of(self.info["names"], np.asarray(report, np.float64))


@dataclasses.dataclass(frozen=True)
class RunStepConfig(Validated):
    """The inputs and outputs of a run; other settings are in the step file."""

    step_file: str = setting(
        "", "Step file, written by tpu_check --step_file.", required=True
    )
    data_dir: str = setting(
        "", "Folder written by create_pretraining_data.py.", required=True
    )
    output_dir: str = setting(
        "",
        "Model directory to write; if it contains a run, the run is resumed.",
        required=True,
    )
    masked_lm_prob: float = setting(
        0.0,
        "Share of the tokens to predict, only for records made with "
        "--masking=dynamic; 0 means the share stored with the records.",
        minimum=0.0,
        maximum=0.9,
    )
    stop_step: int = setting(
        0,
        "Save a checkpoint and stop at this step, without changing the "
        "schedule; 0 means the last step of the schedule.",
        minimum=0,
    )


class Run:
    """A run that resumes from a checkpoint in the model directory, if any.

    Args:
      config: the inputs and outputs.
      step: the step file.
      metadata: the metadata of the training records.

    Attributes:
      state: {name: value} of all variables.
      read: {folder or fingerprint of records: number of examples read}.
    """

    def __init__(self, config: RunStepConfig, step: StepFile, metadata):
        self.config, self.file, self.metadata = config, step, metadata
        self.settings = step.info["training"]
        self.folder = config.output_dir
        saved: Arrays = {}
        self.last_good = checkpoint_files.latest(
            self.folder, lambda prefix: saved.update(tensor_bundle.read(prefix))
        )
        self._check(saved)
        values = saved or step.bundle.read()
        # The step's results are bound to a device. The initial arrays are bound
        # too, so that the step is compiled only once.
        self.to_device = functools.partial(
            step.jax.device_put, device=step.jax.devices()[0]
        )
        self.state = self.to_device(values | step.constants())
        self.step = int(values[ITERATIONS])
        self.last = self.settings["num_train_steps"]
        self.last = min(self.last, config.stop_step or self.last)
        facts = self.last_good and checkpoint_files.read_facts(self.last_good)
        self.read = (facts or {}).get("read", {})
        self.records = metadata.fingerprint(), config.data_dir
        # Records without a stored position belong to a new run or a new phase.
        new = 0 if self.read else self.step * step.info["examples"]
        positions = (self.read[key] for key in self.records if key in self.read)
        self.position = next(positions, new)
        self.history = History(self.folder, self.step)
        self.progress = Progress(self.last, self.step)
        self.check_folder = files.unmoved(self.folder)
        self.finite = FiniteSteps(self.settings["on_nonfinite"] == "skip")
        if self.last_good:
            self._resume()

    def _check(self, saved: Arrays) -> None:
        expected = {n: s for n, (_, s) in self.file.bundle.shapes().items()}
        shapes = {name: value.shape for name, value in saved.items()}
        different = sorted({n for n, _ in expected.items() ^ shapes.items()})
        require(
            not saved or not different,
            "`output_dir` must contain a run with the model and optimizer of "
            f"the step file. Received: {self.last_good}, which differs in "
            f"{', '.join(different[:3])}",
        )

    def _resume(self) -> None:
        """Print where the run resumes; print and record changed settings."""
        where = (
            f"Resuming at step {self.step} from {self.last_good}, at example "
            f"{self.position} of {self.config.data_dir}"
        )
        facts = self.file.info["facts"]
        changes = checkpoint_files.changes(self.last_good, facts)
        notes = [f"Note: {change}" for change in changes]
        self.progress.message("\n".join([where, *notes]))
        self.history.resume(self.step, changes)

    def batches(self, pool: ThreadPoolExecutor) -> Iterator[Arrays]:
        """Yield the training batches from the current position on."""
        seed, size = self.settings["random_seed"], self.file.info["examples"]
        stream = RecordStream(self.config.data_dir, self.metadata, seed)

        def submit(records):
            return pool.submit(lambda: self.file.fitted(stream.batch(*records)))

        records = stream.train(self.position, size)
        return in_order(submit, records, BATCHES_AHEAD)

    def window(
        self, batches: Iterator[Arrays], steps: int
    ) -> tuple[dict, float]:
        """Run some steps; return their results and the duration in seconds.

        The results are mean losses, mean metrics and the speed,
        `examples_per_second`. `gradient_norm` is the largest norm of the steps,
        not the mean.
        """
        sums = self.to_device(self.file.zero_sums())
        start = time.monotonic()
        for batch in itertools.islice(batches, steps):
            self.state, sums = self.file.advance(self.state, sums, batch)
        sums = {name: np.asarray(value) for name, value in sums.items()}
        seconds, bad = time.monotonic() - start, int(sums["bad"])
        self.step += steps
        self.position += steps * self.file.info["examples"]
        where = f"in steps {self.step - steps + 1} to {self.step}"
        with checkpoint_files.naming_last_checkpoint(self):
            skipped = self.finite.check(steps, bad, where)
        examples = steps * self.file.info["examples"]
        values = {
            **self.file.summarize(sums["report"]),
            "gradient_norm": float(sums["norm"]),
            "examples_per_second": examples / seconds,
            **skipped,
        }
        return values, seconds

    def evaluated(self) -> dict:
        """Return the state with averages, if any, in place of the weights."""
        averages = self.file.info["averages"].items()
        return self.state | {name: self.state[mean] for name, mean in averages}

    def evaluate(self) -> dict[str, float]:
        """Print and return the mean metrics on the held-out records."""
        records = dataclasses.replace(self.metadata, settings={})
        if self.config.masked_lm_prob:  # held-out records have the stored share
            slots = read_metadata(self.config.data_dir).max_predictions_per_seq
            records = dataclasses.replace(
                records, max_predictions_per_seq=slots
            )
        stream = RecordStream(self.config.data_dir, records, 0)
        state, report = self.evaluated(), 0.0
        for batch in stream.held_out(self.settings["eval_batch_size"]):
            batch = self.file.fitted(batch)
            part = self.file.evaluation(state, batch)
            report = report + np.asarray(part, np.float64)
        require_finite(report)
        metrics = self.file.summarize(report)
        summary = ", ".join(f"{k} {v:.4f}" for k, v in metrics.items())
        self.progress.message(f"step {self.step}: {summary}")
        self.history.add(self.step, EVAL, metrics)
        return metrics

    def _write(self, folder: str, state: dict, keep: int) -> str:
        """Write a checkpoint; return its prefix."""
        facts = self.file.info["facts"].items()
        stored_facts = {name: value for name, (value, _) in facts}
        path = checkpoint_files.prefix(folder, self.step)
        values = {name: np.asarray(x) for name, x in state.items()}
        files.make_folder(folder)
        self.file.bundle.write(path, values)
        checkpoint_files.write_about(path, stored_facts | {"read": self.read})
        checkpoint_files.adopt(folder, self.step, keep)
        return path

    def save(self) -> None:
        """Write a checkpoint and, if there are averages, the averaged model."""
        self.read |= dict.fromkeys(self.records, self.position)
        if self.file.info["averages"]:
            self._write(files.join(self.folder, BEST), self.evaluated(), 1)
        keep = self.settings["keep_checkpoint_max"]
        self.last_good = self._write(self.folder, self.state, keep)
        self.history.save()

    def train(self, stopped: list[int]) -> None:
        """Train to the last step, or until `stopped` contains a signal."""
        intervals = {self.save: self.settings["save_checkpoints_steps"]}
        if self.metadata.count(EVAL):
            intervals = {self.evaluate: self.settings["eval_steps"]} | intervals
        pace = Pace(self.settings["steps_per_loop"])
        with ThreadPoolExecutor(READERS) as pool:
            batches = self.batches(pool)
            while self.step < self.last and not stopped:
                stop = next_stop(self.step, self.last, list(intervals.values()))
                steps = min(pace.steps(), stop - self.step)
                values, seconds = self.window(batches, steps)
                self.check_folder()
                pace.measure(steps, seconds)
                shown = f"{counted(steps, 'update')} skipped: not finite"
                if values.get("skipped_updates") != steps:
                    row = {"steps": steps} | values
                    self.history.add(self.step, TRAIN, row)
                    speed = values["examples_per_second"]
                    shown = f"loss {values['loss']:.3f} (mean of {steps}), "
                    shown += f"{speed:.1f} examples/s"
                self.progress.advance(steps, shown)
                for act, interval in intervals.items():
                    if self.step % interval == 0 or self.step == self.last:
                        act()
            if stopped:
                self.save()
        self.progress.close()


def records_of(config: RunStepConfig, step: StepFile) -> Metadata:
    """Check and return the metadata of the training records."""
    metadata = stored = read_metadata(config.data_dir)
    rule = "`data_dir` must contain records made with --task=words."
    require(metadata.task == WORDS, rule, data_dir=config.data_dir)
    if config.masked_lm_prob:
        kind = metadata.masking(TRAIN)
        rule = "`masked_lm_prob` needs records made with --masking=dynamic."
        require(kind == DYNAMIC, rule, data_dir=f"{config.data_dir}, {kind}")
        metadata = metadata.masked_at(config.masked_lm_prob)
    # Held-out records keep the stored share.
    for records in [metadata, stored] if stored.count(EVAL) else [metadata]:
        sizes = records.max_seq_length, records.max_predictions_per_seq
        step.check_sizes(*sizes)
    size, limit = metadata.vocab_size, step.info["config"]["vocab_size"]
    rule = "`vocab_size` of the records must be at most the model's "
    require(size <= limit, f"{rule}`vocab_size`, {limit}.", vocab_size=size)
    return dataclasses.replace(metadata, vocab_size=size or limit)


def describe(step: StepFile) -> str:
    """Return a line that describes the run and its device."""
    info, (device, *_) = step.info, step.jax.devices()
    rule = info["optimizer"]
    return (
        f"{info['examples']} examples of {info['tokens']} tokens per step, "
        f"{info['training']['dtype']}, {rule['optimizer']} at "
        f"{rule['learning_rate']}, on {device.device_kind}"
    )


def claim(config: RunStepConfig, info: dict, is_new: bool) -> None:
    """Write all files of a model directory except the checkpoints.

    Args:
      config: the inputs and outputs.
      info: the description in the step file.
      is_new: whether the folder does not contain a checkpoint of this run.
    """
    folder = config.output_dir
    if tokenizer := tokenizer_in(config.data_dir):
        tokenizer.check_claim(folder)
    config_path = files.join(folder, "albert_config.json")
    stored = files.read_optional_json(folder, "albert_config.json")
    if is_new and not stored:
        check_unused(folder, RUN_FILES)
    different = [
        f"{name}={stored[name]} instead of {value}"
        for name, value in info["config"].items()
        if name != "num_hidden_layers" and stored.get(name, value) != value
    ]
    require(
        is_new or not different,
        "`output_dir` must contain a run of the step file's model, which may "
        "differ only in `num_hidden_layers`.",
        output_dir=f"{folder} with {', '.join(different)}",
    )
    files.write_json(config_path, info["config"])
    if tokenizer:
        tokenizer.save(folder)
    paths = f"--data_dir={config.data_dir}\n--output_dir={folder}\n"
    files.write_text(files.join(folder, FLAG_FILE), paths + info["flags"])


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Yield a list that collects the `SIGNALS` while the block runs."""
    received: list[int] = []
    with interrupts.handling(lambda n, _: received.append(n), *SIGNALS):
        yield received


@program.command(RunStepConfig)
def run_step(config: RunStepConfig) -> RunResult:
    """Pretrain from a step file under JAX, and write a model directory."""
    step = StepFile(config.step_file)
    metadata = records_of(config, step)
    print(describe(step), flush=True)
    with files.locked(config.output_dir, "output_dir"), signals() as stopped:
        run = Run(config, step, metadata)
        if run.step < run.last:
            claim(config, step.info, not run.last_good)
            run.train(stopped)
        else:
            run.progress.close()
            print(f"Nothing left to train: {run.step} steps are complete")
    metrics = run.history.last(EVAL)
    for name, value in metrics.items():
        print(f"{name} = {value:.4f}")
    if stopped and run.step < run.last:
        print(
            f"Stopped at step {run.step} of {run.last}; the same command "
            f"resumes from {run.last_good}"
        )
    if signal.SIGINT in stopped:
        raise KeyboardInterrupt
    return RunResult(
        files.absolute(config.output_dir), {"eval": metrics} if metrics else {}
    )


cli = run_step.program.cli
