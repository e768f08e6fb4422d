"""A user's settings of a task and its data."""

import dataclasses

from albert_tf.base.settings import Validated, setting
from albert_tf.data.table_sources import InMemoryTable, as_source

# The heads of question answering: two logits for each token; or the released
# SQuAD 2.0 head, whose end depends on the start, with a logit for no answer.
ANSWER_HEADS = ("simple", "beam")

# How a text's token vectors become one vector.
POOLINGS = ("mean", "cls", "max")

# The column settings of `DataConfig`; each kind of task uses some of them.
TEXT_COLUMNS = (
    *("text_column", "text_pair_column", "label_column"),
    *("id_column", "header"),
)
COLUMNS = (*TEXT_COLUMNS, "choice_columns")


@dataclasses.dataclass(frozen=True)
class TaskConfig(Validated):
    """Inputs and head of a task; None means the task's default.

    Each kind of task uses some of these settings; see `Task.takes`.
    """

    max_seq_length: int | None = setting(
        None,
        "Maximum tokens per example; longer ones are cut or split. Default: "
        "the fine-tuned model's, or the task's: 128, 384 for questions.",
        minimum=4,
    )
    classifier_dropout: float | None = setting(
        None,
        "Dropout before the task's own layer. Default: 0.1.",
        minimum=0.0,
        maximum=0.99,
    )
    doc_stride: int | None = setting(
        None,
        "Tokens between the starts of adjacent windows over a long context. "
        "Default: 128; three quarters of the window for token classification.",
        minimum=1,
    )
    max_query_length: int | None = setting(
        None, "Maximum tokens of a question. Default: 64.", minimum=1
    )
    answer_head: str | None = setting(
        None,
        "Head for question answering; `beam` is the released head for SQuAD "
        "2.0, which can predict that there is no answer. Default: the task's.",
        choices=ANSWER_HEADS,
    )
    start_n_top: int | None = setting(
        None, "Answer starts that the beam head tries. Default: 5.", minimum=1
    )
    end_n_top: int | None = setting(
        None, "Ends per start that the beam head tries. Default: 5.", minimum=1
    )
    n_best_size: int | None = setting(
        None, "Candidate answers per question. Default: 20.", minimum=1
    )
    max_answer_length: int | None = setting(
        None, "Maximum tokens of an answer. Default: 30.", minimum=1
    )
    null_score_diff_threshold: float | None = setting(
        None,
        "Null odds above which a question has no answer. Default: the "
        "fine-tuned model's threshold, which gave the best F1 in its "
        "evaluation; 0 if it was not evaluated.",
    )
    max_qa_length: int | None = setting(
        None,
        "Maximum tokens of question and choice; longer ones are cut at the "
        "start. Default: 128.",
        minimum=1,
    )
    temperature: float | None = setting(
        None,
        "Temperature that divides the cosines when learning sentence "
        "embeddings. Default: 0.05.",
        minimum=0.001,
    )
    pooling: str | None = setting(
        None,
        "How token vectors become one vector: their mean, the first, or the "
        "maximum of each component. Default: mean.",
        choices=POOLINGS,
    )
    unit_length: bool | None = setting(
        None, "Whether to scale text vectors to length one. Default: true."
    )
    crop_rate: float | None = setting(
        None,
        "Without pairs, vectors are learnt from two crops of each text; this "
        "share of its tokens is cropped. With 0, the two copies differ only "
        "by dropout. Default: 0.3.",
        minimum=0.0,
        maximum=0.99,
    )


@dataclasses.dataclass(frozen=True)
class DataConfig(Validated):
    """The data set, and the folder or the user's files with its examples."""

    task: str | None = setting(
        None,
        "Name of a data set, or a kind for your own files: classification, "
        "regression, multilabel, multiple_choice, question_answering, "
        "token_classification, embedding. Default with a fine-tuned model: "
        "its task.",
    )
    data_dir: str | None = setting(
        None, "Folder with the data set's official files, or its parent."
    )
    train_file: str | InMemoryTable | None = setting(
        None,
        "Your training examples: .tsv, .csv, .jsonl or .parquet, a folder "
        "written by `save_to_disk` of `datasets`, SQuAD-format .json, or CoNLL "
        "columns.",
        convert=as_source,
    )
    eval_file: str | InMemoryTable | None = setting(
        None, "Your examples to evaluate on.", convert=as_source
    )
    predict_file: str | InMemoryTable | None = setting(
        None, "Your examples to predict.", convert=as_source
    )
    text_column: str | None = setting(
        None, "Column of the (first) text, context or word."
    )
    text_pair_column: str | None = setting(
        None, "Column of the second text or question, if any."
    )
    choice_columns: tuple = setting(
        (), "Column with a list of choices, or several columns, one per choice."
    )
    label_column: tuple = setting(
        (),
        "Column of the label, or several columns: of 0 and 1 for multilabel, "
        "of numbers for regression.",
    )
    id_column: str | None = setting(
        None,
        "Column of the example's name in the predictions, or of the sentence's "
        "name if each row is a word.",
    )
    header: bool | None = setting(
        None,
        "Whether the first line of your .tsv and .csv files names the columns; "
        "with --noheader they are called 1, 2, 3, ...",
    )
    main_metric: str | None = setting(
        None, "Metric that selects the best checkpoint."
    )
