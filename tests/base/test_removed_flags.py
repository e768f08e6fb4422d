"""Old `run.flags` files and commands work, or an error names the flag."""

import re

import pytest
import test_command_line

from albert_tf.base.errors import InputError
from albert_tf.base.removed_flags import (
    ABSENT,
    RELEASED,
    REMOVED,
    RENAMED,
    without_removed,
)
from albert_tf.data.builder.build import create_pretraining_data
from albert_tf.finetuning.finetune import finetune
from albert_tf.training.pretraining.pretrain import pretrain
from albert_tf.training.pretraining.run_setup import PretrainingConfig


def replay(path, *lines):
    """Run the program with the settings `Kinds` and a flagfile of lines."""
    path.write_text("\n".join(("--model_dir=m", *lines)) + "\n")
    return test_command_line.run_script(f"--flagfile={path}")


def test_a_removed_flag_is_refused_by_name(tmp_path):
    """A removed flag raises a one-line error with its value and advice."""
    ended = replay(tmp_path / "run.flags", "--feature_cache_dir=/c")
    assert ended.returncode == 1 and not ended.stdout
    assert ended.stderr == (
        "error: `feature_cache_dir` was removed: each run now converts "
        "its examples itself, so omit the flag. Received: "
        "feature_cache_dir=/c\n"
    )
    with pytest.raises(InputError, match="`feature_cache_dir` was removed"):
        test_command_line.program(model_dir="m", feature_cache_dir="/c")


def test_a_removed_flag_that_changed_nothing_is_left_out(tmp_path):
    """A removed flag is ignored if its value is the former default.

    With any other value, the flag raises an error.
    """
    ended = replay(tmp_path / "run.flags", "--layer_decay=1.0", "--rate=3")
    assert not ended.stderr and "rate=3.0" in ended.stdout
    ended = replay(tmp_path / "run.flags", "--layer_decay=0.9", "--rate=3")
    assert ended.returncode == 1 and "layer_decay=0.9" in ended.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, flag in ABSENT.items() for value in flag.same],
)
def test_values_that_are_now_derived_are_left_out(name, value):
    """A removed flag is ignored if its value matches the current behavior."""
    flags = ["x", "do_train"]
    assert without_removed([f"--{name}={value}", "--x"], flags) == ["--x"]


@pytest.mark.parametrize("name", REMOVED)
def test_flags_of_the_program_itself_stay(name):
    """A program keeps a flag even if other programs removed the same name.

    Arguments without dashes or after `--` are not mistaken for flags.
    """
    arguments = [f"--{name}=x", "word", f"{name}=x", "--", "--other=x"]
    assert without_removed(arguments, {name}) == arguments
    assert without_removed(arguments[1:], ()) == arguments[1:]
    with pytest.raises(InputError, match=f"Received: {name}=x"):
        without_removed(arguments, ())
    with pytest.raises(InputError, match=f"`{name}` was removed"):
        without_removed([f"-{name}", "x"], ())


def test_all_released_flags_are_named_at_once():
    """One error message contains advice on all released flags in a command."""
    old = ["--init_checkpoint=m", "--nodo_lower_case", "--use_tpu", "--x=1"]
    with pytest.raises(InputError) as caught:
        without_removed(old, ["x", "do_train"])
    assert str(caught.value).splitlines() == [
        f"`{name}` is a flag of google-research/albert: "
        f"{RELEASED[name].advice}. Received: {name}={value}"
        for name, value in (
            ("init_checkpoint", "m"),
            ("do_lower_case", "false"),
            ("use_tpu", "true"),
        )
    ]
    same = ["--nouse_tpu", "--use_tpu=False", "--use_einsum"]
    assert without_removed([*same, "--x=1"], ["x", "dupe_factor"]) == ["--x=1"]
    assert without_removed(old, ["x"]) == old  # a program that is not ours
    assert without_removed(["--use_tpu=true"], ["use_tpu"])


def test_a_value_may_follow_a_released_flag():
    """The value of a released flag may be a separate argument."""
    flags = ["x", "do_train"]
    same = ["--input_file_mode", "r", "--predict_batch_size", "8"]
    with pytest.raises(InputError, match=r"^`predict_b[^\n]*size=8$"):
        without_removed([*same, "--x=1"], flags)
    assert without_removed([*same[:2], "--x=1"], flags) == ["--x=1"]
    # A switch has no value in a separate argument, and a flag is not a value.
    assert without_removed(["--nouse_tpu", "y"], flags) == ["y"]
    with pytest.raises(InputError, match="Received: master=$"):
        without_removed(["--master", "--x=1"], flags)


def test_advice_names_flags_that_exist():
    """Advice for flags of the released programs names only existing flags."""
    programs = (create_pretraining_data, finetune, pretrain)
    fields = {name for x in programs for name in x.program.fields()}
    for entry in RELEASED.values():
        assert set(re.findall(r"--(\w+)", entry.advice)) <= fields


def test_renamed_values_keep_their_meaning():
    """A renamed value in an old flagfile gets its current name."""
    for before, after in RENAMED.items():
        assert without_removed(["--x=1", before], ["x"]) == ["--x=1", after]
        name, value = after.lstrip("-").split("=")
        field = PretrainingConfig.__dataclass_fields__[name]
        assert value in field.metadata["choices"]
