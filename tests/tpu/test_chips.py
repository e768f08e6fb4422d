"""Names of TPU slices denote the right shapes and numbers of chips."""

import pytest

from albert_tf.base.errors import InputError
from albert_tf.tpu.chips import CHIPS, Topology, names, parse


@pytest.mark.parametrize(
    "text, shape, chips, replicas",
    [
        ("v2-8", "v2:2x2", 4, 8),
        ("v3-8", "v3:2x2", 4, 8),
        ("v2-512", "v2:16x16", 256, 512),
        ("v3-512", "v3:16x16", 256, 512),
        ("v3-2048", "v3:32x32", 1024, 2048),
        ("v4-8", "v4:2x2x1", 4, 4),
        ("v5litepod-8", "v5e:2x4", 8, 8),
        ("v5e-1", "v5e:1x1", 1, 1),
        ("v5e:2x4", "v5e:2x4", 8, 8),
        ("v5p-8", "v5p:2x2x1", 4, 4),
        ("V6E-256", "v6e:16x16", 256, 256),
    ],
)
def test_names_are_those_of_google_cloud(text, shape, chips, replicas):
    """The number in a slice's name counts cores, but chips for v5e and v6e."""
    topology = parse(text)
    found = (str(topology), topology.chips, topology.replicas)
    assert found == (shape, chips, replicas)


def test_every_slice_has_a_name_that_is_read_back():
    """A slice is identified by its `accelerator_type` or by its shape."""
    for generation, chip in CHIPS.items():
        for shape in chip.shapes:
            topology = Topology(generation, shape)
            assert parse(topology.accelerator_type) == topology
            assert parse(str(topology)) == topology


@pytest.mark.parametrize(
    "text", ["v9-8", "v5e-7", "v5e:3x3", "v3-16", "v2-1024", "tpu", "", "v3"]
)
def test_an_unknown_slice_is_refused_with_the_list(text):
    """The error for an unknown slice states the slice and all legal names."""
    with pytest.raises(InputError) as error:
        parse(text)
    assert f"Received: topology={text}\n" in str(error.value)
    assert names() in str(error.value)
