"""Test a model's grammar on minimal pairs: `python -m albert_tf.minimal_pairs`.

    python -m albert_tf.minimal_pairs --model_dir=DIR \\
        --input_file='blimp/*.jsonl' --output_file=scores.json
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.base.console import table
    from albert_tf.serving import pseudo_likelihood


@program.command(pseudo_likelihood.MinimalPairsConfig)
def minimal_pairs(config: pseudo_likelihood.MinimalPairsConfig) -> dict:
    """Score minimal pairs; write and return accuracies.

    Each paradigm and phenomenon has its `accuracy`, the 95 % interval from
    `low` to `high`, and the number of `pairs`; the top level has the mean over
    paradigms.
    """
    summary = pseudo_likelihood.minimal_pairs(config)
    rows = [("paradigm", "accuracy", "from", "to", "pairs")]
    for name, row in summary["paradigm"].items():
        shares = (f"{row[key]:.1%}" for key in ("accuracy", "low", "high"))
        rows.append((name, *shares, f"{row['pairs']:,}"))
    print("\n".join(table(rows)))
    print(f"mean over paradigms: {summary['accuracy']:.1%}")
    print(f"Wrote {config.output_file}")
    return summary


cli = minimal_pairs.program.cli


if __name__ == "__main__":
    cli()
