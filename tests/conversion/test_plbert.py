"""Phoneme models are converted from and to the files of StyleTTS 2."""

import dataclasses
import importlib.util
import json
import pickle
import re
import shutil
import sys
import types

import goldens
import numpy as np
import pytest
import released_files
import safetensors.numpy
import tensorflow as tf
from conversions import edit, refuse, update

from albert_tf.base.errors import InputError
from albert_tf.conversion import plbert
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.sources import Reading, open_source
from albert_tf.conversion.variable_names import StoredTensor
from albert_tf.model.config import AlbertConfig
from albert_tf.model.phonemes import AlbertForPhonemes
from albert_tf.text.symbols import preset, read_table
from albert_tf.training import checkpoints
from albert_tf.training.checkpoints import named_variables

CONFIG = AlbertConfig(
    vocab_size=178,
    embedding_size=8,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=32,
)
TABLE = preset("kokoro").with_words(("the", "of", "and"))
TABLE = dataclasses.replace(TABLE, pad=":")  # unlike in the presets, not id 0
STEP = 37
ORIGINAL = "config.yml"  # of PL-BERT
PUBLISHED = """
model_params:
    vocab_size: 178
    hidden_size: 768
    num_attention_heads: 12
    intermediate_size: 2048
    max_position_embeddings: 512
    num_hidden_layers: 12
    dropout: 0.1
"""


def save(folder, config, variables: dict, step: int = 0) -> None:
    """Write a phoneme model with the words of `TABLE`."""
    TABLE.save(str(folder))
    config.save(str(folder))
    checkpoints.save(str(folder), variables, step)


def randomized(model) -> dict:
    """Assign random values to a model's variables; return the variables."""
    rng = np.random.default_rng(2)
    variables = named_variables(model)
    for variable in variables.values():
        variable.assign(0.3 * rng.normal(size=variable.shape))
    return variables


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a phoneme model and the directory of a run's checkpoint."""
    folder = tmp_path_factory.mktemp("phonemes") / "trained"
    model = AlbertForPhonemes(CONFIG, len(TABLE.words))
    weights = randomized(model)
    slots = {
        f"optimizer/{name}/{slot}": tf.Variable(tf.ones_like(variable))
        for name, variable in weights.items()
        for slot in "mv"
    }
    counter = {"optimizer/iterations": tf.Variable(np.int64(STEP))}
    save(folder, CONFIG, weights | slots | counter, STEP)
    return model, folder


def weights_in(folder) -> dict[str, np.ndarray]:
    """Return {name: array} for a model directory, without optimizer values."""
    source = open_source(str(folder))
    arrays = source.tensors.read_all()
    return {n: a for n, a in arrays.items() if not n.startswith("optimizer/")}


@pytest.fixture(scope="module")
def hub(trained, tmp_path_factory):
    """Return the model's Hugging Face folder and the conversion report."""
    folder = tmp_path_factory.mktemp("hub") / "hub"
    return folder, convert(str(trained[1]), str(folder), "huggingface")


def test_config_json_has_the_symbols(hub):
    """`vocab`, which Kokoro reads, has the ids of symbols except padding."""
    values = json.loads((hub[0] / "config.json").read_text())
    ids = dict(TABLE.symbols)
    assert ids.pop(":") == values["pad_token_id"] == 2
    assert values["vocab"] == ids
    assert values["architectures"] == ["AlbertModel"]
    assert read_table(str(hub[0])) == TABLE
    tensors = safetensors.numpy.load_file(hub[0] / "model.safetensors")
    assert "embeddings.word_embeddings.weight" in tensors


def test_hugging_face_keeps_the_encoder(hub, trained, tmp_path):
    """A round trip to Hugging Face's format keeps the encoder and symbols."""
    report = convert(str(hub[0]), str(tmp_path / "back"), "model_dir")
    for head in ("symbol", "word"):
        line = f"warning: no {head} head, so the output has none"
        assert line in report
    back, before = weights_in(tmp_path / "back"), weights_in(trained[1])
    encoder = {n: a for n, a in before.items() if n.startswith("albert/")}
    released_files.assert_same(back, encoder)
    assert read_table(str(tmp_path / "back")) == TABLE


def test_the_report_names_what_is_lost(hub):
    """The report states the number of symbols, the step and omitted tensors."""
    report = "\n".join(hub[1])
    assert f"symbols: {len(TABLE.symbols)}" in report
    assert f"step: {STEP}" in report
    assert "or of heads" in report
    assert "masked-LM" not in report and "no vocabulary" not in report


def test_tables_must_fit_the_weights(trained, tmp_path):
    """Each word-head label needs a word, and each symbol needs an embedding."""
    folder = tmp_path / "in"
    shutil.copytree(trained[1], folder)
    edit(folder / "words.json", lambda words: words[:-1])
    refuse(tmp_path, folder, "`words.json` must .* words=4, labels=.5,. in")
    edit(folder / "words.json", lambda words: [*words, "x", "y"])
    refuse(tmp_path, folder, "`words.json` must .* words=6, labels=.5,. in")
    edit(folder / "words.json", lambda words: [])
    symbols = dict(TABLE.symbols) | {"☃": 178}
    update(folder / "symbols.json", symbols=symbols)
    refuse(tmp_path, folder, "must have at most .*: pieces=179, vocab_size=178")


@pytest.mark.parametrize("to", ["tf1", "sentence_transformers"])
def test_other_formats_have_no_symbols(trained, tmp_path, to):
    """A phoneme model is written only in formats that store its symbols."""
    refuse(tmp_path, trained[1], "`to` must be one of model_dir", to)


def test_a_model_of_words_is_not_for_speech(tmp_path):
    """A model without symbols cannot be converted to StyleTTS 2's format."""
    model, source = goldens.random_model()[0], tmp_path / "in"
    model.config.save(str(source))
    checkpoints.save(str(source), named_variables(model), 0)
    refuse(tmp_path, source, "Only phoneme models", "styletts2")


def test_the_published_config_is_read(tmp_path):
    """Sizes that PL-BERT's config omits have transformers' defaults."""
    (tmp_path / ORIGINAL).write_text(PUBLISHED)
    config, warnings = plbert.read_config(str(tmp_path))
    assert (config.embedding_size, config.hidden_act) == (128, "gelu")
    assert (config.num_hidden_groups, config.inner_group_num) == (1, 1)
    assert (config.hidden_size, config.intermediate_size) == (768, 2048)
    assert (config.type_vocab_size, warnings) == (2, [])


@pytest.mark.parametrize(
    "text",
    [
        *("model: 1", "[", "model_params: 3", "7", "", "[" * 10**4),
        *("model_params: 2001-99-99", "model_params: !!python/name:os.system"),
        "model_params: [1]\n? [a]\n: 3",
    ],
)
def test_a_config_without_sizes_is_an_error(tmp_path, text):
    """A `config.yml` without valid `model_params` raises an `InputError`."""
    (tmp_path / ORIGINAL).write_text(text)
    with pytest.raises(InputError, match="`model_params`. Received: path="):
        plbert.read_config(str(tmp_path))


def test_symbols_are_those_of_pl_bert_or_listed(tmp_path):
    """Without `symbols.json`, a model must have as many symbols as PL-BERT."""
    released = AlbertConfig(vocab_size=178)
    assert plbert.table_of(str(tmp_path), released) == preset("plbert")
    with pytest.raises(InputError, match="`symbols.json` must"):
        plbert.table_of(str(tmp_path), AlbertConfig(vocab_size=200))
    TABLE.save(str(tmp_path))
    assert plbert.table_of(str(tmp_path), released) == TABLE
    with pytest.raises(InputError, match="`symbols.json` must"):
        plbert.table_of(str(tmp_path), AlbertConfig(vocab_size=90))


def test_files_of_pl_bert_are_recognized(tmp_path):
    """A folder counts as PL-BERT's only with `config.yml` and a `step_N.t7`."""
    (tmp_path / ORIGINAL).write_text(PUBLISHED)
    assert not plbert.is_folder(str(tmp_path))
    refuse(tmp_path, tmp_path, "PL-BERT's config.yml")
    (tmp_path / "step_3.t7").write_bytes(b"")
    assert plbert.is_folder(str(tmp_path))


class Stored(np.ndarray):
    """An array with the methods of a PyTorch tensor that we call."""

    def detach(self):
        return self

    def float(self):
        return self.astype(np.float32)

    def numpy(self):
        return np.asarray(self)


def load(path, map_location, weights_only, mmap):
    """Load a pickle; assert that the arguments permit only tensors."""
    assert (map_location, weights_only, mmap) == ("cpu", True, False)
    with open(path, "rb") as file:
        return pickle.load(file)


@pytest.fixture
def stand_in(monkeypatch):
    """Replace PyTorch with functions that pickle arrays."""
    torch = types.ModuleType("torch")
    torch.save, torch.load = pickle.dump, load
    torch.from_numpy = lambda array: array.view(Stored)
    torch.arange = lambda n: np.arange(n).view(Stored)
    monkeypatch.setitem(sys.modules, "torch", torch)
    torch.__spec__ = importlib.util.spec_from_loader("torch", None)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("width", [8, 24])
def test_files_of_arrays_keep_everything(width, tmp_path):
    """For any embedding width, a round trip keeps all parts of a model.

    The parts are the weights, the symbols, the words and the step. The
    converter reads only the file of the last step.
    """
    config = dataclasses.replace(CONFIG, embedding_size=width)
    weights = randomized(AlbertForPhonemes(config, len(TABLE.words)))
    source, speech = tmp_path / "in", tmp_path / "speech"
    counter = {"optimizer/iterations": tf.Variable(np.int64(STEP))}
    save(source, config, weights | counter, STEP)
    report = convert(str(source), str(speech), "styletts2")
    assert not any("omitted" in line for line in report)
    assert {path.name for path in speech.iterdir()} == {
        *("config.yml", f"step_{STEP}.t7", "symbols.json", "words.json")
    }
    content = load(speech / f"step_{STEP}.t7", "cpu", True, False)
    position_ids = content["net"]["module.encoder.embeddings.position_ids"]
    assert content["step"] == STEP and position_ids.tolist() == [[*range(32)]]
    assert content["net"]["module.word_predictor.weight"].shape == (5, 24)
    text = (speech / "config.yml").read_text()
    assert "model_type" not in text and "\n  pad_token_id: 2\n" in text
    for name in ("step_9.t7", "step_x.t7"):
        (speech / name).write_bytes(b"not read")
    report = convert(str(speech), str(tmp_path / "back"), "model_dir")
    assert f"step: {STEP}" in report
    assert (tmp_path / "back" / f"ckpt-{STEP}.index").exists()
    back, before = weights_in(tmp_path / "back"), weights_in(source)
    released_files.assert_same(back, before)
    assert read_table(str(tmp_path / "back")) == TABLE
    assert AlbertConfig.from_model_dir(str(tmp_path / "back")) == config
    alone = open_source(str(speech), Reading(encoder_only=True))
    assert {*alone.tensors.shapes} == {
        name for name in before if name.startswith("albert/")
    }
    path = speech / f"step_{STEP}.t7"
    path.write_bytes(path.read_bytes()[:-9])
    refuse(tmp_path, speech, "must be a complete file that contains only tens")


@pytest.mark.usefixtures("stand_in")
def test_names_may_lack_the_prefix(trained, tmp_path):
    """A model that was saved without `DataParallel` has the same weights."""
    speech, path = tmp_path / "speech", tmp_path / "speech" / f"step_{STEP}.t7"
    convert(str(trained[1]), str(speech), "styletts2")
    before = weights_in(speech)
    content = load(path, "cpu", True, False)
    net = content["net"].items()
    content["net"] = {name.removeprefix("module."): x for name, x in net}
    path.write_bytes(pickle.dumps(content))
    released_files.assert_same(weights_in(speech), before)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", ["step_0.t7", "step_last.t7"])
def test_a_name_may_lack_a_step(name, trained, tmp_path):
    """A file whose name has no number has no step; 0 is a step."""
    speech = tmp_path / "speech"
    convert(str(trained[1]), str(speech), "styletts2")
    (speech / f"step_{STEP}.t7").rename(speech / name)
    report = convert(str(speech), str(tmp_path / "back"), "model_dir")
    steps = [line for line in report if line.startswith("step:")]
    assert steps == (["step: 0"] if "0" in name else [])
    assert (tmp_path / "back" / "ckpt-0.index").exists()


def test_heads_are_those_of_the_file():
    """A head exists if its bias exists, under our name or PL-BERT's name."""
    assert plbert.head_tensors({}, CONFIG) == {}
    for name in ("words/bias", "word_predictor.bias"):
        assert plbert.head_tensors({name: (5,)}, CONFIG) == {
            "words/kernel": StoredTensor(
                "word_predictor.weight", (5, 24), True
            ),
            "words/bias": StoredTensor("word_predictor.bias", (5,)),
        }


def with_pytorch(test):
    """Mark a test so that `make interchange` runs it."""
    return pytest.mark.slow(pytest.mark.interchange(test))


@pytest.fixture(scope="module")
def speech(transformers, trained, tmp_path_factory):
    """Return a folder with the trained model in the format of StyleTTS 2."""
    folder = tmp_path_factory.mktemp("speech") / "out"
    report = convert(str(trained[1]), str(folder), "styletts2")
    assert "omitted" not in " ".join(report)
    return folder


def batch(padded: bool, around: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return ids [3, T] and a mask [3, T] as StyleTTS 2 and Kokoro make them.

    With `around`, each row begins and ends with id 0.
    """
    rng = np.random.default_rng(3)
    lengths = [20, 20, 20] if not padded else [20, 13, 4]
    rows = [rng.integers(1, 178, n) for n in lengths]
    if around:
        rows = [[0, *row, 0] for row in rows]
    longest = max(map(len, rows))
    ids = [[*row, *[0] * (longest - len(row))] for row in rows]
    mask = [[i < len(row) for i in range(longest)] for row in rows]
    return np.array(ids, np.int32), np.array(mask, np.int32)


@with_pytorch
@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("target", ["encode", "plbert_states"])
def test_outputs_are_equal(
    target, padded, around, trained, hub, speech, transformers
):
    """transformers and StyleTTS 2's loader compute our model's states.

    States at padding are not compared.
    """
    ids, mask = batch(padded, around)
    model = trained[0]
    ours = model(ids, mask, np.zeros_like(ids))["sequence_output"].numpy()
    folder = hub[0] if target == "encode" else speech
    wrong, theirs = transformers(target, str(folder), ids, mask)
    assert not any(wrong.values())
    used = mask.astype(bool)
    assert np.std(ours[used]) > 0.1
    np.testing.assert_allclose(theirs[used], ours[used], atol=1e-5)


@with_pytorch
def test_the_release_is_read(transformers, tmp_path):
    """Files in the form of PL-BERT's notebook become a model with two heads."""
    transformers("make_plbert", str(tmp_path / "in"), 6, 20)
    convert(str(tmp_path / "in"), str(tmp_path / "out"), "model_dir")
    config = AlbertConfig.from_model_dir(str(tmp_path / "out"))
    model = AlbertForPhonemes(config, 6)
    checkpoints.restore_weights(model, str(tmp_path / "out"))
    assert read_table(str(tmp_path / "out")) == preset("plbert")
    ids, mask = batch(padded=True, around=False)
    ours = model(ids, mask, np.zeros_like(ids))["sequence_output"].numpy()
    (tmp_path / "in" / "step_9.t7").unlink()  # an older step
    _, theirs = transformers("plbert_states", str(tmp_path / "in"), ids, mask)
    used = mask.astype(bool)
    np.testing.assert_allclose(theirs[used], ours[used], atol=1e-5)


@with_pytorch
def test_widths_may_be_equal(transformers, tmp_path):
    """If a model has no projection, the files have an identity projection."""
    config = dataclasses.replace(CONFIG, embedding_size=24)
    model = AlbertForPhonemes(config, len(TABLE.words))
    arrays = {n: v.numpy() for n, v in randomized(model).items()}
    save(tmp_path / "in", config, named_variables(model))
    convert(str(tmp_path / "in"), str(tmp_path / "out"), "styletts2")
    ids, mask = batch(padded=True, around=True)
    ours = model(ids, mask, np.zeros_like(ids))["sequence_output"].numpy()
    wrong, theirs = transformers(
        "plbert_states", str(tmp_path / "out"), ids, mask
    )
    assert not any(wrong.values())
    np.testing.assert_allclose(theirs[mask > 0], ours[mask > 0], atol=1e-5)
    convert(str(tmp_path / "out"), str(tmp_path / "back"), "model_dir")
    released_files.assert_same(weights_in(tmp_path / "back"), arrays)


@with_pytorch
def test_the_config_has_the_id_of_padding(transformers, trained, tmp_path):
    """`pad_token_id` is the id of the table's padding, which need not be 0.

    PyTorch does not train the embedding of this id.
    """
    shutil.copytree(trained[1], tmp_path / "in")
    ids = TABLE.symbols | {":": 5, "!": 2}
    table = json.loads((tmp_path / "in" / "symbols.json").read_text())
    text = json.dumps(table | {"symbols": ids})
    (tmp_path / "in" / "symbols.json").write_text(text)
    for to, name in (("styletts2", ORIGINAL), ("huggingface", "config.json")):
        convert(str(tmp_path / "in"), str(tmp_path / to), to)
        text = (tmp_path / to / name).read_text()
        assert re.search(r'\bpad_token_id"?: 5\b', text)
        assert read_table(str(tmp_path / to)).symbols == ids
