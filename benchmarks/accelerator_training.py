"""Pretrain with exported steps on any device that JAX supports.

    python -m albert_tf.tpu_check --topology=v5e:1x1 --step_file=four.zip \\
        --albert_config_file=configs/models/tiny.json --max_seq_length=64 \\
        --max_predictions_per_seq=19 --train_batch_size=64 --optimizer=muon \\
        --learning_rate=0.0014 --weight_decay_rate=0.1 --beta_2=0.98 \\
        --bias_correction --num_train_steps=1250 --num_warmup_steps=62 \\
        --dtype=bfloat16 --encoder_loop=unrolled --rematerialize=none
    python benchmarks/accelerator_training.py begin first.npz \\
        configs/models/tiny.json records
    python benchmarks/accelerator_training.py train first.npz last.npz \\
        two.zip,500,0.30,records four.zip,750,0.30,records
    python benchmarks/accelerator_training.py end last.npz \\
        configs/models/tiny.json records model

`accelerator_step.py` measures speed; this program measures learning. Each phase
of a run has its own step file, with another depth (`two.zip` is a model of two
layers, which has the same variables) or number of masked words. A phase is
STEP_FILE,STEPS,MASKED_LM_PROB,RECORDS; the schedule in every file is that of
the entire run. `begin` writes the initial weights and `end` a model directory;
both need TensorFlow. `train` needs JAX without TensorFlow, and records made
with `--masking=dynamic`.
"""

import argparse
import functools
import json
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from albert_tf.base.errors import require
from albert_tf.base.processes import in_order
from albert_tf.data.draws import Draws
from albert_tf.data.layout import Pairs, lay_out
from albert_tf.data.masking import DYNAMIC, Words, mask
from albert_tf.data.records import metadata, tfrecord
from albert_tf.data.records.metadata import TRAIN, id_type, paths_of
from albert_tf.text.tokenizers import load_tokenizer

STEPS_AT_ONCE = 50
RATE_FACTOR = "optimizer/rate_factor"
LOSSES = ("mlm_loss", "sop_loss", "mlm_accuracy", "sop_accuracy")


class Phase(NamedTuple):
    """Consecutive steps with the same step file and records."""

    step_file: str
    steps: int
    masked_lm_prob: float
    records: str

    @classmethod
    def of(cls, text: str) -> "Phase":
        """Parse a phase from the command line."""
        try:
            path, steps, share, records = text.split(",")
            return cls(path, int(steps), float(share), records)
        except ValueError:
            rule = "A phase must be STEP_FILE,STEPS,MASKED_LM_PROB,RECORDS."
            raise argparse.ArgumentTypeError(
                f"{rule} Received: {text}"
            ) from None


class Records:
    """The training records of a folder, laid out and masked while reading.

    Args:
      folder: the folder of dynamic records.
      seed: the seed of their order and their masks.
    """

    def __init__(self, folder: str, seed: int):
        self.metadata, self.seed = metadata.read_metadata(folder), seed
        masking = self.metadata.masking(TRAIN)
        rule = "`records` must have been made with --masking=dynamic."
        require(masking == DYNAMIC, rule, records=f"{folder}, {masking} ones")
        self.tokenizer = load_tokenizer(folder)
        self.words = Words.of(self.tokenizer)
        dtype = id_type(self.metadata.vocab_size)
        ids, starts, sizes, labels = [], [], [], []
        for path in paths_of(folder, self.metadata, TRAIN):
            for feature in map(tfrecord.parse, tfrecord.read(path)):
                ids.append(np.frombuffer(feature["token_ids"][0], dtype))
                bits = np.frombuffer(feature["word_starts"][0], np.uint8)
                starts.append(np.unpackbits(bits, count=len(ids[-1])))
                sizes.append(feature["segment_lengths"])
                labels.append(feature["next_sentence_labels"][0])
        self.tokens = SimpleNamespace(
            ids=np.concatenate(ids), starts=np.concatenate(starts) > 0
        )
        ends = np.cumsum(np.reshape(sizes, -1))
        begins = np.concatenate([[0], ends[:-1]])
        (a, b), (a_end, b_end) = (x.reshape(-1, 2).T for x in (begins, ends))
        self.pairs = Pairs(a, a_end, b, b_end, np.array(labels) > 0)

    def places(self, first: int, count: int) -> np.ndarray:
        """Return the indices of a range of records, shuffled every epoch."""
        total = len(self.pairs)
        epochs = range(first // total, (first + count - 1) // total + 1)
        rngs = (np.random.default_rng([self.seed, epoch]) for epoch in epochs)
        order = np.concatenate([rng.permutation(total) for rng in rngs])
        return order[first - epochs[0] * total :][:count]

    def batch(self, first: int, count: int, share: float) -> dict:
        """Return `count` masked examples from `first` on; fields [n, ...]."""
        config = self.metadata.masked_at(share).masking_config()
        pairs = self.pairs.take(self.places(first, count))
        length = self.metadata.max_seq_length
        text = self.tokens.ids, self.tokens.starts
        laid = lay_out(pairs, *text, length, self.tokenizer)
        draws = Draws(self.seed, first + np.arange(count))
        masked = mask(
            laid, config.most_masked(length), config, self.words, draws
        )
        return {
            "input_ids": masked.input_ids,
            "input_mask": np.arange(length) < laid.lengths[:, None],
            "segment_ids": laid.segment_ids,
            "masked_lm_positions": masked.positions,
            "masked_lm_ids": masked.labels,
            "masked_lm_weights": masked.weights,
            "sentence_order_labels": laid.swapped,
            "example_weights": np.ones(count),
        }


class Program:
    """The step in a file, run many times per call."""

    def __init__(self, path: str):
        import jax
        import jax.export

        with zipfile.ZipFile(path) as archive:
            self.about = json.loads(archive.read("step.json"))
            artifact = archive.read("step.jax")
        arguments = self.about["arguments"]
        self.types = {x["name"]: x["dtype"] for x in arguments}
        self.shapes = {x["name"]: x["shape"] for x in arguments}
        self.batch_size, self.tokens = self.shapes["input_ids"]
        self.predictions = self.shapes["masked_lm_ids"][1]
        call = jax.export.deserialize(bytearray(artifact)).call

        def step(state, batch):
            values = state | batch
            outputs = call(*(values[name] for name in self.types))
            named = dict(zip(self.about["outputs"], outputs, strict=True))
            return {n: named.get(n, state[n]) for n in state}, named["report"]

        def steps(state, batches):
            return jax.lax.scan(step, state, batches)

        self.steps = jax.jit(steps, donate_argnums=0)

    def state(self, weights: dict) -> dict:
        """Return the initial state of a run: the weights, and zero slots."""
        state = {
            name: np.zeros(self.shapes[name], dtype)
            for name, dtype in self.types.items()
            if "/" in name  # not a tensor of the batch
        }
        return state | {RATE_FACTOR: np.float32(1)} | weights

    def batches(self, records: Records, phase: Phase, done: int, first: int):
        """Return the batches of the steps from `first` on, [steps, n, ...]."""
        size = self.batch_size
        number = min(STEPS_AT_ONCE, phase.steps - first)
        data = records.batch(
            (done + first) * size, number * size, phase.masked_lm_prob
        )
        return {
            name: value.reshape(number, size, *value.shape[1:]).astype(
                self.types[name]
            )
            for name, value in data.items()
        }


def check(phase: Phase, program: Program, records: Records) -> None:
    """Raise an error if a step's batches do not match its phase."""
    masked = records.metadata.masked_at(phase.masked_lm_prob)
    wanted = masked.max_seq_length, masked.max_predictions_per_seq
    require(
        (program.tokens, program.predictions) == wanted,
        f"`step_file` must have the {wanted[0]} tokens of the records, and the "
        f"{wanted[1]} predictions of `masked_lm_prob`.",
        step_file=f"{phase.step_file}, {program.tokens} tokens, "
        f"{program.predictions} predictions",
    )


def train(first: str, last: str, phases: list[Phase], seed: int) -> None:
    """Run the phases from the initial weights, and write the final weights.

    For each phase, print the mean of at most its last 50 steps.
    """
    import jax

    jax.config.update("jax_enable_x64", True)  # the step number has 64 bits
    records = {x.records: Records(x.records, seed) for x in phases}
    programs = {x.step_file: Program(x.step_file) for x in phases}
    for phase in phases:
        check(phase, programs[phase.step_file], records[phase.records])
    with np.load(first) as file:
        weights = dict(file)
    state = programs[phases[0].step_file].state(weights)
    done, start = 0, time.perf_counter()
    for phase in phases:
        program = programs[phase.step_file]
        chunk = functools.partial(
            program.batches, records[phase.records], phase, done
        )
        starts = range(0, phase.steps, STEPS_AT_ONCE)
        with ThreadPoolExecutor(2) as pool:
            submit = functools.partial(pool.submit, chunk)
            for batches in in_order(submit, starts, 4):
                state, report = program.steps(state, batches)
        done += phase.steps
        sums, counts = np.sum(report, axis=0)
        means = zip(LOSSES, sums / counts, strict=True)
        said = ", ".join(f"{name} {mean:.4f}" for name, mean in means)
        seconds = time.perf_counter() - start
        print(f"{done:,} steps, {seconds:.1f} s: {said}", flush=True)
    np.savez(last, **{name: np.asarray(state[name]) for name in weights})


def model_of(config_file: str):
    """Build a model from a config file; return it and {name: variable}."""
    from albert_tf.model.albert import AlbertForPretraining
    from albert_tf.model.config import AlbertConfig
    from albert_tf.training import checkpoints

    config = AlbertConfig.from_json_file(config_file)
    model = AlbertForPretraining(config)
    return model, checkpoints.named_variables(model)


def begin(weights: str, config_file: str, records: str, seed: int) -> None:
    """Write the initial weights that `pretrain.py` would use."""
    import keras

    from albert_tf.training.pretraining.informed_start import start_new

    keras.utils.set_random_seed(seed)
    model, variables = model_of(config_file)
    print(
        "\n  ".join(start_new(model, records, metadata.read_metadata(records)))
    )
    np.savez(weights, **{name: v.numpy() for name, v in variables.items()})


def end(weights: str, config_file: str, records: str, model_dir: str) -> None:
    """Write a model directory from weights."""
    from albert_tf.training import checkpoints

    model, variables = model_of(config_file)
    with np.load(weights) as file:
        for name, variable in variables.items():
            variable.assign(file[name])
    checkpoints.create_model_dir(model_dir, model.config)
    load_tokenizer(records).save(model_dir)
    checkpoints.save(model_dir, variables)


def main() -> None:
    """Begin a run, train it, or write its model directory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, arguments in {
        "begin": ("weights", "config_file", "records"),
        "train": ("first", "last"),
        "end": ("weights", "config_file", "records", "model_dir"),
    }.items():
        command = commands.add_parser(name)
        for argument in arguments:
            command.add_argument(argument)
        if name == "train":
            command.add_argument("phases", nargs="+", type=Phase.of)
        if name != "end":
            command.add_argument("--seed", type=int, default=1)
    asked = vars(parser.parse_args())
    {"begin": begin, "train": train, "end": end}[asked.pop("command")](**asked)


if __name__ == "__main__":
    main()
