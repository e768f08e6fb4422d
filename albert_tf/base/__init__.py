"""Shared foundations: settings, programs, errors, files and processes."""
