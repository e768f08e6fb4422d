"""Exported models, which accept ids and strings."""
