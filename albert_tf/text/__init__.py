"""Text to pieces: rules of normalization, and tokenizers as graphs."""
