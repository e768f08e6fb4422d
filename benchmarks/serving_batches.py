"""Measure throughput and latency of a SavedModel that batches requests.

    python benchmarks/serving_batches.py --saved_model=DIR [--clients=1,64]
        [--seconds=5] [--rounds=2] [--words=30]

TensorFlow Serving batches requests with TensorFlow's batch scheduler, which is
available in Python as `tf.nondifferentiable_batch_function`. Each client sends
one text to the default signature, waits for the answer and sends the next text.
The settings take turns. The columns are the setting; the number of clients;
texts per second; CPU time per text in ms, which is less sensitive to other
programs; and the median and 95th percentile of latency in ms.
"""

import argparse
import itertools
import threading
import time

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's operations)
from turns import machine

from albert_tf.base.console import format_table
from albert_tf.serving.tensorflow_serving import WAITING_BATCHES

# (max_batch_size, batch_timeout_micros, num_batch_threads), or None without
# batching.
SETTINGS = (
    None,
    *((8, 1000, 2), (32, 0, 2), (32, 1000, 2), (32, 10_000, 2)),
    *((128, 1000, 2), (32, 1000, 1)),
)
HEAD = "batch, wait, threads;clients;texts/s;CPU ms;p50 ms;p95 ms"


def function_of(signature, setting):
    """Return a function that calls a signature on texts, with batching."""
    name = next(iter(signature.structured_outputs))

    def answer(texts):
        return signature(text=texts)[name]

    if setting:
        rows, wait, threads = setting
        answer = tf.nondifferentiable_batch_function(
            num_batch_threads=threads,
            max_batch_size=rows,
            batch_timeout_micros=wait,
            max_enqueued_batches=WAITING_BATCHES,
            autograph=False,
        )(answer)
    spec = tf.TensorSpec([None], tf.string)
    return tf.function(answer, input_signature=[spec], autograph=False)


def latencies(answer, texts, clients: int, seconds: float) -> list[float]:
    """Return the latency of each request of all clients, in seconds."""
    end, found = time.monotonic() + seconds, []

    def client(number: int):
        for i in itertools.count(number):
            start = time.monotonic()
            if start > end:
                return
            answer(texts[i % len(texts)])
            found.append(time.monotonic() - start)

    threads = [
        threading.Thread(target=client, args=[i]) for i in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def main(args: argparse.Namespace) -> None:
    """Measure all settings and print the table."""
    rng = np.random.default_rng(0)
    words = "the small garden lies behind an old house by a river".split()
    texts = [
        tf.constant([" ".join(rng.choice(words, rng.integers(5, args.words)))])
        for _ in range(64)
    ]
    loaded = tf.saved_model.load(args.saved_model)
    signature = loaded.signatures["serving_default"]
    answers = {setting: function_of(signature, setting) for setting in SETTINGS}
    rows = [HEAD.split(";")]
    for clients in map(int, args.clients.split(",")):
        found = {setting: [] for setting in SETTINGS}
        spent = dict.fromkeys(SETTINGS, 0.0)
        for setting in SETTINGS:
            latencies(answers[setting], texts, clients, 0.5)
        for setting in SETTINGS * args.rounds:
            seconds = args.seconds / args.rounds
            start = time.process_time()
            found[setting] += latencies(
                answers[setting], texts, clients, seconds
            )
            spent[setting] += time.process_time() - start
        for setting, times in found.items():
            p50, p95 = np.percentile(times, (50, 95)) * 1e3
            speed = len(times) / args.seconds
            label = ", ".join(map(str, setting)) if setting else "none"
            cpu = f"{spent[setting] / len(times) * 1e3:.1f}"
            shown = f"{speed:.0f}", cpu, f"{p50:.1f}", f"{p95:.1f}"
            rows.append((label, str(clients), *shown))
    print(machine("tensorflow"), *format_table(rows), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saved_model", required=True)
    parser.add_argument("--clients", default="1,64")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--words", type=int, default=30)
    main(parser.parse_args())
