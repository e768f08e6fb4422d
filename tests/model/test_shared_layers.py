"""Each form of the encoder loop computes the results of an unrolled loop."""

import contextlib
import dataclasses
import functools

import goldens
import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.base.errors import InputError
from albert_tf.model.layers import (
    ON_TPU,
    PLAIN,
    EncoderLoop,
    Weights,
    encoder_loop,
)
from albert_tf.model.ops import dropout, fold_in, rematerialized
from albert_tf.training.checkpoints import named_variables
from albert_tf.training.training_config import TrainingConfig

WHILE = EncoderLoop("while")
LAYER = EncoderLoop("unrolled", rematerialize=True)
FORMS = (WHILE, LAYER, ON_TPU)
DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}


@functools.cache
def results(config, loop, dtype="float32", jit=False, eager=False):
    """Return logits and {name: gradient} with dropout from a fixed seed."""
    model = goldens.build(config, goldens.random_weights(config), dtype=dtype)
    model.albert.encoder.loop = loop
    inputs = goldens.random_inputs(config).values()
    variables = named_variables(model)

    def run(seed):
        with tf.GradientTape() as tape:
            out = model(*inputs, seed=seed)
            loss = tf.reduce_sum(tf.nn.log_softmax(out["mlm_logits"])[..., 3])
            loss += tf.reduce_sum(out["sop_logits"][:, 0])
        gradients = tape.gradient(loss, list(variables.values()))
        return out["mlm_logits"], [tf.convert_to_tensor(g) for g in gradients]

    step = run if eager else tf.function(run, jit_compile=jit, autograph=False)
    logits, gradients = step(tf.constant([3, 4]))
    return logits.numpy(), dict(zip(variables, gradients, strict=True))


def check(variant, loop, tolerance=2e-6, **kwargs):
    """Assert that a form agrees with the unrolled loop.

    Tolerances are relative to the largest logit or gradient.
    """
    config = goldens.variant(variant, **DROPOUT)
    logits, gradients = results(config, PLAIN, **kwargs)
    ours, found = results(config, loop, **kwargs)
    np.testing.assert_allclose(ours, logits, 0, np.abs(logits).max() * 1e-6)
    scale = max(np.abs(g).max() for g in gradients.values())
    assert scale > 0.1
    for name, gradient in gradients.items():
        np.testing.assert_allclose(
            found[name], gradient, 0, tolerance * scale, err_msg=name
        )


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    "loop, eager", [*((form, True) for form in FORMS), (ON_TPU, False)], ids=str
)
def test_forms_agree_with_the_unrolled_loop(loop, eager):
    """Logits and gradients agree up to rounding, even with dropout."""
    check("shared", loop, eager=eager)


@pytest.mark.parametrize("loop", (PLAIN, *FORMS), ids=str)
@pytest.mark.parametrize("numbers", [range(0, 3), range(2, 5), range(4, 5)])
def test_a_layer_gets_its_own_number(loop, numbers):
    """For any start and length, each layer receives its index."""
    x, weight = tf.Variable(1.5), 1.5
    for number in numbers:
        weight = 2 * weight + number

    def layer(x, number):
        return 2 * x + tf.cast(number, tf.float32)

    with tf.GradientTape() as tape:
        y = tf.function(lambda: loop(layer, tf.identity(x), numbers, ()))()
    assert float(y) == weight
    assert float(tape.gradient(y, x)) == 2.0 ** len(numbers)


def test_groups_with_inner_blocks_agree():
    """The results also agree for two groups of layers with two blocks each."""
    check("groups", ON_TPU, eager=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant, loop",
    [
        *((variant, ON_TPU) for variant in goldens.VARIANTS),
        *(("groups", form) for form in (WHILE, LAYER)),
    ],
    ids=str,
)
def test_every_architecture_agrees(variant, loop):
    """The forms agree with the unrolled loop for all kinds of sharing."""
    check(variant, loop)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant, loop",
    [("shared", WHILE), ("shared", LAYER), ("groups", ON_TPU)],
    ids=str,
)
@pytest.mark.parametrize(
    "kwargs, tolerance",
    [
        ({"jit": True}, 2e-6),
        ({"dtype": "mixed_bfloat16"}, 1e-5),
        # bfloat16 has 8 bits of precision; XLA sometimes uses more.
        ({"dtype": "mixed_bfloat16", "jit": True}, 2e-2),
    ],
    ids=str,
)
def test_precision_and_xla_agree(variant, loop, kwargs, tolerance):
    """The forms also agree with the unrolled loop with XLA and in bfloat16."""
    check(variant, loop, tolerance, **kwargs)


def test_weights_keep_float32_gradients_over_layers():
    """In mixed precision, the layers' gradients are summed in float32."""
    config = goldens.CONFIG
    _, unrolled = results(config, PLAIN, "mixed_bfloat16", eager=True)
    _, looped = results(config, ON_TPU, "mixed_bfloat16", eager=True)
    name = "albert/encoder/ffn_0_0/intermediate/kernel"
    assert looped[name].dtype == tf.float32
    np.testing.assert_allclose(looped[name], unrolled[name], 1e-5, 1e-6)


def mixed_step(layers):
    """Return how many casts to bfloat16 a step has, and the step's results.

    The results are the masked-LM logits and the gradients.
    """
    config = goldens.variant("shared", num_hidden_layers=layers)
    random = goldens.random_weights(config)
    model = goldens.build(config, random, dtype="mixed_bfloat16")
    weights = list(named_variables(model).values())
    inputs = goldens.random_inputs(config).values()

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            out = model(*inputs)
            loss = tf.reduce_sum(out["mlm_logits"] ** 2)
            loss += tf.reduce_sum(out["sop_logits"][:, 0])
        found = [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]
        return out["mlm_logits"], found

    made = step.get_concrete_function()
    casts = [
        op
        for op in made.graph.get_operations()
        if op.type == "Cast" and op.outputs[0].dtype == tf.bfloat16
    ]
    return len(casts), tf.nest.map_structure(lambda x: x.numpy(), made())


@pytest.mark.slow
def test_layers_share_the_casts_of_their_kernels(monkeypatch):
    """In bfloat16, the six kernels are cast once, not in each layer.

    With a cast per layer, logits and gradients are bit-identical.
    """
    once, found = mixed_step(layers=4)
    unused = contextlib.nullcontext()
    monkeypatch.setattr(Weights, "read_as", lambda self, *tensors: unused)
    each, wanted = mixed_step(layers=4)
    assert each - once == 4 * 6
    tf.nest.map_structure(np.testing.assert_array_equal, found, wanted)


def nodes(layers):
    """Return how many nodes the graph of a model with `layers` layers has."""
    model, inputs = goldens.random_model(num_hidden_layers=layers)
    model.albert.encoder.loop = ON_TPU
    inputs = inputs.values()

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(*inputs)["sequence_output"])
        return tape.gradient(loss, model.albert.encoder.trainable_variables)

    graph = step.get_concrete_function().graph.as_graph_def()
    inner = sum(len(f.node_def) for f in graph.library.function)
    return len(graph.node) + inner


@pytest.mark.slow
def test_the_graph_of_a_loop_does_not_grow_with_depth():
    """A loop over five layers has as many operations as a loop over three."""
    assert nodes(5) == nodes(3)


def stored_tensors(call):
    """Return how many tensors a 3-layer loop keeps for the backward pass."""

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            weight = tf.ones([4, 4])
            run = EncoderLoop("while", call)
            y = run(lambda x, i: tf.tanh(tf.tanh(x @ weight)), x, range(3), ())
        return tape.gradient(y, x)

    graph = step.get_concrete_function(tf.TensorSpec([2, 4])).graph
    forward = next(op for op in graph.get_operations() if "While" in op.type)
    return sum(t.dtype == tf.variant for t in forward.outputs)


def test_only_a_layers_input_is_kept():
    """A rematerialized loop stores only inputs and indices of layers."""
    assert stored_tensors(True) <= 2 < stored_tensors(False)


def test_recomputation_is_the_same_function_again():
    """A layer is recomputed with the same index and dropout mask."""
    calls = []

    def layer(x, number, weight):
        calls.append(int(number))
        seed = fold_in(tf.constant([1, 2]), number)
        return dropout(x * weight, 0.5, seed)

    x, weight = tf.random.normal([50]), tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = rematerialized(layer)(x, tf.constant(7), weight)
    dx = tape.gradient(y, x)
    assert calls == [7, 7]
    np.testing.assert_allclose(dx, np.where(y != 0, 6.0, 0.0))


def test_return_all_gives_every_layer_in_every_form():
    """All forms return equal hidden states and attention maps."""
    model, inputs = goldens.random_model()
    inputs = inputs.values()
    plain = model(*inputs, return_all=True)
    model.albert.encoder.loop = ON_TPU
    found = model(*inputs, return_all=True)
    assert len(found["hidden_states"]) == goldens.CONFIG.num_hidden_layers
    for key in ("hidden_states", "attention_probs"):
        for ours, theirs in zip(found[key], plain[key], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    last = model(*inputs)["sequence_output"]
    np.testing.assert_allclose(last, plain["sequence_output"], 0, 1e-6)


@pytest.fixture(scope="module")
def unrolled():
    """Return {name: value} for a three-layer trainer after four steps."""
    config = dataclasses.replace(tiny.CONFIG, num_hidden_layers=3)
    plain = tiny.make_trainer(config=config)
    assert plain.model.albert.encoder.loop == PLAIN
    tiny.run_steps(plain, 4)
    return tiny.values(plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kwargs",
    [
        {"replicas": 2, "gradient_accumulation_steps": 2},
        {"jit_compile": True},
        {"jit_compile": True, "rematerialize": "none"},
    ],
    ids=str,
)
def test_training_gives_the_same_weights(unrolled, kwargs):
    """Training with a loop results in the unrolled loop's weights.

    The weights are also equal with replicas, XLA and micro-batches.
    """
    config = dataclasses.replace(tiny.CONFIG, num_hidden_layers=3)
    settings = {"encoder_loop": "while", "rematerialize": "layer"} | kwargs
    looped = tiny.make_trainer(config=config, **settings)
    tiny.run_steps(looped, 4)
    assert tiny.largest_difference(unrolled, tiny.values(looped)) < 2e-6


@pytest.mark.parametrize(
    "form, again, on_tpu, expected",
    [
        ("auto", "auto", False, PLAIN),
        ("auto", "auto", True, ON_TPU),
        ("unrolled", "auto", True, LAYER),
        ("while", "none", True, WHILE),
        ("auto", "layer", False, LAYER),
    ],
)
def test_auto_goes_by_the_device(form, again, on_tpu, expected):
    """`auto` selects the default for the type of device."""
    assert encoder_loop(form, again, on_tpu) == expected


def test_an_unknown_form_is_refused():
    """The error for an unknown form lists the legal forms."""
    with pytest.raises(InputError, match="one of auto, unrolled, while"):
        TrainingConfig(encoder_loop="scan")


@pytest.mark.parametrize(
    "changes, runs",
    [
        ({}, [range(0, 4)]),
        ({"num_hidden_groups": 2}, [range(0, 2), range(2, 4)]),
        ({"num_hidden_groups": 3}, [range(0, 2), range(2, 3), range(3, 4)]),
        ({"sharing": "ffn"}, [range(i, i + 1) for i in range(4)]),
    ],
)
def test_layers_are_shared_in_runs(changes, runs):
    """Adjacent layers that share all their blocks form a run."""
    assert goldens.variant("shared", **changes).shared_layers() == runs
