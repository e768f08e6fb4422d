"""A new run's first weights, taken from another model's checkpoint.

The source may have fewer layers or groups and a shorter position table. As
layers share their weights, a deeper model often has the same variables: they
serve more layers.
"""

import re

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.model.config import PRETRAINING_HEADS, AlbertConfig
from albert_tf.text.tokenizers import TOKENIZER_FILE, Tokenizer, load_tokenizer
from albert_tf.training import checkpoints

POSITIONS = "albert/embeddings/position_embeddings"
_BLOCK = re.compile(r"albert/encoder/(attention|ffn)_(\d+)_")

# What the source's shapes and meaning depend on.
FIXED_KEYS = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_attention_heads",
    "head_size",
    "intermediate_size",
    "inner_group_num",
    "hidden_act",
    "type_vocab_size",
    "embedding_norm",
)

# From which of the source's groups a group's weights come.
GROUP_RULES = ("depth", "first")

# What else than weights is taken.
STATES = ("weights", "slots", "run")


def tile(table: np.ndarray, rows: int) -> np.ndarray:
    """Return a position table that begins anew where the old one ends."""
    return table[np.arange(rows) % len(table)]


def interpolate(table: np.ndarray, rows: int) -> np.ndarray:
    """Return a position table stretched linearly over more rows."""
    at = np.linspace(0, len(table) - 1, rows)
    low = np.minimum(at.astype(int), len(table) - 2)
    share = (at - low)[:, None].astype(table.dtype)
    return table[low] * (1 - share) + table[low + 1] * share


POSITION_RULES = {"tile": tile, "interpolate": interpolate}


def check_source(source: AlbertConfig, target: AlbertConfig) -> None:
    """Refuse a source whose weights mean something else."""
    different = [
        f"{key}={getattr(source, key)} instead of {getattr(target, key)}"
        for key in FIXED_KEYS
        if getattr(source, key) != getattr(target, key)
    ]
    if different:
        raise InputError(
            "`init_checkpoint` may differ from `albert_config_file` in layers, "
            "groups, sharing, positions and dropout only. Received: "
            f"{', '.join(different)}"
        )


def check(model_dir: str, target: AlbertConfig, tokenizer: Tokenizer) -> None:
    """Refuse a source with another vocabulary or another kind of weights."""
    check_source(AlbertConfig.from_model_dir(model_dir), target)
    if not files.exists(files.join(model_dir, TOKENIZER_FILE)):
        return
    if load_tokenizer(model_dir).fingerprint() != tokenizer.fingerprint():
        raise InputError(
            "`init_checkpoint` must have the tokenizer of the records. "
            f"Received: init_checkpoint={model_dir} with another one"
        )


def source_index(
    kind: str,
    index: int,
    source: AlbertConfig,
    target: AlbertConfig,
    rule: str,
) -> int:
    """Return which of the source's blocks a block's weights come from.

    Args:
      kind: "attention" or "ffn".
      index: of the target's block.
      source, target: both architectures.
      rule: "first" takes block 0; "depth" the block of the source's layer at
        the relative depth of the first layer that uses the target's.
    """
    if rule == "first":
        return 0
    used = getattr(target, f"{kind}_index")
    depth = target.num_hidden_layers
    layer = next(i for i in range(depth) if used(i) == index)
    at = layer * source.num_hidden_layers // depth
    return getattr(source, f"{kind}_index")(at)


def source_name(
    name: str, source: AlbertConfig, target: AlbertConfig, rule: str
) -> str:
    """Return the source's name of a target's variable."""
    match = _BLOCK.match(name)
    if not match:
        return name
    kind, index = match[1], int(match[2])
    found = source_index(kind, index, source, target, rule)
    start = f"albert/encoder/{kind}_{found}_"
    return start + name[match.end() :]


def describe(
    source: AlbertConfig, target: AlbertConfig, names: dict[str, str]
) -> list[str]:
    """Say what becomes of layers and groups."""
    lines = []
    if source.num_hidden_layers != target.num_hidden_layers:
        lines.append(
            f"{target.num_hidden_layers} layers from {source.num_hidden_layers}"
        )
    moved = {
        (_BLOCK.match(ours)[0], _BLOCK.match(theirs)[0])
        for ours, theirs in names.items()
        if ours != theirs
    }
    lines += [
        f"{ours.split('/')[-1]}* from {theirs.split('/')[-1]}*"
        for ours, theirs in sorted(moved)
    ]
    return lines


def fitted_positions(table: np.ndarray, rows: int, rule: str) -> np.ndarray:
    """Return a position table of so many rows."""
    if rows <= len(table):
        return table[:rows]
    return POSITION_RULES[rule](table, rows)


def start_weights(
    model, model_dir: str, target: AlbertConfig, groups: str, positions: str
) -> list[str]:
    """Give a model the weights of a model directory; say what was done.

    Args:
      model: an `AlbertForPretraining`.
      model_dir: the source; heads that it lacks keep their random weights.
      target: the model's architecture.
      groups: one of `GROUP_RULES`.
      positions: one of `POSITION_RULES`, for a longer table.
    """
    source = AlbertConfig.from_model_dir(model_dir)
    check_source(source, target)
    prefix = checkpoints.for_inference(model_dir)
    stored = checkpoints.read_table(prefix)
    absent = tuple(
        h for h in PRETRAINING_HEADS if not any(n.startswith(h) for n in stored)
    )
    variables = {
        name: variable
        for name, variable in checkpoints.named_variables(model).items()
        if not (absent and name.startswith(absent))
    }
    names = {n: source_name(n, source, target, groups) for n in variables}
    missing = sorted(set(names.values()) - set(stored))
    if missing:
        raise InputError(
            "`init_checkpoint` must hold every weight. Received: "
            f"{prefix} without {', '.join(missing)}"
        )
    read = checkpoints.reader(prefix)
    for name, variable in variables.items():
        value = read(names[name])
        if name == POSITIONS:
            value = fitted_positions(value, variable.shape[0], positions)
        variable.assign(value)
    lines = describe(source, target, names)
    rows = [c.max_position_embeddings for c in (source, target)]
    if rows[0] < rows[1]:
        lines.append(f"{rows[1]} positions from {rows[0]} by {positions}")
    elif rows[0] > rows[1]:
        lines.append(f"the first {rows[1]} of {rows[0]} positions")
    lines += [f"a new {head[:-1]} head, for there is none" for head in absent]
    return [f"Weights of {prefix}", *lines]


def start_slots(
    model_dir: str,
    target: AlbertConfig,
    state: dict[str, tf.Variable],
    whole_run: bool,
) -> list[str]:
    """Restore weights and optimizer slots of the same model; say so.

    Args:
      model_dir: the source.
      target: the architecture, which must be the source's.
      state: weights, slots and step of the new run.
      whole_run: whether the step is taken too, and with it the schedule.
    """
    source = AlbertConfig.from_model_dir(model_dir)
    if source != target:
        raise InputError(
            "`init_state` other than weights needs the architecture of "
            "`init_checkpoint`. Received: another albert_config.json in "
            f"init_checkpoint={model_dir}"
        )
    prefix = checkpoints.latest(model_dir)
    step = f"{checkpoints.OPTIMIZER}iterations"
    if prefix is None or step not in checkpoints.read_table(prefix):
        raise InputError(
            "`init_state` other than weights needs a checkpoint with the "
            "optimizer's slots, as `pretrain.py` leaves it. Received: "
            f"init_checkpoint={model_dir}"
        )
    checkpoints.restore(prefix, state, ignore=())
    if whole_run:
        at = int(state[step].numpy())
        return [f"Weights, slots and step {at} of {prefix}"]
    state[step].assign(0)
    return [f"Weights and slots of {prefix}; the schedule begins anew"]
