"""What a model knows of grammar: `python -m albert_tf.minimal_pairs`.

    python -m albert_tf.minimal_pairs --model_dir=DIR \\
        --input_file='blimp/*.jsonl' --output_file=scores.json
"""

from albert_tf.base import program, settings

with program.quiet_start():
    from albert_tf.base.text_table import table
    from albert_tf.serving.pseudo_likelihood import (
        MinimalPairsConfig,
        minimal_pairs,
    )


def main() -> None:
    """Score as the flags say, and print the accuracies."""
    config = settings.from_flags(MinimalPairsConfig)
    summary = minimal_pairs(config)
    rows = [("paradigm", "accuracy", "from", "to", "pairs")]
    for name, row in summary["paradigm"].items():
        shares = (f"{row[key]:.1%}" for key in ("accuracy", "low", "high"))
        rows.append((name, *shares, f"{row['pairs']:,}"))
    print("\n".join(table(rows)))
    print(f"mean over paradigms: {summary['accuracy']:.1%}")
    print(f"Wrote {config.output_file}")


def cli() -> None:
    """Run as a console script."""
    settings.define_flags(MinimalPairsConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
