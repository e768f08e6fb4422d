"""Settings are checked when they are created, and cannot change later."""

import dataclasses
import functools
import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.base.settings import (
    RunFact,
    Validated,
    as_type,
    facts,
    plain,
    setting,
)
from albert_tf.data.builder.build_settings import BuildConfig
from albert_tf.finetuning.finetuning_setup import FinetuningConfig
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.task_config import DataConfig, TaskConfig
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.training_config import TrainingConfig


@pytest.mark.parametrize(
    "config, name, largest",
    [
        (TrainingConfig, "random_seed", 2**31 - 1),
        (
            functools.partial(BuildConfig, output_dir="x"),
            "random_seed",
            2**63 - 1,
        ),
    ],
)
def test_a_seed_that_no_generator_takes_is_refused(config, name, largest):
    """A seed that is negative or too large for its generator is rejected."""
    with pytest.raises(InputError, match=f"at least 0. Received: {name}=-1"):
        config(**{name: -1})
    assert config(**{name: 0})
    config(**{name: largest})
    with pytest.raises(InputError, match=f"Received: {name}"):
        config(**{name: largest + 1})


@pytest.mark.parametrize(
    "values, message",
    [
        ({"optimizer": "sgd"}, "must be one of lamb, adamw, muon. Received"),
        ({"beta_1": 1.5}, "at most 0.999999. Received: beta_1=1.5"),
        ({"learning_rate": -1.0}, "at least 0.0. Received: learning_rate=-1"),
        ({"learning_rate": float("nan")}, "Received: learning_rate=nan"),
        ({"clip_norm": float("inf")}, "finite. Received: clip_norm=inf"),
    ],
)
def test_a_value_out_of_range_is_named(values, message):
    """The error for an invalid optimizer setting states its rule and value."""
    with pytest.raises(InputError, match=message):
        OptimizerConfig(**values)


@pytest.mark.parametrize(
    "cls, name",
    [
        (TrainingConfig, "num_train_steps"),
        (TrainingConfig, "train_batch_size"),
        (TrainingConfig, "eval_batch_size"),
        (DistributionConfig, "num_cpu_replicas"),
        (FinetuningConfig, "num_train_epochs"),
    ],
)
def test_what_no_machine_holds_is_refused(cls, name):
    """A number too large for any machine raises an error on construction."""
    with pytest.raises(InputError, match=f"`{name}` must be at most"):
        cls(**{name: 10**20})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_number_is_finite(value):
    """No number may be NaN or infinite, even if the setting has no range."""

    @dataclasses.dataclass(frozen=True)
    class Config(Validated):
        threshold: float | None = setting(None, "A threshold.")

    with pytest.raises(InputError, match="`threshold` must be finite"):
        Config(threshold=value)


def test_settings_are_frozen():
    """Settings cannot be changed after they have been checked."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        OptimizerConfig().learning_rate = 1.0


CLASSES = [
    AlbertConfig,
    DataConfig,
    OptimizerConfig,
    RecipeConfig,
    TaskConfig,
    TrainingConfig,
]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_setting_takes_scalars_of_numpy(cls):
    """NumPy scalars become plain Python values, which JSON supports."""
    for field in dataclasses.fields(cls):
        value = field.default
        if value in (None, (), "") or value is dataclasses.MISSING:
            continue
        scalar = {field.name: np.array(value)[()]}
        found = getattr(cls(**scalar), field.name)
        assert type(found) in (bool, int, float, str) and found == value
        json.dumps(found)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({np.int64(12): np.float32(0.5)}, {12: 0.5}),
        ({np.str_("a"): [np.True_, None]}, {"a": [True, None]}),
        ((np.arange(2), [tf.constant(3)]), ([0, 1], [3])),
        (pd.Series([12, None], dtype="Int64"), [12, None]),
        (pd.Series([0.5, None]), [0.5, None]),
        (pa.array([12, None]), [12, None]),
    ],
    ids=["keys", "lists", "tuples", "Int64", "float64", "pyarrow"],
)
def test_values_of_libraries_become_pythons(value, expected):
    """Values of other libraries become Python values, even inside lists."""
    assert repr(plain(value)) == repr(expected)


def test_lists_of_numpy_are_lists():
    """A list setting accepts a NumPy array or a comma-separated string."""
    for value in (np.array(["a", "b"]), ["a", "b"], "a,b", ("a", "b")):
        assert DataConfig(label_column=value).label_column == ("a", "b")


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (TrainingConfig, {"num_train_steps": "9"}, "must be a whole number"),
        (TrainingConfig, {"jit_compile": 1}, "must be True or False"),
        (TaskConfig, {"max_seq_length": np.float32(16)}, "a whole number"),
        (TaskConfig, {"classifier_dropout": "0.1"}, "must be a number"),
        (DataConfig, {"text_column": 3}, "must be a string"),
        (AlbertConfig, {"hidden_size": None}, "`hidden_size` must be given"),
    ],
)
def test_python_gets_the_checks_of_flags(cls, values, message):
    """A setting of the wrong type raises an error on construction."""
    with pytest.raises(InputError, match=message):
        cls(**values)


@pytest.mark.parametrize(
    ("types", "value", "found"),
    [
        ((float,), 1, 1.0),
        ((float, str), 2, 2.0),
        ((float, str), "2", "2"),
        ((bool, str), np.True_, True),
        ((int,), np.int8(3), 3),
        ((tuple,), "a , b", ("a", "b")),
        ((tuple,), ["a ", 1.5], ("a ", "1.5")),
        ((tuple,), ["a", None], "`x` must be a list of strings."),
    ],
)
def test_values_have_the_types_of_flags(types, value, found):
    """A value is converted as its flag would be, or an error names it."""
    if isinstance(found, str) and value != found:
        with pytest.raises(InputError, match=found):
            as_type("x", value, *types)
        return
    converted = as_type("x", value, *types)
    assert (converted, type(converted)) == (found, type(found))


@dataclasses.dataclass(frozen=True)
class Rates(Validated):
    """Settings with and without an effect on a run, and a word or a number."""

    names: tuple = setting((), "Names.", change="other names")
    size: int = setting(3, "Size.")
    rate: float | str = setting(
        "auto", "Rate.", choices=("auto", "off"), minimum=0.0, maximum=0.5
    )


def test_a_word_or_a_number_in_a_range():
    """With choices and a range, a setting is one of the words or in the range.

    The error for another word lists both.
    """
    for value in ("auto", "off", 0, 0.5):
        assert Rates(rate=value).rate == value
    for value, rule in (
        ("on", "must be a number or one of auto, off. Received: rate='on'"),
        (-0.1, "must be at least 0.0"),
        (0.6, "must be at most 0.5"),
    ):
        with pytest.raises(InputError, match=f"`rate` {rule}"):
            Rates(rate=value)


def test_facts_are_the_settings_with_an_effect():
    """Facts have the values that JSON would restore, and their effects.

    A caller's effect replaces those of all settings.
    """
    config = Rates(names=("a", "b"))
    names = ["a", "b"]
    assert facts(config) == {"names": RunFact(names, "other names")}
    assert facts(config, change="another loss") == {
        "names": RunFact(names, "another loss"),
        "size": RunFact(3, "another loss"),
        "rate": RunFact("auto", "another loss"),
    }
