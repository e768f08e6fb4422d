"""A LiteRT model with its tokenizer and task, without TensorFlow.

Shapes: N rows, B rows per call to the model, T tokens, P masks per call.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator

import numpy as np

from albert_tf.base import files, program
from albert_tf.base.errors import errors_in, input_errors, require
from albert_tf.base.packages import need
from albert_tf.base.processes import available
from albert_tf.base.settings import TOP_K, Validated, setting, variant
from albert_tf.tasks.features import Features
from albert_tf.tasks.numerics import likeliest, softmax
from albert_tf.tasks.predictions import Predictor, check_query
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import TASK_FILE, Task
from albert_tf.text.packing import check_masks, packed_row
from albert_tf.text.tokenizers import TOKENIZER_FILE, load_saved_tokenizer

MODEL_FILE = "model.tflite"
POSITIONS = "mlm_positions"
# The limit for one query. A text of this size takes about a second to tokenize.
MAX_CHARACTERS = 200_000


class Runner:
    """An interpreter for an export with `--to=litert`.

    Attributes:
      task: the task of a fine-tuned model, or None.
      fields: the names and types of a query's values.
      is_pair: whether a query needs two texts.
      outputs: {name: shape} of the model's outputs.

    Args:
      folder: the export.
      threads: number of interpreter threads.
    """

    def __init__(self, folder: str, threads: int = 1):
        need("A LiteRT file", "ai_edge_litert", model=folder)
        from ai_edge_litert.interpreter import Interpreter

        require(
            files.exists(files.join(folder, TOKENIZER_FILE)),
            "`model` must be a folder written by export with --to=litert.",
            model=f"{folder} without {TOKENIZER_FILE}",
        )
        self.tokenizer = load_saved_tokenizer(folder)
        path = files.join(folder, MODEL_FILE)
        kinds = ValueError, RuntimeError, KeyError
        rule = "`model` must contain a LiteRT model of this project"
        with input_errors(kinds, rule, model=path):
            self._interpreter = Interpreter(path, num_threads=threads)
            self._interpreter.allocate_tensors()
            self._run = self._interpreter.get_signature_runner()
            details = self._run.get_input_details()
            shape = map(int, details["input_ids"]["shape"])
        self.batch_size, self.length = shape
        self.masks = 0  # P
        if POSITIONS in details:
            self.masks = int(details[POSITIONS]["shape"][1])
        self.outputs = {
            name: tuple(map(int, x["shape"]))
            for name, x in self._run.get_output_details().items()
        }
        # The task has the lengths of the LiteRT file.
        self.task = load_task(folder) if is_finetuned(folder) else None
        kind = self.task or Task
        self.fields, self.is_pair = kind.fields, kind.is_pair
        self._check_task(folder)

    def _check_task(self, folder: str) -> None:
        """Raise an error unless the model's outputs match `task.json`."""
        needed = {"sequence_output", "pooled_output"}
        if self.task:
            needed = set(self.task.answer_outputs)
        labels = len(getattr(self.task, "labels", ()))
        logits = self.outputs.get("logits", ())
        require(
            needed <= self.outputs.keys()
            and (not labels or logits[-1] == labels),
            f"{TASK_FILE} and {MODEL_FILE} in `model` must come from the same "
            f"export; a pretrained model has no {TASK_FILE}.",
            model=folder,
            task=self.task.kind if self.task else f"none, no {TASK_FILE}",
            outputs=", ".join(self.outputs),
        )

    def call(self, inputs: dict, positions=None) -> dict[str, np.ndarray]:
        """Return the model's outputs {name: [B, ...]} for one batch.

        Args:
          inputs: the model's inputs {name: [B, T]}.
          positions: int32 [B, P], the positions of masks, or None.
        """
        if self.masks:
            if positions is None:
                positions = np.zeros([self.batch_size, self.masks], np.int32)
            inputs = inputs | {POSITIONS: positions}
        return self._run(**inputs)

    def run(self, features: Features) -> dict[str, np.ndarray]:
        """Run the model on N rows; return the outputs {name: [N, ...]}."""
        number = len(features.lengths)
        # Copies of the last row fill an incomplete batch.
        padding = [(0, -number % self.batch_size), (0, 0)]
        inputs = {
            name: np.pad(rows, padding, mode="edge")
            for name, rows in features.dense().items()
        }
        calls = [
            self.call(
                {k: x[i : i + self.batch_size] for k, x in inputs.items()}
            )
            for i in range(0, number, self.batch_size)
        ]
        return {
            name: np.concatenate([outputs[name] for outputs in calls])[:number]
            for name in calls[0]
        }

    def answer(self, query: dict, top_k: int) -> dict:
        """Return the model's answer to a query {field: value}."""
        if not self.task:
            return self._pretrained(query["text"], query["text_pair"], top_k)
        predictor = Predictor(self.task, self.tokenizer, self.run)
        return predictor([query], top_k)[0]

    def _pretrained(self, text: str, pair: str, top_k: int) -> dict:
        """Return pieces for masks, or the probability that a pair is in order.

        A model without a masked-LM head returns vectors for a text, as the
        signature `tf_example` does; a model without heads also returns vectors
        for a pair.

        Raises:
          InputError: for a pair, if the masked-LM head is the only head.
        """
        if self.masks and not pair:
            return {"fill_mask": self.fill_mask(text, top_k)}
        has_order = "sop_logits" in self.outputs
        require(
            has_order or not (pair and self.masks),
            "`text_pair` needs a model with a head for sentence order.",
            text_pair=pair[:60],
        )
        features = Features.from_texts(
            self.tokenizer, [text], self.length, pairs=[pair]
        )
        outputs = self.run(features)
        if has_order and pair:
            return {"in_order": float(softmax(outputs["sop_logits"])[0, 0])}
        tokens = outputs["sequence_output"][0, : features.lengths[0]]
        return {
            "pooled": outputs["pooled_output"][0].tolist(),
            "mean": tokens.mean(axis=0).tolist(),
        }

    def fill_mask(self, text: str, top_k: int) -> list[list[tuple[str, float]]]:
        """Return the best (piece, probability) pairs for each `[MASK]`.

        Raises:
          InputError: if the text has no mask, or if a mask is not among the
            text's first `length` tokens.
        """
        ids = self.tokenizer.encode_masked(text)
        row = packed_row(self.tokenizer, ids, (), self.length)
        pad_id, rows = self.tokenizer.pad_id, [row] * self.batch_size
        inputs = Features.from_rows(rows, {}, pad_id, self.length).dense()
        (mask_positions,) = np.nonzero(
            inputs["input_ids"][0] == self.tokenizer.mask_id
        )
        check_masks(text, len(mask_positions))
        filled = []
        for start in range(0, len(mask_positions), self.masks):
            chunk = mask_positions[start : start + self.masks]
            positions = np.zeros([self.batch_size, self.masks], np.int32)
            positions[0, : len(chunk)] = chunk
            logits = self.call(inputs, positions)["mlm_logits"][0]
            filled += [
                likeliest(self.tokenizer, x, top_k)
                for x in logits[: len(chunk)]
            ]
        return filled


@dataclasses.dataclass(frozen=True)
class RunnerConfig(Validated):
    """The model and the queries."""

    model: str = setting(
        None, "Folder written by export with --to=litert.", required=True
    )
    text: str | None = setting(
        None,
        "A text, or a JSON object with `text` and `text_pair`, or with "
        "`question`, `context` and, for multiple choice, `choices`.",
        means="each line of standard input is a query",
        literal=True,
    )
    top_k: int = variant(TOP_K)


def fields_of(
    line: str, fields: dict[str, type], is_pair: bool = False
) -> dict:
    """Return the fields of a query, which is a JSON object or plain text.

    A line that begins with `{`, or whose JSON is nested too deeply, is not
    treated as plain text.

    Args:
      line: the query.
      fields: the names and types of the model's fields.
      is_pair: whether the model requires a second text.
    """
    rule = f"A query must have at most {MAX_CHARACTERS:,} characters."
    require(len(line) <= MAX_CHARACTERS, rule, characters=len(line))
    try:
        values = files.json_value(line)
    except ValueError as error:
        is_text = not line.startswith("{") and str(error) != files.TOO_DEEP
        require(
            is_text, f"A query must be valid JSON: {error}.", query=line[:60]
        )
        values = None
    if not isinstance(values, dict):
        values = {"text": line} if "text" in fields else line
    check_query(values, fields, is_pair, "query")
    return {name: values.get(name, "") for name in fields}


def answers(config: RunnerConfig) -> Iterator[dict]:
    """Yield the answer to each query.

    Raises:
      InputError: if the model cannot answer a query (the message names the
        line, if queries come from standard input), or if `top_k` does not apply
        to the model.
    """
    runner = Runner(config.model, available())
    uses_top_k = (
        runner.task.signature == "answer" if runner.task else runner.masks
    )
    rule = "`top_k` needs a model that fills masks or answers questions."
    legal = uses_top_k or config.top_k == RunnerConfig.top_k
    require(legal, rule, top_k=config.top_k, model=config.model)
    is_lines = config.text is None
    lines = (line.rstrip("\n") for line in sys.stdin)
    for number, line in enumerate(lines if is_lines else [config.text], 1):
        where = f"Standard input, line {number}" if is_lines else "`text`"
        with errors_in(where):
            query = fields_of(line, runner.fields, runner.is_pair)
            answer = runner.answer(query, config.top_k)
        yield answer


@program.command(RunnerConfig)
def ask(config: RunnerConfig) -> None:
    """Print the answer to each query as a line of JSON."""
    for answer in answers(config):
        line = json.dumps(answer, ensure_ascii=False)
        # A lone surrogate cannot be encoded.
        print(line.encode("utf-8", "replace").decode(), flush=True)


cli = ask.program.cli
