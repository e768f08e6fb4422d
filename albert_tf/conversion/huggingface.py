"""Read and write the `config.json` and the weights of Hugging Face folders."""

import contextlib
import json
import os
import pickle
import shutil
import tempfile
import weakref
import zipfile

import h5py
import keras
import numpy as np
import safetensors
import safetensors.numpy

from albert_tf.base import files
from albert_tf.base.errors import errors_in, input_errors, require
from albert_tf.base.packages import is_installed, need
from albert_tf.conversion import tokenizer_json
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.model.config import ACTIVATIONS, AlbertConfig
from albert_tf.text.tokenizers import Tokenizer

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
H5 = "tf_model.h5"
WEIGHTS = (SAFETENSORS, PICKLE, H5)  # the most reliable first
FLOATS = "float32", "float16", "bfloat16"  # types of weights in these files
LFS_POINTER = b"version https://git-lfs"

# {Hugging Face's name of an activation: our name}
OUR_NAMES = {
    hub_name: name
    for name, activation in ACTIVATIONS.items()
    for hub_name in activation.hub_names
}

# {key of `config.json`: value that the key must have if it is present}
FIXED = {
    "model_type": "albert",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
}

# {second name of a tied weight in older files: first name}
TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
# Errors that the libraries raise for damaged files.
DAMAGE = (
    *(AttributeError, EOFError, LookupError, OSError, RuntimeError),
    *(TypeError, ValueError, pickle.UnpicklingError),
    safetensors.SafetensorError,
)
POSITION_IDS = "albert.embeddings.position_ids"
BACKBONE = "albert."
WORD_TABLE = "embeddings.word_embeddings.weight"
ENCODER_PARTS = ("embeddings.", "encoder.", "pooler.")
# Names in Keras files: outermost layers, and {variable name: PyTorch's name}.
H5_ROOTS = "albert predictions classifier qa_outputs sop_classifier".split()
H5_LAST = {
    **dict.fromkeys(("kernel", "gamma", "embeddings"), "weight"),
    "beta": "bias",
    "decoder_bias": "decoder.bias",
}
H5_BIAS = "predictions.decoder.bias"
POOLER = "albert.pooler."

# Hugging Face models have this projection even if the widths of embeddings and
# hidden states are equal.
PROJECTION = "albert.encoder.embedding_hidden_mapping_in."


def is_folder(path: str) -> bool:
    """Return whether a folder contains a Hugging Face config and weights."""
    return files.exists(files.join(path, CONFIG)) and any(
        files.exists(files.join(path, name)) for name in WEIGHTS
    )


def read_config(path: str) -> tuple[AlbertConfig, list[str]]:
    """Read a `config.json`; return the config and warnings."""
    return as_config(files.read_json_object(path, "`config.json`"), path)


def as_config(values: dict, path: str) -> tuple[AlbertConfig, list[str]]:
    """Convert a `config.json`'s values; return the config and warnings."""
    name = values.get("hidden_act", "gelu_new")
    with errors_in(path):
        for key, fixed in FIXED.items():
            value = values.get(key, fixed)
            rule = f"`{key}` must be {fixed}, as in ALBERT."
            require(value == fixed, rule, **{key: value})
        rule = f"`hidden_act` must be one of {', '.join(OUR_NAMES)}."
        require(name in [*OUR_NAMES], rule, hidden_act=name)
        fields = AlbertConfig.__dataclass_fields__
        ours = {key: value for key, value in values.items() if key in fields}
        ours["hidden_act"] = OUR_NAMES[name]
        config = AlbertConfig.from_dict(ours)
    warnings = []
    if OUR_NAMES[name] == "gelu_erf":
        warnings.append(
            f"{path} has hidden_act={name}, the erf form; the weights released "
            "by Google were trained with the tanh form, gelu_new"
        )
    return config, warnings


def config_json(
    config: AlbertConfig, tokenizer: Tokenizer | None = None
) -> dict:
    """Return the content of a `config.json`, without the head's values.

    Without a tokenizer, the special pieces have the released ids.
    """
    pad, cls, sep = 0, 2, 3
    if tokenizer:
        pad, cls, sep = tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id
    values = json.loads(config.to_json())
    del values["sharing"], values["embedding_norm"]
    return {
        "model_type": "albert",
        **values,
        "hidden_act": ACTIVATIONS[config.hidden_act].hub_names[0],
        "dtype": "float32",  # even if the file contains float16
        "layer_norm_eps": 1e-12,
        "classifier_dropout_prob": 0.1,
        "pad_token_id": pad,
        "bos_token_id": cls,
        "eos_token_id": sep,
    }


class LocalCopy:
    """A local file for libraries that cannot read remote files.

    Attributes:
      path: the path of the file, or of a copy that exists only as long as this
        object does.
    """

    def __init__(self, path: str):
        self.path = path
        if files.is_remote(path):
            folder = tempfile.mkdtemp()
            weakref.finalize(self, shutil.rmtree, folder)
            self.path = files.join(folder, os.path.basename(path))
            files.copy(path, self.path)


def _complete(kind: str, path: str) -> contextlib.AbstractContextManager:
    """Convert a library's errors about a damaged file to `InputError`."""
    rule = f"The weights must be a complete {kind}"
    return input_errors(DAMAGE, rule, path=path)


def _open_safetensors(path: str) -> Tensors:
    # Reopen the file for each tensor, because pages of a mapped file count as
    # used memory until the file is closed.
    file_copy = LocalCopy(path)

    def open_file():
        return safetensors.safe_open(file_copy.path, framework="numpy")

    def read(name: str) -> np.ndarray:
        with open_file() as file:
            return file.get_tensor(name)

    with _complete("safetensors file", path), open_file() as file:
        names = sorted(file.keys())
        shapes = {n: tuple(file.get_slice(n).get_shape()) for n in names}
    return Tensors(shapes, read)


def open_pickle(path: str, key: str | None = None) -> Tensors:
    """Open a pickle with torch's weights-only loader, which runs no code.

    Args:
      path: the file.
      key: the key of the tensors in the file, or None if the file contains
        only tensors.
    """
    need(f"{PICKLE}, unlike {SAFETENSORS},", "torch", path=path)
    import torch

    file_copy = LocalCopy(path)

    def load() -> dict:
        content = torch.load(
            file_copy.path,
            map_location="cpu",
            weights_only=True,
            mmap=zipfile.is_zipfile(file_copy.path),  # fails for older formats
        )
        return content[key] if key else content

    with _complete("file that contains only tensors", path):
        shapes = {n: tuple(t.shape) for n, t in sorted(load().items())}
    return Tensors(
        shapes, lambda name: load()[name].detach().float().numpy().copy()
    )


def _open_h5(path: str) -> Tensors:
    """Open the weights of transformers' TensorFlow classes.

    Keras names a weight `LAYER/MODEL/albert/*/kernel:0`. PyTorch names the same
    weight `albert.*.weight` and stores kernels transposed.
    """
    file_copy = LocalCopy(path)
    names: dict[str, tuple[str, bool]] = {}
    shapes: dict[str, tuple] = {}

    def visit(name: str, item) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        # A hostile file could name any file on this machine.
        if item.external or item.is_virtual:
            raise ValueError(f"`{name}` is stored in another file")
        parts = name.removesuffix(":0").split("/")
        roots = [i for i, part in enumerate(parts) if i and part in H5_ROOTS]
        *scope, last = parts[roots[0] if roots else 0 :]
        transposed = last == "kernel"
        scope = [part.replace("_._", ".") for part in scope]
        new = ".".join([*scope, H5_LAST.get(last, last)])
        shape = item.shape[::-1] if transposed else item.shape
        names[new], shapes[new] = (name, transposed), tuple(shape)

    with _complete("HDF5 file", path), h5py.File(file_copy.path) as file:
        file.visititems(visit)
    # The file has two biases; transformers adds only this bias to masked-LM
    # logits.
    if H5_BIAS in names:
        names["predictions.bias"] = names.pop(H5_BIAS)
        shapes["predictions.bias"] = shapes.pop(H5_BIAS)

    def read(name: str) -> np.ndarray:
        key, transposed = names[name]
        with (
            _complete("HDF5 file", path),
            h5py.File(file_copy.path) as file,
        ):
            array = file[key][()]
        return np.ascontiguousarray(array.T) if transposed else array

    return Tensors(dict(sorted(shapes.items())), read)


def _without_copies(tensors: Tensors, path: str) -> Tensors:
    """Drop position ids, and copies of tied weights that equal the originals.

    Raises:
      InputError: if the decoder's weight differs from the embedding table, or
        if the two biases differ.
    """
    copies = {copy: x for copy, x in TIED.items() if x in tensors.shapes}
    for copy, name in copies.items():
        require(
            copy not in tensors.shapes
            or np.array_equal(tensors.read(copy), tensors.read(name)),
            f"`{copy}` must equal `{name}`, because ALBERT ties the two. "
            f"Received: {path}",
        )
    return tensors.where(lambda name: name not in (POSITION_IDS, *copies))


def _without_identity(
    tensors: Tensors, config: AlbertConfig, path: str
) -> Tensors:
    """Check and drop the identity projection between equal widths.

    Raises:
      InputError: if the projection is not the identity.
    """
    kernel, bias = PROJECTION + "weight", PROJECTION + "bias"
    if config.embedding_size != config.hidden_size or not (
        {kernel, bias} <= tensors.shapes.keys()
    ):
        return tensors
    identity = np.eye(config.hidden_size)
    require(
        np.array_equal(tensors.read(kernel), identity)
        and not tensors.read(bias).any(),
        "`embedding_hidden_mapping_in` must be the identity if "
        "`embedding_size` equals `hidden_size`, because the released model "
        f"then has no projection. Received: {path}",
    )
    return tensors.where(lambda name: name not in (kernel, bias))


def _as_float32(tensors: Tensors, path: str) -> Tensors:
    """Convert tensors to float32; reject types that are not in `FLOATS`."""

    def read(name: str) -> np.ndarray:
        # safetensors looks up the type in NumPy; if NumPy lacks the type, the
        # library raises `AttributeError`.
        kinds = AttributeError, TypeError, safetensors.SafetensorError
        rule = f"`{name}` must be float32, float16 or bfloat16"
        with input_errors(kinds, rule, path=path):
            array = tensors.read(name)
            if array.dtype.name not in FLOATS:
                raise TypeError(f"it is {array.dtype.name}")
        return array.astype(np.float32, copy=False)

    return Tensors(tensors.shapes, read)


def _open_file(folder: str) -> tuple[Tensors, str]:
    """Return the tensors and the path of the most reliable weights file."""
    names = [n for n in WEIGHTS if files.exists(files.join(folder, n))]
    if names[0] == PICKLE and not is_installed("torch"):
        names = names[1:] or names  # other formats do not need torch
    path = files.join(folder, names[0])
    with files.opened(path, "rb") as file:
        pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
    require(
        not pointer,
        "The weights file must not be a git-lfs pointer. Run `git lfs pull` in "
        "the folder to download the weights.",
        path=path,
    )
    openers = {SAFETENSORS: _open_safetensors, PICKLE: open_pickle}
    return openers.get(names[0], _open_h5)(path), path


def extract_encoder(tensors: Tensors, path: str) -> Tensors:
    """Return the tensors of the ALBERT encoder that a model contains."""
    matches = [name for name in tensors.shapes if name.endswith(WORD_TABLE)]
    rule = f"The weights must have one encoder with `{WORD_TABLE}`."
    require(len(matches) == 1, rule, path=f"{path} with {', '.join(matches)}")
    prefix = matches[0].removesuffix(WORD_TABLE)
    parts = tuple(prefix + part for part in ENCODER_PARTS)
    names = [name for name in tensors.shapes if name.startswith(parts)]
    return tensors.renamed(
        {BACKBONE + n.removeprefix(prefix): n for n in names}
    )


def canonicalize(tensors: Tensors, config: AlbertConfig, path: str) -> Tensors:
    """Return a file's tensors in float32, without redundant tensors."""
    tensors = _as_float32(tensors, path)
    tensors = _without_copies(tensors, path)
    return _without_identity(tensors, config, path)


def open_weights(
    folder: str, config: AlbertConfig, encoder_only: bool = False
) -> tuple[Tensors, str]:
    """Open a folder's weights; return the tensors and the path of the file.

    The names are Hugging Face's names for the whole model. Files of
    `AlbertModel` omit the prefix `albert.`; this function always adds it.

    Args:
      folder: the folder of the file.
      config: the architecture.
      encoder_only: whether to keep only the encoder, which may have any
        prefix.
    """
    tensors, path = _open_file(folder)
    if encoder_only:
        tensors = extract_encoder(tensors, path)
    elif WORD_TABLE in tensors.shapes:
        tensors = tensors.renamed({BACKBONE + n: n for n in tensors.shapes})
    return canonicalize(tensors, config, path), path


def with_pooler(tensors: Tensors, config: AlbertConfig) -> Tensors:
    """Add an untrained pooler to the tensors."""
    width, stddev = config.hidden_size, config.initializer_range
    initializer = keras.initializers.TruncatedNormal(stddev=stddev, seed=0)
    pooler = {
        POOLER + "weight": np.asarray(initializer((width, width))),
        POOLER + "bias": np.zeros(width, np.float32),
    }
    return tensors.with_arrays(pooler)


def write_tokenizer(folder: str, tokenizer: Tokenizer, length: int) -> bool:
    """Write a tokenizer's files; return whether Hugging Face can load them.

    Args:
      folder: the folder to write to.
      tokenizer: the tokenizer to write.
      length: the model's maximum number of tokens.
    """
    path = files.join(folder, tokenizer.file_name)
    files.write_bytes(path, tokenizer.content)
    content = tokenizer_json.tokenizer_json(tokenizer)
    if content:
        path = files.join(folder, tokenizer_json.TOKENIZER_JSON)
        files.write_text(path, json.dumps(content, ensure_ascii=False))
    files.write_json(
        files.join(folder, tokenizer_json.TOKENIZER_CONFIG),
        tokenizer_json.tokenizer_config(tokenizer, length),
    )
    return bool(content)


def architecture_of(tensors: Tensors) -> str:
    """Return the name of the Hugging Face class that has these variables."""
    if any(name.startswith("sop_classifier.") for name in tensors.shapes):
        return "AlbertForPreTraining"
    if any(name.startswith("predictions.") for name in tensors.shapes):
        return "AlbertForMaskedLM"
    return "AlbertModel"


def with_projection(
    arrays: dict[str, np.ndarray], config: AlbertConfig
) -> dict[str, np.ndarray]:
    """Add an identity projection if embedding and hidden widths are equal.

    Our model then has no projection, but Hugging Face's model requires one.
    """
    if config.embedding_size != config.hidden_size:
        return arrays
    width, dtype = config.hidden_size, next(iter(arrays.values())).dtype
    identity = np.eye(width, dtype=dtype), np.zeros(width, dtype)
    names = PROJECTION + "weight", PROJECTION + "bias"
    return arrays | dict(zip(names, identity, strict=True))


def write(
    folder: str,
    config: AlbertConfig,
    tensors: Tensors,
    head_config: dict | None = None,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write `config.json` and `model.safetensors` to a folder.

    Args:
      folder: the folder to write to.
      config: the architecture.
      tensors: the weights, under Hugging Face's names.
      head_config: see `head_of`; None if there is no task head.
      tokenizer: the tokenizer, or None if it is unknown.
    """
    head_config = head_config or {"architectures": [architecture_of(tensors)]}
    arrays = with_projection(tensors.read_all(), config)
    if head_config["architectures"] == ["AlbertModel"]:
        arrays = {n.removeprefix(BACKBONE): a for n, a in arrays.items()}
    values = config_json(config, tokenizer) | head_config
    config_path, path = (files.join(folder, n) for n in (CONFIG, SAFETENSORS))
    files.write_json(config_path, values)
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    # The library safetensors creates a file that only its owner can read.
    shutil.copymode(config_path, path)
