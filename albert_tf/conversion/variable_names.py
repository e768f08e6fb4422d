"""Variable names in this package, released files and Hugging Face files.

Each row describes a variable of the model, or a layer with two variables: a
dense layer's kernel and bias, or a norm's gamma and beta. Dimensions in shapes:
V vocabulary, E embedding, H hidden, A all attention heads (H unless heads were
pruned), I intermediate, N positions, S segment types, W the normalized width
(E, or H in albert_zh's first release). `{g}` is the number of a group of layers
and `{k}` the number of a block in that group. `.T` after a name means that the
files contain the transpose of the variable.
"""

import dataclasses
from collections.abc import Iterator

from albert_tf.base.errors import InputError, require
from albert_tf.model.config import AlbertConfig

Shape = tuple[int, ...]

# Columns: our name, shape, google-research and TF-Hub, albert_zh's first
# release, Hugging Face. None means that the files cannot contain the variable.
_G = "bert/encoder/transformer/group_{g}/inner_group_{k}/"
_Z = "bert/encoder/layer_shared/"
_F = "albert.encoder.albert_layer_groups.{g}.albert_layers.{k}."
_A = "albert/encoder/attention_{g}_{k}/"
_B = "albert/encoder/ffn_{g}_{k}/"
_P = "albert/embeddings/embedding_hidden_mapping_in/"

# fmt: off
_SINGLE = (
    ("albert/embeddings/word_embeddings", "V E",
     "bert/embeddings/word_embeddings",
     "bert/embeddings/word_embeddings",
     "albert.embeddings.word_embeddings.weight"),
    ("albert/embeddings/token_type_embeddings", "S W",
     "bert/embeddings/token_type_embeddings",
     "bert/embeddings/token_type_embeddings",
     "albert.embeddings.token_type_embeddings.weight"),
    ("albert/embeddings/position_embeddings", "N W",
     "bert/embeddings/position_embeddings",
     "bert/embeddings/position_embeddings",
     "albert.embeddings.position_embeddings.weight"),
    (_P + "kernel", "E H",
     "bert/encoder/embedding_hidden_mapping_in/kernel",
     "bert/embeddings/word_embeddings_2",
     "albert.encoder.embedding_hidden_mapping_in.weight.T"),
    (_P + "bias", "H",
     "bert/encoder/embedding_hidden_mapping_in/bias",
     None,
     "albert.encoder.embedding_hidden_mapping_in.bias"),
    ("mlm/output_bias", "V",
     "cls/predictions/output_bias",
     "cls/predictions/output_bias",
     "predictions.bias"),
    ("sop/classifier/kernel", "H 2",
     "cls/seq_relationship/output_weights.T",
     "cls/seq_relationship/output_weights.T",
     "sop_classifier.classifier.weight.T"),
    ("sop/classifier/bias", "2",
     "cls/seq_relationship/output_bias",
     "cls/seq_relationship/output_bias",
     "sop_classifier.classifier.bias"),
)
_DENSE = (  # shapes of kernels
    (_A + "query", "H A", _G + "attention_1/self/query",
     _Z + "attention/self/query", _F + "attention.query"),
    (_A + "key", "H A", _G + "attention_1/self/key",
     _Z + "attention/self/key", _F + "attention.key"),
    (_A + "value", "H A", _G + "attention_1/self/value",
     _Z + "attention/self/value", _F + "attention.value"),
    (_A + "output", "A H", _G + "attention_1/output/dense",
     _Z + "attention/output/dense", _F + "attention.dense"),
    (_B + "intermediate", "H I", _G + "ffn_1/intermediate/dense",
     _Z + "intermediate/dense", _F + "ffn"),
    (_B + "output", "I H", _G + "ffn_1/intermediate/output/dense",
     _Z + "output/dense", _F + "ffn_output"),
    ("albert/pooler", "H H", "bert/pooler/dense",
     "bert/pooler/dense", "albert.pooler"),
    ("mlm/transform", "H W", "cls/predictions/transform/dense",
     "cls/predictions/transform/dense", "predictions.dense"),
)
_NORMS = (
    ("albert/embeddings/layer_norm", "W", "bert/embeddings/LayerNorm",
     "bert/embeddings/LayerNorm", "albert.embeddings.LayerNorm"),
    (_A + "layer_norm", "H", _G + "LayerNorm",
     _Z + "attention/output/LayerNorm", _F + "attention.LayerNorm"),
    (_B + "layer_norm", "H", _G + "LayerNorm_1",
     _Z + "output/LayerNorm", _F + "full_layer_layer_norm"),
    ("mlm/layer_norm", "W", "cls/predictions/transform/LayerNorm",
     "cls/predictions/transform/LayerNorm", "predictions.LayerNorm"),
)
# fmt: on


def _variables(
    layers: tuple, names: tuple, hub_names: tuple
) -> Iterator[tuple]:
    """Yield a row for each layer's kernel or gamma, and for its bias or beta.

    Args:
      layers: the layers' rows.
      names: names of the two variables, in this package and in TF1 files.
      hub_names: names of the two variables in Hugging Face files.
    """
    for layer, shape, google, zh, hub in layers:
        shapes = shape, shape[-1]
        for name, hub_name, size in zip(names, hub_names, shapes, strict=True):
            tf1 = (f"{google}/{name}", f"{zh}/{name}")
            yield f"{layer}/{name}", size, *tf1, f"{hub}.{hub_name}"


_TABLE = (
    *_SINGLE,
    *_variables(_DENSE, ("kernel", "bias"), ("weight.T", "bias")),
    *_variables(_NORMS, ("gamma", "beta"), ("weight", "bias")),
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The naming scheme of one kind of file.

    Attributes:
      title: the layout's name in messages.
      column: the layout's column in the table.
      encoder: a prefix of the names of all encoder variables, and of no other
        names.
      embedding_norm: the only legal `embedding_norm`; None if all are legal.
      slots: pairs of name patterns for a variable's m and v in the optimizer. A
        file uses one pair; files that we write use the first pair.
      step: name of the optimizer's step counter.
      advice: a sentence for errors about unexpected or missing variables.
    """

    title: str
    column: int
    encoder: str
    embedding_norm: str | None = None
    slots: tuple[tuple[str, str], ...] = ()
    step: str | None = None
    advice: str = ""

    def name_of(self, name: str) -> str | None:
        """Return the name in this layout's column for one of our names."""
        return next(row[self.column] for row in _TABLE if row[0] == name)


MODEL_DIR = Layout(
    "model directory",
    column=0,
    encoder="albert/",
    slots=(("optimizer/{}/m", "optimizer/{}/v"),),
    step="optimizer/iterations",
)
_TF1_SLOTS = (("{}/adam_m", "{}/adam_v"), ("{}/lamb_m", "{}/lamb_v"))
GOOGLE = Layout(
    "TF1 checkpoint, google-research names",
    column=2,
    encoder="bert/",
    embedding_norm="embedding",
    slots=_TF1_SLOTS,
    step="global_step",
)
ALBERT_ZH = Layout(
    "TF1 checkpoint, names of albert_zh's first release",
    column=3,
    encoder="bert/",
    embedding_norm="hidden",
    slots=_TF1_SLOTS,
    step="global_step",
)
HUGGING_FACE = Layout(
    "Hugging Face folder",
    column=4,
    encoder="albert.",
    embedding_norm="embedding",
    advice=" It must have exactly the weights of its `architectures`; "
    "transformers would initialize missing weights at random.",
)
PLBERT = dataclasses.replace(
    HUGGING_FACE, title="folder of PL-BERT or StyleTTS 2", advice=""
)


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A variable's name and form in a file of a given layout.

    Attributes:
      name: the variable's name in the file.
      shape: the variable's shape in the file.
      transposed: whether the file has the transpose of our variable.
    """

    name: str
    shape: Shape
    transposed: bool = False


def _blocks(row_name: str, config: AlbertConfig) -> list[dict[str, int]]:
    """Return the values of `{g}` and `{k}` for each block of a row."""
    if "{g}" not in row_name:
        return [{}]
    kind = "attention" if row_name.startswith(_A) else "ffn"
    groups = sorted(set(config.blocks(kind)))
    inner = range(config.inner_group_num)
    return [{"g": g, "k": k} for g in groups for k in inner]


def _has(row_name: str, config: AlbertConfig) -> bool:
    """Return whether a config's model has the variables of a row."""
    factorized = config.embedding_size != config.hidden_size
    hidden = config.embedding_norm == "hidden"
    if row_name == _P + "kernel":
        return factorized or hidden
    return row_name != _P + "bias" or (factorized and not hidden)


def _expand(config: AlbertConfig) -> Iterator[tuple[str, Shape, tuple, dict]]:
    """Yield (our name, shape, row, block) for every variable of a config."""
    hidden = config.embedding_norm == "hidden"
    sizes = {
        "V": config.vocab_size,
        "E": config.embedding_size,
        "H": config.hidden_size,
        "A": config.attention_width,
        "I": config.intermediate_size,
        "N": config.max_position_embeddings,
        "S": config.type_vocab_size,
        "W": config.hidden_size if hidden else config.embedding_size,
        "2": 2,
    }
    for row in _TABLE:
        if _has(row[0], config):
            shape = tuple(sizes[symbol] for symbol in row[1].split())
            for block in _blocks(row[0], config):
                yield row[0].format(**block), shape, row, block


def variable_shapes(config: AlbertConfig) -> dict[str, Shape]:
    """Return {name: shape} for the variables of `AlbertForPretraining`.

    Unlike building the model, this function does not allocate the weights.
    """
    return {name: shape for name, shape, _, _ in _expand(config)}


def as_released(config: AlbertConfig) -> AlbertConfig:
    """Rewrite a config in terms that released files can express.

    Released models share whole layers within groups, so a config with
    `sharing="none"` becomes a config with as many groups as layers. The width
    of released heads is `hidden_size` / `num_attention_heads`.

    Raises:
      InputError: if released files cannot express the config.
    """
    require(
        config.attention_width == config.hidden_size,
        "Released layouts have heads of width `hidden_size` / "
        "`num_attention_heads`, so they cannot store a model with pruned "
        "heads.",
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        attention_head_size=config.attention_head_size,
    )
    config = dataclasses.replace(config, attention_head_size=None)
    if config.sharing == "all":
        return config
    if config.sharing == "none":
        return dataclasses.replace(
            config, sharing="all", num_hidden_groups=config.num_hidden_layers
        )
    raise InputError(
        "Released layouts share whole layers; `sharing` must be all or none. "
        f"Received: sharing={config.sharing}"
    )


def stored_tensors(
    config: AlbertConfig, layout: Layout
) -> dict[str, StoredTensor]:
    """Return {our name: stored tensor} for the variables of a config.

    Raises:
      InputError: if the layout cannot store a variable of this config.
    """
    groups, inner = config.num_hidden_groups, config.inner_group_num
    require(
        "{g}" in layout.name_of(_A + "query/kernel") or groups * inner == 1,
        f"A {layout.title} stores one block, which all layers share; "
        "`num_hidden_groups` and `inner_group_num` must be 1.",
        num_hidden_groups=groups,
        inner_group_num=inner,
    )
    norm = layout.embedding_norm
    require(
        norm in (None, config.embedding_norm),
        f"A {layout.title} cannot store this architecture; `embedding_norm` "
        f"must be {norm}.",
        embedding_norm=config.embedding_norm,
    )
    table = {}
    for name, shape, row, block in _expand(config):
        stored_name = row[layout.column]
        transposed = stored_name.endswith(".T")
        stored_name = stored_name.removesuffix(".T").format(**block)
        table[name] = StoredTensor(
            stored_name, shape[::-1] if transposed else shape, transposed
        )
    return table


def slot_tensors(
    weights: dict[str, StoredTensor], patterns: tuple[str, str]
) -> dict[str, StoredTensor]:
    """Return {our slot name: stored tensor} for the m and v of every weight."""
    return {
        pattern.format(name): dataclasses.replace(
            stored, name=stored_pattern.format(stored.name)
        )
        for name, stored in weights.items()
        for pattern, stored_pattern in zip(
            MODEL_DIR.slots[0], patterns, strict=True
        )
    }
