"""Vectors of texts: an array [N, H] with a row for each line of a file.

[CLS] and [SEP] are tokens of a text, so a mean over its tokens includes them.

Shapes: N texts, B batch, T tokens, H width.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from albert_tf.base import files, interrupts, program
from albert_tf.base.console import Progress
from albert_tf.base.errors import require
from albert_tf.base.settings import (
    INPUT_FILE,
    MAX_SEQ_LENGTH,
    MODEL_DIR,
    OUTPUT_FILE,
    Validated,
    setting,
    variant,
)
from albert_tf.data import file_kinds
from albert_tf.data.row_files import lines_in
from albert_tf.model.albert import AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.model.task_heads import POOLINGS, pooled
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.embedding import Embedding
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import Task
from albert_tf.text.packing import INPUTS
from albert_tf.text.tokenizers import Tokenizer, load_saved_tokenizer
from albert_tf.training import checkpoints
from albert_tf.training.health import require_finite

CHUNK_BATCHES = 8  # number of batches whose texts are sorted together by length


# Functions that map a layer's vectors [B, T, H] and the mask [B, T] to [B, H].
SENTENCE: dict[str, Callable] = {
    prefix + name: functools.partial(pooled, pooling=name, unit=bool(prefix))
    for prefix in ("", "unit_")
    for name in POOLINGS
}


@dataclasses.dataclass(frozen=True)
class EmbedConfig(Validated):
    """The texts to embed, the model and the pooling."""

    model_dir: str = variant(MODEL_DIR)
    input_file: str = variant(INPUT_FILE)
    output_file: str = variant(OUTPUT_FILE, help="File to write, *.npy.")
    pooling: str | None = setting(
        None,
        "How to compute a text's vector: the first token's vector, the mean or "
        "the maximum over all tokens, each optionally normalized (unit_), or "
        "the pooler's output.",
        means="the pooling of an embedding model, otherwise mean",
        choices=(*SENTENCE, "pooled"),
    )
    layer: int = setting(
        -1,
        "Layer that outputs the vectors: 0 is the embedding, which may have a "
        "different width, and 1 is the first layer; negative numbers count "
        "from the last layer.",
        means="the last",
    )
    max_seq_length: int | None = variant(
        MAX_SEQ_LENGTH,
        means="the length of an embedding model, otherwise 128 or the model's "
        "number of positions if that is smaller",
    )
    batch_size: int = setting(32, "Number of texts per batch.", minimum=1)

    def __post_init__(self):
        super().__post_init__()
        require(
            self.output_file.endswith(".npy"),
            "`output_file` must end in .npy.",
            output_file=self.output_file,
        )
        require(
            self.pooling != "pooled" or self.layer == -1,
            "`pooling=pooled` requires the last layer.",
            layer=self.layer,
        )


def check_layer(c: EmbedConfig, config: AlbertConfig) -> int:
    """Check the settings; return the number of the layer, from 0.

    Layer 0 is the embedding, and 1 the first layer. A negative number counts
    from the end: -1 is the last layer.

    Raises:
      InputError: if the model has no such layer, or fewer positions than
        `max_seq_length`.
    """
    layers = config.num_hidden_layers * config.inner_group_num
    layer = c.layer + layers + 1 if c.layer < 0 else c.layer
    rule = f"`layer` must be from 0 to {layers}, or negative."
    require(0 <= layer <= layers, rule, layer=c.layer)
    config.check_length("max_seq_length", c.max_seq_length)
    return layer


def read_texts(path: str) -> Iterator[str]:
    """Yield the text of every line in a file."""
    legal = files.is_file(path) or files.is_stream(path)
    files.require_file(legal, "`input_file`", path)
    with file_kinds.opened(path) as source:
        rule = "`input_file` must be plain text with one text per line."
        kind = f"{path}, a file of {source.kind}"
        require(source.kind == file_kinds.TEXT, rule, input_file=kind)
        for _, line in lines_in(source, path):
            yield line.rstrip("\r")


def chunks(
    c: EmbedConfig, tokenizer: Tokenizer, texts: Iterator[str]
) -> Iterator[Features]:
    """Yield the features of texts, `CHUNK_BATCHES` batches at a time."""
    while chunk := list(itertools.islice(texts, CHUNK_BATCHES * c.batch_size)):
        yield Features.from_texts(tokenizer, chunk, c.max_seq_length)


def make_step(model: AlbertModel, pooling: str, layer: int) -> Callable:
    """Return a function that maps a batch to vectors, float32 [B, H]."""

    def step(batch):
        encoded = model(*(batch[name] for name in INPUTS), return_all=True)
        if pooling == "pooled":
            return tf.cast(encoded["pooled_output"], tf.float32)
        x = encoded["embedding_output"]
        if layer:
            x = encoded["hidden_states"][layer - 1]
        return SENTENCE[pooling](tf.cast(x, tf.float32), batch["input_mask"])

    return tf.function(step, reduce_retracing=True, autograph=False)


def vectors_of(chunk: Features, batch_size: int, step: Callable) -> np.ndarray:
    """Return the vectors [N, H] of a chunk's texts, in order."""
    vectors: dict[int, np.ndarray] = {}
    for batch in evaluation_batches(chunk, batch_size, bucketed=True):
        numbers = batch["example_numbers"].numpy().tolist()
        vectors |= zip(numbers, step(batch).numpy(), strict=True)
    require_finite(*vectors.values())
    return np.stack([vectors[i] for i in range(len(chunk))])


@contextlib.contextmanager
def array_file(path: str, shape: tuple) -> Iterator[Callable]:
    """Create a float32 `.npy` file, and yield a function that writes rows."""
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    files.make_folder(os.path.dirname(path) or ".")
    with interrupts.cleaning_up(), files.atomic_path(path) as temporary:
        with files.opened(temporary, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            yield lambda rows: file.write(rows.astype("<f4").tobytes())


def pooling_of(task: Task | None) -> str:
    """Return the pooling of an embedding task, or "mean" for other models."""
    if task is None or task.kind != Embedding.kind:
        return "mean"
    name, unit = task.head_arguments
    return f"unit_{name}" if unit else name


def completed(c: EmbedConfig, config: AlbertConfig) -> EmbedConfig:
    """Return the settings with defaults for the pooling and the length.

    The defaults depend on the model.
    """
    task = load_task(c.model_dir) if is_finetuned(c.model_dir) else None
    length = min(128, config.max_position_embeddings)
    if task and task.kind == Embedding.kind:
        length = task.config.max_seq_length
    return dataclasses.replace(
        c,
        pooling=c.pooling or pooling_of(task),
        max_seq_length=c.max_seq_length or length,
    )


def embed_texts(c: EmbedConfig) -> tuple[int, int]:
    """Write the vectors of all lines; return the shape of their array."""
    config = AlbertConfig.from_model_dir(c.model_dir)
    layer = check_layer(c, config)
    c = completed(c, config)
    tokenizer = load_saved_tokenizer(c.model_dir)
    # The texts are read twice. A pipe can be read only once, so its texts are
    # stored in memory.
    texts = functools.partial(read_texts, c.input_file)
    if files.is_stream(c.input_file):
        texts = functools.partial(iter, list(texts()))
    count = sum(1 for _ in texts())
    require(count, "`input_file` must not be empty.", input_file=c.input_file)
    model = AlbertModel(config)
    model.build()
    checkpoints.restore_weights(model, c.model_dir, only=("albert/",))
    step = make_step(model, c.pooling, layer)
    has_own_width = layer == 0 and config.embedding_norm == "embedding"
    width = config.embedding_size if has_own_width else config.hidden_size
    progress = Progress(count, unit="text")
    with array_file(c.output_file, (count, width)) as write:
        for chunk in chunks(c, tokenizer, texts()):
            write(vectors_of(chunk, c.batch_size, step))
            progress.advance(len(chunk), "embedded")
    progress.close()
    return count, width


@dataclasses.dataclass(frozen=True)
class Embedded:
    """The output: a file for `numpy.load`, and the shape of its array."""

    output_file: str
    shape: tuple[int, int]


@program.command(EmbedConfig)
def embed(config: EmbedConfig) -> Embedded:
    """Write one vector per line of a text file to an `.npy` file."""
    shape = embed_texts(config)
    print(f"Wrote {config.output_file}, float32 {list(shape)}")
    return Embedded(config.output_file, shape)


cli = embed.program.cli
