"""The trainer's steps under `TPUStrategy`, traced but not run.

The strategy, the host loop and the input are those of a run. The resolver is a
fake, and no operation is executed.
"""

import contextlib
import dataclasses
import functools

import pytest
import tensorflow as tf
import tiny
from graph_structure import CALLS, LOOPS, structure
from tensorflow.python.framework import kernels
from tiny_records import SLOTS, TOKENS, write_records
from traced_strategy import Resolver, trace, variables_here

from albert_tf.data.records import input_pipeline
from albert_tf.data.records.metadata import read_metadata
from albert_tf.model.ops import is_tpu
from albert_tf.tpu.compiler import CompileOnlyStrategy, replica_program
from albert_tf.training import checkpoints, distribution
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.pretraining.run_setup import make_trainer
from albert_tf.training.training_config import TrainingConfig

CONFIG = dataclasses.replace(
    tiny.CONFIG, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
)
EACH = 4  # examples per replica, in two micro-batches


def trainer_on(strategy):
    """Return a trainer that accumulates gradients and averages weights.

    Training steps also use dropout and bfloat16.
    """
    replicas = strategy.num_replicas_in_sync
    training = TrainingConfig(
        train_batch_size=EACH * replicas,
        eval_batch_size=EACH * replicas,
        gradient_accumulation_steps=2,
        dtype="bfloat16",
    )
    optimizer = OptimizerConfig(ema_decay=0.99)
    return make_trainer(CONFIG, "none", optimizer, training, strategy)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Return a folder of records."""
    folder = tmp_path_factory.mktemp("records")
    write_records(folder)
    return str(folder)


@functools.cache
def trainer_of(cores):
    """Return a trainer on a slice with the given number of cores."""
    strategy = tf.distribute.TPUStrategy(Resolver(cores))
    assert is_tpu(strategy)
    with variables_here(strategy):
        return trainer_on(strategy)


@functools.cache
def steps(cores, data_dir, layers=None):
    """Return a traced loop of several steps with a run's input."""
    trainer = trainer_of(cores).at_depth(layers)
    metadata = read_metadata(data_dir)
    batches = functools.partial(
        input_pipeline.train_batches, data_dir, metadata, seed=1
    )
    count = tf.constant(3)
    with variables_here(trainer.strategy):
        run_steps = trainer.run_steps
    return trace(lambda: run_steps(trainer.iterator(batches, 0), count))


def evaluation(cores, data_dir):
    """Return a traced evaluation step with a run's input."""
    evaluator = trainer_of(cores).evaluator
    size, metadata = evaluator.eval_batch_size, read_metadata(data_dir)
    batches = functools.partial(
        input_pipeline.eval_batches, data_dir, metadata, batch_size=size
    )

    def step():
        batch = next(iter(evaluator._distributed(batches)))
        return evaluator._evaluation_step(batch)

    return trace(step)


@functools.cache
def compile_only(replicas):
    """Return the trainer that `tpu_check` creates."""
    return trainer_on(CompileOnlyStrategy(replicas))


def compiled(replicas, layers=None):
    """Return the structure of the step that `tpu_check` lowers."""
    trainer = compile_only(replicas).at_depth(layers)
    strategy, step = trainer.strategy, trainer.replica_step
    specs = input_pipeline.batch_spec(EACH, TOKENS, SLOTS)
    program = replica_program(strategy, step).get_concrete_function(specs)
    functions = program.graph.as_graph_def().library.function
    library = {f.signature.name: f for f in functions}
    return structure(program.function_def, library)


@pytest.mark.slow
@pytest.mark.parametrize("cores, layers", [(8, None), (8, 1), (32, None)])
def test_the_check_compiles_what_the_strategy_replicates(
    cores, layers, data_dir
):
    """`tpu_check` compiles the operations that the strategy replicates.

    Attributes and inputs of the operations are also equal. The sums of results
    over steps, which stay on the device, are excluded.
    """
    traced = steps(cores, data_dir, layers)
    ours = structure(traced.replica, traced.library, traced.ends)
    *theirs, (_, _, figures) = compiled(cores, layers)
    assert len(theirs) > 1000 and len(figures) == 2
    for one, other in zip(ours, theirs, strict=False):
        assert one == other
    *sums, (_, _, returned) = ours[len(theirs) :]
    assert {kind for kind, *_ in sums}.isdisjoint(LOOPS | {"sum"})
    assert 10 < len(sums) < 40 and returned == traced.ends == []


def nodes_of_replicas(traced):
    """Return all nodes of replicas, including nodes in called functions."""
    nodes = [n for n in traced.replica.node_def if "_tpu_replicate" in n.attr]
    for node in nodes:  # the list grows
        names = [v.func.name for v in node.attr.values() if v.func.name]
        for name in names:
            nodes += traced.library[name].node_def
    return nodes


def types(node):
    """Return the data types in a node's attributes."""
    values = node.attr.values()
    return {t for v in values for t in (v.type, *v.list.type)}


@functools.cache
def platform():
    """Return the platform of XLA's kernels: TPU, if TensorFlow supports it."""
    lower = tf.function(lambda x: x * x, jit_compile=True)
    lower = lower.experimental_get_compiler_ir(tf.TensorSpec([]))
    for name in "TPU", None:  # lowering also registers the kernels
        with contextlib.suppress(ValueError):
            lower(stage="hlo", platform_name=name)
            return f"XLA_{name or 'CPU'}_JIT"


def compilable(op):
    """Return whether XLA has a kernel for an operation."""
    registered = kernels.get_registered_kernels_for_op(op).kernel
    return platform() in {kernel.device_type for kernel in registered}


@pytest.mark.slow
@pytest.mark.parametrize("make", [steps, evaluation])
def test_replicas_hold_what_a_tpu_can(make, data_dir):
    """Replicas contain only operations that XLA supports, and no strings."""
    platform()
    nodes = nodes_of_replicas(make(8, data_dir))
    structural = CALLS | LOOPS | {"NoOp", "TPUReplicateMetadata"}
    others = {node.op for node in nodes} - structural - {"CrossReplicaSum"}
    assert len(others) > 25
    assert {op for op in others if not compilable(op)} == set()
    assert not any(tf.string.as_datatype_enum in types(n) for n in nodes)
    functions = make(8, data_dir).library.values()
    assert not any(f.attr["_XlaMustCompile"].b for f in functions)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [8, 32])
def test_each_host_reads_for_its_own_cores(cores, data_dir):
    """Each host reads its own cores' share of the examples."""
    nodes = steps(cores, data_dir).host.node_def
    # Only the training stream consists of epochs.
    hosts = [n.device for n in nodes if n.op == "FlatMapDataset"]
    assert distribution.hosts(trainer_of(cores).strategy) == len(hosts)
    fed = [n.device for n in nodes if n.op == "MakeIterator"]
    job = "/job:worker/replica:0/task"
    assert hosts == [f"{job}:{h}/device:CPU:0" for h in range(cores // 8)]
    assert fed == [f"{job}:{c // 8}/device:TPU:{c % 8}" for c in range(cores)]


@pytest.mark.slow
def test_checkpoints_hold_a_tpus_variables(tmp_path):
    """Variables on TPUs, including averages, are saved and restored.

    During an evaluation, averages replace the weights.
    """
    trainer = trainer_of(4)  # one core per logical CPU
    state = trainer.state()
    for number, variable in enumerate(state.values()):
        variable.assign(
            tf.fill(variable.shape, tf.cast(number, variable.dtype))
        )
    before = {name: v.numpy() for name, v in trainer.weights.items()}
    with trainer.evaluated_weights():
        for name, mean in trainer.optimizer.average.means.items():
            assert (trainer.weights[name].numpy() == mean.numpy()).all()
    prefix = checkpoints.save(str(tmp_path), state)
    for variable in state.values():
        variable.assign(tf.zeros_like(variable))
    checkpoints.restore(prefix, state)
    for number, variable in enumerate(state.values()):
        assert {int(tf.reduce_max(c)) for c in variable.values} == {number}
    for name, value in before.items():
        assert (trainer.weights[name].numpy() == value).all()
