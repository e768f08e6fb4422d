"""The GLUE benchmark, https://arxiv.org/abs/1804.07461, in its own layout.

Labels, their order and the main metrics are those of the released
`classifier_utils.py`; MRPC and QQP also have F1, STS-B also Spearman.
"""

from albert_tf.tasks.classification import Classification, Regression
from albert_tf.tasks.sentence_embedding import Embedding
from albert_tf.tasks.sentences import SentenceTask
from albert_tf.tasks.tables import Columns
from albert_tf.tasks.task import splits_of

MATCHED = ("matched", "mismatched")
NLI = ("contradiction", "entailment", "neutral")
ENTAILMENT = ("entailment", "not_entailment")
BINARY = ("0", "1")


def glue(
    name: str,
    columns: Columns,
    labels: tuple[str, ...] = BINARY,
    scores: tuple[str, ...] = ("accuracy",),
    kind: type[SentenceTask] = Classification,
    **more,
) -> SentenceTask:
    """Return the row of a data set; the first of its scores is the main one."""
    usual = {
        "folder": name.upper(),
        "splits": splits_of("train.tsv", "dev.tsv", "test.tsv"),
        "submissions": {"": f"{name.upper()}.tsv"},
        "columns": columns,
        "labels": labels,
        "scores": scores,
        "main_metric": scores[0],
    }
    return kind(name=name, **usual | more)


def pair(first: str, second: str, label: str, **more) -> Columns:
    """Return the columns of a pair of sentences."""
    return Columns(first, second, (label,), **more)


SENTENCES = pair("sentence1", "sentence2", "label", id="index")
UNLABELLED = Columns("sentence", "", (), id="index")

ROWS = (
    glue(
        "cola",
        Columns("4", "", ("2",), header=False),
        scores=("matthews", "accuracy"),
        folder="CoLA",
        predict_columns=UNLABELLED,
        submissions={"": "CoLA.tsv"},
    ),
    glue(
        "sst-2",
        Columns("sentence", "", ("label",)),
        predict_columns=UNLABELLED,
    ),
    glue(
        "mrpc",
        pair("#1 String", "#2 String", "Quality"),
        scores=("accuracy", "f1"),
        predict_columns=Columns("#1 String", "#2 String", (), id="index"),
    ),
    glue(
        "sts-b",
        pair("sentence1", "sentence2", "score", id="index"),
        (),
        ("pearson", "spearman"),
        Regression,
    ),
    # The same pairs by the cosine of their vectors.
    Embedding(
        name="sts-b-embedding",
        folder="STS-B",
        splits=splits_of("train.tsv", "dev.tsv", "test.tsv"),
        columns=pair("sentence1", "sentence2", "score", id="index"),
    ),
    # Some questions of the official files hold a line feed, which leaves two
    # broken lines; the release passes over them too.
    glue(
        "qqp",
        pair(
            "question1", "question2", "is_duplicate", id="id", skip_broken=True
        ),
        scores=("accuracy", "f1"),
    ),
    glue(
        "mnli",
        pair("sentence1", "sentence2", "gold_label", id="index"),
        NLI,
        splits={
            "train": {"": "train.tsv"},
            "eval": {name: f"dev_{name}.tsv" for name in MATCHED},
            "predict": {name: f"test_{name}.tsv" for name in MATCHED},
        },
        submissions={"matched": "MNLI-m.tsv", "mismatched": "MNLI-mm.tsv"},
    ),
    glue("qnli", pair("question", "sentence", "label", id="index"), ENTAILMENT),
    glue("rte", SENTENCES, ENTAILMENT),
    glue("wnli", SENTENCES),
    # Only to predict, with a model that was fine-tuned on MNLI.
    glue(
        "ax",
        SENTENCES,
        NLI,
        ("matthews", "accuracy"),
        folder="diagnostic",
        splits={"predict": {"": "diagnostic.tsv"}},
    ),
)
