"""What a train step needs on a TPU slice, by the TPU's own compiler."""
