"""Readers of phoneme files, and valid files to damage."""

import pathlib
import tempfile

import tiny_phonemes
from fuzz import mutators
from fuzz.reader import Reader, write_lines
from fuzz.written_files import read_batches

from albert_tf.conversion import plbert
from albert_tf.data.records.inspect_records import show
from albert_tf.data.records.metadata import read_metadata, read_piece_counts
from albert_tf.data.records.tfrecord import decoded
from albert_tf.model.config import AlbertConfig
from albert_tf.text import symbols
from albert_tf.training.pretraining import run_setup

ROWS = tiny_phonemes.make_rows()
PLBERT = b"""model_params:
  vocab_size: 178
  hidden_size: 24
  num_attention_heads: 3
  intermediate_size: 40
  max_position_embeddings: 32
  num_hidden_layers: 3
  dropout: 0.1
"""


def _tables(folder):
    symbols.preset("plbert").with_words("abc").save(str(folder))
    (folder / "config.yml").write_bytes(PLBERT)


def _read_tables(folder, name):
    """Read the tables as a run and a conversion do."""
    where, released = str(folder), symbols.preset("plbert")
    table = symbols.load_vocabulary(where)
    for old, new in ((table, released), (released, table)):
        symbols.origins(old, new)
        symbols.named(old, new).encode()
        symbols.have_same_ids(old, new)
    config, _ = plbert.read_config(where)
    plbert.head_of(plbert.table_of(where, config))
    with tempfile.TemporaryDirectory() as temporary:
        table.with_words(table.labels).save(temporary)
        assert symbols.read_table(temporary).ids == table.ids


def _rows(folder):
    import pyarrow
    from pyarrow import parquet

    rows = ROWS[:20]
    write_lines(folder / "rows.jsonl", rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "r.parquet")
    columns = {"phonemes": [["hɑk", "ti"], ["ti"]], "input_ids": [[4, 7], [7]]}
    parquet.write_table(pyarrow.table(columns), folder / "public.parquet")


def _read_rows(folder, name):
    """Build records from the rows, and read the records."""
    with tempfile.TemporaryDirectory() as temporary:
        settings = {"symbols": "auto", "eval_fraction": 0}
        tiny_phonemes.build(temporary, folder / name, **settings)
        _read_records(pathlib.Path(temporary), name)


def _records(folder):
    write_lines(folder.with_name("rows.jsonl"), ROWS)
    tiny_phonemes.build(folder, folder.with_name("rows.jsonl"))


def _read_records(folder, name):
    """Check the records as a run does, and read them in Python."""
    where = str(folder)
    found = read_metadata(where)
    config = AlbertConfig(
        vocab_size=found.vocab_size, max_position_embeddings=32
    )
    run_setup.read(where, config, trains=True)
    read_piece_counts(where, found.vocab_size)
    for path in folder.glob("*.tfrecord"):
        for example in decoded(str(path)):
            show(example, None)


RECORDS = {"*.json": mutators.JSON, "*.tfrecord": mutators.RECORDS}
READERS = {
    "phoneme tables": Reader(
        _tables,
        {"*.json": mutators.JSON, "config.yml": mutators.TEXT},
        _read_tables,
    ),
    "phoneme rows": Reader(
        _rows,
        {"*.jsonl": mutators.JSON, "*.parquet": mutators.ANY},
        _read_rows,
    ),
    "phoneme records": Reader(_records, RECORDS, _read_records),
    "phoneme pipeline": Reader(_records, RECORDS, read_batches, quick=False),
}
