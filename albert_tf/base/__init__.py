"""What every room stands on: settings, errors, files, progress, processes."""
