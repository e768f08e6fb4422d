"""What ALBERT learns from: masked words, records, and their builder."""
