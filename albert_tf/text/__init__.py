"""Text to ids: normalization rules, tokenizers and tokenizer graphs."""
