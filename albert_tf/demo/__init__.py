"""The demo: a corpus and a task out of docstrings, and a page to try models."""
