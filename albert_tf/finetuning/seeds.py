"""The same run with several seeds: median and spread of its metrics."""

import statistics

from albert_tf.base import files
from albert_tf.tasks.scoring import write_metrics

Metrics = dict[str, dict[str, float]]  # of each split


def seed_dir(output_dir: str, seed: int) -> str:
    """Return the model directory of the run with a seed."""
    return files.join(output_dir, f"seed_{seed}")


def summary(runs: dict[int, Metrics]) -> Metrics:
    """Return each split's metrics as median, least and largest of all runs."""
    spread = {"median": statistics.median, "min": min, "max": max}
    first = next(iter(runs.values()))
    return {
        f"{split}_{name}": {
            metric: function([run[split][metric] for run in runs.values()])
            for metric in values
        }
        for split, values in first.items()
        for name, function in spread.items()
    }


def write_summary(
    output_dir: str, task: str, best_metric: tuple[str, str], runs: dict
) -> Metrics:
    """Write `metrics.json` over all seeds; return the summary.

    Args:
      output_dir: the folder of the runs' folders.
      task: the task's name.
      best_metric: the split and the metric that name the best run.
      runs: {seed: metrics by split}.
    """
    values = summary(runs)
    about = {"task": task, "seeds": list(runs)}
    split, metric = best_metric
    if split in next(iter(runs.values())):
        best = max(runs, key=lambda seed: runs[seed][split][metric])
        about["best"] = seed_dir(output_dir, best)
    each = {str(seed): run for seed, run in runs.items()}
    write_metrics(output_dir, {**about, **values, "runs": each})
    return values
