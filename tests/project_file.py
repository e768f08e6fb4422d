"""The content of `pyproject.toml`."""

from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # on Python 3.10, pytest installs tomli
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
