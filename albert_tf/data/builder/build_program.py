"""Make TFRecords for pretraining from text."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator

from albert_tf.base import command_line, files
from albert_tf.base.errors import require
from albert_tf.data import records
from albert_tf.data.builder import build
from albert_tf.data.builder.build_config import BuildConfig
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.text_files import ReadingConfig, json_record
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.table_sources import texts_of
from albert_tf.text.tokenizers import TokenizerConfig


@dataclasses.dataclass(frozen=True)
class Records:
    """Records that were made: their folder, and what it says of them."""

    output_dir: str
    metadata: records.Metadata


@contextlib.contextmanager
def in_files(
    config: BuildConfig, reading: ReadingConfig
) -> Iterator[tuple[BuildConfig, ReadingConfig]]:
    """Yield settings whose text is in files.

    A table in memory is written to one for the body, in a folder that no other
    build of it uses: every process reads it.
    """
    if isinstance(config.input_file, str):
        yield config, reading
        return
    name = hashlib.blake2b(config.output_dir.encode(), digest_size=8)
    place = config.scratch_dir or config.output_dir
    folder = files.join(place, f"input-{name.hexdigest()}")
    path = files.join(folder, f"{config.input_file}.jsonl")
    with files.held(folder, "output_dir"):
        try:
            with files.opened(path, "wb") as file:
                for text in texts_of(config.input_file, reading.text_field):
                    file.write(json_record(reading.text_field, text))
            rule = "`input_file` must not be an empty table."
            require(files.size(path), rule, input_file=config.input_file)
            yield (
                dataclasses.replace(config, input_file=path),
                dataclasses.replace(reading, input_format="jsonl"),
            )
        finally:
            files.remove_folder(folder)


@command_line.program(
    BuildConfig, TokenizerConfig, PairsConfig, MaskingConfig, ReadingConfig
)
def create_pretraining_data(
    config, tokenization, pairs, masking, reading
) -> Records:
    """Make TFRecords for pretraining from text.

    The keywords are the flags of `create_pretraining_data.py`; `input_file`
    may be a list of paths, or a table in memory.
    """
    with in_files(config, reading) as (config, reading):
        metadata = build.run(config, tokenization, pairs, masking, reading)
    print(build.summary(metadata, pairs, masking))
    return Records(config.output_dir, metadata)


cli = create_pretraining_data.program.cli
