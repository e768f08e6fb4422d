"""The step that `pretrain.py` runs, compiled for a TPU."""

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from albert_tf.data.records.input_pipeline import batch_spec
from albert_tf.model.config import AlbertConfig
from albert_tf.model.shared_layers import EncoderLoop, choose
from albert_tf.tpu.chips import Topology
from albert_tf.tpu.compiler import (
    Compiled,
    CompileOnlyStrategy,
    Compiler,
    replica_program,
)
from albert_tf.tpu.step_module import StepModule, lower_step
from albert_tf.training.optimization.optimizers import OptimizerConfig
from albert_tf.training.pretraining.pretraining_run import make_trainer
from albert_tf.training.step.training_config import TrainingConfig


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run to be checked.

    Attributes:
      config: the architecture.
      compat, optimizer, training: as `pretrain.py` takes them.
      tokens: length of the sequences, T.
      predictions: masked positions of a sequence, P.
    """

    config: AlbertConfig
    compat: str
    optimizer: OptimizerConfig
    training: TrainingConfig
    tokens: int
    predictions: int

    @property
    def loop(self) -> EncoderLoop:
        """The form of the encoder's loop on a TPU."""
        t = self.training
        return choose(t.encoder_loop, t.rematerialize, on_tpu=True)

    def micro_batch(self, replicas: int) -> int:
        """Return the examples of a replica's micro-batch."""
        pieces = self.training.gradient_accumulation_steps
        return self.training.train_batch_size // (replicas * pieces)


class Step:
    """The trainer's own replica step, for one slice.

    Args:
      plan: the run.
      topology: the slice.
    """

    def __init__(self, plan: Plan, topology: Topology):
        self.plan, self.topology = plan, topology
        self.strategy = CompileOnlyStrategy(topology.replicas)
        training = dataclasses.replace(
            plan.training,
            # Nothing is evaluated; any number that replicas divide will do.
            eval_batch_size=topology.replicas,
        )
        self.trainer = make_trainer(
            plan.config, plan.compat, plan.optimizer, training, self.strategy
        )

    def specs(self, micro_batch: int) -> dict[str, tf.TensorSpec]:
        """Return the tensors that a replica gets for a step."""
        p = self.plan
        size = micro_batch * p.training.gradient_accumulation_steps
        return batch_spec(size, p.tokens, p.predictions)

    @functools.cached_property
    def compiler(self) -> Compiler:
        """The compiler of the slice; lowering alone needs none."""
        return Compiler(self.topology)

    def variables(self) -> dict[str, tf.Variable]:
        """Return {name: variable} of all that the step reads."""
        factor = self.trainer.optimizer.rate_factor
        return self.trainer.state() | {"optimizer/rate_factor": factor}

    def lower(self, micro_batch: int) -> StepModule:
        """Return the step's module with micro-batches of a size."""
        specs = self.specs(micro_batch)

        def step(*tensors):
            batch = dict(zip(specs, tensors, strict=True))
            return self.trainer.replica_step(batch)

        function = replica_program(self.strategy, step)
        return lower_step(function, specs, self.variables())

    def compile(self, micro_batch: int) -> Compiled:
        """Compile the step with micro-batches of a size."""
        return self.compiler.compile(self.lower(micro_batch).hlo)


def sizes() -> list[int]:
    """Return the batch sizes that are tried: steps of at most an eighth."""
    return [*range(1, 8), *(m << k for k in range(13) for m in range(8, 16))]


def crossing(known: dict[int, int], memory: int) -> float:
    """Return the size at which a line through two known needs is `memory`.

    Args:
      known: {batch size: bytes needed}; with one alone the answer is 0.
      memory: bytes available.
    """
    if len(known) < 2:
        return 0.0
    n1, n2 = sorted(known, key=lambda n: abs(known[n] - memory))[:2]
    slope = (known[n2] - known[n1]) / (n2 - n1)
    return n1 + (memory - known[n1]) / slope if slope > 0 else 2.0 * max(known)


def largest(
    compile_size: Callable[[int], Compiled],
    tried: dict[int, Compiled],
    memory: int,
) -> int:
    """Return the largest of `sizes` that fits, or 0.

    It was compiled, and the next larger one was too and does not fit.

    Args:
      compile_size: compiles the step with a micro-batch.
      tried: {micro-batch: what came of it}, at least one; is added to.
      memory: bytes that a replica may use.
    """
    while True:
        fitting = [n for n, c in tried.items() if c.fits]
        others = [n for n, c in tried.items() if not c.fits]
        low, high = max(fitting, default=0), min(others, default=1 << 16)
        between = [n for n in sizes() if low < n < high]
        if not between:
            return low
        known = {n: c.needed for n, c in tried.items() if c.needed}
        # What a batch of nothing needs at least: with it one size is a line.
        arguments = (c.parts["arguments"] for c in tried.values() if c.parts)
        known[0] = min(arguments, default=0)
        expected = crossing(known, memory)
        # The last one expected to fit, or else the first that is not.
        below = [n for n in between if n <= expected]
        size = below[-1] if below else between[0]
        tried[size] = compile_size(size)
