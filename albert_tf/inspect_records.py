"""Pretraining records as a person reads them.

A token that was masked stands in brackets: what the model sees, and after an
arrow what it must say. Segment A and segment B have colours of their own on
a terminal. Works on static, dynamic and released records.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.data.records.inspect_records import cli

if __name__ == "__main__":
    cli()
