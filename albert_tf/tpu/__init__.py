"""Compilation of the training step for TPUs, and runs from step files."""
