"""Named entities in CoNLL columns."""

from albert_tf.tasks.task import splits_of
from albert_tf.tasks.token_classification import TokenClassification


def entities(name: str, *file_names: str) -> TokenClassification:
    """Return the row of a data set from its three files."""
    splits = splits_of(*file_names)
    return TokenClassification(name=name, folder=name, splits=splits)


ROWS = (
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
