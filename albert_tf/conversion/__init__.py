"""Conversion of models between the formats of this and other projects."""
