"""Count the modules that run on the main paths through the code.

    PYTHONPATH=tests python benchmarks/module_paths.py [--names]

Each path runs once on tiny data in a temporary folder, under `sys.setprofile`.
A module outside `base/` counts if one of its functions runs in any thread.
Functions converted by AutoGraph count for their original module. Code that runs
at import, and generated methods of dataclasses, do not count.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from unittest import mock

import exporting
import tensorflow as tf
import tiny
import tiny_tasks

import albert_tf
from albert_tf.data.records import input_pipeline
from albert_tf.data.records.metadata import read_metadata
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.serving.server import load_server
from albert_tf.serving.signatures import ServingConfig
from albert_tf.training.distribution import DistributionConfig, make_strategy
from albert_tf.training.objectives import PretrainingObjective
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.run import Hook
from albert_tf.training.trainer import Trainer
from albert_tf.training.training_config import TrainingConfig

PACKAGE = f"{Path(albert_tf.__file__).parent}/"
TRAINING = TrainingConfig(num_train_steps=4, train_batch_size=8)
# The functions of a build that convert text to records.
TEXT_TO_RECORD = ("deal_block", "ShardStore.add", "make_file")


def import_everything() -> None:
    """Import all modules before tracing, because imports may call functions."""
    for module in pkgutil.walk_packages(albert_tf.__path__, "albert_tf."):
        with contextlib.suppress(ImportError):  # optional extras
            importlib.import_module(module.name)


def module_of(frame) -> str | None:
    """Return the module of this package that a frame runs, or None."""
    path = frame.f_code.co_filename
    name = frame.f_globals.get("__name__", "")
    generated = "autograph_generated" in path and name.startswith("albert_tf.")
    if generated:
        return name.removeprefix("albert_tf.")
    if path.startswith(PACKAGE):
        return path[len(PACKAGE) :].removesuffix(".py").replace("/", ".")
    return None


@contextlib.contextmanager
def traced(within: Collection[str] = ()) -> Iterator[dict[str, None]]:
    """Collect the modules that run within the `with` block, in order.

    Args:
      within: qualified names of functions; if there are any, only calls inside
        these functions count.
    """
    modules: dict[str, None] = {}
    depth = [not within]

    def profile(frame, event, _):
        root = frame.f_code.co_qualname in within
        if event == "call" and (module := module_of(frame)):
            depth[0] += root
            if depth[0] and frame.f_code.co_name != "<module>":
                modules[module] = None
        elif event == "return" and root and module_of(frame):
            depth[0] -= 1

    def numpy_function(function, *args, **kwargs):
        def call(*arrays):
            sys.setprofile(profile)
            try:
                return function(*arrays)
            finally:
                sys.setprofile(None)

        return of_tensorflow(call, *args, **kwargs)

    of_tensorflow = tf.numpy_function
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        # TensorFlow calls NumPy functions in its own threads.
        with mock.patch.object(tf, "numpy_function", numpy_function):
            yield modules
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


class EndOfFirstStep(Exception):
    """An exception that ends a run after the first step."""


class StopAtOnce(Hook):
    """A hook that raises an exception after the first step."""

    every = 1

    def after(self, run, window):
        raise EndOfFirstStep


def text_to_record(folder: Path) -> dict[str, None]:
    """Build records from a tiny corpus; return the modules that ran."""
    texts = [text for text, _ in tiny_tasks.opinions(400, 1)]
    paragraphs = ["\n".join(texts[i : i + 8]) for i in range(0, 400, 8)]
    corpus = folder / "corpus.txt"
    corpus.write_text("\n\n".join(paragraphs))
    albert_tf.train_tokenizer(
        input_file=str(corpus), output_dir=str(folder / "t"), vocab_size=50
    )
    with traced(TEXT_TO_RECORD) as modules:
        albert_tf.create_pretraining_data(
            input_file=str(corpus),
            spm_model_file=str(folder / "t/spiece.model"),
            output_dir=str(folder / "records"),
            max_seq_length=32,
            num_processes=1,
            eval_fraction=0.1,
            masking="dynamic",
        )
    return modules


def model_config(folder: Path):
    """Return the config of a tiny model with the vocabulary of the records."""
    size = read_metadata(str(folder / "records")).vocab_size
    return dataclasses.replace(
        tiny.CONFIG, vocab_size=size, max_position_embeddings=32
    )


def pretrain_to_first_step(folder: Path) -> dict[str, None]:
    """Pretrain until the first step has run; return the modules that ran."""
    config = folder / "albert_config.json"
    config.write_text(model_config(folder).to_json())
    run = functools.partial(
        albert_tf.pretrain,
        data_dir=str(folder / "records"),
        albert_config_file=str(config),
        num_train_steps=4,
        train_batch_size=8,
        num_warmup_steps=2,
        steps_per_loop=1,
    )
    with traced() as modules, contextlib.suppress(EndOfFirstStep):
        run(output_dir=str(folder / "stopped"), hooks=[StopAtOnce()])
    run(output_dir=str(folder / "model"))
    return modules


def training_step(folder: Path) -> dict[str, None]:
    """Run one step on dynamic records; return the modules that ran."""
    records, config = str(folder / "records"), model_config(folder)
    read = functools.partial(
        input_pipeline.train_batches, records, read_metadata(records), seed=1
    )
    trainer = Trainer(
        make_strategy(DistributionConfig()),
        lambda: AlbertForPretraining(config, TRAINING.dtype_policy),
        PretrainingObjective(),
        OptimizerConfig(num_warmup_steps=2),
        TRAINING,
    )
    with traced() as modules:
        trainer.run_steps(trainer.iterator(read, 0), tf.constant(1))
    return modules


def row_to_metric(folder: Path) -> dict[str, None]:
    """Evaluate a classifier on a table; return the modules that ran."""
    table = tiny_tasks.write_opinions(folder / "t.tsv", 32, 0)
    run = functools.partial(
        albert_tf.finetune, task="classification", eval_file=table
    )
    run(
        train_file=table,
        model_dir=str(folder / "model"),
        output_dir=str(folder / "tuned"),
        do_train=True,
        num_train_steps=2,
        train_batch_size=8,
        max_seq_length=16,
        num_warmup_steps=1,
    )
    with traced() as modules:
        run(
            model_dir=str(folder / "tuned"),
            output_dir=str(folder / "scored"),
            do_eval=True,
        )
    return modules


def question_to_answer(folder: Path) -> dict[str, None]:
    """Answer a question with a served model; return the modules that ran."""
    path = str(folder / "questions")
    task = exporting.question_task("simple")
    exporting.model_dir(path, str(folder / "model"), task)
    with traced() as modules:
        server = load_server(path, ServingConfig())
        answer = exporting.concrete(server, "answer")["answer"]
        answer(
            question=tf.constant(["is it good"]),
            context=tf.constant(["the film was very good and great"]),
        )
    return modules


PATHS = {
    "text to record": text_to_record,
    "`pretrain()` to its first step": pretrain_to_first_step,
    "training step with dynamic records": training_step,
    "table row to metric": row_to_metric,
    "question to served answer": question_to_answer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--names", action="store_true", help="list the modules")
    names = parser.parse_args().names
    import_everything()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for path, run in PATHS.items():
            modules = [m for m in [*run(Path(folder))] if m[:5] != "base."]
            rows.append(f"{len(modules):3} {path}")
            rows += [f"      {m}" for m in modules] * names
    print("\n".join(rows))


if __name__ == "__main__":
    main()
