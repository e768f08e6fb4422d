"""The settings of pretraining, and values derived from them."""

import dataclasses

from albert_tf.base.errors import require
from albert_tf.base.settings import setting, validate
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.pretraining import warm_start
from albert_tf.training.schedules import RATE_AT_4096, scaled_rate
from albert_tf.training.training_config import TrainingConfig

# As released: the schedule, clipping of each replica's gradient, averaging of
# the replicas' average losses, random initial weights.
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
    """Return settings with the values of a compat mode."""
    fields = {field.name for field in dataclasses.fields(config)}
    values = {k: v for k, v in COMPAT[compat].items() if k in fields}
    return dataclasses.replace(config, **values)


def with_rate(
    optimizer: OptimizerConfig, training: TrainingConfig
) -> OptimizerConfig:
    """Return settings with `learning_rate=auto` resolved, and print it."""
    if optimizer.learning_rate != "auto":
        return optimizer
    require(
        optimizer.optimizer == "lamb",
        "`learning_rate` must be a number unless optimizer=lamb; auto is "
        "LAMB's rule.",
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
    """Return settings with `beta_2` set from a half-life, and print it.

    A gradient's share in the second moment halves after this many tokens,
    whatever the batch: https://arxiv.org/abs/2507.07101, section 3.

    Args:
      optimizer: the settings.
      half_life: in tokens; 0 leaves `beta_2` unchanged.
      tokens: tokens per step.
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
    """The inputs, outputs and kind of a pretraining run."""

    data_dir: str = setting(
        "",
        "Folder made by create_pretraining_data.py, or a folder or globs of "
        "records made by the released code; or several in turn, "
        "`DIR64:0.7,DIR128:0.2,DIR512`, with shares of the steps, or of the "
        "time with budget_hours. train_batch_size applies to the first; "
        "batches of the others have about the same number of tokens, in a "
        "multiple of the replicas.",
        required=True,
    )
    depth_schedule: str | None = setting(
        None,
        "Number of layers to run, `2:0.3,4:0.3,6`, with shares of the steps, "
        "or of the time with budget_hours: the shared layer runs fewer times "
        "at first. It must end with all layers of the model, the default.",
    )
    mask_schedule: str | None = setting(
        None,
        "Shares of the tokens to predict, `0.30:0.4,0.20:0.3,0.15`, with "
        "shares of the steps, or of the time with budget_hours; only for "
        "records of --masking=dynamic. By default their masked_lm_prob.",
    )
    albert_config_file: str = setting(
        "", "Architecture, a JSON file as in configs/models.", required=True
    )
    output_dir: str = setting(
        "", "Model directory to write; resumes a run in it.", required=True
    )
    init_checkpoint: str | None = setting(
        None, "Model directory whose weights a new run starts from."
    )
    initial_weights: str = setting(
        "random",
        "First weights of a new model: random, as in the paper; or informed by "
        "the records: MLM bias from piece frequencies, word vectors from "
        "neighbours, half of the heads attending to a word's neighbours, and "
        "one to the same word elsewhere. A budget chooses informed.",
        choices=("random", "informed"),
    )
    init_state: str = setting(
        "weights",
        "What to load from init_checkpoint: weights; or run, which adds the "
        "optimizer's slots and the step, and so the schedule, for a second "
        "phase with other records.",
        choices=warm_start.STATES,
    )
    init_vocabulary: str = setting(
        warm_start.SAME,
        "Vocabulary of init_checkpoint: same as the records'; or transplant, "
        "which rebuilds its word embeddings for theirs.",
        choices=warm_start.VOCABULARIES,
    )
    beta_2_half_life: float = setting(
        0.0,
        "Tokens, including padding, after which a gradient's share in the "
        "second moment has halved: sets beta_2 to fit the batch; 0 leaves "
        "beta_2 unchanged.",
        minimum=0.0,
    )
    budget_hours: float = setting(
        0.0,
        "End after this many hours with the rate decayed; steps, rate and "
        "other settings that you do not set are chosen to fit. 0 for no "
        "budget.",
        minimum=0.0,
        maximum=10000.0,
    )
    do_train: bool = setting(True, "Train.")
    do_eval: bool = setting(
        False,
        "Evaluate the newest checkpoint, after training if do_train; without "
        "it, nothing is written.",
    )
    compat: str = setting(
        "none",
        "google: the released schedule, clipping, averaging over replicas and "
        "initial weights.",
        choices=COMPAT,
    )

    def __post_init__(self):
        validate(self)
        require(
            self.do_train or self.do_eval,
            "One of `do_train` and `do_eval` must be set. Received: none",
        )
