"""Chinese: CLUE (https://arxiv.org/abs/2004.05986), LCQMC, ChnSentiCorp.

Names of files, labels and submissions are those of CLUE 1.1 and of the data
sets' releases. `name11_predict.json` is CLUE's name for test sets that 1.1
renewed; that of OCNLI says which of its training sets was used.
"""

import dataclasses

from albert_tf.tasks.classification import Classification
from albert_tf.tasks.question_answering import DEFAULTS, QuestionAnswering
from albert_tf.tasks.tables import Columns

FILES = {
    "train": {"": "train.json"},
    "eval": {"": "dev.json"},
    "predict": {"": "test.json"},
}
NLI = ("contradiction", "entailment", "neutral")
BINARY = ("0", "1")
NEWS = tuple(str(i) for i in range(100, 117) if i not in (105, 111))


def clue(
    name: str,
    columns: Columns,
    labels: tuple[str, ...],
    submission: str = "",
    **more,
) -> Classification:
    """Return the row of a data set of CLUE, in JSON lines."""
    return Classification(
        name=name,
        folder=name,
        splits=more.pop("splits", FILES),
        columns=columns,
        # Only the files to predict number their lines in all data sets.
        predict_columns=dataclasses.replace(columns, id="id"),
        labels=labels,
        scores=("accuracy",),
        main_metric="accuracy",
        submissions={"": f"{submission or name}_predict.json"},
        **more,
    )


def table(name: str, columns: Columns, ending: str) -> Classification:
    """Return the row of a data set in tables with the labels 0 and 1."""
    return Classification(
        name=name,
        folder=name,
        splits={
            "train": {"": f"train{ending}"},
            "eval": {"": f"dev{ending}"},
            "predict": {"": f"test{ending}"},
        },
        columns=columns,
        labels=BINARY,
        scores=("accuracy",),
        main_metric="accuracy",
    )


ROWS = (
    clue(
        "tnews",
        Columns("sentence", "", ("label",)),
        NEWS,
        "tnews11",
    ),
    clue(
        "iflytek",
        Columns("sentence", "", ("label",)),
        tuple(str(i) for i in range(119)),
    ),
    clue("afqmc", Columns("sentence1", "sentence2", ("label",)), BINARY),
    clue(
        "cmnli",
        Columns("sentence1", "sentence2", ("label",), no_label="-"),
        NLI,
    ),
    clue(
        "ocnli",
        Columns("sentence1", "sentence2", ("label",), no_label="-"),
        NLI,
        "ocnli_50k",
        splits=FILES | {"train": {"": "train.50k.json"}},
    ),
    clue("csl", Columns("keyword", "abst", ("label",)), BINARY),
    clue(
        "cluewsc",
        Columns("text", "", ("label",)),
        ("true", "false"),
        "cluewsc11",
        layout="cluewsc",
    ),
    table(
        "lcqmc", Columns("1", "2", ("3",), header=False), ".txt"
    ),  # https://aclanthology.org/C18-1166
    table("chnsenticorp", Columns("text_a", "", ("label",)), ".tsv"),
    # https://aclanthology.org/D19-1600
    QuestionAnswering(
        name="cmrc2018",
        folder="cmrc2018",
        splits={
            "train": {"": "cmrc2018_train.json"},
            "eval": {"": "cmrc2018_dev.json"},
            "predict": {"": "cmrc2018_test_2k.json"},
        },
        scoring="cmrc",
        impossible=False,
        # By which CMRC ranks, and CLUE's baselines keep their weights.
        main_metric="average",
        submission="cmrc2018_predict.json",
        config=dataclasses.replace(
            DEFAULTS, max_seq_length=512, max_answer_length=50
        ),
    ),
)
