"""Errors name missing optional packages; the core needs none of them."""

import ast
import dataclasses
import importlib.metadata
import re
import sys
from pathlib import Path

import numpy as np
import programs
import pytest
import tiny_pretraining
import tiny_runs
import tiny_tasks
import vocabularies
from exporting import loaded, written
from project_file import PROJECT

import albert_tf
from albert_tf.base import packages
from albert_tf.base.errors import InputError
from albert_tf.conversion import plbert
from albert_tf.conversion.huggingface import open_pickle
from albert_tf.data import file_kinds, phonemize
from albert_tf.data.builder import boundaries, build
from albert_tf.data.builder.build_settings import BuildConfig
from albert_tf.data.builder.text_formats import ReadingConfig
from albert_tf.data.table_sources import rows_of
from albert_tf.serving import litert, litert_runner, onnx_file, playground
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks import metrics
from albert_tf.text.text_graph import TextGraph
from albert_tf.training import history
from albert_tf.training.history import Scalars, draw_curves
from albert_tf.training.hooks import Draw
from albert_tf.training.pretraining import informed_start

# Packages that the base installation may lack, and packages that only these
# packages need.
ALL = (*packages.SOURCES, "tensorboard", "jinja2", "pandas", "datasets")


COMMANDS = [s.split(":")[0] for s in PROJECT["scripts"].values()]


def block(monkeypatch, *modules):
    """Make modules look uninstalled."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def refused(path):
    """Open a Beam runner, which must fail."""
    with build.make_runner(
        BuildConfig("a", str(path), pipeline_options="--runner=DirectRunner")
    ):
        raise AssertionError


def zstd(path):
    """Write the start of a zstd file; open it and return its kind."""
    (path / "x").write_bytes(b"\x28\xb5\x2f\xfd" + b"\0" * 20)
    with file_kinds.opened(str(path / "x")) as source:
        return source.kind


def parquet(path):
    """Write the start of a Parquet file; return its rows."""
    (path / "x").write_bytes(b"PAR1\x15" + b"\0" * 20)
    return list(rows_of(str(path / "x")))


# {package: a function that uses it, called with a folder}
USES = {
    "ai_edge_litert": lambda path: litert_runner.Runner(str(path)),
    "ai_edge_quantizer": lambda path: litert.require_quantizer("int8"),
    "apache_beam": refused,
    "gradio": lambda path: playground.playground(saved_model="none"),
    "jieba": lambda path: boundaries.check_word_rule(
        "chinese", vocabularies.chinese()
    ),
    "nltk": lambda path: metrics.latin_tokenizer(),
    "onnx": lambda path: onnx_file.convert(None, None),
    "onnxruntime": lambda path: onnx_file.convert(None, None),
    "phonemizer": lambda path: phonemize.speaker("de"),
    "pyarrow": parquet,
    "scipy": lambda path: informed_start.start_words(None, "", None),
    "sentencex": lambda path: ReadingConfig(split_sentences="en"),
    "sklearn": lambda path: informed_start.start_words(None, "", None),
    "tensorflow_text": lambda path: TextGraph(vocabularies.english()),
    "tf2onnx": lambda path: onnx_file.convert(None, None),
    "torch": lambda path: open_pickle(str(path)),
    "yaml": lambda path: plbert.read_config(str(path)),
    "zstandard": zstd,
}


def test_every_package_has_a_use():
    """The error for each missing package is tested, with two exceptions."""
    # Every function that uses phonemizer also uses espeakng_loader.
    others = {"matplotlib", "espeakng_loader"}
    assert {*USES} | others == set(packages.SOURCES)


@pytest.mark.parametrize("module", USES)
def test_a_use_names_what_to_install(module, monkeypatch, tmp_path):
    """The one-line error for a missing package states how to install it."""
    block(monkeypatch, module)
    with pytest.raises(InputError) as error:
        USES[module](tmp_path)
    message = str(error.value)
    # Other packages may be missing too.
    source = re.escape(packages.SOURCES[module])
    install = rf"needs .*\b{module}\b.*: pip install .*'{source}'"
    assert re.search(install, message)
    assert "Received: " in message and "\n" not in message


def test_several_missing_packages_are_one_sentence(monkeypatch):
    """The error for several missing packages is a sentence with one command.

    The command lists each extra once, then the packages that no extra installs.
    """
    block(monkeypatch, "gradio", "tensorflow_text", "scipy", "sklearn")
    assert packages.lacking("X", "scipy", "sklearn") == (
        "X needs scipy and sklearn: pip install 'albert-tf[informed]'."
    )
    assert packages.lacking("X", "gradio", "numpy", "tensorflow_text") == (
        "X needs gradio and tensorflow_text: "
        "pip install 'albert-tf[demo]' 'tensorflow-text'."
    )
    assert packages.lacking("X", "numpy") == ""
    packages.need("X", "numpy", to="a")
    with pytest.raises(InputError, match="Received: to=a, file=b$"):
        packages.need("X", "scipy", to="a", file="b")
    with pytest.raises(InputError, match="Received: none$"):
        packages.need("X", "scipy")


def test_extras_install_what_they_are_named_for():
    """Each extra that an error names installs the missing package.

    `all` includes these extras, except `beam`, `convert` and `phonemes`.
    """
    extras = PROJECT["optional-dependencies"]
    named = re.findall(r"\[(\w+)\]", " ".join(packages.SOURCES.values()))
    distributions = importlib.metadata.packages_distributions()
    for module, source in packages.SOURCES.items():
        if extra := re.search(r"\[(\w+)\]", source):
            installs = {re.match(r"[\w-]+", r)[0] for r in extras[extra[1]]}
            assert installs & {*distributions.get(module, installs)}, module
    (everything,) = extras["all"]
    listed = set(re.search(r"\[(.*)\]", everything)[1].split(","))
    assert set(named) - listed == {"beam", "convert", "phonemes"}


# Modules that need an optional package. Other modules import these modules only
# inside functions.
OF_PACKAGES = {
    "albert_tf/data/builder/beam_runner.py",
    "albert_tf/data/records/piece_vectors.py",
    "albert_tf/serving/playground_page.py",
}


def test_no_module_imports_them_at_its_top():
    """Only modules that load on demand import optional packages at the top."""
    root = Path(__file__).parents[2]
    users = {
        str(path.relative_to(root))
        for path in (root / "albert_tf").rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or node.names[0].name]
        if name.split(".")[0] in ALL
    }
    assert users == OF_PACKAGES


def test_names_and_commands_load_without_them():
    """All public names and commands load without the optional packages."""
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({ALL}))\n"
        "import albert_tf\n"
        "for name in albert_tf.PUBLIC: getattr(albert_tf, name)\n"
        f"for name in {COMMANDS}: importlib.import_module(name)\n"
    )
    done = programs.run("-c", code, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_core_works_without_them(
    monkeypatch, tmp_path, tokenizer_dir, config, capsys
):
    """The core commands work without optional packages.

    The commands build records, train two steps, fine-tune, predict and export
    ids. The error for an export that accepts strings names tensorflow-text.
    """
    block(monkeypatch, *ALL)
    words = (tokenizer_dir / "corpus.txt").read_text("utf-8").split()
    documents = ["\n".join(words[i : i + 80]) for i in range(0, 800, 80)]
    text, records = tmp_path / "text.txt", str(tmp_path / "records")
    text.write_text("\n\n".join(documents), "utf-8")
    spm = tokenizer_dir / "spiece.model"
    tiny_pretraining.build_records(text, records, spm, 16)
    pretrained, tuned = str(tmp_path / "model"), str(tmp_path / "tuned")
    table = tiny_tasks.write_opinions(tmp_path / "t.tsv", 24, 1)
    small = dataclasses.replace(config[1], num_hidden_layers=1)
    Path(config[0]).write_text(small.to_json())
    with tiny_runs.eagerly():
        tiny_pretraining.run(records, config[0], pretrained, num_train_steps=2)
        found = tiny_runs.run(
            task="classification",
            model_dir=pretrained,
            output_dir=tuned,
            train_file=table,
            eval_file=table,
            predict_file=table,
            do_train=True,
            do_eval=True,
            do_predict=True,
            num_train_steps=2,
            eval_steps=2,
        )
        classifier = albert_tf.Classifier.load(tuned)
        assert classifier.classify("a good film", verbose=0) in ("good", "bad")
    assert 0 <= found["eval"]["accuracy"] <= 1
    assert "curves needs matplotlib: pip install" in capsys.readouterr().out
    with pytest.raises(InputError, match="string inputs needs tensorflow_text"):
        written(tuned, tmp_path / "text")
    out = written(tuned, tmp_path / "ids", ServingConfig(ids_only=True))
    assert set(loaded(out)) == {"serving_default", "ids"}


def test_nothing_is_drawn_without_matplotlib(monkeypatch, tmp_path, capsys):
    """Without matplotlib, a run prints one note and draws no curves."""
    block(monkeypatch, "matplotlib")
    run = type("Run", (), {"chief": True})
    Draw().begin(run)
    assert capsys.readouterr().out == (
        "Note: A plot of the curves needs matplotlib: "
        "pip install 'albert-tf[plots]'.\n"
    )
    draw_curves(history.History(str(tmp_path)), str(tmp_path), ("loss",))
    assert not list(tmp_path.iterdir())


def test_scalars_are_those_of_tensorboard(tmp_path):
    """TensorBoard events match the events of `tf.summary.scalar`."""
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorboard")
    scalars = Scalars(str(tmp_path))
    scalars.write(3, "train", {"loss": 0.25, "mlm_loss": np.float64(0.1)})
    scalars.flush()
    with tf.summary.create_file_writer(str(tmp_path / "other")).as_default():
        tf.summary.scalar("loss", 0.25, 3)
        tf.summary.scalar("mlm_loss", np.float64(0.1), 3)

    def values(folder):
        (path,) = Path(folder).glob("events*")
        events = tf.compat.v1.train.summary_iterator(str(path))
        return [(e.step, e.summary.value[0]) for e in events if e.step]

    found = values(tmp_path / "tensorboard/train")
    assert found == values(tmp_path / "other") and len(found) == 2
