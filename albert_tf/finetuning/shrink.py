"""Smaller models, with fewer layers or fewer attention heads.

Heads are ranked as in Michel et al., https://arxiv.org/abs/1905.10650,
equation 2: a head's importance is I = E_x |dL(x)/dm|, where the factor m = 1
multiplies the head's output in every layer that calls the head's block.

Shapes: A heads, D head width, H hidden width.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from albert_tf.base import files, program, settings
from albert_tf.base.console import format_table
from albert_tf.base.errors import require
from albert_tf.base.replacing import atomic_folder, check_writable
from albert_tf.base.settings import (
    FLAG_FILE,
    MODEL,
    MODEL_DIR,
    OUTPUT_DIR,
    Validated,
    setting,
    variant,
)
from albert_tf.finetuning.evaluation import TaskEvaluator
from albert_tf.finetuning.finetuning_setup import (
    FinetuningConfig,
    Job,
    metric_name,
    prepare,
)
from albert_tf.model.config import BLOCK, BLOCK_TYPES, AlbertConfig
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.registry import is_finetuned
from albert_tf.tasks.task import TASK_FILE, read_splits
from albert_tf.tasks.task_config import DataConfig, TaskConfig
from albert_tf.text.symbols import vocabulary_in
from albert_tf.training import checkpoints
from albert_tf.training.distribution import DistributionConfig, make_strategy
from albert_tf.training.evaluator import Evaluator
from albert_tf.training.model_card import write_card
from albert_tf.training.objectives import Objective

# For each weight of a block, the axis along which the heads are concatenated.
HEAD_AXES = {
    "query/kernel": 1,
    "query/bias": 0,
    "key/kernel": 1,
    "key/bias": 0,
    "value/kernel": 1,
    "value/bias": 0,
    "output/kernel": 0,
}


def mask_gradients(kernel, gradient, heads: int) -> tf.Tensor:
    """Return dL/dm [A], given an output kernel [A * D, H] and its gradient.

    Multiplying a head's output by m is the same as multiplying the head's rows
    of the kernel by m.
    """
    products = tf.reshape(kernel * gradient, [heads, -1])  # [A, D * H]
    return tf.reduce_sum(products, axis=1)


def importances(
    model, objective: Objective, examples: tf.data.Dataset
) -> dict[str, np.ndarray]:
    """Return {block: importance of each head [A]}.

    The importance is the mean of |dL/dm| over examples; see `mask_gradients`.

    Args:
      model: a model whose attribute `albert` is the encoder.
      objective: the loss.
      examples: batches of one example each.
    """
    config, blocks = model.albert.config, model.albert.encoder.attentions
    kernels = [b.output_projection.kernel.value for b in blocks.values()]

    @tf.function(input_signature=[examples.element_spec], autograph=False)
    def step(batch):
        with tf.GradientTape() as tape:
            sums, _ = objective.losses(model, batch, None)
            loss = tf.add_n(list(sums.values()))
        gradients = tape.gradient(loss, kernels)
        heads = config.num_attention_heads
        return [
            tf.abs(mask_gradients(kernel, gradient, heads))
            for kernel, gradient in zip(kernels, gradients, strict=True)
        ]

    magnitudes = [[x.numpy() for x in step(batch)] for batch in examples]
    names = [block.name for block in blocks.values()]
    return dict(zip(names, np.mean(magnitudes, axis=0), strict=True))


def most_important(importance: np.ndarray, number: int) -> np.ndarray:
    """Return the indices of the most important heads, in ascending order."""
    return np.sort(np.argsort(-importance, kind="stable")[:number])


def without_heads(
    config: AlbertConfig,
    weights: dict[str, np.ndarray],
    selected: dict[str, np.ndarray],
) -> tuple[AlbertConfig, dict[str, np.ndarray]]:
    """Return a config and weights with only the selected heads.

    Args:
      config: the architecture.
      weights: the model's weights {name: value}.
      selected: {block: heads to keep}, the same number in every block.
    """
    size, weights = config.head_size, dict(weights)
    for block, heads in selected.items():
        indices = (heads[:, None] * size + np.arange(size)).ravel()
        for part, axis in HEAD_AXES.items():
            name = f"albert/encoder/{block}/{part}"
            weights[name] = np.take(weights[name], indices, axis)
    (number,) = {len(heads) for heads in selected.values()}
    new = dataclasses.replace(
        config, num_attention_heads=number, attention_head_size=size
    )
    return new, weights


EVAL_BATCH_SIZE = 32
HEAD_EXAMPLES = 1000  # maximum number of examples for measuring importance


@dataclasses.dataclass(frozen=True)
class ShrinkConfig(Validated):
    """The model directory to shrink, and the new sizes."""

    model_dir: str = variant(MODEL_DIR)
    output_dir: str = variant(
        OUTPUT_DIR, help="New folder for the smaller model."
    )
    num_layers: int | None = setting(
        None,
        "Number of layers to keep, starting with the first.",
        means="all",
        minimum=1,
        group=MODEL,
    )
    num_heads: int | None = setting(
        None,
        "Number of attention heads to keep in each layer: the most important "
        "for the task's training examples.",
        means="all",
        minimum=1,
        group=MODEL,
    )


@dataclasses.dataclass(frozen=True)
class Model:
    """An architecture and its weights {name: value}."""

    config: AlbertConfig
    weights: dict[str, np.ndarray]

    def restore(self, model) -> None:
        """Assign these weights to a built model."""
        for name, variable in checkpoints.named_variables(model).items():
            variable.assign(self.weights[name])


def load(model_dir: str) -> Model:
    """Return the model in a directory, without optimizer variables."""
    config = AlbertConfig.from_model_dir(model_dir)
    prefix = checkpoints.for_inference(model_dir)
    read = checkpoints.reader(prefix)
    names = checkpoints.read_table(prefix)
    learned = [n for n in names if not n.startswith(checkpoints.OPTIMIZER)]
    return Model(config, {name: read(name) for name in learned})


# Fewer layers.


def shorter(config: AlbertConfig, layers: int) -> AlbertConfig:
    """Return a config with fewer layers, each of which keeps its weights."""
    max_layers = config.num_hidden_layers
    rule = f"`num_layers` must be at most the model's {max_layers} layers."
    require(layers <= max_layers, rule, num_layers=layers)
    # Without sharing, every layer is a separate group.
    groups = config.group(layers - 1) + 1
    new = dataclasses.replace(
        config, num_hidden_layers=layers, num_hidden_groups=groups
    )
    require(
        all(new.blocks(k) == config.blocks(k)[:layers] for k in BLOCK_TYPES),
        "`num_layers` must keep each layer in its group; for "
        f"num_hidden_groups={config.num_hidden_groups}, it must be one of "
        f"{', '.join(map(str, valid_layer_counts(config)))}.",
        num_layers=layers,
    )
    return new


def valid_layer_counts(config: AlbertConfig) -> list[int]:
    """Return all layer counts that leave each layer in its group."""
    numbers = range(1, config.num_hidden_layers + 1)
    groups = [config.group(layers - 1) + 1 for layers in numbers]
    return [
        layers
        for layers, count in zip(numbers, groups, strict=True)
        if all(i * count // layers == config.group(i) for i in range(layers))
    ]


def keeps_variable(name: str, config: AlbertConfig) -> bool:
    """Return whether a model with this config has the variable."""
    block = BLOCK.match(name)
    return not block or int(block[2]) in config.blocks(block[1])


def with_layers(model: Model, layers: int) -> Model:
    """Return the model with only its first layers."""
    config = shorter(model.config, layers)
    weights = {
        n: w for n, w in model.weights.items() if keeps_variable(n, config)
    }
    return Model(config, weights)


# The task is used to measure the importance of heads and the cost of shrinking.


def prepare_task(config: ShrinkConfig, data: DataConfig) -> Job | None:
    """Return the job of a fine-tuned model, or None if no setting needs it.

    The job contains the examples to evaluate, if any.
    """
    evaluates = data.data_dir or data.eval_file
    if not (config.num_heads or evaluates):
        return None
    require(
        is_finetuned(config.model_dir),
        "`num_heads`, `data_dir` and `eval_file` need a fine-tuned model, "
        "because they use its task.",
        model_dir=config.model_dir,
    )
    run = FinetuningConfig(config.model_dir, config.output_dir, do_eval=True)
    return prepare(run, data, TaskConfig(), ("eval",) if evaluates else ())


def with_heads(model: Model, number: int, job: Job, data: DataConfig) -> Model:
    """Return the model with only its most important heads."""
    max_heads = model.config.num_attention_heads
    rule = f"`num_heads` must be at most the model's {max_heads} heads."
    require(number <= max_heads, rule, num_heads=number)
    (examples,) = read_splits(job.task, data, "train").values()
    require(
        job.task.supports_single_example(examples),
        "`num_heads` needs examples whose loss does not depend on other "
        "examples: texts with a score or a negative.",
        num_heads=number,
    )
    order = np.random.default_rng(0).permutation(len(examples))
    sample = [examples[i] for i in order[:HEAD_EXAMPLES]]
    features = job.task.features(sample, job.tokenizer)
    objective = job.task.objective
    network = job.task.build_model(model.config, "float32")
    model.restore(network)
    importance = importances(
        network, objective, evaluation_batches(features, 1, bucketed=True)
    )
    for block, values in importance.items():
        print(f"{block}: {', '.join(f'{x:.2g}' for x in values)}")
    selected = {
        block: most_important(values, number)
        for block, values in importance.items()
    }
    return Model(*without_heads(model.config, model.weights, selected))


def measure(model: Model, job: Job) -> dict[str, float]:
    """Return the main metric and the loss of every split."""
    task = job.task
    evaluator = Evaluator(
        make_strategy(DistributionConfig()),
        lambda: task.build_model(model.config, "float32"),
        task.objective,
        EVAL_BATCH_SIZE,
    )
    model.restore(evaluator.model)
    metrics = TaskEvaluator(evaluator, task, True).metrics(job.eval)
    names = [
        metric_name(split.name, name)
        for split in job.eval
        for name in (task.main_metric, "loss")
    ]
    return {name: metrics[name] for name in names}


def stages(
    config: ShrinkConfig, data: DataConfig, job: Job | None
) -> Iterator[tuple[str, Model]]:
    """Yield the original model, then the model after each requested change."""
    model = load(config.model_dir)
    yield "original", model
    if config.num_layers:
        model = with_layers(model, config.num_layers)
        yield f"num_layers={config.num_layers}", model
    if config.num_heads:
        model = with_heads(model, config.num_heads, job, data)
        yield f"num_heads={config.num_heads}", model


def write(config: ShrinkConfig, data: DataConfig, model: Model) -> None:
    """Write the directory of the smaller model."""
    source = config.model_dir
    with atomic_folder(config.output_dir) as folder:
        model.config.save(folder)
        if vocabulary := vocabulary_in(source):
            vocabulary.save(folder)
        task = files.join(source, TASK_FILE)
        if files.exists(task):
            files.copy(task, files.join(folder, TASK_FILE))
        flags = settings.flagfile(config, data)
        files.write_text(files.join(folder, FLAG_FILE), flags)
        variables = {n: tf.Variable(w) for n, w in model.weights.items()}
        checkpoints.save(folder, variables)
    write_card(config.output_dir, config.output_dir)


def cost_row(title: str, model: Model, job: Job | None) -> dict[str, str]:
    """Return a row of the cost table: the model's size and metrics."""
    size = sum(value.size for value in model.weights.values())
    row = {"": title, "parameters": f"{size:,}"}
    if job and job.eval:
        measured = measure(model, job)
        row |= {name: f"{value:.4f}" for name, value in measured.items()}
    return row


def shrink_model(config: ShrinkConfig, data: DataConfig) -> None:
    """Write the smaller model directory; print its size and metrics.

    Args:
      config: the model, and how to shrink it.
      data: the task's data, needed only to remove heads or to evaluate.
    """
    require(
        files.is_free(config.output_dir),
        "`output_dir` must be new or empty.",
        output_dir=config.output_dir,
    )
    check_writable("output_dir", config.output_dir)
    job, rows = prepare_task(config, data), []
    for title, model in stages(config, data, job):
        rows.append(cost_row(title, model, job))
    write(config, data, model)
    table = [tuple(rows[0]), *(tuple(row.values()) for row in rows)]
    print("\n".join(format_table(table)))
    if not (job and job.eval):
        print("With --data_dir or --eval_file, this table includes metrics.")
    print(f"Wrote {config.output_dir}")


@program.command(ShrinkConfig, DataConfig)
def shrink(config: ShrinkConfig, data: DataConfig) -> None:
    """Make a smaller or faster copy of a model directory."""
    shrink_model(config, data)


cli = shrink.program.cli
