"""Readers of files that programs write, and valid files to damage."""

import dataclasses
import json
import sys
from unittest import mock

import h5py
import keras
import safetensors.numpy
import tiny
import tiny_pretraining
import tiny_records
import tiny_tasks
import vocabularies
from fuzz import mutators
from fuzz.reader import (
    Reader,
    Refused,
    beside,
    model_dir,
    words,
    write_json,
    write_lines,
)

import albert_tf
from albert_tf.base import files, program
from albert_tf.conversion import sources
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.describe import size_report
from albert_tf.data.records import (
    input_pipeline,
    inspect_records,
    metadata,
    piece_vectors,
    tfrecord,
)
from albert_tf.data.records import input_pipeline as pipeline
from albert_tf.model.config import CONFIG_FILE
from albert_tf.tasks.registry import KINDS, find, load_task
from albert_tf.text.tokenizers import load_saved_tokenizer
from albert_tf.training import checkpoints, model_card
from albert_tf.training.history import HISTORY_FILE, History

# Pretraining records.


def _static_records(folder):
    tiny_records.write_records(folder)
    write_json(folder / "piece_counts.json", [1] * 128)


def _built_records(folder):
    """Build dynamic training records, and static held-out records."""
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
    input_pipeline.check_files(str(folder), found)
    found.masking_config()
    metadata.read_piece_counts(str(folder), 128)
    config = inspect_records.TokenizerConfig()
    for split in ("train", "eval"):
        for path in metadata.paths_of(str(folder), found, split):
            vocabulary = inspect_records.find_vocabulary(path, config)
            for example in tfrecord.decoded(path):
                inspect_records.show(example, vocabulary)
    piece_vectors.read_tokens(str(folder), found)


def _read_records_alone(folder, name):
    """Read the records without their metadata."""
    found = metadata.read_metadata(str(folder))
    input_pipeline.check_files(str(folder), found)


def read_batches(folder, name):
    """Read batches as training and evaluation do."""
    where = str(folder)
    found = metadata.read_metadata(where)
    input_pipeline.check_files(where, found)
    with input_pipeline.errors_explained({where: found}):
        batches = pipeline.train_batches(where, found, batch_size=4, seed=1)
        for _ in batches.take(8):
            pass
        for _ in pipeline.eval_batches(where, found, batch_size=4):
            pass


# Model directories.


def _read_checkpoint(folder, name):
    prefix = checkpoints.for_inference(str(folder))
    read = checkpoints.reader(prefix)
    for variable in checkpoints.read_table(prefix):
        read(variable)
    checkpoints.fingerprint(prefix)


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
    write_json(folder / "tokenizer.json", values)


def _read_tokenizer(folder, name):
    _use_tokenizer(load_saved_tokenizer(str(folder)))


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
    task.features([example], words())


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
    write_lines(folder / HISTORY_FILE, rows)
    (folder / "metadata.json").write_text('{"settings": {"a": 1}}')


def _read_run_files(folder, name):
    model_card.card(str(folder), str(folder), "model_dir")
    files.read_optional_json(str(folder), "metadata.json")
    found = History.read(str(folder))
    found.last("eval")
    found.column("train", "loss")


def _read_flagfile(folder, name):
    """Parse the flags as the program does."""
    pretraining = albert_tf.pretrain.program
    if "num_train_steps" not in program.FLAGS:
        pretraining.define_flags()
    program.FLAGS.unparse_flags()
    for flag in program.FLAGS:
        program.FLAGS[flag].unparse()
    argv = ["pretrain", f"--flagfile={folder / name}"]
    # absl takes seconds to find names that are similar to a very long name.
    similar = "absl.flags._helpers.get_flag_suggestions"
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch(similar, lambda *_: []),
    ):
        try:
            program.run(lambda: pretraining.from_flags() and None)
        except SystemExit as error:
            if error.code:
                raise Refused(f"status {error.code}") from None


# Models of other projects.


def _sentencepiece_model(folder):
    _sentencepiece(folder)
    tokenizer = load_saved_tokenizer(str(folder))
    changes = {"vocab_size": tokenizer.vocab_size, "num_hidden_layers": 1}
    config = dataclasses.replace(tiny.CONFIG, **changes)
    tiny_tasks.write_model(folder, config, tokenizer)


def _hub(folder, make=_sentencepiece_model):
    convert(beside(folder, make), str(folder), "huggingface")
    special = {"mask_token": {"content": "[MASK]"}, "cls_token": "[CLS]"}
    write_json(folder / "special_tokens_map.json", special)


def _sentence_transformer(folder):
    _hub(folder, model_dir)
    rows = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "x.Pooling", "path": "1_Pooling"},
        {"type": "x.Normalize", "path": "2_Normalize"},
    ]
    write_json(folder / "modules.json", rows)
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": 0}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    settings = {"max_seq_length": 8, "do_lower_case": True}
    write_json(folder / "sentence_bert_config.json", settings)
    settings = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    write_json(folder / "config_sentence_transformers.json", settings)
    values = json.loads((folder / "config.json").read_text())
    values["architectures"] = ["AlbertModel"]
    write_json(folder / "config.json", values)


def _classifier(folder):
    """Write a Hugging Face folder whose weights are in an HDF5 file."""
    _hub(folder, model_dir)
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
    convert(beside(folder), str(folder), "tf1")


# Weights in Keras's own format.


def _keras_files(folder):
    model = albert_tf.Albert.load(beside(folder))
    model.save(str(folder / "model.keras"))


def _read_keras(folder, name):
    keras.models.load_model(str(folder / name))


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
        read_batches,
        quick=False,
    ),
    "checkpoint": Reader(
        model_dir,
        {
            "ckpt-*.json": mutators.JSON,
            "ckpt-*": mutators.ANY,
            "checkpoint": mutators.TEXT,
        },
        _read_checkpoint,
    ),
    "model directory": Reader(
        model_dir,
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
    ".keras": Reader(
        _keras_files,
        {"*.keras": mutators.ZIP},
        _read_keras,
        (Exception,),  # Keras raises errors of any type for damaged files
        quick=False,
    ),
}
