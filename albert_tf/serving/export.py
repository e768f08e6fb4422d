"""The export of a model directory as SavedModel, LiteRT or ONNX."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf

from albert_tf.base import files, program
from albert_tf.base.errors import InputError, require
from albert_tf.base.replacing import Contents, check_replaceable
from albert_tf.base.settings import (
    DEVICES,
    MODEL_DIR,
    setting,
    validate,
    variant,
)
from albert_tf.model.albert import AlbertForPretraining, AlbertModel
from albert_tf.model.config import CONFIG_FILE, AlbertConfig
from albert_tf.model.layers import EncoderLoop
from albert_tf.serving import litert, onnx_file, tensorflow_serving
from albert_tf.serving.litert_runner import MODEL_FILE
from albert_tf.serving.pretrained import pretrained_server
from albert_tf.serving.server import ServedModel, task_server
from albert_tf.serving.signatures import Encoder, ServingConfig
from albert_tf.serving.verification import Difference, verify
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import TASK_FILE, Task
from albert_tf.text.tokenizers import TOKENIZER_FILE, TOKENIZERS, tokenizer_in
from albert_tf.training import checkpoints
from albert_tf.training.checkpoint_files import reason


def encoder_of(
    albert: AlbertModel, model_dir: str, serving: ServingConfig, usual: int
) -> Encoder:
    """Return an encoder with its tokenizer, if the model directory has one.

    Args:
      albert: the encoder.
      model_dir: the model directory.
      serving: settings of the export.
      usual: the default for `max_seq_length`.
    """
    length = serving.max_seq_length or usual
    albert.config.check_length("max_seq_length", length)
    tokenizer = tokenizer_in(model_dir)
    if tokenizer:
        albert.config.check_pieces(tokenizer.vocab_size, model_dir)
    serving = dataclasses.replace(serving, max_seq_length=length)
    return Encoder(albert, serving, tokenizer)


def pretrained_weights(model, model_dir: str) -> dict[str, tf.Variable]:
    """Restore a pretrained model; return the weights that it has on disk."""
    prefix = checkpoints.for_inference(model_dir)
    weights, _ = checkpoints.present(model, checkpoints.read_table(prefix))
    checkpoints.restore(prefix, weights)
    return weights


def load_pretrained(model_dir: str, serving: ServingConfig) -> ServedModel:
    """Return the server of a pretrained model."""
    limit = serving.null_score_diff_threshold
    rule = "`null_score_diff_threshold` needs a question-answering model."
    require(limit is None, rule, null_score_diff_threshold=limit)
    config = AlbertConfig.from_model_dir(model_dir)
    model = AlbertForPretraining(config, dtype="float32")
    usual = config.max_position_embeddings
    encoder = encoder_of(model.albert, model_dir, serving, usual)
    weights = pretrained_weights(model, model_dir)
    return pretrained_server(encoder, model, weights)


def served_task(model_dir: str, serving: ServingConfig) -> Task:
    """Return a fine-tuned model's task, with the threshold to serve."""
    limit = serving.null_score_diff_threshold
    return load_task(model_dir).updated(null_score_diff_threshold=limit)


def load_finetuned(model_dir: str, serving: ServingConfig) -> ServedModel:
    """Return the server of a fine-tuned model."""
    config = AlbertConfig.from_model_dir(model_dir)
    task = served_task(model_dir, serving)
    model = task.head.build_model(config, "float32")
    usual = task.config.max_seq_length
    encoder = encoder_of(model.albert, model_dir, serving, usual)
    checkpoints.restore_weights(model, model_dir)
    return task_server(encoder, model, task)


def load_server(model_dir: str, serving: ServingConfig) -> ServedModel:
    """Return the server of a model directory, with weights in float32.

    Args:
      model_dir: a model directory, pretrained or fine-tuned.
      serving: settings of the export.

    Raises:
      InputError: the directory is incomplete, or does not suit the settings.
    """
    load = load_finetuned if is_finetuned(model_dir) else load_pretrained
    return load(model_dir, serving)


# The config, the task, and the tokenizer with its settings.
DESCRIPTION = (
    *(CONFIG_FILE, TASK_FILE, TOKENIZER_FILE),
    *(kind.file_name for kind in TOKENIZERS.values()),
)
VARIABLES = (
    "variables/variables.index",
    "variables/variables.data-?????-of-?????",
)


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """The model to export, the format and the destination."""

    model_dir: str = variant(MODEL_DIR)
    export_dir: str = setting(
        None, "Folder to write; replaces an earlier export.", required=True
    )

    to: str = setting(
        "saved_model",
        "Format to write: saved_model takes raw strings; litert and onnx take "
        "ids.",
        choices=("saved_model", "litert", "onnx"),
    )
    precision: str = setting(
        "float32",
        "Precision of a LiteRT file: dynamic_int8 has 8-bit weights, int8 has "
        "8-bit activations too.",
        choices=litert.PRECISIONS,
        group=DEVICES,
    )
    calibration_file: str | None = setting(
        None,
        "Data to calibrate int8 with: examples in the task's format, or plain "
        "text for a pretrained model.",
        group=DEVICES,
    )

    def __post_init__(self):
        validate(self)
        require(
            self.precision == "float32" or self.to == "litert",
            "`precision` must be float32 unless to=litert.",
            to=self.to,
            precision=self.precision,
        )
        require(
            not self.calibration_file or self.precision == "int8",
            "`calibration_file` needs precision=int8.",
            precision=self.precision,
            calibration_file=self.calibration_file,
        )


def asset_paths(model_dir: str, server: ServedModel) -> list[str]:
    """Return the files that describe the model: config, vocabulary, task."""
    names, tokenizer = [CONFIG_FILE, TASK_FILE], server.encoder.tokenizer
    if tokenizer:
        names += [TOKENIZER_FILE, tokenizer.file_name]
    paths = [files.join(model_dir, name) for name in names]
    return [path for path in paths if files.exists(path)]


def write_saved_model(
    server: ServedModel, config: ExportConfig, to: str
) -> None:
    """Write a SavedModel with a single copy of each weight, under its name."""
    # A looped layer loads and starts in half the time of unrolled layers.
    server.encoder.albert.encoder.loop = EncoderLoop("while")
    root = tf.Module(name="albert")
    root.weights = server.weights
    assets = asset_paths(config.model_dir, server)
    root.assets = [tf.saved_model.Asset(path) for path in assets]
    root.graphs = server.encoder.graphs
    try:
        tf.saved_model.save(root, to, signatures=server.concrete())
    except tf.errors.ResourceExhaustedError as error:
        rule = f"`export_dir` must be writable: {reason(error)}."
        raise InputError(
            f"{rule} Received: export_dir={config.export_dir}"
        ) from None


def write_file(
    name: str,
    convert: Callable,
    server: ServedModel,
    config: ExportConfig,
    to: str,
) -> None:
    """Write a model as one file, with the files that describe it."""
    content = convert(server, config)
    files.write_bytes(files.join(to, name), content)
    for path in asset_paths(config.model_dir, server):
        files.copy(path, files.join(to, path.rsplit("/", 1)[-1]))


class Format(NamedTuple):
    """An export format.

    Attributes:
      write: writes a server to a folder.
      model: the file that every export in this format has.
      assets: the folder of the files in `DESCRIPTION`.
      more: patterns of additional files.
    """

    write: Callable[[ServedModel, ExportConfig, str], None]
    model: str
    assets: str = ""
    more: tuple[str, ...] = ()

    def contents(self) -> Contents:
        """Return the files of an export: at least a model and its config."""
        described = [files.join(self.assets, name) for name in DESCRIPTION]
        needed = frozenset((self.model, described[0]))
        return Contents(needed, (self.model, *self.more, *described))


FORMATS = {
    "saved_model": Format(
        write_saved_model,
        "saved_model.pb",
        "assets",
        (*VARIABLES, "fingerprint.pb", *tensorflow_serving.FILES),
    ),
    "litert": Format(
        functools.partial(write_file, MODEL_FILE, litert.convert), MODEL_FILE
    ),
    "onnx": Format(
        functools.partial(write_file, onnx_file.ONNX_FILE, onnx_file.convert),
        onnx_file.ONNX_FILE,
    ),
}


def check_target(folder: str, to: str) -> None:
    """Raise an error unless a folder is new, empty or an earlier export."""
    if to == "saved_model":
        files.require_no_pattern("`export_dir`", folder)
    check_replaceable(
        "export_dir",
        folder,
        [form.contents() for form in FORMATS.values()],
        "`export_dir` must be new, empty or an earlier export without other "
        "files, which is then replaced.",
    )


def model_size(folder: str) -> int:
    """Return the total size in bytes of an export's weight files."""
    names = (*VARIABLES, MODEL_FILE, onnx_file.ONNX_FILE)
    return sum(
        files.size(path)
        for name in names
        for path in files.matches(name, folder)
    )


def changed_lengths(finetuned: Task, served: Task) -> str:
    """Describe the lengths that an export changed to fit its input."""
    old, new = (dataclasses.asdict(x.config) for x in (finetuned, served))
    return ", ".join(
        f"{name} {value} -> {new[name]}"
        for name, value in old.items()
        if value != new[name]
    )


def report(
    server: ServedModel, config: ExportConfig, folder: str, found: Difference
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
        f"Largest difference from the Python model: {found.size:.1e}, in "
        f"{found.output}\n"
        f"{count:,} parameters, {4 * count / 1e6:.1f} MB in float32; on disk "
        f"{size / 1e6:.1f} MB, {size / (4 * count):.3f} of that\n"
        f"Wrote {folder}"
    )


@contextlib.contextmanager
def without_notes() -> Iterator[None]:
    """Keep TensorFlow from logging the temporary path that it writes to."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def export_model(config: ExportConfig, serving: ServingConfig) -> None:
    """Export a model directory atomically."""
    require(
        config.to == "saved_model" or not serving.jit_compile,
        "`jit_compile` needs to=saved_model.",
        to=config.to,
        jit_compile=serving.jit_compile,
    )
    folder, form = config.export_dir.rstrip("/"), FORMATS[config.to]
    check_target(folder, config.to)
    if config.to == "litert":
        serving = litert.fixed(serving)
    server = load_server(config.model_dir, serving)
    kept, changed = [], ""
    with files.atomic_folder(folder) as temporary, without_notes():
        form.write(server, config, temporary)
        if server.task:
            server.task.save(files.join(temporary, form.assets))
            finetuned = served_task(config.model_dir, serving)
            changed = changed_lengths(finetuned, server.task)
        found = verify(server, temporary, config.to, config.precision)
        if config.to == "saved_model":
            kept = tensorflow_serving.write_files(server, temporary, folder)
        check_target(folder, config.to)  # files may have appeared since
    if kept:
        print(f"Kept from the earlier export: {', '.join(kept)}")
    if changed:
        print(f"Lengths that differ from fine-tuning: {changed}")
    report(server, config, folder, found)


@dataclasses.dataclass(frozen=True)
class Exported:
    """The output: a folder, and the size of its weights in bytes."""

    export_dir: str
    size: int


@program.command(ExportConfig, ServingConfig)
def export(config: ExportConfig, serving: ServingConfig) -> Exported:
    """Export a model directory for serving, as SavedModel, LiteRT or ONNX."""
    export_model(config, serving)
    return Exported(config.export_dir, model_size(config.export_dir))


cli = export.program.cli
