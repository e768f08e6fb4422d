"""Heads of fine-tuned models on the Hugging Face hub.

This module supports the heads of transformers' classes and the pooling of
sentence-transformers folders.
"""

import dataclasses

from albert_tf.base import files
from albert_tf.base.errors import brief, errors_in, require
from albert_tf.base.json_values import field, flag_in, typed
from albert_tf.conversion.tokenizer_files import length_of, token_limit
from albert_tf.conversion.variable_names import StoredTensor
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.classification import PAIR
from albert_tf.tasks.registry import KINDS, find, is_finetuned, load_task
from albert_tf.tasks.tables import label_text
from albert_tf.tasks.task import TASK_FILE, Task
from albert_tf.tasks.task_config import POOLINGS
from albert_tf.text.tokenizers import Tokenizer

# {`problem_type`: kind of task} for the sequence classification class
PROBLEMS = {t.problem_type: k for k, t in KINDS.items() if t.problem_type}
PRETRAINED = ("AlbertModel", "AlbertForPreTraining", "AlbertForMaskedLM")
# Classes without a pooler, although older versions of transformers wrote one.
WITHOUT_POOLER = (
    "AlbertForMaskedLM",
    "AlbertForTokenClassification",
    "AlbertForQuestionAnswering",
)


def head_tensors(
    task: Task | None, config: AlbertConfig
) -> dict[str, StoredTensor]:
    """Return {our name: stored tensor} for a task's head; {} without a head."""
    name = task.hub_head if task else ""
    if not name:
        return {}
    outputs = len(getattr(task, "labels", ())) or 1
    if task.kind == "question_answering":
        outputs = 2
    kernel = StoredTensor(f"{name}.weight", (outputs, config.hidden_size), True)
    bias = StoredTensor(f"{name}.bias", (outputs,))
    return {"classifier/kernel": kernel, "classifier/bias": bias}


def head_of(task: Task) -> dict:
    """Return the values that describe a task's head in `config.json`.

    Raises:
      InputError: if Hugging Face's classes have no equivalent head.
    """
    require(
        task.config.answer_head != "beam",
        "The task's head must exist in transformers, which has no equivalent "
        "of answer_head=beam.",
        task=task.name,
    )
    values: dict = {"architectures": [task.hub_class]}
    if not task.hub_head:
        return values
    values["classifier_dropout_prob"] = task.config.classifier_dropout
    if task.problem_type:
        values["problem_type"] = task.problem_type
    labels = getattr(task, "labels", ()) or ("score",)
    if task.problem_type or task.kind == "token_classification":
        values["id2label"] = dict(enumerate(labels))
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    return values


def labels_in(values: dict) -> tuple[str, ...]:
    """Return the labels in a `config.json`, in the order of their ids."""
    num_labels = values.get("num_labels", 2)
    rule = "`num_labels` must be a whole number."
    require(isinstance(num_labels, int), rule, num_labels=repr(num_labels))
    default = {str(i): f"LABEL_{i}" for i in range(num_labels)}
    names = values.get("id2label")
    names = default if names in (None, {}) else names
    rule = "`id2label` must map the ids 0, 1, 2, ... to distinct names."
    require(isinstance(names, dict), rule, id2label=names)
    ids = [str(i) for i in range(len(names))]
    require({*names} == {*ids}, rule, id2label=names)
    labels = tuple(label_text(names[i], "`id2label`") for i in ids)
    require(len({*labels} - {None}) == len(names), rule, id2label=names)
    return labels


def kind_in(values: dict, labels: tuple[str, ...]) -> str:
    """Return the kind of task that the class and `problem_type` imply."""
    architecture = values["architectures"][0]
    kinds = [k for k, t in KINDS.items() if t.hub_class == architecture]
    classes = [kind.hub_class for kind in KINDS.values()]
    supported = dict.fromkeys([*PRETRAINED, *classes])
    require(
        kinds,
        f"`architectures` must be one of {', '.join(supported)}. For any other "
        "class, set `encoder_only` to convert only the encoder.",
        architectures=architecture,
    )
    if not KINDS[kinds[0]].problem_type:
        return kinds[0]
    several = len(labels) > 1
    default = "single_label_classification" if several else "regression"
    problem = str(values.get("problem_type") or default)
    require(
        problem in PROBLEMS and (several or problem == "regression"),
        f"`problem_type` must be one of {', '.join(PROBLEMS)}; for one label, "
        "it must be regression.",
        problem_type=problem,
        id2label=", ".join(labels),
    )
    return PROBLEMS[problem]


def task_in(
    values: dict, limit: int | None, positions: int, pairs: bool
) -> Task:
    """Return the task that a `config.json` describes.

    The file does not specify whether questions may be unanswerable; this
    function assumes that they may. If the user passes `task=squad-1.1`, the
    model answers every question.

    Args:
      values: the config.
      limit: the tokenizer's maximum number of tokens, or None if unlimited.
      positions: the model's maximum number of tokens.
      pairs: whether a classifier classifies text pairs.
    """
    labels = labels_in(values)
    task = find(kind_in(values, labels))
    default = task.config.max_seq_length
    if task.has_classes or task.kind == "regression" and len(labels) > 1:
        task = dataclasses.replace(task, labels=labels)
    if task.kind == "question_answering":
        task = dataclasses.replace(task, impossible=True, scoring="squad2")
        limit = min(limit or default, default)  # tokens per window
    if pairs and task.problem_type:
        task = task.updated(text_pair_column=PAIR)
    dropout = values.get("classifier_dropout_prob", 0.1)
    length = min(limit or default, positions)
    return task.updated(classifier_dropout=dropout, max_seq_length=length)


def read_task(
    folder: str, values: dict, positions: int, pairs: bool
) -> Task | None:
    """Return the task of a folder's model, or None if it is not fine-tuned.

    Args:
      folder: the folder, which contains `task.json` if this package wrote it.
      values: the content of the folder's `config.json`.
      positions: the model's maximum number of tokens.
      pairs: whether a classifier classifies text pairs, if no file specifies
        this property.
    """
    architecture, task = values["architectures"][0], None
    if architecture not in PRETRAINED:
        task = task_in(values, token_limit(folder), positions, pairs)
    if not is_finetuned(folder):
        return task
    saved_task = load_task(folder)
    saved_head = saved_task.hub_class, getattr(saved_task, "labels", ())
    rule = f"`{TASK_FILE}` must describe the head of `config.json`."
    config_head = architecture, getattr(task, "labels", ())
    require(saved_head == config_head, rule, path=folder)
    return saved_task


MODULES_FILE = "modules.json"
POOLING_CONFIG = "1_Pooling/config.json"
SUPPORTED_MODULES = ("Transformer", "Pooling", "Normalize")
# Flags of older versions; newer versions have `pooling_mode`.
FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
ENCODER_SETTINGS = "sentence_*_config.json"
SETTINGS = "config_sentence_transformers.json"


@dataclasses.dataclass(frozen=True)
class Modules:
    """The modules of a sentence-transformers folder.

    Attributes:
      folder: the encoder's folder.
      pooling: one of `POOLINGS`.
      unit_length: whether vectors have unit length.
      length: maximum number of tokens in a text, or None if not set.
      do_lower_case: whether to lower-case texts before tokenization.
      prompt: default prefix of each text, or "" if there is none.
    """

    folder: str
    pooling: str
    unit_length: bool
    length: int | None
    do_lower_case: bool
    prompt: str = ""

    @property
    def warnings(self) -> list[str]:
        """Warnings about settings that have no equivalent in this package."""
        rule = "sentence-transformers prepends a prompt to each text"
        advice = "add it to your texts"
        return [f"{rule}, {self.prompt!r}; {advice}"] if self.prompt else []

    def task(self, positions: int) -> Task:
        """Return the task that computes the same vectors as these modules."""
        limit = token_limit(self.folder)
        limit = self.length or limit or positions
        return find("embedding").updated(
            pooling=self.pooling,
            unit_length=self.unit_length,
            max_seq_length=min(limit, positions),
        )

    def tokenizer(self, tokenizer: Tokenizer | None) -> Tokenizer | None:
        """Return the tokenizer, which lower-cases text if the modules do."""
        if not (tokenizer and self.do_lower_case):
            return tokenizer
        config = dataclasses.replace(tokenizer.config, do_lower_case=True)
        return type(tokenizer)(tokenizer.content, config)


def _pooling(values: dict, path: str) -> str:
    """Return a module's pooling, which must be exactly one of `POOLINGS`."""
    modes = values.get("pooling_mode")
    if modes is None:
        names = [name for name in values if name.startswith("pooling_mode_")]
        active = [n for n in names if flag_in(values, n, path)]
        modes = [FLAGS.get(name, name) for name in active]
    modes = [modes] if isinstance(modes, str) else modes
    require(
        len(modes) == 1 and modes[0] in POOLINGS,
        f"The pooling must be one of {', '.join(POOLINGS)}. For any other "
        "pooling, set `encoder_only` to convert only the encoder.",
        pooling=f"{', '.join(modes)} in {path}",
    )
    return modes[0]


def _prompt(settings: dict) -> str:
    """Return the default prompt in the settings, or "" if there is none."""
    prompts = field(settings, "prompts", dict[str, str | None] | None, SETTINGS)
    name = field(settings, "default_prompt_name", str | None, SETTINGS)
    return (prompts or {}).get(name) or ""


def _module_entries(folder: str) -> list[dict]:
    """Return the entries of a folder's `modules.json`."""
    path = files.join(folder, MODULES_FILE)
    content = files.read_json(path, f"`{MODULES_FILE}`")
    with errors_in(path):
        entries = typed(list[dict], content, "modules")
    for entry in entries:
        field(entry, "type", str, path)
        rule = f"{path}: `path` must be the name of a folder."
        require(files.is_name(entry.get("path")), rule, module=brief(entry))
    return entries


def read_modules(folder: str) -> Modules | None:
    """Return the modules of a folder, or None if it has no `modules.json`.

    Raises:
      InputError: if a module is missing or has no equivalent in this package.
    """
    path = files.join(folder, MODULES_FILE)
    if not files.exists(path):
        return None
    entries = _module_entries(folder)
    module_paths = {
        entry["type"].rpartition(".")[2]: entry["path"] for entry in entries
    }
    unsupported = [
        name for name in module_paths if name not in SUPPORTED_MODULES
    ]
    require(
        not unsupported and {"Transformer", "Pooling"} <= {*module_paths},
        "The modules of a sentence-transformers folder must be Transformer, "
        "Pooling and, optionally, Normalize. For any other modules, set "
        "`encoder_only` to convert only the encoder.",
        modules=f"{', '.join(module_paths)} in {path}",
    )
    encoder = files.join(folder, module_paths["Transformer"] or ".")
    pooling = files.join(folder, module_paths["Pooling"], "config.json")
    values = files.read_json_object(pooling, "The pooling module")
    settings = {}
    for name in files.matches(ENCODER_SETTINGS, encoder):
        settings |= files.read_json_object(name, "The encoder's settings")
    return Modules(
        encoder,
        _pooling(values, pooling),
        "Normalize" in module_paths,
        length_of(settings, "max_seq_length", encoder),
        bool(flag_in(settings, "do_lower_case", encoder)),
        _prompt(files.read_optional_json(folder, SETTINGS)),
    )


def encoder_folder(folder: str) -> str:
    """Return the folder of the encoder, the first module of a folder.

    Unlike `read_modules`, this function accepts other modules. If the folder
    has no `modules.json`, the result is the folder itself.
    """
    if not files.exists(files.join(folder, MODULES_FILE)):
        return folder
    entries = _module_entries(folder)
    return files.join(folder, entries[0]["path"] or ".") if entries else folder
