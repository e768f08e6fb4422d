"""Programs accept the commands in README.md and docs/."""

import importlib
import json
import re
import runpy
import shlex

import programs
import pytest
from project_file import PROJECT, ROOT

PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "generated" not in path.parts
]

# Parses each command with its program's flags and creates its settings, which
# checks the flags. The programs themselves do not run.
SCRIPT = """
import importlib, json, sys
import programs
from absl import flags

def mistake(name, arguments):
    program = importlib.import_module(name).cli.__self__
    given = [x for x in arguments if x != "..."]
    if len(given) < len(arguments):  # "..." stands for the other flags
        given += [
            f"--{flag}=x"
            for flag, field in program.fields().items()
            if field.metadata["required"]
            and not any(x.startswith(f"--{flag}=") for x in given)
        ]
    with programs.temporary_flags():
        program.define_flags()
        try:
            flags.FLAGS([name, *given])
            program.from_flags()
        except (ValueError, flags.Error) as error:
            return str(error)
    return ""

found = [mistake(*x) for x in json.load(sys.stdin)]
print("\\n" + json.dumps(found))
"""


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Return (module, arguments) for each command that runs our programs."""
    found = []
    for block in re.finditer(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        for line in block[1].replace("\\\n", " ").splitlines():
            match = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*python (.*)", line)
            words = shlex.split(match[1]) if match else ["-c"]
            if words[0] == "-m" and words[1].startswith("albert_tf."):
                found.append((words[1], words[2:]))
            elif re.fullmatch(r"\w+\.py", words[0]):
                found.append((words[0].removesuffix(".py"), words[1:]))
    return found


@pytest.fixture(scope="module")
def mistakes():
    """Return {page: {command: error}} for all documented commands.

    The error of a valid command is an empty string.
    """
    by_page = {p.name: commands(p.read_text(encoding="utf-8")) for p in PAGES}
    requests = json.dumps([c for page in by_page.values() for c in page])
    result = programs.run("-c", SCRIPT, cwd=ROOT, stdin=requests)
    assert result.returncode == 0, result.stderr
    answers = iter(json.loads(result.stdout.splitlines()[-1]))
    return {
        name: {" ".join((module, *words)): next(answers) for module, words in x}
        for name, x in by_page.items()
    }


@pytest.mark.parametrize("page", [path.name for path in PAGES])
def test_documented_commands_are_taken(mistakes, page):
    """Documented flags exist, and their values are legal and consistent."""
    assert {c: m for c, m in mistakes[page].items() if m} == {}


def test_commands_fit_any_number_of_files(mistakes):
    """Commands do not assume how many files a build of records writes.

    The number depends on the size of the text and on the number of passes.
    """
    found = {c for page in mistakes.values() for c in page}
    assert not [c for c in found if re.search(r"-of-\d+", c)]


@pytest.mark.parametrize("target", PROJECT["scripts"].values())
def test_a_module_is_a_program_only_as_a_script(target, monkeypatch):
    """`python -m` runs the program, and an import does not."""
    pytest.importorskip("gradio")
    module, ran = importlib.import_module(target.removesuffix(":cli")), []
    home = module.cli.__self__.function.__module__
    monkeypatch.setattr(f"{home}.cli", lambda: ran.append(target))
    for name, wanted in (("a", []), ("__main__", [target]), ("z", [target])):
        runpy.run_path(module.__file__, run_name=name)
        assert ran == wanted


def test_every_program_is_documented_by_a_command(mistakes):
    """Each program occurs in a documented command."""
    found = {c.split()[0] for page in mistakes.values() for c in page}
    targets = PROJECT["scripts"].values()
    modules = {target.removesuffix(":cli") for target in targets}
    scripts = {"create_pretraining_data", "pretrain", "finetune"}
    assert found == {
        name.removeprefix("albert_tf.") if name[10:] in scripts else name
        for name in modules
    }
