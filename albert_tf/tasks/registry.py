"""All tasks by name, and the task of a fine-tuned model directory.

GLUE (https://arxiv.org/abs/1804.07461) files keep their official layout. The
labels, their order and the main metrics come from the released
`classifier_utils.py`; MRPC and QQP also use F1, and STS-B also uses Spearman's
correlation.

The Chinese data sets are CLUE (https://arxiv.org/abs/2004.05986), LCQMC and
ChnSentiCorp. File names, labels and submissions follow CLUE 1.1 and the data
sets' releases. CLUE adds `11` to the name of a submission if version 1.1 has a
new test set; the submission for OCNLI is named after the training set.
"""

import dataclasses
import os

from albert_tf.base import files
from albert_tf.base.errors import brief, errors_in, require
from albert_tf.base.json_values import require_legal, typed
from albert_tf.tasks.classification import (
    LAYOUTS,
    Classification,
    MultiLabel,
    Regression,
    SentenceTask,
)
from albert_tf.tasks.conll import CLASSES, SCHEMES
from albert_tf.tasks.embedding import Embedding
from albert_tf.tasks.metrics import METRICS
from albert_tf.tasks.multiple_choice import (
    READERS,
    MultipleChoice,
    ReaderSettings,
)
from albert_tf.tasks.question_answering import (
    DEFAULTS,
    SCORES,
    QuestionAnswering,
)
from albert_tf.tasks.tables import Columns
from albert_tf.tasks.task import TASK_FILE, Task, splits_of
from albert_tf.tasks.token_classification import TokenClassification
from albert_tf.text.normalization import SURROGATE

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
    **fields,
) -> SentenceTask:
    """Return the task for a GLUE data set.

    The first of `scores` is the main metric. `fields` overrides default fields.
    """
    defaults = {
        "folder": name.upper(),
        "splits": splits_of("train.tsv", "dev.tsv", "test.tsv"),
        "submissions": {"": f"{name.upper()}.tsv"},
        "columns": columns,
        "labels": labels,
        "scores": scores,
        "main_metric": scores[0],
    }
    return kind(name=name, **defaults | fields)


def pair(first: str, second: str, label: str, **fields) -> Columns:
    """Return the columns for pairs of sentences."""
    return Columns(first, second, (label,), **fields)


SENTENCES = pair("sentence1", "sentence2", "label", id="index")
UNLABELED = Columns("sentence", "", (), id="index")

GLUE = (
    glue(
        "cola",
        Columns("4", "", ("2",), header=False),
        scores=("matthews", "accuracy"),
        folder="CoLA",
        predict_columns=UNLABELED,
        submissions={"": "CoLA.tsv"},
    ),
    glue(
        "sst-2", Columns("sentence", "", ("label",)), predict_columns=UNLABELED
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
    # The same pairs, scored by the cosine of the sentences' vectors.
    Embedding(
        name="sts-b-embedding",
        folder="STS-B",
        splits=splits_of("train.tsv", "dev.tsv", "test.tsv"),
        columns=pair("sentence1", "sentence2", "score", id="index"),
    ),
    # A few questions in the official files contain a line feed, which splits a
    # row into two broken lines. The released code also skips such lines.
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
    # For prediction only, with a model fine-tuned on MNLI.
    glue(
        "ax",
        SENTENCES,
        NLI,
        ("matthews", "accuracy"),
        folder="diagnostic",
        splits={"predict": {"": "diagnostic.tsv"}},
    ),
)

NEWS = tuple(str(i) for i in range(100, 117) if i not in (105, 111))
APPS = tuple(str(i) for i in range(119))


def clue(
    name: str,
    columns: Columns,
    labels: tuple[str, ...] = BINARY,
    submission: str = "",
    train: str = "train.json",
    **fields,
) -> Classification:
    """Return the task for a CLUE data set, whose files are JSON lines."""
    return Classification(
        name=name,
        folder=name,
        splits=splits_of(train, "dev.json", "test.json"),
        columns=columns,
        # Only prediction files have an `id` in every data set.
        predict_columns=dataclasses.replace(columns, id="id"),
        labels=labels,
        submissions={"": f"{submission or name}_predict.json"},
        **fields,
    )


ONE = Columns("sentence", "", ("label",))
TWO = Columns("sentence1", "sentence2", ("label",))
DISPUTED = dataclasses.replace(TWO, no_label="-")
WSC = Columns("text", "", ("label",))
TRUTH = ("true", "false")

CHINESE = (
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
            "cmrc2018_train.json", "cmrc2018_dev.json", "cmrc2018_test_2k.json"
        ),
        scoring="cmrc",
        impossible=False,
        # CMRC ranks systems by this metric, and CLUE's baselines use it to
        # select checkpoints.
        main_metric="average",
        submission="cmrc2018_predict.json",
        config=dataclasses.replace(
            DEFAULTS, max_seq_length=512, max_answer_length=50
        ),
    ),
)

# Tasks for the user's files; flags name the columns.
GENERIC = (
    Classification(
        name="classification", scores=("accuracy", "macro_f1", "matthews")
    ),
    MultiLabel(
        name="multilabel",
        scores=("micro_f1", "macro_f1", "accuracy"),
        main_metric="micro_f1",
    ),
    Regression(
        name="regression",
        scores=("pearson", "spearman", "negative_mse"),
        main_metric="pearson",
    ),
    MultipleChoice(name="multiple_choice"),
    QuestionAnswering(name="question_answering"),
    TokenClassification(name="token_classification"),
    Embedding(name="embedding"),
)


def squad(version: str, **fields) -> QuestionAnswering:
    """Return the task for one version of SQuAD."""
    return QuestionAnswering(
        name=f"squad-{version}",
        folder="squad",
        splits={
            "train": {"": f"train-v{version}.json"},
            "eval": {"": f"dev-v{version}.json"},
        },
        **fields,
    )


# https://arxiv.org/abs/1606.05250 and https://arxiv.org/abs/1806.03822
BEAM = dataclasses.replace(DEFAULTS, answer_head="beam")

SQUAD = (
    squad("1.1", scoring="squad1", impossible=False),
    squad("2.0", scoring="squad2", impossible=True, config=BEAM),
)


def race(name: str, *levels: str) -> MultipleChoice:
    """Return a task that reads the given levels of RACE."""
    return MultipleChoice(
        name=name,
        folder="RACE",
        splits=splits_of("train", "dev", "test"),
        layout=ReaderSettings("race", levels=levels),
        number=4,
    )


# https://arxiv.org/abs/1704.04683
RACE = (
    race("race", "middle", "high"),
    race("race-middle", "middle"),
    race("race-high", "high"),
)


def entities(name: str, *file_names: str) -> TokenClassification:
    """Return the task for a data set with three files of CoNLL columns."""
    splits = splits_of(*file_names)
    return TokenClassification(name=name, folder=name, splits=splits)


ENTITIES = (
    # For any folder that contains files with these names.
    entities("ner", "train.txt", "dev.txt", "test.txt"),
    # https://aclanthology.org/W03-0419, with the file names that most copies
    # use.
    entities("conll2003", "train.txt", "valid.txt", "test.txt"),
    # https://aclanthology.org/W17-4418
    entities(
        "wnut17",
        "wnut17train.conll",
        "emerging.dev.conll",
        "emerging.test.annotated",
    ),
)

ROWS = (*GENERIC, *GLUE, *SQUAD, *RACE, *ENTITIES, *CHINESE)
TASKS = {task.name: task for task in ROWS}
KINDS: dict[str, type[Task]] = {row.kind: type(row) for row in GENERIC}

MARKS = str.maketrans("", "", "_-.")


def plain(name: str) -> str:
    """Return a name in lower case, without `_`, `-` or `.`."""
    return name.lower().translate(MARKS)


def find(name: str) -> Task:
    """Find a task by name; sst-2, SST_2 and sst2 are the same name."""
    tasks = {plain(task_name): task for task_name, task in TASKS.items()}
    rule = f"`task` must be one of {', '.join(TASKS)}."
    require(plain(name) in tasks, rule, task=name)
    return tasks[plain(name)]


def is_finetuned(model_dir: str) -> bool:
    """Return whether a model directory contains a fine-tuned model."""
    return files.exists(files.join(model_dir, TASK_FILE))


def task_of(description: dict) -> Task:
    """Return the task that a result of `Task.description` describes."""
    values = dict(description)
    kind = values.pop("kind", None)
    rule = f"`kind` must be one of {', '.join(KINDS)}."
    require(kind in [*KINDS], rule, kind=brief(kind))
    return typed(KINDS[kind], values, TASK_FILE)


# {field of a task or of its reader's settings: its legal values}
CHOICES = {
    "layout": ("", *LAYOUTS),
    "reader": tuple(READERS),
    "scheme": ("", CLASSES, *SCHEMES),
    "scoring": tuple(SCORES),
}


def _is_file_name(name: str) -> bool:
    """Return whether a name is legal and contains no path."""
    inside = os.path.basename(name) == name and name not in (".", "..")
    return inside and files.is_name(name)


def _checked(task: Task) -> Task:
    """Return a task; raise `InputError` if a value is illegal for its kind.

    Names of submissions must contain no path, because fine-tuning writes them
    to its output folder.
    """
    values, config = vars(task), vars(task.config)
    defaults = vars(type(task).config)
    layout = vars(task.layout) if isinstance(task, MultipleChoice) else values
    require_legal(
        {k: x is not None or defaults[k] is None for k, x in config.items()}
        | {k: layout[k] in CHOICES[k] for k in layout.keys() & CHOICES.keys()},
        config | layout,
    )
    labels, file = values.get("labels", ()), values.get("submission", "")
    submissions = values.get("submissions", {"": file}).values()
    enough = not task.has_classes or len(labels) >= task.fewest_labels
    has_scores = isinstance(task, SentenceTask)
    require_legal(
        {
            "labels": enough
            and len({*labels}) == len(labels)
            and not SURROGATE.search("".join(labels)),
            "scores": not has_scores or {*task.scores} <= METRICS.keys(),
            "main_metric": task.main_metric in task.scores,
            "submission": all(map(_is_file_name, submissions)),
        },
        values,
    )
    return task


def load_task(model_dir: str) -> Task:
    """Return the task for which the model in a directory was fine-tuned."""
    path = files.join(model_dir, TASK_FILE)
    values = files.read_json_object(path, "The description of the task")
    with errors_in(f"{path} must be unchanged since fine-tuning wrote it"):
        return _checked(task_of(values))
