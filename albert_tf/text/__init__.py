"""Conversion of text to ids: normalization, tokenizers and their graphs."""
