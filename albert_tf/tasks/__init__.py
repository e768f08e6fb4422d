"""Tasks: their kinds, their common interface, and data sets."""
