"""The GLUE benchmark, https://arxiv.org/abs/1804.07461, in its own layout.

Labels, their order and the main metrics are those of the released
`classifier_utils.py`; MRPC and QQP also have F1, STS-B also Spearman.
"""

from albert_tf.tasks.classification import Classification, Regression
from albert_tf.tasks.tables import Columns

SPLITS = {
    "train": {"": "train.tsv"},
    "eval": {"": "dev.tsv"},
    "predict": {"": "test.tsv"},
}
MNLI_SPLITS = {
    "train": {"": "train.tsv"},
    "eval": {
        "matched": "dev_matched.tsv",
        "mismatched": "dev_mismatched.tsv",
    },
    "predict": {
        "matched": "test_matched.tsv",
        "mismatched": "test_mismatched.tsv",
    },
}
NLI = ("contradiction", "entailment", "neutral")
ENTAILMENT = ("entailment", "not_entailment")
BINARY = ("0", "1")


def pair(first: str, second: str, label: str, **kwargs) -> Columns:
    """Return the columns of a pair of sentences."""
    return Columns(first, second, (label,), **kwargs)


ROWS = (
    Classification(
        name="cola",
        folder="CoLA",
        splits=SPLITS,
        submissions={"": "CoLA.tsv"},
        columns=Columns("4", "", ("2",), header=False),
        predict_columns=Columns("sentence", "", (), id="index"),
        labels=BINARY,
        scores=("matthews", "accuracy"),
        main_metric="matthews",
    ),
    Classification(
        name="sst-2",
        folder="SST-2",
        splits=SPLITS,
        submissions={"": "SST-2.tsv"},
        columns=Columns("sentence", "", ("label",)),
        predict_columns=Columns("sentence", "", (), id="index"),
        labels=BINARY,
        scores=("accuracy",),
        main_metric="accuracy",
    ),
    Classification(
        name="mrpc",
        folder="MRPC",
        splits=SPLITS,
        submissions={"": "MRPC.tsv"},
        columns=pair("#1 String", "#2 String", "Quality"),
        predict_columns=Columns("#1 String", "#2 String", (), id="index"),
        labels=BINARY,
        scores=("accuracy", "f1"),
        main_metric="accuracy",
    ),
    Regression(
        name="sts-b",
        folder="STS-B",
        splits=SPLITS,
        submissions={"": "STS-B.tsv"},
        columns=pair("sentence1", "sentence2", "score", id="index"),
        scores=("pearson", "spearman"),
        main_metric="pearson",
    ),
    Classification(
        name="qqp",
        folder="QQP",
        splits=SPLITS,
        submissions={"": "QQP.tsv"},
        # Some questions of the official files hold a line feed, which leaves
        # two broken lines; the release passes over them too.
        columns=pair(
            "question1", "question2", "is_duplicate", id="id", skip_broken=True
        ),
        labels=BINARY,
        scores=("accuracy", "f1"),
        main_metric="accuracy",
    ),
    Classification(
        name="mnli",
        folder="MNLI",
        splits=MNLI_SPLITS,
        submissions={"matched": "MNLI-m.tsv", "mismatched": "MNLI-mm.tsv"},
        columns=pair("sentence1", "sentence2", "gold_label", id="index"),
        labels=NLI,
        scores=("accuracy",),
        main_metric="accuracy",
    ),
    Classification(
        name="qnli",
        folder="QNLI",
        splits=SPLITS,
        submissions={"": "QNLI.tsv"},
        columns=pair("question", "sentence", "label", id="index"),
        labels=ENTAILMENT,
        scores=("accuracy",),
        main_metric="accuracy",
    ),
    Classification(
        name="rte",
        folder="RTE",
        splits=SPLITS,
        submissions={"": "RTE.tsv"},
        columns=pair("sentence1", "sentence2", "label", id="index"),
        labels=ENTAILMENT,
        scores=("accuracy",),
        main_metric="accuracy",
    ),
    Classification(
        name="wnli",
        folder="WNLI",
        splits=SPLITS,
        submissions={"": "WNLI.tsv"},
        columns=pair("sentence1", "sentence2", "label", id="index"),
        labels=BINARY,
        scores=("accuracy",),
        main_metric="accuracy",
    ),
    # Only to predict, with a model that was fine-tuned on MNLI.
    Classification(
        name="ax",
        folder="diagnostic",
        splits={"predict": {"": "diagnostic.tsv"}},
        submissions={"": "AX.tsv"},
        columns=pair("sentence1", "sentence2", "label", id="index"),
        labels=NLI,
        scores=("accuracy", "matthews"),
        main_metric="matthews",
    ),
)
