"""`--dtype=auto` depends on the device."""

import dataclasses

import pytest
import tensorflow as tf

from albert_tf.model.ops import CompiledForTpu
from albert_tf.training import distribution
from albert_tf.training.training_config import TrainingConfig

AUTO = TrainingConfig(dtype="auto")


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ("fma avx512_bf16 amx_bf16 amx_tile", {"avx512_bf16", "amx_bf16"}),
        ("avx512f avx512_bf16x", set()),
    ],
)
def test_the_cpu_says_what_it_multiplies(tmp_path, flags, names):
    """A CPU's bfloat16 instructions are found as whole words in `cpuinfo`.

    Without the file, the result is an empty set.
    """
    path = tmp_path / "cpuinfo"
    path.write_text(f"flags\t\t: fpu {flags}\nbugs\t\t: none\n")
    assert distribution.cpu_products(str(path)) == names
    assert distribution.cpu_products(str(tmp_path / "missing")) == set()


@pytest.mark.parametrize(
    ("names", "dtype"), [({"amx_bf16"}, "bfloat16"), (set(), "float32")]
)
def test_auto_on_a_cpu(monkeypatch, capsys, names, dtype):
    """On a CPU, `auto` selects bfloat16 only with bfloat16 instructions.

    The choice is printed. A dtype other than `auto` stays.
    """
    monkeypatch.setattr(distribution, "cpu_products", lambda: names)
    strategy = tf.distribute.get_strategy()
    chosen = distribution.with_dtype(AUTO, strategy)
    assert chosen == dataclasses.replace(AUTO, dtype=dtype)
    policies = {"bfloat16": "mixed_bfloat16", "float32": "float32"}
    assert chosen.dtype_policy == policies[dtype]
    assert f"--dtype=auto is {dtype}: a CPU with" in capsys.readouterr().out
    said = distribution.with_dtype(TrainingConfig(), strategy)
    assert said == TrainingConfig()


def test_the_slowest_worker_decides(monkeypatch):
    """If another worker is slow, `auto` selects float32.

    The stated reason is the other worker, not this device.
    """
    monkeypatch.setattr(distribution, "cpu_products", lambda: {"amx_bf16"})
    monkeypatch.setattr(distribution, "any_process", lambda *_: True)
    dtype, why = distribution.faster(tf.distribute.get_strategy())
    assert dtype == "float32" and "amx" not in why and "worker" in why


@pytest.mark.parametrize("capability", [None, (7, 5), (8, 0), (10, 0)])
def test_auto_on_accelerators(monkeypatch, capability):
    """`auto` selects bfloat16 on TPUs and recent GPUs.

    A recent GPU has a compute capability of at least 8.0.
    """
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["x"])
    monkeypatch.setattr(
        tf.config.experimental,
        "get_device_details",
        lambda _: {"compute_capability": capability} if capability else {},
    )
    here = distribution.with_dtype(AUTO, tf.distribute.get_strategy())
    slow = capability is None or capability < (8,)
    assert here.dtype == ("float32" if slow else "bfloat16")
    on_tpu = distribution.with_dtype(AUTO, CompiledForTpu())
    assert on_tpu.dtype == "bfloat16"
