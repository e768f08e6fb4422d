"""ALBERT as Keras models that take raw strings."""
