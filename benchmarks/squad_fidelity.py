"""How exactly answers come back from the rows that a model reads.

    python benchmarks/squad_fidelity.py --files=F.json,G.json \\
        --spm_model_file=30k-clean.model
    python benchmarks/squad_fidelity.py --files=cmrc2018_dev.json \\
        --vocab_file=vocab.txt --cmrc

For each file in the format of SQuAD the table has the share of answers whose
text comes back exactly, and lists why the others do not. `cut` are answers
that begin or end inside a piece of the vocabulary, off a sign, a number or a
word, as "73 million" in "$73 million" and "Japan" in "Japanese": the
characters on both sides of the place stand in one piece, so no span of tokens
is the answer, and whoever has these tokens cannot do better. `possible` is
the share among all other answers. `equal` counts those for which the official
comparison sees no difference, `questions` those questions of which an answer
comes back exactly.
"""

import collections
import dataclasses
import json

import numpy as np

from albert_tf.base import settings
from albert_tf.base.errors import InputError
from albert_tf.base.settings import setting, validate
from albert_tf.tasks import answer_metrics
from albert_tf.text.tokenizers import TokenizerConfig, build_tokenizer

EXACT, CUT, ABSENT = "exact", "cut", "not in the context"


@dataclasses.dataclass(frozen=True)
class FidelityConfig:
    """What is measured."""

    files: tuple = setting((), "Files in the format of SQuAD.")
    cmrc: bool = setting(False, "Read as CMRC 2018, not as SQuAD.")
    show: int = setting(5, "Answers to show of each reason.", minimum=0)

    def __post_init__(self):
        validate(self)
        if not self.files:
            raise InputError("`files` must be given. Received: none")


def questions(path: str):
    """Yield (context, question) of a file."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                yield paragraph["context"], qa


def cut_off(context: str, place: int, tokens) -> str:
    """Return what a place inside a piece cuts an answer off; "" for nothing.

    The piece must begin with what stands before the place and go on.
    """
    from albert_tf.text.normalization import normalize

    pieces, starts, ends, config = tokens
    i = int(np.searchsorted(ends, place, side="right"))
    if i == len(ends) or not starts[i] < place < ends[i]:
        return ""
    piece = pieces[i].removeprefix("▁").removeprefix("##")
    before = normalize(context[starts[i] : place], config)
    if not piece.startswith(before) or len(piece) == len(before):
        return ""
    after = context[place : ends[i]]
    for kind, is_one in (("number", str.isnumeric), ("word", str.isalpha)):
        if is_one(context[place - 1]) and is_one(after[0]):
            return kind
    return "sign"


def reason(example, found: str, tokens) -> str:
    """Return why an answer did not come back, or that it did."""
    text = example.answers[0]
    if found == text:
        return EXACT
    if found == text.strip():
        return "white space around it"
    if found and text.endswith(found):
        return "its end is outside the window with most of its beginning"
    cuts = [cut_off(example.context, place, tokens) for place in example.span]
    cuts = [cut for cut in cuts if cut]
    return f"{CUT} off a {cuts[0]}" if cuts else "other"


def recovered(task, tokenizer, context: str, answers: list[dict]):
    """Yield (answer, found text, reason) of a model that knows the labels.

    Every answer goes the way of a training example: file, rows, labels,
    logits, n best.
    """
    from albert_tf.tasks.squad_files import Question, find_answer

    examples, kept = [], []
    for answer in answers:
        text = answer["text"]
        start = find_answer(context, text, answer["answer_start"])
        if start is None:
            yield answer, "", ABSENT
            continue
        span = (start, start + len(text))
        examples.append(Question(str(len(kept)), "?", context, (text,), span))
        kept.append(answer)
    if not examples:
        return
    features = task.features(examples, tokenizer)
    logits = np.zeros([2, len(features), task.config.max_seq_length], "f4")
    for row, place in enumerate(features.arrays["labels"]):
        for which, position in enumerate(place):
            logits[which, row, position] = 9.0
    outputs = {"start_logits": logits[0], "end_logits": logits[1]}
    found = task.predictions(examples, outputs, features)
    ids, starts, ends = tokenizer.encode_with_offsets(context)
    tokens = tokenizer.pieces(ids), starts, ends, tokenizer.config
    for example, answer, prediction in zip(examples, kept, found, strict=True):
        text = prediction.best[0].text
        yield answer, text, reason(example, text, tokens)


def tally(path: str, task, tokenizer, show: int) -> tuple[list, list[str]]:
    """Return a row of the first table, and lines of answers to show."""
    by_context = collections.defaultdict(list)
    for context, qa in questions(path):
        name = {"question": qa["id"]}
        by_context[context] += [a | name for a in qa["answers"]]
    counts: collections.Counter = collections.Counter()
    shown = collections.defaultdict(list)
    asked, answered, equal = set(), set(), 0
    for context, answers in by_context.items():
        for answer, found, why in recovered(task, tokenizer, context, answers):
            counts[why] += 1
            equal += answer_metrics.exact(answer["text"], found)
            asked.add(answer["question"])
            if why == EXACT:
                answered.add(answer["question"])
            else:
                shown[why].append(f"{answer['text']!r} -> {found!r}")
    total = counts.total()
    cuts = sum(n for why, n in counts.items() if why.startswith(CUT))
    shares = (
        counts[EXACT] / total,
        counts[EXACT] / (total - cuts),
        equal / total,
        len(answered) / len(asked),
    )
    lines = [f"{why}: {x}" for why, few in shown.items() for x in few[:show]]
    reasons = ", ".join(f"{n} {why}" for why, n in counts.most_common())
    return [path.rsplit("/", 1)[-1], total, *shares, reasons], lines


def recovery(config: FidelityConfig, tokenizer) -> None:
    """Print the shares of answers that come back, and the reasons."""
    from albert_tf.tasks.registry import find
    from albert_tf.tasks.task import TaskConfig

    task = find("cmrc2018" if config.cmrc else "squad-1.1")
    # Long answers come back too if they may be that long.
    task = task.with_config(TaskConfig(max_answer_length=400))
    names = "exact", "possible", "equal", "questions"
    heads = "".join(f"{name:>10}" for name in names)
    print(f"{'file':32}{'answers':>8}{heads}  reasons")
    for path in config.files:
        row, lines = tally(path, task, tokenizer, config.show)
        name, total, *shares, reasons = row
        cells = "".join(f"{share:10.3%}" for share in shares)
        print(f"{name:32}{total:8}{cells}  {reasons}")
        for line in lines:
            print(f"    {line[:120]}")


def main() -> None:
    """Print the table."""
    config = settings.from_flags(FidelityConfig)
    recovery(config, build_tokenizer(settings.from_flags(TokenizerConfig)))


if __name__ == "__main__":
    settings.define_flags(FidelityConfig, TokenizerConfig)
    settings.run(main)
