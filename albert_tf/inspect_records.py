"""Print pretraining records in readable form.

Each masked token appears in brackets: the model's input, an arrow and the token
to predict. On a terminal, segments A and B have different colors. The program
accepts static, dynamic, released and phoneme records.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.data.records.inspect_records import cli

if __name__ == "__main__":
    cli()
