"""Compilation of the training step for TPUs, and training from step files."""
