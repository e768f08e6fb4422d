"""The size and cost of a model, computed from its config.

The report has three sections: a row for the model as in the paper's Table 1;
the parameter count of each part of the model and of a BERT model of the same
shape; and the number of floating-point operations per sequence.
"""

import dataclasses
import math
import os

from albert_tf.base import files, program
from albert_tf.base.console import format_table
from albert_tf.base.errors import require
from albert_tf.base.settings import Validated, setting
from albert_tf.conversion.variable_names import variable_shapes
from albert_tf.model.config import TRAINING_FACTOR, AlbertConfig, forward_flops
from albert_tf.text.symbols import table_in

# {part of the model: prefix of its variable names}
PARAMETER_GROUPS = {
    "word embeddings": "albert/embeddings/word_embeddings",
    "positions, segments, norm": "albert/embeddings/",
    "embedding projection": "albert/embeddings/embedding_hidden_mapping_in",
    "attention": "albert/encoder/attention_",
    "feed-forward": "albert/encoder/ffn_",
    "pooler": "albert/pooler/",
    "masked-LM head": "mlm/",
    "sentence-order head": "sop/",
}
BACKBONE = tuple(
    p for p, name in PARAMETER_GROUPS.items() if name.startswith("albert/")
)

# {sharing: its name in the paper's tables}
SHARED = {
    "all": "True",
    "attention": "attention",
    "ffn": "FFN",
    "none": "False",
}


def part_of(name: str) -> str:
    """Return the part of the model to which a variable belongs."""
    matches = [
        part
        for part, prefix in PARAMETER_GROUPS.items()
        if name.startswith(prefix)
    ]
    return max(matches, key=lambda part: len(PARAMETER_GROUPS[part]))


# {title of a phoneme model's linear head: number of its classes}
Heads = dict[str, int]


def with_heads(
    counts: dict[str, int], heads: Heads, per_class: int
) -> dict[str, int]:
    """Return counts with the usual heads replaced by phoneme heads, if any.

    Args:
      counts: {part: count} for a model with the pretraining heads.
      heads: the phoneme heads; empty for other models.
      per_class: the count for each class of a phoneme head.
    """
    if not heads:
        return counts
    backbone = {part: counts[part] for part in counts if part in BACKBONE}
    return backbone | {title: per_class * size for title, size in heads.items()}


def parameters(config: AlbertConfig, heads: Heads) -> dict[str, int]:
    """Return {part: number of parameters}."""
    counts = dict.fromkeys(PARAMETER_GROUPS, 0)
    for name, shape in variable_shapes(config).items():
        counts[part_of(name)] += math.prod(shape)
    return with_heads(counts, heads, config.hidden_size + 1)


def as_bert(config: AlbertConfig) -> AlbertConfig:
    """Return the config of a BERT model of the same shape.

    The model has neither factorized embeddings nor shared layers.
    """
    layers = config.num_hidden_layers * config.inner_group_num
    return dataclasses.replace(
        config,
        embedding_size=config.hidden_size,
        embedding_norm="embedding",
        num_hidden_layers=layers,
        num_hidden_groups=layers,
        inner_group_num=1,
        sharing="all",
    )


def parameter_lines(config: AlbertConfig, heads: Heads) -> list[str]:
    """Return the lines of the parameter table."""
    counts, bert_counts = (
        parameters(c, heads) for c in (config, as_bert(config))
    )
    rows = [("parameters", "this model", "BERT, same shape", "BERT / this")]

    def add(title: str, parts: tuple[str, ...]) -> None:
        count = sum(counts[part] for part in parts)
        bert_count = sum(bert_counts[part] for part in parts)
        ratio = f"{bert_count / count:.1f}x" if count and bert_count else ""
        rows.append((title, f"{count:,}", f"{bert_count:,}", ratio))

    for part in BACKBONE:
        add(f"  {part}", (part,))
    add("backbone", BACKBONE)
    for part in counts:
        if part not in BACKBONE:
            add(f"  {part}", (part,))
    add("with both heads", tuple(counts))
    return format_table(rows)


def paper_lines(name: str, config: AlbertConfig) -> list[str]:
    """Return a header and a row for the model, as in the paper's Table 1."""
    counts = parameters(config, {})
    millions = sum(counts[part] for part in BACKBONE) / 1e6
    shared = config.num_hidden_groups < config.num_hidden_layers
    heads = str(config.num_attention_heads)
    if config.attention_head_size:  # differs from H / A in the paper
        heads += f" of {config.attention_head_size}"
    row = {
        "Table 1": name,
        "Parameters": f"{millions:.0f}M",
        "Layers": str(config.num_hidden_layers),
        "Hidden": str(config.hidden_size),
        "Embedding": str(config.embedding_size),
        "Heads": heads,
        "Parameter-sharing": SHARED[config.sharing] if shared else "False",
    }
    return format_table([tuple(row), tuple(row.values())])


def flops_lines(config: AlbertConfig, tokens: int, heads: Heads) -> list[str]:
    """Return the lines of the FLOPs table.

    The table assumes that the model predicts 15% of the tokens, or all symbols
    if it is a phoneme model.
    """
    predictions = tokens if heads else max(1, round(0.15 * tokens))
    flops = forward_flops(config, tokens, predictions)
    flops = with_heads(flops, heads, 2 * tokens * config.hidden_size)
    total = sum(flops.values())
    title = f"GFLOPs, {tokens} tokens, {predictions} predictions"
    rows = [(title, "forward", "training", "share")]
    parts = {f"  {part}": count for part, count in flops.items()}
    for part, count in {**parts, "one sequence": total}.items():
        passes = count / 1e9, count * TRAINING_FACTOR / 1e9
        rows.append(
            (part, *(f"{x:,.3f}" for x in passes), f"{count / total:.1%}")
        )
    return format_table(rows)


def size_report(path: str, sequence_length: int | None = None) -> list[str]:
    """Return the lines of the report on a model's size and cost.

    Args:
      path: an `albert_config.json`, released or written by this package, or
        the model directory that contains it.
      sequence_length: tokens per sequence. Default: the model's maximum.
    """
    read, table, heads = AlbertConfig.from_json_file, None, {}
    if files.is_folder(path):
        read, table = AlbertConfig.from_model_dir, table_in(path)
    config = read(path, "config")
    if table:
        heads["symbol head"] = config.vocab_size
        heads["word head"] = len(table.words)
    max_length = config.max_position_embeddings
    tokens = max_length if sequence_length is None else sequence_length
    require(
        1 <= tokens <= max_length,
        "`sequence_length` must be from 1 to `max_position_embeddings`.",
        sequence_length=tokens,
        max_position_embeddings=max_length,
    )
    # Unlike `.` and `model/`, the absolute path ends in a name.
    name = os.path.basename(os.path.abspath(path)).removesuffix(".json")
    return [
        *paper_lines(name, config),
        "",
        *parameter_lines(config, heads),
        "",
        *flops_lines(config, tokens, heads),
    ]


@dataclasses.dataclass(frozen=True)
class DescribeConfig(Validated):
    """The configs to describe, and the sequence length."""

    config: str = setting(
        "",
        "Config files or model directories, comma-separated; the flag name "
        "may be omitted.",
    )
    sequence_length: int | None = setting(
        None, "Tokens per sequence.", means="the model's maximum"
    )


@program.command(DescribeConfig, positional="config")
def describe(c: DescribeConfig) -> None:
    """Print the size and cost of each config's model."""
    paths = files.split_paths(c.config)
    require(paths, "`config` is required.", config=c.config)
    for i, path in enumerate(paths):
        lines = size_report(path, c.sequence_length)
        print("\n\n" * bool(i) + "\n".join(lines))


cli = describe.program.cli
