"""Tensors by name, and their strict translation between layouts.

Nothing is read before it is asked for, so that a conversion never holds more
than what its output needs.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from albert_tf.base.errors import require
from albert_tf.conversion.variable_names import (
    MODEL_DIR,
    Layout,
    Place,
    Shape,
    places,
    slot_places,
)
from albert_tf.model.config import PRETRAINING_HEADS, AlbertConfig
from albert_tf.training.model_directory.checkpoints import explain_differences

# Variables that only a BERT has: layers with weights of their own.
BERT_MARKS = ("bert/encoder/layer_0/", "encoder.layer.0.")


@dataclasses.dataclass(frozen=True)
class Tensors:
    """What a file holds.

    Attributes:
      shapes: {name: shape}.
      read: returns the array of a name.
    """

    shapes: dict[str, Shape]
    read: Callable[[str], np.ndarray]

    def __len__(self) -> int:
        return len(self.shapes)

    def where(self, keep: Callable[[str], bool]) -> "Tensors":
        """Return the tensors whose names a function accepts."""
        shapes = {n: shape for n, shape in self.shapes.items() if keep(n)}
        return Tensors(shapes, self.read)

    def read_all(self, convert: Callable = lambda array: array) -> dict:
        """Return {name: converted array} of everything.

        The largest are read first, because reading takes a few times the
        memory of one tensor, on top of those that are there already.
        """
        names = sorted(
            self.shapes, key=lambda name: -math.prod(self.shapes[name])
        )
        return {name: convert(self.read(name)) for name in names}


def _moved(tensors: Tensors, moves: dict[str, Place]) -> Tensors:
    """Return the tensors under other names.

    Args:
      tensors: what there is.
      moves: {new name: its place in `tensors`}.
    """

    def read(name: str) -> np.ndarray:
        place = moves[name]
        array = tensors.read(place.name)
        return np.ascontiguousarray(array.T) if place.transposed else array

    shapes = {
        name: place.shape[::-1] if place.transposed else place.shape
        for name, place in moves.items()
    }
    return Tensors(shapes, read)


def _slots_used(
    names: set[str], weights: dict[str, Place], layout: Layout
) -> tuple[str, str] | None:
    """Return the pair of slot patterns that any of a file's names follow."""
    for pair in layout.slots:
        slots = slot_places(weights, pair).values()
        if any(place.name in names for place in slots):
            return pair
    return None


def expected_places(
    names: set[str], config: AlbertConfig, layout: Layout
) -> dict[str, Place]:
    """Return {our name: place} of what a file with some names must hold.

    All of the backbone; a head, the optimizer's slots and the step counter if
    anything of them is there.
    """
    every = places(config, layout)
    there = {name for name, place in every.items() if place.name in names}
    # TF-Hub modules have no `sop`, Hugging Face's `AlbertModel` neither.
    absent = tuple(
        head
        for head in PRETRAINING_HEADS
        if not any(name.startswith(head) for name in there)
    )
    weights = {
        n: place for n, place in every.items() if not n.startswith(absent)
    }
    expected = dict(weights)
    pair = _slots_used(names, weights, layout)
    if pair:
        expected |= slot_places(weights, pair)
    if layout.step in names:
        expected[MODEL_DIR.step] = Place(layout.step, ())
    return expected


def to_ours(
    tensors: Tensors,
    config: AlbertConfig,
    layout: Layout,
    source: str,
    head: dict[str, Place] | None = None,
) -> Tensors:
    """Return a file's tensors under our names, or fail naming what differs.

    Args:
      tensors: what the file holds.
      config: the architecture that stands beside the weights.
      layout: the file's naming scheme.
      source: the file's name, for error messages.
      head: {our name: place} of the task's head that must be there too.

    Raises:
      InputError: a variable is missing, unexpected or of another shape.
    """
    for name in tensors.shapes:
        require(
            not any(mark in name for mark in BERT_MARKS),
            "The checkpoint must be one of ALBERT; this one is of BERT, whose "
            "layers have weights of their own. "
            f"Received: {source} with {name}",
        )
    expected = expected_places(set(tensors.shapes), config, layout)
    expected |= head or {}
    differences = explain_differences(
        {place.name: place.shape for place in expected.values()},
        tensors.shapes,
    )
    rule = f"The {layout.title} must fit its config.{layout.advice}"
    require(not differences, f"{rule} Received: {source}\n  {differences}")
    return _moved(tensors, expected)


def from_ours(
    tensors: Tensors,
    config: AlbertConfig,
    layout: Layout,
    head: dict[str, Place] | None = None,
) -> Tensors:
    """Return our tensors, as for `to_ours`, under the names of a layout.

    The optimizer's slots and step are left out if the layout has none.
    """
    every = places(config, layout) | (head or {})
    targets = {n: place for n, place in every.items() if n in tensors.shapes}
    if layout.slots:
        slots = slot_places(targets, layout.slots[0])
        targets |= {n: p for n, p in slots.items() if n in tensors.shapes}
    if layout.step and MODEL_DIR.step in tensors.shapes:
        targets[MODEL_DIR.step] = Place(layout.step, ())
    moves = {
        place.name: Place(name, tensors.shapes[name], place.transposed)
        for name, place in targets.items()
    }
    return _moved(tensors, moves)
