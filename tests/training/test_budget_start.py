"""Runs with a time budget: state, resumption and output."""

import dataclasses
import pathlib
import shutil
import types

import pytest
import tensorflow as tf
import tiny
import tiny_pretraining
from tiny_pretraining import make_setup, values
from tiny_training import Crash

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.data.records.metadata import Metadata
from albert_tf.training import checkpoint_files, hooks, run
from albert_tf.training.clock import BudgetClock
from albert_tf.training.hooks import Save
from albert_tf.training.pretraining import budget, budget_rules
from albert_tf.training.pretraining.budget import Budget
from albert_tf.training.run import Run

SECONDS = 20.0


def go(folder, clock, dies_at=99):
    """Train with steps of half a second; return the run and its variables."""
    trainer = tiny.new_trainer()
    make_steps = trainer.run_steps

    def run_steps(iterator, steps):
        clock.now += 0.5 * int(steps)
        return make_steps(iterator, steps)

    prefix = checkpoint_files.latest(str(folder))
    facts = checkpoint_files.read_facts(prefix)["budget"] if prefix else {}
    timed = BudgetClock(
        20,
        *facts.get("course", ()),
        seconds=SECONDS,
        start_time=clock.now,
        step_seconds=0.5,
        save_steps=7,
        closing=0.0,
        used_before=facts.get("seconds"),
        choices={"a": 1},
        now=lambda: clock.now,
    )
    started = Run(trainer, str(folder), clock=timed)
    assert started.progress.total == started.last
    timed.turn(timed.step, {}, over=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "run_steps", run_steps)
        more = Save(7, 5), Crash(dies_at)
        run.train(started, tiny.train_batches, more)
    return started, tiny.values(trainer)


def test_a_killed_run_goes_on_with_its_end_and_its_rates(tmp_path, monkeypatch):
    """Killing and resuming a run does not change a single bit of its result.

    Twice the planned steps fit into 20 s, so the clock has moved the last step.
    """
    clock = types.SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    for module in (run, hooks):
        monkeypatch.setattr(module, "time", clock)
    whole, expected = go(tmp_path / "whole", clock)
    assert whole.step == whole.last == whole.progress.total == 40
    assert clock.now == 100 + SECONDS
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", clock, dies_at=21)
    prefix = checkpoint_files.latest(str(tmp_path / "broken"))
    facts = checkpoint_files.read_facts(prefix)["budget"]
    assert prefix.endswith("ckpt-21") and not facts["over"]
    assert facts["seconds"] == 10.5 and facts["choices"] == {"a": 1}
    clock.now += 3600
    broken, found = go(tmp_path / "broken", clock)
    assert broken.last == 40
    assert tiny.largest_difference(found, expected) == 0.0


RECORDS = {
    masking: Metadata(16, 3, 50, "", {}, {"masking": masking})
    for masking in ("static", "dynamic")
}
BEFORE = "0.2:0.5,0.15"  # as chosen by an earlier version


@pytest.mark.parametrize(
    "folders, fixed, earlier, masks, depths",
    [
        (["dynamic"], set(), None, budget_rules.MASK_SCHEDULE, "2:0.3,4"),
        (["static"], set(), None, None, "2:0.3,4"),
        (["dynamic", "static"], set(), None, None, "2:0.3,4"),
        (
            ["dynamic"],
            {"depth_schedule"},
            None,
            budget_rules.MASK_SCHEDULE,
            None,
        ),
        (["dynamic"], set(), {"mask_schedule": BEFORE}, BEFORE, None),
        (["dynamic"], set(), {}, None, None),
    ],
)
def test_schedules_are_chosen_once(folders, fixed, earlier, masks, depths):
    """Schedules are chosen for new runs; a resumed run keeps its schedules.

    Schedules that the user sets are kept. The mask rate is scheduled only if
    all records have dynamic masks.
    """
    limited = Budget(1.0, fixed)
    limited.earlier = None if earlier is None else {"choices": earlier}
    config = dataclasses.replace(tiny.CONFIG, num_hidden_layers=4)
    records = {name: RECORDS[name] for name in folders}
    chosen = limited.with_start(make_setup(config, records)).pretraining
    assert (chosen.mask_schedule, chosen.depth_schedule) == (masks, depths)
    informed = earlier is None
    assert chosen.initial_weights == ("informed" if informed else "random")


def test_a_setting_for_one_process_does_not_undo_a_choice():
    """A resumed run saves all choices, even choices that its flags override.

    Otherwise, a later process without these flags would use defaults.
    """
    records = {"records": dataclasses.replace(RECORDS["static"], splits={})}
    setup = make_setup(tiny.CONFIG, records)
    setup = dataclasses.replace(setup, strategy=tf.distribute.get_strategy())
    earlier = {
        "choices": {"learning_rate": 0.002, "beta_2": 0.98},
        "step_seconds": 0.5,
        "seconds": 9.0,
    }
    used = []
    for fixed in ({"learning_rate"}, set()):
        limited = Budget(1.0, fixed)
        limited.earlier = earlier
        optimizer = limited.choose_settings(setup).optimizer
        used.append((optimizer.learning_rate, optimizer.beta_2))
        earlier = limited.clock.state()["budget"]
    default = setup.optimizer.learning_rate
    assert used == [(default, 0.98), (0.002, 0.98)]


def test_a_model_that_is_there_keeps_its_depth():
    """A model from `init_checkpoint` trains with all of its layers."""
    folders = {"dynamic": RECORDS["dynamic"]}
    going_on = make_setup(tiny.CONFIG, folders, init_checkpoint="model")
    assert Budget(1.0, set()).with_start(going_on) == going_on


def pretrain(data_dir, config, output, **more):
    """Run `pretrain` with a budget of about 14 seconds; return its result."""
    return albert_tf.pretrain(
        data_dir=data_dir,
        albert_config_file=config[0],
        output_dir=output,
        train_batch_size=8,
        eval_batch_size=8,
        **{"budget_hours": 0.004} | more,
    )


@pytest.mark.slow
def test_a_budget_chooses_ends_and_is_replayed(
    data_dir, deep_config, tmp_path, capsys
):
    """The flagfile records the chosen settings and the number of steps.

    The user's settings are kept, and a second run trains nothing.
    """
    output = tmp_path / "model"
    pretrain(
        data_dir, deep_config, output, learning_rate=0.003, num_warmup_steps=1
    )
    printed = capsys.readouterr().out
    assert "Chosen for budget_hours=0.004:" in printed
    assert "--optimizer=muon " in printed and "--dtype=" in printed
    assert "--learning_rate=" not in printed
    assert (
        "--depth_schedule=1:0.3,2 " in printed
        and "mask_schedule" not in printed
    )
    flags = dict(
        line[2:].split("=", 1)
        for line in (output / "run.flags").read_text().splitlines()
    )
    step = int(values(output)["optimizer/iterations"])
    assert flags["budget_hours"] == "0.0"
    assert flags["num_train_steps"] == str(step)
    assert flags["depth_schedule"] == "1:0.3,2"
    assert flags["learning_rate"] == "0.003" and flags["beta_2"] != "0.999"
    before = values(output)
    pretrain(
        data_dir, deep_config, output, learning_rate=0.003, num_warmup_steps=1
    )
    printed = capsys.readouterr()
    assert "Chosen" not in printed.out and "Note:" not in printed.err
    assert "is used up, and its rate has decayed" in printed.out
    assert tiny.largest_difference(before, values(output)) == 0.0


@pytest.mark.slow
def test_a_complete_run_repeats_its_number_of_steps(
    data_dir, trained, tmp_path
):
    """The flags of a completed run with a budget repeat its number of steps.

    The run's process was killed before it could correct the estimate in the
    flags, so another process corrects it.
    """
    output = shutil.copytree(trained[1], tmp_path / "model")
    facts = {
        "seconds": 9.0,
        "step_seconds": 1.0,
        "course": [4, 20.0, 1.0],
        "over": True,
        "choices": {"num_train_steps": 20},
    }
    prefix = str(output / "ckpt-4")
    checkpoint_files.write_about(prefix, {"budget": facts})
    (output / "run.flags").write_text("--num_train_steps=20\n")
    pretrain(data_dir, (str(trained[0]),), output)
    flags = (output / "run.flags").read_text()
    assert "--num_train_steps=4\n" in flags
    assert flags in (output / "README.md").read_text()


def test_a_budget_leaves_other_runs_alone(data_dir, config, trained):
    """A run without a budget cannot be resumed with a budget.

    A budget and a number of steps cannot be set together.
    """
    with pytest.raises(
        InputError, match="can only resume a run that had a budget"
    ):
        pretrain(data_dir, (str(trained[0]),), trained[1])
    with pytest.raises(InputError, match="follows from `budget_hours`"):
        tiny_pretraining.run(data_dir, config[0], "x", budget_hours=1.0)


def test_records_that_are_damaged_are_named_while_measuring(
    data_dir, config, tmp_path, monkeypatch
):
    """The error names a damaged file of records that a measurement reads."""
    path = next(pathlib.Path(data_dir).glob("train-*"))

    def read(*_):
        raise tf.errors.DataLossError(None, None, f"corrupted record at {path}")

    monkeypatch.setattr(budget, "time_steps", read)
    with pytest.raises(InputError, match=f"Received: {path}"):
        pretrain(data_dir, config, tmp_path / "model")


@pytest.mark.parametrize(
    "do_train, fixed, noted",
    [(True, [], True), (True, ["num_train_steps"], False), (False, [], False)],
)
def test_a_length_that_nobody_chose_is_noted(do_train, fixed, noted, capsys):
    """If the user sets no length for a training run, the default is printed."""
    setup = make_setup(tiny.CONFIG, RECORDS, do_train=do_train, do_eval=True)
    assert Budget(0.0, {*fixed}).choose_start(setup) == setup
    message = "125,000 steps of 4,096 examples; `--budget_hours` or"
    assert (message in capsys.readouterr().out) == noted
