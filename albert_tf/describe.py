"""Print the size and cost of a model, given its config.

    python -m albert_tf.describe configs/models/albert_base_v2.json

The report contains a row for the model as in Table 1 of the paper, the
parameter count of each part of the model and of a BERT model of the same shape,
and the number of floating-point operations per sequence. The command does not
build the model.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.conversion.describe import cli

if __name__ == "__main__":
    cli()
