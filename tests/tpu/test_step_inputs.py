"""Step files and records are checked before a run writes a file."""

import dataclasses
import sys
import zipfile
from unittest import mock

import numpy as np
import pytest

from albert_tf.base.errors import InputError
from albert_tf.data.records.metadata import Metadata, RecordFile
from albert_tf.tpu import run_step as run_step_module
from albert_tf.tpu.run_step import (
    RunStepConfig,
    StepFile,
    jax_for_steps,
    records_of,
    run_step,
)

SPLITS = {"train": (), "eval": ()}
DYNAMIC = Metadata(64, 9, 50, "", SPLITS, {"masking": "dynamic"})


@pytest.mark.parametrize("slots, tokens", [(1, 8), (3, 9)])
def test_records_must_fit_the_step(make, tmp_path, slots, tokens):
    """Records that do not fit the step raise an error before a run writes.

    They must have as many tokens as the step, and at most as many predictions.
    """
    sizes = {"masked_lm_ids": [4, slots]}
    message = (
        f"have {tokens} tokens and at most {slots} predictions per example"
    )
    with pytest.raises(
        InputError, match=f"{message}.*records=8 tokens, 2 pred"
    ):
        run_step(**make(sizes=sizes, tokens=tokens))
    assert not (tmp_path / "model").exists()


def test_a_batch_that_fits_exactly_is_not_padded(make):
    """A batch with as many prediction slots as the step is unchanged."""
    settings = make(sizes={"masked_lm_ids": [4, 2]})
    batch = {
        "input_ids": np.ones([4, 8], np.int32),
        "masked_lm_ids": np.ones([4, 2], np.int32),
    }
    step = StepFile(settings["step_file"])
    step.check_sizes(8, 2)
    for name, value in step.fitted(batch).items():
        np.testing.assert_array_equal(value, batch[name], strict=True)


def test_records_must_suit_the_step(tmp_path, records):
    """Records must be of words, with a vocabulary no larger than the model's.

    If the records do not state a size, the model's size applies. Only records
    with dynamic masks may be used with a different mask rate. Held-out records
    keep the stored rate, which must also fit the step.
    """
    folder = tmp_path / "dynamic"
    folder.mkdir()
    DYNAMIC.write(str(folder))
    paths = {"step_file": "x", "output_dir": "x"}
    config = RunStepConfig(data_dir=str(folder), masked_lm_prob=0.3, **paths)
    step = mock.Mock(info={"config": {"vocab_size": 50}})
    assert records_of(config, step).max_predictions_per_seq == 19
    assert step.check_sizes.mock_calls == [mock.call(64, 19)]
    held_out = SPLITS | {"eval": (RecordFile("a", 3, 99),)}
    dataclasses.replace(DYNAMIC, splits=held_out).write(str(folder))
    records_of(config, step)
    sizes = [mock.call(64, 19), mock.call(64, 9)]
    assert step.check_sizes.mock_calls[1:] == sizes
    for size, expected in ((40, 40), (0, 50), (50, 50)):
        dataclasses.replace(DYNAMIC, vocab_size=size).write(str(folder))
        assert records_of(config, step).vocab_size == expected
    config = dataclasses.replace(config, masked_lm_prob=0.0)
    assert records_of(config, step).max_predictions_per_seq == 9
    step.info["config"]["vocab_size"] = 49
    with pytest.raises(InputError, match="`vocab_size`, 49.*vocab_size=50$"):
        records_of(config, step)
    static = RunStepConfig(data_dir=str(records), masked_lm_prob=0.3, **paths)
    with pytest.raises(InputError, match=f"data_dir={records}, static$"):
        records_of(static, step)
    dataclasses.replace(
        DYNAMIC,
        settings={"task": "phonemes", "masking": "dynamic"},
        statistics={
            "word_labels": 4,
            "by_frequency": {"masked_symbol_accuracy": 0.1},
        },
    ).write(str(folder))
    with pytest.raises(InputError, match=f"task=words.*data_dir={folder}$"):
        records_of(config, step)


def test_what_is_no_step_file_is_one_error(make, tmp_path):
    """The error names a step file that lacks a part or has an illegal part."""
    path = tmp_path / "step.zip"
    with pytest.raises(InputError, match=f"`step_file` must be .*{path}$"):
        StepFile(str(path))
    path.write_text("no archive")
    with pytest.raises(InputError, match=f"must be a file .*{path}$"):
        StepFile(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("step.jax", "step")
    with pytest.raises(InputError, match=f"'step.json'.*{path}$"):
        StepFile(str(path))
    with zipfile.ZipFile(make()["step_file"]) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    for info in ("[]", '{"arguments": [1]}', '{"arguments": 2}'):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in (content | {"step.json": info}).items():
                archive.writestr(name, data)
        with pytest.raises(InputError, match=f"a file written .*{path}$"):
            StepFile(str(path))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("step.jax", "step" * 100)
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
        with pytest.raises(InputError, match=f"a file written .*{path}$"):
            StepFile(str(path))


def test_jax_is_imported_with_long_integers(programs, monkeypatch):
    """JAX is imported with 64-bit integers.

    If JAX is missing, the error states what to install.
    """
    assert jax_for_steps().options == {"jax_enable_x64": True}
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(InputError, match="pip install flatbuffers jax"):
        jax_for_steps()


@pytest.mark.parametrize(("share", "slots"), [(0.0, 19), (0.3, 9)])
def test_held_out_records_have_the_stored_share(
    monkeypatch, tmp_path, share, slots
):
    """`masked_lm_prob` does not change the number of held-out predictions."""
    DYNAMIC.write(str(tmp_path))
    run, stream = mock.MagicMock(), mock.MagicMock()
    run.metadata, run.config.masked_lm_prob = DYNAMIC.masked_at(0.3), share
    run.config.data_dir = str(tmp_path)
    run.file.summarize.return_value = {"loss": 1.0}
    monkeypatch.setattr(run_step_module, "RecordStream", stream)
    run_step_module.Run.evaluate(run)
    (_, records, _), _ = stream.call_args
    assert records.max_predictions_per_seq == slots
