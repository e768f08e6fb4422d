"""What a pretraining run reads, writes and begins with."""

import dataclasses

from albert_tf.base.errors import require
from albert_tf.base.settings import setting, validate
from albert_tf.training.first_weights import warm_start
from albert_tf.training.pretraining.compat import COMPAT


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
        "informed",
        "What a new model begins with, beside random weights: informed, the "
        "frequencies of the pieces and vectors of their neighbours in the "
        "records, half of the heads at a word's neighbours, and one at the "
        "same word elsewhere; or nothing, as released.",
        choices=("informed", "released"),
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
