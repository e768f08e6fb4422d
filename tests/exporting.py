"""Texts, models and expected outputs for the tests of exported models."""

import dataclasses
import itertools
import math
import shutil

import numpy as np
import tensorflow as tf

from albert_tf.model.config import AlbertConfig
from albert_tf.serving.export import ExportConfig, export_model
from albert_tf.serving.server import ServedModel, load_server
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.registry import find
from albert_tf.text.packing import pack
from albert_tf.training import checkpoints

DEFAULT_SERVING = ServingConfig()
LENGTH = 24
TEXTS = [
    "The small garden on the river.",
    "",
    " \t\n ",
    "NAÏVE cafés, 1,000 in 2010,",
    "nul\0byte",
    b"\xff\xfe not utf-8 \xc3".decode("utf-8", "replace"),
    "a 😀 👩‍👩‍👧 b",
    "שלום עולم مرحبا",
    "she walked quickly over the bridge " * 50,
    "[CLS] is no symbol, nor is [mask]",
]
MASKED = [
    "the [MASK] garden on the [MASK].",
    "no mask",
    "",
    "[MASK]",
    "[MASK][MASK] night",
    "walk[MASK] Straße",
    "over the river " * 20 + "[MASK]",
    "[MASK] " * 60,
]


def strings(texts) -> tf.Tensor:
    """Return texts as a string tensor [n], where n may be 0."""
    return tf.constant([t.encode() for t in texts], tf.string, [len(texts)])


def packed(tokenizer, first, second=None, length=LENGTH):
    """Return ids, masks and segments, each as an array [n, length]."""
    second = second or [""] * len(first)
    rows = [
        pack(tokenizer, tokenizer.encode(a), tokenizer.encode(b), length)
        for a, b in zip(first, second, strict=True)
    ]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def close(found, wanted, tolerance=1e-5):
    """Assert that arrays have the same shape and agree within a tolerance."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max(initial=0.0) <= tolerance


def model_dir(folder, pretrained_dir, task, layers=1):
    """Write a fine-tuned model directory for a task; return the model.

    The weights are random. The default is one layer, because each additional
    layer makes tests slower.
    """
    ignore = shutil.ignore_patterns("*ckpt*", "check*")
    shutil.copytree(pretrained_dir, folder, ignore=ignore)
    task.save(str(folder))
    config = AlbertConfig.from_model_dir(str(folder))
    config = dataclasses.replace(config, num_hidden_layers=layers)
    config.save(str(folder))
    model = task.build_model(config, "float32")
    checkpoints.save(str(folder), checkpoints.named_variables(model))
    return model


def finetuned(folder, pretrained_dir, name, labels=(), pair="", layers=1):
    """Write a fine-tuned model directory; return the model.

    The weights are random.
    """
    task = find(name)
    task = dataclasses.replace(
        task,
        labels=labels,
        columns=dataclasses.replace(task.columns, text_pair=pair),
    ).updated(max_seq_length=12)
    return model_dir(folder, pretrained_dir, task, layers)


def server_of(folder, **settings) -> ServedModel:
    """Return the server for a model directory."""
    return load_server(str(folder), ServingConfig(**settings))


def written(source, out, serving=DEFAULT_SERVING, **settings) -> str:
    """Export a model directory; return the export folder."""
    export_model(ExportConfig(str(source), str(out), **settings), serving)
    return str(out)


def loaded(folder):
    """Return the signatures of a SavedModel."""
    return tf.saved_model.load(str(folder)).signatures


def copied(pretrained_dir, folder):
    """Return a copy of a model directory that a test may change."""
    shutil.copytree(pretrained_dir, folder)
    return str(folder)


def question_task(head, impossible=True):
    """Return a question-answering task with short windows.

    The task is scored as in SQuAD 2.0. If `impossible` is true, a question may
    have no answer. The limit of two tokens per answer excludes many candidates.
    """
    task = find("squad-2.0" if impossible else "squad-1.1")
    task = dataclasses.replace(task, impossible=impossible, scoring="squad2")
    return task.updated(
        max_seq_length=20,
        doc_stride=5,
        max_query_length=6,
        max_answer_length=2,
        answer_head=head,
        n_best_size=4,
    )


def of_kind(kind, folder, pretrained_dir, layers=1):
    """Write a model directory for a kind of task; return the model."""
    task = find(kind)
    if kind == "question_answering":
        task = question_task("simple")
    elif kind != "multiple_choice":
        task = task.updated(max_seq_length=12)
    if task.has_classes:
        task = dataclasses.replace(task, labels=("O", "B-x", "I-x"))
    return model_dir(folder, pretrained_dir, task, layers)


def with_threshold(task, odds):
    """Return a task with a threshold between two null odds of the same sign.

    Some answers thus differ from those with a threshold of 0.
    """
    pairs = itertools.pairwise(np.sort(odds))
    low, high = next((a, b) for a, b in pairs if a * b > 0)
    threshold = float(low + high) / 2
    return task.updated(null_score_diff_threshold=threshold)


def concrete(server, *names):
    """Return {name: concrete function} for the given signatures."""
    signatures = {name: server.signatures[name] for name in names}
    chosen = {"signatures": signatures, "default": names[0]}
    return dataclasses.replace(server, **chosen).concrete()


def without_tokenizer(pretrained_dir, folder):
    """Copy a model directory without its tokenizer; return the copy."""
    ignore = shutil.ignore_patterns("tokenizer.json", "spiece.model")
    return str(shutil.copytree(pretrained_dir, folder, ignore=ignore))


def every_node(nodes, bodies) -> list:
    """Return nodes, and all nodes of the functions that these nodes call.

    `bodies` is {function: nodes}, as `library` returns it.
    """
    names = [v.func.name for n in nodes for v in n.attr.values()]
    inner = [every_node(bodies[name], bodies) for name in names if name]
    return sum(inner, list(nodes))


def library(served) -> dict:
    """Return {name: nodes} for all functions in a signature."""
    functions = served.graph.as_graph_def().library.function
    return {f.signature.name: f.node_def for f in functions}


def product_flops(graph) -> int:
    """Return twice the multiply-adds in a graph's matrix products."""
    total = 0
    for op in graph.get_operations():
        left = op.inputs[0].shape if op.inputs else None
        if op.type == "MatMul":
            inner = left[0 if op.get_attr("transpose_a") else 1]
        elif op.type == "BatchMatMulV2":
            inner = left[-2 if op.get_attr("adj_x") else -1]
        elif op.type == "Einsum":
            inner = left[-1]
        else:
            continue
        total += 2 * inner * math.prod(op.outputs[0].shape)
    return total


def operations(served, kind: str) -> int:
    """Count a signature's operations of one type; loop bodies count once."""
    nodes = every_node(served.graph.as_graph_def().node, library(served))
    return sum(node.op == kind for node in nodes)


def xla_operations(served) -> set[str]:
    """Return the types of the operations that XLA compiles in a signature."""
    return {
        node.op
        for function in served.graph.as_graph_def().library.function
        if function.attr["_XlaMustCompile"].b
        for node in every_node(function.node_def, library(served))
    }
