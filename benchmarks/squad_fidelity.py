"""How exactly answers are recovered and scored.

    python benchmarks/squad_fidelity.py --files=F.json,G.json \\
        --spm_model_file=30k-clean.model
    python benchmarks/squad_fidelity.py --files=cmrc2018_dev.json \\
        --vocab_file=vocab.txt --cmrc

For each file in the format of SQuAD the first table has the share of answers
whose text comes back exactly from the rows that a model reads, and lists why
the others do not. `cut` are answers that begin or end inside a piece of the
vocabulary, off a sign, a number or a word, as "73 million" in "$73 million"
and "Japan" in "Japanese": the characters on both sides of the place stand in
one piece, so no span of tokens is the answer, and whoever has these tokens
cannot do better. `possible` is the share among all other answers. `equal`
counts those for which the official comparison sees no difference, `questions`
those questions of which an answer comes back exactly. The second table has
the largest difference of
scores on altered predictions from other implementations, those of
transformers (below 5; SQuAD 2.0) and torchmetrics (SQuAD 1.1) where they are
installed, or from an official script: --official_script names one that has
`calc_f1_score` and `calc_em_score` (CMRC), or `get_raw_scores` (SQuAD 2.0).
"""

import collections
import dataclasses
import importlib.util
import json

import numpy as np

from albert_tf import settings
from albert_tf.errors import InputError
from albert_tf.settings import setting, validate
from albert_tf.tasks import answer_metrics
from albert_tf.tokenization import TokenizerConfig, build_tokenizer

EXACT, CUT, ABSENT = "exact", "cut", "not in the context"


@dataclasses.dataclass(frozen=True)
class FidelityConfig:
    """What is measured."""

    files: tuple = setting((), "Files in the format of SQuAD.")
    cmrc: bool = setting(False, "Score as CMRC 2018, not as SQuAD.")
    altered: int = setting(2000, "Altered predictions to score.", minimum=1)
    show: int = setting(5, "Answers to show of each reason.", minimum=0)
    official_script: str | None = setting(
        None, "A script of an official evaluation, to compare scores with."
    )

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


# Answers from rows.


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
    from albert_tf.tasks.base import TaskConfig
    from albert_tf.tasks.registry import find

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


# Scores of altered predictions.


def alter(text: str, other: str, rng: np.random.Generator) -> str:
    """Return an answer changed in one of the ways in which models err."""
    words = text.split() or [""]
    middle = int(rng.integers(len(text) + 1))
    changes = [
        text,
        "",
        other,
        text.upper(),
        f"The {text}.",
        f"{text}  ,  an {other}",
        " ".join(words[1:]),
        " ".join(words[::-1]),
        text[:middle],
        text[middle:],
        f"{words[0]}-{words[-1]}",
        f"“{text}”（{other}）",
        text.replace(" ", "_"),
        f"{text} {text}",
    ]
    return changes[rng.integers(len(changes))]


def altered_predictions(config: FidelityConfig):
    """Return questions, altered predictions and null odds, by a seed."""
    rng = np.random.default_rng(0)
    every = [qa for path in config.files for _, qa in questions(path)]
    chosen = [every[i] for i in rng.integers(len(every), size=config.altered)]
    found = []
    for qa in chosen:
        texts = [a["text"] for a in qa["answers"]] or ["none of it"]
        others = every[rng.integers(len(every))]["answers"]
        other = others[0]["text"] if others else ""
        found.append(alter(texts[rng.integers(len(texts))], other, rng))
    # With ties, as real scores rarely have.
    odds = np.round(rng.normal(size=len(found)), 2).tolist()
    return [[a["text"] for a in qa["answers"]] for qa in chosen], found, odds


def load_script(path: str):
    """Return a Python file as a module."""
    spec = importlib.util.spec_from_file_location("official", path)
    if spec is None:
        raise InputError(
            f"`official_script` must be a Python file. Received: {path}"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question as the functions of transformers want it."""

    qas_id: str
    answers: list[dict]


def transformers_squad2(answers, predictions, odds) -> dict[str, float]:
    """Return SQuAD 2.0's scores of transformers, 0 to 1."""
    from transformers.data.metrics import squad_metrics

    examples = [
        Asked(str(i), [{"text": text} for text in texts])
        for i, texts in enumerate(answers)
    ]
    named = {str(i): text for i, text in enumerate(predictions)}
    found = squad_metrics.squad_evaluate(
        examples, named, {str(i): x for i, x in enumerate(odds)}, 0.3
    )
    return {
        name: value if name.endswith("thresh") else value / 100
        for name, value in found.items()
        if not name.endswith("total")
    }


def torchmetrics_squad1(answers, predictions, odds) -> dict[str, float]:
    """Return SQuAD 1.1's scores of torchmetrics, 0 to 1."""
    from torchmetrics.functional.text import squad

    found = squad(
        [
            {"id": str(i), "prediction_text": text}
            for i, text in enumerate(predictions)
        ],
        [
            {
                "id": str(i),
                "answers": {"text": list(x), "answer_start": [0] * len(x)},
            }
            for i, x in enumerate(answers)
        ],
    )
    return {name: float(value) / 100 for name, value in found.items()}


def official(module, answers, predictions, odds) -> dict[str, float]:
    """Return the scores of an official script, 0 to 1."""
    if hasattr(module, "calc_f1_score"):
        pairs = list(zip(answers, predictions, strict=True))
        f1 = [module.calc_f1_score(list(x), p) for x, p in pairs]
        em = [module.calc_em_score(list(x), p) for x, p in pairs]
        return {"f1": float(np.mean(f1)), "exact_match": float(np.mean(em))}
    qas = [
        {"id": str(i), "answers": [{"text": text} for text in texts]}
        for i, texts in enumerate(answers)
    ]
    dataset = [{"paragraphs": [{"qas": qas}]}]
    named = {str(i): text for i, text in enumerate(predictions)}
    odds = {str(i): x for i, x in enumerate(odds)}
    exact, f1 = module.get_raw_scores(dataset, named)
    answered = module.make_qid_to_has_ans(dataset)
    values: dict[str, float] = {}
    module.find_all_best_thresh(values, named, exact, f1, odds, answered)
    return {
        name: value if name.endswith("thresh") else value / 100
        for name, value in values.items()
    }


def compare(name: str, own: dict, other: dict) -> None:
    """Print the largest difference between the scores that both have."""
    common = sorted(own.keys() & other.keys())
    largest = max(abs(own[key] - other[key]) for key in common)
    print(f"{name:34} {largest:10.2e}  {', '.join(common)}")


def scoring(config: FidelityConfig) -> None:
    """Print differences from every implementation that can be had."""
    answers, predictions, odds = altered_predictions(config)
    print(f"\n{len(predictions)} altered predictions; largest difference")
    have = [(a, p) for a, p in zip(answers, predictions, strict=True) if a]
    answered, texts = zip(*have, strict=True)
    peers = {}
    if config.official_script:
        module = load_script(config.official_script)
        peers[config.official_script.rsplit("/", 1)[-1]] = (
            lambda *given: official(module, *given),
            config.cmrc,
        )
    if not config.cmrc:
        peers["transformers, SQuAD 2.0"] = transformers_squad2, False
        peers["torchmetrics, SQuAD 1.1"] = torchmetrics_squad1, True
    for name, (peer, only_answered) in peers.items():
        given = (answers, predictions, odds)
        if only_answered:
            given = (answered, texts, odds)
        try:
            other = peer(*given)
        except ImportError as error:
            print(f"{name:34} not installed: {error}")
            continue
        if not only_answered:
            own = answer_metrics.squad2(*given, 0.3)
        elif config.cmrc:
            own = answer_metrics.cmrc(*given[:2])
        else:
            own = answer_metrics.squad1(*given[:2])
        compare(name, own, other)


def main() -> None:
    """Print both tables; the first needs a tokenizer."""
    config = settings.from_flags(FidelityConfig)
    vocabulary = settings.from_flags(TokenizerConfig)
    if vocabulary.spm_model_file or vocabulary.vocab_file:
        recovery(config, build_tokenizer(vocabulary))
    scoring(config)


if __name__ == "__main__":
    settings.define_flags(FidelityConfig, TokenizerConfig)
    settings.run(main)
