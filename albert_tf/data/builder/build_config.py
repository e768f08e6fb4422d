"""What a build is to make, and whether a folder already holds some of it."""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.base.processes import available
from albert_tf.base.settings import setting, validate
from albert_tf.data import records
from albert_tf.data.builder import boundaries
from albert_tf.data.builder.documents import TextJob
from albert_tf.data.builder.held_out import HeldOut
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.shards import SHARD_BYTES, ShardStore
from albert_tf.data.builder.text_files import ReadingConfig
from albert_tf.data.builder.writing import FileJob
from albert_tf.data.masking import DYNAMIC, STATIC, MaskingConfig
from albert_tf.text.tokenizers import Tokenizer

MANIFEST_FILE = "manifest.json"

# Changes whenever the same settings and text would give other records, or
# another identity.
BUILDER_VERSION = 2

# How often a document is used, by the kind of masking.
DUPE_FACTORS = {STATIC: 10, DYNAMIC: 1}

# Where Apache Beam runs a build.
RUNNERS = ("DirectRunner", "DataflowRunner", "FlinkRunner", "SparkRunner")

# A .gz file holds about so many times its size of text.
GZIP_RATIO = 3


@dataclasses.dataclass(frozen=True)
class BuildConfig:
    """What is read and written, and how the work is spread."""

    input_file: str = setting(
        None,
        "Text files, plain or .gz: a comma-separated list of globs.",
        required=True,
    )
    output_dir: str = setting(
        None,
        "Folder to write; an interrupted run in it goes on.",
        required=True,
    )
    dupe_factor: int | None = setting(
        None,
        "Times that every document is used, each time with other pairs and "
        "masks; disk grows with it. By default 10, as BERT, and 1 with "
        "--masking=dynamic; the released default is 40.",
        minimum=1,
    )
    eval_fraction: float = setting(
        0.02,
        "Share of the tokens to hold out, in whole documents, at least one; "
        "0 holds out none.",
        minimum=0.0,
        maximum=0.9,
    )
    random_seed: int = setting(
        12345, "Seed of everything random.", minimum=0, maximum=2**63 - 1
    )
    num_shards: int | None = setting(
        None,
        "Shards of the text, each shuffled in the memory of one process; by "
        "default one for every 32 MB.",
        minimum=1,
        maximum=9999,
    )
    num_processes: int | None = setting(
        None, "Processes; by default all cores. Not in the output.", minimum=1
    )
    scratch_dir: str | None = setting(
        None,
        "Folder for the first pass, local unless --runner is given; by "
        "default in `output_dir`.",
    )
    runner: str | None = setting(
        None,
        "Runs the build as an Apache Beam pipeline (extra `beam`), with the "
        "same records; without it, the processes of this machine do it.",
        choices=RUNNERS,
    )
    pipeline_options: str = setting(
        "",
        "Options of the Beam pipeline, as on a command line: "
        "'--project=P --region=R --temp_location=gs://B/T'.",
    )

    def __post_init__(self):
        validate(self)

        if self.pipeline_options and not self.runner:
            raise InputError(
                "`pipeline_options` must come with a `runner`. Received: "
                f"pipeline_options={self.pipeline_options}, runner=None"
            )
        remote = files.is_remote(self.scratch_dir or self.output_dir)
        if remote and not self.runner:
            raise InputError(
                "`scratch_dir` must name a local folder when `output_dir` is "
                f"remote. Received: output_dir={self.output_dir}, "
                f"scratch_dir={self.scratch_dir}"
            )


def count_shards(paths: list[str]) -> int:
    """Return the default number of shards of text files."""
    total = 0
    for path in paths:
        ratio = GZIP_RATIO if path.endswith(".gz") else 1
        total += ratio * files.size(path)
    return math.ceil(total / SHARD_BYTES)


@dataclasses.dataclass(frozen=True)
class Builder:
    """One build: the settings, and what follows from them.

    Attributes:
      build, pairs, masking, reading: the user's settings.
      tokenizer: the tokenizer.
      paths: the text files.
      hash_text: returns the `corpus.corpus_hash` of files.
    """

    build: BuildConfig
    pairs: PairsConfig
    masking: MaskingConfig
    reading: ReadingConfig
    tokenizer: Tokenizer
    paths: list[str]
    hash_text: Callable[[list[str]], str]

    def __post_init__(self):
        boundaries.check(self.reading.word_boundaries, self.tokenizer)
        if self.masking.masking == STATIC:
            return
        if self.pairs.compat != "none" or self.masking.do_permutation:
            raise InputError(
                "`masking` must be static with --compat=google or "
                "--do_permutation. Received: "
                f"masking={self.masking.masking}, compat={self.pairs.compat}, "
                f"do_permutation={self.masking.do_permutation}"
            )

    @functools.cached_property
    def num_shards(self) -> int:
        """The number of shards."""
        return self.build.num_shards or count_shards(self.paths)

    @property
    def dupe_factor(self) -> int:
        """How often every document is used."""
        default = DUPE_FACTORS[self.masking.masking]
        return self.build.dupe_factor or default

    @functools.cached_property
    def num_processes(self) -> int:
        """The number of processes."""
        return self.build.num_processes or available()

    @functools.cached_property
    def identity(self) -> dict:
        """Everything that the output depends on."""
        build = dataclasses.asdict(self.build)
        for name in (
            "input_file",
            "output_dir",
            "num_processes",
            "scratch_dir",
            "runner",
            "pipeline_options",
        ):
            del build[name]
        return (
            {"builder_version": BUILDER_VERSION}
            | build
            | {"num_shards": self.num_shards, "dupe_factor": self.dupe_factor}
            | dataclasses.asdict(self.pairs)
            | dataclasses.asdict(self.masking)
            | dataclasses.asdict(self.reading)
            | {
                "tokenizer": self.tokenizer.fingerprint(),
                "corpus": self.hash_text(self.paths),
            }
        )

    @functools.cached_property
    def scratch(self) -> str:
        """The local folder of the first pass, no other build's."""
        text = json.dumps(self.identity, sort_keys=True).encode()
        name = f"scratch-{hashlib.blake2b(text, digest_size=8).hexdigest()}"
        parent = self.build.scratch_dir or self.build.output_dir
        return files.join(parent, name)

    def clean(self) -> None:
        """Remove what only an unfinished build needs."""
        if files.is_folder(self.scratch):
            files.remove_folder(self.scratch)
        manifest = files.join(self.build.output_dir, MANIFEST_FILE)
        if files.exists(manifest):
            files.remove(manifest)

    def text_job(self) -> TextJob:
        """Return what the first pass needs."""
        return TextJob(
            self.build.output_dir,
            self.identity["tokenizer"],
            self.build.random_seed,
            self.reading,
            self.num_shards,
        )

    def file_job(
        self, store: ShardStore, below: int, split: str, position: tuple
    ) -> FileJob:
        """Return one file; `position` is (duplicate, shard, index, count)."""
        duplicate, shard, index, count = position
        name = f"{split}-{index:05d}-of-{count:05d}"
        return FileJob(
            shard_path=store.path(shard),
            shard=shard,
            duplicate=duplicate,
            split=split,
            below=below,
            path=files.join(self.build.output_dir, f"{name}.tfrecord"),
            counts_path=files.join(self.scratch, f"{name}.json"),
            seed=self.build.random_seed,
            tokenizer_dir=self.build.output_dir,
            fingerprint=self.identity["tokenizer"],
            distinct=self.reading.drop_duplicates,
            pairs=self.pairs,
            masking=self.masking,
        )

    def file_jobs(self, store: ShardStore, held_out: HeldOut) -> list[FileJob]:
        """Return the files of the second pass, evaluation first."""
        times = {records.EVAL: 1, records.TRAIN: self.dupe_factor}
        jobs = []
        for split, shards in held_out.shards.items():
            plan = [(d, s) for d in range(times[split]) for s in shards]
            jobs += [
                self.file_job(
                    store, held_out.below, split, (*item, index, len(plan))
                )
                for index, item in enumerate(plan)
            ]
        return jobs


def _refuse_difference(found: dict, wanted: dict, output_dir: str) -> None:
    """Raise `InputError` if a folder was begun with something else."""
    names = sorted(found.keys() | wanted.keys())
    different = [n for n in names if found.get(n) != wanted.get(n)]
    if "builder_version" in different:  # the hashes then differ too
        different = ["builder_version"]
    if different:
        changes = ", ".join(
            f"{n}: {found.get(n)} then, {wanted.get(n)} now" for n in different
        )
        raise InputError(
            "`output_dir` holds records made from other settings, text or "
            "tokenizer, or by another version; give another folder or remove "
            "it. "
            f"Received: output_dir={output_dir} ({changes})"
        )


def claim(output_dir: str, identity: dict) -> bool:
    """Take a folder for a build; return whether it is already complete."""
    metadata = files.join(output_dir, records.METADATA_FILE)
    manifest = files.join(output_dir, MANIFEST_FILE)
    if files.exists(metadata):
        found = records.load_metadata(output_dir).settings
        _refuse_difference(found, identity, output_dir)
        return True
    if files.exists(manifest):
        found = files.read_json(manifest, f"`{MANIFEST_FILE}`")
        _refuse_difference(found, identity, output_dir)
    elif files.matches(files.join(output_dir, "*.tfrecord")):
        raise InputError(
            "`output_dir` must not hold other records; give another folder. "
            f"Received: output_dir={output_dir}"
        )
    for left_over in files.matches(files.join(output_dir, "*.tmp*")):
        files.remove(left_over)
    files.write_json(manifest, identity)
    return False
