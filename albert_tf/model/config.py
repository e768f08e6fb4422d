"""The config of an ALBERT model, with the keys of released JSON files.

This module also counts the floating-point operations of a model.
"""

import dataclasses
import functools
import itertools
import json
import re
import shlex
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import errors_in, require
from albert_tf.base.settings import Validated, setting

CONFIG_FILE = "albert_config.json"
RELEASED_FILE = "model.ckpt-best.index"  # in TensorFlow 1 releases


def erf_gelu(x: tf.Tensor) -> tf.Tensor:
    """Return x / 2 * (1 + erf(x / sqrt(2))), using ops that ONNX supports."""
    return 0.5 * x * (1.0 + tf.math.erf(x * 0.5**0.5))


class Activation(NamedTuple):
    """An activation function.

    Attributes:
      function: the function, without custom gradients, because LiteRT exports
        cannot contain them: `tf.nn.silu` has one, but `x * tf.sigmoid(x)` does
        not.
      hub_names: Hugging Face's names; files that we write use the first name.
      is_released: whether the released TF1 code has the activation.
    """

    function: Callable[[tf.Tensor], tf.Tensor]
    hub_names: tuple[str, ...]
    is_released: bool


# The released "gelu" is the tanh form; Hugging Face's "gelu" is the erf form.
ACTIVATIONS = {
    "gelu": Activation(
        functools.partial(tf.nn.gelu, approximate=True),
        ("gelu_new", "gelu_pytorch_tanh"),
        True,
    ),
    "gelu_erf": Activation(erf_gelu, ("gelu", "gelu_python"), False),
    "relu": Activation(tf.nn.relu, ("relu",), True),
    "tanh": Activation(tf.nn.tanh, ("tanh",), True),
    "linear": Activation(tf.identity, ("linear",), True),
}

# The sharing strategies of the paper's Table 4. Each strategy names the parts
# of a layer that a group shares; each layer has a separate copy of the other
# parts.
SHARING = ("all", "attention", "ffn", "none")

# Where the embedding is normalized: "embedding", at width E before the
# projection (google-research), or "hidden", at width H after the projection,
# with position and segment tables of width H (albert_zh's first release).
EMBEDDING_NORMS = ("embedding", "hidden")

# Keys in released JSON files that do not affect the architecture.
IGNORED_KEYS = frozenset(
    """net_structure_type gap_size num_memory_blocks down_scale_factor
    layers_to_keep directionality pooler_fc_size pooler_num_attention_heads
    pooler_num_fc_layers pooler_size_per_head pooler_type""".split()
)

# Keys that occur only in a `config.json` from the Hugging Face hub.
HUB_KEYS = frozenset("architectures model_type transformers_version".split())

# A JSON file must contain all of these keys to describe a model.
REQUIRED_KEYS = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)

# Prefixes of the pretraining heads' variable names.
PRETRAINING_HEADS = ("mlm/", "sop/")
# The types of blocks in a layer, and the pattern of a block's variable names,
# which contain the block's type and index.
BLOCK_TYPES = ("attention", "ffn")
BLOCK = re.compile(rf"albert/encoder/({'|'.join(BLOCK_TYPES)})_(\d+)_")


# No model has this many layers. Without this limit, a damaged config could
# exhaust memory.
MAX_LAYERS = 10_000


def model_dirs_in(folder: str) -> list[str]:
    """Return the model directories in a folder, such as one for each seed.

    Exports are excluded: they have a config, but no checkpoint.
    """
    found = files.matches("*/checkpoint", folder)
    paths = [path.removesuffix("/checkpoint") for path in found]
    return [x for x in paths if files.exists(files.join(x, CONFIG_FILE))]


@dataclasses.dataclass(frozen=True)
class AlbertConfig(Validated):
    """An ALBERT architecture; the defaults describe ALBERT-base version 2.

    The fields are the keys of the released `albert_config.json`. JSON files
    must contain all of `REQUIRED_KEYS`, because defaults could silently
    describe the wrong model: the defaults of the released code describe
    xxlarge.
    """

    vocab_size: int = setting(30000, "Vocabulary size, V.", minimum=8)
    embedding_size: int = setting(128, "Embedding width, E.", minimum=1)
    hidden_size: int = setting(768, "Hidden width, H.", minimum=1)
    num_hidden_layers: int = setting(
        12, "Number of layers, L.", minimum=1, maximum=MAX_LAYERS
    )
    num_hidden_groups: int = setting(
        1, "Number of groups of layers that share weights.", minimum=1
    )
    inner_group_num: int = setting(
        1,
        "Number of consecutive blocks in each layer.",
        minimum=1,
        maximum=MAX_LAYERS,
    )
    num_attention_heads: int = setting(
        12, "Number of attention heads, A.", minimum=1
    )
    intermediate_size: int = setting(3072, "FFN width, I.", minimum=1)
    hidden_act: str = setting(
        "gelu",
        "Activation function; gelu is the tanh form.",
        choices=ACTIVATIONS,
    )
    hidden_dropout_prob: float = setting(
        0.0, "Dropout rate of hidden states.", minimum=0.0, maximum=0.99
    )
    attention_probs_dropout_prob: float = setting(
        0.0,
        "Dropout rate of attention probabilities.",
        minimum=0.0,
        maximum=0.99,
    )
    max_position_embeddings: int = setting(
        512, "Maximum input length in tokens.", minimum=1
    )
    type_vocab_size: int = setting(2, "Number of segment types.", minimum=1)
    initializer_range: float = setting(
        0.02,
        "Standard deviation of the truncated normal initializer.",
        minimum=1e-6,
    )
    sharing: str = setting(
        "all",
        "Parts that layers share; see Table 4 of the paper.",
        choices=SHARING,
    )
    embedding_norm: str = setting(
        "embedding", "Where embeddings are normalized.", choices=EMBEDDING_NORMS
    )
    attention_head_size: int | None = setting(
        None, "Head width, D, if heads were pruned.", means="H / A", minimum=1
    )

    def __post_init__(self):
        super().__post_init__()
        for field in dataclasses.fields(self):
            rule = f"`{field.name}` must be given."
            legal = getattr(self, field.name) is not None
            legal = legal or field.default is None
            require(legal, rule, **{field.name: None})
        require(
            self.attention_head_size
            or self.hidden_size % self.num_attention_heads == 0,
            "`num_attention_heads` must divide `hidden_size`.",
            num_attention_heads=self.num_attention_heads,
            hidden_size=self.hidden_size,
        )
        require(
            self.num_hidden_groups <= self.num_hidden_layers,
            "`num_hidden_groups` must be at most `num_hidden_layers`.",
            num_hidden_groups=self.num_hidden_groups,
            num_hidden_layers=self.num_hidden_layers,
        )

    @property
    def head_size(self) -> int:
        """Width of an attention head, D = H / A unless heads were pruned."""
        unpruned_size = self.hidden_size // self.num_attention_heads
        return self.attention_head_size or unpruned_size

    @property
    def attention_width(self) -> int:
        """Total width of the heads, A * D, which is H if no head was pruned."""
        return self.num_attention_heads * self.head_size

    def group(self, layer: int) -> int:
        """Return the index of a layer's group of consecutive layers."""
        return layer * self.num_hidden_groups // self.num_hidden_layers

    def with_layers(self, layers: int | None) -> "AlbertConfig":
        """Return a copy with `layers` layers, or with all layers if None."""
        layers = layers or self.num_hidden_layers
        return dataclasses.replace(self, num_hidden_layers=layers)

    def blocks(self, kind: str) -> list[int]:
        """Return, for each layer, the index of its block of the given kind."""
        shared = self.sharing in ("all", kind)
        layers = range(self.num_hidden_layers)
        return [self.group(layer) if shared else layer for layer in layers]

    def check_length(self, name: str, tokens: int | None) -> None:
        """Raise `InputError` if a setting exceeds the number of positions."""
        limit = self.max_position_embeddings
        rule = f"`{name}` must be at most the model's "
        rule += f"`max_position_embeddings`, {limit}."
        require((tokens or 0) <= limit, rule, **{name: tokens})

    def check_pieces(self, pieces: int, path: str) -> None:
        """Raise `InputError` if a vocabulary has more than V pieces."""
        require(
            pieces <= self.vocab_size,
            f"{path}: the tokenizer, or symbols.json, must have at most "
            "`vocab_size` pieces, because the embedding table has one row per "
            "piece.",
            pieces=pieces,
            vocab_size=self.vocab_size,
        )

    def shared_layers(self) -> list[range]:
        """Return the ranges of consecutive layers that call the same blocks."""
        kinds = map(self.blocks, BLOCK_TYPES)
        blocks = list(zip(*kinds, strict=True))
        layers = itertools.groupby(range(len(blocks)), blocks.__getitem__)
        runs = [list(run) for _, run in layers]
        return [range(run[0], run[-1] + 1) for run in runs]

    @classmethod
    def from_dict(cls, values: dict) -> "AlbertConfig":
        """Create a config from the keys of a released JSON file.

        Args:
          values: the JSON object. The keys in `IGNORED_KEYS` and the value
            postln of `ln_type` have no effect; `hidden_act` may be one of
            Hugging Face's names for `gelu`.
        """
        fields = {field.name for field in dataclasses.fields(cls)}
        order = values.get("ln_type", "postln")
        rule = "`ln_type` must be postln, as in the released ALBERT."
        require(order == "postln", rule, ln_type=order)
        unknown = sorted(set(values) - fields - IGNORED_KEYS - {"ln_type"})
        require(
            not unknown,
            f"Unknown key `{'`, `'.join(unknown)}`. The legal keys are "
            f"{', '.join(sorted(fields))}",
        )
        missing = [key for key in REQUIRED_KEYS if key not in values]
        require(
            not missing,
            f"Missing key `{'`, `'.join(missing)}`. The required keys are "
            f"{', '.join(REQUIRED_KEYS)}",
        )
        values = {k: v for k, v in values.items() if k in fields}
        if values.get("hidden_act") in ACTIVATIONS["gelu"].hub_names:
            values["hidden_act"] = "gelu"
        return cls(**values)

    @classmethod
    def from_json_file(
        cls, path: str, setting: str = "albert_config_file"
    ) -> "AlbertConfig":
        """Read an `albert_config.json`, released or written by this package.

        Error messages name the setting.
        """
        values = files.read_json_object(path, f"`{setting}`")
        require(
            not HUB_KEYS & values.keys(),
            f"`{setting}` must be an albert_config.json. This is a "
            "Hugging Face config. If its folder contains an ALBERT model, "
            "convert the folder with "
            "`python -m albert_tf.convert_checkpoint --input=FOLDER "
            "--output=NEW --to=model_dir`, which writes an "
            f"{CONFIG_FILE}; for a new model, see configs/models/.",
            **{setting: path},
            model_type=values.get("model_type"),
        )
        with errors_in(path):
            return cls.from_dict(values)

    @classmethod
    def from_model_dir(
        cls, model_dir: str, setting: str = "model_dir"
    ) -> "AlbertConfig":
        """Read a model directory's config.

        Error messages name the setting and explain how to create a model
        directory.
        """
        model_dir = files.local_path(setting, str(model_dir))
        path, named = files.join(model_dir, CONFIG_FILE), {setting: model_dir}
        command = (
            "`python -m albert_tf.convert_checkpoint "
            f"--input={shlex.quote(model_dir)} --output=NEW "
            "--to=model_dir`"
        )
        require(
            files.is_folder(model_dir)
            or not files.exists(f"{model_dir}.index"),
            "A model directory must be a folder, not the prefix of a "
            f"checkpoint; {command} creates one.",
            **named,
        )
        rule = "A model directory must be an existing folder."
        require(files.is_folder(model_dir), rule, **named)
        names = files.names(model_dir)
        inner = [] if CONFIG_FILE in names else model_dirs_in(model_dir)
        rule = f"`{setting}` must be one of the models in this folder: "
        require(not inner, f"{rule}{', '.join(inner)}.", **named)
        require(
            CONFIG_FILE in names and RELEASED_FILE not in names,
            f"A model directory must contain {CONFIG_FILE} and checkpoints of "
            f"this project; {command} creates one from a Hugging Face or "
            "PL-BERT folder, or from a TensorFlow 1 release.",
            **named,
        )
        return cls.from_json_file(path)

    def to_json(self) -> str:
        """Return the config as JSON text.

        The text omits `attention_head_size` unless heads were pruned.
        """
        values = dataclasses.asdict(self)
        values = {k: v for k, v in values.items() if v is not None}
        return json.dumps(values, indent=2) + "\n"

    def save(self, model_dir: str) -> None:
        """Write `albert_config.json` to a model directory."""
        files.write_text(files.join(model_dir, CONFIG_FILE), self.to_json())


# A backward pass costs twice as much as a forward pass.
TRAINING_FACTOR = 3


def forward_flops(
    config: AlbertConfig, tokens: int, predictions: int
) -> dict[str, int]:
    """Return {part: FLOPs} for the forward pass of one sequence.

    The FLOPs include only matrix products, with two operations per
    multiply-add; lookups, norms and activations amount to less than one
    percent. The last block computes outputs only for [CLS] and the predictions.

    Args:
      config: the architecture; sharing weights saves no operations.
      tokens: the length of the sequence, T.
      predictions: the number of masked positions, P.
    """
    v, e, h = config.vocab_size, config.embedding_size, config.hidden_size
    i, t, p = config.intermediate_size, tokens, predictions
    a = config.attention_width
    blocks = config.num_hidden_layers * config.inner_group_num
    outputs = (blocks - 1) * t + p + 1  # output tokens of all blocks
    hidden = config.embedding_norm == "hidden"
    width = h if hidden else e
    multiply_adds = {
        "embedding projection": t * e * h if e != h or hidden else 0,
        "attention": 2 * a * (blocks * t * h + outputs * (h + t)),
        "feed-forward": outputs * 2 * h * i,
        "pooler": h * h,
        "masked-LM head": p * (h * width + e * v + hidden * h * e),
        "sentence-order head": 2 * h,
    }
    return {part: 2 * count for part, count in multiply_adds.items()}


def training_flops(
    config: AlbertConfig, tokens: int, predictions: int, words: int = 0
) -> int:
    """Return the FLOPs of one sequence's forward and backward passes.

    The result excludes recomputed operations, which save memory but are not
    part of the model.

    Args:
      config, tokens, predictions: as for `forward_flops`.
      words: the number of words of a phoneme model, whose two heads are linear
        and compute outputs for all tokens; 0 for other models.
    """
    parts = forward_flops(config, tokens, predictions)
    if words:
        classes = config.vocab_size + words
        parts["masked-LM head"] = 2 * tokens * config.hidden_size * classes
        del parts["sentence-order head"]
    return TRAINING_FACTOR * sum(parts.values())
