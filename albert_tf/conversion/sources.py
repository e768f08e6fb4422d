"""Models as they lie in the files of other projects and of this one."""

import dataclasses
import itertools
import math
import os

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.conversion import fast_tokenizer, huggingface, tf1
from albert_tf.conversion.huggingface_heads import (
    WITHOUT_POOLER,
    head_places,
    read_task,
)
from albert_tf.conversion.named_tensors import Tensors, to_ours
from albert_tf.conversion.released_models import recognise
from albert_tf.conversion.released_names import (
    HUGGING_FACE,
    MODEL_DIR,
    Layout,
    Place,
)
from albert_tf.model.config import CONFIG_FILE, PRETRAINING_HEADS, AlbertConfig
from albert_tf.tasks.labels import shown
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import Task
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizers import (
    Tokenizer,
    tokenizer_from_files,
    tokenizer_in,
)
from albert_tf.training.model_directory import checkpoints
from albert_tf.training.model_directory.checkpoints import BEST, OPTIMIZER
from albert_tf.training.optimization.weight_average import AVERAGE

HEAD_TITLES = dict(
    zip(PRETRAINING_HEADS, ("masked-LM", "sentence-order"), strict=True)
)

# By the setting that names a vocabulary: its files' names, the surest first.
VOCABULARIES = {
    "spm_model_file": ("spiece.model", "*.model"),
    "vocab_file": ("vocab.txt", "vocab*.txt"),
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A model that was found in some kind of file.

    Attributes:
      layout: the kind of file.
      path: the checkpoint or the weights file.
      config: its architecture.
      tensors: its tensors under our names, with the head of its task.
      tokenizer: its tokenizer, None if no vocabulary stands beside it.
      warnings: what the user should know.
      folder: the model directory or the folder of the weights.
      task: what it was fine-tuned for, None if it was not.
    """

    layout: Layout
    path: str
    config: AlbertConfig
    tensors: Tensors
    tokenizer: Tokenizer | None
    warnings: list[str]
    folder: str = ""
    task: Task | None = None


def find_tokenizer(folders: list[str], **text: bool) -> Tokenizer | None:
    """Return the tokenizer of a vocabulary in one of some folders, or None.

    Args:
      folders: where to look.
      **text: settings of `TextConfig` that differ from the released ones.
    """
    for setting, patterns in VOCABULARIES.items():
        for pattern, folder in itertools.product(patterns, folders):
            paths = files.matches(pattern, folder)
            rule = "Only one vocabulary may stand beside the weights."
            require(len(paths) < 2, rule, vocabularies=", ".join(paths))
            if paths:
                return tokenizer_from_files(**{setting: paths[0]}, **text)
    return None


def open_tf1(prefix: str, config_file: str | None) -> Source:
    """Open a TF1 checkpoint, its config and its vocabulary."""
    tensors = tf1.open_checkpoint(prefix)
    config, warnings = tf1.read_config(
        config_file or tf1.find_config(prefix), tensors
    )
    layout = tf1.layout_of(tensors)
    folder = os.path.dirname(prefix)
    assets = files.join(os.path.dirname(folder), tf1.HUB_ASSETS)
    return Source(
        layout,
        prefix,
        config,
        to_ours(tensors, config, layout, prefix),
        find_tokenizer([folder, assets]),
        warnings,
    )


def is_of_head(name: str) -> bool:
    """Return whether a variable of a fine-tuned model is of its head."""
    return not name.startswith(("albert/", OPTIMIZER, *PRETRAINING_HEADS))


def open_model_dir(prefix: str, config_file: str | None) -> Source:
    """Open a checkpoint of a model directory."""
    folder = os.path.dirname(prefix)
    if os.path.basename(folder) == BEST:
        folder = os.path.dirname(folder)
    shapes = {n: tuple(s) for n, s in checkpoints.read_table(prefix).items()}
    task = load_task(folder) if is_finetuned(folder) else None
    head = {n: Place(n, s) for n, s in shapes.items() if task and is_of_head(n)}
    tensors = Tensors(shapes, checkpoints.reader(prefix))
    # Of a task, what was frozen has no slots; averages have no place.
    left_out = OPTIMIZER if task else AVERAGE
    averaged = any(name.startswith(AVERAGE) for name in shapes)
    tensors = tensors.where(lambda name: not name.startswith(left_out))
    config_file = config_file or files.join(folder, CONFIG_FILE)
    config = AlbertConfig.from_json_file(config_file)
    return Source(
        MODEL_DIR,
        prefix,
        config,
        to_ours(tensors, config, MODEL_DIR, prefix, head),
        tokenizer_in(folder),
        [f"the averages of weights are left out; see {BEST}/"] * averaged,
        folder,
        task,
    )


def open_huggingface(
    folder: str, config_file: str | None, pairs: bool
) -> Source:
    """Open a Hugging Face folder, with the head of a task."""
    path = files.join(folder, huggingface.CONFIG)
    config, warnings = huggingface.read_config(path)
    if config_file:
        config, warnings = AlbertConfig.from_json_file(config_file), []
    tensors, weights = huggingface.open_weights(folder, config)
    values = files.read_json(path, "`config.json`")
    if values.get("architectures") in (None, []):
        values["architectures"] = [huggingface.architecture_of(tensors)]
    names = values["architectures"]
    rule = "`architectures` must be a list of names."
    require(isinstance(names, list), rule, architectures=names)
    task = read_task(folder, values, config.max_position_embeddings, pairs)
    lacks = not any(n.startswith(huggingface.POOLER) for n in tensors.shapes)
    if lacks and values["architectures"][0] in WITHOUT_POOLER:
        tensors = huggingface.with_pooler(tensors, config)
        warnings.append("no pooler there; the new one has learnt nothing")
    head = head_places(task, config)
    text = fast_tokenizer.settings_in(folder)
    tokenizer = find_tokenizer(
        [folder], **text
    ) or fast_tokenizer.read_tokenizer_json(folder, TextConfig(**text))
    if tokenizer:
        warnings += fast_tokenizer.differences(folder, tokenizer)
    return Source(
        HUGGING_FACE,
        weights,
        config,
        to_ours(tensors, config, HUGGING_FACE, weights, head),
        tokenizer,
        warnings,
        task=task,
    )


def open_source(
    path: str, config_file: str | None = None, pairs: bool = False
) -> Source:
    """Find out what a path holds and open it.

    Args:
      path: a folder, or the prefix of a checkpoint.
      config_file: a config to use instead of the one beside the weights.
      pairs: whether a Hugging Face folder's classifier is of pairs of texts.

    Raises:
      InputError: there is no model, or its parts do not fit each other.
    """
    if huggingface.is_folder(path):
        return open_huggingface(path, config_file, pairs)
    prefix = tf1.find_prefix(path)
    require(
        prefix is not None,
        "`input` must be a folder with a model (a TF1 checkpoint, a model "
        "directory, or a Hugging Face folder with its weights in one file, "
        f"{huggingface.SAFETENSORS} or {huggingface.PICKLE}) or a checkpoint's "
        "prefix.",
        input=path,
    )
    if tf1.OBJECT_GRAPH not in tf1.open_checkpoint(prefix).shapes:
        return open_tf1(prefix, config_file)
    if files.is_folder(path):
        prefix = checkpoints.for_inference(path)
    return open_model_dir(prefix, config_file)


def _task_line(task: Task) -> str:
    """Return a line that says what a model was fine-tuned for."""
    pairs = " of pairs" if getattr(task, "is_pair", False) else ""
    labels = shown(getattr(task, "labels", ())) or "none"
    length = f"{task.config.max_seq_length} tokens, labels: {labels}"
    return f"task: {task.name} ({task.kind}{pairs}), {length}"


def describe_source(source: Source) -> list[str]:
    """Return lines that say what was found, warnings last."""
    shapes = source.tensors.shapes
    weights = {
        name: shape
        for name, shape in shapes.items()
        if not name.startswith(OPTIMIZER)
    }
    size = sum(math.prod(shape) for shape in weights.values())
    slots = len(shapes) - len(weights) - (MODEL_DIR.step in shapes)
    encoder = source.tensors.where(lambda name: not is_of_head(name))
    model, warnings = recognise(encoder, source.config)
    lines = [
        f"found: {source.layout.title}: {source.path}",
        f"model: {model}",
        f"variables: {len(weights)} of the model ({size:,} parameters), "
        f"{slots} of the optimizer",
    ]
    if MODEL_DIR.step in shapes:
        lines.append(f"step: {int(source.tensors.read(MODEL_DIR.step))}")
    if source.task:
        lines.append(_task_line(source.task))
    if source.tokenizer:
        lines.append(f"tokenizer: {source.tokenizer.description()}")
    else:
        warnings = [*warnings, "no vocabulary stands beside the weights"]
    for head, title in HEAD_TITLES.items():
        if not source.task and not any(n.startswith(head) for n in weights):
            warnings = [*warnings, f"no {title} head here, nor in the output"]
    return lines + [f"warning: {w}" for w in source.warnings + warnings]
