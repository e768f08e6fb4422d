"""GLUE's official file layouts, each in miniature."""

import pytest
import tiny_tasks

from albert_tf.tasks.registry import find
from albert_tf.tasks.splits import read_splits
from albert_tf.tasks.task import DataConfig

MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse "
    "sentence1_parse sentence2_parse sentence1 sentence2"
).split()
STSB = (
    "index genre filename year old_index source1 source2 sentence1 sentence2"
).split()
QQP = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")


def mnli(number, *more):
    return (number, *"abcdefg", f'a "{number}', "b", *more)


NUMBERED = {"sentence1": "a", "sentence2": "b"}

# task: {file: rows}, then the expected (id, text, text_pair, label) of each.
LAYOUTS = {
    "cola": (
        {
            "train.tsv": [("gj04", 1, "", 'He "said'), ("gj04", 0, "*", "It")],
            "dev.tsv": [("gj04", 1, "", "She")],
            "test.tsv": [("index", "sentence"), (5, "They")],
        },
        {
            "train": [("0", 'He "said', "", "1"), ("1", "It", "", "0")],
            "eval": [("0", "She", "", "1")],
            "predict": [("5", "They", "", None)],
        },
    ),
    "sst-2": (
        {
            "train.tsv": [("sentence", "label"), ("good ", 1)],
            "dev.tsv": [("sentence", "label"), ("bad ", 0)],
            "test.tsv": [("index", "sentence"), (3, "so")],
        },
        {
            "train": [("0", "good ", "", "1")],
            "eval": [("0", "bad ", "", "0")],
            "predict": [("3", "so", "", None)],
        },
    ),
    "mrpc": (
        {
            "train.tsv": [
                ("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
                (1, 7, 8, '" a', "b"),
            ],
            "dev.tsv": [
                ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
                (0, 7, 8, "c", "d"),
            ],
            "test.tsv": [
                ("index", "#1 ID", "#2 ID", "#1 String", "#2 String"),
                (4, 7, 8, "e", "f"),
            ],
        },
        {
            "train": [("0", '" a', "b", "1")],
            "eval": [("0", "c", "d", "0")],
            "predict": [("4", "e", "f", None)],
        },
    ),
    "sts-b": (
        {
            "train.tsv": [(*STSB, "score"), (9, *"abcdef", "a", "b", "4.250")],
            "dev.tsv": [(*STSB, "score"), (2, *"abcdef", "c", "d", "0.000")],
            "test.tsv": [tuple(STSB), (1, *"abcdef", "e", "f")],
        },
        {
            "train": [("9", "a", "b", 4.25)],
            "eval": [("2", "c", "d", 0.0)],
            "predict": [("1", "e", "f", None)],
        },
    ),
    "qqp": (
        {
            "train.tsv": [QQP, (1, 2, 3, "a", "b", 1), (4, 5, 6, "c"), ("", 0)],
            "dev.tsv": [QQP, (7, 2, 3, "a", "b", 0)],
            "test.tsv": [("id", "question1", "question2"), (0, "e", "f")],
        },
        {
            "train": [("1", "a", "b", "1")],
            "eval": [("7", "a", "b", "0")],
            "predict": [("0", "e", "f", None)],
        },
    ),
    "mnli": (
        {
            "train.tsv": [
                (*MNLI, "label1", "gold_label"),
                mnli(0, "neutral", "entailment"),
            ],
            "dev_matched.tsv": [
                (*MNLI, *(f"label{i}" for i in range(1, 6)), "gold_label"),
                mnli(1, *"abcde", "neutral"),
            ],
            "dev_mismatched.tsv": [
                (*MNLI, *(f"label{i}" for i in range(1, 6)), "gold_label"),
                mnli(2, *"abcde", "contradiction"),
            ],
            "test_matched.tsv": [MNLI, mnli(3)],
            "test_mismatched.tsv": [MNLI, mnli(4)],
        },
        {
            "train": [("0", 'a "0', "b", "entailment")],
            "eval matched": [("1", 'a "1', "b", "neutral")],
            "eval mismatched": [("2", 'a "2', "b", "contradiction")],
            "predict matched": [("3", 'a "3', "b", None)],
            "predict mismatched": [("4", 'a "4', "b", None)],
        },
    ),
    "qnli": (
        {
            "train.tsv": [
                ("index", "question", "sentence", "label"),
                (0, "q", "s", "entailment"),
            ],
            "dev.tsv": [
                ("index", "question", "sentence", "label"),
                (1, "q", "s", "not_entailment"),
            ],
            "test.tsv": [("index", "question", "sentence"), (2, "q", "s")],
        },
        {
            "train": [("0", "q", "s", "entailment")],
            "eval": [("1", "q", "s", "not_entailment")],
            "predict": [("2", "q", "s", None)],
        },
    ),
    "ax": (
        {
            "diagnostic.tsv": [("index", "sentence1", "sentence2"), (0, *"ab")],
        },
        {"predict": [("0", "a", "b", None)]},
    ),
}
for name, labels in (
    ("rte", ("entailment", "not_entailment")),
    ("wnli", ("1", "0")),
):
    header = ("index", "sentence1", "sentence2")
    LAYOUTS[name] = (
        {
            "train.tsv": [(*header, "label"), (0, "a", "b", labels[0])],
            "dev.tsv": [(*header, "label"), (1, "c", "d", labels[1])],
            "test.tsv": [header, (2, "e", "f")],
        },
        {
            "train": [("0", "a", "b", labels[0])],
            "eval": [("1", "c", "d", labels[1])],
            "predict": [("2", "e", "f", None)],
        },
    )


@pytest.mark.parametrize("below", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_official_layouts(tmp_path, name, below):
    """Files are read from their folder, or from the parent of all."""
    contents, expected = LAYOUTS[name]
    task = find(name)
    folder = tmp_path / task.folder if below else tmp_path
    for file, rows in contents.items():
        tiny_tasks.write_tsv(folder / file, *rows)
    data = DataConfig(task=name, data_dir=str(tmp_path))
    found = {
        f"{part} {split}".strip(): [
            (e.id, e.text, e.text_pair, e.label) for e in examples
        ]
        for part in task.splits
        for split, examples in read_splits(task, data, part).items()
    }
    assert found == expected


def test_order_of_labels():
    """Classes are numbered as in the release, whose checkpoints have them."""
    nli = ("contradiction", "entailment", "neutral")
    assert find("mnli").labels == nli
    assert (
        find("rte").labels
        == find("qnli").labels
        == nli[1:2] + ("not_entailment",)
    )
