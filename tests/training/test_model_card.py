"""A folder's model card, derived from the model directory."""

import json

import pytest

from albert_tf.training.model_card import CARD, MARK, number, write_card


def model(folder, **files):
    """Write the files of a model directory."""
    for name, content in files.items():
        path = folder / name.replace("_json", ".json")
        path.write_text(json.dumps(content), encoding="utf-8")
    return str(folder)


TASK = {"name": "reviews", "kind": "classification", "labels": ["bad", "good"]}
METRICS = {"model": "x", "eval": {"accuracy": 0.875, "examples": 1200}}


def test_a_card_says_where_a_model_comes_from(tmp_path):
    """A card states task, labels, data, metrics, flags, code and licence."""
    folder = model(tmp_path, task_json=TASK, metrics_json=METRICS)
    flags = "--train_file=reviews.tsv\n--model_dir=base\n--data_dir=None\n"
    (tmp_path / "run.flags").write_text(flags)
    write_card(folder, folder)
    text = (tmp_path / CARD).read_text("utf-8")
    head = text.split("---")[1]
    assert "license: other" in head and "text-classification" in head
    for said in (
        *("bad, good", "- Examples: reviews.tsv", "- First weights: base"),
        *("| eval | accuracy | 0.875 |", "| eval | examples | 1,200 |"),
        *("albert_tf.export --model_dir=", flags.strip()),
    ):
        assert said in text
    assert "- Data" not in text


def test_a_card_of_a_pretrained_model(tmp_path):
    """The card of a pretrained model has the last held-out metrics.

    The card also states how many documents and sentences the records have.
    """
    records = tmp_path / "records"
    records.mkdir()
    statistics = {"documents": 7, "sentences": 4321}
    model(records, metadata_json={"statistics": statistics})
    folder = model(tmp_path)
    (tmp_path / "run.flags").write_text(f"--data_dir={records}\n")
    rows = [{"step": 5, "split": "eval", "loss": 3.0}]
    rows += [{"step": 9, "split": "eval", "loss": 2.5}]
    rows += [{"step": 9, "split": "train", "loss": 1.0}]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "history.jsonl").write_text("".join(lines))
    write_card(folder, folder)
    text = (tmp_path / CARD).read_text("utf-8")
    assert "- Text: 7 documents, 4,321 sentences" in text
    metrics = [line for line in text.splitlines() if line.startswith("| eval")]
    assert metrics == ["| eval | loss | 2.5 |"]
    assert "fill-mask" in text and "albert_tf.load(" in text


def test_the_users_own_card_stays(tmp_path):
    """A card is overwritten only while its mark is in place."""
    folder, path = model(tmp_path), tmp_path / CARD
    path.write_text(f"old\n{MARK}\n")
    write_card(folder, folder, "huggingface")
    assert "AutoModelForMaskedLM" in path.read_text("utf-8")
    path.write_text("mine\n")
    write_card(folder, folder)
    assert path.read_text("utf-8") == "mine\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1250000, "1,250,000"),
        (0.001761234, "0.001761"),
        (45678.9, "45,679"),
        (True, "True"),
    ],
)
def test_numbers_are_short(value, text):
    """Thousands are separated, and digits that mean nothing are omitted."""
    assert number(value) == text
