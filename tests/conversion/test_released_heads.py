"""Heads of TensorFlow 1 checkpoints become tasks."""

import dataclasses

import goldens
import numpy as np
import pytest
import released_files
import tensorflow as tf
from conversions import release

from albert_tf.base.errors import InputError
from albert_tf.conversion import tf1
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.variable_names import StoredTensor
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.registry import find

WIDTH = goldens.CONFIG.hidden_size
SPANS = {"cls/squad/output_weights": (2, WIDTH)}
BEAM = {"answer_class/dense_1/kernel": (WIDTH, 1)}


def head_of(shapes, name=None, pairs=False, config=goldens.CONFIG):
    """Return the task and stored tensors of a head with the given shapes."""
    if isinstance(shapes, int):
        shapes = {"output_weights": (shapes, WIDTH)}
    return tf1.read_head(Tensors(shapes, None), config, name, pairs)


@pytest.mark.parametrize(
    ("shapes", "name", "kind", "labels"),
    [
        (2, None, "classification", ("0", "1")),
        (11, None, "classification", tuple(map(str, range(11)))),
        (3, "mnli", "classification", find("mnli").labels),
        (1, "sts-b", "regression", ()),
        (1, "race", "multiple_choice", ()),
        (SPANS, None, "question_answering", ()),
        (SPANS, "squad-2.0", "question_answering", ()),
        (BEAM, None, "question_answering", ()),
        (BEAM, "squad-1.1", "question_answering", ()),
    ],
)
def test_tasks_that_fit_a_head(shapes, name, kind, labels):
    """A head becomes the named task, or else the default for its shape.

    The task's length fits the model.
    """
    task, tensors = head_of(shapes, name)
    assert (task.kind, getattr(task, "labels", ())) == (kind, labels)
    assert task.config.max_seq_length == goldens.CONFIG.max_position_embeddings
    long = dataclasses.replace(goldens.CONFIG, max_position_embeddings=9999)
    usual = find(task.name).config.max_seq_length
    task, _ = head_of(shapes, name, config=long)
    assert task.config.max_seq_length == usual
    if kind == "question_answering":
        assert task.impossible == (task.name == "squad-2.0")
        head = "beam" if shapes is BEAM else "simple"
        assert task.config.answer_head == head
        assert len(tensors) == (11 if shapes is BEAM else 2)
    if shapes is not BEAM:
        prefix = "cls/squad/" if shapes is SPANS else ""
        outputs = 2 if shapes is SPANS else shapes
        weights = f"{prefix}output_weights", (outputs, WIDTH), True
        assert tensors == {
            "classifier/kernel": StoredTensor(*weights),
            "classifier/bias": StoredTensor(f"{prefix}output_bias", (outputs,)),
        }


@pytest.mark.parametrize(
    ("shapes", "name", "message"),
    [
        (1, None, "has one output.*Received: task=None"),
        (2, "mnli", "one output for each label.*outputs=2"),
        (4, "mnli", "one output for each label.*outputs=4"),
        (2, "sts-b", "A head for regression must have one output.*outputs=2"),
        (2, "squad-2.0", "which is for classification"),
        (SPANS, "mnli", "which is for question answering.*task=mnli"),
        (BEAM, "sts-b", "which is for question answering.*task=sts-b"),
        ({"x": (1,)}, "mnli", "requires a TF1 checkpoint with a head"),
    ],
)
def test_tasks_that_fit_no_head(shapes, name, message):
    """An error names a task that does not fit the head, and the reason."""
    with pytest.raises(InputError, match=message):
        head_of(shapes, name)


def test_the_default_for_one_output_is_for_one_output_alone():
    """A default task for a single output does not apply to other heads."""
    for outputs, name, kind in (
        (1, None, "regression"),
        (1, "race", "multiple_choice"),
        (3, None, "classification"),
    ):
        tensors = Tensors({"output_weights": (outputs, WIDTH)}, None)
        how = goldens.CONFIG, name, False, "regression"
        assert tf1.read_head(tensors, *how)[0].kind == kind


def test_a_checkpoint_without_a_head_has_no_task():
    """If there is neither a head nor a task name, there is no task."""
    assert head_of({"x": (1,)}) == (None, {})


def pooled(outputs):
    """Return the shapes of a head on the pooled output; "H" is the width."""
    return {"output_weights": (outputs, "H"), "output_bias": (outputs,)}


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        *(("mnli", pooled(3)), ("sts-b", pooled(1)), ("race", pooled(1))),
        ("squad-1.1", {f"cls/squad/{n}": x for n, x in pooled(2).items()}),
        (
            "squad-2.0",
            {
                "start_logits/dense/kernel": ("H", 1),
                "start_logits/dense/bias": (1,),
                "end_logits/dense_0/kernel": ("2H", "H"),
                "end_logits/dense_0/bias": ("H",),
                "end_logits/LayerNorm/beta": ("H",),
                "end_logits/LayerNorm/gamma": ("H",),
                "end_logits/dense_1/kernel": ("H", 1),
                "end_logits/dense_1/bias": (1,),
                "answer_class/dense_0/kernel": ("2H", "H"),
                "answer_class/dense_0/bias": ("H",),
                "answer_class/dense_1/kernel": ("H", 1),
            },
        ),
    ],
)
def test_heads_round_trip(name, shapes, golden, tmp_path):
    """A released fine-tuned checkpoint is written back bit for bit.

    The released scripts also restore `global_step`, which becomes 0, and find
    the checkpoint by its folder.
    """
    rng, width = np.random.default_rng(0), golden.config.hidden_size
    sizes = {"H": width, "2H": 2 * width}
    body = {n: x for n, x in golden.weights.items() if n.startswith("bert/")}
    for tensor, shape in shapes.items():
        body[tensor] = rng.random([sizes.get(n, n) for n in shape], "f4")
    source = release(tmp_path / "in", golden.config, body)
    ours, back = str(tmp_path / "ours"), str(tmp_path / "back")
    convert(source, ours, "model_dir", task=name)
    convert(ours, back, "tf1")
    found = released_files.read_all(f"{back}/model.ckpt-best")
    assert tf.train.latest_checkpoint(back) == f"{back}/model.ckpt-best"
    assert found.pop("global_step") == 0
    released_files.assert_same(found, body)


def test_other_heads_have_no_place_in_tf1():
    """A task without a released head cannot be written."""
    with pytest.raises(InputError, match="has no head"):
        tf1.head_tensors(find("ner"), {"classifier/kernel": (WIDTH, 5)}, WIDTH)


def test_pairs_are_of_tasks_that_may_have_them():
    """`pairs` adds a second text only to a classifier of single texts."""
    assert not head_of(2)[0].is_pair and head_of(2, pairs=True)[0].is_pair
    for name in ("sts-b", "race"):
        task, _ = head_of(1, name, pairs=True)
        assert task == head_of(1, name)[0]


def test_the_embedding_width_must_be_known(tmp_path):
    """The config or the weights must specify the embedding width."""
    path = tmp_path / "albert_config.json"
    path.write_text('{"vocab_size": 60, "hidden_size": 12}')
    with pytest.raises(InputError, match="Missing key `embedding_size`"):
        tf1.read_config(str(path), Tensors({}, None))
    AlbertConfig().save(str(tmp_path))
    shapes = {"bert/embeddings/word_embeddings": (60, 6)}
    config, warnings = tf1.read_config(str(path), Tensors(shapes, None))
    assert config.embedding_size == 128 and warnings == []
