"""The settings of a trainer: batch, steps, intervals and precision."""

import dataclasses

from albert_tf.base.settings import (
    DEVICES,
    LENGTH,
    RANDOM_SEED,
    SAVING,
    Validated,
    setting,
    variant,
)
from albert_tf.model.layers import AUTO, LOOPS, REMATERIALIZE

MOST_EXAMPLES = 2**20  # maximum number of examples in a batch

# The effect on a resumed run if the same step is computed differently.
ROUNDING = "the same run up to rounding, not bit for bit"
MASKS = f"{ROUNDING}; with dropout, its masks differ"


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Validated):
    """Settings for the batch, steps, intervals and precision of a run."""

    num_train_steps: int = setting(
        125000,
        "Number of steps of the whole run.",
        minimum=1,
        maximum=2**31 - 1,
        change="another schedule",
        group=LENGTH,
    )
    stop_step: int = setting(
        0,
        "Save a checkpoint and stop at this step; the schedule still covers "
        "num_train_steps.",
        means="the last step",
        minimum=0,
        group=LENGTH,
    )
    max_hours: float = setting(
        0.0,
        "Save a checkpoint and stop after this many hours.",
        means="no limit",
        minimum=0.0,
        group=LENGTH,
    )
    on_nonfinite: str = setting(
        "stop",
        "What to do if a loss or gradient is not finite: stop the run, or skip "
        "the update and count it.",
        choices=("stop", "skip"),
        group=SAVING,
    )
    train_batch_size: int = setting(
        4096,
        "Examples per step, over all replicas.",
        minimum=1,
        maximum=MOST_EXAMPLES,
        change="the data continue after the last example read",
        group=LENGTH,
    )
    gradient_accumulation_steps: int = setting(
        1,
        "Micro-batches per replica and step.",
        minimum=1,
        change=MASKS,
        group=DEVICES,
    )
    eval_batch_size: int = setting(
        64,
        "Examples per evaluation batch, over all replicas.",
        minimum=1,
        maximum=MOST_EXAMPLES,
        group=SAVING,
    )
    dtype: str = setting(
        "float32",
        "Precision of computations; auto means bfloat16 on devices that "
        "multiply it faster (TPUs, recent GPUs, and CPUs with AVX512_BF16 or "
        "AMX), and float32 elsewhere.",
        choices=("float32", "bfloat16", AUTO),
        change="another precision, and other dropout masks",
        group=DEVICES,
    )
    jit_compile: bool | None = setting(
        None,
        "Compile the forward and backward passes with XLA; --nojit_compile "
        "compiles nothing. A TPU always compiles the whole step.",
        means="the parts that benefit from it: GELU, norms, the MLM loss and "
        "the optimizer's update",
        change=MASKS,
        group=DEVICES,
    )
    encoder_loop: str = setting(
        AUTO,
        "How to run layers that share weights; auto means `while`, which "
        "compiles only one layer, on TPUs, and `unrolled` elsewhere.",
        choices=(AUTO, *LOOPS),
        change=ROUNDING,
        group=DEVICES,
    )
    rematerialize: str = setting(
        AUTO,
        "What the backward pass recomputes to save memory; auto means `layer` "
        "on TPUs, and `none` elsewhere.",
        choices=(AUTO, *REMATERIALIZE),
        change=ROUNDING,
        group=DEVICES,
    )
    steps_per_loop: int = setting(
        0,
        "Steps between returns to Python.",
        means="about 5 seconds",
        minimum=0,
        group=DEVICES,
    )
    eval_steps: int = setting(
        1000, "Evaluate every N steps and at the end.", minimum=1, group=SAVING
    )
    save_checkpoints_steps: int = setting(
        5000,
        "Save a checkpoint every N steps and at the end.",
        minimum=1,
        group=SAVING,
    )
    keep_checkpoint_max: int = setting(
        5, "Number of checkpoints to keep.", minimum=1, group=SAVING
    )
    random_seed: int = variant(
        RANDOM_SEED,
        help="Seed for weights, data and dropout.",
        change="data in another order, with some examples twice in this epoch "
        "and others never; other masks",
    )

    @property
    def dtype_policy(self) -> str:
        """The Keras policy for `dtype`; variables are float32 in any case."""
        return "mixed_bfloat16" if self.dtype == "bfloat16" else "float32"
