"""Print pretraining records in readable form.

Masked tokens are in brackets, which contain the model's input and, after an
arrow, the word to predict. On a terminal, segments A and B have different
colours. Static, dynamic and released records are accepted.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.data.records.inspect_records import cli

if __name__ == "__main__":
    cli()
