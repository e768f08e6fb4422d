"""Foundations: settings, programs, errors, files, processes, progress."""
