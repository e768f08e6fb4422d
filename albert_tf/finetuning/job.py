"""What a fine-tuning run is about: its flags, its task and its data."""

import dataclasses
import os
from collections.abc import Sequence

from albert_tf.base.errors import require
from albert_tf.base.settings import setting, validate
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.registry import find, is_finetuned, load_task
from albert_tf.tasks.scoring import Split, metric_name
from albert_tf.tasks.task import PARTS, Task, read_splits
from albert_tf.tasks.task_config import DataConfig, TaskConfig
from albert_tf.text.tokenizers import Tokenizer, load_tokenizer

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


def one_folder(*paths: str) -> bool:
    """Return whether paths, however they are written, lead to one folder."""
    return len(set(map(os.path.realpath, paths))) == 1


@dataclasses.dataclass(frozen=True)
class FinetuningConfig:
    """What a fine-tuning run reads, does and writes."""

    model_dir: str = setting(
        "",
        "Model directory to start from: pretrained, or fine-tuned on another "
        "task, whose head is left out. Without do_train: the fine-tuned model "
        "to evaluate, or what output_dir was trained from.",
    )
    output_dir: str = setting(
        "",
        "Model directory to write; a run in it resumes. Without do_train: "
        "where results go, not another model's directory.",
        required=True,
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
        3.0,
        "Passes over the data, without `num_train_steps`.",
        minimum=0.0,
        maximum=1e6,
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

    length_bucketing: str = setting(
        "evaluation",
        "Where batches are put together by length, which saves padding: "
        "nowhere, to evaluate and predict, or also to train. Not on TPUs.",
        choices=("none", "evaluation", "all"),
    )
    num_seeds: int = setting(
        1,
        "Runs with seeds that follow `random_seed`, each in a folder "
        "`seed_N` of `output_dir`; metrics.json has the median and spread.",
        minimum=1,
    )
    ensemble: tuple = setting(
        (),
        "Fine-tuned model directories whose averaged logits are evaluated "
        "or predict.",
    )

    def __post_init__(self):
        validate(self)
        members = ",".join(self.ensemble)
        require(
            bool(self.model_dir) != bool(self.ensemble),
            "Either `model_dir` or `ensemble` must be given.",
            model_dir=self.model_dir,
            ensemble=members,
        )
        require(
            not self.ensemble or (len(self.ensemble) > 1 and not self.do_train),
            "`ensemble` must name at least two model directories, and only "
            "evaluates and predicts.",
            ensemble=members,
            do_train=self.do_train,
        )
        require(
            self.num_seeds == 1 or self.do_train,
            "`num_seeds` needs `do_train`.",
            num_seeds=self.num_seeds,
        )
        require(
            self.parts(),
            "One of `do_train`, `do_eval` and `do_predict` must be set. "
            "Received: none",
        )
        require(
            not self.do_train
            or not one_folder(self.output_dir, self.model_dir),
            "`output_dir` must differ from `model_dir`.",
            output_dir=self.output_dir,
        )

    @property
    def source_dir(self) -> str:
        """The model directory that is read; of an ensemble the first.

        Without training, the model is that of `model_dir`, or, if no
        fine-tuned one is there, the one that `output_dir` got from it.
        """
        if self.ensemble:
            return self.ensemble[0]
        if self.do_train or is_finetuned(self.model_dir):
            return self.model_dir
        require(
            is_finetuned(self.output_dir),
            "Without `do_train`, `model_dir` or `output_dir` must hold a "
            "fine-tuned model.",
            model_dir=self.model_dir,
            output_dir=self.output_dir,
        )
        return self.output_dir

    @property
    def in_place(self) -> bool:
        """Whether the results stand beside the weights that they are of."""
        if self.do_train or self.ensemble:
            return self.do_train
        return one_folder(self.source_dir, self.output_dir)

    def check_output(self) -> None:
        """Refuse to write one model's results among another model's files."""
        source = {"ensemble": ",".join(self.ensemble)}
        require(
            self.in_place or not is_finetuned(self.output_dir),
            "Without `do_train`, `output_dir` must not hold another "
            "fine-tuned model than the one that is evaluated; to evaluate "
            "that one, give it as `model_dir`.",
            **(source if self.ensemble else {"model_dir": self.model_dir}),
            output_dir=self.output_dir,
        )

    def parts(self) -> tuple[str, ...]:
        """Return the parts of the data that are read."""
        return tuple(part for part in PARTS if getattr(self, f"do_{part}"))

    def encoder(self) -> AlbertConfig:
        """Return the architecture, with the dropout that the flags ask for."""
        config = AlbertConfig.from_model_dir(self.source_dir)
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        rates = {name: getattr(self, name) for name in names}
        rates = {k: rate for k, rate in rates.items() if rate is not None}
        return dataclasses.replace(config, **rates)


def choose_task(
    run: FinetuningConfig, data: DataConfig, config: TaskConfig
) -> Task:
    """Return the task that the flags name, or that of a fine-tuned model."""
    if run.do_train:
        require(data.task, "`task` must be given to train. Received: none")
        return find(data.task).updated(**data.of_task(), **vars(config))
    trained = load_task(run.source_dir)
    task = trained
    if data.task and find(data.task).name != trained.name:
        task = find(data.task).for_model(trained)
    return task.updated(**data.of_task(), **vars(config))


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
        split = self.eval[0].name if self.eval else "eval"
        return metric_name(split, self.task.main_metric)

    def summary(self) -> str:
        """Return what is about to be worked on, for the log."""
        length = self.task.config.max_seq_length
        lines = [f"Task {self.task.name} ({self.task.kind}), {length} tokens"]
        for split in (*self.train, *self.eval, *self.predict):
            examples, rows = len(split.examples), len(split.features.lengths)
            in_rows = f" in {rows} rows" * (rows != examples)
            lines.append(
                f"  {split.name}: {examples} examples{in_rows}, "
                f"{split.features.full_rows()} of them fill or exceed "
                f"{length} tokens"
            )
        return "\n".join(lines)


def load_other(directory: str, setting: str, job: Job) -> Task:
    """Return the task of another fine-tuned model for a job's inputs.

    Args:
      directory: its model directory.
      setting: that names it.
      job: what it is to work on.
    """
    place = {setting: directory}
    require(
        is_finetuned(directory),
        f"`{setting}` must be of fine-tuned model directories.",
        **place,
    )
    tokenizer = load_tokenizer(directory)
    require(
        tokenizer.fingerprint() == job.tokenizer.fingerprint(),
        f"All models of a run with `{setting}` must have the same tokenizer.",
        **place,
    )
    config = AlbertConfig.from_model_dir(directory)
    config.check_length("max_seq_length", job.task.config.max_seq_length)
    config.check_pieces(tokenizer.vocab_size, directory)
    return load_task(directory)


def prepare(
    run: FinetuningConfig,
    data: DataConfig,
    task_config: TaskConfig,
    parts: Sequence[str] | None = None,
) -> Job:
    """Read and check everything before any device is used.

    Args:
      run: which model, and what it is to do.
      data: which task, and where its examples are.
      task_config: how they become inputs.
      parts: of the data to read, instead of those that the run needs.
    """
    run.check_output()
    config, tokenizer = run.encoder(), load_tokenizer(run.source_dir)
    task = choose_task(run, data, task_config)
    config.check_length("max_seq_length", task.config.max_seq_length)
    config.check_pieces(tokenizer.vocab_size, run.source_dir)
    examples: dict[str, dict[str, Sequence]] = {}
    for part in run.parts() if parts is None else parts:
        examples[part] = read_splits(task, data, part)
        first = next(iter(examples[part].values()))
        if part == "train":
            task = task.fitted(first)
        if part == "eval":
            task = task.evaluated_on(first)
    splits: dict[str, tuple] = dict.fromkeys(PARTS, ())
    for part, examples_of in examples.items():
        for name, rows in examples_of.items():
            features = task.features(rows, tokenizer)
            full_name = "_".join(filter(None, (part, name)))
            splits[part] += (Split(full_name, rows, features),)
    return Job(task, config, tokenizer, **splits)
