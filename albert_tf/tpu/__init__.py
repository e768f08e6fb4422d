"""The training step on a TPU slice, compiled without a TPU."""
