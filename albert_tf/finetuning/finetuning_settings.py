"""Every setting of a fine-tuning run."""

import dataclasses
import math
import os

from albert_tf.base import files, settings
from albert_tf.base.errors import require
from albert_tf.base.settings import setting, validate
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.registry import is_finetuned
from albert_tf.tasks.task import PARTS
from albert_tf.tasks.task_config import DataConfig, TaskConfig
from albert_tf.training.distribution import DistributionConfig, with_dtype
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.run import Hook
from albert_tf.training.training_config import LARGEST_SEED, TrainingConfig

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


def seed_dir(output_dir: str, seed: int) -> str:
    """Return the model directory of the run with a seed."""
    return files.join(output_dir, f"seed_{seed}")


# From here on small models forget what they know in steps that are too long.
HIGH_RATE = 1e-4


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that is said about a fine-tuning run."""

    run: FinetuningConfig
    data: DataConfig
    task: TaskConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    devices: DistributionConfig
    recipe: RecipeConfig = RecipeConfig()
    hooks: tuple[Hook, ...] = ()  # beside the usual ones

    def configs(self) -> list:
        """Return what flags say: objects of `CONFIGS`."""
        return [getattr(self, f.name) for f in dataclasses.fields(self)][:-1]

    def check(self) -> None:
        """Refuse what does not go together, before anything is read."""
        evaluates = self.run.do_train and self.run.do_eval
        schedule, init = self.optimizer.schedule, self.run.init
        self.recipe.check_run(evaluates, schedule, init)
        require(
            not self.recipe.task_weights or "," in (self.data.task or ""),
            "`task_weights` needs several tasks, `task=A,B`.",
            task=self.data.task,
        )
        seed, number = self.training.random_seed, self.run.num_seeds
        rule = f"The last of `num_seeds` must be at most {LARGEST_SEED}."
        legal = seed + number - 1 <= LARGEST_SEED
        require(legal, rule, random_seed=seed, num_seeds=number)

    def advise(self) -> None:
        """Say what keeps the first steps of a high rate short."""
        rate = self.optimizer.learning_rate
        short = self.optimizer.bias_correction or not self.run.do_train
        if rate >= HIGH_RATE and not short:
            print(
                f"Note: at a rate of {rate:g} see whether --bias_correction "
                "--beta_2=0.98 does better; without, the first updates are up "
                "to six times as long"
            )

    def with_seed(self, seed: int) -> "Settings":
        """Return the settings of one of several runs, in its own folder."""
        folder = seed_dir(self.run.output_dir, seed)
        return dataclasses.replace(
            self,
            run=dataclasses.replace(self.run, output_dir=folder, num_seeds=1),
            training=dataclasses.replace(self.training, random_seed=seed),
        )

    def planned(self, examples: int) -> "Settings":
        """Work out steps, warm-up and cadence where the flags leave them open.

        Args:
          examples: to learn from.
        """
        training, warmup = self.training, self.optimizer.num_warmup_steps
        steps, batch = training.num_train_steps, training.train_batch_size
        if steps is None:
            wanted = examples * self.run.num_train_epochs / batch
            steps = max(1, math.ceil(wanted))
        if warmup is None:
            warmup = int(steps * self.run.warmup_proportion)
        return dataclasses.replace(
            self,
            optimizer=dataclasses.replace(
                self.optimizer, num_warmup_steps=warmup
            ),
            training=dataclasses.replace(
                training,
                num_train_steps=steps,
                eval_steps=training.eval_steps or math.ceil(examples / batch),
            ),
        )

    def with_dtype(self, strategy) -> "Settings":
        """Return the settings with the precision that `auto` stands for."""
        training = with_dtype(self.training, strategy)
        return dataclasses.replace(self, training=training)

    def write_flags(self) -> None:
        """Write flags that replay the run into the output directory."""
        settings.write_flagfile(self.run.output_dir, *self.configs())


CONFIGS = tuple(field.type for field in dataclasses.fields(Settings))[:-1]
