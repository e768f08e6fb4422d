"""All tasks by name, and the task of a fine-tuned model directory."""

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.tasks import chinese, custom, glue, ner, race, squad
from albert_tf.tasks.task import TASK_FILE, Task, typed

TABLES = (custom, glue, squad, race, ner, chinese)
TASKS = {task.name: task for table in TABLES for task in table.ROWS}
KINDS: dict[str, type[Task]] = {row.kind: type(row) for row in custom.ROWS}

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
