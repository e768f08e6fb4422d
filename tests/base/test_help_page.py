"""The output of `--help`."""

import dataclasses

from test_command_line import run_script

from albert_tf.base import help_page, settings
from albert_tf.base.program import command
from albert_tf.base.settings import (
    DEVICES,
    FILES,
    LENGTH,
    SERVING,
    group_of,
    setting,
    variant,
)


def test_help_is_a_page_of_the_programs_flags():
    """`--help` describes the flags on standard output and exits with status 0.

    An invalid flag beside `--help` has no effect.
    """
    ended = run_script("--rate=x", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    for entry in (
        "  --model_dir=TEXT\n      A folder. Required.\n",
        "  --steps=INTEGER\n      A number. Also --train_step.\n",
        "  --rate=NUMBER\n      A number. Default: 2.\n",
        "  --[no]train\n      A switch. Default: false.\n",
        "  --policy=NUMBER or auto\n      Either. Default: auto.\n",
    ):
        assert entry in ended.stdout
    assert run_script("-h").stdout == ended.stdout
    assert "--alsologtostderr" in run_script("--helpfull").stdout


def test_long_words_are_not_broken():
    """Lines have at most 79 characters, except a word that is longer.

    Choices and lists appear in the form that flags accept.
    """
    long, longer = "a" * 70, "d" * 90
    text = f"{long} bb {long[1:]} bb c {longer} {long} e-e."

    @dataclasses.dataclass(frozen=True)
    class Words:
        names: tuple = setting(("x", "y"), text)
        kind: str = setting("u", "Kind.", choices=("u", "v"))
        rate: float = setting(0.00001, "Rate.")

    lines = help_page.page(
        command(Words)(lambda config: config).program, "About."
    ).splitlines()
    assert lines[:4] == ["About.", "", f"{FILES}:", "  --names=A,B,..."]
    assert [line.removeprefix(" " * 6) for line in lines[4:10]] == [
        *(f"{long} bb", f"{long[1:]} bb", "c", longer, long),
        "e-e. Default: x,y.",
    ]
    assert lines[10:14] == [
        "  --kind=TEXT",
        "      Kind. One of: u, v. Default: u.",
        "  --rate=NUMBER",
        "      Rate. Default: 1e-05.",
    ]
    assert lines[14] == "" and lines[15].startswith("--flagfile=FILE reads")


def test_flags_are_grouped_and_defaults_explained():
    """Flags are listed by group; a program may describe a default in words.

    The words for a setting's own default do not describe a program's default.
    """

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

    @dataclasses.dataclass(frozen=True)
    class Other(Steps):
        help_group = SERVING
        hours: float = variant(fields["hours"], 1.0)

    groups = [group_of(Other, f) for f in dataclasses.fields(Other)]
    assert groups == [LENGTH, SERVING, DEVICES]  # of the class that declares it
    words = {n: program.default_words(f) for n, f in fields.items()}
    assert words["steps"] == "all" and words["hours"] == "0, no limit"
    limited = command(More, defaults={"hours": 2.0})(lambda config: config)
    assert limited.program.default_words(fields["hours"]) == "2"
    assert fields["folder"].metadata["help"] == "Folder."
    assert fields["folder"].metadata["required"]
