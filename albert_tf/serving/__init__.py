"""What exported models serve: functions from ids and raw strings."""
