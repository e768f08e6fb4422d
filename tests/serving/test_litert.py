"""LiteRT files are small and have the same outputs as the Python model."""

import functools
import json
import shutil

import numpy as np
import programs
import pytest
import tensorflow as tf
from exporting import MASKED, TEXTS, close, finetuned, packed, written

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.serving import litert
from albert_tf.serving.export import ExportConfig
from albert_tf.serving.litert_runner import (
    MODEL_FILE,
    Runner,
    RunnerConfig,
    answers,
)
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.features import Features
from albert_tf.text.packing import pack
from albert_tf.training import checkpoints

pytest.importorskip("ai_edge_litert")

LABELS = ("fair", "bad", "好")
exported = functools.partial(written, to="litert")


@pytest.fixture(scope="module")
def pretrained(pretrained_dir, tmp_path_factory):
    """Return the folder of a pretrained model's float32 export."""
    return exported(pretrained_dir, tmp_path_factory.mktemp("lite") / "out")


@pytest.fixture(scope="module")
def classifier(pretrained_dir, tmp_path_factory):
    """Return a pair classifier's model directory and Python model."""
    folder = tmp_path_factory.mktemp("classifier") / "model"
    model = finetuned(folder, pretrained_dir, "classification", LABELS, "pair")
    return str(folder), model


def test_fills_masks_as_the_python_model(
    pretrained, pretrained_model, tokenizer
):
    """Each mask gets the same pieces as in Python, for any number of masks.

    A text without a mask, or with masks beyond the maximum length, raises an
    error.
    """
    runner = Runner(pretrained)
    assert (runner.batch_size, runner.masks) == (1, 8)
    for text in MASKED:
        ids = tokenizer.encode_masked(text)
        inputs = pack(tokenizer, ids, [], runner.length)
        positions = np.flatnonzero(inputs[0] == tokenizer.mask_id)
        number = ids.count(tokenizer.mask_id)
        if not number or len(positions) < number:
            rule = "of [16]0? beyond it" if number else "must contain .MASK."
            with pytest.raises(InputError, match=rule):
                runner.fill_mask(text, 3)
            continue
        found = runner.fill_mask(text, 3)
        assert len(found) == len(positions)
        batch = [tf.constant(x[None], tf.int32) for x in (*inputs, positions)]
        logits = pretrained_model(*batch)["mlm_logits"][0]
        for answer, p in zip(found, tf.nn.softmax(logits).numpy(), strict=True):
            best = np.argsort(-p)[:3]
            assert [piece for piece, _ in answer] == tokenizer.pieces(best)
            close([share for _, share in answer], p[best])


def scores(runner, texts, pairs=None):
    """Return a runner's outputs {name: [N, ...]} for N texts or text pairs."""
    rows = Features.from_texts(
        runner.tokenizer, texts, runner.length, pairs=pairs
    )
    return runner.run(rows)


def test_scores_pairs_as_the_python_model(
    pretrained, pretrained_model, tokenizer
):
    """For texts and pairs, outputs equal those of the Python model."""
    runner = Runner(pretrained)
    found = scores(runner, TEXTS, TEXTS[::-1])
    inputs = packed(tokenizer, TEXTS, TEXTS[::-1])
    wanted = pretrained_model.albert(*map(tf.constant, inputs))
    close(found["pooled_output"], wanted["pooled_output"])
    logits = pretrained_model.sop(wanted["pooled_output"])
    close(found["sop_logits"], logits)
    alone = pretrained_model.albert(
        *map(tf.constant, packed(tokenizer, TEXTS[:3]))
    )
    found = scores(runner, TEXTS[:3])["pooled_output"]
    close(found, alone["pooled_output"])
    query = {"text": TEXTS[0], "text_pair": TEXTS[-1]}
    found = runner.answer(query, 5)["in_order"]
    close(found, tf.nn.softmax(logits)[0, 0])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [
        ("float32", 1e-5),
        ("dynamic_int8", 0.2),
        pytest.param("float16", 0.02, marks=pytest.mark.slow),
    ],
)
def test_precisions_of_a_classifier(
    classifier, tokenizer, tmp_path, precision, tolerance
):
    """At every precision, labels and probabilities match the Python model.

    With float32 and float16, the file contains the weights in this type.
    """
    folder, model = classifier
    out = exported(folder, tmp_path / "out", precision=precision)
    content = files.read_bytes(f"{out}/{MODEL_FILE}")
    weights = checkpoints.named_variables(model).items()
    kernel = next(x for k, x in weights if "/ffn_" in k and "kernel" in k)
    for name in ("float32", "float16"):
        stored = kernel.numpy().T.astype(name).tobytes() in content
        assert stored == (name == precision)
    inputs = packed(tokenizer, TEXTS, TEXTS[::-1], length=12)
    wanted = tf.nn.softmax(model(*map(tf.constant, inputs))).numpy()
    found = scores(Runner(out), TEXTS, TEXTS[::-1])["probabilities"]
    close(found, wanted, tolerance)
    query = json.dumps({"text": TEXTS[0], "text_pair": TEXTS[-1]})
    (answer,) = answers(RunnerConfig(model=out, text=query))
    close([answer[label] for label in LABELS], wanted[0], tolerance)
    with pytest.raises(InputError, match="`text`, `text_pair`"):
        next(answers(RunnerConfig(model=out, text=TEXTS[0])))


def test_shapes_are_fixed():
    """A LiteRT file has fixed shapes, by default for a single text."""
    for size, fixed in ((None, 1), (1, 1), (3, 3)):
        config = ServingConfig(max_seq_length=9, batch_size=size)
        wanted = ServingConfig(
            max_seq_length=9, batch_size=fixed, fixed_length=True
        )
        assert litert.fixed(config) == wanted


def test_int8_needs_text(classifier, tmp_path):
    """Without a calibration file, int8 raises an error and writes no file.

    A SavedModel does not support int8, and dynamic_int8 accepts no calibration
    file.
    """
    with pytest.raises(InputError, match="calibration_file.*precision=int8"):
        exported(classifier[0], tmp_path / "out", precision="int8")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="precision.*to=saved_model"):
        ExportConfig("a", "b", precision="int8")
    with pytest.raises(InputError, match="precision=int8.*=dynamic_int8"):
        ExportConfig("a", "b", "litert", "dynamic_int8", calibration_file="c")


def test_weights_are_stored_once(pretrained, pretrained_model):
    """The file contains only one copy of the weights that layers share."""
    content = files.read_bytes(f"{pretrained}/{MODEL_FILE}")
    names = checkpoints.named_variables(pretrained_model)
    kernels = [names[n] for n in names if "/ffn_" in n and "kernel" in n]
    assert len(kernels) == 2
    for kernel in kernels:  # LiteRT stores kernels transposed
        assert content.count(kernel.numpy().T.tobytes()) == 1


def test_the_runner_writes_its_answers_alone(pretrained):
    """The runner prints JSON answers, and nothing else, to standard output."""
    flags = f"--model={pretrained}", "--text=[MASK]"
    done = programs.run("-m", "albert_tf.litert_runner", *flags)
    assert "fill_mask" in json.loads(done.stdout)


@pytest.mark.slow
def test_an_encoder_without_heads_gives_vectors(
    pretrained_dir, pretrained_model, tokenizer, tmp_path
):
    """An encoder without heads returns the vectors of the Python model."""
    folder = tmp_path / "model"
    ignore = shutil.ignore_patterns("*ckpt*", "check*")
    shutil.copytree(pretrained_dir, folder, ignore=ignore)
    weights = checkpoints.named_variables(pretrained_model)
    encoder = {k: x for k, x in weights.items() if k.startswith("albert/")}
    checkpoints.save(str(folder), encoder)
    out = exported(folder, tmp_path / "out")
    for query in ({"text": TEXTS[0]}, {"text": TEXTS[0], "text_pair": "a"}):
        inputs = packed(
            tokenizer, [query["text"]], [query.get("text_pair", "")]
        )
        wanted = pretrained_model.albert(*map(tf.constant, inputs))
        (found,) = answers(RunnerConfig(model=out, text=json.dumps(query)))
        close(found["pooled"], wanted["pooled_output"][0])
        tokens = wanted["sequence_output"][0][: inputs[1].sum()]
        close(found["mean"], tf.reduce_mean(tokens, axis=0))


@pytest.mark.parametrize("error", [ValueError, RuntimeError, KeyError])
def test_any_error_of_the_interpreter_names_the_file(
    error, pretrained, monkeypatch
):
    """If the interpreter raises any error, our error names the model file."""

    def fail(path, num_threads):
        raise error("no file")

    monkeypatch.setattr("ai_edge_litert.interpreter.Interpreter", fail)
    with pytest.raises(InputError, match="no file.*model.tflite$"):
        Runner(pretrained)


def test_foreign_folders_are_refused(pretrained, tmp_path):
    """The error names a folder that contains no LiteRT model."""
    with pytest.raises(InputError, match="--to=litert.*tokenizer.json"):
        Runner(str(tmp_path))
    for name in ("tokenizer.json", "spiece.model"):
        files.copy(f"{pretrained}/{name}", str(tmp_path / name))
    (tmp_path / "model.tflite").write_bytes(b"no model")
    with pytest.raises(InputError, match="must contain a LiteRT model"):
        Runner(str(tmp_path))
