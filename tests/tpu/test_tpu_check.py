"""Settings and output of `python -m albert_tf.tpu_check`."""

import types

import programs
import pytest
import tiny
import vocabularies

from albert_tf.base.errors import InputError
from albert_tf.data.records.metadata import Metadata
from albert_tf.model.config import AlbertConfig
from albert_tf.text.tokenizers import tokenizer_in
from albert_tf.tpu import tpu_check
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiler import GIB, VERSIONS, Compiled
from albert_tf.tpu.tpu_check import (
    TpuCheckConfig,
    compile_and_report,
    compiled_lines,
    lengths,
    make_plan,
    plan_lines,
    write_step_file,
)
from albert_tf.training import checkpoints
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.pretraining.run_setup import PretrainingConfig
from albert_tf.training.training_config import TrainingConfig

COMMAND = "-m", "albert_tf.tpu_check"


@pytest.fixture
def config_file(tmp_path):
    """Return the path of the tiny model's config."""
    tiny.CONFIG.save(str(tmp_path))
    return str(tmp_path / "albert_config.json")


@pytest.mark.parametrize(
    "values, found, found_with_records",
    [
        ({}, (16, 2), (12, 3)),
        ({"max_seq_length": 8}, (8, 1), (8, 3)),
        ({"max_seq_length": 12}, (12, 2), (12, 3)),
        ({"max_predictions_per_seq": 12}, (16, 12), (12, 12)),
    ],
)
def test_lengths_are_those_of_the_records_or_of_the_model(
    tmp_path, values, found, found_with_records
):
    """Lengths come from the flags, the records or the model's limit.

    By default, 15% of the tokens are predicted; all tokens may be.
    """
    Metadata(12, 3, 50, "", {"train": (), "eval": ()}).write(str(tmp_path))
    check = TpuCheckConfig(**values)
    assert lengths(check, None, tiny.CONFIG) == found
    assert lengths(check, str(tmp_path), tiny.CONFIG) == found_with_records


@pytest.mark.parametrize(
    "values", [{"max_seq_length": 17}, {"max_predictions_per_seq": 17}]
)
def test_lengths_are_limited(values):
    """The error for a length that is too long states the model's limit."""
    ((name, value),) = values.items()
    message = f"{name}={value}, .*max_position_embeddings=16"
    with pytest.raises(InputError, match=message):
        lengths(TpuCheckConfig(**values), None, tiny.CONFIG)


def test_the_last_batch_is_cut_as_the_first(config_file, tmp_path):
    """Only the last of several folders is compiled, with an adjusted batch.

    The batch keeps the first folder's number of tokens, except that its size is
    a multiple of the number of replicas times the number of micro-batches. With
    a single folder, the batch size does not change.
    """
    for name, tokens, predictions in (("short", 4, 1), ("long", 16, 3)):
        (tmp_path / name).mkdir()
        splits = {"train": (), "eval": ()}
        metadata = Metadata(tokens, predictions, 50, "", splits)
        metadata.write(str(tmp_path / name))
    several = f"{tmp_path}/short:0.5,{tmp_path}/long"
    for data_dir, pieces, batch, sizes in (
        (several, 1, 24, (16, 3)),
        (several, 2, 32, (16, 3)),
        (f"{tmp_path}/short", 2, 96, (4, 1)),
    ):
        run = PretrainingConfig(
            albert_config_file=config_file, data_dir=data_dir
        )
        training = TrainingConfig(
            train_batch_size=96,
            gradient_accumulation_steps=pieces,
            encoder_loop="unrolled",
            rematerialize="none",
            dtype="auto",
        )
        plan = make_plan(TpuCheckConfig(), run, OptimizerConfig(), training)
        assert plan.training.train_batch_size == batch
        assert (plan.tokens, plan.predictions) == sizes
        assert plan.training.dtype == "bfloat16"
    loop = plan_lines(plan, parse("v5e-8"))[-1]
    assert loop == "encoder loop: unrolled, nothing rematerialized"


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


class FakeStep:
    """A step that fits into 16 GiB with up to 16 examples."""

    def __init__(self, plan, topology):
        self.plan, self.topology = plan, topology
        self.compiler = types.SimpleNamespace(memory=lambda: 16 * GIB)

    def compile(self, size):
        parts = {"arguments": 0} if size <= 16 else {}
        return Compiled(size <= 16, 2.0, size * GIB, parts)


@pytest.mark.parametrize("find", [False, True])
def test_the_largest_batch_is_found_on_request(
    config_file, monkeypatch, capsys, find
):
    """The report states the plan, memory and, on request, the largest size.

    The search for the largest size prints a line for each size. Without the
    compiler, an error comes first.
    """
    asked = []
    monkeypatch.setattr(tpu_check, "require_versions", asked.append)
    monkeypatch.setattr(tpu_check, "Step", FakeStep)
    run = PretrainingConfig(albert_config_file=config_file)
    training = TrainingConfig(train_batch_size=40)
    config = TpuCheckConfig(topology="v3-8", find_largest_batch=find)
    plan = make_plan(config, run, OptimizerConfig(), training)
    compile_and_report(config, plan)
    assert asked == ["tpu-check"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "v3:2x2 (v3-8): 4 chips, 8 replicas",
        "batch 40 = 8 replicas x 1 accumulation step x 5 examples of 16 "
        "tokens, 2 predictions, float32",
        "encoder loop: while, 1 compiled layer for 2 layers, layers "
        "rematerialized",
    ]
    assert lines[3].startswith("compiles for v3 and fits")
    assert lines[4] == (
        "peak memory of a replica: 5.00 GiB of 16.00 GiB, 11.00 GiB left "
        "(arguments 0.00 GiB)"
    )
    source = "according to the TPU compiler (2 s)"
    search = [
        f"micro-batch of 16: compiles for v3 and fits, {source}",
        "micro-batch of 18: does not fit on v3: needs 18.00 GiB of 16.00 GiB, "
        f"{source}",
        "largest micro-batch per replica that fits: 16",
    ]
    assert lines[5:] == search * find


def test_a_step_file_has_the_flags_without_the_folders(
    config_file, monkeypatch
):
    """The flags in a step file do not include folders.

    Weights that are not random require `data_dir`.
    """
    written = []
    monkeypatch.setattr(tpu_check, "write_step", lambda *x: written.append(x))
    others = OptimizerConfig(), TrainingConfig(), DistributionConfig()
    config = TpuCheckConfig(step_file="step.zip")
    run = PretrainingConfig(
        albert_config_file=config_file, output_dir="somewhere"
    )
    write_step_file(config, "step", run, *others)
    ((path, step, flags),) = written
    assert (path, step) == ("step.zip", "step")
    names = [line.partition("=")[0] for line in flags.splitlines()]
    assert "--albert_config_file" in names and "--optimizer" in names
    assert not {"--data_dir", "--output_dir"} & {*names}
    for values in (
        {"init_checkpoint": "model"},
        {"initial_weights": "informed"},
    ):
        run = PretrainingConfig(albert_config_file=config_file, **values)
        with pytest.raises(InputError, match="needs `data_dir`"):
            write_step_file(config, "step", run, *others)
    assert len(written) == 1


def test_the_program_writes_the_settings_of_the_run(config_file, monkeypatch):
    """With `step_file`, the program writes a step with all of its settings."""
    written = []
    monkeypatch.setattr(tpu_check, "Step", FakeStep)
    monkeypatch.setattr(tpu_check, "write_step", lambda *x: written.append(x))
    values = {"num_warmup_steps": 3, "random_seed": 7, "num_cpu_replicas": 2}
    names = {"albert_config_file": config_file, "step_file": "step.zip"}
    tpu_check.tpu_check(topology="v3-8", **names, **values)
    ((path, step, flags),) = written
    assert path == "step.zip" and str(step.topology) == "v3:2x2"
    given = {f"--{name}={value}" for name, value in values.items()}
    assert given <= {*flags.splitlines()}


@pytest.mark.parametrize(
    "values",
    [
        {"budget_hours": 1.5},
        {"depth_schedule": "1:0.5,2"},
        {"mask_schedule": "0.3:0.5,0.15"},
    ],
)
def test_a_step_file_has_no_budget_and_no_schedule(config_file, values):
    """A step file cannot represent settings that change the step of a run."""
    run = PretrainingConfig(albert_config_file=config_file, **values)
    others = OptimizerConfig(), TrainingConfig(), DistributionConfig()
    ((name, value),) = values.items()
    with pytest.raises(InputError, match=f"single step.*: {name}={value}$"):
        write_step_file(TpuCheckConfig(step_file="x"), "step", run, *others)


def test_only_steps_on_words_are_planned(config_file, tmp_path):
    """Records of phonemes, which train another model, are rejected."""
    folder = str(tmp_path / "sounds")
    settings = {"task": "phonemes", "masking": "dynamic"}
    metrics = {"masked_symbol_accuracy": 0.1}
    statistics = {"word_labels": 4, "by_frequency": metrics}
    Metadata(8, 6, 50, "", {}, settings, statistics).write(folder)
    run = PretrainingConfig(folder, albert_config_file=config_file)
    with pytest.raises(InputError, match=f"task=words.*data_dir={folder}$"):
        make_plan(TpuCheckConfig(), run, OptimizerConfig(), TrainingConfig())


def test_a_step_file_starts_from_a_model_as_its_run_does(
    data_dir, pretrained_dir, config_file, tmp_path, monkeypatch
):
    """A step file's first weights obey the rules of `init_checkpoint`.

    Weights of another tokenizer are an error, and a transplant has the records'
    tokenizer to fit them to.
    """
    started, source = [], str(tmp_path / "source")
    config = AlbertConfig.from_model_dir(pretrained_dir)
    config.save(source)
    vocabularies.english().save(source)
    checkpoints.save(source, {})
    monkeypatch.setattr(tpu_check, "write_step", lambda *_: None)
    monkeypatch.setattr(tpu_check, "start", lambda *x: started.append(x[0]))
    step = types.SimpleNamespace(
        plan=types.SimpleNamespace(config=config),
        trainer=types.SimpleNamespace(strategy=None),
    )
    for init_state in ("weights", "transplant"):
        run = PretrainingConfig(
            data_dir,
            albert_config_file=config_file,
            init_checkpoint=source,
            init_state=init_state,
        )
        others = OptimizerConfig(), TrainingConfig(), DistributionConfig()
        arguments = TpuCheckConfig(step_file="x"), step, run, *others
        if init_state == "weights":
            with pytest.raises(InputError, match="have the tokenizer of the"):
                write_step_file(*arguments)
        else:
            write_step_file(*arguments)
    (setup,) = started
    fingerprint = tokenizer_in(data_dir).fingerprint()
    assert setup.vocabulary.fingerprint() == fingerprint


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
