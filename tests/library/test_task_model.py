"""`fit`, `evaluate` and `predict` on strings agree with `finetune.py`."""

import math
import pickle

import keras
import numpy as np
import programs
import pytest
import tensorflow as tf
import tiny_fits
import tiny_runs
import tiny_tasks
from tiny_fits import LABELS

from albert_tf.base.errors import InputError
from albert_tf.library.models import Classifier, Regressor
from albert_tf.tasks.batches import training_batches
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.keras_optimizers import AdamW
from albert_tf.training.training_config import TrainingConfig

STEPS, BATCH, RATE = 6, 16, tiny_fits.RATE
OF_LOSS = ("labels", "example_weights")


def columns(number, seed):
    """Return the texts and labels of a task that a model can learn."""
    texts, labels = zip(*tiny_tasks.opinions(number, seed), strict=True)
    return list(texts), list(labels)


@pytest.mark.slow
def test_fit_ends_with_the_weights_of_the_program(shallow, opinions, tmp_path):
    """On equal batches, `fit` and `finetune.py` lead to equal weights."""
    seed = TrainingConfig().random_seed
    output = str(tmp_path / "run")
    tiny_runs.run(
        model_dir=shallow,
        output_dir=output,
        do_train=True,
        task="classification",
        train_file=opinions["train_file"],
        num_train_steps=STEPS,
        num_warmup_steps=0,
        schedule="constant",
        classifier_dropout=0.0,
    )
    keras.utils.set_random_seed(seed)
    model = Classifier.load(shallow, LABELS, classifier_dropout=0.0)
    model.compile(AdamW(RATE))
    examples = model.examples(opinions["train_file"], None, "train")
    one = {"start": 0, "num_shards": 1, "shard": 0}
    batches = training_batches(
        features=model.features(examples), batch_size=BATCH, seed=seed, **one
    )
    encoded = batches.map(
        lambda b: ({k: b[k] for k in b if k not in OF_LOSS}, b["labels"])
    )
    model.fit(encoded.take(STEPS), verbose=0)
    prefix = checkpoint_files.latest(output)
    read = checkpoints.reader(prefix)
    for name, variable in model.named_weights().items():
        np.testing.assert_allclose(variable, read(name), atol=1e-5)


def test_strings_are_evaluated_like_ids(classifier):
    """Evaluation gives the same result for texts and for their ids."""
    texts, labels = columns(16, 1)
    numbers = np.array([LABELS.index(label) for label in labels])
    layer, slices = classifier.preprocessor, tf.data.Dataset.from_tensor_slices
    how = {"verbose": 0, "return_dict": True}
    first = classifier.evaluate(slices((texts, labels)).batch(8), **how)
    ids = slices((texts, numbers)).batch(8).map(lambda x, y: (layer(x), y))
    assert classifier.evaluate(ids, **how) == pytest.approx(first, abs=1e-6)
    data = classifier._arguments(texts, labels, None, 8, "eval")["x"]
    assert [int(y) for _, ys in data for y in ys] == numbers.tolist()
    ways = labels, numbers.tolist(), numbers[:, None]
    for y in ways:
        found = classifier.evaluate(texts, y, batch_size=8, **how)
        assert found == pytest.approx(first, abs=1e-6)


def test_single_examples_form_batches_of_the_requested_size(same_classifier):
    """Examples in a list, or one by one in a data set, form new batches.

    The batches of a data set of batches remain.
    """
    rows = columns(37, 3)
    stream = tf.data.Dataset.from_tensor_slices(rows)

    def sizes(x, y, size):
        data = same_classifier._arguments(x, y, None, size, "eval")["x"]
        return [len(labels) for _, labels in data]

    for x, y in (rows, (stream, None)):
        assert sizes(x, y, 15) == [15, 15, 7]
        assert sizes(x, y, None) == [32, 5]
    assert sizes(stream.batch(20), None, 15) == [20, 17]


class Sizes(keras.callbacks.Callback):
    """A callback that counts the examples of each batch in `predict`."""

    def on_predict_begin(self, logs=None):
        """Forget the sizes of an earlier call."""
        self.sizes = []

    def on_predict_batch_end(self, batch, logs=None):
        """Note the size of a batch."""
        self.sizes.append(len(logs["outputs"]))


def test_predictions_run_in_batches_of_the_requested_size(
    same_classifier, capsys
):
    """The arguments of `predict` apply to texts and to ids alike."""
    texts, _ = columns(37, 3)
    for x in (texts, same_classifier.tokenizer(texts)):
        for size, wanted in ((15, [15, 15, 7]), (None, [32, 5])):
            how = {"batch_size": size, "callbacks": [seen := Sizes()]}
            same_classifier.predict(x, verbose=0, **how)
            assert seen.sizes == wanted and not capsys.readouterr().out
            same_classifier.predict(x, verbose=2, **how)
            assert seen.sizes == wanted and "/step" in capsys.readouterr().out


def test_answers_and_scores_have_the_requested_batch_size(
    same_classifier, monkeypatch
):
    """All methods that answer or score texts pass on their `batch_size`."""
    texts, labels = columns(20, 3)
    outputs, sizes = Classifier._outputs, []

    def noted(model, features, size, **kwargs):
        sizes.append(size)
        return outputs(model, features, size, **kwargs)

    monkeypatch.setattr(Classifier, "_outputs", noted)
    same_classifier.score(texts, labels, 11)
    same_classifier.predictions(texts, batch_size=12)
    same_classifier.predictor(13)([{"text": text} for text in texts])
    same_classifier.classify(texts, batch_size=14)
    assert sizes == [11, 12, 13, 14]


def test_a_predictor_can_be_pickled(same_classifier):
    """A predictor that was pickled gives the same answers in another place."""
    predictor = same_classifier.predictor()
    queries = [{"text": text} for text in columns(3, 3)[0]]
    again = pickle.loads(pickle.dumps(predictor))
    assert again(queries) == predictor(queries)


@pytest.mark.slow
def test_predict_is_the_program_and_the_saved_model(finished, tmp_path):
    """The model, `finetune.py` and the SavedModel agree on probabilities."""
    output, _ = finished
    rows = tiny_runs.predictions(f"{output}/predictions.tsv")
    texts, _ = columns(37, 3)
    model = Classifier.load(output)
    found = model.predict(texts, verbose=0)
    wanted = [[float(row[f"p({x})"]) for x in LABELS] for row in rows]
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    assert model.classify(texts) == [row["prediction"] for row in rows]
    with pytest.raises(
        InputError, match="no keyword `precison`; .* `precision`"
    ):
        model.export(str(tmp_path / "saved"), precison="int8")
    model.export(str(tmp_path / "saved"))
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures
    outputs = served["classify"](text=tf.constant(texts))
    np.testing.assert_allclose(outputs["probabilities"], found, atol=1e-6)


def test_score_is_the_evaluation_of_the_program(finished, opinions, capsys):
    """`score` returns the official metrics that `finetune.py` wrote."""
    output, metrics = finished
    capsys.readouterr()
    found = Classifier.load(output).score(opinions["eval_file"])
    assert capsys.readouterr().out == ""
    for name, value in found.items():
        assert metrics["eval"][name] == pytest.approx(value)


def test_a_model_that_diverged_has_no_answers(shallow):
    """If the logits are not finite, there are no classes and no metrics."""
    model = Classifier.load(shallow, LABELS)
    kernel = model.named_weights()["classifier/kernel"]
    kernel.assign(np.full(kernel.shape, np.nan, np.float32))
    for ask in (model.classify, model.predict, lambda x: model.score(x, [0])):
        with pytest.raises(InputError, match="not finite: its weights are too"):
            ask(["a good film"])


def test_a_model_that_diverged_has_undefined_metrics(shallow):
    """`evaluate`, as `fit` calls it, returns a NaN loss and NaN metrics."""
    model = Classifier.load(shallow, LABELS)
    model.compile(metrics=["macro_f1"])
    kernel = model.named_weights()["classifier/kernel"]
    kernel.assign(np.full(kernel.shape, np.nan, np.float32))
    found = model.evaluate(["a", "b"], [0, 1], return_dict=True, verbose=0)
    assert {*found} == {"loss", "macro_f1"}
    assert all(map(math.isnan, found.values()))


def test_a_loss_outside_a_replica(shallow):
    """In a strategy's scope, `compute_loss` returns the loss of its arguments.

    Both replicas' shares of it add up to the loss that one device returns,
    which `test_step` logs.
    """
    labels = np.array([0, 1])
    losses = []
    for names in (["CPU:0"], ["CPU:0", "CPU:1"]):
        keras.utils.set_random_seed(5)
        strategy = tf.distribute.MirroredStrategy(names)
        with strategy.scope():
            model = Classifier.load(shallow, LABELS)
            model.compile()
            ids = model.tokenizer(["good", "a bad film"])
            outputs = model(ids)
            loss = model.compute_loss(ids, labels, outputs, training=True)
            logs = model.test_step((ids, labels))
        losses.append(float(loss) * strategy.num_replicas_in_sync)
        assert float(logs["loss"]) == pytest.approx(losses[-1], rel=1e-6)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_the_gradients_of_replicas_add_up(shallow):
    """The replicas' gradients are those of the whole batch's weighted mean.

    The replicas have different numbers of rows, with different weights. Each
    replica logs the weighted mean over its own rows.
    """
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = Classifier.load(shallow, LABELS)
        model.compile()
    logits = np.array([[0.0, 2.0], [1.0, 0.5], [-1.0, 1.0]], "f4")
    labels, weights = np.array([0, 1, 1]), np.array([5.0, 1.0, 2.0], "f4")
    parts = slice(0, 1), slice(1, 3)

    def in_replicas(array):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(
                array[parts[context.replica_id_in_sync_group]]
            )
        )

    def gradient(labels, logits, weights):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = model.compute_loss({}, labels, logits, weights)
        return tape.gradient(loss, logits), loss

    arguments = tuple(map(in_replicas, (labels, logits, weights)))
    found, logged = map(
        strategy.experimental_local_results, strategy.run(gradient, arguments)
    )
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    wanted = weights[:, None] * (shares - np.eye(2)[labels]) / weights.sum()
    np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-5)
    losses = -np.log(shares[np.arange(3), labels])
    means = [np.average(losses[x], weights=weights[x]) for x in parts]
    # Keras adds up the losses of the replicas.
    np.testing.assert_allclose(2 * np.array(logged), means, rtol=1e-5)


@pytest.mark.slow
def test_fit_learns_and_tells(tmp_path):
    """`fit` trains a model; the history has losses and requested metrics.

    With validation data, the history includes the same values for these data.
    """
    train, dev = columns(300, 1), columns(53, 2)
    shape = {"initializer_range": 0.2, "num_hidden_layers": 1}
    folder = tiny_tasks.make_model_dir(tmp_path, **shape)
    keras.utils.set_random_seed(0)
    classifier = Classifier.load(folder, LABELS)
    classifier.compile(tiny_fits.optimizer(76), metrics=["accuracy"])
    how = {"batch_size": 16, "epochs": 4, "verbose": 0}
    history = classifier.fit(train, validation_data=dev, **how).history
    names = "accuracy loss val_accuracy val_loss"
    assert sorted(history) == names.split()
    assert history["val_accuracy"][-1] > 0.9
    right = np.mean(np.array(classifier.classify(dev[0])) == dev[1])
    assert history["val_accuracy"][-1] == pytest.approx(right)
    classifier.compile(AdamW(RATE), run_eagerly=True)
    assert set(classifier.fit(*dev, verbose=0).history) == {"loss"}


def test_a_file_has_everything(classifier, tmp_path, monkeypatch):
    """A `.keras` file keeps weights, tokenizer, optimizer and metrics.

    With `overwrite=False`, Keras asks before it replaces a file.
    """
    texts, labels = columns(8, 2)
    classifier.fit(texts, labels, verbose=0)
    classifier.save(tmp_path / "film.keras")
    again = keras.models.load_model(tmp_path / "film.keras")
    assert again.optimizer.iterations == classifier.optimizer.iterations
    how = {"verbose": 0, "return_dict": True}
    assert again.evaluate(texts, labels, **how) == pytest.approx(
        classifier.evaluate(texts, labels, **how)
    )
    classifier.save_weights(tmp_path / "film.weights.h5")
    again.set_weights([np.zeros_like(w) for w in again.get_weights()])
    before = (tmp_path / "film.keras").read_bytes()
    monkeypatch.setattr("builtins.input", lambda *_: "n")
    again.save(tmp_path / "film.keras", overwrite=False)
    assert (tmp_path / "film.keras").read_bytes() == before
    again.load_weights(tmp_path / "film.weights.h5")
    wanted = classifier.predict(texts, verbose=0)
    np.testing.assert_array_equal(again.predict(x=texts, verbose=0), wanted)


def test_what_is_frozen_stays_frozen(classifier, tmp_path):
    """Files and copies preserve a trainable layer inside a frozen layer.

    Otherwise, the optimizer's slots would not match, and `fit` would train all
    weights.
    """
    classifier.albert.trainable = False
    classifier.albert.pooler.trainable = True
    classifier.compile(AdamW(RATE), run_eagerly=True)
    classifier.fit(*columns(16, 2), verbose=0)
    classifier.save(tmp_path / "film.keras")
    again = keras.models.load_model(tmp_path / "film.keras")
    assert len(again.trainable_variables) == 4
    for left, right in zip(
        classifier.optimizer.variables, again.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(left, right)
    copy = keras.models.clone_model(classifier)
    assert len(copy.trainable_variables) == 4 and not copy.albert.trainable


def test_dropout_acts_while_it_learns(shallow):
    """Dropout is active only if `training=True`."""
    model = Classifier.load(shallow, LABELS, hidden_dropout_prob=0.5)
    batch = model.tokenizer(columns(4, 1)[0], max_length=16)
    assert np.array_equal(model(batch), model(batch, training=False))
    first, second = model(batch, training=True), model(batch, training=True)
    assert np.abs(first - second).max() > 1e-4


def test_weights_of_examples_and_classes_count(classifier):
    """The loss is a weighted mean, with weights of examples or of classes."""
    texts, labels = columns(20, 4)
    weights, how = np.linspace(0, 1, 20), {"verbose": 0, "batch_size": 20}
    shares = classifier.predict(texts, verbose=0)
    numbers = [LABELS.index(label) for label in labels]
    losses = -np.log(shares[np.arange(20), numbers])
    found = classifier.evaluate(texts, labels, sample_weight=weights, **how)
    wanted = np.average(losses, weights=weights)
    assert found[0] == pytest.approx(wanted, rel=1e-5)
    classifier.compile(AdamW(0.0), run_eagerly=True)
    of_classes = {"bad": 0.0, "good": 3.0}
    history = classifier.fit(
        texts, labels, class_weight=of_classes, **how
    ).history
    good = losses[np.array(labels) == "good"].mean()
    # Dropout before the head changes the loss slightly.
    assert history["loss"][0] == pytest.approx(good, abs=0.1)


@pytest.mark.slow
def test_another_loss_and_a_share_to_evaluate_on(classifier):
    """Keras losses and metrics receive class indices and logits."""
    keras_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    texts, labels = columns(20, 1)
    own = classifier.evaluate(texts, labels, verbose=0, return_dict=True)
    classifier.compile(
        AdamW(RATE), loss=keras_loss, metrics=["accuracy"], run_eagerly=True
    )
    found = classifier.evaluate(texts, labels, verbose=0, return_dict=True)
    assert found == pytest.approx(own, rel=1e-5)
    how = {"validation_split": 0.25, "verbose": 0}
    history = classifier.fit(texts, labels, **how).history
    assert "val_accuracy" in history
    classifier.compile(AdamW(0.0), run_eagerly=True)
    few = texts[:3], labels[:3]  # takes precedence over a share
    history = classifier.fit(texts, labels, validation_data=few, **how).history
    wanted = classifier.evaluate(*few, verbose=0)
    assert history["val_loss"][0] == pytest.approx(wanted)


@pytest.mark.slow
def test_a_share_of_ids_to_evaluate_on(classifier):
    """`validation_split` divides ids as it divides texts."""
    texts, labels = columns(8, 1)
    numbers = np.array([LABELS.index(label) for label in labels])
    classifier.compile(AdamW(0.0), run_eagerly=True)
    how = {"validation_split": 0.25, "verbose": 0}
    encoded = classifier.tokenizer(texts, max_length=16)
    of_ids = classifier.fit(encoded, numbers, **how).history
    of_texts = classifier.fit(texts, labels, **how).history
    assert of_ids["val_loss"] == pytest.approx(of_texts["val_loss"])


def test_bfloat16_is_the_global_policy(shallow, tmp_path):
    """The global dtype policy applies to every layer and is saved."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = Classifier.load(shallow, LABELS)
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(AdamW(RATE), run_eagerly=True)
    model.fit(*columns(16, 1), verbose=0)
    assert model.predict(["a film"], verbose=0).dtype == np.float32
    model.save(tmp_path / "half.keras")
    again = keras.models.load_model(tmp_path / "half.keras")
    for part in (model, again):
        assert part.albert.compute_dtype == "bfloat16"
        assert part.albert.pooler.kernel.dtype == "float32"


def test_a_fine_tuned_model_keeps_or_changes_its_head(finished):
    """A fine-tuned model keeps its labels and cannot change its task.

    With `new_head=True`, another task uses only the encoder of the model.
    """
    model = Classifier.load(finished[0], pairs=False)
    assert model.task.labels == LABELS
    for option in ("pairs", "multilabel"):
        with pytest.raises(InputError, match=f"`{option}` must have the value"):
            Classifier.load(finished[0], **{option: True})
    with pytest.raises(InputError, match="must be the model's"):
        Classifier.load(finished[0], ["bad", "good", "fine"])
    with pytest.raises(InputError, match="must be fine-tuned for regression"):
        Regressor.load(finished[0])
    number = Regressor.load(finished[0], new_head=True)
    np.testing.assert_array_equal(
        number.albert.pooler.kernel, model.albert.pooler.kernel
    )


def test_replicas_evaluate_a_single_batch(shallow):
    """Under a strategy, `test_on_batch` returns the mean loss of the batch."""
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = Classifier.load(shallow, LABELS)
        model.compile(run_eagerly=True)
    weights = model.named_weights()
    kernel = weights["classifier/kernel"]
    kernel.assign(tf.zeros_like(kernel))
    weights["classifier/bias"].assign([0.0, 2.0])
    ids, labels = model.tokenizer(["good", "a bad film"]), np.array([0, 1])
    wanted = np.log((1 + np.exp(2)) * (1 + np.exp(-2))) / 2
    assert model.test_on_batch(ids, labels) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size, largest_weight", [(16, 1), (15, 3)])
def test_two_replicas_learn(tmp_path, batch_size, largest_weight):
    """Two replicas reach the weights of one replica, up to rounding.

    Their batches may differ in size and in the sum of the examples' weights.
    The initial weights are large, so that gradients are clipped in the same way
    with one replica and with two.
    """
    example_weights = np.linspace(1, largest_weight, 32)
    folder = tiny_tasks.make_model_dir(tmp_path, initializer_range=0.2)
    ends = []
    for names in (["CPU:0"], ["CPU:0", "CPU:1"]):
        keras.utils.set_random_seed(5)
        with tf.distribute.MirroredStrategy(names).scope():
            model = Classifier.load(folder, LABELS, classifier_dropout=0.0)
            model.compile(AdamW(RATE), metrics=["accuracy"])
        model.fit(
            *columns(32, 1),
            batch_size=batch_size,
            sample_weight=example_weights,
            shuffle=False,
            verbose=0,
        )
        ends.append(model.get_weights())
    for one, two in zip(*ends, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["albert_tf, keras", "keras, albert_tf"])
def test_a_fresh_process_loads_the_file(classifier, tmp_path, first):
    """`import albert_tf` registers the classes with Keras."""
    classifier.save(tmp_path / "film.keras")
    texts = ["a good film", "a bad film"]
    program = (
        f"import {first}; m = keras.models.load_model('film.keras'); "
        f"print(m.classify({texts}))"
    )
    output = programs.fresh("-c", program, cwd=tmp_path)
    assert output.strip() == str(classifier.classify(texts))
