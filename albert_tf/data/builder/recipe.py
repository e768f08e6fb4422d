"""All that records depend on beside the text, for every process."""

import dataclasses
import functools

import numpy as np

from albert_tf.data.builder.build_config import BuildConfig
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.text_files import ReadingConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.records.metadata import id_type
from albert_tf.text.tokenizers import Tokenizer, load_tokenizer

# Changes whenever the same settings and text would give other records, or
# another identity.
BUILDER_VERSION = 7

# What of the settings changes nothing of the output; the text itself counts,
# not its place.
OUTPUT_SAME = """input_file output_dir num_processes scratch_dir runner
pipeline_options""".split()


@functools.cache
def _load_once(tokenizer_dir: str, fingerprint: str) -> Tokenizer:
    """Load a tokenizer once per process."""
    return load_tokenizer(tokenizer_dir)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How records are made; small, because it goes to every process.

    Attributes:
      build: with `dupe_factor` and `num_shards`, given or not.
      pairs, masking, reading: the user's settings.
      fingerprint, vocab_size: of the tokenizer whose files are in
        `build.output_dir`.
    """

    build: BuildConfig
    pairs: PairsConfig
    masking: MaskingConfig
    reading: ReadingConfig
    fingerprint: str
    vocab_size: int

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; it does not go from process to process."""
        return _load_once(self.build.output_dir, self.fingerprint)

    @property
    def id_type(self) -> np.dtype:
        """The type of the ids in shards."""
        return id_type(self.vocab_size)

    def identity(self, corpus: str) -> dict:
        """Return everything that the output depends on.

        Args:
          corpus: the hash of the text.
        """
        build = dataclasses.asdict(self.build)
        return (
            {"builder_version": BUILDER_VERSION}
            | {k: v for k, v in build.items() if k not in OUTPUT_SAME}
            | dataclasses.asdict(self.pairs)
            | self.masking.written()
            | dataclasses.asdict(self.reading)
            | {"tokenizer": self.fingerprint, "corpus": corpus}
        )
