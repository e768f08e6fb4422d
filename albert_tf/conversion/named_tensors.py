"""Tensors by name, and strict translation of names between layouts.

Tensors are read on demand, so a conversion needs no more memory than its
output.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from albert_tf.base.errors import require
from albert_tf.conversion.variable_names import (
    MODEL_DIR,
    Layout,
    Shape,
    StoredTensor,
    places,
    slot_places,
)
from albert_tf.model.config import PRETRAINING_HEADS, AlbertConfig
from albert_tf.training.checkpoints import explain_differences

# Names that occur only in a BERT checkpoint, whose layers do not share weights.
BERT_MARKS = ("bert/encoder/layer_0/", "encoder.layer.0.")


@dataclasses.dataclass(frozen=True)
class Tensors:
    """The tensors in a file.

    Attributes:
      shapes: {name: shape}.
      read: a function that returns the array with a given name.
    """

    shapes: dict[str, Shape]
    read: Callable[[str], np.ndarray]

    def __len__(self) -> int:
        return len(self.shapes)

    def where(self, keep: Callable[[str], bool]) -> "Tensors":
        """Return the tensors whose names satisfy a predicate."""
        shapes = {n: shape for n, shape in self.shapes.items() if keep(n)}
        return Tensors(shapes, self.read)

    def as_float16(self) -> "Tensors":
        """Return the tensors, rounded to float16.

        Reading a tensor with a value beyond float16's range raises
        `InputError`.
        """

        def read(name: str) -> np.ndarray:
            with np.errstate(over="ignore"):
                array = self.read(name).astype(np.float16)
            require(
                np.isfinite(array).all(),
                f"`{name}` must be finite and at most 65504 to be stored as "
                "float16.",
                half_precision=True,
            )
            return array

        return Tensors(self.shapes, read)

    def read_all(self, convert: Callable = lambda array: array) -> dict:
        """Return {name: converted array} for all tensors.

        The largest tensors are read first, because reading a tensor temporarily
        needs several times its size, in addition to the tensors already read.
        """
        names = sorted(
            self.shapes, key=lambda name: -math.prod(self.shapes[name])
        )
        return {name: convert(self.read(name)) for name in names}


def _moved(tensors: Tensors, moves: dict[str, StoredTensor]) -> Tensors:
    """Return the tensors under new names.

    Args:
      tensors: the tensors to rename.
      moves: {new name: its source in `tensors`}.
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
    names: set[str], weights: dict[str, StoredTensor], layout: Layout
) -> tuple[str, str] | None:
    """Return a file's slot patterns, or None if it has no slots."""
    for pair in layout.slots:
        slots = slot_places(weights, pair).values()
        if any(place.name in names for place in slots):
            return pair
    return None


def expected_places(
    names: set[str], config: AlbertConfig, layout: Layout
) -> dict[str, StoredTensor]:
    """Return {our name: stored tensor} for the tensors a file must contain.

    The whole backbone is required. A head is required if any of its tensors is
    present, and all slots of the optimizer are required if any slot is
    present. The step counter is optional.
    """
    every = places(config, layout)
    there = {name for name, place in every.items() if place.name in names}
    # TF-Hub modules have no `sop` head, and neither does Hugging Face's
    # `AlbertModel`.
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
        expected[MODEL_DIR.step] = StoredTensor(layout.step, ())
    return expected


def from_layout(
    tensors: Tensors,
    config: AlbertConfig,
    layout: Layout,
    source: str,
    head: dict[str, StoredTensor] | None = None,
) -> Tensors:
    """Return a file's tensors under our names; an error lists all differences.

    Args:
      tensors: the tensors in the file.
      config: the architecture that belongs to the weights.
      layout: the file's naming scheme.
      source: the file's name, for error messages.
      head: {our name: stored tensor} of the task's head, which is also
        required.

    Raises:
      InputError: if a variable is missing, unexpected or has a different shape.
    """
    for name in tensors.shapes:
        require(
            not any(mark in name for mark in BERT_MARKS),
            "The checkpoint must be an ALBERT checkpoint; this is a BERT "
            "checkpoint, whose layers do not share weights. "
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


def to_layout(
    tensors: Tensors,
    config: AlbertConfig,
    layout: Layout,
    head: dict[str, StoredTensor] | None = None,
) -> Tensors:
    """Return our tensors under the names of a layout; see `from_layout`.

    The optimizer's slots and step are omitted if the layout has no names for
    them.
    """
    every = places(config, layout) | (head or {})
    targets = {n: place for n, place in every.items() if n in tensors.shapes}
    if layout.slots:
        slots = slot_places(targets, layout.slots[0])
        targets |= {n: p for n, p in slots.items() if n in tensors.shapes}
    if layout.step and MODEL_DIR.step in tensors.shapes:
        targets[MODEL_DIR.step] = StoredTensor(layout.step, ())
    moves = {
        place.name: StoredTensor(name, tensors.shapes[name], place.transposed)
        for name, place in targets.items()
    }
    return _moved(tensors, moves)
