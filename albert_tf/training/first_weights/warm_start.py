"""A new run's first weights, taken from another model's checkpoint.

The source may have fewer layers or groups and a shorter position table. As
layers share their weights, a deeper model often has the same variables: they
serve more layers.
"""

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.model.config import BLOCK, AlbertConfig
from albert_tf.text.tokenizers import TOKENIZER_FILE, Tokenizer, tokenizer_in
from albert_tf.training.first_weights.transplant import Transplant
from albert_tf.training.model_directory import checkpoints

POSITIONS = "albert/embeddings/position_embeddings"

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

# What is taken.
STATES = ("weights", "run")

# What becomes of the weights that belong to the pieces of the vocabulary.
SAME, TRANSPLANT = VOCABULARIES = ("same", "transplant")


def check_source(
    source: AlbertConfig, target: AlbertConfig, vocabulary: str = SAME
) -> None:
    """Refuse a source whose weights mean something else."""
    different = [
        f"{key}={getattr(source, key)} instead of {getattr(target, key)}"
        for key in FIXED_KEYS
        if getattr(source, key) != getattr(target, key)
        and (key, vocabulary) != ("vocab_size", TRANSPLANT)
    ]
    rule = "`init_checkpoint` may differ from `albert_config_file` in layers, "
    rule += "groups, sharing, positions and dropout only, and with "
    rule += "`init_vocabulary=transplant` in the vocabulary."
    require(not different, f"{rule} Received: {', '.join(different)}")


def check(
    model_dir: str | None,
    state: str,
    vocabulary: str,
    target: AlbertConfig,
    tokenizer: Tokenizer | None,
) -> None:
    """Refuse a source with another vocabulary or another kind of weights.

    Args:
      model_dir: the source, if any.
      state: one of `STATES`.
      vocabulary: one of `VOCABULARIES`.
      target: the new run's architecture.
      tokenizer: of the records, if known.
    """
    known = model_dir and tokenizer_in(model_dir)
    require(
        vocabulary == SAME or (known and tokenizer and state == "weights"),
        "`init_vocabulary=transplant` needs an `init_checkpoint` with its "
        "tokenizer, records with theirs, and `init_state=weights`.",
        init_checkpoint=f"{model_dir} ({TOKENIZER_FILE}: {bool(known)})",
        init_state=state,
    )
    if model_dir:
        source = AlbertConfig.from_model_dir(model_dir)
        check_source(source, target, vocabulary)
        require(
            state == "weights" or source == target,
            "`init_state=run` needs the architecture of `init_checkpoint`.",
            init_checkpoint=f"{model_dir} with another albert_config.json",
        )
        require(
            checkpoints.has_weights(model_dir),
            "`init_checkpoint` must hold a checkpoint.",
            init_checkpoint=model_dir,
        )
    if known and vocabulary == SAME:
        require(
            known.fingerprint() == tokenizer.fingerprint(),
            "`init_checkpoint` must have the tokenizer of the records, or "
            "`init_vocabulary` be transplant, which makes its word table anew "
            "for theirs.",
            init_checkpoint=f"{model_dir} with another one",
        )


def source_name(name: str, source: AlbertConfig, target: AlbertConfig) -> str:
    """Return the source's name of a target's variable.

    A block's weights are those of the source's layer at the same relative
    depth as the first layer that uses the block.
    """
    match = BLOCK.match(name)
    if not match:
        return name
    kind, block = match[1], int(match[2])
    blocks, origins = target.blocks(kind), source.blocks(kind)
    origin = origins[blocks.index(block) * len(origins) // len(blocks)]
    return f"albert/encoder/{kind}_{origin}_{name[match.end() :]}"


def describe(
    source: AlbertConfig, target: AlbertConfig, names: dict[str, str]
) -> list[str]:
    """Say what becomes of layers, groups and positions."""
    lines = []
    if source.num_hidden_layers != target.num_hidden_layers:
        lines.append(
            f"{target.num_hidden_layers} layers from {source.num_hidden_layers}"
        )
    moved = {
        (BLOCK.match(ours)[0], BLOCK.match(theirs)[0])
        for ours, theirs in names.items()
        if ours != theirs
    }
    lines += [
        f"{ours.split('/')[-1]}* from {theirs.split('/')[-1]}*"
        for ours, theirs in sorted(moved)
    ]
    old, new = (c.max_position_embeddings for c in (source, target))
    if old < new:
        lines.append(f"{new} positions from {old}, which are repeated")
    elif old > new:
        lines.append(f"the first {new} of {old} positions")
    return lines


def start_weights(
    model,
    model_dir: str,
    target: AlbertConfig,
    transplant: Transplant | None = None,
) -> list[str]:
    """Give a model the weights of a model directory; say what was done.

    A longer position table begins anew where the source's ends.

    Args:
      model: an `AlbertForPretraining`.
      model_dir: the source; heads that it lacks keep their random weights.
      target: the model's architecture.
      transplant: where the source has another vocabulary.
    """
    source = AlbertConfig.from_model_dir(model_dir)
    changes = transplant.changes() if transplant else {}
    prefix = checkpoints.for_inference(model_dir)
    stored = checkpoints.read_table(prefix)
    variables, absent = checkpoints.present(model, stored)
    names = {n: source_name(n, source, target) for n in variables}
    missing = sorted(set(names.values()) - set(stored))
    require(
        not missing,
        "`init_checkpoint` must hold every weight.",
        init_checkpoint=f"{prefix} without {', '.join(missing)}",
    )
    read = checkpoints.reader(prefix)
    for name, variable in variables.items():
        value = read(names[name])
        if name == POSITIONS:
            value = value[np.arange(variable.shape[0]) % len(value)]
        if name in changes:
            value = changes[name](value, variable.numpy())
        variable.assign(value)
    lines = describe(source, target, names)
    lines += [f"a new {head[:-1]} head, for there is none" for head in absent]
    lines += [transplant.describe()] if transplant else []
    return [f"Weights of {prefix}", *lines]


def start_run(model_dir: str, state: dict[str, tf.Variable]) -> list[str]:
    """Restore weights, slots and step, and so the schedule; say so.

    Args:
      model_dir: the source, of the same architecture.
      state: all that the new run resumes from.
    """
    rule = "`init_state=run` needs a checkpoint with the optimizer's slots, as "
    rule += "`pretrain.py` leaves it."
    prefix = checkpoints.latest(model_dir)
    require(prefix, rule, init_checkpoint=model_dir)
    checkpoints.restore_run(prefix, state, rule)
    step = state[f"{checkpoints.OPTIMIZER}iterations"]
    return [f"Weights, slots and step {int(step.numpy())} of {prefix}"]
