"""Size, speed and agreement of the formats that a model exports to.

    python benchmarks/export_formats.py --model_dir=DIR [--length=128]
        [--calibration_file=F] [--eval_file=F --number=500]
        [--formats=saved_model,xla,litert_float32,...]

Each format is exported to a temporary folder and run in a process of its own
with two threads. Columns: file size beside the parameters' bytes, latency p50
and p95 at batch 1, texts a second at batch 32, the largest difference of the
probabilities (or the pooled output) from the Python model's, and, with
`--eval_file`, the accuracy of a classifier.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

LITERT = ("float32", "float16", "dynamic_int8", "int8")
FORMATS = ("saved_model", "xla", *(f"litert_{p}" for p in LITERT), "onnx")
IDS = ("input_ids", "input_mask", "segment_ids")


def measure(call, batch1: dict, batch32: dict, seconds: float) -> dict:
    """Return p50 and p95 at batch 1, and rows a second at batch 32."""

    def times(inputs, most):
        for _ in range(3):
            call(inputs)
        found, until = [], time.monotonic() + most
        while time.monotonic() < until or len(found) < 5:
            start = time.monotonic()
            call(inputs)
            found.append(time.monotonic() - start)
        return np.array(found)

    one, many = times(batch1, seconds), times(batch32, seconds)
    return {
        "p50_ms": 1000 * float(np.percentile(one, 50)),
        "p95_ms": 1000 * float(np.percentile(one, 95)),
        "rows_per_s": 32 / float(np.median(many)),
    }


def tensorflow():
    """Return TensorFlow with two threads."""
    from albert_tf.base import program

    with program.quiet_start():
        import tensorflow as tf
    import tensorflow_text  # noqa: F401

    tf.config.threading.set_intra_op_parallelism_threads(2)
    return tf


def saved_model_call(folder: str):
    """Return a function from ids to outputs of a SavedModel."""
    tf = tensorflow()
    loaded = tf.saved_model.load(folder)
    signature = loaded.signatures["ids"]

    def call(inputs):
        found = signature(**{k: tf.constant(v) for k, v in inputs.items()})
        return {k: v.numpy() for k, v in found.items() if v.dtype == tf.float32}

    call.keep = loaded
    return call


def litert_call(folder: str):
    """Return the same of a LiteRT model, which has a fixed batch size."""
    from albert_tf.serving.litert_model import Runner

    runner = Runner(folder, threads=2)

    def call(inputs):
        size = runner.batch_size
        parts = []
        for start in range(0, len(inputs[IDS[0]]), size):
            some = {k: v[start : start + size] for k, v in inputs.items()}
            parts.append(runner.call(some))
        return {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}

    return call


def onnx_call(folder: str):
    """Return the same of an ONNX model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    path = os.path.join(folder, "model.onnx")
    session = onnxruntime.InferenceSession(path, options)
    names = [output.name for output in session.get_outputs()]
    wants_masks = "mlm_positions" in {i.name for i in session.get_inputs()}

    def call(inputs):
        if wants_masks:
            positions = np.zeros([len(inputs[IDS[0]]), 1], np.int32)
            inputs = inputs | {"mlm_positions": positions}
        return dict(zip(names, session.run(names, inputs), strict=True))

    return call


def caller(name: str, folder: str):
    """Return the function of a format."""
    if name.startswith("litert"):
        return litert_call(folder)
    if name == "onnx":
        return onnx_call(folder)
    return saved_model_call(folder)


def work(args) -> None:
    """Measure one format in this process; print JSON."""
    data = dict(np.load(args.inputs))
    inputs = {k: data[k] for k in IDS}
    call = caller(args.work, args.folder)
    one = {k: v[:1] for k, v in inputs.items()}
    many = {k: np.resize(v, [32, v.shape[1]]) for k, v in inputs.items()}
    found = measure(call, one, many, args.seconds)
    key = "probabilities" if "probabilities" in call(one) else "pooled_output"
    rows = [
        call({k: v[i : i + 32] for k, v in inputs.items()})[key]
        for i in range(0, len(inputs[IDS[0]]), 32)
    ]
    values = np.concatenate(rows)
    if "wanted" in data:
        wanted = data["wanted"][: len(values)]
        found["difference"] = float(np.abs(values - wanted).max())
    if "labels" in data:
        right = values.argmax(-1) == data["labels"][: len(values)]
        found["accuracy"] = float(right.mean())
    print(json.dumps(found))


def export(args, name: str, folder: str) -> int:
    """Export a format; return the bytes of the file with the weights."""
    from albert_tf.serving.exporting import model_size

    command = [sys.executable, "-m", "albert_tf.export"]
    command += [f"--model_dir={args.model_dir}"]
    command += [f"--max_seq_length={args.length}"]
    if name == "xla":
        command += ["--jit_compile", "--fixed_length"]
    command += [f"--export_dir={folder}"]
    if name.startswith("litert_"):
        precision = name.removeprefix("litert_")
        command += ["--to=litert", f"--precision={precision}"]
        if precision == "int8":
            command += [f"--calibration_file={args.calibration_file}"]
    elif name == "onnx":
        command += ["--to=onnx"]
    subprocess.run(command, check=True, capture_output=True)
    return model_size(folder)


def make_inputs(args, path: str) -> int:
    """Write the inputs and the Python model's outputs; return its bytes."""
    tf = tensorflow()
    from albert_tf.serving.calibration import batches
    from albert_tf.serving.encoder import ServingConfig
    from albert_tf.serving.model_servers import load_server
    from albert_tf.tasks.task import TaskConfig

    server = load_server(
        args.model_dir, ServingConfig(max_seq_length=args.length)
    )
    arrays = {}
    if args.eval_file:
        length = TaskConfig(max_seq_length=args.length)
        task = server.task.with_config(length)
        examples = task.read("eval", args.eval_file)[: args.number]
        found = task.features(examples, server.encoder.tokenizer)
        arrays = next(batches(found, args.number, args.number))
        arrays["labels"] = found.arrays["labels"]
    else:
        rng = np.random.default_rng(0)
        vocab = server.encoder.albert.config.vocab_size
        shape = (64, args.length)
        arrays["input_ids"] = rng.integers(5, vocab, shape).astype(np.int32)
        arrays["input_mask"] = np.ones(shape, np.int32)
        arrays["segment_ids"] = np.zeros(shape, np.int32)
    wanted = []
    for start in range(0, len(arrays[IDS[0]]), 32):
        inputs = {k: tf.constant(arrays[k][start : start + 32]) for k in IDS}
        found = server.numbers(**inputs)
        key = "probabilities" if "probabilities" in found else "pooled_output"
        wanted.append(found[key].numpy())
    arrays["wanted"] = np.concatenate(wanted)
    np.savez(path, **arrays)
    return 4 * sum(v.shape.num_elements() for v in server.weights.values())


def main() -> None:
    """Measure every format and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_dir")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--calibration_file")
    parser.add_argument("--eval_file")
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0)
    for name in ("work", "folder", "inputs"):
        parser.add_argument(f"--{name}", help="for the program itself")
    args = parser.parse_args()
    if args.work:
        work(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        inputs = os.path.join(folder, "inputs.npz")
        parameters = make_inputs(args, inputs)
        print(f"parameters {parameters / 1e6:.1f} MB, length {args.length}")
        print(
            f"{'format':20} {'MB':>7} {'ratio':>6} {'p50 ms':>8} "
            f"{'p95 ms':>8} {'rows/s':>7} {'difference':>10} {'accuracy':>8}"
        )
        for name in args.formats.split(","):
            if name == "litert_int8" and not args.calibration_file:
                print(f"{name:20} needs --calibration_file")
                continue
            row(args, name, folder, inputs, parameters)


def row(args, name, folder, inputs, parameters) -> None:
    """Print a row of the table."""
    source = os.path.join(folder, name)
    try:
        size = export(args, name, source)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode().strip().splitlines()[-1]
        print(f"{name:20} not exported: {reason[:90]}", flush=True)
        return
    command = [sys.executable, __file__, f"--work={name}"]
    command += [f"--folder={source}", f"--inputs={inputs}"]
    command += [f"--seconds={args.seconds}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["?"])[-1]
        print(f"{name:20} {size / 1e6:7.1f} failed: {reason[:90]}")
        return
    found = json.loads(done.stdout.splitlines()[-1])
    accuracy = f"{found['accuracy']:8.3f}" if "accuracy" in found else ""
    print(
        f"{name:20} {size / 1e6:7.1f} {size / parameters:6.3f} "
        f"{found['p50_ms']:8.1f} {found['p95_ms']:8.1f} "
        f"{found['rows_per_s']:7.1f} {found['difference']:10.1e} {accuracy}",
        flush=True,
    )


if __name__ == "__main__":
    main()
