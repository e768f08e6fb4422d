"""The inputs that calibrate an 8-bit model are read from files."""

import numpy as np
import pytest
from exporting import LENGTH, model_dir, packed, server_of, without_tokenizer

from albert_tf.base.errors import InputError
from albert_tf.serving import litert
from albert_tf.tasks.registry import find
from albert_tf.text.packing import INPUTS


def test_lines_of_text_are_rows(pretrained_dir, tokenizer, tmp_path):
    """Each nonblank line is a row; the last batch may be smaller."""
    file = tmp_path / "text.txt"
    lines = ["the river", "she walks " * 30, "night"]
    file.write_text("\n \n".join(lines))
    server = server_of(pretrained_dir)
    found = litert.calibration_features(server, str(file))
    rows = list(litert.calibration_batches(found, 2, 10))
    assert [len(row["input_ids"]) for row in rows] == [2, 1]
    for name, wanted in zip(INPUTS, packed(tokenizer, lines), strict=True):
        joined = np.concatenate([row[name] for row in rows])
        assert joined.shape == (3, LENGTH)
        np.testing.assert_array_equal(joined, wanted)
    (first,) = litert.calibration_batches(found, 5, 1)
    assert len(first["input_ids"]) == 1
    file.write_text("\n\n")
    with pytest.raises(InputError, match="must contain text"):
        litert.calibration_features(server, str(file))


def test_examples_of_a_file_fill_batches(pretrained_dir, tmp_path, monkeypatch):
    """Examples from a text file fill batches, up to a limit of rows.

    Rows that do not fill a batch are dropped. A model with a masked-LM head
    also gets positions.
    """
    monkeypatch.setattr(litert, "CALIBRATION_ROWS", 5)
    file = tmp_path / "text.txt"
    file.write_text("night\n" * 7)
    server = server_of(pretrained_dir, fixed_length=True, batch_size=2)
    examples = litert.calibration_examples(server, str(file))
    assert len(examples) == 2
    for example in examples:
        *inputs, positions = example.values()
        assert {x.shape for x in inputs} == {(2, LENGTH)}
        assert positions.shape == (2, 8)
        assert not example["segment_ids"].any()
    file.write_text("night\n")
    with pytest.raises(InputError, match="at least `batch_size` examples"):
        litert.calibration_examples(server, str(file))


def test_files_with_or_without_labels_are_read(
    pretrained_dir, tokenizer, tmp_path
):
    """MRPC's evaluation and test files are read; their columns differ."""
    task = find("mrpc").updated(max_seq_length=12)
    model_dir(tmp_path / "model", pretrained_dir, task)
    server = server_of(tmp_path / "model")
    wanted = packed(tokenizer, ["she walks"], ["night"], length=12)
    for text in (
        "Quality\t#1 String\t#2 String\n1\tshe walks\tnight",
        "index\t#1 String\t#2 String\n0\tshe walks\tnight",
    ):
        (tmp_path / "file.tsv").write_text(text + "\n")
        found = litert.calibration_features(server, str(tmp_path / "file.tsv"))
        (row,) = litert.calibration_batches(found, 1, 1)
        for name, values in zip(INPUTS, wanted, strict=True):
            np.testing.assert_array_equal(row[name], values)


def test_an_error_names_the_columns_of_fine_tuning(pretrained_dir, tmp_path):
    """The error names the columns of fine-tuning.

    An export has no settings for columns.
    """
    task = find("mrpc").updated(max_seq_length=12)
    model_dir(tmp_path / "model", pretrained_dir, task)
    server = server_of(tmp_path / "model")
    (tmp_path / "file.tsv").write_text("a\tb\nshe walks\tnight\n")
    rule = "`calibration_file` must .* columns .*, #1 String, #2 String. .*:2: "
    with pytest.raises(InputError, match=rule):
        litert.calibration_features(server, str(tmp_path / "file.tsv"))


def test_text_needs_a_tokenizer(pretrained_dir, tmp_path):
    """A model without a tokenizer cannot be calibrated on text."""
    folder = without_tokenizer(pretrained_dir, tmp_path / "model")
    server = server_of(folder)
    with pytest.raises(InputError, match="needs .* tokenizer"):
        litert.calibration_features(server, str(tmp_path / "text"))
