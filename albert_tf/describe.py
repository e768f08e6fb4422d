"""Say how large and how costly a config's model is.

    python -m albert_tf.describe configs/models/albert_base_v2.json

Parameters of each part beside an unshared BERT of the same shape, the row of
the paper's Table 1, and the floating-point operations of one sequence. All of
it follows from the config; nothing is built.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.conversion.describe import cli

if __name__ == "__main__":
    cli()
