"""What a run waits for behind a store that answers slowly, as a table.

    python benchmarks/slow_store.py --trees=.,OTHER_CHECKOUT

The store is a folder of this machine in which each call waits and each byte
that is written has its time: a library, made here of the C below, stands
before the system's functions (Linux, gcc), for Python and TensorFlow alike.
The rows of several checkouts come from one machine and one hour.
"""

import ctypes
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from albert_tf.base import command_line
from albert_tf.base.settings import setting
from albert_tf.base.text_table import table

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define REAL(name) __typeof__(name) *real = dlsym(RTLD_NEXT, #name)
static char slow[1 << 16];
static int calls;
static pthread_mutex_t link_lock = PTHREAD_MUTEX_INITIALIZER;
int store_calls(void) { return calls; }
static double number(const char *name) {
  const char *text = getenv(name);
  return text ? atof(text) : 0;
}
static void wait_call(void) {
  __sync_fetch_and_add(&calls, 1);
  usleep(1e6 * number("STORE_SECONDS"));
}
static int stored(const char *path) {
  const char *root = getenv("STORE");
  return root && path && !strncmp(path, root, strlen(root));
}
static void about(const char *path) { if (stored(path)) wait_call(); }
#define OPEN(name) int name(const char *path, int flags, ...) { \
  va_list more; va_start(more, flags); int mode = va_arg(more, int); \
  REAL(name); about(path); int fd = real(path, flags, mode); \
  if (fd >= 0) slow[fd & 65535] = stored(path); return fd; }
OPEN(open) OPEN(open64)
#define STAT(name) int name(const char *path, void *to) { \
  int (*real)(const char *, void *) = dlsym(RTLD_NEXT, #name); \
  about(path); return real(path, to); }
STAT(stat) STAT(stat64) STAT(lstat) STAT(lstat64)
int access(const char *path, int mode) {
  REAL(access); about(path); return real(path, mode); }
void *opendir(const char *path) {
  void *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
  about(path); return real(path); }
#define FOPEN(name) FILE *name(const char *path, const char *mode) { \
  REAL(name); about(path); FILE *file = real(path, mode); \
  if (file) slow[fileno(file) & 65535] = stored(path); return file; }
FOPEN(fopen) FOPEN(fopen64)
#define PREAD(name) ssize_t name(int fd, void *to, size_t size, off_t at) { \
  REAL(name); if (slow[fd & 65535]) wait_call(); \
  return real(fd, to, size, at); }
PREAD(pread) PREAD(pread64)
ssize_t read(int fd, void *to, size_t size) {
  REAL(read); if (slow[fd & 65535]) wait_call(); return real(fd, to, size); }
static double now(void) {
  struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec; }
/* A link has its time, whatever the processors do: streams share it. */
size_t fwrite(const void *from, size_t size, size_t n, FILE *file) {
  REAL(fwrite);
  static double free_at;
  if (slow[fileno(file) & 65535] && number("STORE_RATE")) {
    pthread_mutex_lock(&link_lock);
    double begin = now();
    if (free_at < begin) free_at = begin;
    double wait = (free_at += size * n / number("STORE_RATE")) - begin;
    pthread_mutex_unlock(&link_lock);
    usleep(1e6 * wait);
  }
  return real(from, size, n, file); }
"""


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured, of what."""

    trees: tuple = setting((".",), "Checkouts, each a row.")
    files: int = setting(5000, "Files of records.")
    records: int = setting(40, "Records of a file.")
    call_seconds: float = setting(0.05, "Seconds of each call.")
    hosts: tuple = setting(("1", "8"), "Hosts, of which the first one reads.")
    albert_config_file: str | None = setting(
        None, "Model that is saved with its slots; none by default."
    )
    bytes_per_second: float = setting(1e8, "Of writing.")


def write_records(folder: str, config: BenchmarkConfig) -> None:
    """Write files of one made-up record, many times."""
    import tensorflow as tf

    from albert_tf.data import records
    from albert_tf.data.records import framing
    from albert_tf.data.records.metadata import static_sizes

    metadata = records.Metadata(128, 20, 30000, "", {})
    example = tf.train.Example()
    for name, size in static_sizes(metadata).items():
        feature = example.features.feature[name]
        if name == "masked_lm_weights":
            feature.float_list.value.extend([1.0] * size)
        else:
            feature.int64_list.value.extend([1] * size)
    content = [example.SerializeToString()] * config.records
    entries = []
    for number in range(config.files):
        path = Path(folder, f"train-{number:05d}.tfrecord")
        framing.write(str(path), content)
        size = path.stat().st_size
        entries.append(records.RecordFile(path.name, config.records, size))
    dataclasses.replace(metadata, splits={"train": tuple(entries)}).write(
        folder
    )


def start(folder: str, hosts: int) -> dict[str, float]:
    """Return what the first batch of the first host takes."""
    from albert_tf.data.records import checks, find, input_pipeline

    calls = ctypes.CDLL(None).store_calls
    begin, before = time.monotonic(), calls()
    metadata = find.read_metadata(folder)
    checks.check(folder, metadata)
    checked = time.monotonic() - begin
    batches = iter(
        input_pipeline.train_batches(
            folder, metadata, batch_size=64, seed=1, num_shards=hosts
        )
    )
    next(batches)
    first = time.monotonic() - begin
    return {
        "checked s": checked,
        "first batch s": first,
        "calls": calls() - before,
    }


def save(folder: str, config_file: str) -> dict[str, float]:
    """Return the seconds in which a model with its slots is saved."""
    import tensorflow as tf

    from albert_tf.model.config import AlbertConfig
    from albert_tf.training import checkpoints, pretraining
    from albert_tf.training.optimizers import OptimizerConfig
    from albert_tf.training.training_config import TrainingConfig

    trainer = pretraining.make_trainer(
        AlbertConfig.from_json_file(config_file),
        "none",
        OptimizerConfig(),
        TrainingConfig(train_batch_size=8),
        tf.distribute.get_strategy(),
    )
    begin, cpu = time.monotonic(), time.process_time()
    prefix = checkpoints.save(folder, trainer.state(), 1)
    saved, cpu = time.monotonic() - begin, time.process_time() - cpu
    size = sum(path.stat().st_size for path in Path(folder).glob("ckpt-1.*"))
    if hasattr(checkpoints, "restore_latest"):
        checkpoints.restore_latest(folder, trainer.state())
    else:  # an earlier checkout
        checkpoints.latest(folder)
        checkpoints.restore(prefix, trainer.state(), ignore=())
    again = time.monotonic() - begin - saved
    return {
        "GB": size / 1e9,
        "save s": saved,
        "of it CPU s": cpu,
        "resume s": again,
    }


def measured(tree: str, shim: str, rate: dict, task: list[str]) -> dict:
    """Return what a task of this file measures with a checkout's package."""
    environment = os.environ | rate | {"LD_PRELOAD": shim, "PYTHONPATH": tree}
    environment |= {"STORE": task[1], "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(task)],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def show(rows: dict[str, dict[str, float]]) -> None:
    """Print measured values, a row for each name."""
    names = list(next(iter(rows.values())))
    lines = [[k, *(f"{v[n]:,.4g}" for n in names)] for k, v in rows.items()]
    print(*table([["tree", *names], *lines]), sep="\n", flush=True)


@command_line.program(BenchmarkConfig)
def main(config: BenchmarkConfig) -> None:
    """Print the tables."""
    trees = {tree: str(Path(tree).resolve()) for tree in config.trees}
    with tempfile.TemporaryDirectory() as folder:
        shim, source = f"{folder}/shim.so", f"{folder}/shim.c"
        Path(source).write_text(SHIM)
        line = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", shim, source]
        subprocess.run([*line, "-ldl", "-lpthread"], check=True)
        store = f"{folder}/store"
        os.mkdir(store)
        write_records(store, config)
        wait = {"STORE_SECONDS": str(config.call_seconds)}
        show(
            {
                f"{tree}, {hosts} hosts": measured(
                    path, shim, wait, ["start", store, int(hosts)]
                )
                for hosts in config.hosts
                for tree, path in trees.items()
            }
        )
        if config.albert_config_file:
            rate = {"STORE_RATE": str(config.bytes_per_second)}
            run = functools.partial(measured, shim=shim, rate=rate)
            task = ["save", store, config.albert_config_file]
            show({tree: run(path, task=task) for tree, path in trees.items()})


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("["):
        task, *values = json.loads(sys.argv[1])
        print(json.dumps({"start": start, "save": save}[task](*values)))
    else:
        main.program.cli()
