"""A corpus of random words, and fast builds of it."""

import contextlib
import dataclasses
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.data.builder import build, shards, text_blocks
from albert_tf.data.builder.build_settings import BuildConfig
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.text_formats import ReadingConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.text.tokenizers import TokenizerConfig

ROOT = Path(__file__).parent.parent
PAIRS = PairsConfig(max_seq_length=32)
MASKING = MaskingConfig()
TOKENIZER_FILES = {"vocab.txt", "tokenizer.json"}


def write_corpus(folder):
    """Write a vocabulary and two text files of random words."""
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(300)] + ["##x", "##y", "."]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join(special + words) + "\n")

    def sentence():
        count = rng.integers(2, 12)
        endings = rng.choice(["", "", "x", "xy"], count)
        chosen = rng.integers(0, 300, count)
        return (
            " ".join(f"w{w}{e}" for w, e in zip(chosen, endings, strict=True))
            + " ."
        )

    for name, count in (("a.txt", 25), ("b.txt", 15)):
        documents = [
            "\n".join(sentence() for _ in range(rng.integers(1, 20)))
            for _ in range(count)
        ]
        (folder / name).write_text("\n\n".join(documents) + "\n")


def settings(corpus, output, **changes):
    """Return arguments for `build.run`, some of them changed.

    Paths are converted to strings.
    """
    changes = {
        k: str(v) if isinstance(v, Path) else v for k, v in changes.items()
    }
    configs = (
        BuildConfig(
            input_file=f"{corpus}/a.txt,{corpus}/b.txt",
            output_dir=str(output),
            dupe_factor=2,
            eval_fraction=0.1,
            num_shards=3,
            num_processes=1,
        ),
        TokenizerConfig(vocab_file=f"{corpus}/vocab.txt"),
        PAIRS,
        MASKING,
        ReadingConfig(),
    )
    return [
        dataclasses.replace(
            config, **{k: v for k, v in changes.items() if hasattr(config, k)}
        )
        for config in configs
    ]


def make_records(corpus, output, **changes):
    """Build records of a corpus; return their metadata."""
    return build.run(*settings(corpus, output, **changes))


class Interrupted(Exception):
    """An exception that simulates the end of a killed program."""


@contextlib.contextmanager
def interrupted(module, name, calls):
    """Interrupt the block when it calls a function again after some calls."""
    function, numbers = getattr(module, name), itertools.count()

    def failing(*args):
        if next(numbers) >= calls:
            raise Interrupted
        return function(*args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(module, name, failing)
        yield


def change_times(paths):
    """Return {path: time of its last change}."""
    return {path: path.stat().st_mtime_ns for path in paths}


def contents(folder):
    """Return {name: bytes} for the files in a folder."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def records_of(folder):
    """Return {name: bytes} of all files except `metadata.json`."""
    found = contents(folder)
    return {k: v for k, v in found.items() if k != "metadata.json"}


def unmasked_features(path):
    """Yield {name: array} for each record in a file, with its masks removed.

    The additional array `masked` contains the masked positions.
    """
    for data in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        feature = tf.train.Example.FromString(data).features.feature
        arrays = {
            name: np.array(values.int64_list.value or values.float_list.value)
            for name, values in feature.items()
        }
        real = arrays["masked_lm_weights"] > 0
        arrays["masked"] = arrays["masked_lm_positions"][real]
        arrays["input_ids"][arrays["masked"]] = arrays["masked_lm_ids"][real]
        yield arrays


def unmasked_pairs(path):
    """Return A, B and the label of each record in a file."""
    found = []
    for arrays in unmasked_features(path):
        ids, mask = arrays["input_ids"], arrays["input_mask"] == 1
        a = ids[mask & (arrays["segment_ids"] == 0)][1:-1].tolist()
        b = ids[mask & (arrays["segment_ids"] == 1)][:-1].tolist()
        found.append((a, b, int(arrays["next_sentence_labels"][0])))
    return found


def unmasked(path):
    """Return A + B, in the order of the text, for each record in a file."""
    return [
        tuple(b + a if swapped else a + b)
        for a, b, swapped in unmasked_pairs(path)
    ]


@contextlib.contextmanager
def small_blocks():
    """Read the text in many blocks, and flush the shards often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "BLOCK_BYTES", 500)
        patch.setattr(shards, "BUFFER_BYTES", 2000)
        yield patch


def command(corpus, output, *flags):
    """Return the command line that runs the builder."""
    return [
        sys.executable,
        str(ROOT / "create_pretraining_data.py"),
        f"--input_file={corpus}/*.txt",
        f"--output_dir={output}",
        *flags,
    ]
