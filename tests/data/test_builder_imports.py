"""Builds do not import TensorFlow, which would cost time and memory."""

import os
import subprocess
import sys

import pytest
from tiny_corpus import ROOT, command

# Replaces TensorFlow, and records the processes that import it.
TENSORFLOW = """
import os
with open(os.environ["IMPORTED"], "a") as file:
    file.write(f"{os.getpid()}\\n")
raise ImportError("TensorFlow")
"""


@pytest.fixture
def without_tensorflow(tmp_path):
    """Return a function that runs a command without access to TensorFlow."""
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    imported = tmp_path / "imported"

    def run(*command):
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": path, "IMPORTED": str(imported)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert not imported.exists()
        return done.stdout

    return run


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("flags", [(), ("--masking=dynamic",)])
def test_no_process_of_a_build_imports_tensorflow(
    corpus, tmp_path, without_tensorflow, flags
):
    """Building and inspecting records do not import TensorFlow."""
    build = command(
        corpus,
        tmp_path / "out",
        f"--vocab_file={corpus}/vocab.txt",
        f"--input_file={corpus}/a.txt",
        "--max_seq_length=32",
        "--num_shards=3",
        "--dupe_factor=2",
        "--num_processes=2",
        *flags,
    )
    assert "train: " in without_tensorflow(*build)
    shown = without_tensorflow(
        *(sys.executable, "-m", "albert_tf.inspect_records"),
        *(f"{tmp_path}/out", "--num_examples=1"),
    )
    assert "Example 0" in shown


def test_workers_import_little(without_tensorflow):
    """Workers import neither TensorFlow nor scikit-learn."""
    names = without_tensorflow(
        sys.executable,
        "-c",
        "import sys, create_pretraining_data\n"
        "from albert_tf.data.builder import local_runner\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))",
    ).split()
    assert not {"tensorflow", "keras", "sklearn", "scipy"} & set(names)
    assert {"numpy", "sentencepiece", "google_crc32c"} <= set(names)
