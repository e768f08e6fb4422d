"""Kill a pretraining run at random moments; its end must not change a bit.

    python benchmarks/kill_and_resume.py --data_dir=RECORDS [--kills=25]

RECORDS is a folder of create_pretraining_data.py. One run of a tiny model is
left alone. Others are sent SIGKILL or SIGTERM again and again, at moments
drawn from the whole time from start to end or while a checkpoint is being
written, and started again with the same command. What each leaves at its last
step, weights, slots and step number, is compared with the unbroken run's.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from albert_tf.data.records.find import read_metadata
from albert_tf.training import checkpoints

SCRIPT = os.path.join(os.path.dirname(__file__), os.pardir, "pretrain.py")
STEPS = 60
MOST = 5  # kills of one run
MODEL = {
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}


def start(data_dir: str, config: str, output: str) -> subprocess.Popen:
    """Start the run; the same command resumes it."""
    os.makedirs(output, exist_ok=True)
    line = [
        sys.executable,
        SCRIPT,
        f"--data_dir={data_dir}",
        f"--albert_config_file={config}",
        f"--output_dir={output}",
        f"--num_train_steps={STEPS}",
        "--train_batch_size=16",
        f"--eval_steps={STEPS}",
        "--steps_per_loop=4",
        "--save_checkpoints_steps=4",
        "--keep_checkpoint_max=2",
        "--learning_rate=0.01",
        "--num_warmup_steps=10",
    ]
    log = open(f"{output}.log", "a")
    return subprocess.Popen(line, stdout=log, stderr=log)


def is_writing(output: str) -> bool:
    """Return whether a checkpoint is half written at this moment."""
    names = set(os.listdir(output))
    if any("_temp" in name or ".tmp" in name for name in names):
        return True
    return any(
        name.endswith(".index") and f"{name[:-6]}.json" not in names
        for name in names
    )


def newest(output: str) -> int:
    """Return the largest step whose checkpoint has an index; -1 if none."""
    steps = [
        int(name[5:-6])
        for name in os.listdir(output)
        if name.startswith("ckpt-") and name.endswith(".index")
    ]
    return max(steps, default=-1)


def strike(
    process: subprocess.Popen,
    output: str,
    moment: str,
    number: int,
    seconds: float,
    rng: random.Random,
) -> str:
    """Wait for a moment, send a signal, and say what was hit.

    Args:
      process: of the run.
      output: its model directory.
      moment: "any time" or "writing".
      number: the signal.
      seconds: how long an unbroken run takes.
      rng: draws the moment.
    """
    due = time.monotonic() + rng.uniform(0.0, seconds)
    first = newest(output)
    wanted = rng.randrange(1, 6)  # checkpoints after the start
    while process.poll() is None:
        if moment == "writing":
            done = (newest(output) - max(first, 0)) // 4
            if done >= wanted and is_writing(output):
                break
        elif time.monotonic() >= due:
            break
        time.sleep(0.0005)
    if process.poll() is not None:
        return "too late"
    hit = "writing" if is_writing(output) else "any time"
    process.send_signal(number)
    process.wait()
    return hit


def table(output: str) -> dict[str, np.ndarray]:
    """Return {name: value} of a run's newest checkpoint."""
    prefix = checkpoints.latest(output)
    read = checkpoints.reader(prefix)
    return {name: read(name) for name in checkpoints.read_table(prefix)}


def compare(expected: dict, found: dict) -> str:
    """Say how two runs' last checkpoints differ."""
    if expected.keys() != found.keys():
        return "other variables"
    different = [
        name
        for name, value in expected.items()
        if value.tobytes() != found[name].tobytes()
    ]
    return f"{len(different)} variables differ" if different else "same bits"


def finish(process: subprocess.Popen, output: str) -> None:
    """Wait for a run's end; show its log if it failed."""
    if process.wait():
        with open(f"{output}.log") as log:
            sys.exit(f"the run failed:\n{log.read()[-3000:]}")


def broken_run(
    arguments: tuple[str, str, str],
    kills: int,
    seconds: float,
    rng: random.Random,
) -> collections.Counter:
    """Make one run with kills; return what was hit how often."""
    output, hits = arguments[2], collections.Counter()
    while sum(hits.values()) < kills:
        process = start(*arguments)
        moment = rng.choice(["any time", "writing"])
        number = rng.choice([signal.SIGKILL, signal.SIGTERM])
        hit = strike(process, output, moment, number, seconds, rng)
        if hit == "too late":
            break
        name = signal.Signals(number).name
        hits[name, hit] += 1
        print(f"  {name} {hit}, newest index {newest(output)}", flush=True)
    finish(start(*arguments), output)
    return hits


def main() -> None:
    """Run, kill, resume and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    metadata = read_metadata(given.data_dir)
    total, runs, same = collections.Counter(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config.json")
        with open(config, "w") as file:
            json.dump(MODEL | {"vocab_size": metadata.vocab_size}, file)
        whole = os.path.join(folder, "whole")
        before = time.monotonic()
        finish(start(given.data_dir, config, whole), whole)
        seconds = time.monotonic() - before
        print(f"unbroken: {STEPS} steps in {seconds:.0f} s", flush=True)
        expected = table(whole)
        while (left := given.kills - sum(total.values())) > 0:
            output = os.path.join(folder, f"{runs}")
            arguments = (given.data_dir, config, output)
            hits = broken_run(arguments, min(left, MOST), seconds, rng)
            verdict = compare(expected, table(output))
            runs, same = runs + 1, same + (verdict == "same bits")
            total += hits
            print(f"{sum(hits.values())} kills, {verdict}", flush=True)
    for (name, hit), count in sorted(total.items()):
        print(f"{name} {hit}: {count}")
    kills = sum(total.values())
    print(f"{kills} kills, {same} of {runs} runs end with the same bits")
    sys.exit(same != runs)


if __name__ == "__main__":
    main()
