"""Weights of other projects: file formats and variable names."""
