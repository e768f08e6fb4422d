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
    slot_tensors,
    stored_tensors,
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

    def where(self, predicate: Callable[[str], bool]) -> "Tensors":
        """Return the tensors whose names satisfy a predicate."""
        shapes = {n: shape for n, shape in self.shapes.items() if predicate(n)}
        return Tensors(shapes, self.read)

    def renamed(self, names: dict[str, str]) -> "Tensors":
        """Return the tensors in {new name: old name} under their new names."""
        shapes = {new: self.shapes[old] for new, old in names.items()}
        return Tensors(shapes, lambda name: self.read(names[name]))

    def with_arrays(self, arrays: dict[str, np.ndarray]) -> "Tensors":
        """Return the tensors and additional arrays."""
        shapes = {name: array.shape for name, array in arrays.items()}

        def read(name: str) -> np.ndarray:
            return arrays[name] if name in arrays else self.read(name)

        return Tensors(self.shapes | shapes, read)

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


def _renamed(tensors: Tensors, sources: dict[str, StoredTensor]) -> Tensors:
    """Return tensors under new names, transposed where necessary.

    Args:
      tensors: the tensors to rename.
      sources: {new name: its source in `tensors`}.
    """

    def read(name: str) -> np.ndarray:
        stored = sources[name]
        array = tensors.read(stored.name)
        return np.ascontiguousarray(array.T) if stored.transposed else array

    shapes = {
        name: stored.shape[::-1] if stored.transposed else stored.shape
        for name, stored in sources.items()
    }
    return Tensors(shapes, read)


def _slot_patterns(
    names: set[str], weights: dict[str, StoredTensor], layout: Layout
) -> tuple[str, str] | None:
    """Return the pair in `layout.slots` that a file uses, or None."""
    for patterns in layout.slots:
        slots = slot_tensors(weights, patterns).values()
        if any(stored.name in names for stored in slots):
            return patterns
    return None


def expected_tensors(
    names: set[str], config: AlbertConfig, layout: Layout
) -> dict[str, StoredTensor]:
    """Return {our name: stored tensor} for the tensors a file must contain.

    The whole backbone is required. A head is required if any of its tensors is
    present, and all slots of the optimizer are required if any slot is
    present. The step counter is optional.
    """
    all_tensors = stored_tensors(config, layout)
    present = {
        name for name, stored in all_tensors.items() if stored.name in names
    }
    # TF-Hub modules have no `sop` head, and neither does Hugging Face's
    # `AlbertModel`.
    absent = tuple(
        head
        for head in PRETRAINING_HEADS
        if not any(name.startswith(head) for name in present)
    )
    weights = {
        n: stored
        for n, stored in all_tensors.items()
        if not n.startswith(absent)
    }
    expected = dict(weights)
    patterns = _slot_patterns(names, weights, layout)
    if patterns:
        expected |= slot_tensors(weights, patterns)
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
      config: the architecture of the model.
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
    expected = expected_tensors(set(tensors.shapes), config, layout)
    expected |= head or {}
    differences = explain_differences(
        {stored.name: stored.shape for stored in expected.values()},
        tensors.shapes,
    )
    rule = f"The {layout.title} must fit its config.{layout.advice}"
    require(not differences, f"{rule} Received: {source}\n  {differences}")
    return _renamed(tensors, expected)


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
    all_tensors = stored_tensors(config, layout) | (head or {})
    targets = {
        n: stored for n, stored in all_tensors.items() if n in tensors.shapes
    }
    if layout.slots:
        slots = slot_tensors(targets, layout.slots[0])
        targets |= {
            n: stored for n, stored in slots.items() if n in tensors.shapes
        }
    if layout.step and MODEL_DIR.step in tensors.shapes:
        targets[MODEL_DIR.step] = StoredTensor(layout.step, ())
    sources = {
        stored.name: StoredTensor(name, tensors.shapes[name], stored.transposed)
        for name, stored in targets.items()
    }
    return _renamed(tensors, sources)
