"""The setup of TensorFlow for tests, and the fixtures that tests share.

`conftest.py` loads this module.
"""

import contextlib
import dataclasses
import fcntl
import gc
import os
import random
import shutil
import signal
from unittest import mock

import numpy as np
import programs
import pytest

from albert_tf.base import program

with program.quiet_start():
    import tensorflow as tf

    with contextlib.suppress(ModuleNotFoundError):  # see tests.no_strings
        import tensorflow_text  # noqa: F401

    programs.server()  # before TensorFlow looks for devices
    import goldens
    import tiny
    import tiny_pretraining
    import tiny_runs
    import tiny_tasks

    import albert_tf
    from albert_tf.base import files
    from albert_tf.data.train_tokenizer import (
        TrainTokenizerConfig,
        make_vocabulary,
    )
    from albert_tf.model.albert import AlbertForPretraining
    from albert_tf.model.config import AlbertConfig
    from albert_tf.text.tokenizers import load_saved_tokenizer
    from albert_tf.training import checkpoints, history

# Imported objects are permanent, and tracing creates many long-lived objects.
# The garbage collector would spend a tenth of the tests' time on them.
gc.freeze()
gc.set_threshold(20_000, 10, 10)

# Tests with several replicas need several CPUs.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 4,
)


# A shell makes background jobs ignore interrupts. The processes that tests
# interrupt would inherit this setting.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _quick_compilation(request):
    """Disable graph optimizations, which take longer than they save here.

    Slow tests, and programs run by `programs.run`, keep these optimizations.
    """
    if "not slow" in request.config.option.markexpr:
        flag = "--xla_backend_optimization_level=0"
        os.environ.setdefault("XLA_FLAGS", flag)
        tf.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": True}
        )


@pytest.fixture(autouse=True, scope="session")
def _no_drawing():
    """Write a text file instead of drawing curves.

    Drawing takes half a second.
    """

    def leave_a_file(history, directory, names):
        files.write_text(files.join(directory, "curves.png"), f"{names}")

    with mock.patch.object(history, "draw_curves", leave_a_file):
        yield


@pytest.fixture(scope="module")
def quick_collections():
    """Exclude objects of earlier modules from garbage collection.

    Collecting all objects of a test process takes a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _same_weights_in_a_module():
    random.seed(0)


@pytest.fixture(autouse=True)
def _same_weights():
    """Seed Keras so that initial weights do not depend on earlier tests."""
    random.seed(0)


@pytest.fixture
def golden():
    """Return the first recorded configuration."""
    return goldens.load("g1")


WORDS = """a the and on in under over river bridge small large garden teacher
reads writes painted letter window morning evening winter summer he she they
walked walking walks quickly slowly naïve café 1,000 2010, 12 can't don't
house houses street streets music played player playing night""".split()


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory):
    """Return a folder with a vocabulary trained on random sentences."""
    folder = tmp_path_factory.mktemp("tokenizer")
    rng = np.random.default_rng(0)
    syllables = [c + v for c in "bcdfghklmnprstvw" for v in "aeiou"]
    words = WORDS + ["".join(rng.choice(syllables, 3)) for _ in range(100)]
    lines = [" ".join(rng.choice(words, 8)) + "." for _ in range(500)]
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(lines), encoding="utf-8")
    make_vocabulary(
        TrainTokenizerConfig(
            input_file=str(corpus), output_dir=str(folder), vocab_size=150
        )
    )
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir):
    """Return the tokenizer in `tokenizer_dir`."""
    return load_saved_tokenizer(str(tokenizer_dir))


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """Return the WordPiece tokenizer for the words in `tiny_tasks`."""
    return tiny_tasks.make_tokenizer(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def pretrained_dir(tmp_path_factory, tokenizer):
    """Return a model directory with random weights far from 0."""
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=24,
        initializer_range=0.5,
    )
    folder = tmp_path_factory.mktemp("pretrained")
    return tiny_tasks.write_model(folder, config, tokenizer)


@pytest.fixture(scope="session")
def pretrained_model(pretrained_dir):
    """Return the model in `pretrained_dir` as a Keras model."""
    model = AlbertForPretraining(AlbertConfig.from_model_dir(pretrained_dir))
    checkpoints.restore_weights(model, pretrained_dir)
    return model


def made_once(tmp_path_factory, name, make):
    """Return a path that one test process creates for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path, done = folder / name, folder / f"{name}.done"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(str(path))
            done.touch()
    return str(path)


@pytest.fixture(scope="session")
def exported_dir(pretrained_dir, tmp_path_factory):
    """Return the folder of the SavedModel of `pretrained_dir`."""

    def export(path):
        albert_tf.export(model_dir=pretrained_dir, export_dir=path)

    return made_once(tmp_path_factory, "exported", export)


@pytest.fixture(scope="session")
def exported(exported_dir):
    """Return the loaded SavedModel of `pretrained_dir`."""
    return tf.saved_model.load(exported_dir)


@pytest.fixture(scope="session")
def signatures(exported):
    """Return the signatures of the SavedModel `exported`."""
    return exported.signatures


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """Return a model directory as pretraining writes it."""
    return tiny_tasks.make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def shallow(tmp_path_factory):
    """Return a model directory with one layer, for fast tracing."""
    folder = tmp_path_factory.mktemp("shallow")
    return tiny_tasks.make_model_dir(folder, num_hidden_layers=1)


@pytest.fixture(scope="session")
def opinions(tmp_path_factory):
    """Return flags for a user's data set that a model can learn.

    The metrics of `finished` contain the paths, so all processes share them.
    """
    sizes = {"train": 300, "eval": 53, "predict": 37}

    def write(folder):
        os.mkdir(folder)
        for seed, (part, size) in enumerate(sizes.items(), 1):
            path = os.path.join(folder, f"{part}.tsv")
            tiny_tasks.write_opinions(path, size, seed)

    folder = made_once(tmp_path_factory, "opinions", write)
    paths = {f"{n}_file": os.path.join(folder, f"{n}.tsv") for n in sizes}
    return {"task": "classification", **paths}


@pytest.fixture(scope="session")
def finished(pretrained, opinions, tmp_path_factory):
    """Return the output directory and metrics of a whole fine-tuning run."""

    def train(path):
        metrics = tiny_runs.run(
            model_dir=pretrained,
            output_dir=path,
            do_train=True,
            do_eval=True,
            do_predict=True,
            **opinions,
        )
        files.write_json(f"{path}.json", metrics)

    path = made_once(tmp_path_factory, "finished", train)
    return path, files.read_json(f"{path}.json", "metrics")


@pytest.fixture
def copy(finished, tmp_path):
    """Return a copy of the output directory in `finished`."""
    return shutil.copytree(finished[0], tmp_path / "copy")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory, tokenizer_dir):
    """Return a folder with 16-token records of the tokenizer's corpus."""

    def build(path):
        words = (tokenizer_dir / "corpus.txt").read_text("utf-8").split()
        documents = ["\n".join(words[i : i + 80]) for i in range(0, 1600, 80)]
        text, records = (
            files.join(path, "text.txt"),
            files.join(path, "records"),
        )
        files.write_text(text, "\n\n".join(documents))
        model = tokenizer_dir / "spiece.model"
        tiny_pretraining.build_records(text, records, model, 16)

    return files.join(made_once(tmp_path_factory, "data", build), "records")


def write_config(folder, tokenizer, config):
    """Write a config for a tokenizer; return the path and the config."""
    config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size)
    path = folder / "config.json"
    path.write_text(config.to_json())
    return str(path), config


@pytest.fixture
def config(tmp_path, tokenizer):
    """Return the path of a one-layer config, and the config."""
    return write_config(tmp_path, tokenizer, tiny.SHALLOW)


@pytest.fixture
def deep_config(tmp_path, tokenizer):
    """Return the path of a two-layer config, and the config."""
    return write_config(tmp_path, tokenizer, tiny.CONFIG)
