"""All that records depend on beside the text, for every process."""

import dataclasses
import functools

import numpy as np

from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.text_files import ReadingConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.records.metadata import id_type
from albert_tf.text.tokenizers import Tokenizer, load_tokenizer

# Changes whenever the same settings and text would give other records, or
# another identity.
BUILDER_VERSION = 3


@functools.cache
def _load_once(tokenizer_dir: str, fingerprint: str) -> Tokenizer:
    """Load a tokenizer once per process."""
    return load_tokenizer(tokenizer_dir)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How records are made; small, because it goes to every process.

    Attributes:
      pairs, masking, reading: the user's settings.
      dupe_factor, eval_fraction, random_seed, num_shards: of `BuildConfig`.
      tokenizer_dir: a folder with the tokenizer's files.
      fingerprint: of the tokenizer.
    """

    pairs: PairsConfig
    masking: MaskingConfig
    reading: ReadingConfig
    dupe_factor: int
    eval_fraction: float
    random_seed: int
    num_shards: int
    tokenizer_dir: str
    fingerprint: str

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; it does not go from process to process."""
        return _load_once(self.tokenizer_dir, self.fingerprint)

    @property
    def id_type(self) -> np.dtype:
        """The type of the ids in shards."""
        return id_type(self.tokenizer.vocab_size)

    def identity(self, corpus: str) -> dict:
        """Return everything that the output depends on.

        Args:
          corpus: the hash of the text.
        """
        return (
            {
                "builder_version": BUILDER_VERSION,
                "dupe_factor": self.dupe_factor,
                "eval_fraction": self.eval_fraction,
                "random_seed": self.random_seed,
                "num_shards": self.num_shards,
            }
            | dataclasses.asdict(self.pairs)
            | dataclasses.asdict(self.masking)
            | dataclasses.asdict(self.reading)
            | {"tokenizer": self.fingerprint, "corpus": corpus}
        )
