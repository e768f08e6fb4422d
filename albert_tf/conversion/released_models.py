"""The released models, recognised by their shapes and their checksums.

Checksums are the masked CRC-32C that TF checkpoints keep of every tensor,
taken from the `.index` files of the releases. Tensors of our layout have the
same bytes, so that a model from the Hugging Face hub is recognised as well.
"""

import dataclasses

import numpy as np

from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.released_names import variable_shapes
from albert_tf.data.records.framing import masked_crc32c
from albert_tf.model.config import PRETRAINING_HEADS, AlbertConfig
from albert_tf.training.model_directory.checkpoints import OPTIMIZER

# Small tensors that differ between any two trainings.
CHECKED = (
    "albert/embeddings/layer_norm/gamma",
    "albert/pooler/bias",
    "mlm/transform/bias",
)


@dataclasses.dataclass(frozen=True)
class Release:
    """A released model.

    Attributes:
      config: its architecture as released, dropout included.
      checksums: of the tensors `CHECKED`; empty if they are not known.
    """

    config: AlbertConfig
    checksums: tuple[int, ...] = ()


def _config(
    sizes: tuple[int, int, int],
    dropout: float = 0.0,
    embedding_size: int = 128,
    **others,
) -> AlbertConfig:
    """Return a config of (hidden size, layers, heads); the FFN is 4 H wide."""
    hidden_size, layers, heads = sizes
    return AlbertConfig(
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden_size,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **others,
    )


TINY, SMALL, BASE = (312, 4, 12), (384, 6, 12), (768, 12, 12)
# The paper's rule H / 64, TF-Hub's version 2 and albert_zh say 32 heads for
# xlarge; the released weights have 16, and no shape tells the two apart.
LARGE, XLARGE, XXLARGE = (1024, 24, 16), (2048, 24, 16), (4096, 12, 64)

ZH = {"vocab_size": 21128}
ZH_GOOGLE = ZH | {"hidden_act": "relu"}
ZH_FIRST = ZH | {"embedding_norm": "hidden"}  # albert_zh's first release

RELEASES = {
    "albert_base_v1": Release(
        _config(BASE, 0.1), (2866533517, 2525340598, 2839995084)
    ),
    "albert_base_v2": Release(
        _config(BASE), (558046599, 724297098, 1500902077)
    ),
    "albert_large_v1": Release(
        _config(LARGE, 0.1), (290384720, 3223532858, 450411079)
    ),
    "albert_large_v2": Release(_config(LARGE)),
    "albert_xlarge_v1": Release(_config(XLARGE, 0.1)),
    "albert_xlarge_v2": Release(_config(XLARGE)),
    "albert_xxlarge_v1": Release(_config(XXLARGE)),
    "albert_xxlarge_v2": Release(_config(XXLARGE)),
    "albert_base_zh": Release(
        _config(BASE, **ZH_GOOGLE), (1795082813, 1220152828, 116823902)
    ),
    "albert_large_zh": Release(_config(LARGE, **ZH_GOOGLE)),
    "albert_xlarge_zh": Release(_config(XLARGE, **ZH_GOOGLE)),
    "albert_xxlarge_zh": Release(_config(XXLARGE, **ZH_GOOGLE)),
    "albert_tiny_google_zh": Release(_config(TINY, **ZH)),
    "albert_tiny_google_zh, the copy with E=312": Release(
        _config(TINY, embedding_size=312, **ZH),
        (1062753614, 530091655, 1922919316),
    ),
    "albert_small_google_zh": Release(
        _config(SMALL, **ZH), (433518542, 3393607933, 1126644426)
    ),
    "albert_tiny_zh_brightmart": Release(
        _config(TINY, **ZH_FIRST), (3793891223, 2010106960, 3402249452)
    ),
    "albert_large_zh_brightmart": Release(
        _config(LARGE, **ZH_FIRST), (3891182591, 2543767223, 520229495)
    ),
}


def _same_shapes(tensors: Tensors, config: AlbertConfig) -> bool:
    """Return whether weights have a config's shapes; heads may be missing."""
    wanted = variable_shapes(config)
    weights = {
        name: shape
        for name, shape in tensors.shapes.items()
        if not name.startswith(OPTIMIZER)
    }
    missing = wanted.keys() - weights.keys()
    return weights.items() <= wanted.items() and all(
        name.startswith(PRETRAINING_HEADS) for name in missing
    )


def _same_checksums(tensors: Tensors, checksums: tuple[int, ...]) -> bool:
    """Return whether all known checksums of tensors that are there fit."""
    known = [
        (name, checksum)
        for name, checksum in zip(CHECKED, checksums, strict=False)
        if name in tensors.shapes
    ]
    return len(known) > 1 and all(
        masked_crc32c(np.asarray(tensors.read(name), "<f4").tobytes()) == crc
        for name, crc in known
    )


def _differences(
    config: AlbertConfig, release: AlbertConfig, keys: tuple[str, ...]
) -> str:
    """Say in which keys a config is not a release's."""
    return ", ".join(
        f"{key}={getattr(release, key)} and not {getattr(config, key)}"
        for key in keys
        if getattr(config, key) != getattr(release, key)
    )


# What no shape shows, but every output depends on.
INVISIBLE = ("num_hidden_layers", "num_attention_heads", "hidden_act")
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def recognise(tensors: Tensors, config: AlbertConfig) -> tuple[str, list[str]]:
    """Return which released model this is, and warnings about its config.

    Args:
      tensors: weights under our names.
      config: the config that came with them.
    """
    alike = {
        name: release
        for name, release in RELEASES.items()
        if _same_shapes(tensors, release.config)
    }
    for name, release in alike.items():
        if _same_checksums(tensors, release.checksums):
            wrong = _differences(config, release.config, INVISIBLE + DROPOUT)
            warning = f"the config is not {name}'s, which has {wrong}"
            return f"{name}, by its checksums", [warning] if wrong else []
    if not alike:
        return "none of the released models", []
    names = " or ".join(alike)
    wrong = [_differences(config, r.config, INVISIBLE) for r in alike.values()]
    warnings = []
    if all(wrong):
        warnings = [f"the shapes are those of {names}, which has {wrong[0]}"]
    return f"the shapes of {names}, other or unknown weights", warnings
