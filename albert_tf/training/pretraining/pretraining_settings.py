"""The settings of pretraining, and values derived from them."""

import dataclasses

from albert_tf.base.errors import require
from albert_tf.base.settings import (
    COMPAT_FLAG,
    DO_EVAL,
    DO_TRAIN,
    LENGTH,
    MODEL,
    OUTPUT_DIR,
    setting,
    validate,
    variant,
)
from albert_tf.training.pretraining import warm_start

# The effect of other initial weights on a run that resumes.
KEPT = "no effect, because the run keeps the weights that it began with"

# The released schedule and initial weights; `Trainer.per_replica` adds the rest
# of the released behavior.
COMPAT = {
    "none": {},
    "google": {
        "schedule": "released",
        "initial_weights": "random",
    },
}


def with_compat(config, compat: str):
    """Return settings with the values that a compat mode sets."""
    fields = {field.name for field in dataclasses.fields(config)}
    values = {k: v for k, v in COMPAT[compat].items() if k in fields}
    return dataclasses.replace(config, **values)


@dataclasses.dataclass(frozen=True)
class PretrainingConfig:
    """The inputs, outputs and actions of a pretraining run."""

    data_dir: str = setting(
        "",
        "Folder written by create_pretraining_data.py, or a folder or globs of "
        "records from the released code; or several in turn, such as "
        "`DIR64:0.7,DIR128:0.2,DIR512`, with shares of the steps or, with "
        "budget_hours, of the time. train_batch_size applies to the first "
        "folder; batches from other folders have about the same number of "
        "tokens, and a size that is a multiple of the number of replicas.",
        required=True,
    )
    albert_config_file: str = setting(
        "",
        "Architecture: a JSON file such as those in configs/models.",
        required=True,
        group=MODEL,
    )
    output_dir: str = variant(OUTPUT_DIR)
    init_checkpoint: str | None = setting(
        None,
        "Model directory whose weights a new run starts from.",
        means="a new model",
        group=MODEL,
        change=KEPT,
    )
    initial_weights: str = setting(
        "random",
        "Initial weights of a new model: random, as in the paper; or informed "
        "by the records: MLM bias from piece frequencies, word vectors from "
        "neighbors, half of the heads attending to a word's neighbors, and "
        "one to the same word elsewhere. budget_hours chooses informed.",
        choices=("random", "informed"),
        group=MODEL,
        change=KEPT,
    )
    init_state: str = setting(
        "weights",
        "What to load from init_checkpoint: weights; run, which also loads the "
        "optimizer's slots and the step, so that a second phase with other "
        "records continues the schedule; or transplant, which loads weights "
        "but rebuilds the word embeddings for the records' vocabulary.",
        choices=warm_start.STATES,
        group=MODEL,
        change=KEPT,
    )
    budget_hours: float = setting(
        0.0,
        "Train for this many hours and decay the rate by their end; the number "
        "of steps, the rate and other settings that you do not set are chosen "
        "to fit.",
        means="no budget",
        minimum=0.0,
        maximum=10000.0,
        group=LENGTH,
    )
    depth_schedule: str | None = setting(
        None,
        "Numbers of layers to run in turn, such as `2:0.3,4:0.3,6`, with "
        "shares of the steps or, with budget_hours, of the time: the shared "
        "layer runs fewer times at first. The last number must be the model's "
        "number of layers.",
        means="all layers throughout",
        group=LENGTH,
    )
    mask_schedule: str | None = setting(
        None,
        "Shares of the tokens to predict, such as `0.30:0.4,0.20:0.3,0.15`, "
        "with shares of the steps or, with budget_hours, of the time; only for "
        "records made with --masking=dynamic.",
        means="the records' masked_lm_prob",
        group=LENGTH,
    )
    do_train: bool = variant(DO_TRAIN, True)
    do_eval: bool = variant(
        DO_EVAL,
        help="Evaluate the newest checkpoint, after training if do_train; "
        "without do_train, nothing is written.",
    )
    compat: str = variant(
        COMPAT_FLAG,
        help="google selects the released schedule, clipping, averaging over "
        "replicas and initial weights.",
    )

    def __post_init__(self):
        validate(self)
        require(
            self.do_train or self.do_eval,
            "`do_train` or `do_eval` must be set. Received: none",
        )
