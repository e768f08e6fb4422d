"""The pretraining run, and the program."""
