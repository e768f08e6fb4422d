"""The demo's corpus and task have no repeats, leaks or library names."""

import json
import re

import corpus
import numpy as np
import pytest
from corpus import Document

from albert_tf.base.errors import InputError

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def words(number: int, length: int = 5) -> str:
    """Return a unique word for an integer."""
    return "".join(LETTERS[number // 26**i % 26] for i in range(length))


def library(package: str, size: int, first: int) -> list[Document]:
    """Return `size` documents, each with six different ten-word sentences."""
    found = []
    for i in range(size):
        numbers = [first + 6 * i + j for j in range(6)]
        sentences = tuple(f"The {words(n)}" + " is it" * 4 for n in numbers)
        found.append(Document(f"{package}/{i}.py", sentences))
    return found


@pytest.fixture
def four_libraries(monkeypatch) -> list[Document]:
    """Return 320 documents per package.

    The task is a fifth of its usual size.
    """
    room = {split: size // 5 for split, size in corpus.ROOM.items()}
    monkeypatch.setattr(corpus, "ROOM", room)
    monkeypatch.setattr(corpus, "TRAINING_EXAMPLES", 200)
    names = ("python", "scipy", "tensorflow", "keras")
    return [
        document
        for k, name in enumerate(names)
        for document in library(name, 320, k * 2000)
    ]


def test_a_sentence_is_kept_once():
    """Of sentences with the same words, only the first is kept.

    Case, digits and punctuation are ignored. Documents that then have a single
    sentence are removed.
    """
    first = Document("a", ("Layer 1 is here.", "It is red.", "It is new."))
    again = Document("b", ("Layer 2 is here.", "IT IS RED!", "It is old."))
    third = Document("c", ("One more thing.", "It is odd.", "It is odd."))
    documents = corpus.without_repeats([first, again, third])
    assert [*documents] == [first, Document("c", third.sentences[:2])]


def test_packages_are_read_without_import(tmp_path, monkeypatch):
    """The files of a package, except tests, are read in order.

    The package is not imported. A missing package has no files.
    """
    package = tmp_path / "some_library"
    for name in ("b.py", "a.py", "tests/c.py", "sub/d.py", "data.txt"):
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""The text of the file."""\nimport nothing_such\n')
    (package / "__init__.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = [d.name for d in corpus.package_documents("some_library")]
    assert names == [f"some_library/{n}" for n in ("a.py", "b.py", "sub/d.py")]
    assert list(corpus.package_documents("no_such_library")) == []


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("See tf.nn.relu, or `np.max`.", "See library, or `library`."),
        ("NumPy's TF-ops in TensorFlow.", "library's library-ops in library."),
        ("A KerasTensor of keras-team.", "A library of library."),
        ("Two Tensors, an ndarray.", "Two array, an array."),
        ("A layer of the graph.", "A layer of the graph."),
        ("Python 3.13 or CPython.", "library 3.13 or library."),
        ("The output of the input.", "The output of the input."),
    ],
)
def test_names_of_libraries_are_masked(text, masked):
    """A neutral word replaces each name of a library or of an array type."""
    assert corpus.mask_libraries(text) == masked


def test_old_copies_of_keras_have_no_label():
    """Files of other packages, and of Keras in TensorFlow, have no label."""
    names = {
        "tensorflow/python/keras/layers.py": None,
        "tensorflow/python/ops/nn.py": "tensorflow",
        "keras/src/layers.py": "keras",
        "numpy/lib.py": "numpy_scipy",
        "scipy/stats.py:T": "numpy_scipy",
        "python/abc.py": "python",
        "absl/flags.py": None,
    }
    labels = {n: corpus.label_of(Document(n, ())) for n in names}
    assert labels == names


def test_passages_are_whole_sentences_within_the_limit():
    """Passages have one to three whole sentences and 8 to 60 words."""
    ten, forty, seventy, five = (" ".join(["a"] * n) for n in (10, 40, 70, 5))
    sentences = (ten, ten, ten, ten, forty, forty, seventy, five)
    found = corpus.passages(Document("a", sentences))
    assert [len(text.split()) for text in found] == [30, 50, 40]
    [text] = corpus.passages(Document("a", (f"{ten} keras.",)))
    assert text == f"{ten} library."


def test_task_is_balanced_and_splits_documents(four_libraries):
    """Labels are equally frequent in test and dev, and nearly so in train.

    Splits share neither documents nor texts.
    """
    splits = corpus.task(four_libraries, np.random.default_rng(0))
    documents, texts = {}, {}
    for split, examples in splits.items():
        counts = np.unique([e.label for e in examples], return_counts=True)
        assert counts[0].tolist() == sorted(corpus.LABELS)
        if split == "train":
            assert counts[1].sum() == corpus.TRAINING_EXAMPLES
            assert counts[1].min() > 35 and counts[1].max() < 65
        else:
            assert set(counts[1]) == {corpus.ROOM[split]}
        documents[split] = {e.document for e in examples}
        texts[split] = {e.text for e in examples}
        assert len(texts[split]) == len(examples)
        files = [int(re.search(r"\d+", name)[0]) for name in documents[split]]
        assert min(files) < 40 and max(files) > 280  # from all files
    for one, other in (("test", "dev"), ("test", "train"), ("dev", "train")):
        assert not documents[one] & documents[other]
        assert not texts[one] & texts[other]


def test_a_text_of_two_labels_is_there_once(four_libraries):
    """A text that occurs in two libraries is in the task only once."""
    twins = [
        Document(d.name.replace("scipy", "keras"), d.sentences)
        for d in four_libraries
        if d.name.startswith("scipy")
    ]
    splits = corpus.task(four_libraries + twins, np.random.default_rng(0))
    texts = [e.text for examples in splits.values() for e in examples]
    assert len(texts) == len(set(texts))


def test_task_depends_on_the_generator_alone(four_libraries):
    """With equal seeds, the task has equal examples in the same order."""
    one, same, other = (
        corpus.task(four_libraries, np.random.default_rng(seed))
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_written_files_agree(tmp_path, monkeypatch, four_libraries):
    """TSV, text and statistics agree; the text has no test documents."""
    monkeypatch.setattr(corpus, "corpus", lambda: four_libraries)
    counts = corpus.write_corpus(str(tmp_path), np.random.default_rng(0))
    assert json.loads((tmp_path / "statistics.json").read_text()) == counts
    text = (tmp_path / "corpus.txt").read_text()
    assert counts["words"] == len(text.split())
    assert sum(counts["packages"].values()) == counts["words"]
    blocks = [block.splitlines() for block in text.split("\n\n")]
    assert all(len(block) == 6 and all(block) for block in blocks)
    assert text.endswith("it\n")
    for split in ("train", "dev", "test"):
        lines = (tmp_path / "task" / f"{split}.tsv").read_text().splitlines()
        assert lines[0] == "sentence\tlabel"
        assert len(lines) - 1 == sum(counts["task"][split].values())
        assert all(line.count("\t") == 1 for line in lines)
        seen = [line.split(" is ")[0] + " is " in text for line in lines[1:]]
        assert not any(seen) if split == "test" else all(seen)


def test_a_machine_without_docstrings_is_told(tmp_path, monkeypatch):
    """A label without texts raises an error, and no file is written."""
    monkeypatch.setattr(corpus, "corpus", lambda: library("keras", 9, 0))
    with pytest.raises(InputError, match="numpy_scipy, python, tensorflow"):
        corpus.write_corpus(str(tmp_path), np.random.default_rng(0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_corpus_of_this_machine(tmp_path, monkeypatch):
    """The installed packages yield over a million words and a full task.

    No line repeats, and no text of the task names a library. Reading is
    deterministic; because it takes minutes, only one package is read twice.
    """
    everything = corpus.corpus()
    first, second = ([*corpus.package_documents("absl")] for _ in range(2))
    assert first and first == second
    monkeypatch.setattr(corpus, "corpus", lambda: everything)
    counts = corpus.write_corpus(str(tmp_path / "a"), np.random.default_rng(0))
    corpus.write_corpus(str(tmp_path / "b"), np.random.default_rng(0))
    names = ["corpus.txt", "statistics.json"]
    names += [f"task/{split}.tsv" for split in corpus.ROOM]
    for name in names:
        a, b = ((tmp_path / run / name).read_bytes() for run in "ab")
        assert a == b, name
    assert counts["words"] > 1_000_000
    assert set(counts["task"]["test"].values()) == {corpus.ROOM["test"]}
    lines = (tmp_path / "a" / "corpus.txt").read_text().splitlines()
    lines = [line.lower() for line in lines if line]
    assert len(set(lines)) == len(lines)
    task = (tmp_path / "a" / "task" / "train.tsv").read_text().splitlines()
    named = re.compile(r"numpy|scipy|tensor|keras|python|\btf\b|\bnp\b", re.I)
    texts = [line.split("\t")[0] for line in task]
    assert [text for text in texts if named.search(text)] == []
