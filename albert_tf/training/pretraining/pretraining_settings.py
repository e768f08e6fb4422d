"""The settings of pretraining, and what is derived from them."""

import dataclasses

from albert_tf.base.errors import require
from albert_tf.base.settings import setting, validate
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.pretraining import warm_start
from albert_tf.training.schedules import RATE_AT_4096, scaled_rate
from albert_tf.training.training_config import TrainingConfig

# The released schedule, its clipping of each replica's gradient, its average
# of the replicas' average losses, its random first weights.
COMPAT = {
    "none": {},
    "google": {
        "schedule": "released",
        "clip_placement": "per_replica",
        "loss_normalization": "per_replica",
        "initial_weights": "random",
    },
}


def with_compat(config, compat: str):
    """Return a settings dataclass with the values that a compat mode sets."""
    fields = {field.name for field in dataclasses.fields(config)}
    values = {k: v for k, v in COMPAT[compat].items() if k in fields}
    return dataclasses.replace(config, **values)


def with_rate(
    optimizer: OptimizerConfig, training: TrainingConfig
) -> OptimizerConfig:
    """Return settings with a number for `learning_rate=auto`, and print it."""
    if optimizer.learning_rate != "auto":
        return optimizer
    require(
        optimizer.optimizer == "lamb",
        "`learning_rate` must be a number but for optimizer=lamb, whose rule "
        "auto is.",
        learning_rate="auto",
        optimizer=optimizer.optimizer,
    )
    batch = training.train_batch_size
    rate = scaled_rate(batch)
    print(
        f"learning_rate=auto: {RATE_AT_4096} x sqrt({batch} / 4096) = {rate:g}"
    )
    return dataclasses.replace(optimizer, learning_rate=rate)


def with_half_life(
    optimizer: OptimizerConfig, half_life: float, tokens: int
) -> OptimizerConfig:
    """Return settings with the `beta_2` of a half-life, and print it.

    A gradient's share in the second moment halves while so many tokens go
    by, whatever the batch: https://arxiv.org/abs/2507.07101, section 3.

    Args:
      optimizer: the settings.
      half_life: in tokens; 0 leaves `beta_2` as it is.
      tokens: of a step.
    """
    if not half_life:
        return optimizer
    beta_2 = 2.0 ** (-tokens / half_life)
    print(
        f"beta_2_half_life={half_life:g}: 2 ^ -({tokens} / {half_life:g}), "
        f"beta_2 is {beta_2:.6g} instead of {optimizer.beta_2:g}"
    )
    return dataclasses.replace(optimizer, beta_2=beta_2)


@dataclasses.dataclass(frozen=True)
class PretrainingConfig:
    """What a pretraining run reads and writes."""

    data_dir: str = setting(
        "",
        "Folder made by create_pretraining_data.py, or a folder or globs of "
        "records that the released code made; or several in turn, "
        "`DIR64:0.7,DIR128:0.2,DIR512`, with shares of the steps. "
        "train_batch_size is that of the first; the others have as many "
        "tokens in a batch, as nearly as the replicas divide it.",
        required=True,
    )
    depth_schedule: str | None = setting(
        None,
        "How many layers run, `2:0.3,4:0.3,6`, with shares of the steps: the "
        "shared layer fewer times at first. By default all of the model, "
        "with which it must end.",
    )
    mask_schedule: str | None = setting(
        None,
        "Shares of the tokens that are predicted, `0.30:0.4,0.20:0.3,0.15`, "
        "with shares of the steps; for records of --masking=dynamic, whose "
        "masked_lm_prob is the default.",
    )
    albert_config_file: str = setting(
        "", "Architecture, a JSON file of configs/models.", required=True
    )
    output_dir: str = setting(
        "", "Model directory to write; a run in it resumes.", required=True
    )
    init_checkpoint: str | None = setting(
        None, "Model directory whose weights a new run starts from."
    )
    initial_weights: str = setting(
        "random",
        "First weights of a new model: random, as in the paper; or informed by "
        "the records: frequencies of pieces, vectors of their neighbours, half "
        "of the heads at a word's neighbours and one at the same word "
        "elsewhere. A budget chooses informed.",
        choices=("random", "informed"),
    )
    init_state: str = setting(
        "weights",
        "What to take from init_checkpoint: weights; or run, with the "
        "optimizer's slots and the step, and so the schedule, for a second "
        "phase with other records.",
        choices=warm_start.STATES,
    )
    init_vocabulary: str = setting(
        warm_start.SAME,
        "Vocabulary of init_checkpoint: the same as that of the records; or "
        "transplant, which makes its word table anew for theirs.",
        choices=warm_start.VOCABULARIES,
    )
    beta_2_half_life: float = setting(
        0.0,
        "Tokens, counted with padding, after which a gradient's share in the "
        "second moment is half: sets beta_2 so that it fits the batch; 0 "
        "leaves beta_2 as it is.",
        minimum=0.0,
    )
    budget_hours: float = setting(
        0.0,
        "End after so many hours with the rate decayed; steps, rate and all "
        "else that is not given is chosen for them. 0 is no budget.",
        minimum=0.0,
        maximum=10000.0,
    )
    do_train: bool = setting(True, "Train.")
    do_eval: bool = setting(
        False,
        "Evaluate the newest checkpoint after, or without, training; without, "
        "nothing is written.",
    )
    compat: str = setting(
        "none",
        "google: the released schedule, clipping, averaging over replicas and "
        "first weights.",
        choices=COMPAT,
    )

    def __post_init__(self):
        validate(self)
        require(
            self.do_train or self.do_eval,
            "One of `do_train` and `do_eval` must be set. Received: none",
        )
