"""GLUE's official file layouts, in miniature."""

import pytest
import tiny_tasks

from albert_tf.tasks.registry import find
from albert_tf.tasks.task import read_splits
from albert_tf.tasks.task_config import DataConfig

MNLI = (
    "index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|"
    "sentence1_parse|sentence2_parse|sentence1|sentence2"
)
MNLI_DEV = f"{MNLI}|label1|label2|label3|label4|label5|gold_label"
STSB = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
QQP = "id|qid1|qid2|question1|question2|is_duplicate"
MRPC = "#1 ID|#2 ID|#1 String|#2 String"
QNLI, PAIR = "index|question|sentence", "index|sentence1|sentence2"

# " / " separates rows; "|" separates cells. For each task: the files;
# then the id, text, text_pair and label that are read from each split.
LAYOUTS = {
    "cola": (
        {
            "train.tsv": 'gj04|1||He "said / gj04|0|*|It',
            "dev.tsv": "gj04|1||She",
            "test.tsv": "index|sentence / 5|They",
        },
        {
            "train": '0|He "said||1 / 1|It||0',
            "eval": "0|She||1",
            "predict": "5|They||None",
        },
    ),
    "sst-2": (
        {
            "train.tsv": "sentence|label / good |1",
            "dev.tsv": "sentence|label / bad |0",
            "test.tsv": "index|sentence / 3|so",
        },
        {
            "train": "0|good ||1",
            "eval": "0|bad ||0",
            "predict": "3|so||None",
        },
    ),
    "mrpc": (
        {
            "train.tsv": f'\ufeffQuality|{MRPC} / 1|7|8|" a|b',
            "dev.tsv": f"Quality|{MRPC} / 0|7|8|c|d",
            "test.tsv": f"index|{MRPC} / 4|7|8|e|f",
        },
        {"train": '0|" a|b|1', "eval": "0|c|d|0", "predict": "4|e|f|None"},
    ),
    "sts-b": (
        {
            "train.tsv": f"{STSB}|score / 9|a|b|c|d|e|f|a|b|4.250",
            "dev.tsv": f"{STSB}|score / 2|a|b|c|d|e|f|c|d|0.000",
            "test.tsv": f"{STSB} / 1|a|b|c|d|e|f|e|f",
        },
        {"train": "9|a|b|4.25", "eval": "2|c|d|0.0", "predict": "1|e|f|None"},
    ),
    "qqp": (
        {
            "train.tsv": f"{QQP} / 1|2|3|a|b|1 / 4|5|6|c / |0",
            "dev.tsv": f"{QQP} / 7|2|3|a|b|0",
            "test.tsv": "id|question1|question2 / 0|e|f",
        },
        {"train": "1|a|b|1", "eval": "7|a|b|0", "predict": "0|e|f|None"},
    ),
    "mnli": (
        {
            "train.tsv": f"{MNLI}|label1|gold_label / "
            "0|a|b|c|d|e|f|g|x|y|neutral|entailment",
            "dev_matched.tsv": f"{MNLI_DEV} / "
            "1|a|b|c|d|e|f|g|x|y|a|b|c|d|e|neutral",
            "dev_mismatched.tsv": f"{MNLI_DEV} / "
            "2|a|b|c|d|e|f|g|x|y|a|b|c|d|e|contradiction",
            "test_matched.tsv": f"{MNLI} / 3|a|b|c|d|e|f|g|x|y",
            "test_mismatched.tsv": f"{MNLI} / 4|a|b|c|d|e|f|g|x|y",
        },
        {
            "train": "0|x|y|entailment",
            "eval matched": "1|x|y|neutral",
            "eval mismatched": "2|x|y|contradiction",
            "predict matched": "3|x|y|None",
            "predict mismatched": "4|x|y|None",
        },
    ),
    "ax": ({"diagnostic.tsv": f"{PAIR} / 0|a|b"}, {"predict": "0|a|b|None"}),
}
for name, header, first, second in (
    ("qnli", QNLI, "entailment", "not_entailment"),
    ("rte", PAIR, "entailment", "not_entailment"),
    ("wnli", PAIR, "1", "0"),
):
    LAYOUTS[name] = (
        {
            "train.tsv": f"{header}|label / 0|a|b|{first}",
            "dev.tsv": f"{header}|label / 1|c|d|{second}",
            "test.tsv": f"{header} / 2|e|f",
        },
        {
            "train": f"0|a|b|{first}",
            "eval": f"1|c|d|{second}",
            "predict": "2|e|f|None",
        },
    )


@pytest.mark.parametrize("below", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_official_layouts(tmp_path, name, below):
    """Official files are read from a task's folder or from the folder above."""
    contents, expected = LAYOUTS[name]
    task = find(name)
    folder = tmp_path / task.folder if below else tmp_path
    for file, rows in contents.items():
        cells = [row.split("|") for row in rows.split(" / ")]
        tiny_tasks.write_tsv(folder / file, *cells)
    data = DataConfig(task=name, data_dir=str(tmp_path))
    found = {
        f"{part} {split}".strip(): " / ".join(
            f"{e.id}|{e.text}|{e.text_pair}|{e.label}" for e in examples
        )
        for part in task.splits
        for split, examples in read_splits(task, data, part).items()
    }
    assert found == expected
