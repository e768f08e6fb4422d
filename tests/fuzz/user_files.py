"""Readers of users' files and requests, and valid files to damage."""

import base64
import importlib.util
import json
from collections import Counter

import numpy as np
import tensorflow as tf
import tiny_records
import tiny_tasks
from fuzz import mutators
from fuzz.reader import (
    Reader,
    Refused,
    beside,
    words,
    write_json,
    write_lines,
)
from google.protobuf.message import DecodeError

import albert_tf
from albert_tf.data import file_kinds
from albert_tf.data.builder import text_blocks
from albert_tf.data.builder.text_formats import ReadingConfig
from albert_tf.data.records import tfrecord
from albert_tf.library.embed import read_texts
from albert_tf.serving.litert_runner import MAX_CHARACTERS, fields_of
from albert_tf.tasks.registry import KINDS, find

SENTENCES = "the film is good\nit was 1,000 naïve\n\nso bad a plot\nfine one\n"


def _convert(task, examples):
    """Convert examples to features; without examples, do nothing."""
    if examples:
        task.features(examples, words())


# Tables and texts.


def _tables(folder):
    rows = tiny_tasks.opinions(6, 1)
    tiny_tasks.write_tsv(folder / "t.tsv", ("text", "label"), *rows)
    lines = ['text,label\n"a ""b"", c",x\n', '"two\nlines",y\n']
    (folder / "t.csv").write_text("".join(lines))
    objects = [{"text": text, "label": label} for text, label in rows]
    write_lines(folder / "t.jsonl", objects)
    _arrow_tables(folder, objects)


def _arrow_tables(folder, objects):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(objects)
    labels = {"_type": "ClassLabel", "names": ["bad", "good"]}
    numbers = [int(row["label"] == "good") for row in objects]
    table = table.set_column(1, "label", pyarrow.array(numbers))
    info = {"info": {"features": {"label": labels}}}
    noted = {b"huggingface": json.dumps(info).encode()}
    table = table.replace_schema_metadata(noted)
    pyarrow.parquet.write_table(table, folder / "t.parquet")
    (folder / "saved").mkdir()
    path = folder / "saved" / "data.arrow"
    with pyarrow.OSFile(str(path), "wb") as sink:
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": "data.arrow"}]}
    write_json(folder / "saved" / "state.json", state)


def _read_table(folder, name):
    path = folder / name
    source = str(path.parent if path.parent != folder else path)
    find("classification").read("train", source)


def _read_table_texts(folder, name):
    path = folder / name
    path = path.parent if path.parent != folder else path
    _read_blocks(folder, str(path.relative_to(folder)))


def _task_tables(folder):
    rows = {
        "multilabel.csv": 'text,label\na,"x,y"\nb,"[""x""]"\n',
        "regression.tsv": "text\tlabel\na\t0.5\nb\t1e3\n",
        "embedding.tsv": "text\ttext_pair\tlabel\na\tb\t0.5\nc\td\t0.1\n",
        "token_classification.jsonl": '{"tokens": ["a", "b"], "ner_tags": '
        '["O", "B-x"]}\n{"tokens": "[\\"c\\"]", "ner_tags": "O"}\n',
        "multiple_choice.jsonl": '{"context": "a", "question": "b", '
        '"choices": ["c", "d"], "label": "A"}\n',
        "question_answering.jsonl": '{"id": 1, "context": "a b", '
        '"question": "c", "answers": {"text": ["b"], "answer_start": [2]}}\n'
        '{"id": "y", "context": "a b", "question": "c", "answers": "[\\"a\\"]"'
        "}\n",
        "race.txt": '{"article": "a b", "questions": ["c"], "options": '
        '[["d", "e", "f", "g"]], "answers": ["A"], "id": "h"}\n',
        "cluewsc2020.json": '{"target": {"span1_text": "a", "span1_index": 0, '
        '"span2_text": "b", "span2_index": 2}, "text": "a b", "label": '
        '"true", "id": 1}\n',
    }
    for name, text in rows.items():
        (folder / name).write_text(text)


TASK_OF = {"race": "race", "cluewsc2020": "cluewsc"}


def _read_task_table(folder, name):
    kind = name.split(".")[0]
    task = find(TASK_OF.get(kind, kind))
    for part in ("predict", "train"):
        examples = task.read(part, str(folder / name))
    _convert(task.fitted(examples), examples)


def _squad(folder):
    answers = [
        {"text": "b", "answer_start": 2},
        {"text": "c d", "answer_start": 4},
    ]
    qas = [
        {"id": "1", "question": "q", "answers": answers[:1]},
        {"id": "2", "question": "r", "answers": answers, "is_impossible": 0},
        {"id": "3", "question": "r", "answers": [], "is_impossible": True},
    ]
    paragraphs = [{"context": "a b c d e", "qas": qas}]
    content = {"version": "2.0", "data": [{"paragraphs": paragraphs}]}
    write_json(folder / "squad.json", content)


def _read_squad(folder, name):
    for version in ("squad-2.0", "squad-1.1"):
        task = find(version)
        for part in ("predict", "eval", "train"):
            if version == "squad-2.0" or part == "predict":
                examples = task.read(part, str(folder / name))
        _convert(task, examples)


def _conll(folder):
    text = "-DOCSTART- -X- O O\n\nthe DT B-NP O\nfilm NN I-NP B-a\n\nis V O O\n"
    (folder / "train.conll").write_text(text)
    text = "# text = a b\n1\ta\ta\tX\t_\t_\t0\t_\t_\t_\n2\tb\tb\tY" + "\t_" * 6
    (folder / "train.conllu").write_text(text + "\n\n")
    text = "sentence_id\tword\ttag\n1\ta\tO\n1\tb\tB-x\n2\tc\tO\n"
    (folder / "words.tsv").write_text(text)
    (folder / "words.csv").write_text(text.replace("\t", ","))


def _read_conll(folder, name):
    task = find("token_classification")
    for part in ("predict", "train"):
        examples = task.read(part, str(folder / name))
    _convert(task.fitted(examples), examples)


def _texts(folder):
    data = SENTENCES.encode() * 3
    (folder / "text.txt").write_bytes(data)
    ends = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ"}
    if importlib.util.find_spec("zstandard"):
        ends[".zst"] = b"\x28\xb5\x2f\xfd"
    for ending, magic in ends.items():
        _, pack = mutators.PACKED[magic]
        (folder / f"text.txt{ending}").write_bytes(pack(data))


def _read_blocks(folder, name):
    (path,) = text_blocks.input_paths(str(folder / name), None)
    for choice in ("fail", "skip", "replace"):
        config = ReadingConfig(on_bad_text=choice)
        try:
            text_blocks.check_files([path], config)
            counts = Counter()
            for block in text_blocks.blocks(path, 1, config):
                text_blocks.read_documents(block, config, counts)
        except file_kinds.BadData:
            if choice == "skip" and name.startswith("text"):
                raise AssertionError("skip did not skip") from None


def _read_text(folder, name):
    _read_blocks(folder, name)
    list(read_texts(str(folder / name)))


# Requests.


def _requests(folder):
    lines = [
        {"text": "a good film"},
        {"text": "a [MASK] film", "text_pair": ""},
        {"question": "is it?", "context": "it is.", "choices": ["a", "b"]},
    ]
    write_lines(folder / "litert.jsonl", lines)
    with (folder / "litert.jsonl").open("a") as file:
        file.write("plain text\n")


def _read_requests(folder, name):
    """Read queries for a kind of task that the file's length selects.

    The time limit is for one query, so the text that is read is no longer than
    the longest valid query.
    """
    text = (folder / name).read_bytes().decode("utf-8", "surrogateescape")
    kind = [*KINDS.values()][len(text) % len(KINDS)]
    task = find(kind.kind).updated(max_seq_length=16)
    characters = 0
    for line in text.splitlines():
        try:
            query = fields_of(line, kind.fields)
        except albert_tf.InputError:
            continue
        characters += len(line)
        if characters > MAX_CHARACTERS:
            break
        task.features([task.example(**query)], words())


def _signature_requests(folder):
    albert_tf.export(model_dir=beside(folder), export_dir=str(folder / "model"))
    calls = {
        "text": {"text": ["a good film", "b"]},
        "text_pair": {"text": ["a"], "text_pair": ["b"]},
        "ids": {
            "input_ids": [[2, 5, 3]],
            "input_mask": [[1, 1, 1]],
            "segment_ids": [[0, 0, 0]],
        },
        "fill_mask": {"text": ["the [MASK] film"]},
    }
    for name, inputs in calls.items():
        body = {"signature_name": name, "inputs": inputs}
        write_json(folder / f"{name}.json", body)
    example = tiny_records.serialized(text=["a film"], text_pair=["b"])
    body = {"examples": [base64.b64encode(example).decode()]}
    body = {"signature_name": "tf_example", "inputs": body}
    write_json(folder / "tf_example.json", body)


_LOADED = {}


def _signatures(folder):
    """Return the model's signatures, which are loaded only once."""
    if not _LOADED:
        from albert_tf.serving.playground_model import ExportedModel

        model = ExportedModel(str(folder / "model"))
        _LOADED["page"] = model
        _LOADED["signatures"] = model._loaded.signatures
    return _LOADED["signatures"]


def _tensor(value, spec):
    """Convert a value of a request to a tensor, as TensorFlow Serving does."""
    if spec.name == "examples":
        value = [base64.b64decode(x) for x in value]
    return tf.constant(value, spec.dtype)


def _read_signature_request(folder, name):
    signatures = _signatures(folder)
    try:
        body = json.loads((folder / name).read_bytes())
        inputs, key = dict(body["inputs"]), body["signature_name"]
        served = signatures[key]
        specs = served.structured_input_signature[1]
        values = {k: _tensor(v, specs[k]) for k, v in inputs.items()}
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Refused("the server cannot parse it") from error
    except (AttributeError, OverflowError, tf.errors.OpError) as error:
        raise Refused("no tensors") from error
    served(**values)


def _read_page_request(folder, name):
    from albert_tf.serving.playground_page import TOOLS, VisitorError, make_ask

    _signatures(folder)
    try:
        body = json.loads((folder / name).read_bytes())
        key, inputs = body["signature_name"], dict(body["inputs"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Refused("no JSON") from error
    page = _LOADED["page"]
    if not isinstance(key, str) or key not in page.inputs.keys() & TOOLS:
        raise Refused("no tool")
    # The page has the names of the fields; a visitor sends only the values.
    examples, legal = TOOLS[key].example, page.inputs[key]
    fields = {k: v for k, v in examples.items() if k in legal}
    cells = [x[0] if isinstance(x, list) and x else x for x in inputs.values()]
    try:
        make_ask(page, key, fields)(*cells)
    except VisitorError as error:
        raise Refused(str(error)) from None


def _warm_up(folder):
    from albert_tf.serving import tensorflow_serving

    _signature_requests(folder)
    inputs = {"text": np.array(["a film"], object)}
    records = tensorflow_serving.warm_up_records({"text": inputs})
    tfrecord.write(str(folder / "warm_up"), records)


def _read_warm_up(folder, name):
    from albert_tf.serving import tensorflow_serving

    for record in tfrecord.read(str(folder / name)):
        tensorflow_serving.ask(_signatures(folder), record)


TABLES = {"*.json*": mutators.JSON, "*.?sv": mutators.TEXT}
OF_SERVER = (Refused, ValueError, TypeError, tf.errors.OpError)

READERS = {
    "table": Reader(_tables, TABLES | {"*": mutators.ANY}, _read_table),
    "table of texts": Reader(
        _tables, TABLES | {"*.*": mutators.ANY}, _read_table_texts
    ),
    "table of a task": Reader(
        _task_tables,
        {"*.?sv": mutators.TEXT, "*": mutators.JSON},
        _read_task_table,
    ),
    "SQuAD": Reader(_squad, {"*.json": mutators.JSON}, _read_squad),
    "CoNLL": Reader(_conll, {"*": mutators.TEXT}, _read_conll),
    "text": Reader(
        _texts,
        {"*.txt": mutators.TEXT, "*": mutators.COMPRESSED},
        _read_text,
    ),
    "LiteRT request": Reader(
        _requests, {"*.jsonl": mutators.JSON}, _read_requests
    ),
    "SavedModel request": Reader(
        _signature_requests,
        {"model/*": {}, "*.json": mutators.JSON},
        _read_signature_request,
        OF_SERVER,
        quick=False,
    ),
    "playground request": Reader(
        _signature_requests,
        {"model/*": {}, "fill_mask.json": mutators.JSON},
        _read_page_request,
        (Refused,),
        quick=False,
    ),
    "warm-up requests": Reader(
        _warm_up,
        {"warm_up": mutators.RECORDS},
        _read_warm_up,
        (*OF_SERVER, DecodeError),
        quick=False,
    ),
}
