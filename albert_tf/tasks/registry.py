"""All tasks by name, and the task of a fine-tuned model directory."""

import dataclasses

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.tasks import chinese, glue
from albert_tf.tasks.classification import (
    Classification,
    MultiLabel,
    Regression,
)
from albert_tf.tasks.multiple_choice import Layout, MultipleChoice
from albert_tf.tasks.question_answering import DEFAULTS, QuestionAnswering
from albert_tf.tasks.sentence_embedding import Embedding
from albert_tf.tasks.task import TASK_FILE, Task, splits_of, typed
from albert_tf.tasks.token_classification import TokenClassification

# The user's own data: a file, and columns named by flags.
OWN = (
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


def squad(version: str, **more) -> QuestionAnswering:
    """Return the row of a version of SQuAD."""
    return QuestionAnswering(
        name=f"squad-{version}",
        folder="squad",
        splits={
            "train": {"": f"train-v{version}.json"},
            "eval": {"": f"dev-v{version}.json"},
        },
        **more,
    )


# https://arxiv.org/abs/1606.05250, and 1806.03822
BEAM = dataclasses.replace(DEFAULTS, answer_head="beam")

SQUAD = (
    squad("1.1", scoring="squad1", impossible=False),
    squad("2.0", scoring="squad2", impossible=True, config=BEAM),
)


def race(name: str, *levels: str) -> MultipleChoice:
    """Return the row of some levels of RACE, in the folders of its release."""
    return MultipleChoice(
        name=name,
        folder="RACE",
        splits=splits_of("train", "dev", "test"),
        layout=Layout("race", levels=levels),
        number=4,
    )


# https://arxiv.org/abs/1704.04683
RACE = (
    race("race", "middle", "high"),
    race("race-middle", "middle"),
    race("race-high", "high"),
)


def entities(name: str, *file_names: str) -> TokenClassification:
    """Return the row of a data set from its three files in CoNLL columns."""
    splits = splits_of(*file_names)
    return TokenClassification(name=name, folder=name, splits=splits)


ENTITIES = (
    # Any folder with files of these names.
    entities("ner", "train.txt", "dev.txt", "test.txt"),
    # https://aclanthology.org/W03-0419, as it is mostly passed on.
    entities("conll2003", "train.txt", "valid.txt", "test.txt"),
    # https://aclanthology.org/W17-4418
    entities(
        "wnut17",
        "wnut17train.conll",
        "emerging.dev.conll",
        "emerging.test.annotated",
    ),
)

ROWS = (*OWN, *glue.ROWS, *SQUAD, *RACE, *ENTITIES, *chinese.ROWS)
TASKS = {task.name: task for task in ROWS}
KINDS: dict[str, type[Task]] = {row.kind: type(row) for row in OWN}

MARKS = str.maketrans("", "", "_-.")


def plain(name: str) -> str:
    """Return a name without the marks in which writings of it differ."""
    return name.lower().translate(MARKS)


def find(name: str) -> Task:
    """Return the task of a name; sst-2, SST_2 and sst2 are the same."""
    tasks = {plain(known): task for known, task in TASKS.items()}
    rule = f"`task` must be one of {', '.join(TASKS)}."
    require(plain(name) in tasks, rule, task=name)
    return tasks[plain(name)]


def is_finetuned(model_dir: str) -> bool:
    """Return whether a model directory holds a fine-tuned model."""
    return files.exists(files.join(model_dir, TASK_FILE))


def task_of(description: dict) -> Task:
    """Return the task that `Task.description` describes."""
    values = dict(description)
    return typed(KINDS[values.pop("kind")], values)


def load_task(model_dir: str) -> Task:
    """Return the task that a model directory was fine-tuned for."""
    path = files.join(model_dir, TASK_FILE)
    values = files.read_json(path, "The description of the task")
    try:
        return task_of(values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{TASK_FILE} must be as fine-tuning wrote it: "
            f"{type(error).__name__} {error}. Received: {path}"
        ) from None
