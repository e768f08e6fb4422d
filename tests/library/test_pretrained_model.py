"""Vectors, attention and masked words of a pretrained model."""

import dataclasses
import inspect
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.base.errors import InputError
from albert_tf.conversion import sources
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.library import base_model, pretrained_model
from albert_tf.library.embed import EmbedConfig, embed_texts
from albert_tf.library.models import Embedder
from albert_tf.library.pretrained_model import Albert, load

TEXTS = ["the film was good", "a bad plot", "in this one it is not so fine"]


@pytest.fixture(scope="module")
def albert(pretrained):
    """Return a model loaded from a model directory."""
    return load(pretrained)


def test_the_tokenizer_feeds_the_model(albert):
    """The model accepts the tokenizer's result as its argument."""
    batch = albert.tokenizer(TEXTS[:2], ["so fine", ""], max_length=12)
    assert {x.shape for x in batch.values()} == {(2, 12)}
    outputs = albert(batch)
    assert outputs["sequence_output"].shape == (2, 12, 16)
    assert outputs["pooled_output"].shape == (2, 16)
    assert "hidden_states" not in outputs
    learned = [v.path for v in albert.trainable_variables]
    assert learned and all(path.startswith("albert/") for path in learned)
    outputs_of_layers = albert(**batch, return_all=True)
    assert (
        len(outputs_of_layers["hidden_states"])
        == len(outputs_of_layers["attention_probs"])
        == 2
    )
    np.testing.assert_array_equal(
        outputs_of_layers["pooled_output"], outputs["pooled_output"]
    )


@pytest.mark.parametrize("layout", ["tf1", "huggingface"])
def test_every_layout_is_the_same_model(albert, pretrained, layout, tmp_path):
    """Releases and Hugging Face folders load like model directories."""
    folder = str(tmp_path / layout)
    convert(pretrained, folder, layout)
    again = load(folder)
    batch = albert.tokenizer(TEXTS)
    found, wanted = (m(batch)["sequence_output"] for m in (again, albert))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert again.heads == albert.heads
    assert again.fill_mask("a [MASK]") == albert.fill_mask("a [MASK]")


def test_fill_mask_is_the_softmax_of_the_logits(albert):
    """At each mask, pieces and probabilities follow from the head's logits."""
    fillings = albert.fill_mask("the [MASK] was [MASK]", top_k=3)
    ids = albert.tokenizer.encode_masked("the [MASK] was [MASK]")
    row = np.array([[albert.tokenizer.cls_id, *ids, albert.tokenizer.sep_id]])
    states = albert(row)["sequence_output"]
    masks = tf.gather(states, [2, 4], axis=1)
    logits = albert.mlm(masks, embeddings=albert.albert.embeddings)[0]
    for found, wanted in zip(fillings, tf.nn.softmax(logits), strict=True):
        order = np.argsort(-wanted.numpy())[:3]
        pieces = albert.tokenizer.pieces(order)
        assert [filling.piece for filling in found] == pieces
        shares = [filling.probability for filling in found]
        np.testing.assert_allclose(shares, wanted.numpy()[order], rtol=1e-5)
    (five,) = albert.fill_mask("a [MASK]")
    assert albert.fill_mask(["a [MASK]"]) == [[five]] and len(five) == 5
    assert albert.fill_mask("a [MASK]", 1) == [five[:1]]


def test_embed_is_the_program(albert, pretrained, tmp_path):
    """`embed` returns exactly the vectors that the program writes.

    In mixed bfloat16, vectors are float32 and close to the float32 model's.
    """
    text, vectors = tmp_path / "texts.txt", str(tmp_path / "x.npy")
    text.write_text("\n".join(TEXTS))
    embed_texts(EmbedConfig(pretrained, str(text), vectors))
    np.testing.assert_array_equal(albert.embed(TEXTS), np.load(vectors))
    half = load(pretrained, dtype="mixed_bfloat16").embed(TEXTS)
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, np.load(vectors), atol=0.1)


def test_the_heads_have_the_dtype_of_the_model():
    """The encoder and each head follow the model's dtype policy."""
    model = Albert(tiny.SHALLOW, dtype="mixed_bfloat16")
    parts = {name: getattr(model, name) for name in ("albert", *model.heads)}
    found = {name: part.dtype_policy.name for name, part in parts.items()}
    assert found == dict.fromkeys(("albert", "mlm", "sop"), "mixed_bfloat16")


def test_logits_of_the_masks_of_a_text(albert):
    """The logits at the masks in a tokenizer's ids agree with `fill_mask`."""
    text = "the [MASK] was [MASK]"
    inputs = albert.tokenizer([text])
    _, positions = np.nonzero(inputs["input_ids"] == albert.tokenizer.mask_id)
    logits = albert.masked_lm_logits(inputs, positions[None])
    best = albert.tokenizer.pieces(np.argmax(logits[0], axis=-1))
    wanted = [row[0].piece for row in albert.fill_mask(text, top_k=1)]
    assert best == wanted and len(best) == 2


@pytest.mark.parametrize(
    "positions", [[[7]], [[-1]], [[0], [1]], [0], 0, [[0.0]], [[0, 1], [2]]]
)
def test_positions_are_in_the_rows(albert, positions):
    """Positions outside the rows of ids, or of other shapes, raise an error."""
    ids = {"input_ids": np.ones([1, 7], np.int32)}
    with pytest.raises(InputError, match="^`positions` must be"):
        albert.masked_lm_logits(ids, positions)
    assert albert.masked_lm_logits(ids, [[0, 6]]).shape[:2] == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_embed_uses_the_settings_of_an_embedding_model(
    shallow, tmp_path, pooling
):
    """`embed` returns the vectors of the `Embedder` with the same weights.

    Pooling, unit length and maximum length survive `save`; arguments take
    precedence.
    """
    how = {"pooling": pooling, "unit_length": pooling == "cls"}
    embedder = Embedder.load(shallow, max_length=5, **how)
    embedder.save(tmp_path / "embedder")
    wanted = embedder.encode(TEXTS)
    model = load(tmp_path / "embedder")
    model.save(tmp_path / "again")
    model.save(tmp_path / "again.keras")
    for path in ("again", "again.keras"):
        is_file = path.endswith(".keras")
        read = keras.models.load_model if is_file else load
        found = read(tmp_path / path).embed(TEXTS)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    plain = load(shallow).embed(TEXTS, "max", max_length=7)
    found = model.embed(TEXTS, "max", max_length=7)
    np.testing.assert_allclose(found, plain, atol=1e-6)
    longer = load(tmp_path / "embedder", max_length=7)
    longer.save(tmp_path / "longer")
    for model in (longer, load(tmp_path / "longer")):
        assert model.max_length == model.task.config.max_seq_length == 7


@pytest.mark.slow
def test_embed_traces_few_graphs(pretrained):
    """Calls with any number of texts of any length share their graphs.

    After a second input shape, the sizes in a graph are variable. Each pooling
    and each layer has its own graph.
    """
    albert = load(pretrained)
    for number in range(1, 9):
        text = "the film was good " * number
        albert.embed([text] * number)
        albert.embed(text)
        albert.embed(text, "cls", 0)
    for pooling, layer in ("mean", 2), ("cls", 0):
        step = albert._step(pooling, layer)
        assert 1 <= step.experimental_get_tracing_count() <= 3
    before = albert.embed("the film")
    bias = albert.albert.encoder.weights[-1]
    bias.assign(bias + np.linspace(1, 2, bias.shape[0], dtype="f4"))
    # A graph reads the weights in each call.
    assert np.abs(albert.embed("the film") - before).min() > 0.01


def test_a_lone_text_has_a_lone_vector(albert, monkeypatch):
    """For a single text, the result has no batch axis.

    The default layer and batch size are the same as in `embed.py`.
    """

    def vectors_of(features, batch_size, step):
        return np.full([len(features), 2], batch_size)

    monkeypatch.setattr(pretrained_model, "vectors_of", vectors_of)
    assert albert.embed("a film").tolist() == [32, 32]
    assert albert.embed(["a film"], batch_size=3).tolist() == [[3, 3]]
    usual = inspect.signature(albert.embed).parameters
    fields = EmbedConfig.__dataclass_fields__
    for name in ("layer", "batch_size"):
        assert usual[name].default == fields[name].default


def test_warnings_about_files_are_printed(pretrained, monkeypatch, capsys):
    """Each warning about a source is printed on its own line."""

    def open_source(path, *how):
        source = sources.open_source(path, *how)
        return dataclasses.replace(source, warnings=["odd", "old"])

    monkeypatch.setattr(base_model, "open_source", open_source)
    load(pretrained)
    assert capsys.readouterr().out == "warning: odd\nwarning: old\n"


@pytest.mark.parametrize(
    ("x", "texts"),
    [
        *(("a", True), (["a"], True), ([["a"]], True), (("a", 1), True)),
        *(([1, 2], False), (([1], "a"), False), ([], False), (None, False)),
        (np.array(["a"]), True),
        (np.array(["a"], object), True),
        (tf.constant(["a"]), True),
        (np.array([1]), False),
        ({"input_ids": np.array([1]), "text": ["a"]}, True),
        ({"input_ids": np.array([1])}, False),
        (tf.data.Dataset.from_tensor_slices(["a"]), True),
        (tf.data.Dataset.from_tensor_slices(([1], ["a"])), False),
    ],
    ids=str,
)
def test_texts_are_told_from_ids(x, texts):
    """Texts in any container are recognized; methods for ids reject texts."""
    assert base_model.has_text(x) == texts
    method = base_model.of_ids("predict")
    assert method.__name__ == "predict"
    model = types.SimpleNamespace(text_methods="`embed` and `fill_mask`")
    if texts:
        message = "`predict` of this model accepts ids.*`embed` and `fill_mask`"
        with pytest.raises(InputError, match=message):
            method(model, x)
        with pytest.raises(InputError, match=f"Received: x='{'a' * 59}$"):
            method(model, "a" * 99)


def test_save_writes_what_load_reads(albert, tmp_path):
    """A folder and a `.keras` file restore the same model."""
    batch = albert.tokenizer(TEXTS)
    wanted = albert(batch)["pooled_output"]
    albert.save(tmp_path / "folder")
    albert.save(tmp_path / "a.keras")
    for again in (
        load(tmp_path / "folder"),
        keras.models.load_model(tmp_path / "a.keras"),
    ):
        np.testing.assert_array_equal(again(batch)["pooled_output"], wanted)
        fingerprint = again.tokenizer.fingerprint()
        assert fingerprint == albert.tokenizer.fingerprint()


def test_an_earlier_file_has_no_task(albert):
    """The config in a file of an earlier version lacks the task."""
    config = albert.get_config()
    assert config.pop("task") is None
    again = Albert.from_config(config)
    assert again.task is None and again.heads == albert.heads


@pytest.mark.parametrize(
    ("name", "to"), [("tf_saved_model", "saved_model"), ("litert", "litert")]
)
def test_an_export_has_the_format_and_settings(albert, monkeypatch, name, to):
    """`export` accepts Keras's name of a format; settings are passed on."""
    calls = []

    def export(model_dir, **how):
        assert load(model_dir).config == albert.config
        calls.append(how)

    monkeypatch.setattr(base_model, "export", export)
    albert.export("here", name, precision="float16")
    wanted = {"export_dir": "here", "to": to, "precision": "float16"}
    albert.export("there")
    assert calls == [wanted, {"export_dir": "there", "to": "saved_model"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"format": "tflite"},
            "^`format` must be one of saved_model, .*=tflite",
        ),
        ({"format": None}, "^`format` must be one of saved_model, .*=None"),
        ({"to": "onnx"}, "^Pass `filepath` and `format` .*Received: to$"),
        ({"model_dir": "x"}, "^Pass .*Received: model_dir$"),
    ],
)
def test_an_export_has_a_legal_format(albert, tmp_path, arguments, message):
    """Errors of `export` name the arguments `filepath` and `format`."""
    with pytest.raises(InputError, match=message):
        albert.export(tmp_path / "saved", **arguments)


@pytest.mark.slow
def test_a_functional_model_of_two(pretrained, tmp_path):
    """A model that calls two encoders on one input is trained and saved."""
    first, second = load(pretrained), load(pretrained)
    text = keras.Input((), dtype="string")
    ids = first.preprocessor(text)
    both = [model(ids)["pooled_output"] for model in (first, second)]
    scores = keras.layers.Dense(1)(keras.layers.Concatenate()(both))
    model = keras.Model(text, scores)
    model.compile("sgd", "mse", run_eagerly=True)
    texts = tf.constant(TEXTS)
    before = second.albert.pooler.kernel.numpy()
    model.fit(texts, np.ones((3, 1), "float32"), verbose=0)
    assert np.abs(second.albert.pooler.kernel.numpy() - before).max() > 0
    model.save(tmp_path / "two.keras")
    again = keras.models.load_model(tmp_path / "two.keras")
    np.testing.assert_allclose(again(texts), model(texts), atol=1e-6)


@pytest.mark.slow
def test_a_functional_model_is_exported_by_keras(albert, tmp_path):
    """A SavedModel that Keras exports returns the model's outputs."""
    ids = keras.Input([None], dtype="int32")
    model = keras.Model(ids, albert(ids)["pooled_output"])
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(str(tmp_path / "saved"))
    batch = np.arange(12, dtype=np.int32).reshape(2, 6)
    np.testing.assert_allclose(saved.serve(batch), model(batch), atol=1e-6)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda a, path: load("/nowhere"), "`path` must be a folder"),
        (lambda a, path: load(path, max_length=99), "`max_length` must be at"),
        (lambda a, path: a({"input_ids": np.ones([1, 99], "i4")}), "at most"),
        (lambda a, path: a.fill_mask("x" * 99), f"contain.*'{'x' * 60}'$"),
        (lambda a, path: a.tokenizer([1, 2]), "`texts` must be a list of str"),
        (lambda a, path: a.tokenizer("film"), "`texts` must be a list of str"),
        (
            lambda a, path: a.tokenizer(["a"], ["b", "c"]),
            "`text_pairs` and `te",
        ),
        (lambda a, path: a.tokenizer(["a"], max_length=2), "at least 3"),
        (lambda a, path: a.save(path), "`path` must be a new or empty folder"),
        (lambda a, path: a.save(__file__), "`path` must be a new or empty"),
        (lambda a, path: load(path, max_length=-3), "at least 3"),
        (lambda a, path: a.embed(["a"], max_length=99), "`max_length` must be"),
        (lambda a, path: a.embed(["a"], layer=9), "`layer` must be from 0 to"),
        (lambda a, path: a.embed(["a"], "sum"), "`pooling` must be one of"),
        (lambda a, path: a.embed(["a"], batch_size=0), "`batch_size` must be"),
        (lambda a, path: a.embed([]), "must not be empty"),
        (lambda a, path: a.fill_mask("[MASK]", 0), "`top_k` must be at least"),
        (
            lambda a, path: a.fill_mask("[MASK]" + "a " * 99 + "[MASK]" * 2),
            "must be within the model's maximum.* Received: 2 of 3 beyond it",
        ),
    ],
)
def test_refuses_what_does_not_fit(albert, pretrained, action, message):
    """The error for a wrong value names the argument or the text."""
    with pytest.raises(InputError, match=message):
        action(albert, pretrained)


def test_refuses_what_there_is_no_head_for(finished):
    """A fine-tuned model without the masked-LM head cannot fill masks."""
    model = load(finished[0])
    assert model.heads == ()
    with pytest.raises(InputError, match="head `mlm`. Received: heads=none"):
        model.fill_mask("a [MASK]")
