r"""Test grammar on minimal pairs: `python -m albert_tf.minimal_pairs`.

    python -m albert_tf.minimal_pairs --model_dir=DIR \
        --input_file='blimp/*.jsonl' --output_file=scores.json
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.tasks.minimal_pairs import cli

if __name__ == "__main__":
    cli()
