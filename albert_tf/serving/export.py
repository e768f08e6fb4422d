"""Export of a model directory as SavedModel, LiteRT or ONNX."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf

from albert_tf.base import files, program
from albert_tf.base.errors import input_errors, require
from albert_tf.base.replacing import Contents, atomic_folder, check_replaceable
from albert_tf.base.settings import (
    DEVICES,
    MODEL_DIR,
    Validated,
    setting,
    variant,
)
from albert_tf.model.config import CONFIG_FILE
from albert_tf.model.layers import EncoderLoop
from albert_tf.serving import litert, onnx_file, tensorflow_serving
from albert_tf.serving.litert_runner import MODEL_FILE
from albert_tf.serving.server import ServedModel, load_server, served_task
from albert_tf.serving.signatures import ServingConfig
from albert_tf.serving.verification import (
    Difference,
    Engine,
    file_differences,
    saved_model,
    verify,
)
from albert_tf.tasks.task import TASK_FILE, Task
from albert_tf.text.tokenizers import TOKENIZER_FILE, TOKENIZERS

# The config, the task, and the tokenizer with its settings.
DESCRIPTION = (
    *(CONFIG_FILE, TASK_FILE, TOKENIZER_FILE),
    *(kind.file_name for kind in TOKENIZERS.values()),
)
VARIABLES = (
    "variables/variables.index",
    "variables/variables.data-?????-of-?????",
)


def asset_paths(model_dir: str, server: ServedModel) -> list[str]:
    """Return the files that describe the model: config, vocabulary, task."""
    names, tokenizer = [CONFIG_FILE, TASK_FILE], server.encoder.tokenizer
    if tokenizer:
        names += [TOKENIZER_FILE, tokenizer.file_name]
    paths = [files.join(model_dir, name) for name in names]
    return [path for path in paths if files.exists(path)]


def write_saved_model(
    server: ServedModel, config: "ExportConfig", to: str
) -> None:
    """Write a SavedModel with a single named copy of each weight."""
    # Compared with unrolled layers, a loop over the layers halves the time to
    # load and start the model.
    server.encoder.albert.encoder.loop = EncoderLoop("while")
    root = tf.Module(name="albert")
    root.weights = server.weights
    assets = asset_paths(config.model_dir, server)
    root.assets = [tf.saved_model.Asset(path) for path in assets]
    root.graphs = server.encoder.graphs
    kind = tf.errors.ResourceExhaustedError
    rule = "`export_dir` must be writable"
    with input_errors(kind, rule, export_dir=config.export_dir):
        tf.saved_model.save(root, to, signatures=server.concrete())


def write_file(
    name: str,
    convert: Callable,
    server: ServedModel,
    config: "ExportConfig",
    to: str,
) -> None:
    """Write a model as a single file, and the files that describe the model."""
    content = convert(server, config)
    files.write_bytes(files.join(to, name), content)
    for path in asset_paths(config.model_dir, server):
        files.copy(path, files.join(to, path.rsplit("/", 1)[-1]))


class Format(NamedTuple):
    """An export format.

    Attributes:
      write: a function that writes a `ServedModel` to a folder.
      engine: the engine that verifies an export.
      precisions: legal values of `precision`, which `LIMITS` must contain.
      model: the file that every export in this format contains.
      weights: patterns of the files with the weights.
      assets: the folder of the files in `DESCRIPTION`.
      extra_files: patterns of additional files.
    """

    write: Callable[[ServedModel, "ExportConfig", str], None]
    engine: Engine
    precisions: tuple[str, ...]
    model: str
    weights: tuple[str, ...]
    assets: str = ""
    extra_files: tuple[str, ...] = ()

    def contents(self) -> Contents:
        """Return an export's file patterns, and the files it must contain."""
        description = [files.join(self.assets, name) for name in DESCRIPTION]
        needed = frozenset((self.model, description[0]))
        patterns = (self.model, *self.weights, *self.extra_files, *description)
        return Contents(needed, patterns)


def single_file(
    name: str,
    convert: Callable[[ServedModel, "ExportConfig"], bytes],
    engine: str,
    open_file: Callable[[str], Callable],
    precisions: tuple[str, ...],
) -> Format:
    """Return the format of exports that store the model in a single file.

    Args:
      name: the name of the file.
      convert: a function that returns the content of the file.
      engine: the title of the engine that runs the file.
      open_file: a function that takes a path, and returns a function that
        computes the file's outputs from named arrays.
      precisions: see `Format`.
    """

    def differences(server: ServedModel, folder: str) -> Iterator[Difference]:
        run = open_file(files.join(folder, name))
        return file_differences(server, run)

    write = functools.partial(write_file, name, convert)
    verifier = Engine(engine, differences)
    return Format(write, verifier, precisions, name, weights=(name,))


FORMATS = {
    "saved_model": Format(
        write_saved_model,
        Engine("TensorFlow", saved_model),
        ("float32", "bfloat16"),
        "saved_model.pb",
        VARIABLES,
        "assets",
        ("fingerprint.pb", *tensorflow_serving.FILES),
    ),
    "litert": single_file(
        MODEL_FILE,
        litert.convert,
        "LiteRT",
        litert.open_file,
        litert.PRECISIONS,
    ),
    "onnx": single_file(
        onnx_file.ONNX_FILE,
        onnx_file.convert,
        "ONNX Runtime",
        onnx_file.open_file,
        ("float32",),
    ),
}

# The union of the formats' choices, without duplicates.
PRECISIONS = tuple(
    dict.fromkeys(x for fmt in FORMATS.values() for x in fmt.precisions)
)


@dataclasses.dataclass(frozen=True)
class ExportConfig(Validated):
    """The model to export, the format and the destination."""

    model_dir: str = variant(MODEL_DIR)
    export_dir: str = setting(
        None, "Folder to write. An earlier export is replaced.", required=True
    )

    to: str = setting(
        "saved_model",
        "Format to write: saved_model accepts raw strings; litert and onnx "
        "accept ids.",
        choices=FORMATS,
    )
    precision: str = setting(
        "float32",
        "Precision of a SavedModel's matrix products, or of a LiteRT file: "
        "dynamic_int8 has 8-bit weights; int8 also has 8-bit activations.",
        choices=PRECISIONS,
        group=DEVICES,
    )
    calibration_file: str | None = setting(
        None,
        "Calibration data for int8: examples in the task's format, or plain "
        "text for a pretrained model.",
        group=DEVICES,
    )

    def __post_init__(self):
        super().__post_init__()
        legal = FORMATS[self.to].precisions
        require(
            self.precision in legal,
            f"`precision` must be {' or '.join(legal)} for to={self.to}.",
            precision=self.precision,
        )
        require(
            not self.calibration_file or self.precision == "int8",
            "`calibration_file` requires precision=int8.",
            precision=self.precision,
            calibration_file=self.calibration_file,
        )


def check_target(folder: str, to: str) -> None:
    """Raise an error unless a folder is new, empty or an earlier export.

    Only a SavedModel may replace an export with files that an operator edited,
    because other formats would not preserve them.
    """
    if to == "saved_model":
        files.require_tensorflow_path("`export_dir`", folder)
    check_replaceable(
        "export_dir",
        folder,
        [fmt.contents() for fmt in FORMATS.values()],
        "`export_dir` must be new, empty or an earlier export without other "
        "files; an earlier export is replaced.",
    )
    edited = tensorflow_serving.edited_files(folder)
    rule = "`export_dir` must not contain files that you edited and that only "
    rule += "to=saved_model preserves; move them, or choose another folder."
    received = f"{folder} with {', '.join(edited)}"
    require(to == "saved_model" or not edited, rule, to=to, export_dir=received)


def other_format(folder: str, to: str) -> str:
    """Return a folder's export format if it differs from `to`, otherwise ""."""
    candidates = (name for name in FORMATS if name != to)
    matches = (
        name
        for name in candidates
        if FORMATS[name].contents().is_complete(folder)
    )
    return next(matches, "")


def model_size(folder: str) -> int:
    """Return the total size, in bytes, of an export's weight files."""
    names = {name for fmt in FORMATS.values() for name in fmt.weights}
    return sum(
        files.size(path)
        for name in names
        for path in files.matches(name, folder)
    )


def changed_lengths(finetuned: Task, served: Task) -> str:
    """Describe the lengths that were changed to fit an export's input.

    The result is "" if there are none.
    """
    old, new = (dataclasses.asdict(x.config) for x in (finetuned, served))
    return ", ".join(
        f"{name} {value} -> {new[name]}"
        for name, value in old.items()
        if value != new[name]
    )


def report(
    server: ServedModel,
    config: ExportConfig,
    folder: str,
    difference: Difference,
) -> None:
    """Print the signatures, the largest difference and the size."""
    if config.to == "saved_model":
        print(
            f"Signatures: {', '.join(server.signatures)}; serving_default is "
            f"{server.default}"
        )
    count = sum(v.shape.num_elements() for v in server.weights.values())
    size = model_size(folder)
    print(
        f"Largest difference from the Python model: {difference.size:.1e}, in "
        f"{difference.output}\n"
        f"{count:,} parameters, {4 * count / 1e6:.1f} MB in float32; on disk "
        f"{size / 1e6:.1f} MB ({size / (4 * count):.1%})\n"
        f"Wrote {folder}"
    )


@contextlib.contextmanager
def without_info_logs() -> Iterator[None]:
    """Prevent TensorFlow from logging the temporary output path."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def check_serving(serving: ServingConfig, to: str) -> None:
    """Raise an error for settings that only a SavedModel supports."""
    for name in ("jit_compile", "ids_only"):
        value = getattr(serving, name)
        legal = to == "saved_model" or not value
        rule = f"`{name}` requires to=saved_model."
        require(legal, rule, **{"to": to, name: value})


def export_model(config: ExportConfig, serving: ServingConfig) -> None:
    """Export a model directory atomically."""
    check_serving(serving, config.to)
    folder, fmt = files.without_slash(config.export_dir), FORMATS[config.to]
    check_target(folder, config.to)
    if config.to == "litert":
        serving = litert.fixed(serving)
    if config.to != "saved_model":
        serving = dataclasses.replace(serving, ids_only=True)
    server = exact = load_server(config.model_dir, serving)
    require(
        serving.top_k == ServingConfig.top_k
        or {"fill_mask", "answer"} & server.signatures.keys(),
        "`top_k` requires an export with the signature fill_mask or answer.",
        top_k=serving.top_k,
        to=config.to,
        signatures=", ".join(server.signatures),
    )
    if config.precision == "bfloat16":
        server = load_server(config.model_dir, serving, "mixed_bfloat16")
    copied, changed = [], ""
    replaced = other_format(folder, config.to)
    with atomic_folder(folder, replace=True) as temporary, without_info_logs():
        fmt.write(server, config, temporary)
        if server.task:
            server.task.save(files.join(temporary, fmt.assets))
            finetuned = served_task(config.model_dir, serving)
            changed = changed_lengths(finetuned, server.task)
        difference = verify(exact, temporary, fmt.engine, config.precision)
        if config.to == "saved_model":
            copied = tensorflow_serving.write_files(server, temporary, folder)
        check_target(folder, config.to)  # files may have appeared meanwhile
    notes = {
        "Replaced an earlier export in another format": replaced,
        "Kept from the earlier export": ", ".join(copied),
        "Lengths that differ from fine-tuning": changed,
    }
    for title, note in notes.items():
        if note:
            print(f"{title}: {note}")
    report(server, config, folder, difference)


@dataclasses.dataclass(frozen=True)
class Exported:
    """The output folder, and the size of its weights in bytes."""

    export_dir: str
    size: int


@program.command(ExportConfig, ServingConfig)
def export(config: ExportConfig, serving: ServingConfig) -> Exported:
    """Export a model directory for serving, as SavedModel, LiteRT or ONNX."""
    export_model(config, serving)
    return Exported(config.export_dir, model_size(config.export_dir))


cli = export.program.cli
