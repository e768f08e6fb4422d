"""Keras models of ALBERT that accept strings."""
