"""Settings of a build, and `BuildSpec`, which every process receives."""

import dataclasses
import functools

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.settings import (
    DEVICES,
    EXAMPLES,
    OUTPUT_DIR,
    RANDOM_SEED,
    Validated,
    setting,
    variant,
)
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.text_formats import CORPUS, ReadingConfig
from albert_tf.data.layout import id_type
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.records.metadata import TASKS, WORDS
from albert_tf.data.table_sources import InMemoryTable
from albert_tf.text.tokenizers import Tokenizer, load_saved_tokenizer


@dataclasses.dataclass(frozen=True)
class BuildConfig(Validated):
    """General settings of a build, such as input, output and processes."""

    input_file: str | InMemoryTable = variant(CORPUS)
    output_dir: str = variant(OUTPUT_DIR)
    task: str = setting(
        WORDS,
        "What the records are made of: words (text to tokenize) or phonemes "
        "(rows of a table with the words of a sentence and their phonemes).",
        choices=TASKS,
        group=EXAMPLES,
    )
    dupe_factor: int | None = setting(
        None,
        "Number of times each document is used, with new pairs and masks each "
        "time; disk use grows with this number. The released default is 40.",
        means="10, as in BERT; 1 with --masking=dynamic",
        minimum=1,
        group=EXAMPLES,
    )
    eval_fraction: float = setting(
        0.02,
        "Share of the tokens to hold out, as whole documents or, if these are "
        "too large, as a part of one document; 0 holds out no text.",
        minimum=0.0,
        maximum=0.9,
        group=EXAMPLES,
    )
    random_seed: int = variant(RANDOM_SEED, maximum=2**63 - 1)
    num_shards: int | None = setting(
        None,
        "Number of text shards, each shuffled in the memory of one process.",
        means="one per 32 MB",
        minimum=1,
        maximum=9999,
        group=DEVICES,
    )
    num_processes: int | None = setting(
        None,
        "Number of processes; does not affect the records.",
        means="one per core",
        minimum=1,
        maximum=1024,
        group=DEVICES,
    )
    scratch_dir: str | None = setting(
        None,
        "Folder for files of the first pass; it must be local unless "
        "--pipeline_options is set.",
        means="in `output_dir`",
    )
    pipeline_options: str = setting(
        "",
        "Options of Apache Beam (extra `beam`), such as "
        "'--runner=DataflowRunner --project=P --region=R "
        "--temp_location=gs://B/T'; Beam then writes the same records.",
        means="processes on this machine",
        group=DEVICES,
    )

    def __post_init__(self):
        super().__post_init__()
        require(
            not self.pipeline_options or "--runner" in self.pipeline_options,
            "`pipeline_options` must name a --runner, such as DataflowRunner.",
            pipeline_options=self.pipeline_options,
        )
        require(
            self.pipeline_options
            or not files.is_remote(self.scratch_dir or self.output_dir),
            "`scratch_dir` must name a local folder when `output_dir` is "
            "remote.",
            output_dir=self.output_dir,
            scratch_dir=self.scratch_dir,
        )


# Incremented whenever a code change makes the same settings and text produce
# different records or a different identity.
BUILDER_VERSION = 11

# Settings that do not affect the output. The text affects the output, but its
# location does not. The task is omitted because only `words` uses this
# identity.
OUTPUT_SAME = """task input_file output_dir num_processes scratch_dir
pipeline_options""".split()


@functools.cache
def _load_once(tokenizer_dir: str, fingerprint: str) -> Tokenizer:
    """Return a tokenizer, which each process loads only once."""
    return load_saved_tokenizer(tokenizer_dir)


@dataclasses.dataclass(frozen=True)
class BuildSpec:
    """All settings for creating records; every process receives a copy.

    Attributes:
      build: the settings, with defaults filled in for `dupe_factor` and
        `num_shards`.
      pairs, masking, reading: the user's settings; `word_boundaries=auto` is
        replaced with the rule that it selects.
      fingerprint, vocab_size: properties of the tokenizer in
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
        """The tokenizer, which each process loads from files."""
        return _load_once(self.build.output_dir, self.fingerprint)

    @property
    def id_type(self) -> np.dtype:
        """The data type of ids in shards."""
        return id_type(self.vocab_size)

    def identity(self, corpus: str) -> dict:
        """Return every value that affects the output.

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
