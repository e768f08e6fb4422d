"""Vectors equal those of the NumPy model for the text without padding."""

import dataclasses
import gzip
import os
import signal
import threading
import time

import exporting
import numpy as np
import programs
import pytest
import tensorflow as tf
import tiny
from reference import albert_numpy
from tiny_runs import eagerly

from albert_tf.base.errors import InputError
from albert_tf.library.embed import (
    SENTENCE,
    EmbedConfig,
    array_file,
    check_layer,
    completed,
    embed_texts,
    vectors_of,
)
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import find
from albert_tf.text.packing import INPUTS
from albert_tf.text.tokenizers import load_saved_tokenizer
from albert_tf.training import checkpoints

LINES = [
    "a river under the bridge",
    "she reads",
    "",
    "the teacher writes a letter in the morning and walks slowly home",
    "Music\tplayed",
    *(f"large house {i}" for i in range(6)),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "lines.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def oracle(pretrained_dir):
    """Return the outputs of the NumPy model for each line.

    An output consists of the embedding, the layers, the attention and the
    pooled output.
    """
    config = AlbertConfig.from_model_dir(pretrained_dir)
    tokenizer = load_saved_tokenizer(pretrained_dir)
    read = checkpoints.reader(checkpoints.for_inference(pretrained_dir))
    names = checkpoints.read_table(checkpoints.for_inference(pretrained_dir))
    table = {n: read(n) for n in names if n.startswith("albert/")}

    def encode(text):
        pieces = tokenizer.encode(text)[:18]  # 20 with [CLS] and [SEP]
        ids = np.array([tokenizer.cls_id, *pieces, tokenizer.sep_id])
        zeros = np.zeros_like(ids)
        return albert_numpy.encode(table, config, ids, zeros + 1, zeros)

    return [encode(text) for text in LINES]


@pytest.fixture
def made(pretrained_dir, source, tmp_path):
    """Return a function that embeds texts and returns the array of vectors."""

    def make(**values):
        path = str(tmp_path / "new" / "x.npy")  # in a folder to create
        # The model's limit is 24 tokens.
        sizes = {"max_seq_length": 20, "batch_size": 4}
        text = values.pop("input_file", source)
        with eagerly():
            embed_texts(
                EmbedConfig(pretrained_dir, text, path, **sizes, **values)
            )
        return np.load(path)

    return make


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("pooling", "layer"),
    [("mean", 0), ("mean", 1), ("mean", -1), ("mean", -3), ("cls", 2)],
)
def test_vectors_of_every_layer(made, oracle, pooling, layer):
    """In each layer, pooled vectors equal those of the NumPy model."""
    found = made(pooling=pooling, layer=layer)
    levels = [[e, *layers][layer] for e, layers, _, _ in oracle]
    expected = [x.mean(0) if pooling == "mean" else x[0] for x in levels]
    np.testing.assert_allclose(found, expected, 1e-4, 2e-5)
    assert found.dtype == np.float32


def test_vectors_of_the_pooler(made, oracle):
    """`pooled` vectors equal the NumPy model's pooled output."""
    expected = [pooled for *_, pooled in oracle]
    np.testing.assert_allclose(made(pooling="pooled"), expected, 1e-4, 2e-5)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("pooling", "unit"), [("max", False), ("cls", True)])
def test_an_embedder_keeps_its_pooling(
    pretrained_dir, source, tmp_path, pooling, unit
):
    """`embed` and exports use the pooling and length of fine-tuning.

    An export that accepts ids also returns the vectors of the tokens.
    """
    how = {"pooling": pooling, "unit_length": unit, "max_seq_length": 9}
    task = find("embedding").updated(**how)
    model = exporting.model_dir(tmp_path / "model", pretrained_dir, task)
    tokenizer = load_saved_tokenizer(pretrained_dir)
    wanted = model(*exporting.packed(tokenizer, LINES, length=9)).numpy()
    folder, path = str(tmp_path / "model"), str(tmp_path / "x.npy")
    embed_texts(EmbedConfig(folder, source, path))
    np.testing.assert_allclose(np.load(path), wanted, 1e-4, 2e-5)
    server = exporting.server_of(folder)
    answer = server.call("embed", tf.constant(LINES))
    np.testing.assert_allclose(answer["embedding"], wanted, 1e-4, 2e-5)
    ids = zip(INPUTS, exporting.packed(tokenizer, LINES, length=9), strict=True)
    answer = server.numbers(**{name: tf.constant(x) for name, x in ids})
    np.testing.assert_allclose(answer["embedding"], wanted, 1e-4, 2e-5)
    assert answer["sequence_output"].shape == (len(LINES), 9, 16)


def test_every_pooling_has_a_unit_form():
    """A pooling whose name begins with `unit_` returns normalized vectors."""
    x = tf.constant([[[3.0, 4.0], [5.0, -1.0], [9.0, 9.0]]])
    mask = tf.constant([[1, 1, 0]])
    plain = {"cls": [3.0, 4.0], "mean": [4.0, 1.5], "max": [5.0, 4.0]}
    assert set(SENTENCE) == {*plain, *(f"unit_{name}" for name in plain)}
    for name, wanted in plain.items():
        for key, norm in ((name, 1.0), (f"unit_{name}", np.hypot(*wanted))):
            found = SENTENCE[key](x, mask)
            np.testing.assert_allclose(found, [np.divide(wanted, norm)], 1e-5)


def test_layers_are_counted_from_either_end():
    """Layer 0 is the embedding; negative numbers count from the last layer."""
    config = dataclasses.replace(tiny.CONFIG, inner_group_num=2)
    for layer, number in ((-1, 4), (-4, 1), (-5, 0), (0, 0), (1, 1), (4, 4)):
        c = EmbedConfig("m", "a", "x.npy", layer=layer)
        assert check_layer(c, config) == number
    for layer in (-6, 5):
        with pytest.raises(InputError, match="from 0 to 4, or negative"):
            check_layer(EmbedConfig("m", "a", "x.npy", layer=layer), config)


def test_texts_have_128_tokens_by_default(pretrained_dir, tmp_path):
    """The default length is 128, or the model's maximum if that is smaller."""
    for positions, length in ((512, 128), (129, 128), (24, 24)):
        config = dataclasses.replace(
            tiny.CONFIG, max_position_embeddings=positions
        )
        c = completed(EmbedConfig(pretrained_dir, "a", "x.npy"), config)
        assert (c.max_seq_length, c.pooling) == (length, "mean")
    for kind in ("classification", "regression"):
        labels = ("a", "b") if kind == "classification" else ()
        dataclasses.replace(find(kind), labels=labels).save(str(tmp_path))
        c = completed(EmbedConfig(str(tmp_path), "a", "x.npy"), config)
        assert (c.max_seq_length, c.pooling) == (24, "mean")
    task = find("embedding").updated(max_seq_length=200, pooling="max")
    task.save(str(tmp_path))
    embedder = EmbedConfig(str(tmp_path), "a", "x.npy")
    c = completed(embedder, AlbertConfig())  # 512 positions
    assert (c.max_seq_length, c.pooling) == (200, "unit_max")
    for folder in (pretrained_dir, str(tmp_path)):
        complete = EmbedConfig(folder, "a", "x.npy", "cls", max_seq_length=9)
        assert completed(complete, config) == complete


def test_vectors_have_the_order_of_the_texts(tokenizer):
    """A vector has its text's place, though texts are sorted by length.

    A vector that is not finite raises an error.
    """
    texts = ["a " * n for n in (5, 1, 7, 2, 3)]
    features = Features.from_texts(tokenizer, texts, 20)

    def step(batch):
        lengths = tf.reduce_sum(batch["input_mask"], axis=1, keepdims=True)
        lengths = tf.cast(lengths, tf.float32)
        return tf.where(lengths == broken, np.nan, lengths)

    broken = 0.0
    found = vectors_of(features, 2, step)
    assert found.tolist() == [[7], [3], [9], [4], [5]]
    broken = 9.0
    with pytest.raises(InputError, match="not finite"):
        vectors_of(features, 2, step)


def test_a_file_of_vectors_may_be_in_the_current_folder(tmp_path, monkeypatch):
    """A path may lack a folder; rows are appended, whatever their type."""
    monkeypatch.chdir(tmp_path)
    with array_file("x.npy", (3, 2)) as write:
        write(np.array([[1.5, 2]]))
        write(np.array([[3, 4], [5, 6]]))
    assert os.listdir() == ["x.npy"]
    found = np.load("x.npy")
    assert found.tolist() == [[1.5, 2], [3, 4], [5, 6]]
    assert found.dtype == np.float32


def test_sigterm_leaves_no_unfinished_file(tmp_path):
    """If SIGTERM ends the program, it removes the unfinished file."""
    earlier = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            with array_file(str(tmp_path / "x.npy"), (3, 2)):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1)  # until the signal arrives
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert ended.value.code == 143 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "values, named",
    [
        ({"layer": 3}, "layer=3"),
        ({"layer": -4}, "layer=-4"),
        ({"layer": 1, "pooling": "pooled"}, "layer=1"),
        ({"max_seq_length": 25}, "max_seq_length=25"),
        ({"output_file": "x.txt"}, "output_file=x.txt"),
        (
            {"input_file": "nowhere"},
            "`input_file` must be an existing file. Received: nowhere",
        ),
        ({"pooling": "sum"}, "pooling=sum"),
    ],
    ids=str,
)
def test_what_cannot_be_embedded(
    pretrained_dir, source, tmp_path, values, named
):
    """The error for a wrong setting names the setting; no file is written."""
    base = {
        "model_dir": pretrained_dir,
        "input_file": source,
        "output_file": str(tmp_path / "x.npy"),
        "max_seq_length": 24,
    }
    with pytest.raises(InputError, match=named):
        embed_texts(EmbedConfig(**base | values))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "content, named",
    [(b"", "must not be empty"), (b"a\n\xff\n", "t:2.*iconv -f ENCODING")],
)
def test_a_file_that_is_not_text(pretrained_dir, tmp_path, content, named):
    """An error names a file that is empty or a line that is not UTF-8."""
    (tmp_path / "t").write_bytes(content)
    paths = str(tmp_path / "t"), str(tmp_path / "x.npy")
    with pytest.raises(InputError, match=named):
        embed_texts(EmbedConfig(pretrained_dir, *paths, max_seq_length=24))


def test_the_command_line(pretrained_dir, source, tmp_path):
    """The command writes the array and prints its shape."""
    done = programs.run(
        *("-m", "albert_tf.embed", f"--model_dir={pretrained_dir}"),
        *(f"--input_file={source}", f"--output_file={tmp_path}/x.npy"),
    )
    assert done.returncode == 0, done.stderr
    assert f"float32 [{len(LINES)}, 16]" in done.stdout
    assert np.load(tmp_path / "x.npy").shape == (len(LINES), 16)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("pipe", [True, False])
def test_compressed_texts_and_pipes(made, source, tmp_path, pipe):
    """Compressed files and pipes yield the vectors of the plain file."""
    wanted = made()
    with open(source, "rb") as file:
        data = gzip.compress(file.read())
    path = tmp_path / "texts"
    if pipe:
        os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    if not pipe:
        writer.join()
    np.testing.assert_array_equal(made(input_file=str(path)), wanted)
    writer.join()


@pytest.mark.parametrize(
    "content, message",
    [
        (b'{"text": "a"}\n', "plain text.*a file of jsonl"),
        ("caf\u00e9\n".encode("utf-16"), "UTF-16.*iconv"),
        (b"PAR1\x15", "plain text.*parquet"),
    ],
)
def test_other_formats_are_not_embedded(made, tmp_path, content, message):
    """Files that are not plain text raise errors."""
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError, match=message):
        made(input_file=str(tmp_path / "x"))
