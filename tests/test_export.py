"""Exported models against the Python tokenizer and model."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.export import ExportConfig, export
from albert_tf.model import AlbertForPretraining, AlbertModel
from albert_tf.serving.base import Server, ServingConfig
from albert_tf.serving.registry import load_server
from albert_tf.tasks.base import TaskConfig
from albert_tf.tasks.registry import find
from albert_tf.tokenization import pack

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
    """Return texts as a tensor, [] too."""
    return tf.constant([t.encode() for t in texts], tf.string, [len(texts)])


def packed(tokenizer, first, second=None, length=LENGTH):
    """Return the model's inputs as Python makes them, stacked."""
    second = second or [""] * len(first)
    rows = [
        pack(tokenizer, tokenizer.encode(a), tokenizer.encode(b), length)
        for a, b in zip(first, second, strict=True)
    ]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def close(found, wanted, tolerance=1e-5):
    """Assert that arrays agree within the tolerance of exports."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max(initial=0.0) <= tolerance


@pytest.fixture(scope="module")
def model(pretrained_dir):
    """The Python model of `pretrained_dir`."""
    model = AlbertForPretraining(AlbertConfig.from_model_dir(pretrained_dir))
    checkpoints.restore_weights(model, pretrained_dir)
    return model


@pytest.fixture(scope="module")
def saved(pretrained_dir, tmp_path_factory):
    """The folder of an export by the command line."""
    folder = tmp_path_factory.mktemp("export") / "model"
    command = [
        *(sys.executable, "-m", "albert_tf.export"),
        *(f"--model_dir={pretrained_dir}", f"--export_dir={folder}"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return str(folder)


@pytest.fixture(scope="module")
def served(saved):
    """The signatures of the export."""
    return tf.saved_model.load(saved).signatures


def finetuned(folder, pretrained_dir, name, labels=(), pair=""):
    """Write a fine-tuned model directory with random weights."""
    shutil.copytree(
        pretrained_dir, folder, ignore=shutil.ignore_patterns("*ckpt*", "check")
    )
    task = find(name)
    task = dataclasses.replace(
        task,
        labels=labels,
        columns=dataclasses.replace(task.columns, text_pair=pair),
    ).with_config(TaskConfig(max_seq_length=12))
    task.save(str(folder))
    config = AlbertConfig.from_model_dir(str(folder))
    model = task.build_model(config, "float32")
    checkpoints.save(str(folder), checkpoints.named_variables(model))
    return model


def test_ids_equal_the_python_model(served, model, tokenizer):
    """`ids` gives the model's outputs for any batch size and length."""
    for texts, length in ((TEXTS, 24), (TEXTS[:1], 9)):
        inputs = packed(tokenizer, texts, length=length)
        wanted = model.albert(*map(tf.constant, inputs))
        names = ("input_ids", "input_mask", "segment_ids")
        found = served["ids"](
            **{n: tf.constant(x) for n, x in zip(names, inputs, strict=True)}
        )
        assert set(found) == {"sequence_output", "pooled_output", "sop_logits"}
        close(found["sequence_output"], wanted["sequence_output"])
        close(found["pooled_output"], wanted["pooled_output"])
        close(found["sop_logits"], model.sop(wanted["pooled_output"]))


@pytest.mark.parametrize("pair", [False, True])
def test_tokenize_equals_the_python_tokenizer(served, tokenizer, pair):
    """Ids, mask and segments are Python's, for texts of any kind."""
    second = TEXTS[::-1] if pair else None
    ids, mask, segments = packed(tokenizer, TEXTS, second)
    if pair:
        found = served["tokenize_pair"](
            text=strings(TEXTS), text_pair=strings(second)
        )
    else:
        found = served["tokenize"](strings(TEXTS))
    np.testing.assert_array_equal(found["input_ids"], ids)
    np.testing.assert_array_equal(found["input_mask"], mask)
    np.testing.assert_array_equal(found["segment_ids"], segments)
    pieces = [p.decode() for p in found["pieces"].numpy()[0]]
    assert pieces == tokenizer.pieces(ids[0])


def test_text_equals_the_python_model(served, model, tokenizer):
    """`text` and `text_pair` give the outputs of Python from end to end."""
    inputs = map(tf.constant, packed(tokenizer, TEXTS))
    wanted = model.albert(*inputs)
    for name in ("text", "serving_default"):
        found = served[name](strings(TEXTS))
        close(found["sequence_output"], wanted["sequence_output"])
        close(found["pooled_output"], wanted["pooled_output"])
    second = TEXTS[::-1]
    inputs = map(tf.constant, packed(tokenizer, TEXTS, second))
    wanted = model.albert(*inputs)
    arguments = {"text": strings(TEXTS), "text_pair": strings(second)}
    found = served["text_pair"](**arguments)
    close(found["sequence_output"], wanted["sequence_output"])
    order = tf.nn.softmax(model.sop(wanted["pooled_output"]))[:, 0]
    close(served["sentence_order"](**arguments)["in_order"], order)


def test_inputs_are_as_long_as_the_longest_text(served, tokenizer):
    """Without a fixed length a batch has no more padding than it needs."""
    ids = tokenizer.encode(TEXTS[0])
    found = served["tokenize"](strings([TEXTS[0], "a"]))
    assert found["input_ids"].shape == [2, len(ids) + 2]


def test_embeddings_are_the_outputs_and_their_mean(served, model, tokenizer):
    """`embed` is the pooled output, every token, and the mean of tokens."""
    ids, mask, segments = packed(tokenizer, TEXTS)
    wanted = model.albert(*map(tf.constant, (ids, mask, segments)))
    found = served["embed"](strings(TEXTS))
    close(found["pooled"], wanted["pooled_output"])
    close(found["tokens"], wanted["sequence_output"])
    rows = np.array(wanted["sequence_output"])
    means = [x[m == 1].mean(0) for x, m in zip(rows, mask, strict=True)]
    close(found["mean"], means)


def test_masks_are_filled_as_by_the_python_model(served, model, tokenizer):
    """Every `[MASK]` that is kept gets its likeliest pieces in order."""
    found = {
        k: v.numpy() for k, v in served["fill_mask"](strings(MASKED)).items()
    }
    most = 0
    for row, text in enumerate(MASKED):
        inputs = pack(tokenizer, tokenizer.encode_masked(text), [], LENGTH)
        places = np.flatnonzero(inputs[0] == tokenizer.mask_id)
        most = max(most, len(places))
        assert found["mask_count"][row] == len(places)
        for i, place in enumerate(places):
            assert found["positions"][row, i] == place
            batch = [tf.constant(x[None]) for x in (*inputs, places[i : i + 1])]
            batch[3] = tf.cast(batch[3], tf.int32)
            logits = model(*batch)["mlm_logits"]
            probabilities = tf.nn.softmax(logits)[0, 0].numpy()
            best = np.argsort(-probabilities)[:5]
            close(found["probabilities"][row, i], probabilities[best])
            pieces = [p.decode() for p in found["pieces"][row, i]]
            assert pieces == tokenizer.pieces(best)
        rest = len(places)
        assert (found["positions"][row, rest:] == -1).all()
        assert (found["probabilities"][row, rest:] == 0).all()
        assert (found["pieces"][row, rest:] == b"").all()
    assert found["pieces"].shape == (len(MASKED), most, 5)


def test_a_batch_without_masks_has_no_fillings(served):
    """Texts without a mask give results of width 0."""
    found = served["fill_mask"](strings(["no", "mask"]))
    assert found["pieces"].shape == [2, 0, 5]
    assert found["mask_count"].numpy().tolist() == [0, 0]


def test_a_batch_of_nothing_has_no_results(served):
    """A batch of 0 gives outputs with 0 rows from every signature."""
    for name, function in served.items():
        if name == "ids":
            continue
        arguments = function.structured_input_signature[1]
        found = function(**{name: strings([]) for name in arguments})
        assert all(value.shape[0] == 0 for value in found.values()), name


def test_rows_do_not_depend_on_the_batch(served):
    """A text has the same outputs alone and beside others."""
    alone = served["text"](strings(TEXTS[:1]))["pooled_output"]
    beside = served["text"](strings(TEXTS))["pooled_output"][:1]
    close(beside, alone)


def test_texts_of_a_megabyte_are_cut(served, tokenizer):
    """A text of any length is cut to the model's."""
    text = "over the river " * 70_000
    found = served["tokenize"](strings([text]))
    wanted = packed(tokenizer, [text[:1000]])[0]
    np.testing.assert_array_equal(found["input_ids"], wanted)


def test_the_second_text_may_be_empty(served):
    """A pair without its second text is the first text alone."""
    texts = TEXTS[:4]
    alone = served["tokenize"](strings(texts))
    pair = served["tokenize_pair"](
        text=strings(texts), text_pair=strings([""] * 4)
    )
    for name in ("input_ids", "input_mask", "segment_ids"):
        np.testing.assert_array_equal(alone[name], pair[name])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 25),) * 3, "1 to 24 tokens"),
        (((2, 0),) * 3, "1 to 24 tokens"),
        (((2, 5), (2, 4), (2, 5)), "one shape"),
        (((2, 5), (2, 5), (2, 1)), "one shape"),
        (((2, 5), (1, 5), (2, 5)), "one shape"),
    ],
)
def test_ids_of_a_wrong_shape_are_refused(served, shapes, message):
    """Inputs that would be broadcast, or read beyond, are errors instead."""
    names = ("input_ids", "input_mask", "segment_ids")
    inputs = {
        name: tf.ones(shape, tf.int32)
        for name, shape in zip(names, shapes, strict=True)
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        served["ids"](**inputs)


def test_pairs_of_unequal_number_are_refused(served):
    """A text without its pair is an error, not another request's answer."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many"):
        served["text_pair"](text=strings(["a", "b"]), text_pair=strings(["c"]))


def test_weights_are_stored_once(saved, model):
    """The file holds each variable once, in float32, under its name."""
    prefix = os.path.join(saved, "variables", "variables")
    reader = tf.train.load_checkpoint(prefix)
    ending = "/.ATTRIBUTES/VARIABLE_VALUE"
    found = {
        name: (reader.get_variable_to_dtype_map()[name], shape)
        for name, shape in reader.get_variable_to_shape_map().items()
        if name.endswith(ending)
    }
    wanted = {
        f"weights/{name.replace('/', '.S')}{ending}": (
            tf.float32,
            variable.shape.as_list(),
        )
        for name, variable in checkpoints.named_variables(model).items()
    }
    assert found == wanted


FRESH = """
import json, sys
import tensorflow as tf
import tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
found = loaded.signatures["serving_default"](tf.constant([sys.argv[2]]))
filled = loaded.signatures["fill_mask"](tf.constant(["the [MASK]"]))
print(json.dumps({
    "ours": [m for m in sys.modules if m.split(".")[0] == "albert_tf"],
    "pooled": found["pooled_output"].numpy().tolist(),
    "pieces": len(filled["pieces"][0, 0]),
}))
"""


def test_loads_without_this_package(saved, model, tokenizer, tmp_path):
    """TensorFlow and TensorFlow Text alone load it, moved, and it answers."""
    moved = tmp_path / "moved"
    shutil.copytree(saved, moved)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(moved), TEXTS[3]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["ours"] == []
    assert found["pieces"] == 5
    inputs = map(tf.constant, packed(tokenizer, TEXTS[3:4]))
    close(found["pooled"], model.albert(*inputs)["pooled_output"])


def test_the_model_is_described_in_assets(saved, pretrained_dir):
    """Config, vocabulary and its normalisation lie beside the graph."""
    for name in ("albert_config.json", "tokenizer.json", "spiece.model"):
        with open(os.path.join(saved, "assets", name), "rb") as file:
            with open(os.path.join(pretrained_dir, name), "rb") as source:
                assert file.read() == source.read()


def test_classification_names_its_labels(tmp_path, pretrained_dir, tokenizer):
    """`classify` gives Python's probabilities and the label of the largest."""
    labels = ("bad", "fair", "好")
    folder, out = str(tmp_path / "model"), str(tmp_path / "out")
    model = finetuned(folder, pretrained_dir, "classification", labels)
    inputs = packed(tokenizer, TEXTS, length=12)
    wanted = tf.nn.softmax(model(*map(tf.constant, inputs))).numpy()
    export(ExportConfig(folder, out), ServingConfig())
    signatures = tf.saved_model.load(out).signatures
    for name in ("classify", "serving_default"):
        found = signatures[name](strings(TEXTS))
        assert set(found) == {"label", "labels", "probabilities", "logits"}
        close(found["probabilities"], wanted)
        best = [x.decode() for x in found["label"].numpy()]
        assert best == [labels[i] for i in wanted.argmax(-1)]
        every = [tuple(x.decode() for x in r) for r in found["labels"].numpy()]
        assert every == [labels] * len(TEXTS)
    found = signatures["text"](strings(TEXTS))
    close(found["probabilities"], wanted)
    assert found["sequence_output"].shape == [len(TEXTS), 12, 16]


def test_multilabel_says_what_is_chosen(tmp_path, pretrained_dir, tokenizer):
    """Every class has its own probability, chosen above a half."""
    folder = tmp_path / "model"
    model = finetuned(folder, pretrained_dir, "multilabel", ("a", "b", "c"))
    inputs = packed(tokenizer, TEXTS, length=12)
    wanted = tf.sigmoid(model(*map(tf.constant, inputs))).numpy()
    found = load_server(str(folder), ServingConfig()).classify(strings(TEXTS))
    close(found["probabilities"], wanted)
    np.testing.assert_array_equal(found["chosen"], wanted > 0.5)


def test_regression_gives_the_score(tmp_path, pretrained_dir, tokenizer):
    """`score` is the model's number."""
    folder = tmp_path / "model"
    model = finetuned(folder, pretrained_dir, "regression", pair="b")
    inputs = packed(tokenizer, TEXTS, TEXTS[::-1], length=12)
    wanted = model(*map(tf.constant, inputs))[:, 0]
    server = load_server(str(folder), ServingConfig())
    found = server.score(strings(TEXTS), strings(TEXTS[::-1]))
    close(found["score"], wanted)


def copied(pretrained_dir, folder):
    """Return a copy of a model directory that may be changed."""
    shutil.copytree(pretrained_dir, folder)
    return str(folder)


def test_without_a_tokenizer_only_ids_are_served(pretrained_dir, tmp_path):
    """A model directory without a tokenizer serves `ids` alone."""
    folder = copied(pretrained_dir, tmp_path / "model")
    for name in ("tokenizer.json", "spiece.model"):
        os.remove(os.path.join(folder, name))
    config = ExportConfig(model_dir=folder, export_dir=str(tmp_path / "out"))
    export(config, ServingConfig())
    signatures = tf.saved_model.load(config.export_dir).signatures
    assert set(signatures) == {"ids", "serving_default"}


def test_absent_heads_are_not_served(pretrained_dir, model, tmp_path):
    """Converted weights without heads give a model without their outputs."""
    folder = copied(pretrained_dir, tmp_path / "model")
    weights = checkpoints.named_variables(model)
    for absent, rest in (
        (("sop/",), {"fill_mask"}),
        (("sop/", "mlm/"), set()),
    ):
        kept = {k: v for k, v in weights.items() if not k.startswith(absent)}
        checkpoints.save(folder, kept)
        server = load_server(folder, ServingConfig())
        heads = {"fill_mask", "sentence_order"}
        assert heads.intersection(server.inputs()) == rest
        assert set(server.weights) == set(kept)
    assert "sop_logits" not in server.text(strings(["a"]))


def test_foreign_weights_are_refused(pretrained_dir, model, tmp_path):
    """A head that the model has not, or a missing weight, is named."""
    folder = copied(pretrained_dir, tmp_path / "model")
    weights = checkpoints.named_variables(model)
    extra = weights | {"classifier/bias": tf.Variable([0.0])}
    checkpoints.save(folder, extra)
    with pytest.raises(InputError, match="unexpected classifier/bias"):
        load_server(folder, ServingConfig())
    del weights["albert/pooler/bias"]
    checkpoints.save(folder, weights)
    with pytest.raises(InputError, match="missing albert/pooler/bias"):
        load_server(folder, ServingConfig())


def test_bfloat16_models_are_served_in_float32(pretrained_dir, tmp_path):
    """What a model was trained in does not change what is served."""
    folder = copied(pretrained_dir, tmp_path / "model")
    config = AlbertConfig.from_model_dir(folder)
    trained = AlbertForPretraining(config, dtype="mixed_bfloat16")
    checkpoints.save(folder, checkpoints.named_variables(trained))
    plain = AlbertModel(config)
    plain.build()
    checkpoints.restore_weights(plain, folder, only=("albert/",))
    server = load_server(folder, ServingConfig())
    ids = tf.constant([[2, 7, 8, 3]])
    found = server.ids(ids, tf.ones_like(ids), tf.zeros_like(ids))
    wanted = plain(ids, tf.ones_like(ids), tf.zeros_like(ids))
    close(found["sequence_output"], wanted["sequence_output"])


def test_shapes_can_be_fixed(pretrained_dir):
    """Batch and length are static in every function when flags fix them."""
    server = load_server(
        pretrained_dir,
        ServingConfig(max_seq_length=10, fixed_length=True, batch_size=2),
    )
    inputs = server.inputs()
    assert [x.shape for x in inputs["ids"]] == [[2, 10]] * 3
    assert [x.shape for x in inputs["text_pair"]] == [[2]] * 2
    outputs = server.encode.get_concrete_function().structured_outputs
    assert outputs["sequence_output"].shape == [2, 10, 16]
    found = server.text(strings(["a", TEXTS[0] * 9]))
    assert found["sequence_output"].shape == [2, 10, 16]


def test_shorter_inputs_can_be_asked_for(pretrained_dir, tokenizer):
    """Texts are cut to `max_seq_length` as in training."""
    server = load_server(pretrained_dir, ServingConfig(max_seq_length=8))
    found = server.tokenize_pair(strings(TEXTS), strings(TEXTS[::-1]))
    wanted = packed(tokenizer, TEXTS, TEXTS[::-1], length=8)[0]
    np.testing.assert_array_equal(found["input_ids"], wanted)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_seq_length": 25}, "at most.*24.*Received: max_seq_length=25"),
        ({"max_seq_length": 2}, "max_seq_length.*at least 3"),
        ({"batch_size": 0}, "batch_size.*at least 1"),
        ({"top_k": 0}, "top_k.*at least 1"),
        ({"top_k": 151}, "top_k.*150.*Received: top_k=151"),
    ],
)
def test_impossible_settings_are_refused(pretrained_dir, values, message):
    """A setting out of range is named with its limit."""
    with pytest.raises(InputError, match=message):
        load_server(pretrained_dir, ServingConfig(**values))


def test_a_tokenizer_larger_than_the_model_is_refused(pretrained_dir, tmp_path):
    """Ids that the model has no embedding for cannot arise."""
    folder = copied(pretrained_dir, tmp_path / "model")
    config = AlbertConfig.from_model_dir(folder)
    dataclasses.replace(config, vocab_size=149).save(folder)
    with pytest.raises(InputError, match="150 pieces, vocab_size=149"):
        load_server(folder, ServingConfig())


def test_a_folder_with_other_things_is_not_touched(pretrained_dir, tmp_path):
    """Only a new or empty folder, or an earlier export, is written to."""
    (tmp_path / "thesis.txt").write_text("mine")
    config = ExportConfig(model_dir=pretrained_dir, export_dir=str(tmp_path))
    with pytest.raises(InputError, match="earlier export"):
        export(config, ServingConfig())
    assert os.listdir(tmp_path) == ["thesis.txt"]
    file = str(tmp_path / "thesis.txt")
    with pytest.raises(InputError, match="earlier export"):
        export(ExportConfig(pretrained_dir, file), ServingConfig())


def test_an_export_is_replaced_whole_or_not_at_all(
    saved, pretrained_dir, tmp_path, monkeypatch
):
    """An export that fails leaves the earlier one; one that works takes it."""
    graph = tmp_path / "model" / "saved_model.pb"
    shutil.copytree(saved, graph.parent)
    graph.write_text("earlier")
    config = ExportConfig(pretrained_dir, f"{graph.parent}/")
    error = OSError("the disk is full")

    def save(root, folder, signatures):
        os.makedirs(folder, exist_ok=True)
        if error:
            raise error
        with open(os.path.join(folder, "saved_model.pb"), "w") as file:
            file.write("new")

    monkeypatch.setattr(tf.saved_model, "save", save)
    monkeypatch.setattr(Server, "signatures", lambda self: {})
    with pytest.raises(OSError, match="full"):
        export(config, ServingConfig())
    assert graph.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["model"]
    error = None
    export(config, ServingConfig())
    assert graph.read_text() == "new"
    assert os.listdir(tmp_path) == ["model"]


def test_a_model_directory_must_be_whole(tmp_path):
    """A folder without a config is named, and nothing is written."""
    config = ExportConfig(str(tmp_path), str(tmp_path / "out"))
    with pytest.raises(InputError, match="albert_config.json"):
        export(config, ServingConfig())
    assert os.listdir(tmp_path) == []
