"""List the programs: `python -m albert_tf`."""

import ast
import pathlib


def main() -> None:
    """Print the name and purpose of each program."""
    for path in sorted(pathlib.Path(__file__).parent.glob("[!_]*.py")):
        about = ast.get_docstring(ast.parse(path.read_text("utf-8")))
        purpose = about.splitlines()[0].split(": `")[0].rstrip(".")
        print(f"python -m albert_tf.{path.stem}\n    {purpose}.")


if __name__ == "__main__":
    main()
