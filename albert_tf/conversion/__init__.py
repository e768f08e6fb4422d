"""Weights of other projects: their files and their names."""
