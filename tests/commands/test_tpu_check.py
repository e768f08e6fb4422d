"""Settings and output of `python -m albert_tf.tpu_check`."""

import programs
import pytest
import tiny

from albert_tf.base.errors import InputError
from albert_tf.data.records.metadata import Metadata
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiler import VERSIONS, Compiled
from albert_tf.tpu.tpu_check import (
    TpuCheckConfig,
    compiled_lines,
    lengths,
    make_plan,
    plan_lines,
)
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.pretraining.run_setup import PretrainingConfig
from albert_tf.training.training_config import TrainingConfig

GIB = 1 << 30
COMMAND = "-m", "albert_tf.tpu_check"


@pytest.fixture
def config_file(tmp_path):
    """Return the path of the tiny model's config."""
    tiny.CONFIG.save(str(tmp_path))
    return str(tmp_path / "albert_config.json")


def test_lengths_are_those_of_the_records_or_of_the_model(tmp_path):
    """Lengths come from the flags, the records or the model's limit.

    By default, 15% of the tokens are predicted. An error for a length that is
    too long states the model's limit.
    """
    config = tiny.CONFIG
    assert lengths(TpuCheckConfig(), None, config) == (16, 2)
    explicit = TpuCheckConfig(max_seq_length=10, max_predictions_per_seq=4)
    assert lengths(explicit, None, config) == (10, 4)
    Metadata(12, 3, 50, "", {"train": (), "eval": ()}).write(str(tmp_path))
    assert lengths(TpuCheckConfig(), str(tmp_path), config) == (12, 3)
    with pytest.raises(InputError, match="max_position_embeddings=16"):
        lengths(TpuCheckConfig(max_seq_length=17), None, config)


def test_of_several_folders_the_last_is_compiled(config_file, tmp_path):
    """Only the last of several folders is compiled.

    The batch size is adjusted to keep the first folder's tokens per batch.
    """
    for name, tokens in (("short", 4), ("long", 16)):
        (tmp_path / name).mkdir()
        metadata = Metadata(tokens, 2, 50, "", {"train": (), "eval": ()})
        metadata.write(str(tmp_path / name))
    run = PretrainingConfig(
        albert_config_file=config_file,
        data_dir=f"{tmp_path}/short:0.5,{tmp_path}/long",
    )
    training = TrainingConfig(train_batch_size=64)
    plan = make_plan(TpuCheckConfig(), run, OptimizerConfig(), training)
    assert (plan.tokens, plan.training.train_batch_size) == (16, 16)


def test_a_plan_is_what_the_flags_say(config_file):
    """The lines of a plan state the slice, batch size, precision and loop.

    A batch is divided among replicas and then into micro-batches. The loop is
    over the encoder's layers.
    """
    run = PretrainingConfig(albert_config_file=config_file)
    training = TrainingConfig(
        train_batch_size=64, gradient_accumulation_steps=2, dtype="bfloat16"
    )
    plan = make_plan(TpuCheckConfig(), run, OptimizerConfig(), training)
    assert plan_lines(plan, parse("v5e-8")) == [
        "v5e:2x4 (v5litepod-8): 8 chips, 8 replicas",
        "batch 64 = 8 replicas x 2 accumulation steps x 4 examples of 16 "
        "tokens, 2 predictions, bfloat16",
        "encoder loop: while, 1 compiled layer for 2 layers, layers "
        "rematerialized",
    ]


def test_a_step_that_fits_is_said_to_fit_according_to_the_compiler():
    """For a step that fits, the peak memory is printed."""
    parts = {"arguments": GIB, "temporaries": 2 * GIB}
    compiled = Compiled(True, 61.4, 3 * GIB, parts)
    assert compiled_lines(compiled, 16 * GIB, parse("v5e-8")) == [
        "compiles for v5e and fits, according to the TPU compiler (61 s)",
        "peak memory of a replica: 3.00 GiB of 16.00 GiB, 13.00 GiB "
        "left (arguments 1.00 GiB, temporaries 2.00 GiB)",
    ]


@pytest.mark.parametrize(
    "needed, amount", [(17 * GIB, "17.00 GiB of"), (None, "more than")]
)
def test_a_step_that_does_not_fit_is_a_result(needed, amount):
    """If a step does not fit, the memory that it needs is printed if known."""
    compiled = Compiled(False, 4.0, needed, {})
    assert compiled_lines(compiled, 16 * GIB, parse("v3-8")) == [
        f"does not fit on v3: needs {amount} 16.00 GiB, according to the TPU "
        "compiler (4 s)"
    ]


def test_an_unknown_slice_is_one_error(config_file):
    """The one-line error for an unknown slice lists the legal names."""
    config = f"--albert_config_file={config_file}"
    result = programs.run(*COMMAND, config, "--topology=v5e-7")
    assert result.returncode == 1
    assert "error: `topology` must be one of" in result.stderr
    assert "v5e:2x4 (v5litepod-8)" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_the_whole_check_of_a_tiny_model(config_file):
    """The command compiles a tiny model and prints the memory that it needs."""
    for package in VERSIONS:
        pytest.importorskip(package)
    result = programs.run(
        *COMMAND,
        f"--albert_config_file={config_file}",
        "--train_batch_size=64",
    )
    assert result.returncode == 0, result.stderr
    assert "compiles for v5e and fits" in result.stdout
    assert "8 chips, 8 replicas" in result.stdout
    assert "GiB of 15.75 GiB" in result.stdout
