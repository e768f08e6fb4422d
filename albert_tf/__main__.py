"""List the programs: `python -m albert_tf`."""

import ast
import pathlib

from albert_tf.base import program


def programs() -> str:
    """Return the name and purpose of each program."""
    lines = []
    for path in sorted(pathlib.Path(__file__).parent.glob("[!_]*.py")):
        about = ast.get_docstring(ast.parse(path.read_text("utf-8")))
        purpose = about.splitlines()[0].split(": `")[0].rstrip(".")
        lines.append(f"python -m albert_tf.{path.stem}\n    {purpose}.")
    return "\n".join(lines)


if __name__ == "__main__":
    program.run(lambda: print(programs()), prepare=programs)
