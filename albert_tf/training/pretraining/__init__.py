"""Pretraining: the program, time budgets, warm and informed starts."""
