"""Compilation of the training step for TPUs, and runs of a step file."""
