"""Writers of files in released formats, without the code under test."""

import json

import numpy as np
import tensorflow as tf

HISTORICAL = {
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "down_scale_factor": 1,
}


def write_saver(prefix: str, table: dict[str, np.ndarray]) -> None:
    """Write a checkpoint with the operation that TF1's Saver uses."""
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(table),
        shape_and_slices=[""] * len(table),
        tensors=list(map(tf.constant, table.values())),
    )


def read_all(prefix: str) -> dict[str, np.ndarray]:
    """Return all variables in a checkpoint."""
    reader = tf.train.load_checkpoint(prefix)
    names = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in names}


def write_config(path, config, **changes) -> None:
    """Write a config as released JSON; a value of None removes the key."""
    values = json.loads(config.to_json()) | HISTORICAL | changes
    for key in ("sharing", "embedding_norm"):
        del values[key]
    present = {k: v for k, v in values.items() if v is not None}
    path.write_text(json.dumps(present))


def assert_same(left: dict, right: dict) -> None:
    """Assert that two tables have the same names, types, shapes and bits."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.dtype == right[name].dtype, name
        assert value.shape == right[name].shape, name
        assert value.tobytes() == right[name].tobytes(), name
