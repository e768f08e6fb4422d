"""The output of `--help`."""

import dataclasses
import pathlib
import subprocess
import sys

import test_command_line

from albert_tf.base import settings
from albert_tf.base.program import command
from albert_tf.base.settings import (
    DEVICES,
    FILES,
    LENGTH,
    group_of,
    setting,
    variant,
)


def run(*arguments):
    """Run the program that uses `Kinds`."""
    return subprocess.run(
        [sys.executable, "-c", test_command_line.SCRIPT, *arguments],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parent,
    )


def test_help_is_a_page_of_the_programs_flags():
    """The help is printed to standard output, and the exit status is 0."""
    ended = run("--rate=x", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    for said in (
        "  --model_dir=TEXT\n      A folder. Required.\n",
        "  --steps=INTEGER\n      A number. Also --train_step.\n",
        "  --rate=NUMBER\n      A number. Default: 2.\n",
        "  --[no]train\n      A switch. Default: false.\n",
        "  --policy=NUMBER or auto\n      Either. Default: auto.\n",
    ):
        assert said in ended.stdout
    assert "--alsologtostderr" in run("--helpfull").stdout


def test_flags_are_grouped_and_defaults_explained():
    """Help groups keep their order, and a program may explain its defaults."""

    @dataclasses.dataclass(frozen=True)
    class Steps(settings.Validated):
        help_group = LENGTH
        steps: int | None = setting(7, "Steps.", means="a week")
        hours: float = setting(0.0, "Hours.", means="no limit")
        chips: int = setting(1, "Chips.", group=DEVICES)

    @dataclasses.dataclass(frozen=True)
    class More(Steps):
        folder: str = variant(settings.OUTPUT_DIR, "x", help="Folder.")

    about = {"defaults": {"steps": None}, "means": {"steps": "all"}}
    program = command(More, **about)(lambda config: config).program
    fields = program.fields()
    assert {n: group_of(More, f) for n, f in fields.items()} == {
        "steps": LENGTH,
        "hours": LENGTH,
        "chips": DEVICES,
        "folder": FILES,
    }
    assert list(program.groups()) == [FILES, LENGTH, DEVICES]
    words = {n: program.default_words(f) for n, f in fields.items()}
    assert words["steps"] == "all" and words["hours"] == "0, no limit"
    assert fields["folder"].metadata["help"] == "Folder."
    assert fields["folder"].metadata["required"]
