"""Write files in the formats of releases, without the code under test."""

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
    """Write a checkpoint with TF1's own Saver."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(name, initializer=tf.constant(value))
            for name, value in table.items()
        ]
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(variables)
        saver.save(session, prefix, write_meta_graph=False, write_state=False)


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
    kept = {k: v for k, v in values.items() if v is not None}
    path.write_text(json.dumps(kept))


def assert_same(left: dict, right: dict) -> None:
    """Check that two tables have the same names, types, shapes and bits."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.dtype == right[name].dtype, name
        assert value.shape == right[name].shape, name
        assert value.tobytes() == right[name].tobytes(), name
