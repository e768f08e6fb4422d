"""Scores of a pretrained model on minimal pairs, as a test of grammar.

A model ranks a pair correctly if it assigns the higher pseudo-log-likelihood to
the good sentence. A sentence's pseudo-log-likelihood is the sum of the log
probabilities of its pieces (Salazar et al., 2020, arXiv 1910.14659). Each piece
is predicted while only this piece is masked.

Shapes: N sentences, R rows, T tokens.
"""

import dataclasses
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.base import files, program
from albert_tf.base.console import Progress, counted, format_table
from albert_tf.base.errors import require
from albert_tf.base.replacing import check_writable
from albert_tf.base.settings import (
    INPUT_FILE,
    MODEL_DIR,
    OUTPUT_FILE,
    Validated,
    variant,
)
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.model.ops import fused_cross_entropy
from albert_tf.tasks.tables import Columns, read_rows
from albert_tf.text.tokenizers import Tokenizer, load_saved_tokenizer
from albert_tf.training import checkpoints
from albert_tf.training.health import require_finite

BATCH_TOKENS = 8192  # maximum number of tokens in a batch of rows
CONFIDENCE = 0.95

# The fields of a pair, and their names in BLiMP files.
NAMES = {
    "good": "sentence_good",
    "bad": "sentence_bad",
    "UID": "UID",
    "phenomenon": "linguistics_term",
}


@dataclasses.dataclass(frozen=True)
class MinimalPairsConfig(Validated):
    """The model and the pairs to score, and the file to write."""

    model_dir: str = variant(MODEL_DIR, help="Pretrained model directory.")
    input_file: str = variant(
        INPUT_FILE,
        help="BLiMP files, or JSON lines with `good`, `bad`, `UID` and "
        "`phenomenon`; comma-separated globs.",
    )
    output_file: str = variant(OUTPUT_FILE, help="JSON file to write.")


@dataclasses.dataclass(frozen=True)
class Pair:
    """A good and a bad sentence, and the phenomenon in which they differ.

    Attributes:
      paradigm: the name of the set of similar pairs; `UID` in files.
      where: the pair's file and line, for error messages.
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    where: str = ""


def read_pairs(config: MinimalPairsConfig) -> list[Pair]:
    """Return the pairs in the input files.

    Raises:
      InputError: if a line is malformed (the message locates the line), or if
        `output_file` is a folder, an input file or not writable.
    """
    pairs, output = [], config.output_file
    check_writable("output_file", output)
    for path in files.glob(config.input_file, "`input_file`"):
        rule = "`output_file` must not be a folder or an input file."
        same = os.path.realpath(path) == os.path.realpath(output)
        require(not (same or files.is_folder(output)), rule, output_file=output)
        for row in read_rows(path, Columns()):
            values = [
                row.values.get(name, row.values.get(blimp_name))
                for name, blimp_name in NAMES.items()
            ]
            require(
                all(isinstance(x, str) and x for x in values),
                f"{row.where}: a line must be a JSON object with the strings "
                f"{', '.join(NAMES)}, or {', '.join(NAMES.values())}.",
                line=str(row.values)[:80],
            )
            pairs.append(Pair(*values, row.where))
    return pairs


class Scorer:
    """A scorer that computes the pseudo-log-likelihood of sentences.

    Args:
      model: a model with a masked-LM head.
      tokenizer: the model's tokenizer.
      fingerprint: the fingerprint of the model's checkpoint, if known.
    """

    def __init__(
        self,
        model: AlbertForPretraining,
        tokenizer: Tokenizer,
        fingerprint: str = "",
    ):
        self.model, self.tokenizer = model, tokenizer
        self.fingerprint = fingerprint
        inputs = [tf.TensorSpec([None, None], tf.int32)] * 2
        self.compute = tf.function(
            self._losses, input_signature=inputs, autograph=False
        )

    def _losses(self, ids, positions):
        """Return -log p [R, 1] of the pieces at the masked positions [R, 1]."""
        pieces = tf.gather(ids, positions, batch_dims=1)
        at_mask = tf.range(tf.shape(ids)[1]) == positions  # [R, T]
        masked = tf.where(at_mask, self.tokenizer.mask_id, ids)
        albert = self.model.albert
        states = albert(masked, positions=positions)["sequence_output"]
        logits = self.model.mlm(states, embeddings=albert.embeddings)
        return fused_cross_entropy(logits, pieces)

    def row(self, sentence: str, where: str = "") -> np.ndarray:
        """Return a sentence as ids with [CLS] and [SEP], int32 [T].

        Args:
          sentence: the text.
          where: the text's file and line, for error messages.
        """
        ids = self.tokenizer.encode(sentence)
        limit = self.model.config.max_position_embeddings - 2
        rule = f"a sentence must have 1 to {limit} pieces for this model."
        require(
            1 <= len(ids) <= limit,
            f"{where}: {rule}" if where else rule.capitalize(),
            sentence=f"{sentence!r:.80}, {len(ids)} pieces",
        )
        first, last = self.tokenizer.cls_id, self.tokenizer.sep_id
        return np.array([first, *ids, last], np.int32)

    def _batches(self, rows: Sequence[np.ndarray]) -> Iterator[list[int]]:
        """Yield batches of row numbers; a batch's rows have equal lengths."""
        by_length = defaultdict(list)
        for number, row in enumerate(rows):
            by_length[len(row)].append(number)
        for length, numbers in sorted(by_length.items()):
            size = max(1, BATCH_TOKENS // (length * (length - 2)))
            for start in range(0, len(numbers), size):
                yield numbers[start : start + size]

    def __call__(
        self, sentences: Sequence[str], locations: Sequence[str] | None = None
    ) -> np.ndarray:
        """Return the pseudo-log-likelihood of each sentence, float64 [N].

        Sentences with the same pieces receive exactly the same score, so
        neither sentence of such a pair counts as better.

        Args:
          sentences: the texts.
          locations: the file and line of each text, for error messages.
        """
        locations = locations or [""] * len(sentences)
        rows = list(map(self.row, sentences, locations))
        distinct = {row.tobytes(): row for row in rows}
        scores = self.score_rows([*distinct.values()])
        score_of = dict(zip(distinct, scores, strict=True))
        return np.array([score_of[row.tobytes()] for row in rows])

    def score_rows(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return the pseudo-log-likelihood of each row, float64 [R]."""
        scores, progress = np.zeros(len(rows)), Progress(len(rows), 0, "text")
        for numbers in self._batches(rows):
            ids = np.stack([rows[i] for i in numbers])
            pieces = ids.shape[1] - 2
            positions = np.tile(np.arange(pieces, dtype=np.int32) + 1, len(ids))
            losses = self.compute(ids.repeat(pieces, 0), positions[:, None])
            losses = losses.numpy().astype("f8").reshape(len(ids), pieces)
            require_finite(losses)
            scores[numbers] = -losses.sum(1)
            progress.advance(len(numbers), "scored")
        progress.close()
        return scores


def load_scorer(model_dir: str) -> Scorer:
    """Return a scorer for the model in a model directory."""
    config = AlbertConfig.from_model_dir(model_dir)
    prefix = checkpoints.for_inference(model_dir)
    require(
        any(x.startswith("mlm/") for x in checkpoints.read_table(prefix)),
        "`model_dir` must contain a pretrained model with a masked-LM head; "
        "fine-tuned models have none.",
        model_dir=model_dir,
    )
    model = AlbertForPretraining(config)
    checkpoints.restore_model(prefix, model, only=("albert/", "mlm/"))
    fingerprint = checkpoints.fingerprint(prefix)
    return Scorer(model, load_saved_tokenizer(model_dir), fingerprint)


def accuracy(correct: Sequence[bool]) -> dict:
    """Return the `accuracy`, its Wilson interval, and the number of `pairs`.

    The interval is from `low` to `high`; its confidence level is `CONFIDENCE`.
    """
    n, share = len(correct), float(np.mean(correct))
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    center = share + z**2 / (2 * n)
    margin = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    low, high = ((center + x) / (1 + z**2 / n) for x in (-margin, margin))
    values = {"accuracy": share, "low": low, "high": high}
    rounded = {name: round(float(x), 5) for name, x in values.items()}
    return rounded | {"pairs": n}


def summarize(pairs: Sequence[Pair], correct: Sequence[bool]) -> dict:
    """Return accuracies by paradigm and phenomenon, and the overall accuracy.

    The overall accuracy is the mean over paradigms, as in BLiMP's paper.
    """
    groups = {"phenomenon": defaultdict(list), "paradigm": defaultdict(list)}
    for pair, is_correct in zip(pairs, correct, strict=True):
        for kind, members in groups.items():
            members[getattr(pair, kind)].append(is_correct)
    tables = {
        kind: {name: accuracy(members[name]) for name in sorted(members)}
        for kind, members in groups.items()
    }
    means = [row["accuracy"] for row in tables["paradigm"].values()]
    return {"accuracy": round(float(np.mean(means)), 5), **tables}


@program.command(MinimalPairsConfig)
def minimal_pairs(config: MinimalPairsConfig) -> dict:
    """Score a model on minimal pairs; write and return the accuracies.

    Each paradigm and phenomenon has an `accuracy`, its 95% interval from `low`
    to `high`, and the number of `pairs`. The top level contains the mean
    accuracy over paradigms, and a fingerprint of the `model`: its step and a
    checksum.
    """
    pairs = read_pairs(config)
    scorer = load_scorer(config.model_dir)
    sentences = [s for pair in pairs for s in (pair.good, pair.bad)]
    locations = [location for pair in pairs for location in [pair.where] * 2]
    good, bad = scorer(sentences, locations).reshape(-1, 2).T
    if equal := int(np.sum(good == bad)):
        print(
            f"Note: {equal:,} of {counted(len(pairs), 'pair')} count as wrong "
            "because their sentences have the same pieces; does the tokenizer "
            "drop the case or the accents that distinguish them?"
        )
    summary = {"model": scorer.fingerprint} | summarize(pairs, good > bad)
    files.write_json(config.output_file, summary)
    rows = [("paradigm", "accuracy", "from", "to", "pairs")]
    for name, row in summary["paradigm"].items():
        shares = (f"{row[key]:.1%}" for key in ("accuracy", "low", "high"))
        rows.append((name, *shares, f"{row['pairs']:,}"))
    print("\n".join(format_table(rows)))
    print(f"mean over paradigms: {summary['accuracy']:.1%}")
    print(f"Wrote {config.output_file}")
    return summary


cli = minimal_pairs.program.cli
