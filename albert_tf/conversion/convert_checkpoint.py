"""Conversion of models between the file formats of several projects."""

import dataclasses

import safetensors
import tensorflow as tf

from albert_tf.base import files, program
from albert_tf.base.errors import input_errors, require
from albert_tf.base.replacing import atomic_folder
from albert_tf.base.settings import Validated, setting
from albert_tf.conversion import huggingface, plbert, tf1
from albert_tf.conversion.huggingface_heads import (
    FLAGS,
    MODULES_FILE,
    POOLING_CONFIG,
    SETTINGS,
    WITHOUT_POOLER,
    head_of,
    head_tensors,
)
from albert_tf.conversion.named_tensors import Tensors, to_layout
from albert_tf.conversion.sources import (
    Reading,
    Source,
    describe_source,
    open_source,
)
from albert_tf.conversion.variable_names import (
    HUGGING_FACE,
    MODEL_DIR,
    PLBERT,
    as_released,
)
from albert_tf.model.config import PRETRAINING_HEADS
from albert_tf.text.symbols import SYMBOLS_FILE, WORDS_FILE
from albert_tf.training import checkpoints
from albert_tf.training.model_card import write_card


def step_of(tensors: Tensors) -> int:
    """Return the number of training steps, or 0 if unknown."""
    has_step = MODEL_DIR.step in tensors.shapes
    return int(tensors.read(MODEL_DIR.step)) if has_step else 0


def write_model_dir(folder: str, source: Source) -> int:
    """Write a model directory; return the number of tensors."""
    tensors = source.tensors
    source.config.save(folder)
    for part in (source.task, source.tokenizer, source.symbols):
        if part:
            part.save(folder)
    checkpoints.save(folder, tensors.read_all(tf.Variable), step_of(tensors))
    return len(tensors)


def write_tf1(folder: str, source: Source) -> int:
    """Write a TF1 checkpoint; return the number of tensors."""
    config = as_released(source.config)
    shapes, width = source.tensors.shapes, config.hidden_size
    head = tf1.head_tensors(source.task, shapes, width)
    layout = tf1.layout_for(config)
    tensors = to_layout(source.tensors, config, layout, head)
    if source.tokenizer:
        tf1.write_vocabulary(folder, source.tokenizer)
    tf1.write(folder, config, tensors, finetuned=source.task is not None)
    return len(tensors)


def write_huggingface(
    folder: str, source: Source, output_format: str = "huggingface"
) -> int:
    """Write a Hugging Face folder; return the number of tensors.

    Args:
      folder: the folder to write to.
      source: the model, including the head of its task.
      output_format: the value of `to`, for the loading instructions in the
        model card.
    """
    config = as_released(source.config)
    head_config = source.task and head_of(source.task)
    head = head_tensors(source.task, config)
    tensors = to_layout(source.tensors, config, HUGGING_FACE, head)
    if source.task and source.task.hub_class in WITHOUT_POOLER:
        tensors = tensors.where(lambda n: not n.startswith(huggingface.POOLER))
    length = config.max_position_embeddings
    if source.task:
        length = min(length, source.task.config.max_seq_length)
    if source.tokenizer and not huggingface.write_tokenizer(
        folder, source.tokenizer, length
    ):
        source.warnings.append(
            "transformers cannot load the tokenizer, because this "
            "SentencePiece model is not a unigram model or marks the ends of "
            "words"
        )
    if source.task:
        source.task.save(folder)
    if source.symbols:
        source.symbols.save(folder)
        head_config = plbert.head_of(source.symbols) | (head_config or {})
    huggingface.write(folder, config, tensors, head_config, source.tokenizer)
    if not source.symbols:
        write_card(folder, source.folder, output_format)
    return len(tensors)


def write_styletts2(folder: str, source: Source) -> int:
    """Write PL-BERT's files with the heads; return the number of tensors."""
    config = as_released(source.config)
    head = plbert.head_tensors(source.tensors.shapes, config)
    tensors = to_layout(source.tensors, config, PLBERT, head)
    table, step = source.symbols, step_of(source.tensors)
    table.save(folder)
    plbert.write(folder, config, tensors, step, table.symbols[table.pad])
    # The step, which the file stores apart from the weights, counts as a
    # tensor.
    return len(tensors) + (MODEL_DIR.step in source.tensors.shapes)


# {folder of a module's settings: class of the module}
MODULES = {
    "": "sentence_transformers.models.Transformer",
    "1_Pooling": "sentence_transformers.models.Pooling",
    "2_Normalize": "sentence_transformers.models.Normalize",
}


def write_sentence_transformers(folder: str, source: Source) -> int:
    """Write a sentence-transformers folder; return the number of tensors."""
    require(
        source.tokenizer and not head_tensors(source.task, source.config),
        "`to=sentence_transformers` needs a model that has a tokenizer and is "
        "either pretrained or fine-tuned for embedding.",
        task=source.task and source.task.name,
    )
    encoder = source.tensors.where(
        lambda name: not name.startswith(PRETRAINING_HEADS)
    )
    source = dataclasses.replace(source, tensors=encoder)
    count = write_huggingface(folder, source, "sentence_transformers")
    positions = source.config.max_position_embeddings
    length = source.task.config.max_seq_length if source.task else positions
    pooling_mode, normalize = (
        source.task.head_arguments if source.task else ("mean", True)
    )
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": class_name}
        for i, (path, class_name) in enumerate(MODULES.items())
        if normalize or path != "2_Normalize"
    ]
    dimension = {"word_embedding_dimension": source.config.hidden_size}
    pooling = dimension | {
        flag: mode == pooling_mode for flag, mode in FLAGS.items()
    }
    contents = {
        MODULES_FILE: modules,
        SETTINGS: {"similarity_fn_name": "cosine"},
        "sentence_bert_config.json": {"max_seq_length": length},
        POOLING_CONFIG: pooling,
    }
    if normalize:
        contents["2_Normalize/config.json"] = {}
    for module in modules[1:]:
        files.make_folder(files.join(folder, module["path"]))
    for name, content in contents.items():
        files.write_json(files.join(folder, name), content)
    return count


TARGETS = {
    "model_dir": write_model_dir,
    "tf1": write_tf1,
    "huggingface": write_huggingface,
    "sentence_transformers": write_sentence_transformers,
    "styletts2": write_styletts2,
}
FLOAT16_TARGETS = ("huggingface", "sentence_transformers")
PHONEME_TARGETS = ("model_dir", "huggingface", "styletts2")


def _check(source: Source, to: str, pairs: bool) -> None:
    """Raise `InputError` if an argument or a file does not fit the model."""
    rule = (
        f"`to` must be one of {', '.join(PHONEME_TARGETS)} for a phoneme model."
    )
    require(not source.symbols or to in PHONEME_TARGETS, rule, to=to)
    rule = "Only phoneme models, which have a file "
    rule += f"{SYMBOLS_FILE}, can be converted to styletts2."
    require(source.symbols or to != "styletts2", rule, input=source.path)
    require(
        not pairs or getattr(source.task, "is_pair", False),
        "`pairs` needs a classifier from Hugging Face or a TF1 checkpoint.",
        pairs=pairs,
    )
    for vocabulary in filter(None, (source.tokenizer, source.symbols)):
        source.config.check_pieces(vocabulary.vocab_size, source.path)
    words = source.symbols.words if source.symbols else ()
    labels = source.tensors.shapes.get("words/bias")
    require(
        not (words and labels) or labels == (len(words),),
        f"`{WORDS_FILE}` must contain one word for each label of the weights. "
        "Copy both files again.",
        words=len(words),
        labels=f"{labels} in {source.path}",
    )


def _report(source: Source, output: str, to: str, count: int) -> list[str]:
    """Return lines that describe a source and the output."""
    lines = describe_source(source)
    lines.append(f"wrote: {output} ({to}, {count} tensors)")
    if omitted := len(source.tensors) - count:
        without_heads = to == "sentence_transformers" or source.symbols
        heads = " or of heads" if without_heads else ""
        part = "pooler" if source.task else "optimizer"
        lines.append(
            f"warning: {omitted} tensors of the {part}{heads} are omitted, "
            f"because a {to} folder cannot store them"
        )
    return lines


def convert(
    input: str,
    output: str,
    to: str,
    half_precision: bool = False,
    **options: bool | str | None,
) -> list[str]:
    """Convert a model; return the lines of a report.

    Args:
      input: a folder or a checkpoint prefix.
      output: a new or empty folder.
      to: a key of `TARGETS`.
      half_precision: whether to store the weights as float16.
      **options: the fields of `Reading`.

    Raises:
      InputError: if the input cannot be converted; the output folder is then
        not created.
    """
    rule = "`output` must be a new or empty folder."
    require(files.is_free(output), rule, output=output)
    require(
        to in FLOAT16_TARGETS or not half_precision,
        f"`half_precision` needs `to={'` or `to='.join(FLOAT16_TARGETS)}`.",
        to=to,
    )
    reading = Reading(**options)
    with atomic_folder(output) as temporary:
        source = open_source(input, reading)
        _check(source, to, reading.pairs)
        written = source
        if half_precision:
            tensors = source.tensors.as_float16()
            written = dataclasses.replace(source, tensors=tensors)
        kinds = tf.errors.OpError, safetensors.SafetensorError
        rule = "`output` must be writable (is the disk full?)"
        with input_errors(kinds, rule, output=output):
            count = TARGETS[to](temporary, written)
        # Writing may add warnings to the source.
        return _report(source, output, to, count)


@dataclasses.dataclass(frozen=True)
class ConversionConfig(Validated):
    """The model to convert, and the output format."""

    input: str = setting(
        "",
        "Folder with config and weights, or a checkpoint prefix.",
        required=True,
    )
    output: str = setting("", "New or empty output folder.", required=True)
    to: str = setting(
        "model_dir", "Output format.", choices=tuple(TARGETS), required=True
    )
    half_precision: bool = setting(
        False,
        "Store the weights of a Hugging Face or sentence-transformers folder "
        "as float16, which halves the file size; programs still compute in "
        "float32.",
    )


@dataclasses.dataclass(frozen=True)
class Converted:
    """The result of a conversion.

    Attributes:
      output: the output folder.
      lines: the lines of the report.
    """

    output: str
    lines: tuple[str, ...]


@program.command(ConversionConfig, Reading)
def convert_checkpoint(config: ConversionConfig, reading: Reading) -> Converted:
    """Convert a model to a model directory or to another project's format."""
    lines = convert(**vars(config), **vars(reading))
    print("\n".join(lines))
    return Converted(config.output, tuple(lines))


cli = convert_checkpoint.program.cli
