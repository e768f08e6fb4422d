"""Everything that reads a file or a request, with valid files to damage.

A reader reads as its program would. It raises an `InputError`, or one of its
`refusals` where another library defines the format, or accepts the file.
"""

import base64
import dataclasses
import fnmatch
import functools
import importlib.util
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Callable
from unittest import mock

import h5py
import keras
import numpy as np
import safetensors.numpy
import tensorflow as tf
import tiny
import tiny_pretraining
import tiny_records
import tiny_tasks
import vocabularies
from fuzz import mutators
from fuzz.mutators import Mutator
from google.protobuf.message import DecodeError

import albert_tf
from albert_tf.base import program
from albert_tf.conversion import sources
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.describe import size_report
from albert_tf.data import file_kinds
from albert_tf.data.builder import text_blocks
from albert_tf.data.builder.text_formats import ReadingConfig
from albert_tf.data.records import (
    checks,
    inspect_records,
    metadata,
    piece_vectors,
    tfrecord,
)
from albert_tf.data.records import input_pipeline as pipeline
from albert_tf.library.embed import read_texts
from albert_tf.model.config import CONFIG_FILE
from albert_tf.serving.litert_runner import fields_of
from albert_tf.tasks.registry import KINDS, find, load_task
from albert_tf.text.tokenizers import load_tokenizer
from albert_tf.training import checkpoints, model_card
from albert_tf.training.history import HISTORY_FILE, History

SENTENCES = "the film is good\nit was 1,000 naïve\n\nso bad a plot\nfine one\n"


@dataclasses.dataclass(frozen=True)
class Reader:
    """A reader of files.

    Attributes:
      make: writes valid files to a folder.
      targets: {pattern of file names to damage: {name: mutator}}.
      read: reads a folder in which the named file was damaged.
      refusals: exceptions that another library documents for its format.
      quick: whether the fixed seeds of the default suite include it.
    """

    make: Callable[[pathlib.Path], None]
    targets: dict[str, dict[str, Mutator]]
    read: Callable[[pathlib.Path, str], None]
    refusals: tuple[type[Exception], ...] = ()
    quick: bool = True

    def names(self, folder: pathlib.Path) -> list[str]:
        """Return the files to damage."""
        paths = (p for p in folder.rglob("*") if p.is_file())
        names = (path.relative_to(folder) for path in paths)
        return sorted(str(x) for x in names if self.mutators(str(x)))

    def mutators(self, name: str) -> dict[str, Mutator]:
        """Return the mutators of a file, or {} if it is not to be damaged."""
        return next(
            (m for p, m in self.targets.items() if fnmatch.fnmatch(name, p)), {}
        )


# Pretraining records.


def _static_records(folder):
    tiny_records.write_records(folder)
    (folder / "piece_counts.json").write_text(json.dumps([1] * 128))


def _built_records(folder):
    """Build dynamic training records, and static held-out ones."""
    spiece = folder.parent / f"{folder.name}.model"
    spiece.write_bytes(vocabularies.sentencepiece_model())
    text = folder.parent / f"{folder.name}.txt"
    documents = [f"the cat s at cafe {i}\nthe 12, cat\n" for i in range(40)]
    text.write_text("\n".join(documents))
    build = tiny_pretraining.build_records
    build(text, folder, spiece, 16, masking="dynamic")


def _read_records(folder, name):
    """Read the metadata and the records in Python."""
    found = metadata.read_metadata(str(folder))
    checks.check_files(str(folder), found)
    found.masking_config()
    metadata.read_piece_counts(str(folder), 128)
    config = inspect_records.TokenizerConfig()
    for split in ("train", "eval"):
        for path in metadata.paths_of(str(folder), found, split):
            tokenizer = inspect_records.find_tokenizer(path, config)
            for example in tfrecord.decoded(path):
                inspect_records.show(example, tokenizer)
    piece_vectors.read_tokens(str(folder), found)


def _read_records_alone(folder, name):
    """Read the records without their metadata."""
    found = metadata.read_metadata(str(folder))
    checks.check_files(str(folder), found)


def _read_pipeline(folder, name):
    """Read batches as training and evaluation do."""
    where = str(folder)
    found = metadata.read_metadata(where)
    checks.check_files(where, found)
    with checks.errors_explained(where, found):
        batches = pipeline.train_batches(where, found, batch_size=4, seed=1)
        for _ in batches.take(8):
            pass
        for _ in pipeline.eval_batches(where, found, batch_size=4):
            pass


# Model directories.


def _model_dir(folder):
    words = folder.parent / f"{folder.name}.words"
    words.mkdir()
    tokenizer = tiny_tasks.make_tokenizer(words)
    config = dataclasses.replace(tiny.CONFIG, num_hidden_layers=1)
    tiny_tasks.write_model(folder, config, tokenizer)


def _read_checkpoint(folder, name):
    prefix = checkpoints.for_inference(str(folder))
    read = checkpoints.reader(prefix)
    for variable in checkpoints.read_table(prefix):
        read(variable)
    checkpoints.fingerprint(str(folder))


def _read_model_dir(folder, name):
    opened = sources.open_source(str(folder))
    sources.describe_source(opened)
    opened.tensors.read_all()
    size_report(str(folder / CONFIG_FILE))
    if opened.tokenizer:
        opened.config.check_pieces(opened.tokenizer.vocab_size, "model")
        _use_tokenizer(opened.tokenizer)


TEXTS = ("the good film, 1,000 x", "naïve Σ \0 中文", "")


def _use_tokenizer(tokenizer):
    for text in TEXTS:
        ids, *_ = tokenizer.encode_with_offsets(text)
        tokenizer.decode(ids)
    tokenizer([*TEXTS], max_length=8)
    tokenizer.fingerprint()


def _sentencepiece(folder):
    content = vocabularies.sentencepiece_model()
    (folder / "spiece.model").write_bytes(content)
    rules = {"do_lower_case": False, "strip_accents": False}
    values = {"type": "sentencepiece", "digit_comma": "released", **rules}
    (folder / "tokenizer.json").write_text(json.dumps(values))


def _read_tokenizer(folder, name):
    _use_tokenizer(load_tokenizer(str(folder)))


def _tasks(folder):
    description = {"classification": ("a", "b"), "multilabel": ("a", "b")}
    for name, kind in KINDS.items():
        labels = description.get(name, ("O", "B-x"))
        task = find(name)
        if kind.has_classes:
            task = dataclasses.replace(task, labels=labels)
        (folder / name).mkdir()
        task.save(str(folder / name))


def _read_task(folder, name):
    task = load_task(str((folder / name).parent))
    task = task.updated(max_seq_length=16)
    query = {"text": "a", "text_pair": "", "context": "c d", "question": "d"}
    query |= {"choices": ["a", "b"]}
    example = task.example(**{name: query[name] for name in task.fields})
    task.features([example], _words())


def _convert(task, examples):
    """Convert examples to features; programs require at least one."""
    if examples:
        task.features(examples, _words())


@functools.cache
def _words():
    pieces = [*tiny_tasks.PIECES, *"bcd"]
    content = "\n".join(pieces).encode()
    config = vocabularies.TextConfig()
    return vocabularies.WordPieceTokenizer(content, config)


def _run_files(folder):
    flags = {"data_dir": "x", "output_dir": "y", "albert_config_file": "z"}
    lines = [f"--{name}={value}" for name, value in flags.items()]
    lines += ["--num_train_steps=4", "--learning_rate=0.1", "--optimizer=lamb"]
    (folder / "run.flags").write_text("\n".join(lines) + "\n")
    rows = [
        {"step": step, "split": split, "loss": 0.5, "steps": 2}
        for step in (2, 4)
        for split in ("train", "eval")
    ]
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / HISTORY_FILE).write_text("".join(lines))
    (folder / "metadata.json").write_text('{"settings": {"a": 1}}')


def _read_run_files(folder, name):
    model_card.read_flags(str(folder))
    model_card.read_if_there(str(folder), "metadata.json")
    found = History.read(str(folder))
    found.last("eval")
    found.column("train", "loss")


class Refused(Exception):
    """A program ended with an error message."""


def _read_flagfile(folder, name):
    """Parse the flags as the program does."""
    pretraining = albert_tf.pretrain.program
    if "num_train_steps" not in program.FLAGS:
        pretraining.define_flags()
    program.FLAGS.unparse_flags()
    for flag in program.FLAGS:
        program.FLAGS[flag].unparse()
    argv = ["pretrain", f"--flagfile={folder / name}"]
    with mock.patch.object(sys, "argv", argv):
        try:
            program.run(lambda: pretraining.from_flags() and None)
        except SystemExit as error:
            if error.code:
                raise Refused(f"status {error.code}") from None


# Models of other projects.


def _hub(folder, spiece=True):
    made = folder.parent / f"{folder.name}.made"
    made.mkdir()
    if spiece:
        _sentencepiece(made)
        tokenizer = load_tokenizer(str(made))
        changes = {"vocab_size": tokenizer.vocab_size, "num_hidden_layers": 1}
        config = dataclasses.replace(tiny.CONFIG, **changes)
        tiny_tasks.write_model(made, config, tokenizer)
    else:
        _model_dir(made)
    convert(str(made), str(folder), "huggingface")
    special = {"mask_token": {"content": "[MASK]"}, "cls_token": "[CLS]"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))


def _sentence_transformer(folder):
    _hub(folder, spiece=False)
    rows = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "x.Pooling", "path": "1_Pooling"},
        {"type": "x.Normalize", "path": "2_Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": 0}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    settings = {"max_seq_length": 8, "do_lower_case": True}
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps(settings))
    settings = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(settings))
    values = json.loads((folder / "config.json").read_text())
    values["architectures"] = ["AlbertModel"]
    (folder / "config.json").write_text(json.dumps(values))


def _classifier(folder):
    """Write a hub folder with a head, and weights as HDF5."""
    _hub(folder, spiece=False)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    with h5py.File(folder / "tf_model.h5", "w") as file:
        for name, array in tensors.items():
            parts = ["a", *name.split(".")]
            file["/".join(parts) + ":0"] = array


def _read_source(folder, name):
    opened = sources.open_source(str(folder))
    sources.describe_source(opened)
    opened.tensors.read_all()
    vocabularies = ".txt", ".model", "tokenizer.json", "tokenizer_config.json"
    if opened.tokenizer and name.endswith(vocabularies):
        _use_tokenizer(opened.tokenizer)


def _release(folder):
    made = folder.parent / f"{folder.name}.made"
    made.mkdir()
    _model_dir(made)
    convert(str(made), str(folder), "tf1")


# Tables and texts.


def _tables(folder):
    rows = tiny_tasks.opinions(6, 1)
    tiny_tasks.write_tsv(folder / "t.tsv", ("text", "label"), *rows)
    lines = ['text,label\n"a ""b"", c",x\n', '"two\nlines",y\n']
    (folder / "t.csv").write_text("".join(lines))
    objects = [{"text": text, "label": label} for text, label in rows]
    lines = [json.dumps(row) + "\n" for row in objects]
    (folder / "t.jsonl").write_text("".join(lines))
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
    (folder / "saved" / "state.json").write_text(json.dumps(state))


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
    (folder / "squad.json").write_text(json.dumps(content))


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
    text = "".join(json.dumps(x) + "\n" for x in lines)
    (folder / "litert.jsonl").write_text(text + "plain text\n")


def _read_requests(folder, name):
    text = (folder / name).read_bytes().decode("utf-8", "surrogateescape")
    for line in text.splitlines():
        for kind in KINDS.values():
            try:
                query = fields_of(line, kind.fields)
            except albert_tf.InputError:
                continue
            task = find(kind.kind).updated(max_seq_length=16)
            task.features([task.example(**query)], _words())


def _signature_requests(folder):
    made = folder.parent / f"{folder.name}.made"
    made.mkdir()
    _model_dir(made)
    albert_tf.export(model_dir=str(made), export_dir=str(folder / "model"))
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
        (folder / f"{name}.json").write_text(json.dumps(body))
    example = tiny_records.serialized(text=["a film"], text_pair=["b"])
    body = {"examples": [base64.b64encode(example).decode()]}
    body = {"signature_name": "tf_example", "inputs": body}
    (folder / "tf_example.json").write_text(json.dumps(body))


_LOADED = {}


def _signatures(folder):
    """Return the signatures, loaded once: the model is not damaged."""
    if not _LOADED:
        from albert_tf.serving.playground_model import ExportedModel

        model = ExportedModel(str(folder / "model"))
        _LOADED["page"] = model
        _LOADED["signatures"] = model._loaded.signatures
    return _LOADED["signatures"]


def _tensor(value, spec):
    """Return a value of a request as TensorFlow Serving passes it on."""
    if spec.name == "examples":
        value = [base64.b64decode(x) for x in value]
    return tf.constant(value, spec.dtype)


def _read_signature_request(folder, name):
    signatures = _signatures(folder)
    try:
        body = json.loads((folder / name).read_bytes())
        inputs, asked = dict(body["inputs"]), body["signature_name"]
        served = signatures[asked]
        specs = served.structured_input_signature[1]
        values = {k: _tensor(v, specs[k]) for k, v in inputs.items()}
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Refused("the server cannot parse it") from error
    except (AttributeError, OverflowError, tf.errors.OpError) as error:
        raise Refused("no tensors") from error
    served(**values)


def _read_page_request(folder, name):
    from albert_tf.serving.playground import VisitorError, make_ask

    _signatures(folder)
    try:
        body = json.loads((folder / name).read_bytes())
        asked, inputs = body["signature_name"], dict(body["inputs"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Refused("no JSON") from error
    page = _LOADED["page"]
    if not isinstance(asked, str) or asked not in page.inputs:
        raise Refused("no tool")
    cells = [x[0] if isinstance(x, list) and x else x for x in inputs.values()]
    try:
        make_ask(page, asked, dict(inputs))(*cells)
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


def _keras_files(folder):
    made = folder.parent / f"{folder.name}.made"
    made.mkdir()
    _model_dir(made)
    albert_tf.Albert.load(str(made)).save(str(folder / "model.keras"))


def _read_keras(folder, name):
    keras.models.load_model(str(folder / name))


OF_SERVER = (Refused, ValueError, TypeError, tf.errors.OpError)
READERS = {
    "static records": Reader(
        _static_records,
        {"*.tfrecord": mutators.RECORDS, "*.json": mutators.JSON},
        _read_records,
    ),
    "records without metadata": Reader(
        lambda folder: (
            _static_records(folder),
            (folder / "metadata.json").unlink(),
        ),
        {"*.tfrecord": mutators.RECORDS},
        _read_records_alone,
    ),
    "dynamic records": Reader(
        _built_records,
        {
            "*.tfrecord": mutators.RECORDS,
            "metadata.json": mutators.JSON,
            "piece_counts.json": mutators.JSON,
            "spiece.model": mutators.SENTENCEPIECE,
        },
        _read_records,
    ),
    "pipeline": Reader(
        _built_records,
        {"*.tfrecord": mutators.RECORDS, "metadata.json": mutators.JSON},
        _read_pipeline,
        quick=False,
    ),
    "checkpoint": Reader(
        _model_dir,
        {
            "ckpt-*.json": mutators.JSON,
            "ckpt-*": mutators.ANY,
            "checkpoint": mutators.TEXT,
        },
        _read_checkpoint,
    ),
    "model directory": Reader(
        _model_dir,
        {"*.json": mutators.JSON, "vocab.txt": mutators.TEXT},
        _read_model_dir,
    ),
    "spiece.model": Reader(
        _sentencepiece,
        {"spiece.model": mutators.SENTENCEPIECE, "*.json": mutators.JSON},
        _read_tokenizer,
    ),
    "task.json": Reader(_tasks, {"*.json": mutators.JSON}, _read_task),
    "run files": Reader(
        _run_files,
        {"run.flags": mutators.TEXT, "*.json*": mutators.JSON},
        _read_run_files,
    ),
    "run.flags": Reader(
        _run_files,
        {"run.flags": mutators.TEXT},
        _read_flagfile,
        (Refused,),
        quick=False,
    ),
    "hub folder": Reader(
        _hub,
        {
            "*.json": mutators.JSON,
            "*.safetensors": mutators.SAFETENSORS,
            "spiece.model": mutators.SENTENCEPIECE,
        },
        _read_source,
    ),
    "sentence-transformers": Reader(
        _sentence_transformer,
        {"*.json": mutators.JSON, "vocab.txt": mutators.TEXT},
        _read_source,
    ),
    "h5": Reader(_classifier, {"*.h5": mutators.ANY}, _read_source),
    "TF1 release": Reader(
        _release,
        {
            "model.ckpt*": mutators.ANY,
            "checkpoint": mutators.TEXT,
            "*.json": mutators.JSON,
        },
        _read_source,
    ),
    "table": Reader(
        _tables,
        {
            "*.jsonl": mutators.JSON,
            "*.json": mutators.JSON,
            "*.?sv": mutators.TEXT,
            "*": mutators.ANY,
        },
        _read_table,
    ),
    "table of texts": Reader(
        _tables,
        {
            "*.jsonl": mutators.JSON,
            "*.json": mutators.JSON,
            "*.?sv": mutators.TEXT,
            "*.*": mutators.ANY,
        },
        _read_table_texts,
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
    ".keras": Reader(
        _keras_files,
        {"*.keras": mutators.ZIP},
        _read_keras,
        (Exception,),  # Keras reads these files, with errors of every kind
        quick=False,
    ),
}
