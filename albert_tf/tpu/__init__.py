"""The training step for a TPU slice, compiled without a TPU."""
