"""The size and cost of a config's model, which follow from the config.

The row of the paper's Table 1; the parameters of each part beside an unshared
BERT of the same shape; the floating-point operations of one sequence.
"""

import dataclasses
import math

from albert_tf.base import files, program
from albert_tf.base.console import table
from albert_tf.base.errors import require
from albert_tf.base.settings import setting
from albert_tf.conversion.variable_names import variable_shapes
from albert_tf.model.config import TRAINING_FACTOR, AlbertConfig, forward_flops

# Parts of the model, by the beginning of their variables' names.
PARTS = {
    "word embeddings": "albert/embeddings/word_embeddings",
    "positions, segments, norm": "albert/embeddings/",
    "embedding projection": "albert/embeddings/embedding_hidden_mapping_in",
    "attention": "albert/encoder/attention_",
    "feed-forward": "albert/encoder/ffn_",
    "pooler": "albert/pooler/",
    "masked-LM head": "mlm/",
    "sentence-order head": "sop/",
}
BACKBONE = tuple(p for p, name in PARTS.items() if name.startswith("albert/"))

# How the paper's tables say what is shared.
SHARED = {
    "all": "True",
    "attention": "attention",
    "ffn": "FFN",
    "none": "False",
}


def part_of(name: str) -> str:
    """Return the part of the model that a variable belongs to."""
    fitting = [part for part, start in PARTS.items() if name.startswith(start)]
    return max(fitting, key=lambda part: len(PARTS[part]))


def parameters(config: AlbertConfig) -> dict[str, int]:
    """Return {part: number of parameters}."""
    counts = dict.fromkeys(PARTS, 0)
    for name, shape in variable_shapes(config).items():
        counts[part_of(name)] += math.prod(shape)
    return counts


def as_bert(config: AlbertConfig) -> AlbertConfig:
    """Return a BERT of the same shape: nothing factorized, nothing shared."""
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


def _ratio(ours: int, theirs: int) -> str:
    return f"{theirs / ours:.1f}x" if ours and theirs else ""


def parameter_lines(config: AlbertConfig) -> list[str]:
    """Return the table of parameters."""
    ours, bert = parameters(config), parameters(as_bert(config))
    rows = [("parameters", "this model", "BERT, same shape", "BERT / this")]

    def add(title: str, parts: tuple[str, ...]) -> None:
        left = sum(ours[part] for part in parts)
        right = sum(bert[part] for part in parts)
        rows.append((title, f"{left:,}", f"{right:,}", _ratio(left, right)))

    for part in BACKBONE:
        add(f"  {part}", (part,))
    add("backbone", BACKBONE)
    for part in PARTS:
        if part not in BACKBONE:
            add(f"  {part}", (part,))
    add("with both heads", tuple(PARTS))
    return table(rows)


def paper_lines(name: str, config: AlbertConfig) -> list[str]:
    """Return the row of the paper's Table 1."""
    counts = parameters(config)
    millions = sum(counts[part] for part in BACKBONE) / 1e6
    shared = config.num_hidden_groups < config.num_hidden_layers
    heads = str(config.num_attention_heads)
    if config.attention_head_size:  # not the H / A that the paper has
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
    return table([tuple(row), tuple(row.values())])


def flops_lines(config: AlbertConfig, tokens: int) -> list[str]:
    """Return the table of operations, 15 % of the tokens being predicted."""
    predictions = max(1, round(0.15 * tokens))
    flops = forward_flops(config, tokens, predictions)
    total = sum(flops.values())
    title = f"GFLOPs, {tokens} tokens, {predictions} predictions"
    rows = [(title, "forward", "training", "share")]
    parts = {f"  {part}": count for part, count in flops.items()}
    for part, count in {**parts, "one sequence": total}.items():
        passes = count / 1e9, count * TRAINING_FACTOR / 1e9
        rows.append(
            (part, *(f"{x:,.3f}" for x in passes), f"{count / total:.1%}")
        )
    return table(rows)


def size_report(path: str, sequence_length: int | None = None) -> list[str]:
    """Return the lines that describe a config file.

    Args:
      path: a released or own `albert_config.json`.
      sequence_length: tokens; the longest that the model takes by default.
    """
    config = AlbertConfig.from_json_file(path)
    longest = config.max_position_embeddings
    tokens = longest if sequence_length is None else sequence_length
    require(
        1 <= tokens <= longest,
        "`sequence_length` must be from 1 to `max_position_embeddings`.",
        sequence_length=tokens,
        max_position_embeddings=longest,
    )
    name = path.replace("\\", "/").split("/")[-1].removesuffix(".json")
    return [
        *paper_lines(name, config),
        "",
        *parameter_lines(config),
        "",
        *flops_lines(config, tokens),
    ]


@dataclasses.dataclass(frozen=True)
class DescribeConfig:
    """Which configs are described, for which sequences."""

    config: str = setting(
        "", "Config files, comma-separated; may stand without --config."
    )
    sequence_length: int | None = setting(
        None, "Tokens of a sequence; the longest possible by default."
    )


@program.command(DescribeConfig, positional="config")
def describe(c: DescribeConfig) -> None:
    """Print how large and how costly the models of configs are."""
    paths = files.listed(c.config)
    require(paths, "`config` must be given.", config=c.config)
    for i, path in enumerate(paths):
        lines = size_report(path, c.sequence_length)
        print("\n\n" * bool(i) + "\n".join(lines))


cli = describe.program.cli
