"""The demo's corpus: English prose out of installed packages."""
