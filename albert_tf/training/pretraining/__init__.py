"""Pretraining: the program, budgets, warm starts and informed starts."""
