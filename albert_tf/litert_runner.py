"""Ask a LiteRT model: `python -m albert_tf.litert_runner`.

It needs the small packages `ai-edge-litert`, `sentencepiece` and `absl-py`;
TensorFlow is not imported, nor need it be installed. Where a folder has the
format of `python -m albert_tf.export --to=litert`, it works on any device
that has Python.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence

from albert_tf.base import command_line
from albert_tf.base.errors import InputError, require
from albert_tf.base.settings import setting, validate
from albert_tf.serving.litert_model import Runner
from albert_tf.serving.litert_tasks import ANSWERS, TEXTS


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


def queries(config: RunnerConfig, fields: Sequence[str]) -> Iterator[dict]:
    """Yield what is asked, of the flags or of the standard input."""
    lines = (line.rstrip("\n") for line in sys.stdin)
    if fields == TEXTS:
        pair = config.text_pair or ""
        for text in lines if config.text is None else [config.text]:
            yield {"text": text, "text_pair": pair}
    elif config.question is None:
        yield from (json_query(line, fields) for line in lines)
    else:
        query = {name: getattr(config, name) for name in fields}
        for name, value in query.items():
            rule = f"`{name}` must be given beside `question`."
            require(value not in (None, ()), rule, question=config.question)
        yield query


def answers(config: RunnerConfig) -> Iterator[dict]:
    """Yield the answer to each query."""
    runner = Runner(config.model, config.threads)
    fields, answer = ANSWERS[runner.task.kind if runner.task else ""]
    for query in queries(config, fields):
        yield answer(runner, query, config.top_k)


@command_line.program(RunnerConfig)
def ask(config: RunnerConfig) -> None:
    """Print one line of JSON for each text."""
    for answer in answers(config):
        print(json.dumps(answer, ensure_ascii=False), flush=True)


cli = ask.program.cli


if __name__ == "__main__":
    cli()
