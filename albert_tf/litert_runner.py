"""Query a LiteRT model: `python -m albert_tf.litert_runner`.

It needs only the small packages `ai-edge-litert`, `sentencepiece` and
`absl-py`, not TensorFlow, and runs models written by
`python -m albert_tf.export --to=litert` on any device that has Python.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator

from albert_tf.base import program
from albert_tf.base.errors import require
from albert_tf.base.settings import Checked, setting

with program.quiet_start():
    from albert_tf.serving.litert_model import Runner
    from albert_tf.tasks.registry import KINDS


@dataclasses.dataclass(frozen=True)
class RunnerConfig(Checked):
    """The model and its queries."""

    model: str = setting(
        None, "Folder written by export with --to=litert.", required=True
    )
    text: str | None = setting(
        None,
        "A text, or a JSON object with `text` and `text_pair`, or with "
        "`question`, `context` and, for multiple choice, `choices`. Default: "
        "each line of standard input is a query.",
        literal=True,
    )
    top_k: int = setting(
        5,
        "Maximum number of pieces per [MASK], or of answers per question, out "
        "of the candidates that evaluation keeps.",
        minimum=1,
    )
    threads: int = setting(1, "Number of interpreter threads.", minimum=1)


def fields_of(line: str, fields: dict[str, type]) -> dict:
    """Return the fields of a query, a JSON object or a plain text."""
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        values = {"text": line} if "text" in fields else {}
    values = {"text_pair": ""} | values
    legal = all(
        isinstance(values.get(name), kind) for name, kind in fields.items()
    )
    rule = f"A query must be a JSON object with {', '.join(fields)}."
    require(legal, rule, text=line[:80])
    # Other names may be additional columns of the user's data.
    of_models = {name for kind in KINDS.values() for name in kind.fields}
    others = sorted(x for x in of_models - {*fields} if values.get(x))
    rule = f"The model takes {', '.join(fields)} and nothing else."
    require(not others, rule, **{name: values[name] for name in others})
    return {name: values[name] for name in fields}


def answers(config: RunnerConfig) -> Iterator[dict]:
    """Yield the answer to each query."""
    runner = Runner(config.model, config.threads)
    lines = (line.rstrip("\n") for line in sys.stdin)
    for line in lines if config.text is None else [config.text]:
        yield runner.answer(fields_of(line, runner.fields), config.top_k)


@program.command(RunnerConfig)
def ask(config: RunnerConfig) -> None:
    """Print one line of JSON per query."""
    for answer in answers(config):
        line = json.dumps(answer, ensure_ascii=False)
        # A lone surrogate cannot be encoded.
        print(line.encode("utf-8", "replace").decode(), flush=True)


cli = ask.program.cli


if __name__ == "__main__":
    cli()
