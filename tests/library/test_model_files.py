"""Models on disk, and pieces that are added to vocabularies."""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
import tiny_phonemes
import tiny_tasks
import vocabularies

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.sources import Source
from albert_tf.conversion.tokenizer_loading import load_tokenizer
from albert_tf.conversion.variable_names import MODEL_DIR
from albert_tf.library.base_model import with_added_pieces
from albert_tf.library.embed import EmbedConfig, embed_texts
from albert_tf.library.models import Classifier, Tagger
from albert_tf.serving.server import load_server
from albert_tf.serving.signatures import ServingConfig
from albert_tf.text import tokenizers
from albert_tf.text.symbols import table_in

TEXT = "the [E1] garden <URL> river"


def test_added_pieces_get_rows(pretrained_dir, tmp_path):
    """An added piece's embedding is the mean over the pieces that it replaces.

    All other embeddings stay the same, and a saved model has all embeddings.
    """
    plain = albert_tf.load(pretrained_dir)
    grown = albert_tf.load(pretrained_dir, added_pieces=["[E1]", "<URL>"])
    size = plain.tokenizer.vocab_size
    assert grown.config.vocab_size == size + 2
    ids = grown.tokenizer.encode(TEXT)
    assert size in ids and size + 1 in ids
    assert len(ids) < len(plain.tokenizer.encode(TEXT))
    tables = [
        m.albert.embeddings.word_embeddings.numpy() for m in (plain, grown)
    ]
    np.testing.assert_array_equal(tables[1][:size], tables[0])
    for number, piece in enumerate(["[E1]", "<URL>"]):
        wanted = tables[0][plain.tokenizer.encode(piece)].mean(axis=0)
        np.testing.assert_allclose(tables[1][size + number], wanted, rtol=1e-5)
    other = ["a small garden"]
    np.testing.assert_array_equal(grown.embed(other), plain.embed(other))
    grown.save(tmp_path / "folder")
    again = albert_tf.load(tmp_path / "folder")
    np.testing.assert_array_equal(again.embed([TEXT]), grown.embed([TEXT]))
    layer, ids = again.preprocessor, again.tokenizer([TEXT], None, 24)
    found = layer.call(np.array([TEXT], object))["input_ids"]
    np.testing.assert_array_equal(found, ids["input_ids"])


def test_added_pieces_take_spare_rows():
    """Added pieces use the rows beyond the vocabulary before new rows.

    In the table and in the bias of the masked-LM head, an added piece has the
    mean over the pieces of its text. Other rows and weights stay the same.
    """
    tokenizer = vocabularies.chinese()
    size = tokenizer.vocab_size
    pieces = ["unaffable", "cafe10"]
    for spare in (0, 1, 5):
        config = dataclasses.replace(tiny.CONFIG, vocab_size=size + spare)
        table = np.arange(3 * (size + spare), dtype="f4").reshape(-1, 3) ** 2
        arrays = {
            "albert/embeddings/word_embeddings": table,
            "mlm/output_bias": table[:, 1] + 5,
            "albert/pooler/bias": table[: size + spare, 0] + 7,
        }
        shapes = {name: array.shape for name, array in arrays.items()}
        source = Source(
            MODEL_DIR,
            "x",
            config,
            Tensors(shapes, arrays.__getitem__),
            tokenizer,
            [],
        )
        grown = with_added_pieces(source, pieces)
        rows = size + max(spare, 2)
        assert grown.config.vocab_size == rows
        assert grown.tokenizer.pieces([size, size + 1]) == pieces
        found = grown.tensors.read_all()
        assert {n: a.shape for n, a in found.items()} == grown.tensors.shapes
        for name, array in arrays.items():
            if name == "albert/pooler/bias":
                np.testing.assert_array_equal(found[name], array)
                continue
            assert len(found[name]) == rows
            np.testing.assert_array_equal(found[name][:size], array[:size])
            for i, piece in enumerate(pieces, size):
                wanted = array[tokenizer.encode(piece)].mean(axis=0)
                np.testing.assert_allclose(found[name][i], wanted, rtol=1e-5)
            rest = found[name][size + 2 :]
            np.testing.assert_array_equal(rest, array[size + 2 :])


def test_a_task_takes_added_pieces_too(pretrained_dir):
    """Pieces can be added to a task model, too."""
    model = Classifier.load(pretrained_dir, ["a", "b"], added_pieces=["[E1]"])
    ids = model.tokenizer([TEXT])
    assert model.tokenizer.vocab_size - 1 in ids["input_ids"]
    assert model(ids).shape == (1, 2)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ("[E1]", "`added_pieces` must be a list"),
        ([1], "`added_pieces` must be a list of strings"),
        (["[E1]", "[E1]"], "must not be in the vocabulary"),
    ],
)
def test_refuses_what_are_no_new_pieces(pretrained_dir, pieces, message):
    """Added pieces that are not a list of new strings raise an error."""
    with pytest.raises(InputError, match=message):
        albert_tf.load(pretrained_dir, added_pieces=pieces)


@pytest.mark.parametrize(
    "name", ["thesis.txt", "best/ckpt-7.index", "ckpt-0.h5", "empty/", ".git"]
)
def test_nothing_but_a_model_is_replaced(pretrained_dir, tmp_path, name):
    """A folder with files that are not part of a model is not replaced.

    The error names such a file.
    """
    model, folder = albert_tf.load(pretrained_dir), tmp_path / "model"
    model.save(folder)
    model.save(f"{folder}/", overwrite=True)
    with pytest.raises(InputError, match="new or empty"):
        model.save(folder)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if name.endswith("/") else path.write_text("mine")
    before = {*folder.rglob("*")}
    with pytest.raises(InputError, match=f"no other files.*{name.rstrip('/')}"):
        model.save(folder, overwrite=True)
    assert {*folder.rglob("*")} == before


@pytest.mark.parametrize("path", ["", "/", ".", None, "..", "sub/../"])
@pytest.mark.parametrize("overwrite", [None, True])
def test_no_folder_with_files_is_lost(
    pretrained_dir, tmp_path, monkeypatch, path, overwrite
):
    """Neither the current folder nor one that contains it is replaced.

    The path of such a folder may be empty, `/`, `.`, `..` or `sub/../`.
    """
    (tmp_path / "sub").mkdir()
    (tmp_path / "thesis.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    model = albert_tf.load(pretrained_dir)
    with pytest.raises(InputError, match="`path`"):
        model.save(path, overwrite=overwrite)
    with pytest.raises(InputError, match="`export_dir`"):
        model.export(path)
    assert {x.name for x in tmp_path.iterdir()} == {"sub", "thesis.txt"}


def test_home_is_found(pretrained_dir, shallow, tmp_path, monkeypatch):
    """`~/` means the home folder in every path, as in the programs.

    Otherwise, `save` would write to a new folder called `~`. A path that starts
    with a drive letter raises an error for the same reason. A
    string of several words that starts with a drive letter is a text.
    """
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    model = albert_tf.load(pretrained_dir)
    model.save("~/base")
    model.save("~/base.keras")
    for read in (
        albert_tf.load,
        albert_tf.load_tokenizer,
        albert_tf.Preprocessor.load,
        albert_tf.AlbertConfig.from_model_dir,
        lambda path: Classifier.load(path, ["a", "b"]),
    ):
        assert read("~/base")
        with pytest.raises(InputError, match="/mnt/c/"):
            read("C:/base")
    assert keras.models.load_model(tmp_path / "home/base.keras")
    for path in ("C:/base", "C:/base.keras"):
        with pytest.raises(InputError, match="/mnt/c/"):
            model.save(path)
    (tmp_path / "home/new reviews.csv").write_text("text\nGood.\nDull.\n")
    classifier = Classifier.load(shallow, ["a", "b"])
    for path in ("~/new reviews.csv", pathlib.Path("~/new reviews.csv")):
        assert classifier.predict(path, verbose=0).shape == (2, 2)
    for text in ("C:/ is full", "~/ is my home"):
        assert classifier.predict(text, verbose=0).shape == (2,)
    assert not list((tmp_path / "work").iterdir())


def test_a_killed_save_leaves_nothing_after_the_next(shallow, tmp_path):
    """The temporary folder of a killed `save` goes with the next `save`."""
    path = tmp_path / "film.keras"
    leftover = tmp_path / "film.keras.tmp7-0123abcd"
    leftover.mkdir()
    (leftover / "model.keras").touch()
    Classifier.load(shallow, ["a", "b"]).save(path)
    assert [*tmp_path.iterdir()] == [path]


def test_a_keras_file_is_replaced_only_as_a_whole(
    shallow, tmp_path, monkeypatch
):
    """A `.keras` file that cannot be written leaves the old file unchanged.

    No part of a file remains. A missing folder is created. The new file is
    written on the same disk, because the system's temporary folder may be too
    small.
    """
    path, save, written = tmp_path / "new/film.keras", keras.Model.save, []

    def recorded(model, file, **how):
        written.append(pathlib.Path(file))
        save(model, file, **how)

    monkeypatch.setattr(keras.Model, "save", recorded)
    model = Classifier.load(shallow, ["a", "b"])
    model.save(path)
    assert path.parent in written[0].parents
    assert [*path.parent.iterdir()] == [path]
    before = path.read_bytes()
    broken = Classifier.load(shallow, ["a", "b"])
    broken.albert.pooler.save_own_variables = lambda store: store["no array"]
    with pytest.raises(KeyError):
        broken.save(path)
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_programs_read_a_saved_model_of_any_type(shallow, tmp_path, dtype):
    """Saved weights are float32, rounded from the model's type.

    Programs that restore only float32 weights can read them.
    """
    model = Classifier.load(shallow, ["a", "b"], dtype=dtype)
    model.save(tmp_path / "saved")
    server = load_server(str(tmp_path / "saved"), ServingConfig(ids_only=True))
    kinds = set()
    for name, variable in model.named_weights().items():
        kinds.add(variable.dtype.name)
        wanted = tf.cast(variable, tf.float32).numpy()
        np.testing.assert_array_equal(server.weights[name].numpy(), wanted)
    assert dtype in kinds


def test_a_file_is_not_replaced_by_a_model(pretrained_dir, tmp_path):
    """`save` replaces neither a file nor a folder without weights."""
    model = albert_tf.load(pretrained_dir)
    (tmp_path / "notes").write_text("mine")
    model.config.save(str(tmp_path / "configs"))
    for name in ("notes", "configs"):
        with pytest.raises(InputError, match="no other files"):
            model.save(tmp_path / name, overwrite=True)


@pytest.mark.parametrize("load", [albert_tf.load, Classifier.load])
def test_a_keras_file_has_its_own_loader(load, tmp_path):
    """The error for a `.keras` file names the function that reads it."""
    path = tmp_path / "film.keras"
    with pytest.raises(InputError) as missing:
        load(path)
    assert "load_model" not in str(missing.value)
    path.touch()
    with pytest.raises(InputError, match="`keras.models.load_model` reads it"):
        load(path)


def test_every_piece_needs_an_embedding(tmp_path):
    """A vocabulary with more pieces than the embedding table is rejected.

    Otherwise, a text could have ids that are not in the table.
    """
    tokenizer = vocabularies.chinese()
    size = tokenizer.vocab_size
    config = dataclasses.replace(tiny.SHALLOW, vocab_size=size - 1)
    path = tiny_tasks.write_model(tmp_path / "model", config, tokenizer)
    rule = f"at most .*: pieces={size}, vocab_size={size - 1}"
    for load in (
        albert_tf.load,
        lambda path: Classifier.load(path, ["a", "b"]),
        lambda path: load_server(path, ServingConfig()),
    ):
        with pytest.raises(InputError, match=rule):
            load(path)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """Return the directory of a phoneme model, and its symbol table."""
    folder = tmp_path_factory.mktemp("spoken") / "model"
    return str(folder), tiny_phonemes.save_model(folder)


def test_a_saved_model_has_its_symbols(spoken, tmp_path):
    """Models made from a phoneme model are saved with its symbols and words.

    A saved encoder can be converted for Kokoro, and a `.keras` file has the
    symbols, too.
    """
    path, table = spoken
    model = albert_tf.load(path)
    tagger = Tagger.load(path, ["a", "b"])
    for number, made in enumerate([model, tagger]):
        made.save(tmp_path / f"{number}")
        made.save(tmp_path / f"{number}", overwrite=True)
        assert table_in(str(tmp_path / f"{number}")) == table
        report = convert(
            str(tmp_path / f"{number}"), f"{tmp_path}/hub{number}", "model_dir"
        )
        assert f"symbols: {len(table.symbols)}" in report
        made.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert again.symbols == table
    again = albert_tf.load(tmp_path / "0")
    ids = np.arange(1, 9)[None]
    np.testing.assert_array_equal(
        *(m(ids)["sequence_output"] for m in (model, again))
    )


def test_a_phoneme_model_has_no_tokenizer(spoken, tmp_path):
    """Methods that need a tokenizer state that the model has symbols."""
    path, _ = spoken
    model, tagger = albert_tf.load(path), Tagger.load(path, ["a", "b"])
    config = EmbedConfig(model_dir=path, input_file="x", output_file="x.npy")
    calls = [
        lambda: model.embed(["a"]),
        lambda: model.fill_mask("[MASK]"),
        lambda: tagger.predict([["a"]]),
        lambda: load_tokenizer(path),
        lambda: tokenizers.load_saved_tokenizer(path),
        lambda: embed_texts(config),
    ]
    for call in calls:
        with pytest.raises(InputError, match="This is a phoneme model"):
            call()
