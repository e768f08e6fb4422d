"""Exports of models: formats, signatures, and programs that query them."""
