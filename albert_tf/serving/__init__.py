"""Exported models: functions of ids and raw strings."""
