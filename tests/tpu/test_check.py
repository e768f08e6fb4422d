"""The parts of `tpu_check` that need no compiler work as documented."""

import types

import pytest
import tiny
import vocabularies

from albert_tf.base.errors import InputError
from albert_tf.data.records.metadata import Metadata
from albert_tf.model.config import AlbertConfig
from albert_tf.text.tokenizers import tokenizer_in
from albert_tf.tpu import tpu_check
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiler import GIB, Compiled
from albert_tf.tpu.tpu_check import (
    TpuCheckConfig,
    compile_and_report,
    find_largest,
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


@pytest.fixture
def config_file(tmp_path):
    """Return the path of the tiny model's config."""
    tiny.CONFIG.save(str(tmp_path))
    return str(tmp_path / "albert_config.json")


@pytest.mark.parametrize(
    "values, found",
    [
        ({"max_seq_length": 8}, (8, 1)),
        ({"max_seq_length": 12}, (12, 2)),
        ({"max_seq_length": 16, "max_predictions_per_seq": 16}, (16, 16)),
        ({"max_predictions_per_seq": 17}, None),
    ],
)
def test_all_tokens_may_be_predicted(values, found):
    """By default, 15% of the tokens are predicted; the limit is all tokens."""
    check = TpuCheckConfig(**values)
    if found:
        assert lengths(check, None, tiny.CONFIG) == found
        return
    with pytest.raises(InputError, match="max_predictions_per_seq=17"):
        lengths(check, None, tiny.CONFIG)


def test_the_last_batch_is_cut_as_the_first(config_file, tmp_path):
    """The last folder's batch can be divided into equal micro-batches.

    The batch size is a multiple of the number of replicas times the number of
    micro-batches. With a single folder, the batch size does not change. The
    flags take precedence over the lengths of the records.
    """
    for name, tokens, predictions in (("short", 4, 1), ("long", 16, 3)):
        (tmp_path / name).mkdir()
        splits = {"train": (), "eval": ()}
        metadata = Metadata(tokens, predictions, 50, "", splits)
        metadata.write(str(tmp_path / name))
    several = f"{tmp_path}/short:0.5,{tmp_path}/long"
    flags = TpuCheckConfig(max_seq_length=8, max_predictions_per_seq=2)
    assert lengths(flags, f"{tmp_path}/long", tiny.CONFIG) == (8, 2)
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


class FakeStep:
    """A step that fits into 16 GiB with up to 16 examples."""

    def __init__(self, plan, topology):
        self.plan, self.topology = plan, topology
        self.compiler = types.SimpleNamespace(memory=lambda: 16 * GIB)

    def compile(self, size):
        parts = {"arguments": 0} if size <= 16 else {}
        return Compiled(size <= 16, 2.0, size * GIB, parts)


def test_the_search_prints_each_size(capsys):
    """The search prints a line for each size, and then the largest size."""
    step = FakeStep(None, parse("v5e-8"))
    find_largest(step, {8: step.compile(8)}, 16 * GIB)
    source = "according to the TPU compiler (2 s)"
    assert capsys.readouterr().out.splitlines() == [
        f"micro-batch of 16: compiles for v5e and fits, {source}",
        "micro-batch of 18: does not fit on v5e: needs 18.00 GiB of 16.00 GiB, "
        f"{source}",
        "largest micro-batch per replica that fits: 16",
    ]


@pytest.mark.parametrize("find", [False, True])
def test_the_largest_batch_is_found_on_request(
    config_file, monkeypatch, capsys, find
):
    """The report states the plan, memory and, on request, the largest size.

    Without the compiler, an error comes first.
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
