"""What a run waits for behind a store that answers slowly, as a table.

    python benchmarks/slow_store.py --trees=.,OTHER_CHECKOUT

The store is a folder of this machine in which each call waits: a library, made
here of the C below, stands before the system's functions (Linux, gcc), for
Python and TensorFlow alike. The rows of several checkouts come from one machine
and one hour.
"""

import ctypes
import dataclasses
import itertools
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

START = "start"  # in the place of flags: what the shim stands before
COLUMNS = ("checked s", "first batch s", "calls")
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define REAL(name) __typeof__(name) *real = dlsym(RTLD_NEXT, #name)
static char slow[1 << 16];
static int calls;
int store_calls(void) { return calls; }
static void wait_call(void) {
  __sync_fetch_and_add(&calls, 1);
  usleep(1e6 * atof(getenv("STORE_SECONDS")));
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
"""


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured, of what."""

    trees: tuple = setting((".",), "Checkouts, each a row.")
    files: int = setting(5000, "Files of records.")
    records: int = setting(40, "Records of a file.")
    call_seconds: float = setting(0.05, "Seconds of each call.")
    hosts: tuple = setting(("1", "8"), "Hosts, of which the first one reads.")


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


def start(folder: str, hosts: int) -> list[float]:
    """Return the `COLUMNS` of the first batch of the first host."""
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
    return [checked, first, calls() - before]


def measured(tree: str, shim: str, store: str, hosts: str, wait: float) -> list:
    """Return what this file's `start` measures with a checkout's package."""
    done = subprocess.run(
        [sys.executable, __file__, START, store, hosts],
        env=os.environ
        | {"LD_PRELOAD": shim, "STORE": store, "STORE_SECONDS": str(wait)}
        | {"PYTHONPATH": tree, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@command_line.program(BenchmarkConfig)
def main(config: BenchmarkConfig) -> None:
    """Print the table."""
    rows = [["tree", "hosts", *COLUMNS]]
    with tempfile.TemporaryDirectory() as folder:
        shim, source = f"{folder}/shim.so", Path(folder, "shim.c")
        source.write_text(SHIM)
        line = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", shim, source]
        subprocess.run([*line, "-ldl"], check=True)
        store = f"{folder}/store"
        os.mkdir(store)
        write_records(store, config)
        for hosts, tree in itertools.product(config.hosts, config.trees):
            path = str(Path(tree).resolve())
            values = measured(path, shim, store, hosts, config.call_seconds)
            rows.append([tree, hosts, *(f"{value:,.4g}" for value in values)])
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == [START]:
        print(json.dumps(start(sys.argv[2], int(sys.argv[3]))))
    else:
        main.program.cli()
