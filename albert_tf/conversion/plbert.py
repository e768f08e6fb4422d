"""PL-BERT's files: `config.yml` and `step_N.t7`, as StyleTTS 2 reads them.

The `.t7` file is a PyTorch file. Its `net` contains two heads and the encoder,
with Hugging Face's names under `module.encoder.`, or `encoder.` if the model
was saved without its `DataParallel` wrapper. Sources:
`Utils/PLBERT/util.py` of yl4579/StyleTTS2 and `model.py` of yl4579/PL-BERT.
"""

import re

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.packages import need
from albert_tf.conversion import huggingface
from albert_tf.conversion.huggingface import BACKBONE
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.variable_names import MODEL_DIR, StoredTensor
from albert_tf.model.config import AlbertConfig
from albert_tf.text.symbols import SYMBOLS_FILE, SymbolTable, preset, table_in

CONFIG = "config.yml"
PARAMETERS = "model_params"
WEIGHTS = "step_*.t7"
ROOT, ENCODER = "module.", "module.encoder."
# Errors caused by valid YAML that is not a config, for example deep nesting.
MALFORMED = (LookupError, RecursionError, TypeError, ValueError)
# {our name of a head: PL-BERT's name}
HEADS = {"symbols": "mask_predictor", "words": "word_predictor"}
# StyleTTS 2 removes this buffer and fails if the buffer does not exist.
POSITION_IDS = ENCODER + "embeddings.position_ids"
# Defaults of transformers' `AlbertConfig` for values that PL-BERT does not set.
DEFAULTS = {"embedding_size": 128, "hidden_act": "gelu_new"}


def is_folder(path: str) -> bool:
    """Return whether a folder contains PL-BERT's files."""
    has_config = files.is_folder(path) and files.exists(
        files.join(path, CONFIG)
    )
    return has_config and bool(files.matches(WEIGHTS, path))


def read_config(folder: str) -> tuple[AlbertConfig, list[str]]:
    """Read `config.yml`; return the config and warnings."""
    need(f"`{CONFIG}`", "yaml", path=folder)
    import yaml

    path = files.join(folder, CONFIG)
    text = files.read_text(path, f"`{CONFIG}`")
    try:
        values = yaml.safe_load(text)[PARAMETERS]
    except (*MALFORMED, yaml.YAMLError):
        values = None
    rule = f"`{CONFIG}` must contain the sizes of the model in `{PARAMETERS}`."
    require(isinstance(values, dict), rule, path=path)
    return huggingface.as_config(DEFAULTS | values, path)


def table_of(folder: str, config: AlbertConfig) -> SymbolTable:
    """Return a folder's symbol table; the default is PL-BERT's table."""
    released = preset("plbert")
    table = table_in(folder) or released
    require(
        table.vocab_size <= config.vocab_size
        and (table != released or config.vocab_size == released.vocab_size),
        f"`{SYMBOLS_FILE}` must be next to the weights and match their number "
        "of symbols, unless the weights use PL-BERT's own symbols.",
        vocab_size=f"{config.vocab_size} in {folder}",
    )
    return table


def head_of(table: SymbolTable) -> dict:
    """Return the keys to add to `config.json`, such as Kokoro's `vocab`."""
    ids = {s: i for s, i in table.symbols.items() if s != table.pad}
    pad = table.symbols[table.pad]
    return {"architectures": ["AlbertModel"], "pad_token_id": pad, "vocab": ids}


def head_tensors(
    shapes: dict[str, tuple], config: AlbertConfig
) -> dict[str, StoredTensor]:
    """Return {our name: stored tensor} for the heads that exist.

    Args:
      shapes: {name: shape}, with our names or with PL-BERT's names without
        `module.`.
      config: the architecture.
    """
    tensors = {}
    for head, stored_head in HEADS.items():
        bias_names = f"{head}/bias", f"{stored_head}.bias"
        shape = next(
            (shapes[name] for name in bias_names if name in shapes), None
        )
        if shape:
            kernel = f"{stored_head}.weight", (*shape, config.hidden_size), True
            tensors[f"{head}/kernel"] = StoredTensor(*kernel)
            tensors[f"{head}/bias"] = StoredTensor(bias_names[1], shape)
    return tensors


def step_of(path: str) -> int:
    """Return the N in a file name `step_N.t7`, or -1 if N is not a number."""
    number = re.search(r"step_(\d+)\.t7$", path)
    return int(number[1]) if number else -1


def with_step(tensors: Tensors, step: int) -> Tensors:
    """Add the training step to tensors under our names, if it is known."""
    if step < 0:
        return tensors
    return tensors.with_arrays({MODEL_DIR.step: np.array(step, np.int64)})


def open_weights(folder: str, config: AlbertConfig) -> tuple[Tensors, str]:
    """Open the newest weights, under Hugging Face's names.

    The newest file is the `step_N.t7` with the largest N.

    Returns:
      The tensors, and the path of the file.
    """

    def hub_name(name: str) -> str:
        full_name = name if name.startswith(ROOT) else ROOT + name
        if full_name.startswith(ENCODER):
            return BACKBONE + full_name.removeprefix(ENCODER)
        return full_name.removeprefix(ROOT)

    path = max(files.matches(WEIGHTS, folder), key=step_of)
    stored = huggingface.open_pickle(path, "net")
    tensors = stored.renamed({hub_name(name): name for name in stored.shapes})
    return huggingface.canonicalize(tensors, config, path), path


def write(
    folder: str, config: AlbertConfig, tensors: Tensors, step: int, pad: int
) -> None:
    """Write `config.yml` and `step_N.t7` to a folder.

    Args:
      folder: the folder to write to.
      config: the architecture.
      tensors: the weights, under Hugging Face's names.
      step: the training step, N in the file name.
      pad: the id of padding, whose embedding PyTorch does not train.
    """
    need("`to=styletts2`", "torch", "yaml", to="styletts2")
    import torch
    import yaml

    def stored_name(name: str) -> str:
        if name.startswith(BACKBONE):
            return ENCODER + name.removeprefix(BACKBONE)
        return ROOT + name

    arrays = huggingface.with_projection(tensors.read_all(), config)
    net = {stored_name(n): torch.from_numpy(a) for n, a in arrays.items()}
    net[POSITION_IDS] = torch.arange(config.max_position_embeddings)[None]
    with files.opened(files.join(folder, f"step_{step}.t7"), "wb") as file:
        torch.save({"net": net, "step": step}, file)
    values = huggingface.config_json(config) | {"pad_token_id": pad}
    del values["model_type"]
    content = yaml.safe_dump({PARAMETERS: values}, sort_keys=False)
    files.write_text(files.join(folder, CONFIG), content)
