"""From text to ids: normalization rules, tokenizers and their graphs."""
