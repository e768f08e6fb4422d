"""Everything that is said about a fine-tuning run."""

import dataclasses
import math

from albert_tf.base import settings
from albert_tf.base.errors import require
from albert_tf.finetuning import directory
from albert_tf.finetuning.job import FinetuningConfig
from albert_tf.finetuning.recipes import RecipeConfig
from albert_tf.tasks.task_config import DataConfig, TaskConfig
from albert_tf.training.machines.distribution import DistributionConfig
from albert_tf.training.machines.precision import with_dtype
from albert_tf.training.optimization.optimizers import OptimizerConfig
from albert_tf.training.runs.run import Hook
from albert_tf.training.step.training_config import LARGEST_SEED, TrainingConfig

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
        folder = directory.seed_dir(self.run.output_dir, seed)
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
