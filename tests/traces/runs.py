"""Traced runs of the recipes in `configs/pretraining` and of kinds of tasks.

A run takes 100 steps with a small model and records the losses and gradient
norm of every step. Recipes that are equal after reduction share a run. Runs use
only the public interface of `albert_tf`, so traces do not depend on the
locations of modules.
"""

import ast
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traces import texts

import albert_tf

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "configs" / "pretraining"
STEPS = 100
TOKENS = 32

SMALL_MODEL = {
    "vocab_size": len(texts.PIECES),
    "embedding_size": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
MOST_LAYERS = 4
# Recipes that train on phoneme records.
OF_PHONEMES = ("phonemes_one_hour", "plbert")

SMALL_RUN = {
    "num_train_steps": STEPS,
    "num_warmup_steps": 10,
    "train_batch_size": 16,
    "eval_batch_size": 16,
    "eval_steps": STEPS,
    "save_checkpoints_steps": STEPS,
    "steps_per_loop": 1,
    "do_eval": True,
}
# Runs use the settings that `budget_hours` chooses for `tiny`, because
# `budget_hours` itself depends on the clock. Schedules are expressed as shares
# of the steps.
CHOSEN = {
    "optimizer": "muon",
    "learning_rate": 0.002,
    "weight_decay_rate": 0.1,
    "beta_2": 0.98,
    "bias_correction": True,
    "mask_schedule": "0.30:0.7,0.20:0.2,0.15",
    "depth_schedule": "2:0.4,4",
    "initial_weights": "informed",
}

TASKS = {
    "classification": {},
    "multilabel": {},
    "regression": {},
    "multiple_choice": {"max_qa_length": 16},
    "question_answering": {"max_query_length": 4, "doc_stride": 8},
    "squad-2.0": {"max_query_length": 4, "doc_stride": 8},
    "token_classification": {},
    "embedding": {},
}


class Watch(albert_tf.Hook):
    """A hook that records the measurements of each step in `rows`."""

    def __init__(self):
        self.rows: list[dict[str, float]] = []

    def after(self, run, window):
        names = [n for n in window.values if n.endswith("_loss")]
        names += ["gradient_norm", "learning_rate"]
        self.rows.append({name: window.values[name] for name in names})


@dataclasses.dataclass(frozen=True)
class Trace:
    """The measurements of a run.

    Attributes:
      recipes: the recipes or kinds of tasks that the run represents.
      rows: {loss, gradient norm or rate: value} of each step.
      evaluation: {metric: value} on held-out examples after the last step.
    """

    recipes: list[str]
    rows: list[dict[str, float]]
    evaluation: dict[str, float]


def read_flags(recipe: str) -> dict[str, Any]:
    """Return the settings in a recipe's flagfile."""
    settings = {}
    for line in (RECIPES / f"{recipe}.flags").read_text().splitlines():
        if line.startswith("--"):
            name, given, value = line[2:].partition("=")
            try:
                settings[name] = ast.literal_eval(value) if given else True
            except (SyntaxError, ValueError):
                settings[name] = value
    return settings


def made_small(recipe: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a recipe's settings and its model's config, both made smaller."""
    settings = read_flags(recipe)
    model = json.loads((ROOT / settings.pop("albert_config_file")).read_text())
    layers = min(model["num_hidden_layers"], MOST_LAYERS)
    model |= SMALL_MODEL | {"num_hidden_layers": layers}
    if settings.pop("budget_hours", None):
        settings = CHOSEN | settings
    pieces = min(settings.get("gradient_accumulation_steps", 1), 2)
    settings["gradient_accumulation_steps"] = pieces
    return settings | SMALL_RUN, model


def distinct_recipes() -> dict[str, list[str]]:
    """Return {name: recipes that are equal after reduction}."""
    groups: dict[str, list[str]] = {}
    for path in sorted(RECIPES.glob("*.flags")):
        if path.stem in OF_PHONEMES:
            continue
        # Model names do not affect training.
        key = json.dumps(made_small(path.stem), sort_keys=True)
        groups.setdefault(key, []).append(path.stem)
    return {recipes[0]: recipes for recipes in groups.values()}


def build_records(folder: Path, **settings) -> str:
    """Build records of synthetic text; return their folder."""
    records = folder / "records"
    albert_tf.create_pretraining_data(
        input_file=str(texts.write_text(folder)),
        vocab_file=str(folder / "vocab.txt"),
        output_dir=str(records),
        max_seq_length=TOKENS,
        eval_fraction=0.1,
        num_shards=1,
        num_processes=1,
        **{"dupe_factor": 2} | settings,
    )
    return str(records)


def write_model(folder: Path, model: Mapping[str, Any]) -> str:
    """Write a model's config; return its path."""
    path = folder / "albert_config.json"
    path.write_text(json.dumps(model))
    return str(path)


def begin_model(folder: Path, data_dir: str, config_file: str) -> str:
    """Write the model directory of a 10-step run; return its path."""
    output_dir = str(folder / "begun")
    albert_tf.pretrain(
        data_dir=data_dir,
        albert_config_file=config_file,
        output_dir=output_dir,
        initial_weights="informed",
        **SMALL_RUN | {"num_train_steps": 10, "learning_rate": 0.01},
    )
    return output_dir


def pretrain(
    folder: Path,
    recipes: list[str],
    records: Mapping[str, Any],
    **more,
) -> Trace:
    """Pretrain with recipes that are equal after reduction; return the trace.

    Args:
      folder: an empty folder for all output.
      recipes: the names of the recipes' flagfiles.
      records: settings of the builder.
      **more: additional settings.
    """
    settings, model = made_small(recipes[0])
    if "mask_schedule" in settings:
        records = {"masking": "dynamic"} | dict(records)
    data_dir, watch = build_records(folder, **records), Watch()
    config_file = write_model(folder, model)
    if recipes == ["domain"]:  # starts from a model
        begun = begin_model(folder, data_dir, config_file)
        settings["init_checkpoint"] = begun
    result = albert_tf.pretrain(
        data_dir=data_dir,
        albert_config_file=config_file,
        output_dir=str(folder / "output"),
        hooks=[watch],
        **settings | more,
    )
    return Trace(recipes, watch.rows, result.metrics["eval"])


def pretrain_on_phonemes(folder: Path) -> Trace:
    """Pretrain on rows of the text in which each character is a phoneme."""
    lines = texts.write_text(folder).read_text().splitlines()
    words = [line.split() for line in lines]
    rows = [{"words": x, "phonemes": x, "document": 0} for x in words if x]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    records = str(folder / "records")
    albert_tf.create_pretraining_data(
        task="phonemes",
        input_file=str(path),
        output_dir=records,
        max_seq_length=TOKENS,
        eval_fraction=0.1,
        symbols="auto",
        num_processes=1,
    )
    settings, model = made_small("plbert")
    settings |= {"learning_rate": 0.001, "num_warmup_steps": 10}
    watch = Watch()
    result = albert_tf.pretrain(
        data_dir=records,
        albert_config_file=write_model(folder, model),
        output_dir=str(folder / "output"),
        hooks=[watch],
        **settings,
    )
    return Trace([*OF_PHONEMES], watch.rows, result.metrics["eval"])


def finetune(folder: Path, task: str) -> Trace:
    """Fine-tune a small model on a task; return the trace."""
    model = made_small("base")[1] | {"initializer_range": 0.2}
    begun = begin_model(
        folder, build_records(folder), write_model(folder, model)
    )
    watch = Watch()
    result = albert_tf.finetune(
        task=task,
        model_dir=begun,
        output_dir=str(folder / "output"),
        train_file=texts.write_task(folder / "train", task, 200, 1),
        eval_file=texts.write_task(folder / "eval", task, 40, 2),
        max_seq_length=TOKENS,
        learning_rate=1e-4,  # with a higher rate, rounding errors grow
        do_train=True,
        hooks=[watch],
        **SMALL_RUN | TASKS[task],
    )
    return Trace([task], watch.rows, result.metrics["eval"])


def all_runs() -> dict[str, Callable[[Path], Trace]]:
    """Return {name: function that performs the run in an empty folder}."""

    def of(*recipes, records=None, **more):
        return lambda folder: pretrain(
            folder, list(recipes), records or {}, **more
        )

    def of_task(task):
        return lambda folder: finetune(folder, task)

    google = {"compat": "google"}
    return {
        **{name: of(*names) for name, names in distinct_recipes().items()},
        "two_replicas": of("base", num_cpu_replicas=2),
        "compat_google": of("base", records=google, **google),
        "phonemes": pretrain_on_phonemes,
        "next_sentence": of("domain", records={"random_next_sentence": True}),
        **{f"task_{task}": of_task(task) for task in TASKS},
    }
