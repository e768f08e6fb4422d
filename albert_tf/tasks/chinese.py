"""Chinese: CLUE (https://arxiv.org/abs/2004.05986), LCQMC, ChnSentiCorp.

Names of files, labels and submissions are those of CLUE 1.1 and of the data
sets' releases. `name11_predict.json` is CLUE's name for test sets that 1.1
renewed; that of OCNLI says which of its training sets was used.
"""

import dataclasses

from albert_tf.tasks.classification import Classification
from albert_tf.tasks.glue import BINARY, NLI
from albert_tf.tasks.question_answering import DEFAULTS, QuestionAnswering
from albert_tf.tasks.tables import Columns
from albert_tf.tasks.task import splits_of

NEWS = tuple(str(i) for i in range(100, 117) if i not in (105, 111))
APPS = tuple(str(i) for i in range(119))


def clue(
    name: str,
    columns: Columns,
    labels: tuple[str, ...] = BINARY,
    submission: str = "",
    train: str = "train.json",
    **more,
) -> Classification:
    """Return the row of a data set of CLUE, in JSON lines."""
    return Classification(
        name=name,
        folder=name,
        splits=splits_of(train, "dev.json", "test.json"),
        columns=columns,
        # Only the files to predict number their lines in all data sets.
        predict_columns=dataclasses.replace(columns, id="id"),
        labels=labels,
        submissions={"": f"{submission or name}_predict.json"},
        **more,
    )


ONE = Columns("sentence", "", ("label",))
TWO = Columns("sentence1", "sentence2", ("label",))
DISPUTED = dataclasses.replace(TWO, no_label="-")
WSC = Columns("text", "", ("label",))
TRUTH = ("true", "false")

ROWS = (
    clue("tnews", ONE, NEWS, "tnews11"),
    clue("iflytek", ONE, APPS),
    clue("afqmc", TWO),
    clue("cmnli", DISPUTED, NLI),
    clue("ocnli", DISPUTED, NLI, "ocnli_50k", "train.50k.json"),
    clue("csl", Columns("keyword", "abst", ("label",))),
    clue("cluewsc", WSC, TRUTH, "cluewsc11", layout="cluewsc"),
    # https://aclanthology.org/C18-1166
    Classification(
        name="lcqmc",
        folder="lcqmc",
        splits=splits_of("train.txt", "dev.txt", "test.txt"),
        columns=Columns("1", "2", ("3",), header=False),
        labels=BINARY,
    ),
    Classification(
        name="chnsenticorp",
        folder="chnsenticorp",
        splits=splits_of("train.tsv", "dev.tsv", "test.tsv"),
        columns=Columns("text_a", "", ("label",)),
        labels=BINARY,
    ),
    # https://aclanthology.org/D19-1600
    QuestionAnswering(
        name="cmrc2018",
        folder="cmrc2018",
        splits=splits_of(
            "cmrc2018_train.json",
            "cmrc2018_dev.json",
            "cmrc2018_test_2k.json",
        ),
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
