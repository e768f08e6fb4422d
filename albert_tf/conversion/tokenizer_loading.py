"""Load the tokenizer of a folder in any supported format."""

import os

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.conversion.hub_tokenizer import read_tokenizer
from albert_tf.conversion.tokenizer_files import find_vocabulary
from albert_tf.conversion.tokenizer_json import (
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
)
from albert_tf.text import tokenizers
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.text.vocabulary import refuse_symbols

# Files that mark a folder as a Hugging Face folder, even without weights.
HUB_FILES = (TOKENIZER_JSON, TOKENIZER_CONFIG, "config.json")


def _read(path: str) -> tuple[Tokenizer | None, list[str]]:
    """Read the tokenizer of a foreign folder; return it and warnings.

    The tokenizer is None if there is no vocabulary. In such a folder, any
    `tokenizer.json` comes from the `tokenizers` library.
    """
    # The import takes seconds, and model directories do not need TensorFlow.
    from albert_tf.conversion import sources

    if sources.is_model(path):
        source = sources.open_source(path, single="regression")
        return source.tokenizer, source.warnings
    if any(files.exists(files.join(path, name)) for name in HUB_FILES):
        return read_tokenizer(path)
    return sources.find_tokenizer([path]), []


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """Return the tokenizer in a folder, and print warnings about its files.

    Args:
      path: any `path` that `albert_tf.load` accepts, or a folder with only a
        tokenizer: the files of a Hugging Face tokenizer, a SentencePiece model
        (`spiece.model`) or a WordPiece vocabulary (`vocab.txt`).

    Raises:
      InputError: if there is no vocabulary, if there are several, or if a file
        is malformed.
    """
    path = files.local_path("path", str(path))
    has_json = files.exists(files.join(path, TOKENIZER_JSON))
    if has_json and "model" not in files.read_optional_json(
        path, TOKENIZER_JSON
    ):
        names = (kind.file_name for kind in tokenizers.TOKENIZERS.values())
        has_default = any(files.exists(files.join(path, n)) for n in names)
        other = None if has_default else find_vocabulary([path])
        return tokenizers.load_saved_tokenizer(path, other[1] if other else "")
    tokenizer, warnings = _read(path)
    if not tokenizer:
        refuse_symbols(path)
    rule = "`path` must be a folder with a tokenizer: a model directory, an "
    rule += "unpacked release, a Hugging Face folder, or a folder with a "
    rule += "`spiece.model` or a `vocab.txt`."
    require(tokenizer, rule, path=path)
    for warning in warnings:
        print(f"warning: {warning}")
    return tokenizer
