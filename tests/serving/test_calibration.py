"""The inputs that calibrate an 8-bit model are read from files."""

import numpy as np
import pytest
from exporting import LENGTH, model_dir, packed, server_of, without_tokenizer

from albert_tf.base.errors import InputError
from albert_tf.serving import litert
from albert_tf.tasks.registry import find
from albert_tf.text.packing import INPUTS


@pytest.mark.parametrize("size", [1, 2])
def test_lines_of_text_fill_batches(
    pretrained_dir, tokenizer, tmp_path, monkeypatch, size
):
    """The nonblank lines of a text file fill batches, up to a number of rows.

    Rows that do not fill a batch are dropped. A model with a masked-LM head
    also gets positions.
    """
    monkeypatch.setattr(litert, "CALIBRATION_ROWS", 3)
    file = tmp_path / "text.txt"
    lines = ["the river", "she walks " * 30, "night"]
    file.write_text("\n \n".join([*lines, "day"]))
    server = server_of(pretrained_dir, fixed_length=True, batch_size=size)
    examples = litert.calibration_examples(server, str(file))
    assert len(examples) == 3 // size
    for example in examples:
        assert example["mlm_positions"].shape == (size, 8)
    for name, wanted in zip(INPUTS, packed(tokenizer, lines), strict=True):
        joined = np.concatenate([example[name] for example in examples])
        assert joined.shape == (3 // size * size, LENGTH)
        np.testing.assert_array_equal(joined, wanted[: len(joined)])
    rule = "must contain text" if size == 1 else "at least `batch_size`"
    file.write_text("\n" + "night\n" * (size - 1))
    with pytest.raises(InputError, match=rule):
        litert.calibration_examples(server, str(file))


def test_files_with_or_without_labels_are_read(
    pretrained_dir, tokenizer, tmp_path
):
    """MRPC's evaluation and test files are read; their columns differ."""
    task = find("mrpc").updated(max_seq_length=12)
    model_dir(tmp_path / "model", pretrained_dir, task)
    server = server_of(tmp_path / "model", batch_size=1)
    wanted = packed(tokenizer, ["she walks"], ["night"], length=12)
    for text in (
        "Quality\t#1 String\t#2 String\n1\tshe walks\tnight",
        "index\t#1 String\t#2 String\n0\tshe walks\tnight",
    ):
        (tmp_path / "file.tsv").write_text(text + "\n")
        file = str(tmp_path / "file.tsv")
        (row,) = litert.calibration_examples(server, file)
        for name, values in zip(INPUTS, wanted, strict=True):
            np.testing.assert_array_equal(row[name], values)


def test_an_error_names_the_columns_of_fine_tuning(pretrained_dir, tmp_path):
    """The error names the columns that fine-tuning used.

    An export has no settings for columns.
    """
    task = find("mrpc").updated(max_seq_length=12)
    model_dir(tmp_path / "model", pretrained_dir, task)
    server = server_of(tmp_path / "model", batch_size=1)
    (tmp_path / "file.tsv").write_text("a\tb\nshe walks\tnight\n")
    rule = "`calibration_file` must .* columns .*, #1 String, #2 String. .*:2: "
    with pytest.raises(InputError, match=rule):
        litert.calibration_examples(server, str(tmp_path / "file.tsv"))


def test_text_needs_a_tokenizer(pretrained_dir, tmp_path):
    """A model without a tokenizer cannot be calibrated on text."""
    folder = without_tokenizer(pretrained_dir, tmp_path / "model")
    server = server_of(folder, batch_size=1)
    with pytest.raises(InputError, match="needs .* tokenizer"):
        litert.calibration_examples(server, str(tmp_path / "text"))
