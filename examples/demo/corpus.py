"""Create the demo's corpus and task from docstrings, without a download.

The corpus is the English prose in the installed Python packages. The task is to
identify the library of a passage in which the names of libraries are masked.
The corpus and the task depend only on the installed versions and on the seed of
the random generator.
"""

import importlib.util
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from docstrings import Document, documents

from albert_tf.base import files
from albert_tf.base.errors import require

CORPUS_FILE = "corpus.txt"
TASK_DIR = "task"
STATISTICS_FILE = "statistics.json"

# The order matters: a sentence belongs to the first package that contains it.
# Packages that are not installed are skipped.
PACKAGES = """python numpy scipy sklearn matplotlib mpl_toolkits keras
    tensorflow tensorflow_text tensorboard absl joblib narwhals fontTools PIL
    h5py grpc werkzeug markdown requests urllib3 rich pygments markdown_it
    optree opt_einsum wrapt tqdm pyparsing dateutil contourpy packaging
    setuptools pkg_resources pip""".split()
SKIPPED_FOLDERS = frozenset(
    """__pycache__ site-packages dist-packages test tests idle_test _vendor
    _api lib2to3 turtledemo""".split()
)

# {label of the task: packages whose documents have that label}
LABELS = {
    "python": ("python",),
    "numpy_scipy": ("numpy", "scipy"),
    "tensorflow": ("tensorflow",),
    "keras": ("keras",),
}
# TensorFlow's old copies of Keras have no label.
UNLABELLED = ("tensorflow/python/keras/", "tensorflow/python/layers/")

# {split: maximum number of examples per label}; documents fill the splits in
# this order.
ROOM = {"test": 375, "dev": 250, "train": 2000}
# Number of training examples to keep, drawn from all training documents.
# Pretraining helps most if there are few labeled examples.
TRAINING_EXAMPLES = 1000
MAX_SENTENCES, MIN_WORDS, MAX_WORDS = 3, 8, 60  # of a passage
# A document with more passages would fill a held-out split by itself.
MAX_HELD_OUT_PASSAGES = 40

# A word that contains a library's name becomes "library": `tf.nn.relu`,
# `NumPy's`, `keras-team`. A word that contains the name of the library's array
# type becomes "array". Words that are only typical of a library (layer, graph,
# iterator) are kept; the task is to recognize them.
LIBRARY = re.compile(
    r"(?:[\w-]+\.)*[\w-]*(?:numpy|scipy|tensor_?flow|tensorboard|keras|python"
    r"|sklearn|scikit|matplotlib|pandas|theano|torch|jax|autograph)"
    r"[\w-]*(?:\.\w+)*|\b(?:np|tf|tfl|tff|sp|jnp|k)\.\w+(?:\.\w+)*"
    r"|\b(?:np|tf|tf2|tflite)\b",
    re.IGNORECASE,
)
ARRAY = re.compile(r"\w*(?:tensor|ndarray|array_like)\w*", re.IGNORECASE)


def package_folder(package: str) -> str | None:
    """Return a package's folder, or None; do not import the package."""
    if package == "python":
        return sysconfig.get_paths()["stdlib"]
    spec = importlib.util.find_spec(package)
    return next(iter(spec and spec.submodule_search_locations or ()), None)


def package_documents(package: str) -> Iterator[Document]:
    """Yield the documents of a package in a fixed order.

    Files in `SKIPPED_FOLDERS`, such as tests, are omitted.
    """
    root = package_folder(package)
    for folder, folders, names in os.walk(root) if root else ():
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in sorted(name for name in names if name.endswith(".py")):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, root).replace(os.sep, "/")
            yield from documents(
                f"{package}/{relative}", files.read_bytes(path)
            )


def letters(text: str) -> str:
    """Return a text's words in lower case, as a key to find copies."""
    return " ".join(re.findall("[a-z]+", text.lower()))


def without_repeats(everything: Iterable[Document]) -> Iterator[Document]:
    """Yield documents without sentences that occurred before.

    Two sentences are equal if their `letters` are equal. A document with
    fewer than two remaining sentences is dropped.
    """
    seen: set[str] = set()
    for document in everything:
        new = {letters(s): s for s in reversed(document.sentences)}
        remaining = tuple(s for k, s in reversed(new.items()) if k not in seen)
        seen.update(new)
        if len(remaining) > 1:
            yield Document(document.name, remaining)


def corpus() -> list[Document]:
    """Return the documents of installed `PACKAGES`, without repetitions."""
    everything = (d for name in PACKAGES for d in package_documents(name))
    return list(without_repeats(everything))


class Example(NamedTuple):
    """A masked passage, its label and the name of its document.

    The label is a key of `LABELS`, which identifies a library.
    """

    text: str
    label: str
    document: str


def mask_libraries(text: str) -> str:
    """Replace the names of libraries and of array types with placeholders.

    The placeholders are `library` and `array`.
    """
    return ARRAY.sub("array", LIBRARY.sub("library", text))


def label_of(document: Document) -> str | None:
    """Return the label of a document, or None if it has no label."""
    package = document.name.split("/")[0]
    if document.name.startswith(UNLABELLED):
        return None
    return next((k for k, of in LABELS.items() if package in of), None)


def passages(document: Document) -> list[str]:
    """Cut a document into masked passages of 1 to `MAX_SENTENCES` sentences.

    Passages with too few or too many words are dropped.
    """
    cut, left = [], list(document.sentences)
    while left:
        size = MAX_SENTENCES
        while size > 1 and len(" ".join(left[:size]).split()) > MAX_WORDS:
            size -= 1
        cut.append(mask_libraries(" ".join(left[:size])))
        left = left[size:]
    return [x for x in cut if MIN_WORDS <= len(x.split()) <= MAX_WORDS]


def task(
    everything: list[Document], rng: np.random.Generator
) -> dict[str, list[Example]]:
    """Return the examples of each split (test, dev, train), in random order.

    Each text occurs once, and all texts of a document are in one split.
    """
    splits: dict[str, list[Example]] = {split: [] for split in ROOM}
    seen: set[str] = set()
    for label in LABELS:
        room = dict(ROOM)
        labeled = [d for d in everything if label_of(d) == label]
        for i in rng.permutation(len(labeled)):
            if not any(room.values()):
                break
            texts = {letters(text): text for text in passages(labeled[i])}
            new = [text for key, text in texts.items() if key not in seen]
            open_splits = [s for s in ROOM if room[s]]
            split = open_splits[0] if open_splits else "train"
            if len(new) > MAX_HELD_OUT_PASSAGES:
                split = "train"
            selected = new[: room[split]]
            room[split] -= len(selected)
            seen.update(map(letters, selected))
            name = labeled[i].name
            splits[split] += [Example(text, label, name) for text in selected]
    for examples in splits.values():
        rng.shuffle(examples)
    splits["train"] = splits["train"][:TRAINING_EXAMPLES]
    return splits


def write_corpus(output_dir: str, rng: np.random.Generator) -> dict[str, Any]:
    """Write the corpus, the task and their statistics; return the statistics.

    The corpus does not include the task's test documents, so pretraining does
    not see them. `statistics.json` is written last, so it exists only if all
    files are complete.
    """
    everything = corpus()
    splits = task(everything, rng)
    missing = set(LABELS) - {example.label for example in splits["train"]}
    rule = "The demo needs the docstrings of the installed packages."
    require(not missing, rule, missing=", ".join(sorted(missing)))
    held_out = {example.document for example in splits["test"]}
    words: Counter = Counter()
    texts = []
    for document in everything:
        if document.name not in held_out:
            texts.append("\n".join(document.sentences) + "\n")
            words[document.name.split("/")[0]] += len(texts[-1].split())
    files.write_text(files.join(output_dir, CORPUS_FILE), "\n".join(texts))
    for split, examples in splits.items():
        rows = [f"{example.text}\t{example.label}\n" for example in examples]
        path = files.join(output_dir, TASK_DIR, f"{split}.tsv")
        files.write_text(path, "sentence\tlabel\n" + "".join(rows))
    statistics = {
        "words": words.total(),
        "packages": dict(words),
        "task": {
            split: dict(sorted(Counter(e.label for e in examples).items()))
            for split, examples in splits.items()
        },
    }
    files.write_json(files.join(output_dir, STATISTICS_FILE), statistics)
    return statistics
