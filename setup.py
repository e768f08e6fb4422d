"""What `pyproject.toml` cannot say: that `configs/` is a part of the package.

And that type checkers, which cannot see names load when they are first used,
get a stub of them. Apache Beam's `--setup_file` wants this file too.
"""

import ast
import pathlib

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

INIT = pathlib.Path(__file__).parent / "albert_tf" / "__init__.py"


def stub(source: str) -> str:
    """Return the stub of a package from its source, which has `PUBLIC`."""
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
    """Write the stub beside the modules of a wheel."""

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
