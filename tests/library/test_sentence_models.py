"""Models that predict classes, sets of classes, numbers and vectors."""

import exporting
import numpy as np
import pytest
import tensorflow as tf
import tiny_fits
import tiny_tasks
from tiny_fits import compiled

from albert_tf.base.errors import InputError
from albert_tf.library.models import (
    Classifier,
    Embedder,
    PairClassifier,
    Regressor,
)
from albert_tf.tasks.registry import find
from albert_tf.training.keras_optimizers import AdamW

LABELS = ("bad", "good")
TEXTS, NAMES = map(list, zip(*tiny_tasks.opinions(16, 1), strict=True))
NUMBERS = [float(name == "good") for name in NAMES]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "ways",
    [
        lambda a, b: (a, b),
        lambda a, b: list(zip(a, b, strict=True)),
        lambda a, b: {"text": a, "text_pair": b},
        lambda a, b: tf.data.Dataset.from_tensor_slices((a, b)),
    ],
)
def test_pairs_come_as_columns_or_rows(shallow, ways):
    """Pairs have the same probabilities in every form of argument."""
    model = compiled(PairClassifier, shallow, LABELS)
    pairs = TEXTS[:6], TEXTS[6:12]
    wanted = tf.nn.softmax(model(model.tokenizer(*pairs, max_length=16)))
    found = model.predict(ways(*pairs), verbose=0)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    model.fit(pairs, NAMES[:6], verbose=0)
    model.fit((pairs, NAMES[:6]), verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cls", "columns"),
    [
        ("sst-2", Classifier, 1),
        ("mrpc", PairClassifier, 2),
        ("sts-b", Regressor, 2),
        ("sts-b-embedding", Embedder, 1),
    ],
)
def test_a_model_of_official_files_takes_texts(
    name, cls, columns, pretrained_dir, tmp_path
):
    """A model for an official data set needs only texts and labels."""
    task = find(name).updated(max_seq_length=12)
    exporting.model_dir(tmp_path / "model", pretrained_dir, task)
    model = cls.load(tmp_path / "model")
    texts = (TEXTS[:4], TEXTS[4:8])[:columns]
    found = model.predict(*texts)
    assert len(found) == 4
    if cls is not Embedder:
        names = task.columns.text, task.columns.text_pair
        table = dict(zip(names, texts, strict=False))
        np.testing.assert_array_equal(model.predict(table), found)
        x = texts if columns == 2 else texts[0]
        assert model.score(x, [0, 1, 0, 1])


@pytest.mark.slow
def test_a_set_of_classes(shallow, tmp_path):
    """Multilabel labels are lists of names, or rows with 0 or 1 per class.

    Each class has an independent probability.
    """
    flags = [[int(name == label) for label in LABELS] for name in NAMES]
    model = compiled(
        Classifier,
        shallow,
        LABELS,
        multilabel=True,
        rate=0.01,
        metrics=["accuracy"],
    )
    by_name = model.evaluate(TEXTS, [[x] for x in NAMES], verbose=0)
    assert model.evaluate(TEXTS, flags, verbose=0) == by_name
    assert model.evaluate(TEXTS, np.array(flags), verbose=0) == by_name
    found = model.predict(TEXTS, verbose=0)
    sets = [tuple(np.array(LABELS)[row > 0.5].tolist()) for row in found]
    assert model.classify(TEXTS) == sets
    right = np.mean([s == (n,) for s, n in zip(sets, NAMES, strict=True)])
    assert by_name[1] == pytest.approx(right)
    model.save(tmp_path / "model")
    again = Classifier.load(tmp_path / "model")
    reloaded = again.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(reloaded, found, rtol=1e-5)
    wanted = model.evaluate(TEXTS, model.classify(TEXTS), verbose=0)
    assert wanted[1] == 1.0
    with pytest.raises(InputError, match="a 0 or 1 for each of bad, good"):
        model.fit(TEXTS, [[0, 1, 0]] * len(TEXTS))


def test_a_number(shallow):
    """The loss of a regression model is the mean squared error.

    `score` returns the Pearson correlation.
    """
    model = compiled(Regressor, shallow, rate=0.001)
    model.fit(TEXTS, NUMBERS, verbose=0)
    found = model.predict(TEXTS, verbose=0)
    assert found.shape == (16,)
    loss = model.evaluate(TEXTS, NUMBERS, verbose=0, batch_size=48)
    assert loss == pytest.approx(np.mean((found - NUMBERS) ** 2), rel=1e-4)
    scores = model.score(TEXTS, NUMBERS)
    wanted = np.corrcoef(found, NUMBERS)[0, 1]
    assert scores["pearson"] == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(InputError, match="must be a finite number"):
        model.fit(TEXTS, NAMES)


@pytest.mark.slow
def test_shares_of_classes_are_learned(shallow):
    """The loss for soft labels is cross entropy; labels may be one-hot rows."""
    model = compiled(
        Classifier,
        shallow,
        LABELS,
        classifier_dropout=0.0,
        metrics=["accuracy"],
    )
    how = {"verbose": 0, "batch_size": 16}
    flags = np.array([[name == label for label in LABELS] for name in NAMES])
    by_name = model.evaluate(TEXTS, NAMES, **how)
    for rows in (flags, flags.astype(float), flags.astype(int).tolist()):
        assert model.evaluate(TEXTS, rows, **how) == pytest.approx(by_name)
    shares = np.where(flags, 0.7, 0.3)
    logs = np.log(model.predict(TEXTS, verbose=0))
    wanted = -(shares * logs).sum(axis=1).mean()
    assert model.evaluate(TEXTS, shares, **how)[0] == pytest.approx(wanted)
    stream = tf.data.Dataset.from_tensor_slices((TEXTS, shares)).batch(16)
    for data in ((TEXTS, shares), (stream,)):
        history = model.fit(*data, validation_data=(TEXTS, NAMES), verbose=0)
        assert history.history["loss"][0] == pytest.approx(wanted)
        assert history.history["val_loss"][0] == pytest.approx(by_name[0])
    assert model.score(TEXTS, shares) == model.score(TEXTS, NAMES)
    for wrong in (shares[:, :1] * [[1, 1, 1]], shares + 0.1, -shares):
        with pytest.raises(InputError, match="share from 0 to 1 for each"):
            model.fit(TEXTS, wrong.tolist())


def test_shares_of_a_set_of_classes(shallow):
    """The loss for soft multilabel labels is the mean binary cross entropy.

    The labels of an example need not add up to 1.
    """
    model = compiled(Classifier, shallow, LABELS, multilabel=True)
    shares = np.linspace(0, 1, 32).reshape(16, 2)
    found = model.predict(TEXTS, verbose=0).astype(float)
    losses = shares * np.log(found) + (1 - shares) * np.log(1 - found)
    loss = model.evaluate(TEXTS, shares, verbose=0, batch_size=16)
    assert loss == pytest.approx(-losses.mean(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"num_labels": np.int64(2)}, {"labels": ["joy", "fear"]}]
)
def test_several_numbers(shallow, tmp_path, how):
    """The loss for labels of several numbers is the mean squared error.

    A model that is saved and loaded has the same outputs.
    """
    model = compiled(Regressor, shallow, **how, rate=0.001, metrics=["pearson"])
    rows = np.random.default_rng(1).normal(size=(16, 2))
    history = model.fit(TEXTS, rows, verbose=0, validation_data=(TEXTS, rows))
    found = model.predict(TEXTS, verbose=0)
    assert found.shape == (16, 2)
    wanted = np.mean((found - rows) ** 2)
    loss = model.evaluate(TEXTS, rows, verbose=0, batch_size=16)[0]
    assert loss == pytest.approx(wanted, rel=1e-4)
    both = [np.corrcoef(f, r)[0, 1] for f, r in zip(found.T, rows.T)]  # noqa: B905
    score = history.history["val_pearson"][0]
    assert score == pytest.approx(np.mean(both), abs=1e-5)
    model.save(tmp_path / "model")
    again = Regressor.load(tmp_path / "model")
    assert again.task.labels == model.task.labels
    reloaded = again.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(reloaded, found, rtol=1e-5)
    with pytest.raises(InputError, match="the label must be 2 numbers"):
        model.fit(TEXTS, rows[:, :1])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "data",
    [
        (TEXTS,),
        (tf.data.Dataset.from_tensor_slices(TEXTS).batch(16),),
        (tf.data.Dataset.from_tensor_slices((TEXTS, TEXTS[::-1])).batch(16),),
        ((TEXTS, TEXTS[::-1]),),
        (list(zip(TEXTS, TEXTS[::-1], strict=True)),),
        ((TEXTS, TEXTS[::-1], TEXTS[1:] + TEXTS[:1]),),
        ((TEXTS, TEXTS[::-1]), NUMBERS),
        (((TEXTS, TEXTS[::-1]), NUMBERS),),
    ],
)
def test_vectors_learn_from_what_there_is(shallow, data):
    """Training on texts, pairs, triplets or rated pairs reduces the loss."""
    model = compiled(Embedder, shallow, rate=tiny_fits.optimizer(4, 0.02))
    losses = model.fit(*data, epochs=2, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    vectors = model.encode(TEXTS[:5])
    assert vectors.shape == (5, 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_the_end_of_the_data_causes_no_warning(shallow, recwarn):
    """Keras warns only if the data have fewer batches than requested."""
    model = compiled(Embedder, shallow)
    pairs = TEXTS[:4], TEXTS[4:8]
    form = (tf.TensorSpec([4], tf.string),) * 2
    stream = tf.data.Dataset.from_generator(
        lambda: iter([pairs]), output_signature=form
    )
    for x in (pairs, stream):
        model.fit(x, epochs=2, batch_size=2, validation_data=stream, verbose=0)
        model.evaluate(x, verbose=0)
    model.encode(stream)
    texts = [str(warning.message) for warning in recwarn]
    assert not [text for text in texts if "ran out of data" in text]
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(pairs, batch_size=2, steps_per_epoch=9, verbose=0)


@pytest.mark.slow
def test_rated_pairs_may_be_a_table(shallow):
    """A model's score is the same for rated pairs in any kind of table.

    A table with named columns may have other columns too. It may contain the
    scores, or they may be a separate list.
    """
    pandas = pytest.importorskip("pandas")
    model = Embedder.load(shallow)
    rows = list(zip(TEXTS, TEXTS[::-1], strict=True))
    frame = pandas.DataFrame(rows, columns=["text", "text_pair"])
    wide = frame.assign(id=range(16), score=NUMBERS, negative="a")
    arrow = pytest.importorskip("pyarrow").Table.from_pandas(wide)
    tables = frame, wide, arrow, frame.to_dict("list")
    wanted = model.score((TEXTS, TEXTS[::-1]), NUMBERS)
    for table in (rows, np.array(rows), *tables):
        assert model.score(table, NUMBERS) == pytest.approx(wanted)
    for table in (wide, arrow, wide.to_dict("list"), wide.to_dict("records")):
        assert model.score(table) == pytest.approx(wanted)
        assert model.encode(table).shape == (16, 16)


@pytest.mark.slow
def test_one_model_takes_texts_and_pairs_in_turn(shallow):
    """A model that is compiled once learns from texts and from pairs."""
    model, pairs = Embedder.load(shallow), (TEXTS, TEXTS[::-1])
    model.compile(AdamW(0.001))
    for data in (TEXTS, pairs):
        assert model.fit(data, verbose=0).history["loss"][0] > 0
    assert "mrr" in model.score(pairs)
    assert model.encode(TEXTS).shape == (16, 16)


@pytest.mark.slow
def test_weights_of_pairs_leave_them_partners(shallow):
    """Pairs with small weights still serve as negatives for other pairs."""
    model = compiled(Embedder, shallow)
    pairs, weights = (TEXTS[:6], TEXTS[6:12]), [0.5, 1, 0, 2, 1, 0.1]
    first, second = map(model.encode, pairs)
    temperature = model.task.config.temperature
    logs = tf.nn.log_softmax(first @ second.T / temperature).numpy()
    losses = -np.diag(logs)
    for weighted in (None, [0.5] * 6, weights):
        found = model.evaluate(pairs, sample_weight=weighted, verbose=0)
        wanted = np.average(losses, weights=weighted)
        assert found == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", [[6, 1], [6]])
def test_scores_of_ids_may_be_a_column(shallow, shape):
    """For scores [B] or [B, 1], each cosine is compared with its own score."""
    model = compiled(Embedder, shallow)
    rows = {k: v.numpy() for k, v in model.preprocessor(TEXTS[:12]).items()}
    pairs = {k: v.reshape(2, 6, -1).swapaxes(0, 1) for k, v in rows.items()}
    scores = np.linspace(0, 1, 6, dtype=np.float32)
    first, second = np.split(model.encode(TEXTS[:12]), 2)
    wanted = np.mean((np.sum(first * second, axis=-1) - scores) ** 2)
    inputs = pairs | {"is_rated": np.ones(6, np.int32)}
    found = model.evaluate(inputs, scores.reshape(shape), verbose=0)
    assert found == pytest.approx(wanted, rel=1e-4)


def test_vectors_of_a_data_set(shallow, capsys):
    """`predict` returns vectors of texts, or of each pair's first text."""
    model = Embedder.load(shallow)
    wanted = model.encode(TEXTS)
    pairs, data = (TEXTS, TEXTS[::-1]), tf.data.Dataset.from_tensor_slices
    for x in (data(TEXTS), data(pairs).batch(3), data((pairs, NUMBERS))):
        np.testing.assert_allclose(model.encode(x), wanted, atol=1e-6)
    assert capsys.readouterr().out == ""


def test_scores_are_of_pairs(shallow):
    """Scores are rejected for single texts and triplets."""
    model = Embedder.load(shallow)
    with pytest.raises(InputError, match="may be accuracy, mrr, pearson"):
        model.compile(metrics=["ndcg"])
    with pytest.raises(InputError, match="Scores need pairs"):
        model.score(TEXTS, NUMBERS)
    with pytest.raises(InputError, match="Scores need pairs"):
        model.score((TEXTS, TEXTS, TEXTS), NUMBERS)
    model.compile(run_eagerly=True)
    stream = tf.data.Dataset.from_tensor_slices(((TEXTS, TEXTS), NUMBERS))
    with pytest.raises(InputError, match="Scores must be in memory"):
        model.fit(stream.batch(2))
    with pytest.raises(InputError, match="at least one"):
        model.encode(())


def test_two_copies_of_a_text_must_differ(shallow):
    """Without dropout and crops, a model cannot learn from single texts."""
    names = "hidden_dropout_prob", "attention_probs_dropout_prob"
    rates = dict.fromkeys(names, 0.0)
    model = Embedder.load(shallow, crop_rate=0.0, **rates)
    with pytest.raises(InputError, match="`crop_rate` must be above 0"):
        model.examples(TEXTS, None, "train")
    assert len(model.examples((TEXTS, TEXTS[::-1]), None, "train")) == 16
    for name in names:
        model = Embedder.load(shallow, crop_rate=0.0, **rates | {name: 0.1})
        assert len(model.examples(TEXTS, None, "train")) == 16


@pytest.mark.slow
def test_a_batch_may_have_no_class(shallow):
    """A batch may consist of examples without any label."""
    model = compiled(Classifier, shallow, ["x", "y"], multilabel=True)
    sets = [[0, 1], [0, 0], [0, 0]]
    stream = tf.data.Dataset.from_tensor_slices((TEXTS[:3], sets)).batch(1)
    losses = model.fit(stream, verbose=0).history["loss"]
    assert 0 < losses[0] < 10
    assert set(model.score(stream)) == set(model.score(TEXTS[:3], sets))
