"""Write the SavedModel of a model directory: `python -m albert_tf.export`.

The SavedModel needs nothing of this package: it loads where `tensorflow` and
`tensorflow_text` are imported. See docs/serving.md.
"""

import dataclasses

import tensorflow as tf

from albert_tf import files, settings
from albert_tf.config import CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.serving.base import Server, ServingConfig
from albert_tf.serving.registry import load_server
from albert_tf.settings import setting, validate
from albert_tf.tasks.base import TASK_FILE
from albert_tf.tokenization import TOKENIZER_FILE

GRAPH_FILE = "saved_model.pb"


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """What is exported, and where to."""

    model_dir: str = setting(
        None, "Model directory, pretrained or fine-tuned.", required=True
    )
    export_dir: str = setting(
        None, "Folder to write; an earlier export is replaced.", required=True
    )

    def __post_init__(self):
        validate(self)


def is_export(folder: str) -> bool:
    """Return whether a folder was written by this program."""
    written = (GRAPH_FILE, files.join("assets", CONFIG_FILE))
    return all(tf.io.gfile.exists(files.join(folder, f)) for f in written)


def check_target(folder: str) -> None:
    """Refuse a place that holds anything but an earlier export."""
    if not tf.io.gfile.exists(folder) or is_export(folder):
        return
    if not tf.io.gfile.isdir(folder) or tf.io.gfile.listdir(folder):
        raise InputError(
            "`export_dir` must be new, empty or an earlier export, which is "
            f"replaced. Received: export_dir={folder}"
        )


def asset_paths(model_dir: str, server: Server) -> list[str]:
    """Return the files that say what the model is: config, vocabulary, task."""
    names = [CONFIG_FILE, TASK_FILE]
    if server.tokenizer:
        names += [TOKENIZER_FILE, server.tokenizer.file_name]
    paths = [files.join(model_dir, name) for name in names]
    return [path for path in paths if tf.io.gfile.exists(path)]


def save(server: Server, assets: list[str], folder: str) -> None:
    """Write a SavedModel with each weight once, under its name."""
    root = tf.Module(name="albert")
    root.weights = server.weights
    root.assets = [tf.saved_model.Asset(path) for path in assets]
    if server.tokenizer:
        root.text_graph = server.text_graph
    tf.saved_model.save(root, folder, signatures=server.signatures())


def report(server: Server, folder: str) -> None:
    """Print what was written, and the size beside that of the parameters."""
    size = sum(
        tf.io.gfile.stat(path).length
        for path in tf.io.gfile.glob(files.join(folder, "variables", "*"))
    )
    count = sum(v.shape.num_elements() for v in server.weights.values())
    print(
        f"Signatures: {', '.join(server.inputs())}; serving_default is "
        f"{server.default()}\n"
        f"{count:,} parameters, {4 * count / 1e6:.1f} MB; "
        f"variables on disk {size / 1e6:.1f} MB\n"
        f"Wrote {folder}"
    )


def export(config: ExportConfig, serving: ServingConfig) -> None:
    """Write the SavedModel of a model directory, whole or not at all."""
    folder = config.export_dir.rstrip("/")
    check_target(folder)
    server = load_server(config.model_dir, serving)
    with files.atomic_folder(folder) as temporary:
        save(server, asset_paths(config.model_dir, server), temporary)
    report(server, folder)


def main() -> None:
    """Export as the flags say."""
    export(
        settings.from_flags(ExportConfig), settings.from_flags(ServingConfig)
    )


def cli() -> None:
    """Run the command line."""
    settings.define_flags(ExportConfig, ServingConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
