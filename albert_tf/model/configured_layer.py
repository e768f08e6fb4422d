"""What all parts of the model share: the config, and how layers are made."""

import keras

from albert_tf.model.config import AlbertConfig

LAYER_NORM_EPSILON = 1e-12  # contrib.layers.layer_norm of the release


class AlbertPart(keras.layers.Layer):
    """A layer that knows the config, from which all its shapes follow.

    A parent builds its parts inside its own `build`, which gives variables
    the paths `parent/part/variable`.
    """

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config

    def initializer(self) -> keras.Initializer:
        """Return a new truncated-normal initializer, as released."""
        return keras.initializers.TruncatedNormal(
            stddev=self.config.initializer_range
        )

    def part(self, cls: type, name: str) -> "AlbertPart":
        """Return a part with the same config and precision, built."""
        part = cls(self.config, name=name, dtype=self.dtype_policy)
        part.build()
        return part

    def table(self, name: str, rows: int, width: int) -> keras.Variable:
        """Add an embedding table [rows, width]."""
        return self.add_weight(
            name=name, shape=(rows, width), initializer=self.initializer()
        )

    def dense(self, name: str, fan_in: int, units: int, **kwargs):
        """Return a built dense layer with kernel [fan_in, units]."""
        kwargs = {"dtype": self.dtype_policy} | kwargs
        layer = keras.layers.Dense(
            units, kernel_initializer=self.initializer(), name=name, **kwargs
        )
        layer.build((None, fan_in))
        return layer

    def logits(self, name: str, fan_in: int, units: int, **kwargs):
        """Return a built dense layer whose product and result are float32.

        Logits rounded to bfloat16 tie and shift: near 10 it has steps of 1/16.
        """
        return self.dense(name, fan_in, units, dtype="float32", **kwargs)

    def norm(self, width: int) -> keras.layers.LayerNormalization:
        """Return a built layer norm; Keras computes it in float32."""
        layer = keras.layers.LayerNormalization(
            epsilon=LAYER_NORM_EPSILON,
            name="layer_norm",
            dtype=self.dtype_policy,
        )
        layer.build((None, width))
        return layer
