"""The values that `pretrain` passes to other parts of a run."""

import dataclasses
import itertools
import shutil
import types

import keras
import pytest
import tensorflow as tf
import tiny
import tiny_pretraining
import vocabularies
from tiny_pretraining import make_setup, run, values
from tiny_records import example, write

from albert_tf.base.errors import InputError
from albert_tf.data.records import input_pipeline, metadata
from albert_tf.data.records.metadata import EVAL, RecordFile, read_metadata
from albert_tf.model.config import training_flops
from albert_tf.training import checkpoint_files
from albert_tf.training.hooks import MeasureSpread, make_monitor
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.phases import Phase
from albert_tf.training.pretraining import pretrain, run_setup, warm_start
from albert_tf.training.pretraining.pretrain import make_run, pretraining_hooks
from albert_tf.training.pretraining.run_setup import check_records, make_trainer
from albert_tf.training.run import Hook, Run
from albert_tf.training.training_config import TrainingConfig


def trainer(compat="none"):
    """Return a trainer for the tiny model in a compat mode."""
    return make_trainer(
        tiny.CONFIG,
        compat,
        OptimizerConfig(num_warmup_steps=7),
        TrainingConfig(train_batch_size=4, eval_batch_size=4),
        tf.distribute.OneDeviceStrategy("/CPU:0"),
    )


def test_compat_reaches_the_optimizer_and_the_losses():
    """`compat=google` sets the released schedule, clipping and averaging."""
    released, ours = trainer("google"), trainer()
    assert released.optimizer.config.schedule == "released"
    assert released.per_replica and released.optimizer.per_replica
    assert ours.optimizer.config.schedule == "corrected"
    assert not (ours.per_replica or ours.optimizer.per_replica)


def test_the_monitor_knows_the_phase(tmp_path):
    """The monitor gets each phase's length, batch size, FLOPs and mask rate.

    The steps at which states are compared depend only on the warm-up.
    """
    statistics = {"masked_share": 0.04}
    short, long = (
        metadata.Metadata(tokens, 3, 50, "", {}, {}, statistics)
        for tokens in (8, 16)
    )
    run_phases = (
        Phase(0, 5, 4, metadata=short, layers=2),
        Phase(5, 10, 4, metadata=short, layers=1),
        Phase(10, 20, 2, metadata=long, layers=2, masked_lm_prob=0.4),
    )

    def batches(*arguments, batch_size):
        return types.SimpleNamespace(take=lambda n: (*arguments, batch_size, n))

    model = trainer()
    for step, number in ((11, 2), (10, 1), (6, 1), (5, 0), (0, 0)):
        model.optimizer.iterations.assign(step)
        made = Run(model, str(tmp_path), phases=run_phases)
        assert made.phase is run_phases[number]  # the last update's phase
        assert made.phase_begun == run_phases[number].begin
    monitors, looks = [], []
    for phase, begun in zip(run_phases, (0, 5, 10), strict=True):
        made.phase, made.phase_begun = phase, begun
        monitors.append(make_monitor(made))
        hooks = pretraining_hooks(made, make_monitor, batches, None, [])
        looks += [x for x in hooks if isinstance(x, MeasureSpread)]
    assert [x.every for x in looks] == [107] * 3  # the same in all phases
    assert looks[0].batches() == ("", short, 4, 8)  # 32 texts
    assert [(m.tokens, m.batch) for m in monitors] == [(8, 4), (8, 4), (16, 2)]
    assert [m.num_warmup_steps for m in monitors] == [7, 7, 10]
    assert [m.masked_share for m in monitors] == [0.04, 0.04, None]
    one, shallow = (
        training_flops(dataclasses.replace(tiny.CONFIG, **changes), 8, 3)
        for changes in ({}, {"num_hidden_layers": 1})
    )
    assert [m.flops for m in monitors[:2]] == [one, shallow]


@pytest.mark.parametrize(
    "size, is_noted", [(0, False), (49, True), (50, False)]
)
def test_records_that_fit_exactly_are_taken(size, is_noted, capsys):
    """A note is printed if the records use only a part of the vocabulary."""
    check_records(tiny.CONFIG, metadata.Metadata(16, 3, size, "", {}))
    assert ("Note: the records use" in capsys.readouterr().out) is is_noted


def test_ids_beyond_the_vocabulary(tmp_path):
    """Released records with ids outside the vocabulary raise errors.

    Released records do not state the size of their vocabulary, so the model's
    size applies.
    """
    write(tmp_path / "a.tfrecord", map(example, (0, 1, 49)))
    (found,) = run_setup.read(str(tmp_path), tiny.CONFIG, True).values()
    assert found.vocab_size == tiny.CONFIG.vocab_size == 50
    write(tmp_path / "a.tfrecord", map(example, (0, 1, 50)))
    with pytest.raises(InputError, match="record 2: `input_ids` .* 50, .* 49"):
        run_setup.read(str(tmp_path), tiny.CONFIG, True)


@pytest.mark.parametrize(
    "changes, call",
    [
        ({"initial_weights": "informed"}, ("model", "first", "of the first")),
        (
            {"init_checkpoint": "old", "init_state": "transplant"},
            ("old", "vocabulary", "first", 50),
        ),
    ],
    ids=["informed", "transplant"],
)
def test_a_model_begins_with_what_the_first_records_tell(
    monkeypatch, changes, call
):
    """Initial weights depend on the records that are read first."""
    calls = []

    def called(*arguments):
        calls.append(arguments)
        return ["a line"]

    for module, name in (
        (pretrain, "start_new"),
        (warm_start, "read_transplant"),
        (warm_start, "start_weights"),
    ):
        monkeypatch.setattr(module, name, called)
    folders = {"first": "of the first", "last": "of the last"}
    setup = dataclasses.replace(
        make_setup(tiny.CONFIG, folders, **changes),
        strategy=tf.distribute.get_strategy(),
        vocabulary="vocabulary",
    )
    trainer = types.SimpleNamespace(model="model", state=dict)
    pretrain.start(setup, trainer)
    assert calls[0] == call
    if call[0] == "old":
        transplant = ["a line"]
        others = "old", tiny.CONFIG, transplant, "vocabulary"
        assert calls[1:] == [("model", *others)]


@pytest.mark.parametrize(
    "do_train, layers, rates",
    [(True, [1, 2, 2], [0.4, 0.4, 0.2]), (False, [2], [None])],
)
def test_only_training_follows_the_schedules(do_train, layers, rates):
    """Without training, an evaluation runs all layers with the records' masks.

    Static records, which a mask schedule could not train, are accepted too.
    """
    dynamic = {"masking": "dynamic"}
    folders = {"records": metadata.Metadata(16, 3, 50, "", {}, dynamic)}
    schedules = {"depth_schedule": "1:0.5,2", "mask_schedule": "0.4:0.7,0.2"}
    how = {"do_train": do_train, "do_eval": True} | schedules
    setup = make_setup(tiny.CONFIG, folders, **how)
    assert [phase.layers for phase in setup.phases()] == layers
    assert [phase.masked_lm_prob for phase in setup.phases()] == rates
    if not do_train:
        static = {"records": metadata.Metadata(16, 3, 50, "", {})}
        make_setup(tiny.CONFIG, static, **how).phases()
    assert setup.phases()[0].batch_size == 4096
    assert setup.held_out == 0 and setup.writes is do_train


@pytest.mark.parametrize("damaged", ["first", "last"])
def test_damage_in_any_folder_is_explained(tmp_path, damaged):
    """An error about a file of any folder of the run names the file."""
    splits = {"train": (RecordFile("train-x", 20, 1000),)}
    folders = {}
    for name in ("first", "last"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train-x").touch()
        folder = str(tmp_path / name)
        folders[folder] = metadata.Metadata(16, 3, 50, "", splits)
    path = tmp_path / damaged / "train-x"
    with pytest.raises(InputError, match=f"{path}"):
        with input_pipeline.errors_explained(folders):
            raise tf.errors.DataLossError(None, None, f"corrupted at {path}")


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer_fingerprint": "another"},
        {"vocab_size": 49},
        {"settings": {"masking": "dynamic"}},
    ],
)
def test_the_folders_of_a_run_must_be_alike(changes):
    """Folders differ in lengths, but not in vocabulary or kind of masking.

    The fingerprint of the records covers all folders.
    """
    first = metadata.Metadata(16, 3, 50, "one", {})
    longer = dataclasses.replace(first, max_seq_length=32)
    run_setup.check_alike({"a": first, "b": longer})
    found = run_setup.fingerprint({"a": first, "b": longer})
    assert found == f"{first.fingerprint()}, then {longer.fingerprint()}"
    other = dataclasses.replace(longer, **changes)
    with pytest.raises(InputError, match="data_dir=b unlike a$"):
        run_setup.check_alike({"a": first, "b": other})


def test_a_seed_determines_weights_and_data(monkeypatch):
    """The seed of the run determines the initial weights and the data."""
    monkeypatch.setattr(
        run_setup, "make_trainer", lambda *_: keras.random.normal([3]).numpy()
    )
    monkeypatch.setattr(input_pipeline, "train_batches", lambda **x: x)
    setup = make_setup(tiny.CONFIG, {"records": metadata.Metadata(*[1] * 5)})
    seeds = [setup.with_settings({"random_seed": n}) for n in (7, 7, 8)]
    one, same, other = (each.trainer() for each in seeds)
    assert (one == same).all() and (one != other).all()
    read = [each.batches(start=3) for each in seeds[1:]]
    assert read == [{"start": 3, "seed": seed} for seed in (7, 8)]


def test_workers_compare_what_determines_the_run(monkeypatch):
    """Workers compare settings and contents of files, not paths or devices.

    Workers compare `dtype` before each worker resolves `auto`.
    """
    compared = []
    monkeypatch.setattr(
        run_setup.distribution,
        "require_alike",
        lambda strategy, values: compared.append((strategy, values)),
    )
    folders = {"records": metadata.Metadata(16, 3, 50, "", {})}
    setup = make_setup(tiny.CONFIG, folders).with_settings({"dtype": "auto"})
    connected = run_setup.connect_devices(setup, None)
    assert connected.training.dtype in ("float32", "bfloat16")
    assert connected.strategy is tf.distribute.get_strategy()
    ((strategy, values),) = compared
    assert strategy is None
    assert values["random_seed"] == 12345 and values["do_train"] is True
    assert values["dtype"] == "auto"
    assert values["albert_config_file"] == tiny.CONFIG
    assert values["data_dir"].startswith("0 records of 16 tokens, ")
    assert values["shares of data_dir"] == [1.0]
    assert values["held-out records"] == [0]
    assert not {"output_dir", "init_checkpoint", "tpu_name"} & values.keys()


def test_every_setting_with_a_change_is_a_fact(monkeypatch, tmp_path):
    """A run's `facts` include every setting with `change` in its metadata."""
    folders = {"records": metadata.Metadata(16, 3, 50, "", {})}
    output = {"output_dir": str(tmp_path), "compat": "google"}
    setup = make_setup(tiny.CONFIG, folders, **output)
    setup = dataclasses.replace(setup, strategy=tf.distribute.get_strategy())
    made = {"replicas", "per_replica", "train_records", "hosts"}
    made |= {"schedule of phases", *vars(setup.optimizer)}
    assert make_run(setup, None).facts.keys() >= made
    parts = setup.pretraining, setup.optimizer, setup.training, setup.devices
    for field in itertools.chain(*map(dataclasses.fields, parts)):
        changed = {**field.metadata, "change": "another loss"}
        monkeypatch.setattr(field, "metadata", changed)
    facts = make_run(setup, None).facts
    assert facts.keys() == made | setup.settings.keys()
    assert facts["compat"] == ("google", "another loss")


def test_records_without_a_tokenizer_are_noted(tmp_path, capsys):
    """The tokenizer is read from the records' folder or from the source.

    If neither has a tokenizer, a note is printed.
    """
    records, source = tmp_path / "records", tmp_path / "source"
    records.mkdir()
    source.mkdir()
    folders = str(records), str(source)
    assert run_setup.vocabulary_of(folders[0], None) is None
    assert "no tokenizer is known" in capsys.readouterr().out
    vocabularies.english().save(folders[1])
    found = run_setup.vocabulary_of(*folders)
    assert found.vocab_size == vocabularies.english().vocab_size
    vocabularies.chinese().save(folders[0])
    found = run_setup.vocabulary_of(*folders)
    assert found.vocab_size == vocabularies.chinese().vocab_size
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_resumed_run_reads_on_and_starts_from_no_other_model(
    data_dir, config, trained, tmp_path, monkeypatch
):
    """A resumed run continues its data and ignores `init_checkpoint`.

    The folder may even have been removed in the meantime.
    """
    source, output = tmp_path / "source", tmp_path / "model"
    shutil.copytree(trained[1], source)
    starts, sources = [], []

    def batches(data_dir, metadata, *, start, seed, **kwargs):
        starts.append((start, seed))
        return read(data_dir, metadata, start=start, seed=seed, **kwargs)

    def start_weights(model, model_dir, *others):
        sources.append(model_dir)
        return begin(model, model_dir, *others)

    read, begin = input_pipeline.train_batches, warm_start.start_weights
    monkeypatch.setattr(input_pipeline, "train_batches", batches)
    monkeypatch.setattr(warm_start, "start_weights", start_weights)
    for stop_step in (2, 3):
        run(
            data_dir,
            config[0],
            output,
            training={"stop_step": stop_step},
            init_checkpoint=str(source),
        )
        shutil.rmtree(source, ignore_errors=True)
    seed = tiny_pretraining.DEFAULTS["random_seed"]
    assert starts == [(0, seed), (16, seed)]
    assert sources == [str(source)]
    assert values(output)["optimizer/iterations"] == 3


def test_a_users_hook_acts_after_evaluations_and_before_checkpoints(
    data_dir, config, tmp_path
):
    """A user's hook acts after evaluations and before checkpoints.

    The hook can stop the run, and the same call resumes it. A third call trains
    nothing and returns the same metrics. The flags of the run are written
    before its first step.
    """
    calls, flags = [], tmp_path / "model" / "run.flags"

    class Aim(Hook):
        every = 1

        def after(self, run, window):
            assert "--num_train_steps=4\n" in flags.read_text()
            saved = checkpoint_files.latest(run.output_dir)
            calls.append((run.step, bool(run.metrics), saved and saved[-1]))
            if run.step == 2:
                run.stop("the aim")

    _, metrics, again = (
        run(data_dir, config[0], tmp_path / "model", hooks=[Aim()])
        for _ in range(3)
    )
    assert calls == [
        *((1, False, None), (2, True, None)),
        *((3, True, "2"), (4, True, "2")),
    ]
    assert metrics and metrics == again
    assert values(tmp_path / "model")["optimizer/iterations"] == 4


@pytest.mark.slow
def test_a_run_that_stops_early_is_not_evaluated(data_dir, config, tmp_path):
    """With `do_eval`, only complete training is followed by an evaluation.

    After SIGTERM or at `max_hours`, there is no time for an evaluation.
    """

    class Stop(Hook):
        every = 3

        def after(self, run, window):
            run.stop("a signal")

    how = {"do_eval": True, "eval_steps": 5}
    output = tmp_path / "model"
    assert run(data_dir, config[0], output, hooks=[Stop()], **how) == {}
    assert values(output)["optimizer/iterations"] == 3
    assert run(data_dir, config[0], output, **how)["loss"] > 0


def test_a_run_without_held_out_records_trains(
    data_dir, config, tmp_path, monkeypatch
):
    """Without held-out records, a run trains but does not evaluate."""
    metadata = read_metadata(data_dir)
    splits = metadata.splits | {EVAL: ()}
    metadata = dataclasses.replace(metadata, splits=splits)
    monkeypatch.setattr(run_setup, "read_metadata", lambda data_dir: metadata)
    training = {"stop_step": 2, "eval_steps": 1}
    assert run(data_dir, config[0], tmp_path / "model", training) == {}
    with pytest.raises(InputError, match="needs held-out records"):
        run(data_dir, config[0], tmp_path / "model", do_eval=True)
