"""The demo's corpus and its task, made of docstrings; nothing is downloaded.

The corpus is the English prose of the installed Python packages. The task
asks which library a passage comes from, with the names of the libraries
masked. Both depend only on the installed versions and the generator.
"""

import dataclasses
import gc
import importlib.util
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from albert_tf.base import files, settings
from albert_tf.base.errors import InputError
from albert_tf.base.settings import setting, validate
from albert_tf.demo.docstrings import Document, documents

CORPUS_FILE = "corpus.txt"
TASK_DIR = "task"
STATISTICS_FILE = "statistics.json"

STANDARD_LIBRARY = "python"

# In this order: a sentence belongs to the first package that has it. Those
# that are not installed are left out.
PACKAGES = (
    STANDARD_LIBRARY,
    *"numpy scipy sklearn matplotlib mpl_toolkits keras tensorflow".split(),
    *"tensorflow_text tensorboard absl joblib narwhals fontTools PIL".split(),
    *"h5py grpc werkzeug markdown requests urllib3 rich pygments".split(),
    *"markdown_it optree opt_einsum wrapt tqdm pyparsing dateutil".split(),
    *"contourpy packaging setuptools pkg_resources pip".split(),
)

SKIPPED_FOLDERS = frozenset(
    """__pycache__ site-packages dist-packages test tests idle_test _vendor
    _api lib2to3 turtledemo""".split()
)

# Labels of the task and the packages whose documents carry them.
LABELS = {
    "python": (STANDARD_LIBRARY,),
    "numpy_scipy": ("numpy", "scipy"),
    "tensorflow": ("tensorflow",),
    "keras": ("keras",),
}

# TensorFlow's old copies of Keras carry neither label.
UNLABELLED = ("tensorflow/python/keras/", "tensorflow/python/layers/")


# --- The corpus -------------------------------------------------------------


def package_folder(package: str) -> str | None:
    """Return where a package is installed, or None; nothing is imported."""
    if package == STANDARD_LIBRARY:
        return sysconfig.get_paths()["stdlib"]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return list(spec.submodule_search_locations)[0]


def python_files(folder: str) -> Iterator[str]:
    """Yield the Python files of a folder in a fixed order, tests left out."""
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in sorted(names):
            if name.endswith(".py"):
                yield os.path.join(directory, name)


def package_documents(package: str) -> Iterator[Document]:
    """Yield the documents of one package, named `package/file.py:Class`."""
    folder = package_folder(package)
    for path in python_files(folder) if folder else ():
        name = os.path.relpath(path, folder).replace(os.sep, "/")
        with open(path, "rb") as file:
            yield from documents(f"{package}/{name}", file.read())


def letters(text: str) -> str:
    """Return the text's words alone: what two copies have in common."""
    return " ".join(re.findall("[a-z]+", text.lower()))


def without_repeats(found: Iterable[Document]) -> Iterator[Document]:
    """Yield documents with every sentence kept at its first place only.

    Two sentences are the same if their letters are. A document of which a
    single sentence is left says too little and is left out.
    """
    seen: set[str] = set()
    for document in found:
        kept = []
        for sentence in document.sentences:
            key = letters(sentence)
            if key not in seen:
                seen.add(key)
                kept.append(sentence)
        if len(kept) > 1:
            yield dataclasses.replace(document, sentences=tuple(kept))


def corpus() -> list[Document]:
    """Return the documents of all installed `PACKAGES`, free of repeats."""
    # Syntax trees are millions of objects without cycles: the collector would
    # look for some, in TensorFlow's own objects too, at thrice the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        found = (d for p in PACKAGES for d in package_documents(p))
        return list(without_repeats(found))
    finally:
        if collecting:
            gc.enable()


def corpus_text(found: Iterable[Document]) -> str:
    """Return one sentence per line, an empty line between documents."""
    return "\n\n".join("\n".join(d.sentences) for d in found) + "\n"


# --- The task ---------------------------------------------------------------

# Most examples of every label; documents fill the splits in this order.
ROOM = {"test": 375, "dev": 250, "train": 2000}
# What is kept of those to train on, from as many documents as there are: few
# labels are when pretraining counts.
TRAINING_EXAMPLES = 1000

MAX_SENTENCES = 3
MAX_WORDS = 60
MIN_WORDS = 8
# A document of more passages than this would be a held-out set by itself.
MAX_HELD_OUT_PASSAGES = 40

# A word with a library's name in it becomes "library", whole: `tf.nn.relu`,
# `NumPy's`, `keras-team`. A word with the name of its kind of array becomes
# "array". Words that are only typical (layer, graph, iterator) stay: to know
# them is the task.
MASKS: tuple[tuple[re.Pattern, str], ...] = (
    (
        re.compile(
            r"(?:[\w-]+\.)*[\w-]*(?:numpy|scipy|tensor_?flow|tensorboard|keras"
            r"|python|sklearn|scikit|matplotlib|pandas|theano|torch|jax|autograph)"
            r"[\w-]*(?:\.\w+)*",
            re.IGNORECASE,
        ),
        "library",
    ),
    (re.compile(r"\b(?:np|tf|tfl|tff|sp|jnp|K)\.\w+(?:\.\w+)*"), "library"),
    (re.compile(r"\b(?:np|tf|tf2|tflite)\b", re.IGNORECASE), "library"),
    (re.compile(r"\w*(?:tensor|ndarray|array_like)\w*", re.I), "array"),
)


@dataclasses.dataclass(frozen=True)
class Example:
    """A passage of a document, masked, and the library it comes from."""

    text: str
    label: str
    document: str


def mask_libraries(text: str) -> str:
    """Return the text with the words of `MASKS` replaced."""
    for pattern, neutral in MASKS:
        text = pattern.sub(neutral, text)
    return text


def label_of(document: Document) -> str | None:
    """Return the label that a document carries, None if it carries none."""
    package = document.name.split("/")[0]
    if document.name.startswith(UNLABELLED):
        return None
    return next((k for k, of in LABELS.items() if package in of), None)


def passages(document: Document) -> list[str]:
    """Cut a document into masked passages of 1 to `MAX_SENTENCES` sentences."""
    found, left = [], list(document.sentences)
    while left:
        size = MAX_SENTENCES
        while size > 1 and len(" ".join(left[:size]).split()) > MAX_WORDS:
            size -= 1
        text = mask_libraries(" ".join(left[:size]))
        if MIN_WORDS <= len(text.split()) <= MAX_WORDS:
            found.append(text)
        left = left[size:]
    return found


def deal(
    found: list[Document], label: str, rng: np.random.Generator
) -> dict[str, list[Example]]:
    """Deal one label's documents, in random order, to test, dev and train.

    A document gives examples to one split only.
    """
    dealt: dict[str, list[Example]] = {split: [] for split in ROOM}
    for i in rng.permutation(len(found)):
        name = found[i].name
        examples = [Example(text, label, name) for text in passages(found[i])]
        large = len(examples) > MAX_HELD_OUT_PASSAGES
        for split in ["train"] if large else ROOM:
            room = ROOM[split] - len(dealt[split])
            if room:
                dealt[split] += examples[:room]
                break
    return dealt


def task(
    found: list[Document], rng: np.random.Generator
) -> dict[str, list[Example]]:
    """Return the examples of test, dev and train, each in random order.

    Every text is there once, in the first split that has it.
    """
    splits: dict[str, list[Example]] = {split: [] for split in ROOM}
    for label in LABELS:
        labelled = [d for d in found if label_of(d) == label]
        dealt = deal(labelled, label, rng)
        for split, examples in dealt.items():
            splits[split] += examples
    seen: set[str] = set()
    for split, examples in splits.items():
        rng.shuffle(examples)
        once = {letters(e.text): e for e in reversed(examples)}
        splits[split] = [e for key, e in once.items() if key not in seen]
        seen.update(once)
    splits["train"] = splits["train"][:TRAINING_EXAMPLES]
    return splits


def tsv(examples: Iterable[Example]) -> str:
    """Return the task's file of a split: `sentence` and `label`."""
    rows = [f"{e.text}\t{e.label}\n" for e in examples]
    return "sentence\tlabel\n" + "".join(rows)


# --- Both -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DemoCorpusConfig:
    """Where the corpus and the task go, and the seed of the task's split."""

    output_dir: str = setting("", "Folder to be written.", required=True)
    seed: int = setting(0, "Seed of the split into documents.", minimum=0)

    def __post_init__(self):
        validate(self)


def count(found: Iterable[Document]) -> dict[str, dict[str, int]]:
    """Return the documents, sentences and words of every package."""
    counts: dict[str, dict[str, int]] = {}
    for document in found:
        row = counts.setdefault(
            document.name.split("/")[0],
            {"documents": 0, "sentences": 0, "words": 0},
        )
        row["documents"] += 1
        row["sentences"] += len(document.sentences)
        row["words"] += sum(len(s.split()) for s in document.sentences)
    return counts


def statistics(
    found: list[Document], splits: dict[str, list[Example]]
) -> dict[str, Any]:
    """Return the counts that `statistics.json` holds."""
    packages = count(found)
    return {
        "words": sum(row["words"] for row in packages.values()),
        "packages": packages,
        "task": {
            split: dict(sorted(Counter(e.label for e in examples).items()))
            for split, examples in splits.items()
        },
    }


def write_corpus(output_dir: str, rng: np.random.Generator) -> dict[str, Any]:
    """Write the corpus and the task; return and write their statistics.

    The task's test documents are not in the corpus: pretraining has not
    seen them either. `statistics.json` is written last.
    """
    everything = corpus()
    splits = task(everything, rng)
    missing = [
        k for k in LABELS if not any(e.label == k for e in splits["train"])
    ]
    if missing:
        raise InputError(
            "The demo needs the docstrings of the installed packages. "
            f"Received: no text of {', '.join(missing)}"
        )
    held_out = {e.document for e in splits["test"]}
    found = [d for d in everything if d.name not in held_out]
    for split, examples in splits.items():
        files.write_text(
            files.join(output_dir, TASK_DIR, f"{split}.tsv"), tsv(examples)
        )
    files.write_text(files.join(output_dir, CORPUS_FILE), corpus_text(found))
    counts = statistics(found, splits)
    files.write_json(files.join(output_dir, STATISTICS_FILE), counts)
    return counts


def main() -> None:
    """Write the corpus and the task and say how large they are."""
    config = settings.from_flags(DemoCorpusConfig)
    rng = np.random.default_rng(config.seed)
    counts = write_corpus(config.output_dir, rng)
    for package, row in counts["packages"].items():
        print(package, ", ".join(f"{n} {what}" for what, n in row.items()))
    print(f"{config.output_dir}: {counts['words']} words")
    for split, labels in counts["task"].items():
        print(f"{split}: {sum(labels.values())} examples, {labels}")


def cli() -> None:
    """Run as a console script."""
    settings.define_flags(DemoCorpusConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
