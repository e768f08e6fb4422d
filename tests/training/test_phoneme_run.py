"""Pretraining on phonemes: metrics, resuming, warm starts and warnings."""

import json
import shutil
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tiny_phonemes
import tiny_pretraining

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.data.records import input_pipeline, tfrecord
from albert_tf.data.records.metadata import TRAIN, load_metadata, paths_of
from albert_tf.text.symbols import vocabulary_in
from albert_tf.training.objectives import PhonemeObjective
from albert_tf.training.pretraining import run_setup

TRAINING = {
    "num_train_steps": 4,
    "num_warmup_steps": 1,
    "train_batch_size": 8,
    "eval_batch_size": 16,
    "steps_per_loop": 2,
    "eval_steps": 4,
    "optimizer": "adamw",
    "learning_rate": 0.01,
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Return a folder with records and a model config."""
    folder = tmp_path_factory.mktemp("phonemes")
    rows = tiny_phonemes.make_rows()
    path = tiny_phonemes.write_rows(folder / "rows.jsonl", rows)
    tiny_phonemes.build(folder / "records", path)
    (folder / "model.json").write_text(json.dumps(tiny_phonemes.MODEL))
    return folder


def pretrain(folder, output, **settings):
    """Pretrain on the records in a folder; return the result."""
    paths = {
        "data_dir": str(folder / "records"),
        "albert_config_file": str(folder / "model.json"),
        "output_dir": str(output),
    }
    traced_once = tiny_pretraining.traced_once
    with mock.patch.object(run_setup, "make_trainer", traced_once):
        return albert_tf.pretrain(**paths | TRAINING | settings)


@pytest.fixture(scope="module")
def trained(records):
    """Return the result of an uninterrupted run."""
    return pretrain(records, records / "trained")


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(records, trained, tmp_path):
    """Stopping and resuming a run does not change a single bit of its result.

    The weights, the slots and the held-out metrics are compared.
    """
    pretrain(records, tmp_path, stop_step=2)
    again = pretrain(records, tmp_path)
    tiny_pretraining.assert_same_bits(trained.output_dir, tmp_path)
    assert again.metrics == trained.metrics


def test_metrics_are_beside_those_of_frequencies(records, trained):
    """Evaluation also reports the accuracies of predicting by frequency."""
    values = trained.metrics["eval"]
    by_frequency = load_metadata(str(records / "records")).statistics[
        "by_frequency"
    ]
    for name, value in by_frequency.items():
        assert values[f"{name}_by_frequency"] == value
        assert values[name] >= 0.0
    assert 0.05 < values["trained_share"] < 0.3
    assert abs(values["words_loss"] - np.log(42)) < 1.5


def test_the_directory_says_that_it_is_of_phonemes(records, trained):
    """The model directory has the records' tables and a card about phonemes."""
    for name in ("symbols.json", "words.json"):
        mine = (records / "trained" / name).read_bytes()
        assert mine == (records / "records" / name).read_bytes()
    card = (records / "trained" / "README.md").read_text()
    assert "masked phonemes" in card and "feature-extraction" in card


@pytest.mark.slow
def test_held_out_masks_are_always_the_same(records):
    """The batch size does not change held-out masks.

    Training masks depend on the seed.
    """
    folder = str(records / "records")
    metadata = load_metadata(folder)

    def read(size):
        batches = input_pipeline.eval_batches(folder, metadata, batch_size=size)
        rows = [b["input_ids"] for b in batches.as_numpy_iterator()]
        return np.concatenate(rows)[: metadata.count("eval")]

    np.testing.assert_array_equal(read(4), read(7))
    seeds = [
        next(
            input_pipeline.train_batches(
                folder, metadata, batch_size=8, seed=seed, start=start
            ).as_numpy_iterator()
        )
        for seed, start in ((1, 0), (1, 0), (2, 0))
    ]
    np.testing.assert_array_equal(*(b["input_ids"] for b in seeds[:2]))
    assert (seeds[0]["input_ids"] != seeds[2]["input_ids"]).any()


def test_a_batch_marks_its_padding_and_its_masks(records):
    """The input mask is 1 at a record's symbols, and 0 at padding.

    Symbols change only where they are predicted, most of them to [MASK].
    """
    folder = str(records / "records")
    metadata = load_metadata(folder)
    stored = {
        tuple(example.input_ids.tolist())
        for path in paths_of(folder, metadata, TRAIN)
        for example in tfrecord.decoded(path)
    }
    batches = input_pipeline.train_batches(
        folder, metadata, batch_size=metadata.count(TRAIN), seed=1
    )
    (batch,) = batches.take(1).as_numpy_iterator()
    assert not batch["input_mask"].all()
    for mask, symbols in zip(
        batch["input_mask"], batch["symbol_ids"], strict=True
    ):
        length = mask.sum()
        assert mask[:length].all()
        assert tuple(symbols[:length].tolist()) in stored
    chosen = batch["symbol_weights"] > 0
    changed = batch["input_ids"] != batch["symbol_ids"]
    assert not (changed & ~chosen).any()
    table = vocabulary_in(folder)
    masked = batch["input_ids"] == table.symbols[table.mask]
    assert 0.6 < masked[chosen].mean() < 0.95


class Fixed:
    """A model that returns predefined outputs."""

    def __init__(self, symbols, words):
        self.symbols, self.words = symbols, words

    def __call__(self, ids, mask, seed, layers):
        states = tf.zeros([*ids.shape, 1])
        return {"symbol_logits": self.symbols, "sequence_output": states}

    def word_scores(self, states, labels):
        return self.words


def test_metrics_by_hand():
    """Losses, weights and metrics match values computed by hand.

    The example has six positions and padding. A trained symbol may be masked,
    unchanged, or replaced with another symbol.
    """
    mask_id = 3
    batch = {
        "input_ids": tf.constant([[3, 3, 1, 2, 1, 1, 0]]),
        "symbol_ids": tf.constant([[2, 1, 1, 2, 1, 2, 0]]),
        "input_mask": tf.constant([[1, 1, 1, 1, 1, 1, 0]]),
        "word_ids": tf.constant([[2, 2, 0, 3, 0, 1, 0]]),
        "symbol_weights": tf.constant([[1.0, 1, 0, 1, 0, 1, 0]]),
    }
    predicted = tf.constant([[2, 2, 1, 0, 1, 2, 0]])
    logits = 2.0 * tf.one_hot(predicted, 4)
    words = (
        tf.constant([[1.0, 2, 3, 4, 5, 6, 100]]),
        tf.constant([[1.0, 0, 1, 1, 1, 0, 1]]),
    )
    objective = PhonemeObjective(mask_id)
    sums, metrics = objective.losses(Fixed(logits, words), batch, None)
    right, wrong = (np.log(np.exp(2) + 3) - x for x in (2, 0))
    expected = 2 * right + 2 * wrong
    np.testing.assert_allclose(sums["symbols"], expected, rtol=1e-6)
    assert sums["words"] == 21
    assert objective.weights(batch) == {"symbols": 4.0, "words": 6.0}
    assert metrics == {
        "symbol_accuracy": (4.0, 6.0),
        "masked_symbol_accuracy": (1.0, 2.0),
        "word_accuracy": (4.0, 6.0),
        "trained_share": (4.0, 6.0),
    }


def test_heads_are_kept_only_with_their_words(
    records, trained, tmp_path, capsys
):
    """A warm start on records with different words gets a new word head.

    Records with different symbols require `init_state=transplant`.
    """
    rows = records / "rows.jsonl"
    tiny_phonemes.build(tmp_path / "few", rows, num_words=20)
    tiny_phonemes.build(tmp_path / "auto", rows, symbols="auto")
    settings = {
        "init_checkpoint": trained.output_dir,
        "hooks": [tiny_pretraining.Look(lambda run: None)],
    }

    def start(name, number, **more):
        data = {"data_dir": str(tmp_path / name)} if name else {}
        pretrain(records, tmp_path / number, **settings, **data, **more)
        return capsys.readouterr().out

    assert "head" not in start("", "1")
    assert "a new words head" in start("few", "2")
    with pytest.raises(InputError, match="must have the tokenizer of the"):
        start("auto", "3")
    text = start("auto", "4", init_state="transplant")
    assert "head" not in text and "from the old vocabulary" in text


def test_the_first_weights_may_be_informed(records, tmp_path, capsys):
    """Informed biases are the symbols' log frequencies.

    The vectors of at least all frequent symbols are informed; the number of
    informed vectors is printed.
    """
    metadata = load_metadata(str(records / "records"))
    counts = json.loads((records / "records" / "piece_counts.json").read_text())
    found = []

    def look(run):
        found.append(run.trainer.weights["symbols/bias"].numpy())

    pretrain(
        records,
        tmp_path,
        initial_weights="informed",
        hooks=[tiny_pretraining.Look(look)],
    )
    assert len(counts) == metadata.vocab_size
    smooth = np.array(counts) + 1.0
    np.testing.assert_allclose(
        found[0], np.log(smooth / smooth.sum()), rtol=1e-5
    )
    frequent = np.sum(np.array(counts) > 20)
    printed = capsys.readouterr().out
    number = int(printed.split("and ")[1].split(" pieces")[0])
    assert frequent <= number <= np.sum(np.array(counts) > 0) + 1


@pytest.mark.parametrize(
    "settings",
    [
        {"mask_schedule": "0.3:0.5,0.15"},
        {"compat": "google"},
    ],
)
def test_settings_of_words_are_refused(records, tmp_path, settings):
    """Phoneme runs reject mask schedules and `compat=google`."""
    with pytest.raises(InputError, match=f"`{[*settings][0]}` must keep"):
        pretrain(records, tmp_path, **settings)


@pytest.mark.parametrize(
    "files",
    [
        {"config.yml": "model_params: {}", "step_1.t7": ""},
        {"config.json": "{}", "tokenizer.json": '{"model": {}}'},
    ],
)
@pytest.mark.parametrize("state", ["weights", "transplant"])
def test_a_foreign_source_must_be_converted(records, tmp_path, files, state):
    """The error for another project's source gives the conversion command."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    where = {"init_checkpoint": str(tmp_path), "init_state": state}
    command = f"convert_checkpoint --input={tmp_path} --output=NEW"
    with pytest.raises(InputError, match=f"{command}.*: init_checkpoint="):
        pretrain(records, tmp_path / "out", **where)


def damaged(records, folder, name, value):
    """Copy the records with a wrong value; return the path of the changed file.

    The value is put at the end of all training records except the first ones,
    which are checked before a run.
    """
    shutil.copytree(records / "records", folder / "records")
    shutil.copy(records / "model.json", folder)
    (path,) = (folder / "records").glob("train*")
    examples = [dict(tfrecord.parse(x)) for x in tfrecord.read(str(path))]
    for example in examples[input_pipeline.FIRST :]:
        example[name] = [*example[name][:-1], value]
    rows = {key: np.array([e[key] for e in examples]) for key in examples[0]}
    tfrecord.write(str(path), tfrecord.encode_ints(rows))
    metadata = folder / "records" / "metadata.json"
    values = json.loads(metadata.read_text())
    values["splits"]["train"][0]["bytes"] = path.stat().st_size
    metadata.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("name, value", [("symbol_ids", 178), ("word_ids", 42)])
def test_ids_outside_the_table_are_named(records, tmp_path, name, value):
    """The error for an id outside its table names the file, record and id."""
    path = damaged(records, tmp_path, name, value)
    message = rf"{path}, record \d+.*`{name}` contains {value}, but"
    with pytest.raises(InputError, match=message):
        pretrain(tmp_path, tmp_path / "model")


def test_tables_must_be_those_of_the_records(records, tmp_path):
    """A changed table of words raises an error before training."""
    shutil.copytree(records / "records", tmp_path / "records")
    path = tmp_path / "records" / "words.json"
    words = json.loads(path.read_text())
    path.write_text(json.dumps([*words[:-1], "another"]))
    shutil.copy(records / "model.json", tmp_path)
    with pytest.raises(InputError, match=r"words.json, of its build"):
        pretrain(tmp_path, tmp_path / "model")


def test_a_run_warns_of_records_without_masks(records, tmp_path, monkeypatch):
    """If no position is trained, the history records a warning.

    The result has the history even if the current folder has changed.
    """
    shutil.copytree(records / "records", tmp_path / "records")
    shutil.copy(records / "model.json", tmp_path)
    path = tmp_path / "records" / "metadata.json"
    values = json.loads(path.read_text())
    values["settings"]["masked_lm_prob"] = 0.001
    path.write_text(json.dumps(values))
    monkeypatch.chdir(tmp_path)
    result = pretrain(tmp_path, "model", stop_step=2)
    monkeypatch.chdir(tmp_path / "records")
    kinds = {r.get("kind") for r in result.history.rows if "kind" in r}
    assert "nothing_trained" in kinds
