"""Pretraining: the program, time budgets, and warm and informed starts."""
