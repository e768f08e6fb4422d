"""Ask a LiteRT model: `python -m albert_tf.litert_runner`.

It needs the small packages `ai-edge-litert`, `sentencepiece` and `absl-py`;
TensorFlow is not imported, nor need it be installed. Where a folder has the
format of `python -m albert_tf.export --to=litert`, it works on any device
that has Python.

Shapes: B rows of the model, T tokens, P masks of a call, V vocabulary.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from albert_tf import settings
from albert_tf.errors import InputError
from albert_tf.settings import setting, validate
from albert_tf.text.normalization import TextConfig
from albert_tf.tokenization import KINDS, TOKENIZER_FILE, Tokenizer, pack

MODEL_FILE = "model.tflite"
TASK_FILE = "task.json"
INPUTS = ("input_ids", "input_mask", "segment_ids")
POSITIONS = "mlm_positions"


@dataclasses.dataclass(frozen=True)
class RunnerConfig:
    """Which model is asked what."""

    model: str = setting(
        None, "Folder that the export wrote with --to=litert.", required=True
    )
    text: str | None = setting(
        None, "The text; without it, each line of the standard input is one."
    )
    text_pair: str | None = setting(None, "The second text of a pair.")
    top_k: int = setting(5, "Pieces to print for each [MASK].", minimum=1)
    threads: int = setting(1, "Threads of the interpreter.", minimum=1)

    def __post_init__(self):
        validate(self)


def read_json(path: str) -> dict:
    """Return the object in a JSON file."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise InputError(
            "`model` must be a folder that the export wrote with --to=litert. "
            f"Received: {path}: {error}"
        ) from None


def load_tokenizer(folder: str) -> Tokenizer:
    """Return the tokenizer of a folder, without TensorFlow's file system."""
    values = read_json(os.path.join(folder, TOKENIZER_FILE))
    kind = KINDS.get(values.pop("type", None))
    if kind is None:
        raise InputError(
            f"`type` of {TOKENIZER_FILE} must be one of {', '.join(KINDS)}. "
            f"Received: {folder}"
        )
    with open(os.path.join(folder, kind.file_name), "rb") as file:
        return kind(file.read(), TextConfig(**values))


class Runner:
    """A LiteRT model with its tokenizer, and the task if it has one.

    Args:
      folder: what the export wrote.
      threads: threads of the interpreter.
    """

    def __init__(self, folder: str, threads: int = 1):
        from ai_edge_litert.interpreter import Interpreter

        path = os.path.join(folder, MODEL_FILE)
        self.tokenizer = load_tokenizer(folder)
        task = os.path.join(folder, TASK_FILE)
        self.task = read_json(task) if os.path.exists(task) else {}
        try:
            self._interpreter = Interpreter(path, num_threads=threads)
            self._run = self._interpreter.get_signature_runner()
            details = self._run.get_input_details()
            self.batch_size, self.length = map(int, details[INPUTS[0]]["shape"])
        except (ValueError, RuntimeError, KeyError) as error:
            raise InputError(
                f"`model` must hold a LiteRT model of this project. "
                f"Received: {path}: {error}"
            ) from None
        self.masks = 0  # P
        if POSITIONS in details:
            self.masks = int(details[POSITIONS]["shape"][1])

    def inputs(
        self, first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]
    ) -> dict[str, np.ndarray]:
        """Return the inputs [B, T] of at most B pairs of ids."""
        rows = [
            pack(self.tokenizer, a, b, self.length)
            for a, b in zip(first, second, strict=True)
        ]
        # A model for B rows is given empty texts beside fewer.
        rows += [pack(self.tokenizer, [], [], self.length)] * (
            self.batch_size - len(rows)
        )
        stacked = map(np.stack, zip(*rows, strict=True))
        return dict(zip(INPUTS, stacked, strict=True))

    def call(self, inputs: dict, positions=None) -> dict[str, np.ndarray]:
        """Return the model's outputs [B, ...]."""
        if self.masks:
            if positions is None:
                positions = np.zeros([self.batch_size, self.masks], np.int32)
            inputs = inputs | {POSITIONS: positions}
        return self._run(**inputs)

    def scores(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return {name: [N, ...]} for any number of texts or pairs."""
        pairs = [""] * len(texts) if pairs is None else pairs
        first = self.tokenizer.encode_batch(texts)
        second = self.tokenizer.encode_batch(pairs)
        parts = []
        for start in range(0, len(texts), self.batch_size):
            some = slice(start, start + self.batch_size)
            found = self.call(self.inputs(first[some], second[some]))
            number = len(first[some])
            parts.append({k: x[:number] for k, x in found.items()})
        names = parts[0] if parts else ()
        return {k: np.concatenate([p[k] for p in parts]) for k in names}

    def fill_mask(self, text: str, top_k: int) -> list[list[tuple[str, float]]]:
        """Return the likeliest (piece, probability)s of each `[MASK]`."""
        ids = self.tokenizer.encode_masked(text)
        inputs = self.inputs([ids], [[]])
        places = np.flatnonzero(inputs[INPUTS[0]][0] == self.tokenizer.mask_id)
        found = []
        for start in range(0, len(places), self.masks):
            some = places[start : start + self.masks]
            positions = np.zeros([self.batch_size, self.masks], np.int32)
            positions[0, : len(some)] = some
            logits = self.call(inputs, positions)["mlm_logits"][0, : len(some)]
            found += [self._likeliest(row, top_k) for row in logits]
        return found

    def _likeliest(self, logits, top_k: int) -> list[tuple[str, float]]:
        weights = np.exp(logits - logits.max())
        known = (weights / weights.sum())[: self.tokenizer.vocab_size]
        best = np.argsort(-known, kind="stable")[:top_k]
        pieces = self.tokenizer.pieces(best)
        return list(zip(pieces, known[best].tolist(), strict=True))


def classes(runner: Runner, text: str, pair: str, config) -> dict:
    """Return each label with its probability, the likeliest first."""
    found = runner.scores([text], [pair])["probabilities"][0].tolist()
    table = dict(zip(runner.task["labels"], found, strict=True))
    return dict(sorted(table.items(), key=lambda item: -item[1]))


def score(runner: Runner, text: str, pair: str, config) -> dict:
    """Return the number of a regression."""
    return {"score": float(runner.scores([text], [pair])["score"][0])}


def pretrained(runner: Runner, text: str, pair: str, config) -> dict:
    """Return the pieces for masks, and of a pair whether it is in order."""
    answer = {}
    if runner.masks and not pair:
        answer["fill_mask"] = runner.fill_mask(text, config.top_k)
    if pair:
        logits = runner.scores([text], [pair]).get("sop_logits")
        if logits is None:
            raise InputError(
                "`text_pair` must be given to a model that knows the order of "
                f"sentences. Received: model={config.model}"
            )
        swapped = float(logits[0, 1] - logits[0, 0])
        answer["in_order"] = float(1.0 / (1.0 + np.exp(swapped)))
    return answer


# By the kind of the model's task; None is a pretrained model.
ANSWERS: dict[str | None, Callable] = {
    "classification": classes,
    "multilabel": classes,
    "regression": score,
    None: pretrained,
}


def answers(config: RunnerConfig) -> Iterator[dict]:
    """Yield the answer to each text."""
    runner = Runner(config.model, config.threads)
    kind = runner.task.get("kind")
    if kind not in ANSWERS:
        known = ", ".join(filter(None, ANSWERS))
        raise InputError(
            f"The model's kind must be one of {known}, or pretrained. "
            f"Received: kind={kind} in {config.model}"
        )
    texts = [config.text]
    if config.text is None:
        texts = (line.rstrip("\n") for line in sys.stdin)
    for text in texts:
        yield ANSWERS[kind](runner, text, config.text_pair or "", config)


def main() -> None:
    """Print one line of JSON for each text."""
    for answer in answers(settings.from_flags(RunnerConfig)):
        print(json.dumps(answer, ensure_ascii=False), flush=True)


def cli() -> None:
    """Run the command line."""
    settings.define_flags(RunnerConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
