"""Texts and task files in a synthetic language, identical on every machine.

The words of a document share a topic, and each sentence begins with its number
in the document, so 100 steps suffice to learn masked words and sentence order.
Labels, tags and answers depend on topics.
"""

import json
from pathlib import Path

import numpy as np

TOPICS, WORDS, SENTENCES = 6, 8, 24
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (
    *SPECIAL,
    ".",
    *(f"w{i}" for i in range(TOPICS * WORDS)),
    *(f"n{i}" for i in range(SENTENCES)),
)


def words(rng: np.random.Generator, topic: int, number: int) -> list[str]:
    """Draw `number` words about a topic."""
    drawn = topic * WORDS + rng.integers(WORDS, size=number)
    return [f"w{word}" for word in drawn]


def document(rng: np.random.Generator) -> str:
    """Draw a document with one sentence per line."""
    topic, lines = int(rng.integers(TOPICS)), []
    for number in range(rng.integers(6, SENTENCES)):
        sentence = words(rng, topic, int(rng.integers(3, 9)))
        lines.append(" ".join([f"n{number}", *sentence, ".\n"]))
    return "".join(lines)


def write_text(folder: Path, documents: int = 200) -> Path:
    """Write `text.txt` and `vocab.txt`; return the path of the text."""
    rng = np.random.default_rng(0)
    drawn = [document(rng) for _ in range(documents)]
    (folder / "text.txt").write_text("\n".join(drawn))
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return folder / "text.txt"


class Rows:
    """A source of task examples whose labels depend on their texts' topics.

    Args:
      seed: the seed of all draws.
    """

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def topic(self) -> int:
        """Draw one of the topics."""
        return int(self.rng.integers(TOPICS))

    def text(self, topic: int) -> str:
        """Draw a text of 4 to 11 words about a topic."""
        number = int(self.rng.integers(4, 12))
        return " ".join(words(self.rng, topic, number))

    def classification(self) -> dict:
        """Draw a pair of texts, and whether they share a topic."""
        first, other = self.topic(), self.topic()
        same = bool(self.rng.integers(2))
        second = self.text(first if same else other)
        label = "same" if same or first == other else "other"
        return {
            "text": self.text(first),
            "text_pair": second,
            "label": label,
        }

    def multilabel(self) -> dict:
        """Draw a text about one or two topics, and the names of the topics."""
        topics = [self.topic(), self.topic()]
        text = " ".join(map(self.text, topics))
        names = sorted({f"topic{topic}" for topic in topics})
        return {"text": text, "label": names}

    def regression(self) -> dict:
        """Draw a text, and a number that depends on the topic of the text."""
        topic = self.topic()
        return {"text": self.text(topic), "label": topic / TOPICS}

    def multiple_choice(self) -> dict:
        """Draw a context and three texts, one with the topic of the context."""
        topics = self.rng.permutation(TOPICS)[:3].tolist()
        right = int(self.rng.integers(3))
        return {
            "context": self.text(topics[right]),
            "question": "n1",
            "choices": [self.text(topic) for topic in topics],
            "label": right,
        }

    def tagged(self) -> list[tuple[str, str]]:
        """Draw words with BIO tags: runs of topic 0 are entities."""
        rows = []
        for topic in self.rng.integers(0, 3, 3).tolist():
            for i, word in enumerate(words(self.rng, topic, 3)):
                begins = "B" if i == 0 else "I"
                rows.append((word, "O" if topic else f"{begins}-THING"))
        return rows

    def question(self, number: int, impossible: bool) -> dict:
        """Draw a paragraph, and a question about words of topic 0 in it."""
        parts = [self.text(1 + int(x)) for x in self.rng.integers(0, 4, 2)]
        answers, context = [], " ".join(parts)
        if not impossible or self.rng.random() < 0.6:
            answer = " ".join(words(self.rng, 0, 2))
            answers = [{"text": answer, "answer_start": len(parts[0]) + 1}]
            context = " ".join([parts[0], answer, parts[1]])
        question = {
            "id": f"q{number}",
            "question": "n0 w0",
            "answers": answers,
            "is_impossible": not answers,
        }
        return {"context": context, "qas": [question]}

    def embedding(self) -> dict:
        """Draw two texts on the same topic, and one on a different topic."""
        topic = self.topic()
        return {
            "text": self.text(topic),
            "text_pair": self.text(topic),
            "negative": self.text((topic + 1) % TOPICS),
        }


def write_task(path: Path, kind: str, number: int, seed: int) -> str:
    """Write examples of a kind of task; return the path with its extension."""
    rows = Rows(seed)
    if kind == "token_classification":
        path = path.with_suffix(".conll")
        sentences = [rows.tagged() for _ in range(number)]
        blocks = ["".join(f"{w} {t}\n" for w, t in s) for s in sentences]
        path.write_text("\n".join(blocks))
    elif kind in ("question_answering", "squad-2.0"):
        path = path.with_suffix(".json")
        impossible = kind == "squad-2.0"
        paragraphs = [rows.question(i, impossible) for i in range(number)]
        path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    else:
        path = path.with_suffix(".jsonl")
        drawn = [getattr(rows, kind)() for _ in range(number)]
        path.write_text("".join(json.dumps(row) + "\n" for row in drawn))
    return str(path)
