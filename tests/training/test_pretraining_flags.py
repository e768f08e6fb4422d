"""Flagfiles in `configs/pretraining/` are valid for `pretrain.py`."""

import json
import pathlib
import re

import programs
import pytest

from albert_tf.training.pretraining import budget_rules

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "pretraining"
DOMAIN = "domain"
FILES = sorted(path.stem for path in FOLDER.glob("*.flags"))
PLBERT = "plbert"
HOURS = {
    "one_hour": 1,
    "phonemes_one_hour": 1,
    "one_night": 8,
    "one_gpu_day": 24,
    "one_tpu_day": 24,
}
# Flagfiles for new models, as published.
NAMES = [name for name in FILES if name not in (DOMAIN, PLBERT, *HOURS)]

# Parses all files with the flags of pretrain.py, in one process.
SCRIPT = """
import json, sys
import albert_tf
from albert_tf.base.program import FLAGS
program = albert_tf.pretrain.program
program.define_flags()
found = {}
for name in sys.argv[1:]:
    FLAGS.unparse_flags()
    for flag in FLAGS:
        FLAGS[flag].unparse()
    FLAGS(
        ["pretrain", "--data_dir=x", "--output_dir=x",
         f"--flagfile=configs/pretraining/{name}.flags"]
    )
    values = program.from_flags()
    found[name] = {k: v for x in values for k, v in vars(x).items()}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def parsed():
    """Return {flagfile: {setting: value}}."""
    result = programs.run("-c", SCRIPT, *FILES, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_every_size_has_its_flagfiles():
    """Each of the four published sizes has flagfiles for v5e and v3 hosts."""
    sizes = ("base", "large", "xlarge", "xxlarge")
    hosts = {f"{s}_{t}" for s in sizes for t in ("v5e-8", "v3-8")}
    assert set(NAMES) == {*sizes, *hosts, "base_gpu"}


@pytest.mark.parametrize("name", NAMES)
def test_hyperparameters_are_the_papers(parsed, name):
    """Hyperparameters match Section 4.1 of the ALBERT paper.

    The values include LAMB, batch size 4096, learning rate 0.00176 and 125,000
    steps.
    """
    expected = {
        "optimizer": "lamb",
        "learning_rate": 0.00176,
        "train_batch_size": 4096,
        "num_train_steps": 125000,
        "num_warmup_steps": 3125,
        "weight_decay_rate": 0.01,
        "clip_norm": 1.0,
        "dtype": "bfloat16",
    }
    assert {k: parsed[name][k] for k in expected} == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_that_of_the_name(parsed, name):
    """A flagfile's config has the size that the flagfile's name states.

    Published runs use configs of version 1, and all other runs version 2.
    """
    path = ROOT / parsed[name]["albert_config_file"]
    size = name.split("_")[0]
    widths = {"base": 768, "large": 1024, "xlarge": 2048, "xxlarge": 4096}
    config = json.loads(path.read_text())
    assert config["hidden_size"] == widths[size]
    assert path.stem.endswith("v1" if name == size else "v2")


@pytest.mark.parametrize("name", HOURS)
def test_a_budget_is_left_its_choices(parsed, name):
    """A flagfile with a budget sets no flag that a budget chooses."""
    values, published = parsed[name], parsed["base"]
    assert values["budget_hours"] == HOURS[name]
    assert (ROOT / values["albert_config_file"]).exists()
    chosen = {*budget_rules.RULES, "mask_schedule", "depth_schedule"}
    text = (FOLDER / f"{name}.flags").read_text()
    assert not any(re.search(rf"^--{flag}\b", text, re.M) for flag in chosen)
    assert published["budget_hours"] == 0


def test_phonemes_are_trained_as_published(parsed):
    """`plbert.flags` has the sizes and AdamW settings of yl4579/PL-BERT."""
    values = parsed[PLBERT]
    config = json.loads((ROOT / values["albert_config_file"]).read_text())
    expected = {"vocab_size": 178, "hidden_size": 768, "num_hidden_layers": 12}
    expected |= {"intermediate_size": 2048, "num_attention_heads": 12}
    assert {k: config[k] for k in expected} == expected
    expected = {
        "optimizer": "adamw",
        "learning_rate": 1e-4,
        "schedule": "constant",
        "train_batch_size": 192,
        "num_train_steps": 1_000_000,
        "weight_decay_rate": 0.0,
        "bias_correction": True,
        "clip_norm": 0.0,
    }
    assert {k: values[k] for k in expected} == expected


def test_going_on_in_a_domain_is_slow_and_short(parsed):
    """A domain run has at most 1/50 of a new run's steps, at a low rate.

    The optimizer uses bias correction.
    """
    values = parsed[DOMAIN]
    assert values["num_train_steps"] <= parsed["base"]["num_train_steps"] / 50
    assert values["bias_correction"] and values["learning_rate"] < 1e-3
    config = json.loads((ROOT / values["albert_config_file"]).read_text())
    assert config["hidden_size"] == 768


@pytest.mark.parametrize("name", NAMES)
def test_the_batch_is_cut_evenly(parsed, name):
    """Each batch can be divided into equal micro-batches on all replicas.

    Micro-batches are multiples of 8, unless they were chosen for a TPU v5e's
    scratchpad memory.
    """
    slices = {"base": 256, "large": 256, "xlarge": 512, "xxlarge": 512}
    replicas = slices.get(name, 8 if name.endswith("-8") else 1)
    pieces = replicas * parsed[name]["gradient_accumulation_steps"]
    micro, rest = divmod(parsed[name]["train_batch_size"], pieces)
    assert rest == 0 and (micro % 8 == 0 or name.endswith("_v5e-8"))
