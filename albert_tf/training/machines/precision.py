"""Which precision of products is faster, for `--dtype=auto`.

It follows from the kind of device alone, never from a clock: a run that goes on
must compute as it did.
"""

import dataclasses
import re

import tensorflow as tf

from albert_tf.model.ops import is_tpu
from albert_tf.training.machines.distribution import any_process
from albert_tf.training.step.training_config import TrainingConfig

# What Linux calls the instructions that multiply bfloat16.
PRODUCTS = re.compile(r"\b(avx512_bf16|amx_bf16)\b")
FIRST_AMPERE = (8, 0)  # the first compute capability with bfloat16


def cpu_products(path: str = "/proc/cpuinfo") -> set[str]:
    """Return the names of the CPU's instructions that multiply bfloat16."""
    try:
        with open(path) as file:
            return set(PRODUCTS.findall(file.read()))
    except OSError:
        return set()  # not Linux


def fast_bfloat16() -> tuple[bool, str]:
    """Return whether this machine's devices are faster so, and why."""
    if gpus := tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpus[0])
        capability = details.get("compute_capability", (0, 0))
        return capability >= FIRST_AMPERE, f"a GPU of capability {capability}"
    names = cpu_products()
    has = " and ".join(sorted(names)) or "no bfloat16 products"
    return bool(names), f"a CPU with {has}"


def faster(strategy: tf.distribute.Strategy) -> tuple[str, str]:
    """Return the precision that is faster in all workers, and why."""
    if is_tpu(strategy):
        return "bfloat16", "a TPU"
    fast, why = fast_bfloat16()
    slow = any_process(strategy, not fast)
    return "float32" if slow else "bfloat16", why


def with_dtype(
    training: TrainingConfig, strategy: tf.distribute.Strategy
) -> TrainingConfig:
    """Return the settings with the precision that `auto` stands for."""
    if training.dtype != "auto":
        return training
    dtype, why = faster(strategy)
    print(f"--dtype=auto is {dtype}: {why}")
    return dataclasses.replace(training, dtype=dtype)
