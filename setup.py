"""Build steps that `pyproject.toml` cannot express.

The build adds two things to the package: `configs/`, and a stub for type
checkers, which cannot follow names that are imported on first use. Apache
Beam's `--setup_file` also needs this file.
"""

import ast
import pathlib

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

INIT = pathlib.Path(__file__).parent / "albert_tf" / "__init__.py"


def stub(source: str) -> str:
    """Return a package's stub, given its source, which defines `PUBLIC`."""
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "PUBLIC"
    )
    lines = [f"from {names[n]} import {n} as {n}" for n in sorted(names)]
    lines += ["PUBLIC: dict[str, str]", "__version__: str", ""]
    return "\n".join(lines)


class BuildWithStub(build_py):
    """A build command that also writes the stub next to a wheel's modules."""

    def run(self):
        super().run()
        if not self.editable_mode:
            path = pathlib.Path(self.build_lib, "albert_tf", "__init__.pyi")
            path.write_text(stub(INIT.read_text()))


setup(
    cmdclass={"build_py": BuildWithStub},
    packages=[*find_packages(include=["albert_tf*"]), "albert_tf.configs"],
    package_dir={"albert_tf.configs": "configs"},
)
