"""Make TFRecords for pretraining from text."""

import contextlib
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator

from albert_tf.base import files, program
from albert_tf.base.errors import require

with program.quiet_start():
    from albert_tf.data import records
    from albert_tf.data.builder import build, text_blocks
    from albert_tf.data.builder.build_settings import BuildConfig
    from albert_tf.data.builder.pairs import PairsConfig
    from albert_tf.data.builder.text_formats import (
        BadItems,
        ReadingConfig,
        json_record,
    )
    from albert_tf.data.masking import MaskingConfig
    from albert_tf.data.table_sources import TableObject, texts_of
    from albert_tf.text.tokenizers import TokenizerConfig


@dataclasses.dataclass(frozen=True)
class Records:
    """The folder of the finished records, and their metadata."""

    output_dir: str
    metadata: records.Metadata


def _write_table(
    path: str, table: TableObject, reading: ReadingConfig
) -> Counter:
    """Write the texts of an in-memory table as JSON lines; count bad rows."""
    skipped: Counter = Counter()
    bad = BadItems(reading.on_bad_text, skipped)
    with files.opened(path, "wb") as file:
        for text in texts_of(table, reading.text_field, bad):
            file.write(json_record(reading.text_field, text))
    require(
        files.size(path),
        "`input_file` must be a table with at least one text.",
        input_file=table,
        rows_without_text=skipped["bad_rows"],
    )
    return skipped


@contextlib.contextmanager
def in_files(
    config: BuildConfig, reading: ReadingConfig
) -> Iterator[tuple[BuildConfig, ReadingConfig, Counter]]:
    """Yield settings whose text is in files, and counts of skipped rows.

    While the block runs, in-memory tables, standard input and pipes are files
    in a folder of this build alone, because text is read twice, and by every
    process.
    """
    source = config.input_file
    named = isinstance(source, str)
    if named and not text_blocks.has_pipes(source):
        yield config, reading, Counter()
        return
    name = hashlib.blake2b(config.output_dir.encode(), digest_size=8)
    place = config.scratch_dir or config.output_dir
    folder = files.join(place, f"input-{name.hexdigest()}")
    skipped: Counter = Counter()
    with files.held(folder, "output_dir"):
        try:
            if named:
                paths = text_blocks.with_pipes_copied(source, folder)
            else:
                paths = files.join(folder, f"{source}.jsonl")
                skipped = _write_table(paths, source, reading)
                if reading.input_format != "lines":
                    reading = dataclasses.replace(reading, input_format="jsonl")
            config = dataclasses.replace(config, input_file=paths)
            yield config, reading, skipped
        finally:
            files.remove_folder(folder)


@program.command(
    BuildConfig, TokenizerConfig, PairsConfig, MaskingConfig, ReadingConfig
)
def create_pretraining_data(
    config, tokenization, pairs, masking, reading
) -> Records:
    """Make TFRecords for pretraining from text.

    The keywords are the flags of `create_pretraining_data.py`; `input_file`
    may be a list of paths, or a table in memory.
    """
    with in_files(config, reading) as (config, reading, skipped):
        metadata = build.run(
            config, tokenization, pairs, masking, reading, skipped
        )
    print(build.summary(metadata, pairs, masking))
    return Records(config.output_dir, metadata)


cli = create_pretraining_data.program.cli
