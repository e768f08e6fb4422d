"""The main job on a corpus that needs no download: `make demo`.

From the docstrings of the installed Python packages to a SavedModel that
answers raw strings. Every step is a command that a user would type; a step
whose command has already succeeded in the output folder is skipped.
"""

import dataclasses
import math
import os
import shlex
import subprocess
import sys
import time

import numpy as np

from albert_tf.base import files, settings
from albert_tf.base.errors import InputError
from albert_tf.base.settings import setting, validate
from albert_tf.data import records
from albert_tf.data.records import find, input_pipeline
from albert_tf.demo.corpus import CORPUS_FILE, TASK_DIR
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.scoring import METRICS_FILE
from albert_tf.training.history import CURVES_FILE, History

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL_FILE = "demo_model.json"

# Small enough for minutes on two cores, deep enough to share layers.
MODEL = AlbertConfig(
    vocab_size=8000,
    embedding_size=128,
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=64,
)
LENGTH = MODEL.max_position_embeddings


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Where the demo works, and how long it trains."""

    output_dir: str = setting("demo", "Folder for everything.")
    pretraining_steps: int = setting(2500, "Steps of pretraining.", minimum=2)
    finetuning_steps: int = setting(200, "Steps of fine-tuning.", minimum=2)

    def __post_init__(self):
        validate(self)


@dataclasses.dataclass(frozen=True)
class Step:
    """One command of the demo: a script or `-m MODULE`, and its flags."""

    name: str
    program: str
    flags: dict[str, object]

    def command(self, python: str, root: str) -> list[str]:
        """Return the command line; `root` is the folder of the scripts."""
        head, *module = self.program.split()
        head = head if module else os.path.join(root, head)
        flags = [f"--{name}={value}" for name, value in self.flags.items()]
        return [python, head, *module, *flags]

    def run(self, output_dir: str, number: str) -> None:
        """Run the command unless its marker says that it has succeeded."""
        marker = files.join(output_dir, "steps", f"{self.name}.txt")
        shown = shlex.join(self.command("python", "")) + "\n"
        if os.path.exists(marker) and files.read_text(marker, "") == shown:
            print(f"[{number}] {self.name}: already done", flush=True)
            return
        print(f"\n[{number}] {self.name}\n$ {shown}", end="", flush=True)
        start = time.monotonic()
        status = subprocess.run(self.command(sys.executable, ROOT)).returncode
        if status:
            raise InputError(
                f"The step `{self.name}` failed with status {status}; what it "
                "printed says why. The demo goes on from here when run again"
            )
        files.write_text(marker, shown)
        print(f"{self.name}: {time.monotonic() - start:.0f} s", flush=True)


def steps(config: DemoConfig) -> list[Step]:
    """Return the commands of the demo, in order."""

    def path(*names: str) -> str:
        return files.join(config.output_dir, *names)

    corpus, task = path("corpus", CORPUS_FILE), path("corpus", TASK_DIR)
    finetuning = {
        "task": "classification",
        "train_file": files.join(task, "train.tsv"),
        "eval_file": files.join(task, "dev.tsv"),
        "text_column": "sentence",
        "label_column": "label",
        "max_seq_length": LENGTH,
        "model_dir": path("pretrained"),
        "do_train": True,
        "do_eval": True,
        "num_train_steps": config.finetuning_steps,
        "eval_steps": 100,
        "learning_rate": 2e-4,
    }
    testing = {
        "task": "classification",
        "eval_file": files.join(task, "test.tsv"),
        "do_eval": True,
    }
    return [
        Step(
            "corpus",
            "-m albert_tf.demo.corpus",
            {"output_dir": path("corpus")},
        ),
        Step(
            "tokenizer",
            "-m albert_tf.train_tokenizer",
            {
                "input_file": corpus,
                "output_dir": path("tokenizer"),
                "vocab_size": MODEL.vocab_size,
            },
        ),
        Step(
            "records",
            "create_pretraining_data.py",
            {
                "input_file": corpus,
                "spm_model_file": path("tokenizer", "spiece.model"),
                "output_dir": path("records"),
                "max_seq_length": LENGTH,
                "dupe_factor": 4,
                "eval_fraction": 0.03,
            },
        ),
        Step(
            "pretraining",
            "pretrain.py",
            {
                "data_dir": path("records"),
                "albert_config_file": path(MODEL_FILE),
                "output_dir": path("pretrained"),
                "num_train_steps": config.pretraining_steps,
                "train_batch_size": 64,
                "optimizer": "lamb",
                "learning_rate": 0.01,
                "num_warmup_steps": config.pretraining_steps // 10,
                "eval_steps": config.pretraining_steps // 10,
            },
        ),
        Step(
            "fine-tuning",
            "finetune.py",
            {**finetuning, "output_dir": path("finetuned")},
        ),
        Step(
            "fine-tuning-from-random-weights",
            "finetune.py",
            {
                **finetuning,
                "output_dir": path("finetuned_random"),
                "init": "random",
            },
        ),
        *(
            Step(
                f"testing-{name}",
                "finetune.py",
                {**testing, "model_dir": path(name), "output_dir": path(to)},
            )
            for name, to in TESTED.items()
        ),
        *(
            Step(
                f"export-{name}",
                "-m albert_tf.export",
                {"model_dir": path(name), "export_dir": path("export", name)},
            )
            for name in ("finetuned", "pretrained")
        ),
    ]


# Folders of the metrics on the test examples.
TESTED = {"finetuned": "test", "finetuned_random": "test_random"}


def unigram_entropy(data_dir: str) -> float:
    """Return the entropy in nats of the masked words of held-out records.

    No model that ignores the context has a lower MLM loss on them.
    """
    metadata = find.read_metadata(data_dir)
    counts = np.zeros(metadata.vocab_size)
    for batch in input_pipeline.eval_batches(data_dir, metadata, batch_size=64):
        ids = batch["masked_lm_ids"].numpy()
        np.add.at(counts, ids[batch["masked_lm_weights"].numpy() > 0], 1)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def interval(share: float, number: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of a number of trials."""
    z2 = 1.959964**2
    middle = (share + z2 / (2 * number)) / (1 + z2 / number)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * number)) / number)
    half /= 1 + z2 / number
    return middle - half, middle + half


def shown(share: float, number: int) -> str:
    """Return a share with its interval and the number of examples."""
    low, high = interval(share, number)
    return f"{share:.1%} (95 %: {low:.1%} to {high:.1%}, {number} examples)"


def print_pretraining(output_dir: str) -> None:
    """Print held-out losses at the first and the last evaluation."""
    model_dir = files.join(output_dir, "pretrained")
    data_dir = files.join(output_dir, "records")
    history = History.read(model_dir)
    print("\nHeld-out while pretraining")
    for name in ("mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy"):
        at, values = history.column("eval", name)
        print(
            f"  {name:13} {values[0]:.4f} at step {at[0]}, "
            f"{values[-1]:.4f} at step {at[-1]}"
        )
    number = find.read_metadata(data_dir).count(records.EVAL)
    sop = history.column("eval", "sop_accuracy")[1][-1]
    entropy = unigram_entropy(data_dir)
    print(f"  unigram entropy of the masked words {entropy:.4f}")
    print(f"  sentence order {shown(sop, number)}, chance 50 %")
    print(f"  curves: {files.join(model_dir, CURVES_FILE)}")


def print_finetuning(output_dir: str) -> None:
    """Print test accuracy beside that of random weights and the majority."""
    path = files.join(output_dir, "corpus", TASK_DIR, "test.tsv")
    rows = files.read_text(path, "The test file").splitlines()[1:]
    labels = [row.rsplit("\t", 1)[1] for row in rows]
    majority = max(map(labels.count, set(labels))) / len(labels)
    print("\nWhich library does a docstring come from: accuracy on test")
    for name, folder in TESTED.items():
        metrics = files.join(output_dir, folder, METRICS_FILE)
        values = files.read_json(metrics, "The metrics")["eval"]
        accuracy = shown(values["accuracy"], values["examples"])
        print(f"  {name:16} {accuracy}")
    print(f"  {'majority class':16} {majority:.1%}")


def ask(output_dir: str) -> None:
    """Load the SavedModels in a fresh process and print their answers."""
    folders = [
        files.join(output_dir, "export", name)
        for name in ("finetuned", "pretrained")
    ]
    program = os.path.join(ROOT, "albert_tf", "demo_client.py")
    print("\nThe SavedModels, loaded by a process without this package")
    if subprocess.run([sys.executable, program, *folders]).returncode:
        raise InputError(
            f"The exported models could not be asked. Received: {folders}"
        )


def demo(config: DemoConfig) -> None:
    """Run what is not yet done, and print what came out of it."""
    start = time.monotonic()
    files.write_text(files.join(config.output_dir, MODEL_FILE), MODEL.to_json())
    todo = steps(config)
    for i, step in enumerate(todo, 1):
        step.run(config.output_dir, f"{i}/{len(todo)}")
    print_pretraining(config.output_dir)
    print_finetuning(config.output_dir)
    ask(config.output_dir)
    minutes = (time.monotonic() - start) / 60
    print(f"\nDone in {minutes:.1f} minutes; see {config.output_dir}/")


def main() -> None:
    """Run the demo as the flags say."""
    demo(settings.from_flags(DemoConfig))


def cli() -> None:
    """Run as a console script."""
    settings.define_flags(DemoConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
