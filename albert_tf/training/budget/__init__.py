"""A run of so many hours: what is chosen, begun and ended in time."""
