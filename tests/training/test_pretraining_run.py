"""The pretraining program: checks, resumption and results."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import vocabularies
from tiny_pretraining import Look, assert_same_bits, run

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data.records import input_pipeline
from albert_tf.data.records.metadata import read_metadata
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.text.tokenizers import load_saved_tokenizer
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.pretraining import informed_start, pretrain
from albert_tf.training.pretraining.run_setup import (
    COMPAT,
    PretrainingConfig,
    with_compat,
)
from albert_tf.training.training_config import TrainingConfig

ROOT = pathlib.Path(__file__).parents[2]
LENGTH = 16


def test_a_run_leaves_a_whole_model_directory(data_dir, config, trained):
    """A run writes its tokenizer, checkpoint, flags and curves.

    The flags include every setting that has a value, whichever class has it.
    """
    _, output, metrics = trained
    names = "loss mlm_loss sop_loss mlm_accuracy sop_accuracy"
    assert set(metrics) == set(names.split())
    assert load_saved_tokenizer(str(output)).vocab_size == config[1].vocab_size
    assert checkpoints.for_inference(str(output)).endswith("ckpt-4")
    flags = (output / "run.flags").read_text().splitlines()
    assert f"--data_dir={data_dir}" in flags and "--optimizer=lamb" in flags
    assert "--budget_hours=0.0" in flags
    fields = pretrain.pretrain.program.fields().items()
    written = {line.split("=")[0].removeprefix("--") for line in flags}
    assert written >= {n for n, field in fields if field.default is not None}
    assert "mlm_accuracy" in (output / "curves.png").read_text()
    facts = checkpoint_files.read_facts(checkpoint_files.latest(str(output)))
    paths = tf.io.gfile.glob(f"{data_dir}/train-*.tfrecord")
    number = sum(1 for _ in tf.data.TFRecordDataset(paths))
    assert facts["train_records"].startswith(f"{number} records of 16 tokens, ")


@pytest.mark.parametrize(
    "flags",
    [
        {"initial_weights": "informed"},
        {"initial_weights": "informed", "compat": "google"},
        {},
    ],
)
def test_a_new_model_begins_with_what_the_records_tell(
    data_dir, config, tmp_path, flags, capsys
):
    """A new model uses piece counts only if they exist and are requested.

    Informed position embeddings start as waves of equal size. Vectors of pieces
    also have equal sizes, and special pieces stay random. With
    `compat=google`, no weights are informed.
    """
    bias = np.log(np.arange(1, config[1].vocab_size + 1))
    records_dir = tmp_path / "records"
    shutil.copytree(data_dir, records_dir)
    tokenizer = load_saved_tokenizer(data_dir)
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    seen = {}
    informed = flags == {"initial_weights": "informed"}

    def look(run):
        seen["bias"] = run.trainer.model.mlm.output_bias.numpy()
        tables = run.trainer.model.albert.embeddings
        seen["places"] = tables.position_embeddings.numpy()
        seen["words"] = tables.word_embeddings.numpy()
        seen["types"] = tables.token_type_embeddings.numpy()

    for name, counts in (("none", None), ("counted", range(len(bias)))):
        path = records_dir / "piece_counts.json"
        path.unlink(missing_ok=True)
        if counts:
            path.write_text(json.dumps(list(counts)))
        output = tmp_path / name
        run(str(records_dir), config[0], output, hooks=[Look(look)], **flags)
        started = bias if counts and informed else bias * 0
        sizes = np.linalg.norm(seen["places"], axis=1)
        assert (np.ptp(sizes) < 1e-6) == informed
        mean_squares = np.mean(seen["words"] ** 2, axis=1)
        alike = np.isclose(mean_squares, informed_start.SCALE**2)
        assert (np.mean(alike) > 0.8) == informed
        assert not alike[special].any()
        for name in ("words", "types"):
            rows = seen[name][special] if name == "words" else seen[name]
            size = informed_start.SCALE if informed else 0.02
            assert np.mean(rows**2) ** 0.5 == pytest.approx(size, rel=0.6)
        printed = capsys.readouterr().out
        assert ("log frequencies" in printed) == (
            informed and counts is not None
        )
        moved = seen["bias"] - seen["bias"].mean()
        np.testing.assert_allclose(moved, started - started.mean(), atol=1e-5)


def test_a_warm_start_takes_the_weights_and_not_the_step(
    data_dir, trained, tmp_path
):
    """With `init_checkpoint`, evaluation yields the source's held-out metrics.

    Without training, the new run writes no checkpoint.
    """
    path, first, metrics = trained
    second = tmp_path / "second"
    how = {"do_train": False, "do_eval": True}
    after = run(data_dir, path, second, init_checkpoint=str(first), **how)
    assert after == pytest.approx(metrics, rel=1e-6)
    assert checkpoint_files.latest(str(second)) is None


def contents(folder):
    """Return {path: bytes} for every file in a folder."""
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_evaluating_alone_writes_nothing(data_dir, trained, tmp_path, capsys):
    """A run that only evaluates changes no file, not even its flags.

    The run also prints no summary of training, even with different settings.
    """
    path, output, metrics = trained
    before, other = contents(output), tmp_path / "other"
    evaluated = {"do_train": False, "do_eval": True}
    found = run(data_dir, path, output, {"random_seed": 7}, **evaluated)
    assert found == pytest.approx(metrics, rel=1e-6)
    assert contents(output) == before
    printed = capsys.readouterr().out
    assert printed.startswith("loss = ") and "batches of" not in printed
    with pytest.raises(InputError, match=f"contain a checkpoint.*={other}, "):
        run(data_dir, path, other, **evaluated)
    assert not other.exists()


def test_a_finished_run_does_not_claim_other_settings(
    data_dir, trained, tmp_path, capsys
):
    """After a completed run, the flags and the card keep the used settings.

    Notes name the settings that have no effect.
    """
    path, output, _ = trained
    copy = tmp_path / "copy"
    shutil.copytree(output, copy)
    before = (copy / "run.flags").read_text("utf-8")
    other = {"init_checkpoint": str(output), "learning_rate": 0.5}
    run(data_dir, path, copy, num_train_steps=4, **other)
    assert (copy / "run.flags").read_text("utf-8") == before
    assert before in (copy / "README.md").read_text("utf-8")
    printed = capsys.readouterr().err
    assert (
        f"Note: init_checkpoint was None and is {output}: no effect" in printed
    )
    assert "Nothing left to train: 4 steps are complete" in printed


def test_a_run_that_is_refused_changes_nothing(data_dir, trained, tmp_path):
    """Folders in use, and folders of different models, are left unchanged."""
    path, output, _ = trained
    before = contents(output)
    with files.locked(str(output), "output_dir"):
        with pytest.raises(InputError, match="another run is still writing"):
            run(data_dir, path, output, {"random_seed": 7})
    assert contents(output) == before
    tuned = tmp_path / "tuned"
    shutil.copytree(output, tuned)
    checkpoints.save(str(tuned), {"classifier/bias": tf.Variable(0.5)}, 5)
    before = contents(tuned)
    with pytest.raises(InputError, match="but no optimizer state"):
        run(data_dir, path, tuned, {"random_seed": 7})
    assert contents(tuned) == before


@pytest.mark.parametrize(
    "name", ["history.jsonl", "curves.png", "ckpt-5.index"]
)
def test_a_users_files_are_not_overwritten(data_dir, trained, tmp_path, name):
    """A run that would overwrite a user's file raises an error."""
    (tmp_path / "notes.txt").write_text("Mine.")
    (tmp_path / name).write_text("Mine, too.")
    before = contents(tmp_path)
    with pytest.raises(InputError, match=f"={tmp_path} with {name}$"):
        run(data_dir, trained[0], tmp_path, hooks=[Look(id)])
    assert contents(tmp_path) == before


def test_a_run_must_do_something(data_dir):
    """A run that neither trains nor evaluates raises an error."""
    with pytest.raises(InputError, match="`do_train` or `do_eval`"):
        PretrainingConfig(data_dir=data_dir, do_train=False)


@pytest.mark.slow
def test_a_second_phase_continues_the_step(data_dir, config, tmp_path, capsys):
    """With `init_state=run`, two consecutive runs are bit-identical to one."""
    first, second, whole = (tmp_path / n for n in ("first", "second", "whole"))
    run(data_dir, config[0], whole)
    run(data_dir, config[0], first, training={"stop_step": 2})
    how = {"init_checkpoint": str(first), "init_state": "run"}
    run(data_dir, config[0], second, **how)
    assert "slots and step 2 of" in capsys.readouterr().out
    assert_same_bits(whole, second)


def test_a_source_that_does_not_fit_is_refused(
    data_dir, config, trained, tmp_path
):
    """A source with a different tokenizer or no checkpoint is rejected.

    No file is written.
    """
    source, new = tmp_path / "source", tmp_path / "new"
    shutil.copytree(trained[1], source)
    described = source / "tokenizer.json"
    text = described.read_text()
    described.write_text(text.replace("released", "strip"))
    with pytest.raises(InputError, match="must have the tokenizer"):
        run(data_dir, config[0], new, init_checkpoint=str(source))
    described.write_text(text)
    for file in ("checkpoint", *source.glob("ckpt-*")):
        (source / file).unlink()
    with pytest.raises(InputError, match="must contain a checkpoint"):
        run(data_dir, config[0], new, init_checkpoint=str(source))
    assert not new.exists()


def test_a_model_is_evaluated_on_records_of_its_tokenizer(
    data_dir, trained, tmp_path
):
    """Models are evaluated only on records that have the same tokenizer."""
    path, output = trained[0], shutil.copytree(trained[1], tmp_path / "model")
    described = output / "tokenizer.json"
    described.write_text(described.read_text().replace("released", "strip"))
    with pytest.raises(InputError, match="another tokenizer.*model with"):
        run(data_dir, path, output, do_train=False, do_eval=True)


def test_a_source_with_another_vocabulary_is_transplanted(
    data_dir, config, tmp_path, capsys
):
    """A transplant fits two weights to the records' vocabulary.

    These weights are the embedding table and the output bias. All other weights
    are copied.
    """
    source, tokenizer = tmp_path / "source", vocabularies.english()
    other = dataclasses.replace(config[1], vocab_size=tokenizer.vocab_size)
    other.save(str(source))
    tokenizer.save(str(source))
    expected = checkpoints.named_variables(AlbertForPretraining(other))
    checkpoints.save(str(source), expected)
    seen = {}

    def look(run):
        weights = run.trainer.weights.items()
        seen.update({name: value.numpy() for name, value in weights})

    choices = {"init_checkpoint": str(source), "init_state": "transplant"}
    run(data_dir, config[0], tmp_path / "new", hooks=[Look(look)], **choices)
    changed = {"albert/embeddings/word_embeddings", "mlm/output_bias"}
    for name in expected.keys() - changed:
        np.testing.assert_array_equal(seen[name], expected[name], name)
    pieces = load_saved_tokenizer(data_dir).pieces(range(config[1].vocab_size))
    old = expected["albert/embeddings/word_embeddings"].numpy()
    rows = seen["albert/embeddings/word_embeddings"]
    names = tokenizer.pieces(range(len(old)))
    for piece, origins in {"▁the": ["▁the"], "▁on": ["o", "n"]}.items():
        mean = np.mean([old[names.index(name)] for name in origins], 0)
        np.testing.assert_allclose(rows[pieces.index(piece)], mean, rtol=1e-6)
    assert f"{len(pieces)} pieces: " in capsys.readouterr().out


def cut_file(path):
    path.write_bytes(path.read_bytes()[:1000])


def keep_one_record(path):
    """Truncate a file after a record, so that all checksums stay valid."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    path.write_bytes(content[: 8 + 4 + size + 4])


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [pathlib.Path.unlink, cut_file, keep_one_record]
)
def test_records_damaged_mid_run_are_named(data_dir, config, tmp_path, damage):
    """The error names a damaged file and the last intact checkpoint."""
    copy, output = tmp_path / "copy", tmp_path / "model"
    shutil.copytree(data_dir, copy)
    metadata = read_metadata(str(copy))
    name = metadata.splits["train"][0].file
    run(str(copy), config[0], output, training={"stop_step": 2})
    checked = input_pipeline.check_files

    def check_and_damage(data_dir, metadata):
        checked(data_dir, metadata)
        damage(copy / name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_pipeline, "check_files", check_and_damage)
        with pytest.raises(InputError, match=f"(?s){name}.*good.*ckpt-2"):
            run(str(copy), config[0], output)
    assert checkpoint_files.latest(str(output)).endswith("ckpt-2")


def test_a_full_disk_is_told_with_the_last_good_checkpoint(
    data_dir, trained, tmp_path
):
    """The error for a full disk names the file and the last good checkpoint."""
    path, output, _ = trained
    shutil.copytree(output, tmp_path / "model")

    def fail(run):
        raise OSError(28, "No space left on device", "history.jsonl")

    with pytest.raises(InputError, match="No space.*history.*good.*ckpt-4"):
        run(data_dir, path, tmp_path / "model", hooks=[Look(fail)])


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"max_position_embeddings": 8}, "max_seq_length=16"),
        ({"vocab_size": 20}, "`vocab_size`, 20. Received: vocab_size=150"),
        ({"type_vocab_size": 1}, "two segments. Received: type_vocab_size=1"),
    ],
)
def test_records_that_do_not_fit_are_refused(
    data_dir, config, tmp_path, changes, named
):
    """The error for records that do not fit the model states the sizes of both.

    No file is written.
    """
    path = tmp_path / "other.json"
    path.write_text(dataclasses.replace(config[1], **changes).to_json())
    output = tmp_path / "model"
    with pytest.raises(InputError, match=named):
        run(data_dir, path, output)
    assert not output.exists()


def test_checkpoints_without_a_config_are_refused(data_dir, trained, tmp_path):
    """The error for checkpoints without a config suggests copying it back."""
    output = shutil.copytree(trained[1], tmp_path / "model")
    (output / "albert_config.json").unlink()
    with pytest.raises(InputError, match=f"copy this file .*={output}$"):
        run(data_dir, trained[0], output)


@pytest.mark.parametrize("name", ["make_run", "train_and_evaluate"])
def test_a_moved_folder_stays_away(data_dir, config, tmp_path, name):
    """A run whose folder is moved before or during training writes no files."""
    output, moved = tmp_path / "model", tmp_path / "moved"
    make = getattr(pretrain, name)

    def move(*args):
        output.rename(moved)
        return make(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, name, move)
        with pytest.raises(InputError, match="was moved"):
            run(data_dir, config[0], output, hooks=[Look(id)])
    assert not output.exists()


def test_another_models_directory_is_refused(
    data_dir, config, trained, tmp_path
):
    """Checkpoints of a different architecture in a directory raise an error.

    Without a checkpoint, a directory may be overwritten if a run wrote its
    files.
    """
    output = shutil.copytree(trained[1], tmp_path / "model")
    path = tmp_path / "other.json"
    other = dataclasses.replace(config[1], hidden_size=32)
    path.write_text(other.to_json())
    with pytest.raises(InputError, match="another model's checkpoints"):
        run(data_dir, path, output)
    for file in ("checkpoint", *output.glob("ckpt-*")):
        (output / file).unlink()
    run(data_dir, path, output, hooks=[Look(lambda run: None)])
    assert AlbertConfig.from_model_dir(str(output)) == other
    (output / "run.flags").unlink()  # as if another program wrote it
    with pytest.raises(InputError, match="another model's checkpoints"):
        run(data_dir, config[0], output)


def test_compat_names_settings_that_exist():
    """Compatibility modes set only settings that exist."""
    files = dict.fromkeys(("data_dir", "albert_config_file", "output_dir"), "x")
    configs = OptimizerConfig(), TrainingConfig(), PretrainingConfig(**files)
    for mode, choices in COMPAT.items():
        values = {}
        for config in configs:
            values |= vars(with_compat(config, mode))
        assert {name: values[name] for name in choices} == choices
