"""The demo: skipped steps, honest intervals, the bound it compares with."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import demo_pipeline as demo
from albert_tf.base.errors import InputError
from albert_tf.data import records
from albert_tf.data.records import find, input_pipeline


def writes(path, text="once\n"):
    code = f"open({str(path)!r}, 'a').write({text!r})"
    return demo.Step("write", f"-c {code.replace(' ', '')}", {})


def test_a_step_runs_once_for_one_command(tmp_path):
    """A step that has succeeded is skipped; a changed command runs again."""
    target = tmp_path / "out"
    for text in ("a", "a", "b"):
        writes(target, text).run(str(tmp_path), "1/1")
    assert target.read_text() == "ab"


def test_a_failed_step_is_not_marked(tmp_path):
    """A step that fails names itself and runs again next time."""
    step = demo.Step("broken", "-c 1/0", {})
    for _ in range(2):
        with pytest.raises(InputError, match="`broken` failed with status 1"):
            step.run(str(tmp_path), "1/1")


def test_commands_are_what_a_user_would_type(tmp_path):
    """Scripts stand without a folder, modules behind -m."""
    steps = demo.steps(demo.DemoConfig(output_dir="out"))
    lines = [" ".join(step.command("python", "")) for step in steps]
    assert lines[0] == "python -m albert_tf.demo.corpus --output_dir=out/corpus"
    assert any(line.startswith("python pretrain.py ") for line in lines)
    assert len({step.name for step in steps}) == len(steps)


def test_interval_is_wilsons():
    """The interval of 15 of 20 is the published one of Wilson's formula."""
    assert demo.interval(0.75, 20) == pytest.approx((0.5313, 0.8881), abs=1e-4)
    low, high = demo.interval(1.0, 10)
    assert low == pytest.approx(0.7225, abs=1e-4) and high <= 1.0 + 1e-9


def test_unigram_entropy_counts_real_predictions_alone(monkeypatch):
    """Padding of weight 0 is no word; the entropy of 3:1 is 0.5623 nats."""
    batch = {
        "masked_lm_ids": tf.constant([[1, 1, 0], [1, 2, 3]]),
        "masked_lm_weights": tf.constant([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]),
    }
    metadata = records.Metadata(8, 3, 10, "", {})
    monkeypatch.setattr(find, "read_metadata", lambda _: metadata)
    monkeypatch.setattr(
        input_pipeline, "eval_batches", lambda *_, **__: [batch]
    )
    expected = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert demo.unigram_entropy("") == pytest.approx(expected)
