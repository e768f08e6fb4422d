"""The base class of Keras models with a tokenizer, and its file formats."""

import dataclasses
import functools
import inspect
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import ForeignName, InputError, near, require
from albert_tf.base.replacing import (
    Contents,
    atomic_folder,
    check_replaceable,
    folder_beside,
)
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.sources import (
    Reading,
    Source,
    is_model,
    open_source,
    unsupported_hint,
)
from albert_tf.library.changed_layers import (
    change_layers,
    layer_changes,
    merged_weights,
)
from albert_tf.library.preprocessor import KeepsTokenizer, Preprocessor
from albert_tf.model.config import CONFIG_FILE, AlbertConfig
from albert_tf.model.layers import TakesIds
from albert_tf.serving.export import DESCRIPTION, FORMATS, export
from albert_tf.tasks.task import Task
from albert_tf.text.added_pieces import with_pieces
from albert_tf.text.packing import checked_texts, row_length
from albert_tf.text.symbols import SYMBOLS_FILE, WORDS_FILE, SymbolTable
from albert_tf.text.tokenizers import RULES_FILE, Tokenizer, tokenizer_of
from albert_tf.training import checkpoint_files, checkpoints

ENCODER = "albert/"
# Variables with one row per piece of the vocabulary.
OF_PIECES = ("albert/embeddings/word_embeddings", "mlm/output_bias")
# Files that `save` writes to a model directory.
WRITTEN = Contents(
    frozenset((CONFIG_FILE, checkpoint_files.STATE_FILE)),
    (
        *(*DESCRIPTION, RULES_FILE, SYMBOLS_FILE, WORDS_FILE),
        *checkpoint_files.FILES,
    ),
)


def restore(
    model: "ModelWithTokenizer", source: Source, only: str = ""
) -> None:
    """Load the weights and the symbols of a stored model into a model.

    Args:
      model: the model.
      source: the model on disk.
      only: the prefix of the names of the weights to load; "" loads all.

    Raises:
      InputError: if names or shapes differ; the error lists all differences.
    """
    values = model.named_weights().items()
    variables = {n: v for n, v in values if n.startswith(only)}
    shapes = {name: v.shape.as_list() for name, v in variables.items()}
    tensors = source.tensors.where(lambda name: name in shapes)
    differences = checkpoints.explain_differences(shapes, tensors.shapes)
    rule = "The weights must match the model."
    require(not differences, f"{rule} Received: {source.path} {differences}")
    for name, variable in variables.items():
        variable.assign(tensors.read(name))
    model.symbols = source.symbols


def with_added_pieces(model: Source, pieces: Sequence[str]) -> Source:
    """Return a model with pieces added to its vocabulary.

    Each new piece has a row in the embedding table and in the bias of the
    masked-LM head. This row is the mean over the pieces into which the old
    tokenizer splits the new piece's text.
    """
    pieces = checked_texts(pieces, "added_pieces")
    old, rule = model.tokenizer, "`added_pieces` needs a vocabulary at `path`."
    require(old, rule, path=model.path)
    new = with_pieces(old, pieces)
    rows = max(model.config.vocab_size, new.vocab_size)
    piece_ids = [ids.tolist() for ids in old.encode_batch(pieces)]

    def shape(name: str, size: Sequence[int]) -> Sequence[int]:
        return type(size)([rows, *size[1:]]) if name in OF_PIECES else size

    def read(name: str) -> np.ndarray:
        array = model.tensors.read(name)
        if name not in OF_PIECES:
            return array
        means = [array[ids or slice(None)].mean(axis=0) for ids in piece_ids]
        extended = np.zeros([rows, *array.shape[1:]], array.dtype)
        extended[: len(array)] = array
        extended[old.vocab_size : new.vocab_size] = np.array(means)
        return extended

    shapes = {n: shape(n, size) for n, size in model.tensors.shapes.items()}
    return dataclasses.replace(
        model,
        config=dataclasses.replace(model.config, vocab_size=rows),
        tokenizer=new,
        tensors=Tensors(shapes, read),
    )


def open_model(
    path: str,
    reading: Reading,
    added_pieces: Sequence[str] | None,
    single: str = "regression",
) -> Source:
    """Open a model folder, or a checkpoint by its prefix.

    Args:
      path: the folder or prefix.
      reading: options for reading the files.
      added_pieces: texts that become pieces of the vocabulary.
      single: the task of a TF1 head with one output.

    Raises:
      InputError: if the path contains no model, or if the model's parts do not
        fit together.
    """
    path = files.local_path("path", str(path))
    require(
        is_model(path),
        "`path` must be a folder with a model: a model directory, an "
        f"unpacked release or a Hugging Face folder.{unsupported_hint(path)}",
        path=path,
    )
    source = open_source(path, reading, single)
    if source.tokenizer:
        source.config.check_pieces(source.tokenizer.vocab_size, path)
    for warning in source.warnings:
        print(f"warning: {warning}")
    source = dataclasses.replace(source, path=path)
    return with_added_pieces(source, added_pieces) if added_pieces else source


def is_path(path: Any) -> bool:
    """Return whether an argument is a nonempty path."""
    return isinstance(path, str | os.PathLike) and bool(str(path))


def write_model_dir(
    path: str,
    config: AlbertConfig,
    parts: Sequence[Tokenizer | SymbolTable | Task | None],
    weights: dict[str, tf.Variable],
    overwrite: bool,
) -> None:
    """Write a model directory atomically; `overwrite` replaces an old one.

    Readers expect float32, so weights of other types are converted.
    """
    require(is_path(path), "`path` must name a folder.", path=path)
    path = files.without_slash(files.local_path("path", str(path)))
    rule = "`path` must be a new or empty folder; `overwrite=True` replaces a "
    rule += "model directory that contains no other files."
    if overwrite:
        check_replaceable("path", path, [WRITTEN], rule)
    require(overwrite or files.is_free(path), rule, path=path)
    others = {k: x for k, x in weights.items() if x.dtype != tf.float32}
    casts = {k: tf.Variable(tf.cast(x, tf.float32)) for k, x in others.items()}
    with atomic_folder(path, overwrite) as temporary:
        config.save(temporary)
        for part in filter(None, parts):
            part.save(temporary)
        checkpoints.save(temporary, weights | casts)


def check_length(max_length: int | None, config: AlbertConfig) -> int | None:
    """Return an input length; raise `InputError` if the model rejects it."""
    max_length = row_length(max_length)
    config.check_length("max_length", max_length)
    return max_length


def check_keywords(
    keywords: dict, legal: Callable | Sequence[str], others: Sequence[str] = ()
) -> None:
    """Raise `InputError` for the first unknown keyword.

    If `legal` is a method, keywords that begin with _ are accepted, because
    Keras passes them to its own methods.

    Args:
      keywords: {keyword: value}.
      legal: the legal keywords, or a method that accepts them.
      others: other names that the error may suggest for similar keywords.
    """
    passed = [*keywords]
    if callable(legal):
        passed = [name for name in passed if not name.startswith("_")]
        parameters = list(inspect.signature(legal).parameters.values())[1:]
        legal = [x.name for x in parameters if x.kind != x.VAR_KEYWORD]
    for name in passed:
        rule = f"Keyword arguments must be among {', '.join(legal)}"
        rule += near(name, (*legal, *others))
        received = {name: f"{keywords[name]!r:.60}"}
        require(name in legal, rule, **received)


def has_text(x: Any) -> bool:
    """Return whether `x` contains texts instead of ids."""
    if isinstance(x, tf.data.Dataset):
        x = x.element_spec
    if isinstance(x, Mapping):
        return any(map(has_text, x.values()))
    if isinstance(x, list | tuple) and len(x):
        return has_text(x[0])
    dtype = getattr(getattr(x, "dtype", ""), "name", "")
    return isinstance(x, str) or dtype == "object" or "str" in dtype


def require_rows(x: Any) -> None:
    """Raise `InputError` for a dict or a data set of ids without rows."""
    ids = x.get("input_ids") if isinstance(x, Mapping) else None
    shape = (len(ids),) if isinstance(ids, list) else getattr(ids, "shape", ())
    empty = shape[:1] == (0,)
    if isinstance(x, tf.data.Dataset):
        empty = x.cardinality() == 0
    require(not empty, "There must be at least one example. Received: none")


def of_ids(name: str) -> Callable:
    """Wrap a method of `keras.Model`; the wrapper raises an error for texts.

    The method is looked up when it is called, because tracking tools such as
    MLflow replace it.
    """

    @functools.wraps(getattr(keras.Model, name))
    def checked(self, x=None, *args, **kwargs):
        if not has_text(x):
            if not name.endswith("_on_batch"):
                require_rows(x)
            return getattr(keras.Model, name)(self, x, *args, **kwargs)
        rule = f"`{name}` of this model accepts ids, as returned by "
        rule += f"`tokenizer(texts)`; {self.text_methods} accept texts."
        raise InputError(f"{rule} Received: x={repr(x)[:60]}")

    return checked


class ModelWithTokenizer(TakesIds, KeepsTokenizer, keras.Model):
    """A Keras model that is saved together with its tokenizer.

    Attributes:
      config: the architecture.
      tokenizer: the tokenizer, which converts texts to ids (see
        `Tokenizer.__call__`); None for a model that accepts only ids.
      symbols: the symbol table of a phoneme model, or None.
      max_length: maximum number of tokens in an input made from strings.
      task: the fine-tuning task, or None.
    """

    task: Task | None = None
    text_methods: ClassVar[str]  # names of methods that accept texts

    backbone = ForeignName("albert")
    enable_lora = ForeignName("load(path, lora_rank=8)")
    save_pretrained, save_to_preset = ForeignName("save"), ForeignName("save")
    predict_on_batch = of_ids("predict_on_batch")
    test_on_batch = of_ids("test_on_batch")
    train_on_batch = of_ids("train_on_batch")

    def __init__(
        self,
        config: AlbertConfig,
        tokenizer: Tokenizer | None,
        max_length: int | None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        max_length = check_length(max_length, config)
        self.config, self.tokenizer = config, tokenizer
        self.max_length = max_length or config.max_position_embeddings
        self.built = True

    @property
    def preprocessor(self) -> Preprocessor:
        """A new layer that converts strings to inputs of the model."""
        return Preprocessor(self.need_tokenizer(), self.max_length)

    def build(self, input_shape=None):
        """Do nothing: the constructor creates all variables."""

    def named_weights(self) -> dict[str, tf.Variable]:
        """Return {name: variable}, with the names used in model directories."""
        raise NotImplementedError

    def get_config(self) -> dict:
        return {
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "config": dataclasses.asdict(self.config),
            "max_length": self.max_length,
            "tokenizer": self.tokenizer and self.tokenizer.get_config(),
            "symbols": self.symbols and dataclasses.asdict(self.symbols),
            "learns": [layer.trainable for layer in self._flatten_layers()],
            "changes": layer_changes(self),
        }

    @classmethod
    def from_config(cls, config: dict) -> "ModelWithTokenizer":
        """Create a model with new weights from the result of `get_config`."""
        # In files of earlier versions, the tokenizer is an asset.
        defaults = {"learns": (), "changes": {}, "tokenizer": None}
        config = defaults | {"symbols": None} | config
        symbols = config.pop("symbols")
        learns, changes = config.pop("learns"), config.pop("changes")
        config["config"] = AlbertConfig(**config["config"])
        config["tokenizer"] = tokenizer_of(config["tokenizer"])
        model = cls(**config)
        if symbols:
            words = {"words": tuple(symbols["words"])}
            model.symbols = SymbolTable(**symbols | words)
        # In this order, a layer precedes its sublayers.
        for layer, flag in zip(model._flatten_layers(), learns, strict=False):
            layer.trainable = flag
        change_layers(model, changes)
        return model

    def save(self, filepath, overwrite: bool | None = None, **kwargs) -> None:
        """Write a `.keras` file or, under any other name, a model directory.

        `finetune.py`, the exporter and the converter read model directories. In
        a model directory, low-rank matrices (LoRA) are merged into the kernels.
        The symbols and words of a phoneme model are saved with its encoder.

        Args:
          filepath: the file or directory to write.
          overwrite: whether to replace an existing file or directory. By
            default, a file is replaced, as in Keras, but a model directory is
            not.
          **kwargs: passed to Keras's `Model.save`.
        """
        rule = "A file must be a `.keras` file; `.h5` cannot store a tokenizer."
        require(not str(filepath).endswith(".h5"), rule, filepath=filepath)
        if str(filepath).endswith(".keras"):
            self._save_file(str(filepath), overwrite, **kwargs)
            return
        write_model_dir(
            filepath,
            self.config,
            (self.tokenizer, self.symbols, self.task),
            merged_weights(self, self.named_weights()),
            bool(overwrite),
        )

    def _save_file(self, path: str, overwrite: bool | None, **kwargs) -> None:
        """Write a `.keras` file; unlike Keras, write it atomically."""
        path = files.local_path("filepath", path)
        if overwrite is False:  # Keras asks before it replaces the file
            super().save(path, overwrite, **kwargs)
            return
        is_remote = files.is_remote(path)
        files.make_folder(os.path.dirname(path) or ".")
        move = files.copy if is_remote else os.replace
        # The system's temporary folder may be too small for a model.
        with (
            files.atomic_path(path) as temporary,
            tempfile.TemporaryDirectory()
            if is_remote
            else folder_beside(path) as folder,
        ):
            whole = files.join(folder, "model.keras")
            super().save(whole, **kwargs)
            move(whole, temporary)

    def export(self, filepath, format: str = "saved_model", **serving) -> None:
        """Export the model, as `python -m albert_tf.export` does.

        Args:
          filepath: a new folder, or the folder of an earlier export.
          format: saved_model, litert or onnx.
          **serving: fields of `ServingConfig` and of `ExportConfig`, such as
            `precision`.
        """
        rule = "`export_dir` must name a folder."
        require(is_path(filepath), rule, export_dir=filepath)
        to = str(format).removeprefix("tf_")  # Keras uses tf_saved_model
        rule = f"`format` must be one of {', '.join(FORMATS)}."
        require(to in FORMATS, rule, format=format)
        names = sorted({"model_dir", "export_dir", "to"} & serving.keys())
        rule = "Pass `filepath` and `format` instead. Received: "
        require(not names, rule + ", ".join(names))
        with tempfile.TemporaryDirectory() as folder:
            model_dir = files.join(folder, "model")
            self.save(model_dir)
            export(
                model_dir=model_dir, export_dir=str(filepath), to=to, **serving
            )
