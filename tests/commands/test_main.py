"""`python -m albert_tf` lists the programs."""

import os
import re
import subprocess
import sys

from project_file import PROJECT

from albert_tf import __main__
from albert_tf.base import program


def test_every_program_is_listed():
    """The list has the name and the purpose of each installed command."""
    found = re.findall(
        r"^python -m (\S+)\n    [A-Z].*[^.]\.$", __main__.programs(), re.M
    )
    commands = [path.split(":")[0] for path in PROJECT["scripts"].values()]
    assert found == sorted(commands)


def test_the_reader_of_the_list_may_leave_early():
    """If nobody reads the list, as after `| head`, no error is printed."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-u", "-m", "albert_tf"],
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (program.UNREAD, b"")
