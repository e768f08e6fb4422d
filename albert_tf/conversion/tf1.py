"""TF1 checkpoints from released archives and TF-Hub modules, with heads."""

import dataclasses
import json
import os
from collections.abc import Mapping

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError, errors_in, require
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.variable_names import (
    ALBERT_ZH,
    GOOGLE,
    Layout,
    StoredTensor,
)
from albert_tf.model.config import ACTIVATIONS, CONFIG_FILE, AlbertConfig
from albert_tf.tasks.classification import PAIR
from albert_tf.tasks.registry import find
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import TOKENIZER_FILE, Tokenizer
from albert_tf.training import checkpoint_files
from albert_tf.training.checkpoint_files import damage_named

INDEX = ".index"
BEST_PREFIX = "model.ckpt-best"  # name in the released archives
HUB_PREFIX = "variables/variables"
HUB_ASSETS = "assets"
HUB_SCOPE = "module/"  # scope of the variables of a fine-tuned module
SPM_NAME = "30k-clean.model"  # name that the released exporter requires

# Only object-based checkpoints, such as those in a model directory, have this
# key.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# Keys written next to the architecture. The released code reads the first key.
HISTORICAL = {
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "down_scale_factor": 1,
}


def find_prefix(path: str) -> str | None:
    """Return the prefix of the checkpoint at a path, or None if there is none.

    Args:
      path: a prefix, or a folder. In a folder, the function prefers
        `model.ckpt-best`, then the newest checkpoint in the `checkpoint` file,
        then a TF-Hub module's variables, then the only checkpoint.

    Raises:
      InputError: if the folder has several checkpoints, but none that the
        function prefers.
    """
    if files.exists(path + INDEX):
        return path
    if not files.is_folder(path):
        return None
    paths = files.matches("*" + INDEX, path)
    prefixes = [path.removesuffix(INDEX) for path in paths]
    hub = files.join(path, HUB_PREFIX)
    newest = checkpoint_files.listed(path)[:1]
    for candidate in (files.join(path, BEST_PREFIX), *newest, hub):
        if files.exists(candidate + INDEX):
            return candidate
    rule = "`input` contains several checkpoints; specify a prefix: "
    rule += f"{', '.join(prefixes)}."
    require(len(prefixes) < 2, rule, input=path)
    return prefixes[0] if prefixes else None


def open_checkpoint(prefix: str) -> Tensors:
    """Return the tensors of a checkpoint; damaged files raise `InputError`."""
    files.require_tensorflow_path("The path of a checkpoint", prefix)
    with damage_named(prefix):
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()

    def read(name: str):
        with damage_named(prefix):
            array = reader.get_tensor(name)
        # Half precision is converted to float32, which is lossless.
        return array.astype("f4") if array.dtype.itemsize == 2 else array

    return Tensors({n: tuple(s) for n, s in sorted(shapes.items())}, read)


def without_scope(tensors: Tensors) -> Tensors:
    """Remove the scope of a TF-Hub module from the names of tensors."""
    names = {name.removeprefix(HUB_SCOPE): name for name in tensors.shapes}
    return tensors.renamed(names)


def without_optimizer(tensors: Tensors, layout: Layout) -> Tensors:
    """Return tensors without the optimizer's slots and step."""
    suffixes = tuple(
        pattern.removeprefix("{}") for pair in layout.slots for pattern in pair
    )
    return tensors.where(
        lambda name: name != layout.step and not name.endswith(suffixes)
    )


def layout_in(tensors: Tensors) -> Layout:
    """Return the layout of a checkpoint."""
    name = "albert/embeddings/embedding_hidden_mapping_in/kernel"
    hidden = ALBERT_ZH.name_of(name) in tensors.shapes
    return ALBERT_ZH if hidden else GOOGLE


def layout_for(config: AlbertConfig) -> Layout:
    """Return the layout for writing the weights of a config."""
    return ALBERT_ZH if config.embedding_norm == "hidden" else GOOGLE


def find_config(prefix: str) -> str:
    """Return the path of the config file next to a checkpoint."""
    folder = os.path.dirname(prefix)
    folders = [folder]
    if prefix.endswith(HUB_PREFIX):
        module = os.path.dirname(folder)
        folders = [files.join(module, HUB_ASSETS), module]
    for candidate in folders:
        exact = files.join(candidate, CONFIG_FILE)
        matches = files.matches("*config*.json", candidate)
        if files.exists(exact):
            return exact
        if len(matches) == 1:
            return matches[0]
    raise InputError(
        f"There must be one {CONFIG_FILE} next to the checkpoint; copy it "
        "there, or set `albert_config_file` of `convert_checkpoint`. "
        f"Received: {prefix}"
    )


def read_config(path: str, tensors: Tensors) -> tuple[AlbertConfig, list[str]]:
    """Read the config of a TF1 release; return the config and warnings.

    The weights determine where embeddings are normalized. If the file omits the
    embedding width, the weights also determine the width.
    """
    values = files.read_json_object(path, "`albert_config_file`")
    layout, warnings = layout_in(tensors), []
    words = layout.name_of("albert/embeddings/word_embeddings")
    table = tensors.shapes.get(words, ())
    if "embedding_size" not in values and len(table) == 2:
        values["embedding_size"] = table[1]
        warnings.append(
            f"{path} has no embedding_size (the released code would use 128);"
            f" the weights have {table[1]}"
        )
    values["embedding_norm"] = layout.embedding_norm
    with errors_in(path):
        return AlbertConfig.from_dict(values), warnings


def released_json(config: AlbertConfig) -> Mapping:
    """Return the content of `albert_config.json` in the released form."""
    supported = [name for name, x in ACTIVATIONS.items() if x.is_released]
    rule = f"The released code supports the activations {', '.join(supported)}."
    require(config.hidden_act in supported, rule, hidden_act=config.hidden_act)
    values = json.loads(config.to_json())
    del values["sharing"], values["embedding_norm"]
    return values | HISTORICAL


def write_vocabulary(folder: str, tokenizer: Tokenizer) -> None:
    """Write a tokenizer's vocabulary under the released file name.

    `tokenizer.json` records the text rules, which the released code reads from
    flags.
    """
    name = tokenizer.file_name
    if tokenizer.kind == "sentencepiece":
        name = SPM_NAME
    files.write_bytes(files.join(folder, name), tokenizer.content)
    path = files.join(folder, TOKENIZER_FILE)
    files.write_json(path, tokenizer.description())


def write(
    folder: str, config: AlbertConfig, tensors: Tensors, finetuned: bool
) -> None:
    """Write `model.ckpt-best` and its config to a folder."""
    files.require_tensorflow_path("The path of a checkpoint", folder)
    files.write_json(files.join(folder, CONFIG_FILE), released_json(config))
    values = tensors.read_all(tf.constant)
    if finetuned:  # to predict, the released scripts need the step
        values[GOOGLE.step] = tf.constant(0, tf.int64)
    tf.raw_ops.SaveV2(
        prefix=files.join(folder, BEST_PREFIX),
        tensor_names=sorted(values),
        shape_and_slices=[""] * len(values),
        tensors=[values[name] for name in sorted(values)],
    )
    files.write_text(
        files.join(folder, "checkpoint"),
        f'model_checkpoint_path: "{BEST_PREFIX}"\n',
    )


# The names of the heads' kernels, {kernel name: bias name}, and the kinds of
# tasks whose head is a `CLASSIFIER`.
CLASSIFIER, SPANS = "output_weights", "cls/squad/output_weights"
BIASES = {CLASSIFIER: "output_bias", SPANS: "cls/squad/output_bias"}
SENTENCES = ("classification", "multilabel", "regression", "multiple_choice")

# The beam head of `run_squad_v2`: {our name: released name, and the shape in
# multiples of the width, where 0 means a size of 1}.
BEAM = {
    "start/kernel": ("start_logits/dense/kernel", (1, 0)),
    "start/bias": ("start_logits/dense/bias", (0,)),
    "end_transform/kernel": ("end_logits/dense_0/kernel", (2, 1)),
    "end_transform/bias": ("end_logits/dense_0/bias", (1,)),
    "layer_norm/gamma": ("end_logits/LayerNorm/gamma", (1,)),
    "layer_norm/beta": ("end_logits/LayerNorm/beta", (1,)),
    "end/kernel": ("end_logits/dense_1/kernel", (1, 0)),
    "end/bias": ("end_logits/dense_1/bias", (0,)),
    "answer_transform/kernel": ("answer_class/dense_0/kernel", (2, 1)),
    "answer_transform/bias": ("answer_class/dense_0/bias", (1,)),
    "answer/kernel": ("answer_class/dense_1/kernel", (1, 0)),
}


def _beam_tensors(width: int) -> dict[str, StoredTensor]:
    """Return {our name: stored tensor} for the beam head."""
    return {
        name: StoredTensor(stored_name, tuple(n * width or 1 for n in sizes))
        for name, (stored_name, sizes) in BEAM.items()
    }


def _linear_head(
    name: str, outputs: int, width: int
) -> dict[str, StoredTensor]:
    return {
        "classifier/kernel": StoredTensor(name, (outputs, width), True),
        "classifier/bias": StoredTensor(BIASES[name], (outputs,)),
    }


def head_tensors(
    task: Task | None, shapes: Mapping[str, tuple], width: int
) -> dict[str, StoredTensor]:
    """Return {our name: stored tensor} for a task's head.

    Args:
      task: the task, or None if the model is pretrained.
      shapes: {our name: shape}.
      width: the hidden size.
    """
    if task is None:
        return {}
    if task.config.answer_head == "beam":
        return _beam_tensors(width)
    names = dict.fromkeys(SENTENCES, CLASSIFIER) | {"question_answering": SPANS}
    rule = "`to` must be model_dir or huggingface for this task, because "
    rule += "google-research/albert has no head for it."
    require(task.kind in names, rule, task=task.name)
    return _linear_head(names[task.kind], shapes["classifier/kernel"][1], width)


def _sentence_task(outputs: int, name: str | None, pairs: bool) -> Task:
    """Return the task of a head whose input is the pooled output."""
    require(
        name or outputs > 1,
        "The head has one output, which is either a number or the score of a "
        "choice. Set `task`, for example to regression, multiple_choice, "
        "sts-b or race.",
        task=name,
    )
    task = find(name or "classification")
    rule = f"`task` must fit the head, which is for {', '.join(SENTENCES)}."
    require(task.kind in SENTENCES, rule, task=name)
    if not task.has_classes:
        rule = f"A head for {task.kind} must have one output."
        require(outputs == 1, rule, outputs=outputs, task=name)
    else:
        labels = task.labels or tuple(map(str, range(outputs)))
        rule = "The head must have one output for each label of `task`."
        shown = ", ".join(labels)
        fits = len(labels) == outputs
        require(fits, rule, outputs=outputs, task=f"{name} ({shown})")
        task = dataclasses.replace(task, labels=labels)
    if pairs and "text_pair" in task.fields and not task.is_pair:
        task = task.updated(text_pair_column=PAIR)
    return task


def read_head(
    tensors: Tensors,
    config: AlbertConfig,
    name: str | None,
    pairs: bool,
    single: str | None = None,
) -> tuple[Task | None, dict[str, StoredTensor]]:
    """Return a checkpoint's task, and {our name: stored tensor} for its head.

    Args:
      tensors: tensors of the checkpoint.
      config: the architecture.
      name: name of the task, or None for the head's default.
      pairs: whether a classifier classifies text pairs.
      single: the default for `name` if the head has one output; None if there
        is no default.

    Returns:
      The task and the tensors; None and {} if the checkpoint has no head.
    """
    shapes, width = tensors.shapes, config.hidden_size
    if CLASSIFIER in shapes:
        outputs = shapes[CLASSIFIER][0]
        default = single if outputs == 1 else None
        task = _sentence_task(outputs, name or default, pairs)
        head = _linear_head(CLASSIFIER, outputs, width)
    elif SPANS in shapes:
        task, head = find(name or "squad-1.1"), _linear_head(SPANS, 2, width)
    elif "answer_class/dense_1/kernel" in shapes:
        task, head = find(name or "squad-2.0"), _beam_tensors(width)
    else:
        rule = "`task` requires a TF1 checkpoint with a head."
        require(name is None, rule, task=name)
        return None, {}
    if CLASSIFIER not in shapes:
        rule = "`task` must fit the head, which is for question answering."
        require(task.kind == "question_answering", rule, task=name)
        answer_head = "simple" if SPANS in shapes else "beam"
        task = task.replaced(answer_head=answer_head)
    positions = config.max_position_embeddings
    length = min(task.config.max_seq_length, positions)
    return task.updated(max_seq_length=length), head
