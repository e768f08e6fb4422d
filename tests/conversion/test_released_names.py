"""The table of released names is complete and one-to-one."""

import dataclasses
import json
import math

import goldens
import pytest

from albert_tf.base.errors import InputError
from albert_tf.conversion import tf1, variable_names
from albert_tf.conversion.named_tensors import Tensors, from_layout, to_layout
from albert_tf.conversion.variable_names import (
    ALBERT_ZH,
    HUGGING_FACE,
    Layout,
    stored_tensors,
)
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import EMBEDDING_NORMS, AlbertConfig
from albert_tf.training.checkpoints import named_variables

TABLES = json.loads((goldens.FOLDER / "tables.json").read_text())

LAYOUTS = [x for x in vars(variable_names).values() if isinstance(x, Layout)]

# The number of variables in each released file, including slots and step.
COUNTS = {
    "albert_base_v1": 33,
    "albert_base_v2": 33,
    "albert_base_zh_google": 33,
    "albert_large_v1": 33,
    "albert_large_zh_brightmart": 31,
    "albert_small_zh_google": 97,
    "albert_tiny_google_zh": 30,
    "albert_tiny_zh_brightmart": 31,
}


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_the_table_has_the_variables_of_the_model(variant):
    """The table lists the names and shapes of the built model's variables."""
    config = goldens.variant(variant)
    model = named_variables(AlbertForPretraining(config))
    assert variable_names.variable_shapes(config) == {
        name: tuple(v.shape) for name, v in model.items()
    }


@pytest.mark.parametrize("release", COUNTS)
def test_released_files_map_completely(release, tmp_path):
    """Released variables and our variables map one-to-one."""
    table = TABLES[release]
    shapes = {n: tuple(s) for n, s in table["tensors"].items()}
    tensors = Tensors(shapes, read=None)
    path = tmp_path / "albert_config.json"
    path.write_text(json.dumps(table["config"]))
    config, _ = tf1.read_config(str(path), tensors)
    layout = tf1.layout_in(tensors)
    ours = from_layout(tensors, config, layout, release)
    assert len(ours) == len(shapes) == COUNTS[release]
    weights = variable_names.variable_shapes(config)
    assert weights.items() <= ours.shapes.items()
    assert to_layout(ours, config, layout).shapes == shapes


# From the paper's Tables 4 and 3, in millions.
PAPER = {
    "base_e768_share_all": 31,
    "base_e768_share_attention": 83,
    "base_e768_share_ffn": 57,
    "base_e768_share_none": 108,
    "base_e128_share_all": 12,
    "base_e128_share_attention": 64,
    "base_e128_share_ffn": 38,
    "base_e128_share_none": 89,
    "base_e64_share_all": 10,
    "base_e64_share_none": 87,
    "base_e256_share_all": 16,
    "base_e256_share_none": 93,
}


@pytest.mark.parametrize("name", PAPER)
def test_parameters_of_the_paper(name):
    """The ablations have the paper's parameter counts, up to rounding."""
    folder = goldens.FOLDER.parents[2] / "configs" / "models" / "ablations"
    config = AlbertConfig.from_json_file(str(folder / f"{name}.json"))
    shapes = variable_names.variable_shapes(config)
    size = sum(
        math.prod(s) for n, s in shapes.items() if n.startswith("albert/")
    )
    # The paper rounds up or down.
    assert abs(size / 1e6 - PAPER[name]) < 1.1


def test_what_released_files_cannot_hold():
    """Architectures that released files cannot store raise errors.

    Each unshared layer is stored as a group.
    """
    shapes = variable_names.variable_shapes
    unshared = goldens.variant("unshared")
    released = variable_names.as_released(unshared)
    assert released.num_hidden_groups == released.num_hidden_layers
    assert shapes(released) == shapes(unshared)
    for sharing in ("attention", "ffn"):
        config = dataclasses.replace(goldens.CONFIG, sharing=sharing)
        with pytest.raises(InputError, match="`sharing` must be all or none"):
            variable_names.as_released(config)
    hidden = goldens.variant("norm at H")
    groups = dataclasses.replace(hidden, num_hidden_groups=2)
    inner = dataclasses.replace(hidden, inner_group_num=2)
    both = dataclasses.replace(groups, inner_group_num=2)
    for config in (groups, inner, both):
        with pytest.raises(InputError, match="`num_hidden_groups`"):
            stored_tensors(config, variable_names.ALBERT_ZH)
    whole = dataclasses.replace(goldens.CONFIG, attention_head_size=4)
    assert variable_names.as_released(whole) == goldens.CONFIG
    for size in (3, 5):
        heads = dataclasses.replace(whole, attention_head_size=size)
        with pytest.raises(InputError, match="pruned heads"):
            variable_names.as_released(heads)


@pytest.mark.parametrize(
    "layout", [ALBERT_ZH, HUGGING_FACE], ids=["albert_zh", "hub"]
)
def test_names_agree_on_the_part_of_a_layer(layout):
    """Our name and a layout's name for a variable have corresponding words.

    The words, such as `query`, distinguish variables of the same shape.
    """
    words = {"query": "query", "key": "key", "value": "value"}
    words |= {"attention_": "attention", "mlm/": "predictions", "bias": "bias"}
    norm = "hidden" if layout is ALBERT_ZH else "embedding"
    config = dataclasses.replace(goldens.CONFIG, embedding_norm=norm)
    for name, stored in stored_tensors(config, layout).items():
        if layout is HUGGING_FACE:
            name = name.replace("/beta", "/bias")
        for ours, theirs in words.items():
            assert (ours in name) == (theirs in stored.name), name


@pytest.mark.parametrize("norm", EMBEDDING_NORMS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.title)
def test_the_encoder_has_a_prefix_of_its_own(layout, norm):
    """The encoder's names, and no others, begin with the layout's `encoder`.

    If the layout requires a different `embedding_norm`, an error is raised.
    """
    config = dataclasses.replace(goldens.CONFIG, embedding_norm=norm)
    if layout.embedding_norm not in (None, norm):
        rule = f"`embedding_norm` must be {layout.embedding_norm}"
        with pytest.raises(InputError, match=rule):
            stored_tensors(config, layout)
        return
    for name, stored in stored_tensors(config, layout).items():
        is_encoder = stored.name.startswith(layout.encoder)
        assert is_encoder == name.startswith("albert/"), name
