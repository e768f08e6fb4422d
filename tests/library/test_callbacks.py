"""Keras callbacks work in `fit` and receive the metrics."""

import math

import keras
import numpy as np
import pytest
import tiny_tasks
from tiny_fits import LABELS, RATE
from tiny_runs import eagerly

from albert_tf.library.models import Classifier
from albert_tf.library.pretrained_model import Albert

TEXTS, NAMES = map(list, zip(*tiny_tasks.opinions(4, 1), strict=True))
METRICS = ["accuracy", "f1", "matthews", keras.metrics.AUC(name="auc")]
METRICS.append(keras.metrics.BinaryCrossentropy(name="entropy"))
UP = "val_accuracy val_f1 val_matthews val_auc accuracy auc".split()
calls = keras.callbacks

# Each function creates a callback that writes into a folder.
CALLBACKS = {
    "BackupAndRestore": lambda p: calls.BackupAndRestore(p / "backup"),
    "CSVLogger": lambda p: calls.CSVLogger(p / "log.csv"),
    "Callback": lambda p: calls.Callback(),
    "CallbackList": lambda p: calls.CallbackList(add_history=True),
    "EarlyStopping": lambda p: calls.EarlyStopping("val_accuracy"),
    "History": lambda p: calls.History(),
    "LambdaCallback": lambda p: calls.LambdaCallback(),
    "LearningRateScheduler": lambda p: calls.LearningRateScheduler(
        lambda epoch, rate: rate / 2
    ),
    "ModelCheckpoint": lambda p: calls.ModelCheckpoint(
        p / "best.keras", "val_matthews", save_best_only=True
    ),
    "OrbaxCheckpoint": None,  # needs a package that is not installed
    "ProgbarLogger": lambda p: calls.ProgbarLogger(),
    "ReduceLROnPlateau": lambda p: calls.ReduceLROnPlateau("val_f1"),
    "RemoteMonitor": None,  # needs a server
    "SwapEMAWeights": lambda p: calls.SwapEMAWeights(),
    "TensorBoard": lambda p: calls.TensorBoard(p / "board"),
    "TerminateOnNaN": lambda p: calls.TerminateOnNaN(),
}
# The first callback writes a file; the second is passed without a list.
NAMES_OF_CALLBACKS = sorted(
    (name for name, make in CALLBACKS.items() if make),
    key=lambda name: name not in ("CSVLogger", "CallbackList"),
)
FILES = {
    "CSVLogger": "log.csv",
    "ModelCheckpoint": "best.keras",
    "TensorBoard": "board",
}


HOW = {"validation_data": (TEXTS, NAMES), "verbose": 0}


def compiled(path, rate=RATE):
    """Return a model with an Adam optimizer that averages the weights."""
    keras.utils.set_random_seed(2)
    model = Classifier.load(path, LABELS)
    optimizer = keras.optimizers.Adam(rate, use_ema=True)
    model.compile(optimizer, metrics=METRICS, run_eagerly=True)
    return model


@pytest.fixture(scope="module")
def model(shallow):
    """Return a model that the tests of all callbacks share."""
    return compiled(shallow)


def test_the_table_is_whole():
    """`CALLBACKS` contains every Keras callback."""
    assert set(CALLBACKS) >= {n for n in dir(calls) if n[0].isupper()}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", NAMES_OF_CALLBACKS)
def test_a_callback_runs(name, model, tmp_path):
    """A callback receives all metrics, even official ones, and writes files."""
    callback = CALLBACKS[name](tmp_path)
    several = isinstance(callback, calls.CallbackList)
    if several:
        callback.set_model(model)
    callbacks = callback if several else [callback]
    logs = model.fit(TEXTS, NAMES, callbacks=callbacks, **HOW).history
    down = {"loss", "val_loss", "entropy", "val_entropy"}
    assert {*down, *UP} == set(logs) - {"learning_rate"}
    assert all(map(math.isfinite, np.concatenate([*logs.values()])))
    assert name not in FILES or (tmp_path / FILES[name]).exists()


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("kind", [Classifier, Albert])
def test_tracking_tools_may_replace_a_method_of_keras(
    name, kind, model, monkeypatch
):
    """Models call the current method of `keras.Model`, as Keras models do.

    MLflow's autologging replaces `fit`, usually after the model was imported.
    """

    def replacement(*args, **kwargs):
        raise InterruptedError

    monkeypatch.setattr(keras.Model, name, replacement)
    ids = model.tokenizer(TEXTS, masks=False)
    inputs = ids if kind is Albert or name == "predict" else TEXTS
    labels = [NAMES] if kind is Classifier and name != "predict" else []
    receiver = model if kind is Classifier else Albert(model.config)
    with pytest.raises(InterruptedError):
        getattr(receiver, name)(inputs, *labels)


def test_every_metric_has_a_direction(model):
    """Without `mode`, callbacks can tell whether a metric should rise."""
    names = *UP, "loss", "val_loss", "entropy"
    watches = {n: calls.EarlyStopping(n) for n in names}
    model.fit(TEXTS, NAMES, callbacks=[*watches.values()], **HOW)
    for name, watch in watches.items():
        assert bool(watch.monitor_op(1.0, 0.0)) == (name in UP)
    assert "f1" not in model.get_metrics_result()


@eagerly()
def test_logs_of_a_subclass_s_own_step(shallow):
    """Without metrics, `fit` logs the results of a subclass's `train_step`.

    Metrics of an earlier `compile` do not remain.
    """

    class Own(Classifier):
        def train_step(self, data):
            return {"rows": len(data[0]["input_ids"])}

    model = Own.load(shallow, LABELS)
    model.compile(metrics=["accuracy"])
    model.compile()
    logs = model.fit(TEXTS, NAMES, epochs=1, batch_size=4, verbose=0)
    assert logs.history == {"rows": [4]}


@pytest.mark.slow
def test_training_ends_when_an_official_metric_gets_no_better(shallow):
    """Early stopping ends a run whose official metric does not improve."""
    stop = calls.EarlyStopping("val_f1", patience=1, restore_best_weights=True)
    how = HOW | {"callbacks": [stop], "epochs": 9}
    history = compiled(shallow, 0.0).fit(TEXTS, NAMES, **how).history
    assert len(history["val_f1"]) == 2
