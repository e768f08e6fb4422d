"""What fine-tuning lets a user say about a task and its data."""

import dataclasses
from typing import Any

from albert_tf.base.settings import Checked, setting
from albert_tf.data.table_sources import TableObject, as_source

# The heads of question answering: two logits for each token, or the released
# SQuAD 2.0 head, whose end depends on the start, with an answer class.
ANSWER_HEADS = ("simple", "beam")

# How the vectors of a text's tokens become one vector.
POOLINGS = ("mean", "cls", "max")

# The fields of `DataConfig` about columns, of which a kind of task takes some.
TEXT_COLUMNS = (
    *("text_column", "text_pair_column", "label_column"),
    *("id_column", "header"),
)
COLUMNS = (*TEXT_COLUMNS, "choice_columns")


@dataclasses.dataclass(frozen=True)
class TaskConfig(Checked):
    """How examples become inputs, and the head; None is the task's own.

    A kind of task takes some of these settings, see `Task.takes`.
    """

    max_seq_length: int | None = setting(
        None,
        "Tokens of an example; longer ones are cut, or divided. Default: that "
        "of the fine-tuned model, or the task's: 128, 384 for questions.",
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
        "Tokens between the beginnings of the windows over a long context. "
        "Default: 128; a quarter of max_seq_length for token classification.",
        minimum=1,
    )
    max_query_length: int | None = setting(
        None, "Most tokens of a question. Default: 64.", minimum=1
    )
    answer_head: str | None = setting(
        None,
        "Head of question answering; `beam` is the released one of SQuAD 2.0 "
        "and can answer that there is no answer. Default: the task's own.",
        choices=ANSWER_HEADS,
    )
    start_n_top: int | None = setting(
        None, "Starts that the beam head tries. Default: 5.", minimum=1
    )
    end_n_top: int | None = setting(
        None, "Ends for each start of the beam head. Default: 5.", minimum=1
    )
    n_best_size: int | None = setting(
        None, "Answers kept for each question. Default: 20.", minimum=1
    )
    max_answer_length: int | None = setting(
        None, "Most tokens of an answer. Default: 30.", minimum=1
    )
    null_score_diff_threshold: float | None = setting(
        None,
        "A question with null odds above this has no answer. Default: that "
        "of the fine-tuned model, which is what was best for F1 in its "
        "evaluation; 0 if it was not evaluated.",
    )
    max_qa_length: int | None = setting(
        None,
        "Tokens of question and choice; longer ones lose their beginning. "
        "Default: 128.",
        minimum=1,
    )
    temperature: float | None = setting(
        None,
        "What cosines are divided by where vectors of texts are learnt. "
        "Default: 0.05.",
        minimum=0.001,
    )
    pooling: str | None = setting(
        None,
        "How the vectors of tokens become one: their mean, the first, or the "
        "maximum of each component. Default: mean.",
        choices=POOLINGS,
    )
    unit_length: bool | None = setting(
        None, "Whether vectors of texts have length one. Default: true."
    )
    crop_rate: float | None = setting(
        None,
        "Share of a text's tokens that each of the two crops lacks from which "
        "vectors are learnt without pairs; 0 is the whole text twice, which "
        "dropout alone tells apart. Default: 0.3.",
        minimum=0.0,
        maximum=0.99,
    )


@dataclasses.dataclass(frozen=True)
class DataConfig(Checked):
    """Which data set, and where it or the user's own files are."""

    task: str | None = setting(
        None,
        "A data set by name, or a kind for own files: classification, "
        "regression, multilabel, multiple_choice, question_answering, "
        "token_classification, embedding; with a fine-tuned model, its own by "
        "default.",
    )
    data_dir: str | None = setting(
        None, "Folder of the data set's official files, or its parent."
    )
    train_file: str | TableObject | None = setting(
        None,
        "Own training examples: .tsv, .csv, .jsonl or .parquet, a folder that "
        "`save_to_disk` of `datasets` wrote, SQuAD-format .json, CoNLL "
        "columns.",
        convert=as_source,
    )
    eval_file: str | TableObject | None = setting(
        None, "Own examples to evaluate on.", convert=as_source
    )
    predict_file: str | TableObject | None = setting(
        None, "Own examples to predict.", convert=as_source
    )
    text_column: str | None = setting(
        None, "Column of the (first) text, context or word."
    )
    text_pair_column: str | None = setting(
        None, "Column of the second text or question, if there is one."
    )
    choice_columns: tuple = setting(
        (), "Column with the list of choices, or several with one each."
    )
    label_column: tuple = setting(
        (),
        "Column of the label; several columns of 0 and 1 for multilabel, or of "
        "numbers for regression.",
    )
    id_column: str | None = setting(
        None,
        "Column that names the examples in the predictions, or, if each row "
        "is a word, the sentence.",
    )
    header: bool | None = setting(
        None,
        "Whether the first line of own .tsv and .csv files names the columns; "
        "--noheader calls them 1, 2, 3, ...",
    )
    main_metric: str | None = setting(
        None, "Metric by which the best checkpoint is kept."
    )

    def columns(self) -> dict[str, Any]:
        """Return {name: value} of the settings of columns that are given."""
        values = {name: getattr(self, name) for name in COLUMNS}
        return {k: v for k, v in values.items() if v not in (None, ())}

    def of_task(self) -> dict[str, Any]:
        """Return {name: value} of the settings for `Task.updated`."""
        return self.columns() | {"main_metric": self.main_metric}
