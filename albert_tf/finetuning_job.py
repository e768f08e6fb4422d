"""What a fine-tuning run is about: its flags, its task and its data."""

import dataclasses

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.scoring import Split, metric_name
from albert_tf.settings import setting, validate
from albert_tf.tasks.base import (
    PARTS,
    DataConfig,
    Task,
    TaskConfig,
    read_splits,
)
from albert_tf.tasks.registry import find, is_finetuned, load_task
from albert_tf.tokenization import Tokenizer, load_tokenizer

# Where fine-tuning differs from the defaults of pretraining; None is worked
# out from the number of examples.
DEFAULTS = {
    "optimizer": "adamw",
    "learning_rate": 2e-5,
    "num_train_steps": None,
    "num_warmup_steps": None,
    "train_batch_size": 32,
    "eval_steps": None,
    "save_checkpoints_steps": 1000,
    "keep_checkpoint_max": 1,
}


@dataclasses.dataclass(frozen=True)
class FinetuningConfig:
    """What a fine-tuning run reads, does and writes."""

    model_dir: str = setting(
        "", "Model directory of a pretrained model.", required=True
    )
    output_dir: str = setting(
        "", "Model directory to write; a run in it resumes.", required=True
    )
    do_train: bool = setting(False, "Train.")
    do_eval: bool = setting(
        False, "Evaluate, also while training to keep the best weights."
    )
    do_predict: bool = setting(
        False, "Write predictions for the test split or `predict_file`."
    )
    init: str = setting(
        "model_dir",
        "First weights of the encoder: those of `model_dir`, or random ones.",
        choices=("model_dir", "random"),
    )
    num_train_epochs: float = setting(
        3.0, "Passes over the data, without `num_train_steps`.", minimum=0.0
    )
    warmup_proportion: float = setting(
        0.1,
        "Share of the steps with warm-up, without `num_warmup_steps`.",
        minimum=0.0,
        maximum=1.0,
    )
    hidden_dropout_prob: float | None = setting(
        None, "Dropout of the encoder instead of its config's.", minimum=0.0
    )
    attention_probs_dropout_prob: float | None = setting(
        None, "Attention dropout instead of the config's.", minimum=0.0
    )

    def __post_init__(self):
        validate(self)
        if not (self.do_train or self.do_eval or self.do_predict):
            raise InputError(
                "One of `do_train`, `do_eval` and `do_predict` must be set. "
                "Received: none"
            )
        if self.do_train and self.output_dir == self.model_dir:
            raise InputError(
                "`output_dir` must differ from `model_dir`. Received: "
                f"output_dir={self.output_dir}"
            )

    @property
    def source_dir(self) -> str:
        """The model directory that is read.

        Without training it is the one that holds a fine-tuned model:
        `output_dir` of an earlier run, or else `model_dir`.
        """
        if self.do_train:
            return self.model_dir
        for directory in (self.output_dir, self.model_dir):
            if is_finetuned(directory):
                return directory
        raise InputError(
            "Without `do_train`, `output_dir` or `model_dir` must hold a "
            f"fine-tuned model. Received: output_dir={self.output_dir}, "
            f"model_dir={self.model_dir}"
        )

    def parts(self) -> tuple[str, ...]:
        """Return the parts of the data that are read."""
        wanted = {
            "train": self.do_train,
            "eval": self.do_eval,
            "predict": self.do_predict,
        }
        return tuple(part for part, wants in wanted.items() if wants)

    def encoder(self) -> AlbertConfig:
        """Return the architecture, with the dropout that the flags ask for."""
        config = AlbertConfig.from_model_dir(self.source_dir)
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        given = {name: getattr(self, name) for name in names}
        given = {k: v for k, v in given.items() if v is not None}
        return dataclasses.replace(config, **given)


def choose_task(
    run: FinetuningConfig, data: DataConfig, config: TaskConfig
) -> Task:
    """Return the task that the flags name, or that of a fine-tuned model."""
    if run.do_train:
        if not data.task:
            raise InputError("`task` must be given to train. Received: none")
        return find(data.task).with_data(data).with_config(config)
    trained = load_task(run.source_dir)
    task = trained
    if data.task and find(data.task).name != trained.name:
        task = find(data.task).for_model(trained)
    return task.with_data(data).with_config(config)


def check_fit(task: Task, config: AlbertConfig, tokenizer: Tokenizer) -> None:
    """Refuse inputs that are too long for the model, or another's tokens."""
    length = task.config.max_seq_length
    if length > config.max_position_embeddings:
        raise InputError(
            "`max_seq_length` must be at most the model's "
            "`max_position_embeddings`. Received: "
            f"max_seq_length={length}, max_position_embeddings="
            f"{config.max_position_embeddings}"
        )
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            "`vocab_size` of the model must cover its tokenizer. Received: "
            f"vocab_size={config.vocab_size}, a tokenizer of "
            f"{tokenizer.vocab_size} pieces"
        )


@dataclasses.dataclass(frozen=True)
class Job:
    """A task with its data and its model, checked and ready to run."""

    task: Task
    config: AlbertConfig
    tokenizer: Tokenizer
    train: tuple[Split, ...]
    eval: tuple[Split, ...]
    predict: tuple[Split, ...]

    @property
    def best_metric(self) -> str:
        """The name of the main metric among those of all eval splits."""
        return metric_name(self.eval[0].name, self.task.main_metric)

    def summary(self) -> str:
        """Return what is about to be worked on, for the log."""
        length = self.task.config.max_seq_length
        lines = [f"Task {self.task.name} ({self.task.kind}), {length} tokens"]
        for split in (*self.train, *self.eval, *self.predict):
            full = split.features.full_rows()
            lines.append(
                f"  {split.name}: {len(split.examples)} examples, {full} of "
                f"them fill or exceed {length} tokens"
            )
        return "\n".join(lines)


def prepare(
    run: FinetuningConfig, data: DataConfig, task_config: TaskConfig
) -> Job:
    """Read and check everything before any device is used."""
    config, tokenizer = run.encoder(), load_tokenizer(run.source_dir)
    task = choose_task(run, data, task_config)
    check_fit(task, config, tokenizer)
    parts: dict[str, dict] = {}
    for part in run.parts():
        parts[part] = read_splits(task, data, part)
        if part == "train":
            task = task.fitted(parts[part][""])
    splits = {
        part: tuple(
            Split(
                "_".join(filter(None, (part, name))),
                examples,
                task.features(examples, tokenizer),
            )
            for name, examples in parts.get(part, {}).items()
        )
        for part in PARTS
    }
    return Job(task, config, tokenizer, **splits)
