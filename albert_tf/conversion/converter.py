"""A model out of one kind of files, into another, or an error."""

import dataclasses

import safetensors
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.base.settings import Checked, setting
from albert_tf.conversion.sources import (
    Reading,
    Source,
    describe_source,
    open_source,
)
from albert_tf.conversion.targets import TARGETS
from albert_tf.training.model_directory.checkpoint_files import reason


def _check(source: Source, pairs: bool) -> None:
    """Raise `InputError` if a source's parts do not fit each other."""
    require(
        not pairs or getattr(source.task, "is_pair", False),
        "`pairs` needs a classifier from Hugging Face or a TF1 checkpoint.",
        pairs=pairs,
    )
    if source.tokenizer:
        source.config.check_pieces(source.tokenizer.vocab_size, source.path)


def convert(
    input: str,
    output: str,
    to: str,
    **how: bool | str | None,
) -> list[str]:
    """Convert a model; return lines that say what was found and done.

    Args:
      input: a folder or a checkpoint's prefix.
      output: a folder that is new or empty.
      to: a key of `TARGETS`.
      **how: the fields of `Reading`.

    Raises:
      InputError: anything does not fit; then there is no output folder.
    """
    rule = "`output` must be a new or empty folder."
    require(files.is_free(output), rule, output=output)
    reading = Reading(**how)
    with files.atomic_folder(output) as temporary:
        source = open_source(input, reading)
        _check(source, reading.pairs)
        try:
            count = TARGETS[to](temporary, source)
        except (tf.errors.OpError, safetensors.SafetensorError) as error:
            raise InputError(
                f"`output` must be writable: {reason(error)}. Is the disk "
                f"full? Received: output={output}"
            ) from None
        lines = describe_source(source)
    left_out = len(source.tensors) - count
    lines.append(f"wrote: {output} ({to}, {count} tensors)")
    if left_out:
        lines.append(
            f"warning: {left_out} tensors of the optimizer"
            f"{' or of heads' * (to == 'sentence_transformers')} are left out; "
            f"a {to} folder has no place for them"
        )
    return lines


@dataclasses.dataclass(frozen=True)
class ConversionConfig(Checked):
    """What to convert, into what."""

    input: str = setting(
        "",
        "Folder with config and weights, or a checkpoint's prefix.",
        required=True,
    )
    output: str = setting("", "Folder to write; new or empty.", required=True)
    to: str = setting(
        "model_dir", "What to write.", choices=tuple(TARGETS), required=True
    )
    albert_config_file: str | None = setting(
        None, "Config to use instead of the one beside the weights."
    )
    pairs: bool = setting(
        False,
        "Whether a classifier from Hugging Face or a TF1 checkpoint takes "
        "pairs of texts; its files do not tell.",
    )
    task: str | None = setting(
        None,
        "Task of the head in a TF1 checkpoint, which has no labels; named as "
        "for finetune.py. Default: classification or SQuAD.",
    )
    encoder_only: bool = setting(
        False, "Whether to keep only the encoder, whatever head it has."
    )
    strict: bool = setting(
        False,
        "Whether to fail, rather than warn, if a Hugging Face tokenizer has "
        "rules without an equivalent here.",
    )
