"""`python -m albert_tf` lists the programs."""

import re

from project_file import PROJECT

from albert_tf import __main__


def test_every_program_is_listed(capsys):
    """The list has the name and the purpose of each installed command."""
    __main__.main()
    found = re.findall(
        r"^python -m (\S+)\n    [A-Z].*[^.]\.$", capsys.readouterr().out, re.M
    )
    commands = [path.split(":")[0] for path in PROJECT["scripts"].values()]
    assert found == sorted(commands)
