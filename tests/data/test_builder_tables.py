"""Tables and JSON lines with the same texts produce the same records."""

import json
from pathlib import Path

import pytest
from tiny_corpus import (
    MASKING,
    PAIRS,
    TOKENIZER_FILES,
    contents,
    small_blocks,
)

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.data.builder import build as build_module
from albert_tf.data.builder import text_blocks
from albert_tf.data.builder.text_formats import ReadingConfig

pyarrow = pytest.importorskip("pyarrow")
SETTINGS = {
    "max_seq_length": PAIRS.max_seq_length,
    "masking": MASKING.masking,
    "dupe_factor": 2,
    "eval_fraction": 0.1,
    "num_shards": 3,
    "num_processes": 1,
    "text_field": "body",
}


@pytest.fixture(scope="module")
def texts(corpus):
    """Return the documents of the corpus as a list of strings."""
    both = (corpus / name for name in ("a.txt", "b.txt"))
    return [text for path in both for text in path.read_text().split("\n\n")]


@pytest.fixture(scope="module")
def table(texts):
    return pyarrow.table({"n": list(range(len(texts))), "body": texts})


@pytest.fixture(scope="module")
def parquet(table, tmp_path_factory):
    """Return the paths of two Parquet files with the documents.

    The row groups are small.
    """
    from pyarrow.parquet import write_table

    folder = tmp_path_factory.mktemp("parquet")
    write_table(table[:25], folder / "a.parquet", row_group_size=4)
    write_table(table[25:], folder / "b.parquet", row_group_size=7)
    return [folder / "a.parquet", folder / "b.parquet"]


def build(corpus, output, source, **changes):
    return albert_tf.create_pretraining_data(
        input_file=source,
        output_dir=output,
        vocab_file=corpus / "vocab.txt",
        **SETTINGS | changes,
    )


@pytest.fixture(scope="module")
def wanted(corpus, texts, tmp_path_factory):
    """Return {name: bytes} of record files made from JSON lines."""
    folder = tmp_path_factory.mktemp("jsonl")
    lines = [json.dumps({"body": text}) + "\n" for text in texts]
    (folder / "t.jsonl").write_text("".join(lines))
    made = build(
        corpus, folder / "out", str(folder / "t.jsonl"), input_format="jsonl"
    )
    assert made.metadata.count("train") > 20
    return records(folder / "out")


def records(folder):
    found = contents(folder)
    return {k: v for k, v in found.items() if k.endswith(".tfrecord")}


def test_parquet_makes_the_same_records(corpus, parquet, wanted, tmp_path):
    """Parquet files yield the same records as JSON lines.

    Neither the size of blocks nor the number of processes matters.
    """
    with small_blocks():
        reading = ReadingConfig(text_field="body")
        assert len([*text_blocks.blocks(str(parquet[0]), 0, reading)]) > 3
        build(corpus, tmp_path / "small", parquet)
    assert records(tmp_path / "small") == wanted
    named = f"{parquet[0].parent}/*.parquet"
    build(corpus, tmp_path / "two", named, num_processes=2)
    assert records(tmp_path / "two") == wanted


@pytest.mark.parametrize("kind", ["frame", "folder"])
def test_objects_make_the_same_records(corpus, table, wanted, tmp_path, kind):
    """Data frames and saved data sets yield the same records as JSON lines.

    No copy of the table remains in the output folder.
    """
    if kind == "frame":
        pytest.importorskip("pandas")
        source = table.to_pandas()
    else:
        datasets = pytest.importorskip("datasets")
        rows = datasets.Dataset.from_dict(table.to_pydict())
        rows.save_to_disk(str(tmp_path / "saved"), num_shards=3)
        source = tmp_path / "saved"
    made = build(corpus, tmp_path / "out", source)
    assert records(made.output_dir) == wanted
    names = {path.name for path in Path(made.output_dir).iterdir()}
    others = {"metadata.json", "piece_counts.json"}
    assert names - {*wanted} == others | TOKENIZER_FILES


def test_a_table_for_two_builds_at_once(corpus, table, tmp_path, monkeypatch):
    """While one build uses a folder, a second build into the folder fails.

    The second build does not change the text file of the first build.
    """
    run = build_module.run

    def build_again(*configs):
        monkeypatch.setattr(build_module, "run", run)
        text = Path(configs[0].input_file)
        assert text_blocks.OUTPUT_NAMES.fullmatch(text.parent.name)
        before = text.read_bytes()
        with pytest.raises(InputError, match="`output_dir` must not be in use"):
            build(corpus, tmp_path / "out", table)
        assert text.read_bytes() == before
        return run(*configs)

    monkeypatch.setattr(build_module, "run", build_again)
    build(corpus, tmp_path / "out", table)


def test_rows_without_a_text(corpus, tmp_path):
    """The error for a row without text names the row and the file or argument.

    A wrong column or an empty table also raises an error. In the output folder,
    only the tokenizer's files may remain.
    """
    from pyarrow.parquet import write_table

    bad = pyarrow.table({"body": ["w1 w2 .\nw3 .", None], "n": [1, 2]})
    path = tmp_path / "bad.parquet"
    write_table(bad, path)
    for source, name in ((bad, r"input_file \(Table\)"), (path, "bad.parquet")):
        with pytest.raises(InputError, match=f"{name}, row 1: .*contain text"):
            build(corpus, tmp_path / "out", source)
        with pytest.raises(InputError, match=f"{name}.*columns body, n. Rec"):
            build(corpus, tmp_path / "out", source, text_field="text")
        with pytest.raises(InputError, match=f"{name}, row 0: column n must"):
            build(corpus, tmp_path / "out", source, text_field="n")
    with pytest.raises(InputError, match=r"one text.*=input_file \(T.*=0$"):
        build(corpus, tmp_path / "out", bad[:0])
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left <= {"tokenizer.json", "vocab.txt"}


def test_a_vocabulary_of_a_table_is_that_of_its_lines(tmp_path):
    """`train_tokenizer` reads each row of a table as a document of lines.

    The objects in a JSON lines file are read in the same way.
    """
    words = "the cat dog sees hears finds a mouse in its old house".split()
    lines = [" ".join(words[i % 7 :: 1 + i % 3]) for i in range(300)]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    both = ["\n".join(lines[:200]), "\n".join(lines[200:])]
    objects = [json.dumps({"body": text}) + "\n" for text in both]
    (tmp_path / "t.json").write_text("".join(objects))
    made = [
        albert_tf.train_tokenizer(
            input_file=source,
            output_dir=tmp_path / name,
            vocab_size=38,
            text_field="body",
            input_format=layout,
        )
        for name, source, layout in (
            ("a", tmp_path / "t.txt", "lines"),
            ("b", {"body": both}, "lines"),
            ("c", tmp_path / "t.json", "jsonl"),
        )
    ]
    assert [one.sentences for one in made] == [300] * 3
    for name in "bc":
        assert contents(tmp_path / "a") == contents(tmp_path / name)


def test_rows_without_a_text_are_skipped(
    corpus, texts, wanted, tmp_path, capsys
):
    """Rows without text, in memory or in a file, are skipped and counted.

    The warning names the first of these rows by its table, not by a temporary
    file.
    """
    from pyarrow.parquet import write_table

    rows = pyarrow.table({"body": [None, *texts[:9], None, *texts[9:]]})
    write_table(rows, tmp_path / "x.parquet")
    for number, (source, name) in enumerate(
        [(rows, "input_file (Table)"), (tmp_path / "x.parquet", "x.parquet")]
    ):
        made = build(corpus, tmp_path / f"{number}", source, on_bad_text="skip")
        assert records(made.output_dir) == wanted
        assert made.metadata.statistics["bad_rows"] == 2
        (warning,) = [
            line
            for line in capsys.readouterr().out.splitlines()
            if "2 rows were without readable text. The first" in line
        ]
        assert f"{name}, row 0: column body" in warning
        assert "/input-" not in warning


def test_rows_that_are_sentences(corpus, texts, wanted, tmp_path):
    """With the `lines` format, empty rows separate documents."""
    rows = "\n\n".join(texts).split("\n")
    made = build(corpus, tmp_path / "out", {"body": rows}, input_format="lines")
    assert records(made.output_dir) == wanted


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "memory"])
def test_empty_texts_are_counted(corpus, texts, wanted, tmp_path, kind):
    """The numbers of documents and empty documents add up to all rows."""
    rows = ["", *texts[:9], " \n ", *texts[9:], "\t"]
    table, path = {"body": rows}, tmp_path / f"x.{kind}"
    if kind == "jsonl":
        lines = (json.dumps({"body": text}) + "\n" for text in rows)
        path.write_text("".join(lines))
    elif kind == "csv":
        cells = ('"' + text + '"\n' for text in ["body", *rows])
        path.write_text("".join(cells))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(table), path)
    source = table if kind == "memory" else path
    made = build(corpus, tmp_path / "out", source)
    assert records(made.output_dir) == wanted
    found = made.metadata.statistics
    assert found["documents"] == len(texts) and found["bad_rows"] == 0
    assert found["empty_documents"] == 3
