"""Compare size, speed and accuracy of the export formats of a model.

    python benchmarks/export_formats.py --model_dir=DIR [--length=128]
        [--threads=2] [--calibration_file=F] [--eval_file=F]
        [--formats=saved_model,xla,onnx,...]

Each format is exported to a temporary folder and loaded in its own process; the
processes take turns. The columns are:

- MB, ratio: the file size, and its ratio to the size of the parameters.
- load s: the seconds from the start of loading to the first answer, without
  imports.
- p50 ms: the median latency of a request for one row of `--length` tokens.
- 32 /s: the rows per second in requests for 32 rows of `--length` tokens.
- mix ms: the median latency of a request for one row of 8 to `--length` tokens.
- 64 /s: the rows per second in requests for 64 texts of such lengths.
- difference: the largest difference from the Python model in probabilities or,
  for a model without a task, in the pooled output.
- accuracy: the accuracy of a classifier, with `--eval_file`.
"""

import argparse
import collections
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from turns import Worker, machine, present, serve

from albert_tf.base.console import format_table

LITERT = {
    f"litert_{precision}": ("--to=litert", f"--precision={precision}")
    for precision in ("float32", "float16", "dynamic_int8", "int8")
}
FORMATS = {  # {format: flags of the export}
    "saved_model": (),
    "xla": ("--jit_compile", "--fixed_length"),
    "bfloat16": ("--precision=bfloat16",),
    **LITERT,
    "onnx": ("--to=onnx",),
}
CUT = ("saved_model", "bfloat16", "onnx")  # formats that accept short inputs
TURNS = ("one", "many", "mixed", "bulk")
HEAD = "format,MB,ratio,load s,p50 ms,32 /s,mix ms,64 /s,difference,accuracy"
WORK = "work"  # first argument of the processes that measure one format
IDS = ("input_ids", "input_mask", "segment_ids")


def requests(data: dict, cut: bool) -> dict[str, list[dict]]:
    """Return {turn: requests to send in the turn}.

    Args:
      data: the arrays of inputs.
      cut: whether the format accepts inputs that are shorter than `--length`.
    """
    ids = {k: data[k] for k in IDS}
    one = {k: v[:1] for k, v in ids.items()}
    many = {k: np.resize(v, [32, v.shape[1]]) for k, v in ids.items()}
    lengths = data["lengths"][:8] if cut else [one[IDS[0]].shape[1]]
    mixed = [{k: v[:, :n] for k, v in one.items()} for n in lengths]
    return {"one": [one] * 3, "many": [many], "mixed": mixed}


def outputs_of(call: Callable, data: dict) -> np.ndarray:
    """Return all probabilities or, for a model without a task, pooled outputs.

    The result has one row for each row of the data.
    """
    outputs = [
        call({k: data[k][i : i + 32] for k in IDS})
        for i in range(0, len(data[IDS[0]]), 32)
    ]
    key = "probabilities" if "probabilities" in outputs[0] else "pooled_output"
    return np.concatenate([output[key] for output in outputs])


def tensorflow(threads: int = 2):
    """Import TensorFlow and set its number of threads."""
    from albert_tf.base import program

    with program.quiet_start():
        import tensorflow as tf
    import tensorflow_text  # noqa: F401

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    return tf


def saved_model_calls(args):
    """Load a SavedModel; return the start time and two functions.

    The functions run the model on ids and on texts.
    """
    tf = tensorflow(args.threads)
    start = time.monotonic()
    loaded = tf.saved_model.load(args.folder)
    ids, texts = (loaded.signatures[n] for n in ("ids", "serving_default"))

    def call(inputs):
        outputs = ids(**{k: tf.constant(v) for k, v in inputs.items()})
        return {
            k: v.numpy() for k, v in outputs.items() if v.dtype == tf.float32
        }

    call.keep = loaded
    return start, call, lambda batch: texts(tf.constant(batch))


def litert_calls(args):
    """Load a LiteRT model; return the start time, a function and None.

    The function runs the model on ids. None takes the place of a function for
    texts, which the model does not accept.
    """
    from albert_tf.serving.litert_runner import Runner

    start = time.monotonic()
    runner = Runner(args.folder, threads=args.threads)

    def call(inputs):
        size = runner.batch_size
        parts = []
        for first in range(0, len(inputs[IDS[0]]), size):
            some = {k: v[first : first + size] for k, v in inputs.items()}
            parts.append(runner.call(some))
        return {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}

    return start, call, None


def onnx_calls(args):
    """Load an ONNX model; return the start time and two functions.

    The functions run the model on ids and on texts.
    """
    import onnxruntime

    from albert_tf.serving.onnx_file import run
    from albert_tf.text.tokenizers import load_saved_tokenizer

    start = time.monotonic()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    path = os.path.join(args.folder, "model.onnx")
    session = onnxruntime.InferenceSession(path, options)
    tokenizer = load_saved_tokenizer(args.model_dir)
    names = [output.name for output in session.get_outputs()]
    if "mlm_logits" in names:
        names.remove("mlm_logits")  # not an output of the other formats
    call = functools.partial(run, session, names)

    def call_texts(batch):
        packed = tokenizer(batch, max_length=args.length)
        longest = packed["input_mask"].sum(1).max()
        return call({k: packed[k][:, :longest] for k in IDS})

    return start, call, call_texts


CALLS = {"onnx": onnx_calls} | dict.fromkeys(LITERT, litert_calls)


def scores(call, data: dict) -> dict[str, float]:
    """Return the largest difference from the Python model.

    If the data have labels, return the accuracy too.
    """
    values = outputs_of(call, data)
    result = {"difference": float(np.abs(values - data["wanted"]).max())}
    if "labels" in data:
        right = values.argmax(-1) == data["labels"][: len(values)]
        result["accuracy"] = float(right.mean())
    return result


def make_work() -> Callable[[str], dict]:
    """Load one format in this process; return the function that runs a turn."""
    args = argparse.Namespace(**json.loads(sys.argv[2]))
    data, name = dict(np.load(args.inputs)), args.name
    start, call, texts = CALLS.get(name, saved_model_calls)(args)
    queries = requests(data, cut=name in CUT)
    call(queries["one"][0])
    loaded = time.monotonic() - start
    if texts:
        queries["bulk"] = [list(data["texts"])]

    def work(turn: str) -> dict:
        if turn == "first":
            return {"load_s": loaded} | scores(call, data)
        times = []
        for inputs in queries.get(turn, ()):
            start = time.monotonic()
            (texts if turn == "bulk" else call)(inputs)
            times.append(time.monotonic() - start)
        return {"times": times}

    return work


def export(args, name: str, folder: str) -> int:
    """Export a format; return the size of the weights file, in bytes."""
    from albert_tf.serving.export import model_size

    command = [sys.executable, "-m", "albert_tf.export"]
    command += [f"--model_dir={os.path.abspath(args.model_dir)}"]
    command += [f"--max_seq_length={args.length}"]
    command += [f"--export_dir={folder}", *FORMATS[name]]
    if name == "litert_int8":
        command += [f"--calibration_file={args.calibration_file}"]
    subprocess.run(command, check=True, capture_output=True)
    return model_size(folder)


def make_inputs(args, path: str) -> int:
    """Write the inputs, and the Python model's outputs for them, to a file.

    Return the size of the model's parameters in bytes.
    """
    tf = tensorflow()
    from albert_tf.serving.server import load_server
    from albert_tf.serving.signatures import ServingConfig

    server = load_server(
        args.model_dir, ServingConfig(max_seq_length=args.length)
    )
    arrays = {}
    if args.eval_file:
        task = server.task.updated(max_seq_length=args.length)
        examples = task.read("eval", args.eval_file)
        rows = task.features(examples, server.encoder.tokenizer)
        arrays = rows.dense() | {"labels": rows.arrays["labels"]}
    else:
        rng = np.random.default_rng(0)
        vocab = server.encoder.albert.config.vocab_size
        shape = (64, args.length)
        arrays["input_ids"] = rng.integers(5, vocab, shape).astype(np.int32)
        arrays["input_mask"] = np.ones(shape, np.int32)
        arrays["segment_ids"] = np.zeros(shape, np.int32)
    lengths = np.random.default_rng(1).integers(8, args.length + 1, 64)
    arrays["lengths"] = lengths
    arrays["texts"] = np.array([" ".join(["film"] * n) for n in lengths - 2])
    arrays["wanted"] = outputs_of(
        lambda ids: server.numbers(**{k: tf.constant(ids[k]) for k in IDS}),
        arrays,
    )
    np.savez(path, **arrays)
    return 4 * sum(v.shape.num_elements() for v in server.weights.values())


def row(worker: Worker, size: int, parameters: int, times: dict) -> list[str]:
    """Return a row of the table."""
    middle = {turn: float(np.median(times[turn] or np.nan)) for turn in TURNS}
    return [
        worker.name,
        f"{size / 1e6:.1f}",
        f"{size / parameters:.3f}",
        f"{worker.hello['load_s']:.1f}",
        f"{1000 * middle['one']:.1f}",
        f"{32 / middle['many']:.1f}",
        f"{1000 * middle['mixed']:.1f}",
        f"{64 / middle['bulk']:.1f}",
        f"{worker.hello['difference']:.1e}",
        f"{worker.hello.get('accuracy', np.nan):.3f}",
    ]


def main() -> None:
    """Measure every format and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--calibration_file")
    parser.add_argument("--eval_file")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    names = args.formats.split(",")
    if not args.calibration_file:
        names = [name for name in names if name != "litert_int8"]
    with tempfile.TemporaryDirectory() as folder:
        inputs = os.path.join(folder, "inputs.npz")
        parameters, sizes, workers = make_inputs(args, inputs), {}, []
        print(f"{machine('tensorflow', 'onnxruntime')}, {args.threads} threads")
        print(f"parameters {parameters / 1e6:.1f} MB, length {args.length}")
        for name in names:
            export_of = {"name": name, "folder": os.path.join(folder, name)}
            sizes[name] = export(args, **export_of)
            case = json.dumps(vars(args) | export_of | {"inputs": inputs})
            workers.append(Worker(name, "export_formats.py", [WORK, case]))
        workers = present(workers)
        times = {w.name: collections.defaultdict(list) for w in workers}
        for turn in TURNS * args.rounds:
            for worker in workers:
                worker.work(turn)
                times[worker.name][turn] += worker.last["times"]
    rows = [
        row(worker, sizes[worker.name], parameters, times[worker.name])
        for worker in workers
    ]
    print(*format_table([HEAD.split(","), *rows]), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == [WORK]:
        serve(make_work)
    else:
        main()
