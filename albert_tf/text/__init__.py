"""From text to ids: normalisation rules, tokenizers and their graphs."""
