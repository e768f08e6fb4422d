"""The architecture: its config, the layers of the paper, heads for tasks."""
