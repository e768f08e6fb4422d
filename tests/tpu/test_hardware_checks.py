"""What the checks of a machine call a pass."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.tpu.hardware_checks import (
    RECIPE,
    STEPS,
    STRETCH,
    Bench,
    HardwareReportConfig,
    NotRun,
    compare_losses,
    evaluation,
    expected_figures,
    memory,
    module,
    resume,
)
from albert_tf.tpu.made_up_records import write_records
from albert_tf.tpu.tpu_recipes import accepted
from albert_tf.training.machines.distribution import DistributionConfig
from albert_tf.training.model_directory import checkpoints

TEXT = "6824a352d0598141"  # of 20 documents
SEEDS = [[5.0, 4.0, 3.0], [5.2, 4.0, 3.4], [5.1, 4.0, 2.9]]


@pytest.mark.parametrize(
    ("losses", "passes"),
    [
        ([5.0, 4.0, 3.0], True),
        ([5.2, 4.2, 3.4], True),  # where seeds meet, as far as before
        ([5.0, 4.3, 3.0], False),
        ([5.0, 4.0, 2.4], False),
        ([5.1], True),  # of fewer steps
        ([5.0, float("nan"), 3.0], False),
    ],
)
def test_losses_may_be_as_far_off_as_another_seed(losses, passes):
    """By the spread of the seeds at each stretch, on both sides."""
    outcome = compare_losses(losses, SEEDS)
    assert outcome.passed is passes
    assert len(outcome.table) == 1 + len(losses)
    assert outcome.table[-1][0] == str(STRETCH * len(losses))


def test_the_committed_curves_are_whole_and_learn():
    """Of three seeds; the losses fall by far more than seeds differ."""
    curves = np.array(expected_figures()["losses"])
    assert curves.shape == (3, STEPS // STRETCH)
    assert np.ptp(curves, axis=0).max() < (curves[:, 0] - curves[:, -1]).min()


def test_the_made_up_text_is_that_of_the_curves(tmp_path):
    """Whatever the machine and the version of NumPy."""
    folder = write_records(str(tmp_path), 64, documents=20)
    digest = hashlib.sha256((tmp_path / "text.txt").read_bytes()).hexdigest()
    assert digest[:16] == TEXT
    assert write_records(str(tmp_path), 64) == folder  # not made again


class SavedBench:
    """A bench whose runs are checkpoints with these values."""

    config = SimpleNamespace(num_steps=4)

    def __init__(self, folder, interrupted, unbroken):
        self.interrupted = self.write(folder / "a", interrupted)
        self.unbroken = self.write(folder / "b", unbroken)

    def write(self, folder, value):
        state = {"w": tf.Variable(value), "m": tf.Variable(1.0)}
        checkpoints.save(str(folder), state, 4)
        return str(folder)

    def small(self, name, steps):
        return self.interrupted


@pytest.mark.parametrize("other", [1.0, np.nextafter(np.float32(1), 2)])
def test_resuming_is_to_the_bit(tmp_path, other):
    """The smallest difference is one, and is named."""
    outcome = resume(SavedBench(tmp_path, np.float32(other), np.float32(1)))
    assert outcome.passed == (other == 1)
    assert outcome.passed or "most w by 1.2e-07" in outcome.got


@pytest.mark.parametrize(("loss", "passes"), [(2.00001, True), (2.0002, False)])
def test_replicas_must_agree_with_one(loss, passes):
    """To the rounding of the device's products."""
    bench = SimpleNamespace(
        strategy=SimpleNamespace(num_replicas_in_sync=2),
        kind="CPU",
        devices="all",
        evaluated=lambda devices: loss if devices == "all" else 2.0,
    )
    assert evaluation(bench).passed is passes


def test_what_a_cpu_cannot_say_is_not_run(tmp_path):
    """One replica has nothing to agree with, and no memory of its own."""
    config = HardwareReportConfig(output_dir=str(tmp_path))
    bench = Bench(config, DistributionConfig())
    for check in (evaluation, memory):
        with pytest.raises(NotRun):
            check(bench)


def test_a_slice_gives_the_peak_of_a_replica(tmp_path):
    """Half a chip's on v3; a slice that does not exist is refused."""
    config = HardwareReportConfig(output_dir=str(tmp_path), topology="v3-8")
    assert Bench(config, DistributionConfig()).devices.peak_tflops == 61.5
    with pytest.raises(InputError, match="`topology` must be one of"):
        config = HardwareReportConfig(output_dir="", topology="v3-7")
        Bench(config, DistributionConfig(peak_tflops=1))


def test_the_module_is_compared_where_the_recipes_are(tmp_path, monkeypatch):
    """In another folder nothing is lowered."""
    assert RECIPE in accepted()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotRun, match=f"{RECIPE}.flags is not in this folder"):
        module(None)
