"""Builds of the benchmark of the data builder, each in its own process."""

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from albert_tf.base import settings
from albert_tf.base.settings import setting
from albert_tf.data import records
from albert_tf.data.builder.build_config import BuildConfig
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.text.tokenizers import TokenizerConfig

HERE = Path(__file__).parent
SCRIPT = HERE.parent / "create_pretraining_data.py"
TIMED = HERE / "data_builder_timed.py"


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What to measure, on what."""

    text: str = setting(None, "Text, one sentence per line.", required=True)
    spm_model_file: str = setting(None, "SentencePiece model.", required=True)
    tables: tuple = setting((), "Tables to print; all without the flag.")
    max_seq_length: int = setting(512, "Tokens of an example.")
    num_processes: tuple = setting(("1", "2"), "For the table `rate`.")
    builds: tuple = setting(
        ("static-1", "static-10", "static-40", "dynamic-1"),
        "Masking and duplicates of the builds of the table `rate`.",
    )
    memory_mb: tuple = setting(("5", "45", "450"), "Sizes of text.")
    launcher_mb: tuple = setting(("1", "10", "50"), "Likewise, with Beam.")
    small_mb: int = setting(
        2, "Text of the tables kill, processes, beam, masking and leak."
    )
    seed: int = setting(0, "Of the moments of the kills.")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a folder and remove it."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def cut(text: str, size: int, path: Path) -> Path:
    """Write the first bytes of a text, repeated where it is shorter."""
    whole = Path(text).read_bytes()
    with open(path, "wb") as file:
        while (left := size - file.tell()) > 0:
            part = whole[:left]
            file.write(part[: part.rfind(b"\n") + 1] or part)
            file.write(b"\n")
    return path


def configs(config: BenchmarkConfig, text, output, **changes) -> list:
    """Return the arguments of `build.run`; changes go to any of them."""
    found = [
        BuildConfig(input_file=str(text), output_dir=str(output)),
        TokenizerConfig(spm_model_file=config.spm_model_file),
        PairsConfig(max_seq_length=config.max_seq_length),
        MaskingConfig(),
    ]
    return [
        dataclasses.replace(
            one, **{k: v for k, v in changes.items() if hasattr(one, k)}
        )
        for one in found
    ]


def small(config: BenchmarkConfig, output: Path) -> Path:
    """Write the text of the tables that need little."""
    return cut(config.text, config.small_mb * 10**6, output / "text.txt")


def command(script: Path, arguments: list) -> list[str]:
    """Return a build as a command."""
    flags = settings.flagfile(*arguments).split("\n")
    return [sys.executable, str(script), *filter(None, flags)]


def start(arguments: list) -> subprocess.Popen:
    """Start a build as a user would, in a process group of its own."""
    return subprocess.Popen(
        command(SCRIPT, arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def timed_build(arguments: list) -> tuple[dict, records.Metadata]:
    """Return the seconds of a build, and what it made.

    For each part of the build, see `data_builder_timed`, the seconds are
    (wall, CPU).
    """
    done = subprocess.run(
        command(TIMED, arguments), stdout=subprocess.PIPE, text=True, check=True
    )
    seconds = json.loads(done.stdout.splitlines()[-1])
    return seconds, records.load_metadata(arguments[0].output_dir)
