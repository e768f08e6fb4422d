"""How the scores of answers differ from other implementations'.

    python benchmarks/squad_scores.py --files=F.json,G.json
    python benchmarks/squad_scores.py --files=cmrc2018_dev.json --cmrc \\
        --official_script=cmrc2018_evaluate.py

The table has the largest difference of scores on altered predictions from
transformers (below 5; SQuAD 2.0) and torchmetrics (SQuAD 1.1) where they are
installed, or from an official script: --official_script names one that has
`calc_f1_score` and `calc_em_score` (CMRC), or `get_raw_scores` (SQuAD 2.0).
"""

import dataclasses
import importlib.util

import numpy as np
from squad_fidelity import questions

from albert_tf.base import settings
from albert_tf.base.errors import InputError
from albert_tf.base.settings import setting, validate
from albert_tf.tasks import answer_metrics


@dataclasses.dataclass(frozen=True)
class ScoresConfig:
    """What is compared."""

    files: tuple = setting((), "Files in the format of SQuAD.")
    cmrc: bool = setting(False, "Score as CMRC 2018, not as SQuAD.")
    altered: int = setting(2000, "Altered predictions to score.", minimum=1)
    official_script: str | None = setting(
        None, "A script of an official evaluation, to compare scores with."
    )

    def __post_init__(self):
        validate(self)
        if not self.files:
            raise InputError("`files` must be given. Received: none")


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


def altered_predictions(config: ScoresConfig):
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


def scoring(config: ScoresConfig) -> None:
    """Print differences from every implementation that can be had."""
    answers, predictions, odds = altered_predictions(config)
    print(f"{len(predictions)} altered predictions; largest difference")
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
    """Print the table."""
    scoring(settings.from_flags(ScoresConfig))


if __name__ == "__main__":
    settings.define_flags(ScoresConfig)
    settings.run(main)
