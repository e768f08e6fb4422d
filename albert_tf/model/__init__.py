"""The architecture: config, the layers of the paper, and task heads."""
