"""Run every step of a project on a corpus that needs no download.

    python examples/demo/pipeline.py --output_dir=demo

`make demo` also starts the demo. The demo begins with the docstrings of the
installed Python packages and ends with a SavedModel that accepts strings. Every
step after the corpus is a command that a user would type. The demo skips steps
that have already succeeded in the output folder.
"""

import dataclasses
import os
import shlex
import subprocess
import sys
import time

import corpus
import numpy as np
from scipy import stats

from albert_tf.base import files, program
from albert_tf.base.errors import require
from albert_tf.base.settings import Validated, setting

with program.quiet_start():
    from albert_tf.data.records import input_pipeline, metadata
    from albert_tf.data.records.metadata import read_metadata
    from albert_tf.finetuning.evaluation import METRICS_FILE
    from albert_tf.model.config import AlbertConfig
    from albert_tf.training.history import CURVES_FILE, History

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))

# This model is small enough to train in minutes on two cores, and it has
# several layers that share weights.
MODEL = AlbertConfig(
    vocab_size=8000,
    embedding_size=128,
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=64,
)

FINETUNING = """finetune.py --task=classification
    --train_file={dir}/corpus/task/train.tsv
    --eval_file={dir}/corpus/task/dev.tsv
    --text_column=sentence --label_column=label --max_seq_length=64
    --model_dir={dir}/pretrained --do_train --do_eval
    --num_train_steps={finetuning_steps} --eval_steps=100
    --learning_rate=2e-4 --bias_correction --beta_2=0.98"""
TESTING = """finetune.py --task=classification --do_eval
    --eval_file={dir}/corpus/task/test.tsv"""

# {step: arguments of `python`, a script or module and its flags}
STEPS = {
    "tokenizer": """-m albert_tf.train_tokenizer
        --input_file={dir}/corpus/corpus.txt --output_dir={dir}/tokenizer
        --vocab_size=8000""",
    "records": """create_pretraining_data.py
        --input_file={dir}/corpus/corpus.txt
        --spm_model_file={dir}/tokenizer/spiece.model
        --output_dir={dir}/records --max_seq_length=64 --dupe_factor=4
        --masking=dynamic --eval_fraction=0.03""",
    "pretraining": """pretrain.py --data_dir={dir}/records
        --albert_config_file={dir}/demo_model.json
        --output_dir={dir}/pretrained --budget_hours={pretraining_hours}""",
    "fine-tuning": f"{FINETUNING} --output_dir={{dir}}/finetuned",
    "fine-tuning-from-random-weights": f"""{FINETUNING} --init=random
        --output_dir={{dir}}/finetuned_random""",
    "testing-finetuned": f"""{TESTING} --model_dir={{dir}}/finetuned
        --output_dir={{dir}}/test""",
    "testing-finetuned_random": f"""{TESTING}
        --model_dir={{dir}}/finetuned_random
        --output_dir={{dir}}/test_random""",
    "export-finetuned": """-m albert_tf.export --model_dir={dir}/finetuned
        --export_dir={dir}/export/finetuned""",
    "export-pretrained": """-m albert_tf.export --model_dir={dir}/pretrained
        --export_dir={dir}/export/pretrained""",
}
# Folders with the metrics on the test examples.
TESTED = {"finetuned": "test", "finetuned_random": "test_random"}


def arguments(step: str, **values: object) -> list[str]:
    """Return a step's arguments for `python`, with `values` filled in."""
    return [word.format(**values) for word in shlex.split(step)]


def run_step(output_dir: str, name: str, words: list[str]) -> None:
    """Run Python with arguments unless a marker shows an earlier success."""
    marker = files.join(output_dir, "steps", f"{name}.txt")
    shown = shlex.join(["python", *words]) + "\n"
    if files.exists(marker) and files.read_text(marker, "") == shown:
        print(f"{name}: already done", flush=True)
        return
    print(f"\n{name}\n$ {shown}", end="", flush=True)
    start = time.monotonic()
    script = words if words[0] == "-m" else [files.join(ROOT, words[0])]
    line = [sys.executable, *script, *words[len(script) :]]
    process = subprocess.Popen(line)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()  # The step also received Ctrl-C and is saving.
        raise
    rule = (
        f"The step `{name}` failed; its output explains why. Run the "
        "demo again to resume from this step."
    )
    require(status == 0, rule, status=status)
    files.write_text(marker, shown)
    print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)


def make_corpus(folder: str) -> None:
    """Create the corpus and the task unless they exist; print their sizes."""
    path = files.join(folder, corpus.STATISTICS_FILE)
    if not files.exists(path):
        print("Collecting docstrings of the installed packages", flush=True)
        corpus.write_corpus(folder, np.random.default_rng(0))
    statistics = files.read_json(path, "The statistics")
    print(f"corpus: {statistics['words']:,} words, {folder}")
    for split, labels in statistics["task"].items():
        print(f"{split}: {sum(labels.values())} examples, {labels}", flush=True)


def unigram_entropy(data_dir: str) -> float:
    """Return the entropy, in nats, of the masked words in held-out records.

    No model that ignores context can have a lower MLM loss on these records.
    """
    metadata = read_metadata(data_dir)
    counts = np.zeros(metadata.vocab_size)
    for batch in input_pipeline.eval_batches(data_dir, metadata, batch_size=64):
        ids = batch["masked_lm_ids"].numpy()
        np.add.at(counts, ids[batch["masked_lm_weights"].numpy() > 0], 1)
    return float(stats.entropy(counts))


def shown(share: float, number: int) -> str:
    """Format a share with its Wilson interval and the number of examples."""
    trials = stats.binomtest(round(share * number), number)
    low, high = trials.proportion_ci(method="wilson")
    return f"{share:.1%} (95%: {low:.1%} to {high:.1%}, {number} examples)"


def print_pretraining(output_dir: str) -> None:
    """Print held-out metrics at the first and the last evaluation."""
    model_dir = files.join(output_dir, "pretrained")
    data_dir = files.join(output_dir, "records")
    history = History.read(model_dir)
    print("\nHeld-out metrics during pretraining")
    for name in ("mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy"):
        at, values = history.column("eval", name)
        print(
            f"  {name:13} {values[0]:.4f} at step {at[0]}, "
            f"{values[-1]:.4f} at step {at[-1]}"
        )
    number = read_metadata(data_dir).count(metadata.EVAL)
    sop = history.column("eval", "sop_accuracy")[1][-1]
    entropy = unigram_entropy(data_dir)
    print(f"  unigram entropy of the masked words {entropy:.4f}")
    print(f"  sentence order {shown(sop, number)}, chance 50%")
    print(f"  curves: {files.join(model_dir, CURVES_FILE)}")


def print_finetuning(output_dir: str) -> None:
    """Print test accuracies of the models and of the majority class."""
    path = files.join(output_dir, "corpus", corpus.STATISTICS_FILE)
    labels = files.read_json(path, "The statistics")["task"]["test"].values()
    print("\nWhich library does a docstring come from? Accuracy on test")
    for name, folder in TESTED.items():
        metrics = files.join(output_dir, folder, METRICS_FILE)
        values = files.read_json(metrics, "The metrics")["eval"]
        accuracy = shown(values["accuracy"], values["examples"])
        print(f"  {name:16} {accuracy}")
    print(f"  {'majority class':16} {max(labels) / sum(labels):.1%}")


def ask(output_dir: str) -> None:
    """Load the SavedModels in a fresh process and print their answers."""
    exports = [
        files.join(output_dir, "export", name)
        for name in ("finetuned", "pretrained")
    ]
    client = files.join(ROOT, "examples", "demo", "client.py")
    print("\nThe SavedModels, loaded by a process without this package")
    result = subprocess.run(
        [sys.executable, client, *exports], stderr=subprocess.PIPE
    )
    if result.returncode:
        print(result.stderr.decode(), end="", file=sys.stderr)
    require(
        not result.returncode,
        "The exported models could not be queried.",
        exports=exports,
    )


@dataclasses.dataclass(frozen=True)
class DemoConfig(Validated):
    """The output and the length of the runs."""

    output_dir: str = setting("demo", "Folder for all output.")
    pretraining_hours: float = setting(
        0.1, "Hours of pretraining.", minimum=0.001
    )
    finetuning_steps: int = setting(200, "Steps of fine-tuning.", minimum=2)

    def __post_init__(self):
        super().__post_init__()
        rule = "`output_dir` must be given."
        require(self.output_dir, rule, output_dir=repr(self.output_dir))


@program.command(DemoConfig)
def demo(config: DemoConfig) -> None:
    """Run the unfinished steps from docstrings to a served model."""
    start, output_dir = time.monotonic(), config.output_dir
    path = files.join(output_dir, "demo_model.json")
    files.write_text(path, MODEL.to_json())
    make_corpus(files.join(output_dir, "corpus"))
    values = {"dir": output_dir} | vars(config)
    for name, step in STEPS.items():
        run_step(output_dir, name, arguments(step, **values))
    print_pretraining(output_dir)
    print_finetuning(output_dir)
    ask(output_dir)
    minutes = (time.monotonic() - start) / 60
    print(f"\nDone in {minutes:.1f} minutes; see {output_dir}/")


if __name__ == "__main__":
    demo.program.cli()
