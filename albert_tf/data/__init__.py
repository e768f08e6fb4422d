"""Pretraining data: text files, masking, records and the record builder."""
