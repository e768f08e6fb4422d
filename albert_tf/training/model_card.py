"""The model card of a folder, which describes the model and its origin.

The card is derived from the files in the model directory and from the metadata
of the records that the run read last.
"""

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping

from albert_tf.base import files
from albert_tf.base.console import counted
from albert_tf.base.settings import FLAG_FILE
from albert_tf.data.records.metadata import PHONEMES
from albert_tf.model.config import CONFIG_FILE
from albert_tf.text.symbols import SYMBOLS_FILE
from albert_tf.training.history import HEALTH, HISTORY_FILE, History
from albert_tf.training.phases import folders

CARD = "README.md"
# A card with this line is overwritten; any other card belongs to the user.
MARK = "<!-- Written by albert_tf; remove this line to keep what you edit. -->"

# Hugging Face's pipelines and classes, by kind of task. Other kinds have the
# same names as their pipelines, such as question_answering.
SENTENCES = "classification", "multilabel", "regression"
PIPELINES = {
    "": "fill-mask",
    PHONEMES: "feature-extraction",
    **dict.fromkeys(SENTENCES, "text-classification"),
    "embedding": "sentence-similarity",
}
CLASSES = {
    "": "AutoModelForMaskedLM",
    PHONEMES: "AutoModel",
    **dict.fromkeys(SENTENCES, "AutoModelForSequenceClassification"),
    "embedding": "AutoModel",
}
# Flags that name the inputs of a run.
INPUT_FLAGS = {
    "data_dir": "Data",
    "train_file": "Examples",
    "model_dir": "First weights",
    "init_checkpoint": "First weights",
}
COUNTED = ("documents", "sentences", "tokens")  # in the records' statistics


def number(value: object) -> str:
    """Format a number, such as 1,000; convert any other value to text."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    whole = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if whole else str(value)


def longest_run(text: str) -> int:
    """Return the number of backticks in the longest run of backticks."""
    return max(map(len, re.findall("`*", text)))


def code(name: object) -> str:
    """Return a name, such as a path or a label, as a Markdown code span.

    Unprintable characters, such as line feeds, become escapes.
    """
    escapes = {x: ascii(x)[1:-1] for x in str(name) if not x.isprintable()}
    text = str(name).translate(str.maketrans(escapes)) or " "
    ticks = "`" * (longest_run(text) + 1)
    space = " " * ("`" in (text[0], text[-1]) or text[0] == text[-1] == " ")
    return f"{ticks}{space}{text}{space}{ticks}"


def block(lines: Iterable[str], language: str = "") -> list[str]:
    """Return the lines of a Markdown code block."""
    text = "\n".join(lines)
    ticks = "`" * max(3, longest_run(text) + 1)
    return [ticks + language, text, ticks]


def parse_flags(flagfile: str) -> dict[str, str]:
    """Return {flag: value}, parsed from the text of a run's flagfile.

    The result includes comments, which describe values that a flagfile cannot
    contain, such as a frame.
    """
    lines = filter(None, flagfile.splitlines())
    pairs = [line.lstrip("#- ").partition("=") for line in lines]
    return {name: value for name, _, value in pairs}


def shape_of(config: dict) -> str:
    """Describe the sizes of an architecture in words."""
    nouns = {
        "num_hidden_layers": "layer",
        "hidden_size": "hidden unit",
        "num_attention_heads": "head",
        "vocab_size": "piece",
    }
    sizes = [counted(config[k], n) for k, n in nouns.items() if k in config]
    return ", ".join(sizes)


def sources_of(flags: dict[str, str]) -> dict[str, str]:
    """Return {name: Markdown} for a run's inputs.

    "Text", if known, is the amount of text from which the last records were
    made.
    """
    sources = {
        name: code(flags[flag])
        for flag, name in INPUT_FLAGS.items()
        if flags.get(flag) not in (None, "", "None")
    }
    last = folders(flags.get("data_dir", ""))[-1]
    metadata = files.read_optional_json(last, "metadata.json")
    statistics = metadata.get("statistics", {})
    counts = [f"{statistics[k]:,} {k}" for k in COUNTED if k in statistics]
    return sources | ({"Text": ", ".join(counts)} if counts else {})


def settings_of_records(flags: dict[str, str]) -> list[str]:
    """Describe the settings with which each folder of records was built."""
    lines = []
    for folder in dict.fromkeys(folders(flags.get("data_dir", ""))):
        metadata = files.read_optional_json(folder, "metadata.json")
        settings = metadata.get("settings")
        settings = settings.items() if isinstance(settings, dict) else ()
        pairs = [f"{k}={value}" for k, value in settings if value is not None]
        if pairs:
            lines.append(f"{folder}: {', '.join(pairs)}")
    return lines


def rows_of(folder: str, split: str) -> list[dict]:
    """Return the rows of a split in a run's history, or [] if there is none."""
    if not files.exists(files.join(folder, HISTORY_FILE)):
        return []
    return [r for r in History.read(folder).rows if r["split"] == split]


def metrics_of(folder: str) -> dict[str, dict[str, float]]:
    """Return {split: metrics} of the last evaluation.

    The name of a split, in Markdown, includes the evaluated file, if known,
    because the run's flags may name a different file. After pretraining, the
    metrics include the step.
    """
    measured = files.read_optional_json(folder, "metrics.json")
    splits = {}
    for split, values in measured.items():
        if isinstance(values, dict):
            file = measured.get(f"{split}_file")
            splits[f"{split} of {code(file)}" if file else split] = values
    last = [] if splits else rows_of(folder, "eval")[-1:]
    return splits | {
        row["split"]: {k: v for k, v in row.items() if k != "split"}
        for row in last
    }


def loading(form: str, kind: str, name: str) -> str:
    """Return code to load a model, or a command to convert or export it."""
    text, word = json.dumps(name, ensure_ascii=False), shlex.quote(name)
    if form == "sentence_transformers":
        return (
            "from sentence_transformers import SentenceTransformer\n\n"
            f"model = SentenceTransformer({text})\n"
            'vectors = model.encode(["A fine film."])'
        )
    if form == "huggingface":
        words = kind.replace("_", " ").title().replace(" ", "")
        cls = CLASSES.get(kind, f"AutoModelFor{words}")
        return (
            f"from transformers import AutoTokenizer, {cls}\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({text})\n"
            f"model = {cls}.from_pretrained({text})"
        )
    if kind == PHONEMES:
        return (
            f"python -m albert_tf.convert_checkpoint --input={word} "
            "--output=converted --to=huggingface"
        )
    if kind:
        return (
            f"python -m albert_tf.export --model_dir={word} --export_dir=served"
        )
    return f"import albert_tf\n\nalbert = albert_tf.load({text})"


def head_of(form: str, kind: str) -> list[str]:
    """Return the metadata at the top of a card, which the HF Hub reads."""
    library = {"huggingface": "transformers"}.get(form, form)
    library = library.replace("_", "-").replace("model-dir", "albert_tf")
    tags = ["albert", "albert_tf"]
    if form == "sentence_transformers":
        tags += ["sentence-transformers", "feature-extraction"]
    return [
        "---",
        "license: other",
        f"library_name: {library}",
        f"pipeline_tag: {PIPELINES.get(kind, kind.replace('_', '-'))}",
        "tags:",
        *(f"- {tag}" for tag in tags),
        "---",
    ]


def purpose_of(task: Mapping, kind: str) -> str:
    """Describe the task for which a model was trained, and its labels."""
    if kind == PHONEMES:
        return (
            ", pretrained to predict masked phonemes and the words that the "
            "phonemes spell."
        )
    if not task:
        return (
            ", pretrained to predict masked words and to classify pairs of "
            "text segments."
        )
    sentence = f" for the task {task['name']} ({task['kind']})."
    labels = ", ".join(map(code, task.get("labels", ())))
    return f"{sentence} Its labels: {labels}." if labels else sentence


def metrics_table(metrics: Mapping[str, Mapping]) -> list[str]:
    """Return the lines of a table of {split: metrics}.

    Even in a code span, a bar would divide a cell unless it is escaped.
    """
    if not metrics:
        return ["None were measured."]
    rows = [
        (split, metric, number(value))
        for split, values in metrics.items()
        for metric, value in values.items()
    ]
    cells = ((cell.replace("|", r"\|") for cell in row) for row in rows)
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return ["| split | metric | value |", "|---|---|---|", *lines]


NO_SOURCES = ["Unknown: the model was not trained by a run of albert_tf."]
LICENSE = (
    "Choose the license of the weights yourself: it depends on the training "
    "data."
)


def card(folder: str, source: str, form: str) -> str:
    """Return the text of a folder's model card.

    Args:
      folder: the folder that the card describes.
      source: the model directory from which the folder was made, or "" if there
        is none.
      form: the kind of folder, a value of `convert_checkpoint --to`.
    """
    # Unlike `.`, the absolute path of the current folder has a name.
    name = os.path.basename(source and os.path.abspath(source)) or "albert"
    source = source or folder
    config = files.read_optional_json(source, CONFIG_FILE)
    config = config or files.read_optional_json(folder, "config.json")
    task = files.read_optional_json(source, "task.json")
    has_symbols = files.exists(files.join(source, SYMBOLS_FILE))
    kind = task.get("kind", PHONEMES if has_symbols else "")
    path, flagfile = files.join(source, FLAG_FILE), ""
    if files.exists(path):
        flagfile = files.read_text(path, "The flagfile").strip()
    flags = parse_flags(flagfile)
    sources = sources_of(flags).items()
    trained_on = [f"- {what}: {value}" for what, value in sources]
    language = "bash" if form == "model_dir" and kind else "python"
    sections = {
        "Trained on": trained_on or NO_SOURCES,
        "Metrics": metrics_table(metrics_of(source)),
        "How to load it": block([loading(form, kind, name)], language),
    }
    notes = [
        f"- Step {row['step']}: {row['note']}"
        for row in rows_of(source, HEALTH)
        if "note" in row
    ]
    if notes:
        sections["Notes"] = notes
    if records := settings_of_records(flags):
        sections["Settings of the records"] = block(records)
    if flagfile:
        sections["Flags of the run"] = block([flagfile])
    lines = [*head_of(form, kind), MARK, "", f"# {code(name)}", ""]
    lines += [
        f"An ALBERT model ({shape_of(config)}){purpose_of(task, kind)}",
        "",
        LICENSE,
    ]
    for title, content in sections.items():
        lines += ["", f"## {title}", "", *content]
    return "\n".join(lines)


def write_card(folder: str, source: str, form: str = "model_dir") -> None:
    """Write a folder's model card, unless the user has written one.

    Args:
      folder: the folder to write to.
      source: the model directory from which the folder was made, or the folder
        itself.
      form: see `card`.
    """
    path = files.join(folder, CARD)
    if files.exists(path) and MARK not in files.read_text(path, "The card"):
        return
    files.write_text(path, card(folder, source, form) + "\n")
