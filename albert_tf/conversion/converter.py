"""A model out of one kind of files, into another, or an error."""

import dataclasses
import math
import os

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.settings import setting, validate
from albert_tf.conversion import huggingface, tf1
from albert_tf.conversion.named_tensors import Tensors, from_ours, to_ours
from albert_tf.conversion.released_models import recognise
from albert_tf.conversion.released_names import (
    HUGGING_FACE,
    MODEL_DIR,
    Layout,
    as_released,
    tf1_layout,
)
from albert_tf.model.config import CONFIG_FILE, PRETRAINING_HEADS, AlbertConfig
from albert_tf.text.tokenizers import (
    TOKENIZER_FILE,
    Tokenizer,
    load_tokenizer,
    tokenizer_from_files,
)
from albert_tf.training import checkpoints

HEAD_TITLES = dict(
    zip(PRETRAINING_HEADS, ("masked-LM", "sentence-order"), strict=True)
)


@dataclasses.dataclass(frozen=True)
class Source:
    """A model that was found in some kind of file.

    Attributes:
      layout: the kind of file.
      path: the checkpoint or the weights file.
      config: its architecture.
      tensors: its tensors under our names.
      tokenizer: its tokenizer, None if no vocabulary stands beside it.
      warnings: what the user should know.
    """

    layout: Layout
    path: str
    config: AlbertConfig
    tensors: Tensors
    tokenizer: Tokenizer | None
    warnings: list[str]


def _one_file(folders: list[str], patterns: tuple[str, ...]) -> str | None:
    """Return the file of the first pattern that matches in any folder."""
    for pattern in patterns:
        for folder in folders:
            paths = files.matches(files.join(folder, pattern))
            rule = "Only one vocabulary may stand beside the weights."
            require(len(paths) < 2, rule, vocabularies=", ".join(paths))
            if paths:
                return paths[0]
    return None


def find_tokenizer(folders: list[str], **text: bool) -> Tokenizer | None:
    """Return the tokenizer of a vocabulary in one of some folders, or None.

    Args:
      folders: where to look.
      **text: settings of `TextConfig` that differ from the released ones.
    """
    model = _one_file(folders, ("spiece.model", "*.model"))
    if model:
        return tokenizer_from_files(spm_model_file=model, **text)
    vocabulary = _one_file(folders, ("vocab.txt", "vocab*.txt"))
    if vocabulary:
        return tokenizer_from_files(vocab_file=vocabulary, **text)
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


def open_model_dir(prefix: str, config_file: str | None) -> Source:
    """Open a checkpoint of a model directory."""
    folder = os.path.dirname(prefix)
    if os.path.basename(folder) == checkpoints.BEST:
        folder = os.path.dirname(folder)
    shapes = {n: tuple(s) for n, s in checkpoints.read_table(prefix).items()}
    tensors = Tensors(shapes, checkpoints.reader(prefix))

    config_file = config_file or files.join(folder, CONFIG_FILE)
    config = AlbertConfig.from_json_file(config_file)
    has_tokenizer = files.exists(files.join(folder, TOKENIZER_FILE))
    return Source(
        MODEL_DIR,
        prefix,
        config,
        to_ours(tensors, config, MODEL_DIR, prefix),
        load_tokenizer(folder) if has_tokenizer else None,
        [],
    )


def open_huggingface(folder: str, config_file: str | None) -> Source:
    """Open a Hugging Face folder."""
    path = files.join(folder, huggingface.CONFIG)
    config, warnings = huggingface.read_config(path)
    if config_file:
        config, warnings = AlbertConfig.from_json_file(config_file), []
    tensors, weights = huggingface.open_weights(folder, config)
    return Source(
        HUGGING_FACE,
        weights,
        config,
        to_ours(tensors, config, HUGGING_FACE, weights),
        find_tokenizer([folder], **huggingface.text_settings(folder)),
        warnings,
    )


def open_source(path: str, config_file: str | None = None) -> Source:
    """Find out what a path holds and open it.

    Args:
      path: a folder, or the prefix of a checkpoint.
      config_file: a config to use instead of the one beside the weights.

    Raises:
      InputError: there is no model, or its parts do not fit each other.
    """
    if huggingface.is_folder(path):
        return open_huggingface(path, config_file)
    prefix = tf1.find_prefix(path)
    require(
        prefix is not None,
        "`input` must be a folder with a model (a TF1 checkpoint, a model "
        "directory or a Hugging Face folder) or a checkpoint's prefix.",
        input=path,
    )
    if tf1.OBJECT_GRAPH not in tf1.open_checkpoint(prefix).shapes:
        return open_tf1(prefix, config_file)
    if files.is_folder(path):
        prefix = checkpoints.for_inference(path)
    return open_model_dir(prefix, config_file)


def check_vocabulary(source: Source) -> None:
    """Refuse a vocabulary whose ids go beyond the word table."""
    tokenizer, config = source.tokenizer, source.config
    require(
        not tokenizer or tokenizer.vocab_size <= config.vocab_size,
        f"{source.path}: the vocabulary beside the weights must not have more "
        "pieces than the word table has rows.",
        pieces=tokenizer and tokenizer.vocab_size,
        vocab_size=config.vocab_size,
    )


def write_model_dir(folder: str, source: Source) -> int:
    """Write a model directory; return its number of tensors."""
    tensors = source.tensors
    source.config.save(folder)
    if source.tokenizer:
        source.tokenizer.save(folder)
    step = MODEL_DIR.step in tensors.shapes and tensors.read(MODEL_DIR.step)
    checkpoints.save(folder, tensors.read_all(tf.Variable), int(step))
    return len(tensors)


def write_tf1(folder: str, source: Source) -> int:
    """Write a TF1 checkpoint; return its number of tensors."""
    config = as_released(source.config)
    tensors = from_ours(source.tensors, config, tf1_layout(config))
    if source.tokenizer:
        tf1.write_vocabulary(folder, source.tokenizer)
    tf1.write(folder, config, tensors)
    return len(tensors)


def write_huggingface(folder: str, source: Source) -> int:
    """Write a Hugging Face folder; return its number of tensors."""
    config = as_released(source.config)
    tensors = from_ours(source.tensors, config, HUGGING_FACE)
    if source.tokenizer:
        huggingface.write_vocabulary(folder, source.tokenizer)
    huggingface.write(folder, config, tensors)
    return len(tensors)


TARGETS = {
    "model_dir": write_model_dir,
    "tf1": write_tf1,
    "huggingface": write_huggingface,
}


def check_output(path: str) -> None:
    """Refuse to write where something is already."""
    empty = not files.exists(path) or (
        files.is_folder(path) and not files.names(path)
    )
    require(empty, "`output` must be a new or empty folder.", output=path)


def describe_source(source: Source) -> list[str]:
    """Return lines that say what was found, warnings last."""
    shapes = source.tensors.shapes
    weights = {
        name: shape
        for name, shape in shapes.items()
        if not name.startswith(checkpoints.OPTIMIZER)
    }
    size = sum(math.prod(shape) for shape in weights.values())
    slots = len(shapes) - len(weights) - (MODEL_DIR.step in shapes)
    model, warnings = recognise(source.tensors, source.config)
    lines = [
        f"found: {source.layout.title}: {source.path}",
        f"model: {model}",
        f"variables: {len(weights)} of the model ({size:,} parameters), "
        f"{slots} of the optimizer",
    ]
    if MODEL_DIR.step in shapes:
        lines.append(f"step: {int(source.tensors.read(MODEL_DIR.step))}")
    if source.tokenizer:
        lines.append(f"tokenizer: {source.tokenizer.description()}")
    else:
        warnings = [*warnings, "no vocabulary stands beside the weights"]
    for head, title in HEAD_TITLES.items():
        if not any(name.startswith(head) for name in weights):
            warnings = [*warnings, f"no {title} head here, nor in the output"]
    return lines + [f"warning: {w}" for w in source.warnings + warnings]


def convert(
    input: str, output: str, to: str, config_file: str | None = None
) -> list[str]:
    """Convert a model; return lines that say what was found and done.

    Args:
      input: a folder or a checkpoint's prefix.
      output: a folder that is new or empty.
      to: a key of `TARGETS`.
      config_file: a config to use instead of the one beside the weights.

    Raises:
      InputError: anything does not fit; then there is no output folder.
    """
    output = output.rstrip("/")
    check_output(output)
    with files.atomic_folder(output) as temporary:
        source = open_source(input, config_file)
        check_vocabulary(source)
        lines = describe_source(source)
        count = TARGETS[to](temporary, source)
    left_out = len(source.tensors) - count
    lines.append(f"wrote: {output} ({to}, {count} tensors)")
    if left_out:
        lines.append(
            f"warning: {left_out} tensors of the optimizer are left out; "
            f"a {to} folder has no place for them"
        )
    return lines


@dataclasses.dataclass(frozen=True)
class ConversionConfig:
    """What to convert, into what."""

    input: str = setting(
        "",
        "Folder with config and weights, or a checkpoint's prefix.",
        required=True,
    )
    output: str = setting("", "Folder to write; new or empty.", required=True)
    to: str = setting(
        "model_dir", "What to write.", choices=tuple(TARGETS), required=True
    )
    albert_config_file: str | None = setting(
        None, "Config to use instead of the one beside the weights."
    )

    def __post_init__(self):
        validate(self)
