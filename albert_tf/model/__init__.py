"""The architecture: the config, the paper's layers, and the task heads."""
