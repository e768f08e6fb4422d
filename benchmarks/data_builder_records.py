"""Tables of what the records of the data builder hold, and of reading them."""

import itertools
import time
from pathlib import Path

import albert_tf  # noqa: F401  (sets TensorFlow's switches before its import)

# isort: split
import numpy as np
import tensorflow as tf
from data_builder_builds import (
    BenchmarkConfig,
    configs,
    folder,
    small,
    timed_build,
)
from scipy import stats

from albert_tf.data import records
from albert_tf.data.builder.boundaries import ENDINGS
from albert_tf.data.masking import DYNAMIC, STATIC
from albert_tf.data.records import framing
from albert_tf.data.records.decoding import decode
from albert_tf.data.records.input_pipeline import train_batches
from albert_tf.describe import table
from albert_tf.text.sentencepiece_rules import WORD_MARK
from albert_tf.text.tokenizers import load_tokenizer

READ_BATCH, READ_SECONDS = 256, 5


def _masks(made: Path) -> dict[str, np.ndarray]:
    """Count masks of the first epoch of a data set, as a model sees them."""
    found = records.load_metadata(str(made))
    kinds, runs = np.zeros(3, int), np.zeros(12, int)
    rates, mask_id = [], load_tokenizer(str(made)).mask_id
    batches = train_batches(str(made), found, batch_size=256, seed=1)
    for batch in batches.take(found.count(records.TRAIN) // 256):
        batch = {name: value.numpy() for name, value in batch.items()}
        real = batch["masked_lm_weights"] > 0
        positions = batch["masked_lm_positions"]
        shown = np.take_along_axis(batch["input_ids"], positions, 1)[real]
        labels = batch["masked_lm_ids"][real]
        kinds += np.bincount(
            np.where(shown == mask_id, 0, np.where(shown == labels, 1, 2)),
            minlength=3,
        )
        rates.append(real.sum() / batch["input_mask"].sum())
        for row, weights in zip(positions, real, strict=True):
            places = row[weights]
            breaks = np.flatnonzero(np.diff(places) != 1)
            ends = np.concatenate([[-1], breaks, [len(places) - 1]])
            runs += np.bincount(np.minimum(np.diff(ends), 11), minlength=12)
    return {"kinds": kinds, "runs": runs[1:], "rate": np.mean(rates)}


def masking(config: BenchmarkConfig) -> None:
    """Print what static and dynamic masking do to the same text."""
    found = {}
    with folder() as output:
        text = small(config, output)
        for kind in (STATIC, DYNAMIC):
            timed_build(
                configs(
                    config, text, output / kind, masking=kind, dupe_factor=1
                )
            )
            found[kind] = _masks(output / kind)
    rows = [["", "masked", "[MASK] / same / random", "runs of 1, 2, 3, 4, 5"]]
    for kind, value in found.items():
        shares = value["kinds"] / value["kinds"].sum()
        runs = value["runs"] / value["runs"].sum()
        rows.append(
            [
                kind,
                f"{value['rate']:.2%}",
                " ".join(f"{s:.4f}" for s in shares),
                " ".join(f"{s:.4f}" for s in runs[:5]),
            ]
        )
    print(*table(rows), sep="\n")
    for name in ("kinds", "runs"):
        both = np.array([found[kind][name] for kind in (STATIC, DYNAMIC)])
        test = stats.chi2_contingency(both[:, both.sum(0) > 0])
        print(f"chi-square of {name}: p = {test.pvalue:.3f}")


def reading(config: BenchmarkConfig) -> None:
    """Print how fast records become batches, on one core."""
    rows = [["records", "examples per core and second", "tokens"]]
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    with folder() as output:
        text = small(config, output)
        for kind in (STATIC, DYNAMIC):
            made = output / kind
            _, found = timed_build(
                configs(config, text, made, masking=kind, dupe_factor=1)
            )
            batches = iter(
                train_batches(
                    str(made), found, batch_size=READ_BATCH, seed=0
                ).with_options(options)
            )
            next(batches)
            begin, number = time.process_time(), 0
            while (spent := time.process_time() - begin) < READ_SECONDS:
                next(batches)
                number += READ_BATCH
            pace = number / spent
            tokens = pace * config.max_seq_length
            rows.append([kind, f"{pace:,.0f}", f"{tokens:,.0f}"])
    print(*table(rows), sep="\n")


def paragraphs(text: Path, path: Path, lines: int = 6) -> Path:
    """Write a text with several sentences on each line."""
    documents = text.read_text("utf-8").split("\n\n")
    with open(path, "w", encoding="utf-8") as file:
        for document in documents:
            found = document.split("\n")
            for first in range(0, len(found), lines):
                file.write(" ".join(found[first : first + lines]) + "\n")
            file.write("\n")
    return path


def told_by_ends(made: Path, found: records.Metadata) -> float:
    """Return how often the one segment that ends a sentence was the last.

    Where both end one, or neither, a coin is tossed.
    """
    tokenizer = load_tokenizer(str(made))
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    ends = [piece.lstrip(WORD_MARK) in ENDINGS for piece in pieces]
    right = []
    for entry in found.splits[records.TRAIN]:
        for example in map(decode, framing.read(str(made / entry.file))):
            ids, in_b = example.originals(), example.segment_ids == 1
            a, b = ends[ids[~in_b][-2]], ends[ids[in_b][-2]]
            right.append(0.5 if a == b else a == example.swapped)
    return float(np.mean(right))


# Changes of the settings.
RECIPES = {"google": {"compat": "google"}, "default": {}}


def leak(config: BenchmarkConfig) -> None:
    """Print what tells the order, by the released recipe and by default."""
    rows = [
        "text,recipe,one line,dropped,swapped,records,ends,form,95 %,"
        "words,95 %".split(",")
    ]
    with folder() as output:
        lines = small(config, output)
        texts = {
            "sentence per line": lines,
            "paragraph per line": paragraphs(lines, output / "p.txt"),
        }
        for (number, (kind, text)), (name, recipe) in itertools.product(
            enumerate(texts.items()), RECIPES.items()
        ):
            made = output / f"{name}{number}"
            _, found = timed_build(
                configs(config, text, made, dupe_factor=1, **recipe)
            )
            statistics = found.statistics
            probe = statistics["leak_probe"]
            rows.append(
                [
                    kind,
                    name,
                    f"{statistics['one_segment_share']:.1%}",
                    f"{statistics['dropped_chunks']:,}",
                    f"{statistics['swapped_share']:.1%}",
                    str(probe["records"]),
                    f"{told_by_ends(made, found):.4f}",
                    str(probe["balanced_accuracy"]),
                    str(probe["balanced_interval"]),
                    str(probe["words_balanced_accuracy"]),
                    str(probe["words_balanced_interval"]),
                ]
            )
    print(*table(rows), sep="\n")
