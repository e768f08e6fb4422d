"""Size, speed and agreement of the formats that a model exports to.

    python benchmarks/export_formats.py --model_dir=DIR [--length=128]
        [--threads=2] [--landed=CHECKOUT] [--calibration_file=F]
        [--eval_file=F --number=500] [--formats=saved_model,xla,onnx,...]

Each format is exported to a temporary folder and loaded in a process of its
own; the processes take turns. Columns: file size beside the parameters' bytes;
seconds from load to first answer, without the imports; median latency of one
row and rows a second of 32, of `--length` tokens; median latency of one row
where every request has another length, 8 tokens to `--length`; rows a second of
one request of 64 texts of such lengths; the largest difference of the
probabilities (or the pooled output) from the Python model's; and, with
`--eval_file`, the accuracy of a classifier. `landed` is the SavedModel that the
code of another checkout exports.
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
SAVED_MODELS = ("landed", "saved_model", "xla")
FORMATS = (*SAVED_MODELS, *(f"litert_{p}" for p in LITERT), "onnx")
TURNS = ("one", "many", "mixed", "bulk")
PASSED = ("model_dir", "length", "threads")
IDS = ("input_ids", "input_mask", "segment_ids")


def requests(data: dict, cut: bool) -> dict[str, list[dict]]:
    """Return {turn: the ids that are asked for in it}."""
    ids = {k: data[k] for k in IDS}
    one = {k: v[:1] for k, v in ids.items()}
    many = {k: np.resize(v, [32, v.shape[1]]) for k, v in ids.items()}
    lengths = data["lengths"][:8] if cut else [one[IDS[0]].shape[1]]
    mixed = [{k: v[:, :n] for k, v in one.items()} for n in lengths]
    return {"one": [one] * 3, "many": [many], "mixed": mixed}


def tensorflow(threads: int = 2):
    """Return TensorFlow with a number of threads."""
    from albert_tf.base import program

    with program.quiet_start():
        import tensorflow as tf
    import tensorflow_text  # noqa: F401

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    return tf


def saved_model_calls(args):
    """Return functions of ids and of texts to the outputs of a SavedModel."""
    tf = tensorflow(args.threads)
    start = time.monotonic()
    loaded = tf.saved_model.load(args.folder)
    ids, texts = (loaded.signatures[n] for n in ("ids", "serving_default"))

    def call(inputs):
        found = ids(**{k: tf.constant(v) for k, v in inputs.items()})
        return {k: v.numpy() for k, v in found.items() if v.dtype == tf.float32}

    call.keep = loaded
    return start, call, lambda batch: texts(tf.constant(batch))


def litert_calls(args):
    """Return the same of a LiteRT model, which has a fixed batch size."""
    from albert_tf.serving.litert_model import Runner

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
    """Return the same of an ONNX model, with Python's tokenizer."""
    import onnxruntime

    from albert_tf.text.tokenizers import load_tokenizer

    start = time.monotonic()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    path = os.path.join(args.folder, "model.onnx")
    session = onnxruntime.InferenceSession(path, options)
    tokenizer = load_tokenizer(args.model_dir)
    names = [output.name for output in session.get_outputs()]
    wants_masks = "mlm_positions" in {i.name for i in session.get_inputs()}
    if wants_masks:
        names.remove("mlm_logits")  # the other formats' signature has none

    def call(inputs):
        if wants_masks:
            positions = np.zeros([len(inputs[IDS[0]]), 1], np.int32)
            inputs = inputs | {"mlm_positions": positions}
        return dict(zip(names, session.run(names, inputs), strict=True))

    def call_texts(batch):
        packed = tokenizer(batch, max_length=args.length)
        longest = packed["input_mask"].sum(1).max()
        return call({k: packed[k][:, :longest] for k in IDS})

    return start, call, call_texts


def answer_turns(call, call_texts, data, asked) -> None:
    """Print the seconds of each request of the turns that stdin names."""
    for line in sys.stdin:
        turn, times = line.strip(), []
        for inputs in asked.get(turn, [list(data["texts"])]):
            start = time.monotonic()
            (call_texts if turn == "bulk" else call)(inputs)
            times.append(time.monotonic() - start)
        print(json.dumps(times), flush=True)


def work(args) -> None:
    """Measure one format in this process; print JSON lines."""
    data = dict(np.load(args.inputs))
    is_litert = args.work.startswith("litert")
    calls = litert_calls if is_litert else saved_model_calls
    start, call, call_texts = (onnx_calls if args.work == "onnx" else calls)(
        args
    )
    asked = requests(data, cut=not is_litert and args.work != "xla")
    outputs = call(asked["one"][0])
    result = {"load_s": time.monotonic() - start}
    result["turns"] = [t for t in TURNS if t != "bulk" or call_texts]
    key = "probabilities" if "probabilities" in outputs else "pooled_output"
    values = np.concatenate(
        [
            call({k: data[k][i : i + 32] for k in IDS})[key]
            for i in range(0, len(data[IDS[0]]), 32)
        ]
    )
    result["difference"] = float(np.abs(values - data["wanted"]).max())
    if "labels" in data:
        right = values.argmax(-1) == data["labels"][: len(values)]
        result["accuracy"] = float(right.mean())
    print(json.dumps(result), flush=True)
    answer_turns(call, call_texts, data, asked)


def export(args, name: str, folder: str) -> int:
    """Export a format; return the bytes of the file with the weights."""
    from albert_tf.serving.exporting import model_size

    command = [sys.executable, "-m", "albert_tf.export"]
    command += [f"--model_dir={os.path.abspath(args.model_dir)}"]
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
    checkout = args.landed if name == "landed" else None
    subprocess.run(command, check=True, capture_output=True, cwd=checkout)
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
    lengths = np.random.default_rng(1).integers(8, args.length + 1, 64)
    arrays["lengths"] = lengths
    arrays["texts"] = np.array([" ".join(["film"] * n) for n in lengths - 2])
    wanted = []
    for start in range(0, len(arrays[IDS[0]]), 32):
        inputs = {k: tf.constant(arrays[k][start : start + 32]) for k in IDS}
        found = server.numbers(**inputs)
        key = "probabilities" if "probabilities" in found else "pooled_output"
        wanted.append(found[key].numpy())
    arrays["wanted"] = np.concatenate(wanted)
    np.savez(path, **arrays)
    return 4 * sum(v.shape.num_elements() for v in server.weights.values())


def machine(args, parameters: int) -> str:
    """Return what was measured where, and the names of the columns."""
    import platform

    import onnxruntime
    import tensorflow as tf

    return (
        f"{platform.machine()}, {args.threads} threads, TensorFlow "
        f"{tf.__version__}, ONNX Runtime {onnxruntime.__version__}; "
        f"parameters {parameters / 1e6:.1f} MB, length {args.length}\n"
        f"{'format':20} {'MB':>6} {'ratio':>6} {'load s':>6} {'p50 ms':>7} "
        f"{'32 /s':>7} {'mix ms':>7} {'64 /s':>6} {'difference':>10} accuracy"
    )


class Worker:
    """A format, loaded in a process of its own."""

    def __init__(self, args, name, folder, inputs):
        self.name, source = name, os.path.join(folder, name)
        self.size = export(args, name, source)
        command = [sys.executable, __file__, f"--work={name}"]
        command += [f"--folder={source}", f"--inputs={inputs}"]
        command += [f"--{n}={getattr(args, n)}" for n in PASSED]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True
        )
        self.result = self.read()
        self.times = {turn: [] for turn in self.result["turns"]}

    def read(self):
        return json.loads(self.process.stdout.readline())

    def take(self, turn: str) -> None:
        """Have the process answer a turn."""
        if turn in self.times:
            print(turn, file=self.process.stdin, flush=True)
            self.times[turn] += self.read()

    def row(self, parameters: int) -> str:
        """Return a line of the table."""
        middle = {k: float(np.median(v)) for k, v in self.times.items()}
        bulk = f"{64 / middle['bulk']:6.1f}" if "bulk" in middle else ""
        accuracy = self.result.get("accuracy")
        return (
            f"{self.name:20} {self.size / 1e6:6.1f} "
            f"{self.size / parameters:6.3f} {self.result['load_s']:6.1f} "
            f"{1000 * middle['one']:7.1f} {32 / middle['many']:7.1f} "
            f"{1000 * middle['mixed']:7.1f} {bulk:>6} "
            f"{self.result['difference']:10.1e} "
            + (f"{accuracy:.3f}" if accuracy is not None else "")
        )


def main() -> None:
    """Measure every format and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--landed")
    parser.add_argument("--calibration_file")
    parser.add_argument("--eval_file")
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    for name in ("work", "folder", "inputs"):
        parser.add_argument(f"--{name}", help="for the program itself")
    args = parser.parse_args()
    if args.work:
        work(args)
        return
    needs = {"landed": args.landed, "litert_int8": args.calibration_file}
    names = [n for n in args.formats.split(",") if needs.get(n, True)]
    with tempfile.TemporaryDirectory() as folder:
        inputs = os.path.join(folder, "inputs.npz")
        parameters = make_inputs(args, inputs)
        print(machine(args, parameters))
        workers = [Worker(args, name, folder, inputs) for name in names]
        for turn in TURNS * args.rounds:
            for worker in workers:
                worker.take(turn)
        print(*(worker.row(parameters) for worker in workers), sep="\n")
        for worker in workers:
            worker.process.communicate()


if __name__ == "__main__":
    main()
