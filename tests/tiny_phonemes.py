"""Rows of random words with their phonemes, and records made from rows."""

import contextlib
import io
import json

import numpy as np

from albert_tf.data.builder.build import create_pretraining_data
from albert_tf.data.records import tfrecord
from albert_tf.model.config import AlbertConfig
from albert_tf.model.phonemes import AlbertForPhonemes
from albert_tf.text.symbols import preset
from albert_tf.training import checkpoints

LETTERS = "abdegiklmnoprstuvz"
MODEL = {
    "vocab_size": 178,
    "embedding_size": 4,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}


def spell(word):
    """Return a word's phonemes: a, e and z become symbols that no word has."""
    return word.replace("a", "ɑ").replace("e", "ɛ").replace("z", "ˈʒ")


def make_rows(documents=30, seed=0):
    """Return the rows of random documents of up to seven sentences.

    Each row is a sentence.
    """
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice([*LETTERS], n)) for n in rng.integers(1, 7, 60)]
    rows = []
    for document in range(documents):
        for _ in range(rng.integers(1, 8)):
            picks = np.minimum(rng.exponential(12, rng.integers(3, 12)), 59)
            chosen = [words[int(i)] for i in picks]
            rows.append(
                {
                    "document": document,
                    "words": [*chosen, "."],
                    "phonemes": [*map(spell, chosen), "."],
                }
            )
    return rows


def write_rows(path, rows):
    """Write rows as JSON lines; return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build(output, *paths, **settings):
    """Build records of 32 positions.

    Return their metadata and the output that the program printed.
    """
    values = {
        "max_seq_length": 32,
        "num_words": 40,
        "eval_fraction": 0.2,
        "num_processes": 1,
    }
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        result = create_pretraining_data(
            task="phonemes",
            input_file=list(map(str, paths)),
            output_dir=str(output),
            **values | settings,
        )
    return result.metadata, shown.getvalue()


def save_model(folder):
    """Write a phoneme model with new weights; return its symbol table."""
    config, table = AlbertConfig(**MODEL), preset("plbert").with_words("abc")
    config.save(str(folder))
    table.save(str(folder))
    model = AlbertForPhonemes(config, len(table.words))
    checkpoints.save(str(folder), checkpoints.named_variables(model))
    return table


def examples(folder, pattern="*"):
    """Return (symbol ids, word ids) for each record in a folder."""
    return [
        (np.array(feature["symbol_ids"]), np.array(feature["word_ids"]))
        for path in sorted(folder.glob(f"{pattern}.tfrecord"))
        for feature in map(tfrecord.parse, tfrecord.read(str(path)))
    ]


def words_of(example, table):
    """Return the (phonemes, word) pair of each word of an example, in order."""
    ids, labels = example
    symbols = {i: s for s, i in table.symbols.items()}
    found, word = [], ""
    for i, label in zip(ids.tolist(), labels.tolist(), strict=True):
        if label:
            word, last = word + symbols[i], label
        elif word:
            found.append((word, table.words[last]))
            word = ""
    return found
