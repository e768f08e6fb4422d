"""Vocabularies, which define the meaning of the ids in records and weights.

A vocabulary is a tokenizer (`tokenizers`) or a table of phoneme symbols
(`symbols`).
"""

import abc
from collections.abc import Sequence

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.replacing import names_like

SYMBOLS_FILE = "symbols.json"  # next to phoneme records and models
OF_WORDS = "The model must have a tokenizer. This is a phoneme model, which "
OF_WORDS += f"has symbols instead ({SYMBOLS_FILE}) and accepts only their ids."

# Weights of other libraries. Folders with such weights contain a vocabulary.
FOREIGN_WEIGHTS = (
    *("*.safetensors", "pytorch_model*.bin", "tf_model*.h5"),
    *("flax_model*.msgpack", "step_*.t7"),
)
WEIGHTS = "ckpt-*.index", *FOREIGN_WEIGHTS
VOCABULARIES = "spiece.model", "vocab.txt", "tokenizer.json", SYMBOLS_FILE
OTHER_VOCABULARY = (
    "`output_dir` must not contain another tokenizer, other symbols or another "
    "model's weights; choose another folder, or delete these files if nothing "
    "needs them."
)


class Vocabulary(abc.ABC):
    """The base class of tokenizers and symbol tables.

    Attributes:
      vocab_size: number of ids, V.
      words: the word for each label that a model predicts; often empty.
      content: the bytes of a tokenizer's vocabulary file; empty for symbols.
      file_name: the name of the vocabulary file, which `save` writes first.
    """

    vocab_size: int
    words: Sequence[str] = ()
    content: bytes = b""
    file_name: str = ""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Return a string that identifies the vocabulary, including `words`."""

    @staticmethod
    @abc.abstractmethod
    def stored_in(folder: str) -> "Vocabulary | None":
        """Return a folder's vocabulary of this class, or None if absent."""

    def check_claim(self, folder: str) -> None:
        """Raise `InputError` unless this vocabulary may be saved to a folder.

        The folder must contain the same vocabulary, or neither a vocabulary
        nor weights of another library's model.
        """
        stored = self.stored_in(folder)
        names = names_like((*VOCABULARIES, *FOREIGN_WEIGHTS), folder)
        if stored:
            same = stored.fingerprint() == self.fingerprint()
        elif names == [self.file_name]:  # from an interrupted `save`, or a copy
            path = files.join(folder, self.file_name)
            same = files.read_bytes(path) == self.content
        else:
            same = not names
        received = f"{folder} with {', '.join(names)}"
        require(same, OTHER_VOCABULARY, output_dir=received)


def refuse_symbols(folder: str) -> None:
    """Raise `InputError` if a folder has phoneme symbols."""
    has_symbols = files.exists(files.join(folder, SYMBOLS_FILE))
    require(not has_symbols, OF_WORDS, path=folder)
