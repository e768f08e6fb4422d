"""Readers of text and tables, tokenizer training, and pretraining records."""
