"""The setup of a fine-tuning run: its settings, and the checked inputs."""

import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from typing import Any

from albert_tf.base import files, settings
from albert_tf.base.console import counted
from albert_tf.base.errors import InputError, require
from albert_tf.base.settings import (
    ACTIONS,
    DEVICES,
    DO_EVAL,
    DO_TRAIN,
    LARGEST_SEED,
    LENGTH,
    MODEL,
    OPTIMIZER,
    OUTPUT_DIR,
    Validated,
    field_of,
    setting,
    variant,
)
from albert_tf.data.table_sources import class_names
from albert_tf.finetuning.data_notes import notes, overlap_notes
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import find, is_finetuned, load_task
from albert_tf.tasks.tables import label_text
from albert_tf.tasks.task import (
    PARTS,
    Task,
    read_splits,
    split_paths,
    with_settings,
)
from albert_tf.tasks.task_config import DataConfig, TaskConfig
from albert_tf.text.tokenizers import Tokenizer, load_saved_tokenizer
from albert_tf.training import checkpoints
from albert_tf.training.distribution import DistributionConfig, with_dtype
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.run import Hook
from albert_tf.training.training_config import TrainingConfig

# Defaults that differ from the defaults of pretraining; `MEANS` explains None.
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
MEANS = {
    "num_train_steps": "num_train_epochs over the training examples",
    "num_warmup_steps": "warmup_proportion of the steps",
    "eval_steps": "after each pass over the training examples",
}


def one_folder(*paths: str) -> bool:
    """Return whether all paths refer to the same folder."""
    return len(set(map(os.path.realpath, paths))) == 1


def _rate(name: str) -> dataclasses.Field:
    """Return the setting of a dropout rate; the default is the model's rate."""
    field = field_of(AlbertConfig, name)
    return variant(field, None, group=MODEL, means="the model's")


@dataclasses.dataclass(frozen=True)
class FinetuningConfig(Validated):
    """Settings for the inputs, outputs and actions of a fine-tuning run."""

    model_dir: str = setting(
        "",
        "Model directory to start from, pretrained or fine-tuned on another "
        "task; its task head is not loaded. Without do_train: the fine-tuned "
        "model to evaluate, or the model from which output_dir was trained.",
    )
    output_dir: str = variant(
        OUTPUT_DIR,
        help="Model directory to write; if it contains a run, training "
        "resumes. Without do_train: folder for the results, which must not "
        "contain another model.",
    )
    do_train: bool = variant(DO_TRAIN)
    do_eval: bool = variant(
        DO_EVAL,
        help="Evaluate the model. With do_train, also evaluate during "
        "training, and keep the best weights.",
    )
    do_predict: bool = setting(
        False,
        "Write predictions for the test split or `predict_file`.",
        group=ACTIONS,
    )
    init: str = setting(
        "model_dir",
        "Initial weights of the encoder: from `model_dir`, or random.",
        choices=("model_dir", "random"),
        group=MODEL,
    )
    num_train_epochs: float = setting(
        3.0,
        "Passes over the data, unless `num_train_steps` is set.",
        minimum=1e-6,
        maximum=1e6,
        group=LENGTH,
    )
    warmup_proportion: float = setting(
        0.1,
        "Share of the steps for warm-up, unless `num_warmup_steps` is set.",
        minimum=0.0,
        maximum=1.0,
        group=OPTIMIZER,
    )
    hidden_dropout_prob: float | None = _rate("hidden_dropout_prob")
    attention_probs_dropout_prob: float | None = _rate(
        "attention_probs_dropout_prob"
    )
    length_bucketing: str = setting(
        "evaluation",
        "When to batch examples of similar length, to save padding: never, in "
        "evaluation and prediction, or also in training. Not used on TPUs.",
        choices=("none", "evaluation", "all"),
        group=DEVICES,
    )
    num_seeds: int = setting(
        1,
        "Number of runs, with consecutive seeds from `random_seed`. Each run "
        "writes to the folder `seed_N` of `output_dir`; metrics.json contains "
        "the median, the standard deviation and the range.",
        minimum=1,
        group=ACTIONS,
    )
    ensemble: tuple = setting(
        (),
        "Fine-tuned model directories; evaluate and predict with their "
        "averaged logits.",
    )

    def __post_init__(self):
        super().__post_init__()
        members = ",".join(self.ensemble)
        require(
            bool(self.model_dir) != bool(self.ensemble),
            "Exactly one of `model_dir` and `ensemble` must be set.",
            model_dir=self.model_dir,
            ensemble=members,
        )
        folders = set(map(os.path.realpath, self.ensemble))
        are_different = 1 < len(folders) == len(self.ensemble)
        require(
            not self.ensemble or (are_different and not self.do_train),
            "`ensemble` must name at least two different model directories, "
            "and cannot be used with `do_train`.",
            ensemble=members,
            do_train=self.do_train,
        )
        legal, rule = self.num_seeds == 1, "`num_seeds` needs `do_train`."
        require(legal or self.do_train, rule, num_seeds=self.num_seeds)
        require(
            self.parts(),
            "At least one of `do_train`, `do_eval` and `do_predict` must be "
            "set. Received: none",
        )
        require(
            not self.do_train
            or not one_folder(self.output_dir, self.model_dir),
            "`output_dir` must differ from `model_dir`.",
            output_dir=self.output_dir,
        )

    @property
    def source_dir(self) -> str:
        """The model directory to read.

        For an ensemble, the result is the first directory. For a single model,
        the result is `model_dir` if the run trains or `model_dir` is
        fine-tuned, and otherwise `output_dir`.
        """
        if self.ensemble:
            return self.ensemble[0]
        if self.do_train or is_finetuned(self.model_dir):
            return self.model_dir
        if is_finetuned(self.output_dir):
            return self.output_dir
        AlbertConfig.from_model_dir(self.model_dir)  # explains foreign formats
        raise InputError(
            "Without `do_train`, `model_dir` or `output_dir` must contain a "
            f"fine-tuned model. Received: model_dir={self.model_dir}, "
            f"output_dir={self.output_dir}"
        )

    @property
    def in_place(self) -> bool:
        """Whether results go to the folder of the evaluated weights."""
        if self.do_train or self.ensemble:
            return self.do_train
        return one_folder(self.source_dir, self.output_dir)

    def check_output(self) -> None:
        """Raise an error if the output folder contains a different model."""
        source = {"ensemble": ",".join(self.ensemble)}
        require(
            self.in_place or not is_finetuned(self.output_dir),
            "Without `do_train`, `output_dir` must not contain a fine-tuned "
            "model other than the evaluated model; to evaluate the model in "
            "`output_dir`, pass this folder as `model_dir`.",
            **(source if self.ensemble else {"model_dir": self.model_dir}),
            output_dir=self.output_dir,
        )

    def parts(self) -> tuple[str, ...]:
        """Return the parts of the data that the run reads."""
        return tuple(part for part in PARTS if getattr(self, f"do_{part}"))

    @functools.cached_property
    def first_checkpoint(self) -> str:
        """The checkpoint with the initial weights; "" for random weights."""
        from_model = self.init == "model_dir"
        return checkpoints.for_inference(self.model_dir) if from_model else ""

    def encoder(self) -> AlbertConfig:
        """Return the architecture, with the dropout rates from the flags."""
        config = AlbertConfig.from_model_dir(self.source_dir)
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        rates = {name: getattr(self, name) for name in names}
        rates = {k: rate for k, rate in rates.items() if rate is not None}
        return dataclasses.replace(config, **rates)


def seed_dir(output_dir: str, seed: int) -> str:
    """Return the model directory of a seed's run."""
    return files.join(output_dir, f"seed_{seed}")


# At this learning rate and above, small models may forget what they have
# learned, because the updates are too large.
HIGH_RATE = 1e-4


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings of a fine-tuning run."""

    run: FinetuningConfig
    data: DataConfig
    task: TaskConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    devices: DistributionConfig
    recipe: RecipeConfig = RecipeConfig()
    hooks: tuple[Hook, ...] = ()  # in addition to the standard hooks

    def configs(self) -> list:
        """Return the instances of `CONFIGS`, whose fields are flags."""
        return [getattr(self, f.name) for f in dataclasses.fields(self)][:-1]

    def check(self) -> None:
        """Raise an error for conflicting settings, before reading any data."""
        run, schedule = self.run, self.optimizer.schedule
        if run.do_train:  # otherwise, the flags of a whole run are accepted
            self.recipe.check_run(run.do_eval, schedule, run.init)
        require(
            not self.recipe.task_weights or "," in (self.data.task or ""),
            "`task_weights` needs several tasks, `task=A,B`.",
            task=self.data.task,
        )
        seed, number = self.training.random_seed, run.num_seeds
        rule = f"The last seed must be at most {LARGEST_SEED}."
        legal = seed + number - 1 <= LARGEST_SEED
        require(legal, rule, random_seed=seed, num_seeds=number)

    def advise(self) -> None:
        """Print notes on settings with surprising effects."""
        run = self.run
        from_weights = run.do_train and run.init == "model_dir"
        if from_weights and is_finetuned(run.model_dir):
            print(
                "Note: `model_dir` is fine-tuned; training starts from its "
                "encoder, with a new task head"
            )
        for part in PARTS:  # an error would reject the flagfile of a whole run
            if getattr(self.data, f"{part}_file") and part not in run.parts():
                print(f"Note: `{part}_file` is not read without `do_{part}`")
        rate, short = self.optimizer.learning_rate, not run.do_train
        if rate >= HIGH_RATE and not (short or self.optimizer.bias_correction):
            print(
                f"Note: at learning rate {rate:g}, try --bias_correction "
                "--beta_2=0.98; without bias correction, the first updates are "
                "up to six times as large"
            )

    def with_seed(self, seed: int) -> "Settings":
        """Return the settings for one seed's run, in a separate folder."""
        folder = seed_dir(self.run.output_dir, seed)
        return dataclasses.replace(
            self,
            run=dataclasses.replace(self.run, output_dir=folder, num_seeds=1),
            training=dataclasses.replace(self.training, random_seed=seed),
        )

    def planned(self, examples: int) -> "Settings":
        """Fill in the steps, warm-up and evaluation interval that are not set.

        Args:
          examples: the number of training examples.
        """
        training, warmup = self.training, self.optimizer.num_warmup_steps
        steps, batch = training.num_train_steps, training.train_batch_size
        if steps is None:
            exact_steps = examples * self.run.num_train_epochs / batch
            steps = max(1, math.ceil(exact_steps))
        if warmup is None:
            warmup = int(steps * self.run.warmup_proportion)
        every = training.eval_steps or math.ceil(examples / batch)
        optimizer = dataclasses.replace(self.optimizer, num_warmup_steps=warmup)
        training = dataclasses.replace(
            training, num_train_steps=steps, eval_steps=every
        )
        return dataclasses.replace(self, optimizer=optimizer, training=training)

    def with_dtype(self, strategy) -> "Settings":
        """Return the settings with `dtype=auto` resolved."""
        training = with_dtype(self.training, strategy)
        return dataclasses.replace(self, training=training)

    def write_flags(self) -> None:
        """Write a file with the run's flags to the output directory."""
        settings.write_flagfile(self.run.output_dir, *self.configs())


CONFIGS = tuple(field.type for field in dataclasses.fields(Settings))[:-1]


@dataclasses.dataclass(frozen=True)
class Split:
    """A named split of the data, such as "eval" or "eval_matched".

    Attributes:
      source: the file or table with the examples.
    """

    name: str
    examples: Sequence[Any]
    features: Features
    source: str = ""


def metric_name(split: str, metric: str) -> str:
    """Return a metric's name in the history, such as "matched_accuracy"."""
    suffix = split.partition("_")[2]
    return f"{suffix}_{metric}" if suffix else metric


def choose_task(
    run: FinetuningConfig, data: DataConfig, config: TaskConfig, positions: int
) -> Task:
    """Return the task that `data` names; by default, the task of the model.

    Lengths that flags do not set are reduced to fit a model with this number of
    positions.
    """
    if run.do_train:
        require(data.task, "`task` is required for training. Received: none")
        task = find(data.task)
    else:
        task = trained = load_task(run.source_dir)
        if data.task and find(data.task).name != trained.name:
            task = find(data.task).for_model(trained)
    return with_settings(task.within(positions), data, config)


@dataclasses.dataclass(frozen=True)
class Job:
    """A task with its data and model, checked and ready to run.

    Attributes:
      teacher: a fingerprint of the teacher's weights, if there is a teacher.
    """

    task: Task
    config: AlbertConfig
    tokenizer: Tokenizer
    train: tuple[Split, ...]
    eval: tuple[Split, ...]
    predict: tuple[Split, ...]
    teacher: str | None = None

    @property
    def training_split(self) -> Split:
        """The only training split."""
        (split,) = self.train
        return split

    @property
    def best_metric(self) -> str:
        """The name of the main metric among the metrics of all eval splits."""
        split = self.eval[0].name if self.eval else "eval"
        return metric_name(split, self.task.main_metric)

    def summary(self) -> str:
        """Return a summary of the task and its splits for the log."""
        length = self.task.config.max_seq_length
        lines = [f"Task {self.task.name} ({self.task.kind}), {length} tokens"]
        for split in (*self.train, *self.eval, *self.predict):
            examples, rows = len(split.examples), len(split.features.lengths)
            in_rows = f" in {counted(rows, 'row')}" * (rows != examples)
            lines.append(
                f"  {split.name}: {counted(examples, 'example')}{in_rows}, "
                f"{split.features.full_rows()} of at least {length} tokens"
            )
            split_notes = notes(
                self.task, split.features, self.tokenizer, split.examples
            )
            if split.name.partition("_")[0] == "eval":
                training = [x.features for x in self.train]
                split_notes += overlap_notes(
                    self.task, split.features, training
                )
            lines += [f"    {line}" for line in split_notes]
        return "\n".join(lines)


def _with_defined_classes(task: Task, data: DataConfig) -> Task:
    """Return a task with the classes that the training data define, if any.

    The classes keep their order in the data set, and so their numbers. The data
    set must have been read before.
    """
    many_columns = len(data.label_column or ()) > 1
    if not task.has_classes or task.labels or many_columns:
        return task
    source = next(iter(split_paths(task, data, "train").values()))
    classes = class_names(source)
    names = classes.get(task.label_column_in(classes), ())
    labels = tuple(label_text(name, str(source)) for name in names)
    legal = len(labels) >= task.fewest_labels and all(labels)
    return dataclasses.replace(task, labels=labels) if legal else task


def prepare(
    run: FinetuningConfig,
    data: DataConfig,
    task_config: TaskConfig,
    parts: Sequence[str] | None = None,
) -> Job:
    """Read and check all inputs before using a device; return the run's job.

    Args:
      run: the model and the actions.
      data: the task and the location of its examples.
      task_config: the settings for converting examples to inputs.
      parts: the parts of the data to read; None means the parts that the run
        needs.
    """
    run.check_output()
    config, tokenizer = run.encoder(), load_saved_tokenizer(run.source_dir)
    positions = config.max_position_embeddings
    task = choose_task(run, data, task_config, positions)
    config.check_length("max_seq_length", task.config.max_seq_length)
    config.check_pieces(tokenizer.vocab_size, run.source_dir)
    examples: dict[str, dict[str, Sequence]] = {}
    for part in run.parts() if parts is None else parts:
        examples[part] = read_splits(task, data, part)
        first = next(iter(examples[part].values()))
        if part == "train":
            task = _with_defined_classes(task, data).fitted(first)
            task.check_training(first, config)
        if part == "eval":
            task = task.evaluated_on(first)
    splits: dict[str, tuple] = dict.fromkeys(PARTS, ())
    for part, by_split in examples.items():
        sources = split_paths(task, data, part)
        for name, rows in by_split.items():
            features = task.features(rows, tokenizer)
            full_name = "_".join(filter(None, (part, name)))
            source = str(sources[name])
            splits[part] += (Split(full_name, rows, features, source),)
    return Job(task, config, tokenizer, **splits)
