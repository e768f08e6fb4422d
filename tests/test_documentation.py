"""The Python code in README.md, docs/ and the notebooks runs.

The three guides run first, one after another in the same folder, on a corpus of
a few sentences; the other pages use the files that the guides write. A block
that cannot run here is preceded by `<!-- skip: next "why" -->`.
"""

import os
import re
import shutil
import unittest
from pathlib import Path

import nbclient
import nbformat
import pytest
import tiny_phonemes
import tiny_tasks
from sybil import Document
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[1]
GUIDES = [
    ROOT / f"docs/guides/{name}.md"
    for name in ("pretrain", "finetune", "serve")
]
PAGES = {
    path.name: path
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    if "```python" in path.read_text(encoding="utf-8")
}

# {setting that makes a run long or a model large: its value in tests}
SMALLER = {
    "vocab_size": 150,
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "dupe_factor": 1,
    "eval_fraction": 0.2,
    "budget_hours": 0.003,
    "num_train_steps": 4,
    "train_batch_size": 8,
    "num_warmup_steps": 1,
    "eval_steps": 2,
    "epochs": 1,
}
SETTING = re.compile(rf"\b({'|'.join(SMALLER)})=[\d._]+(?=[,)])")


def smaller(text: str) -> str:
    """Replace the values of the settings in `SMALLER`; return the new text."""
    return SETTING.sub(lambda m: f"{m[1]}={SMALLER[m[1]]}", text)


# {notebook: the parameter cell for a small run}
PARAMETERS = {
    "look_into_a_model": 'MODEL = "examples/models/tiny_en"',
    "finetune_a_table": """
MODEL = "pretrained"
TABLES = "demo/corpus/task"
EPOCHS = 1
OUTPUT = "notebook_classifier"
""",
    "pretrain_and_search": """
FOLDER = "notebook_search"
STEPS = 2
EPOCHS = 1
""",
}


class SmallerPage(Document):
    """A page in which `smaller` has replaced the settings."""

    def __init__(self, text: str, path: str):
        super().__init__(smaller(text), path)


def run(page: Path) -> int:
    """Run a page's blocks in one namespace; return the number of blocks.

    A block may be skipped if the page gives a reason.
    """
    parsers = PythonCodeBlockParser(), SkipParser()
    blocks = [*SmallerPage.parse(str(page), *parsers).examples()]
    for block in blocks:
        try:
            block.evaluate()
        except unittest.SkipTest as why:
            assert len(str(why).split()) > 2, "a block is skipped without why"
    return len(blocks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer_dir):
    """Return the folder in which the guides ran."""
    folder = tmp_path_factory.mktemp("reader")
    task = folder / "demo/corpus/task"
    task.mkdir(parents=True)
    for seed, split in enumerate(("train", "dev", "test")):
        rows = ("sentence", "label"), *tiny_tasks.opinions(40, seed)
        tiny_tasks.write_tsv(task / f"{split}.tsv", *rows)
    lines = (tokenizer_dir / "corpus.txt").read_text("utf-8").split("\n")
    documents = ["\n".join(lines[i : i + 10]) for i in range(0, 500, 10)]
    (task.parent / "corpus.txt").write_text("\n\n".join(documents), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for guide in GUIDES:
            assert run(guide)
    shutil.copytree(folder / "pretrained", folder / "albert_base_v2")
    for name in ("pretrained", "finetuned"):  # as `make demo` writes them
        shutil.copytree(folder / name, folder / "demo" / name)
    tiny_phonemes.save_model(folder / "plbert_de")
    models = "examples/models"
    shutil.copytree(ROOT / models, folder / models)
    return folder


@pytest.mark.slow
def test_the_guides_run(folder):
    """The guides run one after another and write files for other pages."""
    made = "tokenizer records pretrained finetuned tested models/library/1 lite"
    assert [x for x in made.split() if not os.listdir(folder / x)] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_python_of_a_page_runs(page, folder, monkeypatch):
    """The blocks of a page run, in order, in the folder of the guides."""
    monkeypatch.chdir(folder)
    assert run(PAGES[page])


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.stem
)
def test_a_notebook_runs(path, folder):
    """Every cell of a notebook runs with small parameters."""
    notebook = nbformat.read(path, as_version=4)
    [cell] = [
        c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())
    ]
    parameters = PARAMETERS[path.stem]
    named = re.compile(r"^\w+(?= =)", re.MULTILINE)
    assert named.findall(parameters) == named.findall(cell.source)
    cell.source = parameters
    for each in notebook.cells:
        each.source = smaller(each.source)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=resources
    ).execute()
