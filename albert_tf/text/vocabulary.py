"""A vocabulary defines the meaning of the ids in records and weights.

A vocabulary is a tokenizer (`tokenizers`) or a table of phoneme symbols
(`symbols`).
"""

import abc
from collections.abc import Sequence

from albert_tf.base import files
from albert_tf.base.errors import require

WEIGHTS = "ckpt-*.index"  # a vocabulary next to such files must not change


class Vocabulary(abc.ABC):
    """The base class of tokenizers and symbol tables.

    Attributes:
      vocab_size: number of ids, V.
      words: the word for each label that a model predicts; often empty.
    """

    vocab_size: int
    words: Sequence[str] = ()

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Return a string that identifies the vocabulary, including words."""

    @staticmethod
    @abc.abstractmethod
    def stored_in(folder: str) -> "Vocabulary | None":
        """Return the vocabulary of this class in a folder; None if absent."""

    def check_claim(self, folder: str) -> None:
        """Raise `InputError` if a folder's model has another vocabulary."""
        known = files.matches(WEIGHTS, folder) and self.stored_in(folder)
        same = not known or known.fingerprint() == self.fingerprint()
        rule = "`output_dir` must not contain a model with another tokenizer "
        rule += "or other symbols."
        require(same, rule, output_dir=folder)
