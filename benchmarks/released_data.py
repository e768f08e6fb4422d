"""How far the records of --compat=google are from google-research/albert's.

    python benchmarks/released_data.py --golden=FOLDER

FOLDER holds a text `text_*.txt.gz`, the vocabulary `spm8k.model`, and
`stats_*.json`: statistics of what the released builder made of the text, for
several seeds. Here the text goes the way of a user's, with the same settings
and as many seeds, and the records that were written are counted.

The numbers of one seed are compared by a t-test over the seeds, shares by a
chi-square test of the counts of all seeds together; p below the bar means
that they differ. The distribution of lengths varies with the seed, because a
document has one target length: its Kolmogorov-Smirnov distance is put beside
the largest one between two recorded seeds.
"""

import collections
import dataclasses
import itertools
import os
import tempfile

import numpy as np
from scipy import stats

from albert_tf.base import files, settings
from albert_tf.base.errors import InputError
from albert_tf.base.settings import setting
from albert_tf.data import records
from albert_tf.data.builder import build
from albert_tf.data.builder.build_config import BuildConfig
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.text_files import ReadingConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.describe import table
from albert_tf.text.tokenizers import TokenizerConfig, load_tokenizer

import tensorflow as tf  # isort: skip

BATCH = 4096
# Fewer expected in a class, and it joins the one before it.
LEAST_EXPECTED = 10
# 1 % for the whole of a hundred tests.
BAR = 1e-4

SCALARS = {
    "records per pass": "instances_per_dupe",
    "tokens per record": "length_mean",
    "records of full length": "frac_max_size",
    "label 1": "sop_label1",
    "B from a random document": "random_document_picks_per_instance",
    "masked share": "frac_masked_of_tokens",
    "masks per record": "masks_per_instance_mean",
    "tokens that begin a word": "token_boundary_frac",
}
# Shares, and what they are shares of.
SHARES = {
    "mask, random, keep": ("split", "masked"),
    "n-grams drawn": ("ngram_drawn_all", "ngrams"),
    "n-grams used": ("ngram_used_accepted", "ngrams"),
    "runs of masks, tokens": ("run_length_tokens", "runs"),
    "runs of masks, words": ("run_length_words", "runs"),
    "place of masks": ("masked_position_deciles", "masked"),
}


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the recorded numbers are."""

    golden: str = setting("", "Folder of recordings.", required=True)
    seeds: int = setting(4, "Builds of each recording.", minimum=2)


def of_settings(cls: type, recorded: dict, **values):
    """Return a settings dataclass from the recorded flags that it has."""
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{k: v for k, v in recorded.items() if k in names} | values)


def read(path: str, tokens: int, slots: int) -> dict[str, np.ndarray]:
    """Return all records of a file as arrays."""
    sizes = {
        records.INPUT_IDS: tokens,
        records.INPUT_MASK: tokens,
        records.SEGMENT_IDS: tokens,
        records.TOKEN_BOUNDARY: tokens,
        records.MASKED_LM_POSITIONS: slots,
        records.MASKED_LM_IDS: slots,
        records.NEXT_SENTENCE_LABELS: 1,
    }
    spec = {k: tf.io.FixedLenFeature([n], tf.int64) for k, n in sizes.items()}
    spec[records.MASKED_LM_WEIGHTS] = tf.io.FixedLenFeature([slots], tf.float32)
    dataset = tf.data.TFRecordDataset(path).batch(BATCH)
    batches = list(
        dataset.map(
            lambda data: tf.io.parse_example(data, spec)
        ).as_numpy_iterator()
    )
    return {k: np.concatenate([b[k] for b in batches]) for k in spec}


def shares(values: np.ndarray, bins=None) -> dict[str, float]:
    """Return the share of each whole number, or of each bin."""
    if bins is not None:
        counts = np.histogram(values, bins)[0]
    else:
        counts = np.bincount(values)
    total = counts.sum()
    return {str(i): n / total for i, n in enumerate(counts) if n}


def runs_of(data: dict, masked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens, and the word starts, of each run of masks."""
    padded = np.pad(masked, ((0, 0), (1, 1)))
    rows, begins = np.nonzero(padded[:, 1:-1] & ~padded[:, :-2])
    _, ends = np.nonzero(padded[:, 1:-1] & ~padded[:, 2:])
    starts = np.cumsum(data[records.TOKEN_BOUNDARY], axis=1)
    before = starts[rows, begins] - data[records.TOKEN_BOUNDARY][rows, begins]
    return ends - begins + 1, starts[rows, ends] - before


def measure(data: dict, tokenizer, dupe_factor: int) -> dict:
    """Return the statistics of the records that can be read off them."""
    real = data[records.INPUT_MASK] == 1
    lengths = real.sum(axis=1)
    rows, slots = np.nonzero(data[records.MASKED_LM_WEIGHTS] > 0)
    places = data[records.MASKED_LM_POSITIONS][rows, slots]
    labels = data[records.MASKED_LM_IDS][rows, slots]
    inputs = data[records.INPUT_IDS][rows, places]
    masked = np.zeros_like(real)
    masked[rows, places] = True
    is_mask = inputs == tokenizer.mask_id
    kept = inputs == labels
    run_tokens, run_words = runs_of(data, masked)
    full = real.shape[1]
    special = np.isin(inputs, [tokenizer.cls_id, tokenizer.sep_id])
    return {
        "instances_per_dupe": len(real) / dupe_factor,
        "length_mean": lengths.mean(),
        "frac_max_size": np.mean(lengths == full),
        "sop_label1": data[records.NEXT_SENTENCE_LABELS].mean(),
        "frac_masked_of_tokens": len(rows) / lengths.sum(),
        "masks_per_instance_mean": len(rows) / len(real),
        "token_boundary_frac": data[records.TOKEN_BOUNDARY].sum()
        / lengths.sum(),
        "split": {
            "mask": np.mean(is_mask),
            "random": np.mean(~is_mask & ~kept),
            "keep": np.mean(kept),
        },
        "special_randoms": int(special.sum()),
        "run_length_tokens": shares(run_tokens),
        "run_length_words": shares(run_words),
        "masked_position_deciles": list(
            shares(places / lengths[rows], np.linspace(0, 1, 11)).values()
        ),
        "lengths": lengths,
        "masked": len(rows),
        "runs": len(run_tokens),
    }


class Recording:
    """The statistics of one setting of the released builder."""

    def __init__(self, folder: str, name: str):
        self.folder, self.name = folder, name
        path = os.path.join(folder, name)
        self.recorded = files.read_json(path, "The recording")
        self.settings = self.recorded["settings"]

    def build(self, seed: int) -> dict:
        """Build with one seed, and return the same statistics."""
        with tempfile.TemporaryDirectory() as output:
            metadata = build.run(
                of_settings(
                    BuildConfig,
                    self.settings,
                    input_file=os.path.join(self.folder, "text_*.txt.gz"),
                    output_dir=output,
                    eval_fraction=0.0,
                    num_shards=1,
                    random_seed=seed,
                ),
                of_settings(
                    TokenizerConfig,
                    self.settings,
                    spm_model_file=os.path.join(self.folder, "spm8k.model"),
                ),
                of_settings(PairsConfig, self.settings, compat="google"),
                of_settings(MaskingConfig, self.settings),
                ReadingConfig(),
            )
            found = [
                read(
                    os.path.join(output, entry.file),
                    metadata.max_seq_length,
                    metadata.max_predictions_per_seq,
                )
                for entry in metadata.splits[records.TRAIN]
            ]
            data = {
                k: np.concatenate([part[k] for part in found]) for k in found[0]
            }
            tokenizer = load_tokenizer(output)
        result = measure(data, tokenizer, self.settings["dupe_factor"])
        made = metadata.statistics
        drawn, used = made["ngrams_drawn"], made["ngrams_used"]
        return result | {
            "random_document_picks_per_instance": made["random_document_share"],
            "ngram_drawn_all": dict(zip("123456789", drawn, strict=False)),
            "ngram_used_accepted": dict(zip("123456789", used, strict=False)),
            "ngrams": result["masked"] / mean_size(self.recorded["runs"][0]),
        }

    def released(self) -> list[dict]:
        """Return the recorded statistics, one for each seed."""
        found = []
        for run in self.recorded["runs"]:
            masked = run["masked_total"]
            run_sizes = run["run_length_tokens"].items()
            mean_run = sum(int(n) * share for n, share in run_sizes)
            found.append(
                run
                | {
                    "masked": masked,
                    "runs": masked / mean_run,
                    "ngrams": masked / mean_size(run),
                }
            )
        return found


def mean_size(run: dict) -> float:
    """Return the tokens of an n-gram in a recorded run."""
    sizes = run["tokens_per_accepted_ngram"].items()
    return sum(int(n) * share for n, share in sizes)


def counts_of(runs: list[dict], name: str, whole: str) -> collections.Counter:
    """Return how often each class was counted, over all runs."""
    found: collections.Counter = collections.Counter()
    for run in runs:
        values = run[name]
        if isinstance(values, list):
            values = {str(i): share for i, share in enumerate(values)}
        for key, share in values.items():
            found[key] += share * run[whole]
    return found


def chi_square(ours: collections.Counter, theirs: collections.Counter) -> float:
    """Return p of the two having the same shares; rare classes are joined."""
    columns: list[np.ndarray] = []
    for key in sorted(theirs | ours, key=lambda k: -theirs[k] - ours[k]):
        column = np.array([ours[key], theirs[key]])
        if columns and column.sum() < 2 * LEAST_EXPECTED:
            columns[-1] = columns[-1] + column
        else:
            columns.append(column)
    if len(columns) < 2:
        return 1.0
    return float(stats.chi2_contingency(np.stack(columns)).pvalue)


def length_distances(ours: list[dict], theirs: list[dict]) -> tuple:
    """Return the distance of the lengths, and the largest between seeds."""

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        a, b = np.cumsum(a) / np.sum(a), np.cumsum(b) / np.sum(b)
        return float(np.abs(a - b).max())

    bins = [*theirs[0]["length_hist_bins"]]
    bins[-1] += 1
    hists = [np.histogram(run["lengths"], bins)[0] for run in ours]
    recorded = [np.array(run["length_hist"]) for run in theirs]
    between = [distance(*pair) for pair in itertools.combinations(recorded, 2)]
    return distance(sum(hists), sum(recorded)), max(between)


def rows(recording: Recording, seeds: int) -> list[tuple[str, ...]]:
    """Return the rows of one recording."""
    ours = [recording.build(seed) for seed in range(1, seeds + 1)]
    theirs = recording.released()
    found = []

    def add(title: str, a: str, b: str, p: float) -> None:
        verdict = "" if p >= BAR else "DIFFERS"
        found.append((recording.name, title, a, b, f"{p:.3f}", verdict))

    for title, name in SCALARS.items():
        a, b = ([run[name] for run in runs] for runs in (theirs, ours))
        spread = np.std(a) + np.std(b)
        p = float(stats.ttest_ind(a, b).pvalue) if spread else 1.0
        cells = [f"{np.mean(x):.5g} ±{np.std(x, ddof=1):.1g}" for x in (a, b)]
        add(title, *cells, p)
    for title, (name, whole) in SHARES.items():
        a, b = (counts_of(runs, name, whole) for runs in (theirs, ours))
        top = [key for key, _ in a.most_common(3)]
        cells = [
            " ".join(f"{x[key] / x.total():.4f}" for key in top) for x in (a, b)
        ]
        add(title, *cells, chi_square(b, a))
    distance, between = length_distances(ours, theirs)
    found.append(
        (
            recording.name,
            "lengths, KS distance",
            f"{between:.4f}",
            f"{distance:.4f}",
            "",
            "" if distance <= between else "FURTHER",
        )
    )
    return found


def main() -> None:
    """Print the table."""
    config = settings.from_flags(DataConfig)
    if not os.path.isdir(config.golden):
        raise InputError(
            f"`golden` must be a folder. Received: {config.golden}"
        )
    names = sorted(os.listdir(config.golden))
    names = [n for n in names if n.startswith("stats_") and n.endswith(".json")]
    lines = [("", "", "released", "here", "p", "")]
    for name in names:
        lines += rows(Recording(config.golden, name), config.seeds)
    print("\n".join(table(lines)))


if __name__ == "__main__":
    settings.define_flags(DataConfig)
    settings.run(main)
