"""Heads that the released code put on an encoder, in TF1 checkpoints.

`run_classifier`, `run_race` and `run_squad_v1` write one product, and
`run_squad_v2` the head whose end depends on the start. Nothing in a checkpoint
says what the labels are, or whether texts come in pairs.
"""

import dataclasses

from albert_tf.base.errors import require
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.released_names import Place
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.registry import find
from albert_tf.tasks.sentences import PAIR
from albert_tf.tasks.task import Task

# The kernels of heads, their biases, and the kinds of task of the first.
CLASSIFIER, SPANS = "output_weights", "cls/squad/output_weights"
BIASES = {CLASSIFIER: "output_bias", SPANS: "cls/squad/output_bias"}
SENTENCES = ("classification", "multilabel", "regression", "multiple_choice")

# The layers of the beam head: our name, theirs, and the kernel's shape as
# multiples of the width, where 0 is a single number.
BEAM = (
    ("start", "start_logits/dense", (1, 0)),
    ("end_transform", "end_logits/dense_0", (2, 1)),
    ("end", "end_logits/dense_1", (1, 0)),
    ("answer_transform", "answer_class/dense_0", (2, 1)),
    ("answer", "answer_class/dense_1", (1, 0)),
)
NORM = ("layer_norm", "end_logits/LayerNorm")


def _beam_places(width: int) -> dict[str, Place]:
    """Return {our name: place} of the head of `run_squad_v2`."""
    places = {}
    for ours, theirs, sizes in BEAM:
        shape = tuple(n * width or 1 for n in sizes)
        places[f"{ours}/kernel"] = Place(f"{theirs}/kernel", shape)
        places[f"{ours}/bias"] = Place(f"{theirs}/bias", shape[1:])
    del places["answer/bias"]
    for name in ("gamma", "beta"):
        places[f"{NORM[0]}/{name}"] = Place(f"{NORM[1]}/{name}", (width,))
    return places


def _one_product(name: str, outputs: int, width: int) -> dict[str, Place]:
    return {
        "classifier/kernel": Place(name, (outputs, width), True),
        "classifier/bias": Place(BIASES[name], (outputs,)),
    }


def _sentence_task(outputs: int, name: str | None, pairs: bool) -> Task:
    """Return the task of a head on the pooled output."""
    require(
        name or outputs > 1,
        "The head has one output, a number or the score of a choice; `task` "
        "must say which: regression, multiple_choice, sts-b, race ...",
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
        rule = "The head must have an output for each label of `task`."
        shown = ", ".join(labels)
        fits = len(labels) == outputs
        require(fits, rule, outputs=outputs, task=f"{name} ({shown})")
        task = dataclasses.replace(task, labels=labels)
    if pairs and hasattr(task, "is_pair") and not task.is_pair:
        task = task.with_columns({"text_pair_column": PAIR})
    return task


def read_head(
    tensors: Tensors, config: AlbertConfig, name: str | None, pairs: bool
) -> tuple[Task | None, dict[str, Place]]:
    """Return the task of a checkpoint's head, and {our name: its place}.

    Args:
      tensors: of the checkpoint.
      config: the architecture.
      name: of the task, None for the head's default.
      pairs: whether a classifier takes pairs of texts.
    """
    shapes, width = tensors.shapes, config.hidden_size
    if CLASSIFIER in shapes:
        outputs = shapes[CLASSIFIER][0]
        task = _sentence_task(outputs, name, pairs)
        places = _one_product(CLASSIFIER, outputs, width)
    elif SPANS in shapes:
        task, places = find(name or "squad-1.1"), _one_product(SPANS, 2, width)
    elif "answer_class/dense_1/kernel" in shapes:
        task, places = find(name or "squad-2.0"), _beam_places(width)
    else:
        rule = "`task` needs a TF1 checkpoint that has a head."
        require(name is None, rule, task=name)
        return None, {}
    if CLASSIFIER not in shapes:
        rule = "`task` must fit the head, which is for question answering."
        require(task.kind == "question_answering", rule, task=name)
        head = "simple" if SPANS in shapes else "beam"
        config_of_task = dataclasses.replace(task.config, answer_head=head)
        task = dataclasses.replace(task, config=config_of_task)
    positions = config.max_position_embeddings
    return task.with_length(min(task.config.max_seq_length, positions)), places
