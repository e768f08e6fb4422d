"""The demo: repeated steps, confidence intervals and the entropy bound."""

import re

import numpy as np
import pipeline
import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.data.records import input_pipeline, metadata


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a script that appends its argument to `out`.

    The script fails if the argument is 0.
    """
    code = (
        "import sys; 1 / int(sys.argv[1]); open('out', 'a').write(sys.argv[1])"
    )
    (tmp_path / "script.py").write_text(code)
    monkeypatch.setattr(pipeline, "ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return "script.py"


@pytest.mark.parametrize("scheme", ["{}", "file://{}"])
def test_a_step_runs_once_for_one_command(scheme, script, tmp_path):
    """A successful step is repeated only if its command changes."""
    for argument in ("1", "1", "2"):
        folder = scheme.format(tmp_path)
        pipeline.run_step(folder, "write", [script, argument])
    assert (tmp_path / "out").read_text() == "12"


# A step that gets Ctrl-C at the same time as the demo and saves slowly.
SAVES = """
import os, signal, time
def save(*_):
    time.sleep(1)
    open("saved", "w")
    os._exit(130)
signal.signal(signal.SIGINT, save)
for pid in (os.getppid(), os.getpid()):
    os.kill(pid, signal.SIGINT)
"""


def test_a_step_has_time_to_save_at_an_interrupt(script, tmp_path):
    """After an interrupt, a step has time to save; a rerun repeats the step."""
    (tmp_path / script).write_text(SAVES)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run_step(str(tmp_path), "write", [script])
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "steps").exists()


@pytest.mark.parametrize(
    "setting",
    [{"output_dir": ""}, {"pretraining_hours": 0}, {"finetuning_steps": 1}],
)
def test_settings_are_checked_before_anything_is_made(
    setting, tmp_path, monkeypatch
):
    """The error for an invalid setting names it, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"`{[*setting][0]}` must be"):
        pipeline.demo(**setting)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_step_is_not_marked(script, tmp_path):
    """The error names the failed step, which the next run repeats."""
    for _ in range(2):
        with pytest.raises(InputError, match="`broken` failed.*status=1"):
            pipeline.run_step(str(tmp_path), "broken", [script, "0"])


def test_commands_are_what_a_user_would_type():
    """Commands have no unfilled placeholders; a folder may contain a space."""
    values = {"pretraining_hours": 0.1, "finetuning_steps": 7}
    words = {
        name: pipeline.arguments(step, dir="a folder", **values)
        for name, step in pipeline.STEPS.items()
    }
    assert words["tokenizer"][:3] == [
        "-m",
        "albert_tf.train_tokenizer",
        "--input_file=a folder/corpus/corpus.txt",
    ]
    assert words["pretraining"][0] == "pretrain.py"
    assert "--budget_hours=0.1" in words["pretraining"]
    assert "--num_train_steps=7" in words["fine-tuning"]
    for line in words.values():
        flags = line[2:] if line[0] == "-m" else line[1:]
        assert all(re.fullmatch(r"--\w+(=[^{}]+)?", flag) for flag in flags)


def test_shares_are_shown_with_wilsons_interval():
    """The 95% interval for 15 of 20 equals a published Wilson interval."""
    shown = "75.0% (95%: 53.1% to 88.8%, 20 examples)"
    assert pipeline.shown(0.75, 20) == shown


def test_unigram_entropy_counts_real_predictions_alone(monkeypatch):
    """The entropy of a 3:1 ratio is 0.5623 nats; padding does not count."""
    batch = {
        "masked_lm_ids": tf.constant([[1, 1, 0], [1, 2, 3]]),
        "masked_lm_weights": tf.constant([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]),
    }
    described = metadata.Metadata(8, 3, 10, "", {})
    monkeypatch.setattr(pipeline, "read_metadata", lambda _: described)
    monkeypatch.setattr(
        input_pipeline, "eval_batches", lambda *_, **__: [batch]
    )
    expected = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert pipeline.unigram_entropy("") == pytest.approx(expected)
