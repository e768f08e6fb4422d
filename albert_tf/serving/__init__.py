"""Exported models, which accept ids and raw strings."""
