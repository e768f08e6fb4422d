"""The user's own data: a file, and columns named by flags."""

from albert_tf.tasks.classification import (
    Classification,
    MultiLabel,
    Regression,
)
from albert_tf.tasks.multiple_choice import MultipleChoice
from albert_tf.tasks.question_answering import QuestionAnswering
from albert_tf.tasks.sentence_embedding import Embedding
from albert_tf.tasks.token_classification import TokenClassification

ROWS = (
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
