"""A model directory and tables that are small enough to fine-tune on."""

import dataclasses
import pathlib

import keras
import numpy as np
import tiny

from albert_tf.base import files
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.text.tokenizers import Tokenizer, tokenizer_from_files
from albert_tf.training import checkpoints

SPECIAL = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()
GOOD, BAD = ("good", "great", "fine"), ("bad", "poor", "awful")
FILLERS = "the a film was very and it is not so plot of this one in".split()
PIECES = [*SPECIAL, *GOOD, *BAD, *FILLERS]


def make_tokenizer(directory: pathlib.Path) -> Tokenizer:
    """Return a WordPiece tokenizer for the words in the tables."""
    spare = [f"spare{i}" for i in range(tiny.CONFIG.vocab_size - len(PIECES))]
    path = directory / "words.txt"
    files.write_text(str(path), "\n".join(PIECES + spare) + "\n")
    return tokenizer_from_files(vocab_file=str(path))


def write_model(folder: pathlib.Path, config, tokenizer: Tokenizer) -> str:
    """Write a model directory as pretraining does; return the path."""
    keras.utils.set_random_seed(1)
    model = AlbertForPretraining(config)
    config.save(str(folder))
    tokenizer.save(str(folder))
    checkpoints.save(str(folder), checkpoints.named_variables(model))
    return str(folder)


def make_model_dir(directory: pathlib.Path, **changes) -> str:
    """Return a model directory whose vocabulary has the words of the tables.

    With `initializer_range=0.2`, weights are far enough from 0 for tasks to be
    learned quickly; with smaller values, the speed depends on the seed.
    """
    config = dataclasses.replace(tiny.CONFIG, **changes)
    tokenizer = make_tokenizer(directory)
    return write_model(directory / "pretrained", config, tokenizer)


def opinion(rng: np.random.Generator, word: str) -> str:
    """Return a sentence of filler words with `word` at a random position."""
    words = rng.choice(FILLERS, rng.integers(3, 8)).tolist()
    words.insert(rng.integers(len(words) + 1), word)
    return " ".join(words)


def opinions(number: int, seed: int) -> list[tuple[str, str]]:
    """Return (text, label) pairs; one word determines the label."""
    rng = np.random.default_rng(seed)
    chosen = [
        [("good", GOOD), ("bad", BAD)][i] for i in rng.integers(0, 2, number)
    ]
    return [(opinion(rng, rng.choice(w)), label) for label, w in chosen]


def write_tsv(path: str | pathlib.Path, *rows: tuple) -> str:
    """Write rows as tab-separated lines; return the path."""
    lines = ["\t".join(map(str, row)) + "\n" for row in rows]
    files.write_text(str(path), "".join(lines))
    return str(path)


def write_opinions(path: str | pathlib.Path, number: int, seed: int) -> str:
    """Write a table of opinions; return its path."""
    return write_tsv(path, ("text", "label"), *opinions(number, seed))
