"""Folders of sentence-transformers: an encoder and how it is pooled."""

import dataclasses

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.conversion.fast_tokenizer import TOKENIZER_CONFIG, read_if_there
from albert_tf.conversion.tokenizer_files import length_of
from albert_tf.tasks.registry import find
from albert_tf.tasks.task import Task
from albert_tf.tasks.task_config import POOLINGS, TaskConfig
from albert_tf.text.tokenizers import Tokenizer

MODULES_FILE = "modules.json"
POOLING_CONFIG = "1_Pooling/config.json"
KNOWN = ("Transformer", "Pooling", "Normalize")
# Flags of older versions; newer ones have `pooling_mode`.
FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
ENCODER_SETTINGS = "sentence_*_config.json"
SETTINGS = "config_sentence_transformers.json"


@dataclasses.dataclass(frozen=True)
class Modules:
    """What a folder's modules do.

    Attributes:
      folder: where the encoder is.
      pooling: one of `POOLINGS`.
      unit_length: whether vectors have length one.
      length: the most tokens of a text, None if not set.
      lowers: whether texts are lower-cased before they are tokenized.
      prompt: the default prefix of each text, "" for none.
    """

    folder: str
    pooling: str
    unit_length: bool
    length: int | None
    lowers: bool
    prompt: str = ""

    @property
    def warnings(self) -> list[str]:
        """Settings that change vectors and have no equivalent here."""
        rule = "there each text begins with the prompt"
        more = "put it in front of yours"
        return [f"{rule} {self.prompt!r}; {more}"] if self.prompt else []

    def task(self, positions: int) -> Task:
        """Return the task that computes these vectors."""
        of_tokenizer = read_if_there(self.folder, TOKENIZER_CONFIG)
        limit = length_of(of_tokenizer, "model_max_length", TOKENIZER_CONFIG)
        limit = self.length or limit or positions
        how = TaskConfig(pooling=self.pooling, unit_length=self.unit_length)
        task = find("embedding").with_config(how)
        return task.with_length(min(limit, positions))

    def tokenizer(self, tokenizer: Tokenizer | None) -> Tokenizer | None:
        """Return a tokenizer that lower-cases if the modules do."""
        if not (tokenizer and self.lowers):
            return tokenizer
        config = dataclasses.replace(tokenizer.config, do_lower_case=True)
        return type(tokenizer)(tokenizer.content, config)


def _pooling(values: dict, path: str) -> str:
    """Return the pooling of a module, which must have exactly one."""
    modes = values.get("pooling_mode")
    if modes is None:
        names = [name for name in values if name.startswith("pooling_mode_")]
        active = [n for n in names if files.flag_in(values, n, path)]
        modes = [FLAGS.get(name, name) for name in active]
    modes = [modes] if isinstance(modes, str) else modes
    require(
        len(modes) == 1 and modes[0] in POOLINGS,
        f"The pooling must be one of {', '.join(POOLINGS)}; with another, "
        "`encoder_only` keeps the encoder.",
        pooling=f"{', '.join(modes)} in {path}",
    )
    return modes[0]


def _prompt(settings: dict) -> str:
    """Return the prompt that settings choose, "" if they choose none."""
    prompts = settings.get("prompts") or {}
    return prompts.get(settings.get("default_prompt_name")) or ""


def _rows(folder: str) -> list[dict]:
    """Return the rows of a folder's list of modules."""
    path = files.join(folder, MODULES_FILE)
    rows = files.read_json(path, f"`{MODULES_FILE}`")
    require(
        isinstance(rows, list)
        and all(
            isinstance(row, dict) and {"type", "path"} <= {*row} for row in rows
        ),
        f"`{MODULES_FILE}` must be a list of modules, with `type` and `path`.",
        path=path,
    )
    return rows


def read_modules(folder: str) -> Modules | None:
    """Return the modules of a folder, None if it has none.

    Raises:
      InputError: a module is missing, or has no equivalent here.
    """
    path = files.join(folder, MODULES_FILE)
    if not files.exists(path):
        return None
    rows = _rows(folder)
    kinds = {row["type"].rpartition(".")[2]: row["path"] for row in rows}
    others = [kind for kind in kinds if kind not in KNOWN]
    require(
        not others and {"Transformer", "Pooling"} <= {*kinds},
        "The modules of a sentence-transformers folder must be Transformer, "
        "Pooling and perhaps Normalize; with others, `encoder_only` keeps the "
        "encoder.",
        modules=f"{', '.join(kinds)} in {path}",
    )
    encoder = files.join(folder, kinds["Transformer"] or ".")
    pooling = files.join(folder, kinds["Pooling"], "config.json")
    values = files.read_json_object(pooling, "The pooling module")
    settings = {}
    for name in files.matches(ENCODER_SETTINGS, encoder):
        settings |= files.read_json_object(name, "The encoder's settings")
    return Modules(
        encoder,
        _pooling(values, pooling),
        "Normalize" in kinds,
        length_of(settings, "max_seq_length", encoder),
        bool(files.flag_in(settings, "do_lower_case", encoder)),
        _prompt(read_if_there(folder, SETTINGS)),
    )


def encoder_folder(folder: str) -> str:
    """Return where the encoder of a folder is, whatever its modules."""
    if not files.exists(files.join(folder, MODULES_FILE)):
        return folder
    rows = _rows(folder)
    return files.join(folder, rows[0]["path"] or ".") if rows else folder
