"""A user's settings for a task and its data."""

import dataclasses

from albert_tf.base.settings import (
    MAX_SEQ_LENGTH,
    SAVING,
    TABLE_COLUMNS,
    TASK,
    Validated,
    setting,
    variant,
)
from albert_tf.data.table_sources import InMemoryTable, as_source

# The heads for question answering: two logits for each token, or the released
# SQuAD 2.0 head, which predicts the end from the start and adds a logit for no
# answer.
ANSWER_HEADS = ("simple", "beam")

# Ways to combine a text's token vectors into one vector.
POOLINGS = ("mean", "cls", "max")

# The column settings of `DataConfig`; each kind of task uses some of them.
TEXT_COLUMNS = (
    *("text_column", "text_pair_column", "label_column"),
    *("id_column", "header"),
)
COLUMNS = (*TEXT_COLUMNS, "choice_columns")


NULL_THRESHOLD = setting(
    None,
    "Null odds above which a question has no answer.",
    means="the fine-tuned model's threshold, which gave the best F1 in its "
    "evaluation; 0 if the model was not evaluated",
)


@dataclasses.dataclass(frozen=True)
class TaskConfig(Validated):
    """Settings for a task's inputs and head; None means the task's default.

    Each kind of task uses some of these settings; see `Task.takes`.
    """

    help_group = TASK

    max_seq_length: int | None = variant(
        MAX_SEQ_LENGTH,
        help="Maximum tokens per example; longer examples are truncated or "
        "split.",
        means="the fine-tuned model's, or the task's: 128, 384 for questions, "
        "512 for choices, but at most the model's number of positions",
        minimum=4,
    )
    classifier_dropout: float | None = setting(
        None,
        "Dropout rate before the task's layer.",
        means="0.1",
        minimum=0.0,
        maximum=0.99,
    )
    doc_stride: int | None = setting(
        None,
        "Tokens between the starts of adjacent windows over a long context.",
        means="128; three quarters of the window for token classification",
        minimum=1,
    )
    max_query_length: int | None = setting(
        None, "Maximum tokens in a question.", means="64", minimum=1
    )
    answer_head: str | None = setting(
        None,
        "Head for question answering; `beam` is the released head for SQuAD "
        "2.0, which can predict that there is no answer.",
        means="the task's",
        choices=ANSWER_HEADS,
    )
    start_n_top: int | None = setting(
        None, "Answer starts that the beam head tries.", means="5", minimum=1
    )
    end_n_top: int | None = setting(
        None,
        "Answer ends that the beam head tries for each start.",
        means="5",
        minimum=1,
    )
    n_best_size: int | None = setting(
        None, "Candidate answers per question.", means="20", minimum=1
    )
    max_answer_length: int | None = setting(
        None, "Maximum tokens in an answer.", means="30", minimum=1
    )
    null_score_diff_threshold: float | None = variant(NULL_THRESHOLD)
    max_qa_length: int | None = setting(
        None,
        "Maximum tokens in a question and choice; longer texts are truncated "
        "at the start.",
        means="128",
        minimum=1,
    )
    temperature: float | None = setting(
        None,
        "Temperature by which training divides the cosines of sentence "
        "embeddings.",
        means="0.05",
        minimum=0.001,
    )
    pooling: str | None = setting(
        None,
        "How token vectors become one vector: their mean, the first vector, or "
        "the maximum of each component.",
        means="mean",
        choices=POOLINGS,
    )
    unit_length: bool | None = setting(
        None, "Scale text vectors to unit length.", means="true"
    )
    crop_rate: float | None = setting(
        None,
        "Share of a text's tokens that each crop omits. Without pairs, the "
        "model learns from two crops of each text; with 0, the two copies "
        "differ only in dropout.",
        means="0.3",
        minimum=0.0,
        maximum=0.99,
    )


@dataclasses.dataclass(frozen=True)
class DataConfig(Validated):
    """The data set, and the folder or files that contain its examples."""

    task: str | None = setting(
        None,
        "Name of a data set, or the kind of task for your own files: "
        "classification, regression, multilabel, multiple_choice, "
        "question_answering, token_classification or embedding.",
        means="the fine-tuned model's",
        group=TASK,
    )
    data_dir: str | None = setting(
        None,
        "Folder with the data set's official files, or the parent of this "
        "folder.",
    )
    train_file: str | InMemoryTable | None = setting(
        None,
        "Your training examples: .tsv, .csv, .jsonl or .parquet, a folder "
        "written by `save_to_disk` of `datasets`, SQuAD-format .json, or CoNLL "
        "columns.",
        convert=as_source,
    )
    eval_file: str | InMemoryTable | None = setting(
        None, "Your evaluation examples.", convert=as_source
    )
    predict_file: str | InMemoryTable | None = setting(
        None, "Your examples for prediction.", convert=as_source
    )
    text_column: str | None = setting(
        None,
        "Column of the (first) text, context or word.",
        group=TABLE_COLUMNS,
    )
    text_pair_column: str | None = setting(
        None,
        "Column of the second text or question, if any.",
        group=TABLE_COLUMNS,
    )
    choice_columns: tuple = setting(
        (),
        "Column with a list of choices, or several columns, one per choice.",
        group=TABLE_COLUMNS,
    )
    label_column: tuple = setting(
        (),
        "Column of the label, or several columns: of 0 and 1 for multilabel, "
        "of numbers for regression.",
        group=TABLE_COLUMNS,
    )
    id_column: str | None = setting(
        None,
        "Column of the example's name in the predictions, or of the sentence's "
        "name if each row is a word.",
        group=TABLE_COLUMNS,
    )
    header: bool | None = setting(
        None,
        "Read column names from the first line of your .tsv and .csv files; "
        "with --noheader, the columns are called 1, 2, 3, ...",
        means="true",
        group=TABLE_COLUMNS,
    )
    main_metric: str | None = setting(
        None,
        "Metric that selects the best checkpoint.",
        means="the task's",
        group=SAVING,
    )
