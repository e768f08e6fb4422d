"""Weights from other projects: file formats and variable names."""
