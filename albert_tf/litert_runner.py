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

from albert_tf.base import program
from albert_tf.base.errors import require
from albert_tf.base.settings import Checked, setting

with program.quiet_start():
    from albert_tf.serving.litert_model import Runner
    from albert_tf.serving.litert_tasks import ANSWERS


@dataclasses.dataclass(frozen=True)
class RunnerConfig(Checked):
    """Which model is asked what."""

    model: str = setting(
        None, "Folder that the export wrote with --to=litert.", required=True
    )
    text: str | None = setting(
        None,
        "A text; or a JSON object with `text` and `text_pair`, or with "
        "`question`, `context` and, of multiple choice, `choices`. Without "
        "it, each line of the standard input is one.",
        literal=True,
    )
    top_k: int = setting(
        5,
        "Pieces for each [MASK], or most answers to a question, of those that "
        "its evaluation kept.",
        minimum=1,
    )
    threads: int = setting(1, "Threads of the interpreter.", minimum=1)


def fields_of(line: str, fields: Sequence[str]) -> dict:
    """Return the fields of a JSON object, or of a text as it stands."""
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        values = {"text": line} if "text" in fields else {}
    values = {"text_pair": ""} | values
    legal = all(
        isinstance(values.get(name), list if name == "choices" else str)
        for name in fields
    )
    rule = f"A text must be a JSON object with {', '.join(fields)}."
    require(legal, rule, text=line[:80])
    # Other names may be further columns of the user's data.
    of_models = {name for names, _ in ANSWERS.values() for name in names}
    others = sorted(x for x in of_models - {*fields} if values.get(x))
    rule = f"The model takes {', '.join(fields)} and nothing else."
    require(not others, rule, **{name: values[name] for name in others})
    return {name: values[name] for name in fields}


def answers(config: RunnerConfig) -> Iterator[dict]:
    """Yield the answer to each text."""
    runner = Runner(config.model, config.threads)
    fields, answer = ANSWERS[runner.task.kind if runner.task else ""]
    lines = (line.rstrip("\n") for line in sys.stdin)
    for line in lines if config.text is None else [config.text]:
        yield answer(runner, fields_of(line, fields), config.top_k)


@program.command(RunnerConfig)
def ask(config: RunnerConfig) -> None:
    """Print one line of JSON for each text."""
    for answer in answers(config):
        line = json.dumps(answer, ensure_ascii=False)
        # Half of a surrogate pair cannot be written.
        print(line.encode("utf-8", "replace").decode(), flush=True)


cli = ask.program.cli


if __name__ == "__main__":
    cli()
