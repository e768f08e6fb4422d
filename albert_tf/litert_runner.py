"""Ask a LiteRT model: `python -m albert_tf.litert_runner`.

It needs the small packages `ai-edge-litert`, `sentencepiece` and `absl-py`;
TensorFlow is not imported, nor need it be installed. Where a folder has the
format of `python -m albert_tf.export --to=litert`, it works on any device
that has Python.

Shapes: B rows of the model, T tokens, P masks of a call, V vocabulary.
"""

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from albert_tf.base import settings
from albert_tf.base.errors import InputError
from albert_tf.base.settings import setting, validate
from albert_tf.serving import litert_tasks
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizers import KINDS, TOKENIZER_FILE, Tokenizer, pack

MODEL_FILE = "model.tflite"
TASK_FILE = "task.json"
INPUTS = ("input_ids", "input_mask", "segment_ids")
POSITIONS = "mlm_positions"
Row = tuple[np.ndarray, np.ndarray, np.ndarray]  # the model's inputs, [T] each


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
    question: str | None = setting(
        None,
        "The question; without it, each line of the standard input is JSON "
        "with `question`, `context` and, of multiple choice, `choices`.",
    )
    context: str | None = setting(None, "What the question is about.")
    choices: tuple = setting((), "What to choose from.")
    top_k: int = setting(
        5, "Pieces for each [MASK], or answers to a question.", minimum=1
    )
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

    def one_part(self, ids: Sequence[int]) -> Row:
        """Return the row `[CLS] ids [SEP]`."""
        return pack(self.tokenizer, ids, [], self.length)

    def two_parts(self, a: Sequence[int], b: Sequence[int]) -> Row:
        """Return the row `[CLS] a [SEP] b [SEP]`, also where b is empty."""
        ids, mask, segments = self.one_part([*a, self.tokenizer.sep_id, *b])
        segments[len(a) + 2 : mask.sum()] = 1
        return ids, mask, segments

    def inputs(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Return the inputs [B, T] of at most B rows."""
        # A model for B rows is given empty texts beside fewer.
        empty = [self.one_part([])] * (self.batch_size - len(rows))
        stacked = map(np.stack, zip(*rows, *empty, strict=True))
        return dict(zip(INPUTS, stacked, strict=True))

    def call(self, inputs: dict, positions=None) -> dict[str, np.ndarray]:
        """Return the model's outputs [B, ...]."""
        if self.masks:
            if positions is None:
                positions = np.zeros([self.batch_size, self.masks], np.int32)
            inputs = inputs | {POSITIONS: positions}
        return self._run(**inputs)

    def run(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Return {name: [N, ...]} for any number of rows."""
        parts = []
        for start in range(0, len(rows), self.batch_size):
            some = rows[start : start + self.batch_size]
            found = self.call(self.inputs(some))
            parts.append({k: x[: len(some)] for k, x in found.items()})
        names = parts[0] if parts else ()
        return {k: np.concatenate([p[k] for p in parts]) for k in names}

    def scores(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return {name: [N, ...]} for any number of texts or pairs."""
        pairs = [""] * len(texts) if pairs is None else pairs
        first = self.tokenizer.encode_batch(texts)
        second = self.tokenizer.encode_batch(pairs)
        return self.run(
            [
                pack(self.tokenizer, a, b, self.length)
                for a, b in zip(first, second, strict=True)
            ]
        )

    def fill_mask(self, text: str, top_k: int) -> list[list[tuple[str, float]]]:
        """Return the likeliest (piece, probability)s of each `[MASK]`."""
        ids = self.tokenizer.encode_masked(text)
        inputs = self.inputs([self.one_part(ids)])
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


def classes(runner: Runner, query: dict, top_k: int) -> dict:
    """Return each label with its probability, the likeliest first."""
    found = runner.scores([query["text"]], [query["text_pair"]])
    shares = found["probabilities"][0].tolist()
    table = dict(zip(runner.task["labels"], shares, strict=True))
    return dict(sorted(table.items(), key=lambda item: -item[1]))


def score(runner: Runner, query: dict, top_k: int) -> dict:
    """Return the number of a regression."""
    found = runner.scores([query["text"]], [query["text_pair"]])
    return {"score": float(found["score"][0])}


def pretrained(runner: Runner, query: dict, top_k: int) -> dict:
    """Return the pieces for masks, and of a pair whether it is in order."""
    answer, text, pair = {}, query["text"], query["text_pair"]
    if runner.masks and not pair:
        answer["fill_mask"] = runner.fill_mask(text, top_k)
    if pair:
        logits = runner.scores([text], [pair]).get("sop_logits")
        if logits is None:
            raise InputError(
                "`text_pair` must be given to a model that knows the order of "
                f"sentences. Received: text_pair={pair}"
            )
        swapped = float(logits[0, 1] - logits[0, 0])
        answer["in_order"] = float(1.0 / (1.0 + np.exp(swapped)))
    return answer


# By the kind of the model's task; None is a pretrained model. Each takes what
# is asked, {field: value}, and how many answers to give.
ANSWERS: dict[str | None, Callable] = {
    "classification": classes,
    "multilabel": classes,
    "regression": score,
    "question_answering": litert_tasks.answer,
    "multiple_choice": litert_tasks.choose,
    "token_classification": litert_tasks.entities,
    None: pretrained,
}
# The fields of kinds that are asked something else than texts.
FIELDS = {
    "question_answering": ("question", "context"),
    "multiple_choice": ("question", "context", "choices"),
}


def json_query(line: str, fields: Sequence[str]) -> dict:
    """Return the fields of a line of JSON."""
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    legal = isinstance(values, dict) and all(
        isinstance(values.get(name), list if name == "choices" else str)
        for name in fields
    )
    if not legal:
        raise InputError(
            f"A line must be a JSON object with {', '.join(fields)}. "
            f"Received: {line[:80]}"
        )
    return {name: values[name] for name in fields}


def queries(config: RunnerConfig, kind: str | None) -> Iterator[dict]:
    """Yield what is asked, of the flags or of the standard input."""
    lines = (line.rstrip("\n") for line in sys.stdin)
    if kind not in FIELDS:
        texts = lines if config.text is None else [config.text]
        pair = config.text_pair or ""
        yield from ({"text": text, "text_pair": pair} for text in texts)
    elif config.question is None:
        yield from map(
            functools.partial(json_query, fields=FIELDS[kind]), lines
        )
    else:
        query = {name: getattr(config, name) for name in FIELDS[kind]}
        missing = [name for name, value in query.items() if value in (None, ())]
        if missing:
            raise InputError(
                f"`{missing[0]}` must be given beside `question`. "
                f"Received: question={config.question}"
            )
        yield query


def answers(config: RunnerConfig) -> Iterator[dict]:
    """Yield the answer to each query."""
    runner = Runner(config.model, config.threads)
    kind = runner.task.get("kind")
    if kind not in ANSWERS:
        known = ", ".join(filter(None, ANSWERS))
        raise InputError(
            f"The model's kind must be one of {known}, or pretrained. "
            f"Received: kind={kind} in {config.model}"
        )
    for query in queries(config, kind):
        yield ANSWERS[kind](runner, query, config.top_k)


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
