"""Records of a made-up language, the same on every machine.

The words of a document are of one topic, and a sentence begins with its number
in the document: both of ALBERT's tasks can be learned in a minute, and nothing
is downloaded.
"""

import contextlib
import io

import numpy as np

from albert_tf.base import files
from albert_tf.data import records
from albert_tf.data.builder.build_program import create_pretraining_data

TOPICS, WORDS, SENTENCES = 12, 8, 24
DOCUMENTS = 700
VOCABULARY = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."),
    *(f"w{i}" for i in range(TOPICS * WORDS)),
    *(f"n{i}" for i in range(SENTENCES)),
)


def document(rng: np.random.Generator) -> str:
    """Return the lines of a document."""
    first, lines = WORDS * rng.integers(TOPICS), []
    for number in range(rng.integers(8, SENTENCES, endpoint=True)):
        words = first + rng.integers(WORDS, size=rng.integers(6, 14))
        lines.append(" ".join([f"n{number}", *(f"w{w}" for w in words), ".\n"]))
    return "".join(lines)


def write_records(folder: str, tokens: int, documents: int = DOCUMENTS) -> str:
    """Write records, unless they are there; return their folder.

    Args:
      folder: for the text, its vocabulary and the records.
      tokens: length of the sequences.
      documents: how many.
    """
    output_dir = files.join(folder, f"records-{tokens}")
    if records.is_described(output_dir):
        return output_dir
    rng = np.random.default_rng(0)
    text = [document(rng) for _ in range(documents)]
    vocabulary = files.join(folder, "vocab.txt")
    files.write_text(files.join(folder, "text.txt"), "\n".join(text))
    files.write_text(vocabulary, "\n".join(VOCABULARY) + "\n")
    with contextlib.redirect_stdout(io.StringIO()):  # what it says of the text
        create_pretraining_data(
            input_file=files.join(folder, "text.txt"),
            vocab_file=vocabulary,
            output_dir=output_dir,
            max_seq_length=tokens,
            dupe_factor=2,
            eval_fraction=0.1,
            num_shards=1,
            num_processes=1,
        )
    return output_dir
