"""Readers for model files from this project and from other projects."""

import dataclasses
import math
import os
from collections.abc import Callable
from types import ModuleType

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.settings import TASK, Validated, setting
from albert_tf.conversion import huggingface, plbert, tf1
from albert_tf.conversion.hub_tokenizer import read_tokenizer
from albert_tf.conversion.huggingface_heads import (
    WITHOUT_POOLER,
    Modules,
    encoder_folder,
    head_tensors,
    read_modules,
    read_task,
)
from albert_tf.conversion.named_tensors import Tensors, from_layout
from albert_tf.conversion.tf1 import read_head
from albert_tf.conversion.tokenizer_files import find_vocabulary
from albert_tf.conversion.variable_names import (
    HUGGING_FACE,
    MODEL_DIR,
    PLBERT,
    Layout,
    StoredTensor,
)
from albert_tf.model.config import CONFIG_FILE, PRETRAINING_HEADS, AlbertConfig
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.tables import format_labels
from albert_tf.tasks.task import Task
from albert_tf.text.symbols import SymbolTable, table_in
from albert_tf.text.tokenizers import (
    Tokenizer,
    description_beside,
    load_saved_tokenizer,
    tokenizer_from_files,
    tokenizer_in,
)
from albert_tf.training import checkpoints
from albert_tf.training.checkpoints import BEST, OPTIMIZER
from albert_tf.training.optimizer import AVERAGE

HEAD_TITLES = dict(
    zip(PRETRAINING_HEADS, ("masked-LM", "sentence-order"), strict=True)
)
PHONEME_HEADS = {f"{head}/": head[:-1] for head in plbert.HEADS}
# {V: {H: (L, A)}} of the released models. The shapes of the weights do not
# reveal L or A. Xlarge has 32 heads according to the paper's rule H / 64, to
# TF-Hub's version 2 and to albert_zh, but the released weights have 16 heads.
ENGLISH, CHINESE = 30000, 21128
SIZES = {768: (12, 12), 1024: (24, 16), 2048: (24, 16), 4096: (12, 64)}
RELEASED = {ENGLISH: SIZES, CHINESE: SIZES | {312: (4, 12), 384: (6, 12)}}
# Every release has BASE's values for all other settings that determine shapes.
BASE = AlbertConfig()
SHAPE_SETTINGS = (
    "embedding_size num_hidden_groups inner_group_num max_position_embeddings "
    "type_vocab_size sharing attention_head_size"
).split()


@dataclasses.dataclass(frozen=True)
class Reading(Validated):
    """Options for reading a model's files."""

    albert_config_file: str | None = setting(
        None,
        "Config file that describes the weights.",
        means="the config next to the weights",
    )
    pairs: bool = setting(
        False,
        "Treat a Hugging Face or TF1 classifier as a classifier of text pairs. "
        "Its files do not record this property.",
        group=TASK,
    )
    task: str | None = setting(
        None,
        "Task of the head in a TF1 checkpoint, which does not store labels: a "
        "value of finetune.py's --task.",
        means="classification or SQuAD",
        group=TASK,
    )
    encoder_only: bool = setting(
        False,
        "Keep only the encoder, without any head.",
        group=TASK,
    )
    strict: bool = setting(
        False,
        "Fail instead of warning if a rule of a Hugging Face tokenizer has no "
        "equivalent in this project.",
    )


@dataclasses.dataclass(frozen=True)
class Source:
    """A model read from files of any supported format.

    Attributes:
      layout: the naming scheme of the file's format.
      path: the checkpoint or the weights file.
      config: the architecture.
      tensors: the tensors under our names, including the task's head.
      tokenizer: the tokenizer, or None if there is no vocabulary next to the
        weights.
      warnings: warnings to print.
      folder: the model directory, or "" for any other format.
      task: the task for which the model was fine-tuned, or None.
      symbols: the symbol table of a phoneme model, or None.
    """

    layout: Layout
    path: str
    config: AlbertConfig
    tensors: Tensors
    tokenizer: Tokenizer | None
    warnings: list[str]
    folder: str = ""
    task: Task | None = None
    symbols: SymbolTable | None = None


def find_tokenizer(folders: list[str]) -> Tokenizer | None:
    """Return the tokenizer of the first vocabulary in `folders`, or None.

    The text rules come from this package's `tokenizer.json` next to the
    vocabulary. Without this file, they are the rules of the release.
    """
    vocabulary = find_vocabulary(folders)
    if not vocabulary:
        return None
    kind, path = vocabulary
    if description_beside(path, kind):
        return load_saved_tokenizer(os.path.dirname(path), path)
    settings = {"sentencepiece": "spm_model_file", "wordpiece": "vocab_file"}
    return tokenizer_from_files(**{settings[kind]: path})


def open_tf1(
    prefix: str, options: Reading, single: str | None = None
) -> Source:
    """Open a TF1 checkpoint with its config and vocabulary.

    For `single`, see `tf1.read_head`.
    """
    tensors = tf1.without_scope(tf1.open_checkpoint(prefix))
    config, warnings = tf1.read_config(
        options.albert_config_file or tf1.find_config(prefix), tensors
    )
    layout = tf1.layout_in(tensors)
    task, head = None, {}
    if options.encoder_only:
        tensors = tf1.without_optimizer(tensors, layout)
        tensors = tensors.where(lambda name: name.startswith(layout.encoder))
    else:
        how = options.task, options.pairs, single
        task, head = read_head(tensors, config, *how)
    if task:
        tensors = tf1.without_optimizer(tensors, layout)
    folder = os.path.dirname(prefix)
    assets = files.join(os.path.dirname(folder), tf1.HUB_ASSETS)
    return Source(
        layout,
        prefix,
        config,
        from_layout(tensors, config, layout, prefix, head),
        find_tokenizer([folder, assets]),
        warnings,
        task=task,
    )


def is_head_variable(name: str) -> bool:
    """Return whether a variable belongs to a task head or a phoneme head."""
    prefixes = MODEL_DIR.encoder, OPTIMIZER, *PRETRAINING_HEADS
    return not name.startswith(prefixes)


def open_model_dir(prefix: str, options: Reading) -> Source:
    """Open a checkpoint of a model directory."""
    folder = os.path.dirname(prefix)
    if os.path.basename(folder) == BEST:
        folder = os.path.dirname(folder)
    shapes = {n: tuple(s) for n, s in checkpoints.read_table(prefix).items()}
    finetuned = is_finetuned(folder) and not options.encoder_only
    task = load_task(folder) if finetuned else None
    symbols = table_in(folder)
    tensors = Tensors(shapes, checkpoints.reader(prefix))
    # In fine-tuned models, frozen variables have no slots. No layout stores
    # weight averages.
    omitted = OPTIMIZER if task or symbols else AVERAGE
    step_name = MODEL_DIR.step if symbols else ""
    has_averages = any(name.startswith(AVERAGE) for name in shapes)
    tensors = tensors.where(
        lambda name: name == step_name or not name.startswith(omitted)
    )
    if options.encoder_only:
        encoder = MODEL_DIR.encoder
        tensors = tensors.where(lambda name: name.startswith(encoder))
    head = {
        n: StoredTensor(n, s)
        for n, s in tensors.shapes.items()
        if (task or symbols) and is_head_variable(n)
    }
    config_file = options.albert_config_file or files.join(folder, CONFIG_FILE)
    config = AlbertConfig.from_json_file(config_file)
    return Source(
        MODEL_DIR,
        prefix,
        config,
        from_layout(tensors, config, MODEL_DIR, prefix, head),
        tokenizer_in(folder),
        [f"the weight averages are omitted; see {BEST}/"] * has_averages,
        folder,
        task,
        symbols,
    )


def _architectures(
    values: dict, tensors: Tensors, options: Reading
) -> list[str]:
    """Return the names of PyTorch classes that a `config.json` contains.

    If it has none, or only the encoder is read, the weights imply the class.
    """
    names = values.get("architectures")
    if options.encoder_only or names in (None, []):
        return [huggingface.architecture_of(tensors)]
    rule = "`architectures` must be a list of names."
    require(isinstance(names, list), rule, architectures=names)
    # Some versions write the names of TensorFlow classes.
    return [str(name).removeprefix("TF") for name in names]


def _huggingface_task(
    folder: str,
    modules: Modules | None,
    values: dict,
    config: AlbertConfig,
    options: Reading,
) -> Task | None:
    """Return the task of a fine-tuned Hugging Face model, or None."""
    if options.encoder_only:
        return None
    positions = config.max_position_embeddings
    task = read_task(folder, values, positions, options.pairs)
    return modules.task(positions) if modules and not task else task


def read_config(
    library: ModuleType, path: str, options: Reading
) -> tuple[AlbertConfig, list[str]]:
    """Return the config that the options name, and warnings about the config.

    If the options name no config file, the model's own config is returned.
    """
    config, warnings = library.read_config(path)
    if options.albert_config_file:
        config = AlbertConfig.from_json_file(options.albert_config_file)
        return config, []
    return config, warnings


def open_huggingface(path: str, options: Reading) -> Source:
    """Open a Hugging Face folder, including a task's head."""
    modules = None if options.encoder_only else read_modules(path)
    folder = modules.folder if modules else encoder_folder(path)
    config_path = files.join(folder, huggingface.CONFIG)
    config, warnings = read_config(huggingface, config_path, options)
    tensors, weights = huggingface.open_weights(
        folder, config, options.encoder_only
    )
    values = files.read_json(config_path, "`config.json`")
    names = _architectures(values, tensors, options)
    values["architectures"] = names
    task = _huggingface_task(folder, modules, values, config, options)
    lacks_pooler = not any(
        n.startswith(huggingface.POOLER) for n in tensors.shapes
    )
    pooler_optional = (
        options.encoder_only or modules or names[0] in WITHOUT_POOLER
    )
    if lacks_pooler and pooler_optional:
        tensors = huggingface.with_pooler(tensors, config)
        warnings.append("the source has no pooler; the new pooler is untrained")
    head = head_tensors(task, config)
    tokenizer, tokenizer_warnings = read_tokenizer(
        folder, config.vocab_size, options.strict
    )
    return Source(
        HUGGING_FACE,
        weights,
        config,
        from_layout(tensors, config, HUGGING_FACE, weights, head),
        modules.tokenizer(tokenizer) if modules else tokenizer,
        warnings + tokenizer_warnings + (modules.warnings if modules else []),
        task=task,
        symbols=table_in(folder),
    )


def open_plbert(path: str, options: Reading) -> Source:
    """Open a folder of PL-BERT or StyleTTS 2, with its heads."""
    config, warnings = read_config(plbert, path, options)
    tensors, weights = plbert.open_weights(path, config)
    if options.encoder_only:
        tensors = tensors.where(lambda name: name.startswith(PLBERT.encoder))
    head = plbert.head_tensors(tensors.shapes, config)
    tensors = from_layout(tensors, config, PLBERT, weights, head)
    if not options.encoder_only:
        tensors = plbert.with_step(tensors, plbert.step_of(weights))
    return Source(
        PLBERT,
        weights,
        config,
        tensors,
        None,
        warnings,
        symbols=plbert.table_of(path, config),
    )


def reader_of(path: str) -> Callable[[str, Reading], Source] | None:
    """Return the reader for a folder that another library wrote, or None."""
    if huggingface.is_folder(encoder_folder(path)):
        return open_huggingface
    return open_plbert if plbert.is_folder(path) else None


def is_model(path: str) -> bool:
    """Return whether a path contains model weights in a supported format."""
    return bool(reader_of(path)) or tf1.find_prefix(path) is not None


# {file that identifies a different kind of folder: description and advice}
UNSUPPORTED = {
    "saved_model.pb": "a TensorFlow 2 SavedModel, a graph whose variables "
    "have other names; convert its source: for TF-Hub's albert_en, "
    "the archive of google-research/albert with the same weights; for an "
    "export, its model directory",
    **{
        f"{name}.index.json": "a Hugging Face folder with its weights in "
        "several files; `save_pretrained(NEW, max_shard_size='20GB')` of "
        "transformers writes a single file"
        for name in huggingface.WEIGHTS
    },
    "flax_model.msgpack": "a Hugging Face folder with Flax weights; "
    "`from_pretrained(FOLDER, from_flax=True).save_pretrained(NEW)` of "
    "transformers 4 writes PyTorch weights",
    "rust_model.ot": "a Hugging Face folder with rust-bert weights; "
    "download the same model's safetensors file",
    "adapter_config.json": "an adapter without its model; merge the two with "
    "`merge_and_unload` of peft",
    "model.weights.h5": "a folder with Keras weights, such as a preset of "
    "KerasHub; use a release or a Hugging Face folder with the same weights",
    "model.onnx": "an ONNX model; convert the model it was exported from",
    "model.tflite": "a LiteRT model; convert the model it was exported from",
    huggingface.CONFIG: "a Hugging Face folder without its weights; download "
    f"{huggingface.SAFETENSORS} too",
}


def unsupported_hint(path: str) -> str:
    """Return a hint if a path has a known, unsupported format, otherwise ""."""
    if path.endswith(".keras") and files.is_file(path):
        return (
            " This is a `.keras` file: after `import albert_tf`, "
            "`keras.models.load_model` reads it, and the model's "
            "`save(FOLDER)` writes a model directory."
        )
    for name, description in UNSUPPORTED.items():
        if files.exists(files.join(path, name)):
            return f" This is {description}."
    return ""


def open_source(
    path: str, options: Reading | None = None, single: str | None = None
) -> Source:
    """Return the source model at a path, in any supported format.

    Args:
      path: a folder, or the prefix of a checkpoint.
      options: options for reading the files.
      single: the task of a TF1 head with one output, if `options.task` is not
        set.

    Raises:
      InputError: if the path has no model, or if the model's parts are
        inconsistent.
    """
    options = options or Reading()
    reader = reader_of(path)
    prefix = None if reader else tf1.find_prefix(path)
    require(
        reader or prefix is not None,
        "`input` must be a folder with a model (a TF1 checkpoint, a model "
        "directory, a Hugging Face folder with its weights in one file, "
        f"{' or '.join(huggingface.WEIGHTS)}, or PL-BERT's {plbert.CONFIG} "
        f"and {plbert.WEIGHTS}) or a checkpoint "
        f"prefix.{unsupported_hint(path)}",
        input=path,
    )
    if prefix:
        # Only this package writes a `.json` file next to a checkpoint. Such a
        # checkpoint is not opened here, because it may be damaged, and
        # `for_inference` then finds an earlier one.
        is_tf1 = not files.exists(f"{prefix}.json") and (
            tf1.OBJECT_GRAPH not in tf1.open_checkpoint(prefix).shapes
        )
    rule = "`task` requires a TF1 checkpoint, which does not store labels."
    require(not options.task or (prefix and is_tf1), rule, task=options.task)
    if reader:
        return reader(path, options)
    if is_tf1:
        return open_tf1(prefix, options, single)
    require(
        not prefix.endswith(tf1.HUB_PREFIX),
        f"`input` must be a model in a supported format. This is "
        f"{UNSUPPORTED['saved_model.pb']}.",
        input=path,
    )
    if files.is_folder(path):
        prefix = checkpoints.for_inference(path)
    return open_model_dir(prefix, options)


def _task_line(task: Task) -> str:
    """Return a line that describes the task of a fine-tuned model."""
    pairs = " of pairs" if getattr(task, "is_pair", False) else ""
    labels = format_labels(getattr(task, "labels", ())) or "none"
    length = f"{task.config.max_seq_length} tokens, labels: {labels}"
    return f"task: {task.name} ({task.kind}{pairs}), {length}"


def released_values(config: AlbertConfig) -> dict[str, int | str]:
    """Return settings of the released model that has the sizes in a config.

    The result contains the settings that weights do not reveal: the numbers of
    layers and heads, and the activation. It is {} if there is no such release.
    """
    width = config.hidden_size
    sizes = RELEASED.get(config.vocab_size, {}).get(width)
    same_shapes = all(
        getattr(config, key) == getattr(BASE, key) for key in SHAPE_SETTINGS
    )
    if not (sizes and same_shapes and config.intermediate_size == 4 * width):
        return {}
    # Google's Chinese models use ReLU; the models of albert_zh, which normalize
    # embeddings at the hidden width, use GELU.
    relu = config.vocab_size == CHINESE and width >= BASE.hidden_size
    relu = relu and config.embedding_norm == BASE.embedding_norm
    return {
        "num_hidden_layers": sizes[0],
        "num_attention_heads": sizes[1],
        "hidden_act": "relu" if relu else "gelu",
    }


def compare_with_released(config: AlbertConfig) -> tuple[str, list[str]]:
    """Compare a config with the releases; return a summary and warnings."""
    released = released_values(config)
    wrong = ", ".join(
        f"{key}={value}, not {getattr(config, key)}"
        for key, value in released.items()
        if getattr(config, key) != value
    )
    warning = f"the released model of these sizes has {wrong}"
    prefix = "the" if released else "not the"
    return f"{prefix} sizes of a released model", [warning] if wrong else []


def describe_source(source: Source) -> list[str]:
    """Return lines that describe a source, with warnings last."""
    shapes = source.tensors.shapes
    weights = {
        name: shape
        for name, shape in shapes.items()
        if not name.startswith(OPTIMIZER)
    }
    size = sum(math.prod(shape) for shape in weights.values())
    slots = len(shapes) - len(weights) - (MODEL_DIR.step in shapes)
    model, warnings = compare_with_released(source.config)
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
    heads = HEAD_TITLES
    if source.symbols:
        lines.append(f"symbols: {len(source.symbols.symbols)}")
        heads = PHONEME_HEADS
    elif source.tokenizer:
        lines.append(f"tokenizer: {source.tokenizer.description()}")
    else:
        advice = "to encode text, add it and convert again"
        missing = f"no vocabulary next to the weights; {advice}"
        warnings = [*warnings, missing]
    for head, title in heads.items():
        if not source.task and not any(n.startswith(head) for n in weights):
            warnings = [*warnings, f"no {title} head, so the output has none"]
    return lines + [f"warning: {w}" for w in source.warnings + warnings]
