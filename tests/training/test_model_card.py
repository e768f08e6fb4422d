"""A folder's model card, derived from the model directory."""

import ast
import json
import shlex

import pytest

from albert_tf.text.symbols import SymbolTable
from albert_tf.training.model_card import (
    CARD,
    MARK,
    card,
    number,
    shape_of,
    write_card,
)


def model(folder, **files):
    """Write JSON files into a model directory; return its path."""
    for name, content in files.items():
        path = folder / name.replace("_json", ".json")
        path.write_text(json.dumps(content), encoding="utf-8")
    return str(folder)


TASK = {"name": "reviews", "kind": "classification", "labels": ["bad", "good"]}
METRICS = {
    "model": "x",
    "eval_file": "dev.tsv",
    "eval": {"accuracy": 0.875, "examples": 1200},
    "predict": {"loss": 0.5},
}


def test_a_card_says_where_a_model_comes_from(tmp_path):
    """A card lists the task, labels, data, metrics, flags, code and license."""
    folder = model(tmp_path, task_json=TASK, metrics_json=METRICS)
    flags = "--train_file=reviews.tsv\n--model_dir=base\n--data_dir=None\n"
    (tmp_path / "run.flags").write_text(flags)
    write_card(folder, folder)
    text = (tmp_path / CARD).read_text("utf-8")
    head = text.split("---")[1]
    assert "license: other" in head and "text-classification" in head
    for expected in (
        *("- Examples: `reviews.tsv`", "- First weights: `base`"),
        "| eval of `dev.tsv` | accuracy | 0.875 |",
        "| eval of `dev.tsv` | examples | 1,200 |",
        "| predict | loss | 0.5 |",
        *("albert_tf.export --model_dir=", flags.strip(), "```bash\n"),
        "for the task reviews (classification). Its labels: `bad`, `good`.\n",
    ):
        assert expected in text
    assert "- Data" not in text and "## Flags of the run" in text


NAMES = [
    "a|b",
    "`b",
    "c`",
    "d``e",
    " f ",
    "g\nh",
    "<b>",
    "*i*",
    "[j](k)",
    "$l",
    "'\"",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is(tmp_path, name):
    """No name of a file, folder or label changes the structure of a card.

    The code, command and flags contain the name literally. Unprintable
    characters are shown as escapes.
    """
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark")
    parse = markdown.enable("table").parse
    shown = name.replace("\n", "\\n")
    task = {"name": "x", "kind": "regression", "labels": [name]}
    metrics = {"eval_file": name, "eval": {"loss": 0.5, "pearson": 0.7}}
    (tmp_path / name).mkdir()
    folder = model(tmp_path / name, task_json=task, metrics_json=metrics)
    flags = f"--train_file={shown}\n--note=```\n# x"
    (tmp_path / name / "run.flags").write_text(flags)
    for form in ("model_dir", "huggingface"):
        tokens = parse(card("", folder, form).split(MARK)[1])
        spans = [
            span.content
            for token in tokens
            for span in token.children or ()
            if span.type == "code_inline"
        ]
        assert spans == [shown] * 5  # title, label, file, two rows
        assert sum(token.type == "heading_open" for token in tokens) == 5
        assert sum(token.type == "td_open" for token in tokens) == 6
        command, written = (x.content for x in tokens if x.type == "fence")
        assert written == flags + "\n"
        if form == "model_dir":
            assert f"--model_dir={name}" in shlex.split(command)
        else:
            calls = [
                x for x in ast.walk(ast.parse(command)) if hasattr(x, "args")
            ]
            assert [call.args[0].value for call in calls] == [name, name]


def test_a_card_names_tables_in_memory(tmp_path):
    """A card names a table in memory as the flagfile names it."""
    folder = model(tmp_path, task_json=TASK)
    flags = "# --train_file=train_file (DataFrame)\n--model_dir=base\n"
    (tmp_path / "run.flags").write_text(flags)
    write_card(folder, folder)
    text = (tmp_path / CARD).read_text("utf-8")
    assert "- Examples: `train_file (DataFrame)`\n" in text


def test_a_card_of_a_pretrained_model(tmp_path):
    """The card of a pretrained model lists the last held-out metrics.

    The card also states the step of these metrics, the number of documents and
    sentences in the last records, and the settings of each folder of records.
    It contains the notes in the history. The card of a converted folder states
    the same.
    """
    records = tmp_path / "records"
    records.mkdir()
    statistics = {"documents": 7, "sentences": 4321}
    built = {"ngram": 3, "random_next_sentence": True, "split_sentences": None}
    metadata = {"statistics": statistics, "settings": built}
    model(records, metadata_json=metadata)
    folder, short = model(tmp_path), tmp_path / "short"
    short.mkdir()
    built_short = {"ngram": 1, "whole_words": False}
    other = {"settings": built_short, "statistics": {"documents": 2}}
    model(short, metadata_json=other)
    phases = f"--data_dir={short}:0.1,{records}:0.2,{short}:0.3,{records}\n"
    (tmp_path / "run.flags").write_text(phases)
    rows = [{"step": 5, "split": "eval", "loss": 3.0}]
    rows += [{"step": 9, "split": "eval", "loss": 2.5}]
    rows += [{"step": 9, "split": "train", "loss": 1.0}]
    note = "beta_1 was 0.9 and is 0.8: another update rule"
    rows += [{"step": 7, "split": "health", "kind": "resumed", "note": note}]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "history.jsonl").write_text("".join(lines))
    write_card(folder, folder)
    text = (tmp_path / CARD).read_text("utf-8")
    assert "- Text: 7 documents, 4,321 sentences" in text
    metrics = [line for line in text.splitlines() if line.startswith("| eval")]
    assert metrics == ["| eval | step | 9 |", "| eval | loss | 2.5 |"]
    assert f"\n## Notes\n\n- Step 7: {note}\n" in text
    assert "fill-mask" in text and "```python\nimport albert_tf\n" in text
    assert f'albert = albert_tf.load("{tmp_path.name}")' in text
    assert ", pretrained to predict masked words and to classify" in text
    expected = (
        f"{short}: ngram=1, whole_words=False\n"
        f"{records}: ngram=3, random_next_sentence=True\n"
    )
    assert f"\n## Settings of the records\n\n```\n{expected}```\n" in text
    converted = card(str(tmp_path / "converted"), folder, "huggingface")
    for part in (note, *metrics, expected, phases, "- Text: 7 documents"):
        assert part in converted


def test_the_users_own_card_stays(tmp_path):
    """A card is overwritten only if it still contains the marker comment."""
    folder, path = model(tmp_path), tmp_path / CARD
    path.write_text(f"old\n{MARK}\n")
    write_card(folder, folder, "huggingface")
    assert "AutoModelForMaskedLM" in path.read_text("utf-8")
    path.write_text("mine\n")
    write_card(folder, folder)
    assert path.read_text("utf-8") == "mine\n"


@pytest.mark.parametrize("path", ["mine", "mine/", "mine/.", ""])
def test_a_card_is_titled_by_its_folder(path, tmp_path, monkeypatch):
    """The title is the folder's name, however the path is spelled."""
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path if path else tmp_path / "mine")
    text = card(path or ".", path or ".", "model_dir")
    assert "\n# `mine`\n" in text and 'load("mine")' in text


def test_a_card_without_a_run_says_what_is_not_known(tmp_path):
    """The card of an empty folder lists no flags and no metrics."""
    text = card(str(tmp_path), "", "model_dir")
    assert "\n# `albert`\n" in text and "Unknown: the model was" in text
    assert "None were measured." in text and "Flags" not in text
    assert "library_name: albert_tf\n" in text


def test_metadata_of_another_kind_is_ignored(tmp_path):
    """The folder of examples may contain an unrelated `metadata.json`."""
    (tmp_path / "run.flags").write_text(f"--data_dir={tmp_path}\n")
    text = card("", model(tmp_path, metadata_json={"settings": ["a"]}), "tf1")
    assert "## Settings of the records" not in text


@pytest.mark.parametrize(
    ("kind", "cls", "pipeline"),
    [
        ("classification", "ForSequenceClassification", "text-classification"),
        ("multilabel", "ForSequenceClassification", "text-classification"),
        ("regression", "ForSequenceClassification", "text-classification"),
        ("token_classification", "ForTokenClassification", ""),
        ("question_answering", "ForQuestionAnswering", ""),
        ("multiple_choice", "ForMultipleChoice", ""),
        ("embedding", "", "sentence-similarity"),
    ],
)
@pytest.mark.parametrize("form", ["huggingface", "sentence_transformers"])
def test_a_card_tells_how_to_load_its_form(tmp_path, form, kind, cls, pipeline):
    """The code depends on the folder's format, the pipeline on the task."""
    task = {"name": "x", "kind": kind}
    text = card("", model(tmp_path, task_json=task), form)
    sentences = form == "sentence_transformers"
    loaded = "SentenceTransformer" if sentences else f"AutoModel{cls}"
    assert f"import {loaded}\n" in text or f", {loaded}\n" in text
    assert "```python\n" in text
    assert ("\n- sentence-transformers\n- feature-ex" in text) == sentences
    library = "sentence-transformers" if sentences else "transformers"
    assert f"library_name: {library}\n" in text
    pipeline = pipeline or kind.replace("_", "-")
    assert f"pipeline_tag: {pipeline}\n" in text
    assert f"for the task x ({kind}).\n" in text


def test_sizes_in_words():
    """Each size of the architecture has its noun, singular or plural."""
    sizes = {"hidden_size": 4096, "num_hidden_layers": 1}
    assert shape_of(sizes) == "1 layer, 4,096 hidden units"


def test_a_card_of_a_phoneme_model(tmp_path):
    """The card of a phoneme model shows how to convert the model."""
    SymbolTable({"$": 0, "M": 1, " ": 2, "a": 3}).save(str(tmp_path))
    text = card("", str(tmp_path), "model_dir")
    assert "masked phonemes" in text and "pipeline_tag: feature-extr" in text
    expected = "```bash\npython -m albert_tf.convert_checkpoint --input="
    assert f"{expected}{tmp_path.name} " in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1250000, "1,250,000"),
        (1234.4, "1234"),
        (10000.0, "10,000"),
        ("words", "words"),
        (0.001761234, "0.001761"),
        (45678.9, "45,679"),
        (-45678.9, "-45,679"),
        (True, "True"),
    ],
)
def test_numbers_are_short(value, text):
    """Long numbers have separators, and insignificant digits are omitted."""
    assert number(value) == text
