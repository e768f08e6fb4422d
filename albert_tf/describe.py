"""Print the size and cost of a model, given its config.

    python -m albert_tf.describe configs/models/albert_base_v2.json

The output contains a row for the model as in Table 1 of the paper, the
parameter count of each part compared with that of a BERT model of the same
shape without sharing, and the floating-point operations for one sequence. No
model is built.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.conversion.describe import cli

if __name__ == "__main__":
    cli()
