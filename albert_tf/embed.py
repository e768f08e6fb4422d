"""Vectors of texts: `python -m albert_tf.embed`, from a file to `.npy`.

Of N lines, `cls`, `mean` and `pooled` give an array [N, H]. What differs in
size from text to text is written one after the other, and the file
`NAME.offsets.npy`, int64 [N + 1], tells where each text begins:

    tokens     NAME.npy [tokens, H], the tokens in NAME.ids.npy; a text is
               array[offsets[i]:offsets[i + 1]]
    attention  NAME.npy, flat; the maps [A, t, t] of a text of t tokens are
               array[offsets[i]:offsets[i + 1]].reshape(A, t, t)

The tokens of a text include [CLS] and [SEP], also in its mean.

Shapes: B batch, T tokens, H width, A heads.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from albert_tf.base import files, settings
from albert_tf.base.errors import InputError
from albert_tf.base.progress import Progress
from albert_tf.base.settings import setting, validate
from albert_tf.model.albert import AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.features import Features, packed_row
from albert_tf.text.tokenizers import Tokenizer, load_tokenizer
from albert_tf.training import checkpoints

CHUNK_BATCHES = 8  # batches whose texts are sorted by length together


def mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return the mean [B, H] of vectors [B, T, H], padding left out."""
    weights = tf.cast(mask, x.dtype)[..., None]
    return tf.reduce_sum(x * weights, 1) / tf.reduce_sum(weights, 1)


# From the layer's vectors [B, T, H] and the mask [B, T] to one vector [B, H].
SENTENCE: dict[str, Callable] = {
    "cls": lambda x, mask: x[:, 0],
    "mean": mean,
}
POOLINGS = (*SENTENCE, "pooled", "tokens", "attention")
RAGGED = ("tokens", "attention")


@dataclasses.dataclass(frozen=True)
class EmbedConfig:
    """What is embedded, and how."""

    model_dir: str = setting(
        "", "Model directory, pretrained or fine-tuned.", required=True
    )
    input_file: str = setting(
        "", "Text file, one text on each line.", required=True
    )
    output_file: str = setting("", "File to write, *.npy.", required=True)
    pooling: str = setting(
        "mean",
        "Vector of the first token, mean of all tokens, the pooler's output, "
        "every token, or the attention maps.",
        choices=POOLINGS,
    )
    layer: int = setting(
        -1,
        "0 is the embedding, of its own width, 1 the first layer; negative "
        "numbers count from the last.",
    )
    pairs: bool = setting(
        False, "Whether lines have two texts, with a tab between them."
    )
    max_seq_length: int | None = setting(
        None,
        "Tokens of a text; longer ones are cut. By default 128, or what the "
        "model can take.",
        minimum=4,
    )
    batch_size: int = setting(32, "Texts computed at once.", minimum=1)

    def __post_init__(self):
        validate(self)
        if not self.output_file.endswith(".npy"):
            raise InputError(
                "`output_file` must end in .npy. Received: "
                f"output_file={self.output_file}"
            )
        if self.pooling == "pooled" and self.layer != -1:
            raise InputError(
                "pooling=pooled is of the last layer. Received: "
                f"layer={self.layer}"
            )

    def beside(self, name: str) -> str:
        """Return the path of another file of the same output."""
        return f"{self.output_file.removesuffix('.npy')}.{name}.npy"


def check(c: EmbedConfig, config: AlbertConfig) -> int:
    """Return the layer counted from 0, or refuse what the model has not."""
    layers = config.num_hidden_layers * config.inner_group_num
    layer = c.layer + layers + 1 if c.layer < 0 else c.layer
    lowest = 1 if c.pooling == "attention" else 0
    if not lowest <= layer <= layers:
        raise InputError(
            f"`layer` must be from {lowest} to {layers}, or negative, for "
            f"pooling={c.pooling}. Received: layer={c.layer}"
        )
    if (c.max_seq_length or 0) > config.max_position_embeddings:
        raise InputError(
            "`max_seq_length` must be at most the model's "
            "`max_position_embeddings`. Received: "
            f"max_seq_length={c.max_seq_length}, max_position_embeddings="
            f"{config.max_position_embeddings}"
        )
    return layer


def read_texts(c: EmbedConfig) -> Iterator[tuple[str, str]]:
    """Yield the text, and the second one or "", of every line."""
    if not files.is_file(c.input_file):
        raise InputError(
            "`input_file` must be an existing file. Received: "
            f"input_file={c.input_file}"
        )
    with files.opened(c.input_file, "rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{c.input_file}:{number}"
            try:
                texts = line.decode("utf-8").rstrip("\r\n").split("\t")
            except UnicodeDecodeError:
                raise InputError(f"{where}: the text must be UTF-8") from None
            if not c.pairs:
                texts = ["\t".join(texts), ""]
            elif len(texts) != 2:
                raise InputError(
                    f"{where}: with `pairs` a line must have two texts with a "
                    f"tab between them. Received: {len(texts)} texts"
                )
            yield texts[0], texts[1]


def chunks(c: EmbedConfig, tokenizer: Tokenizer) -> Iterator[Features]:
    """Yield the features of a few batches of texts after the other."""
    texts = read_texts(c)
    while some := list(itertools.islice(texts, CHUNK_BATCHES * c.batch_size)):
        first, second = zip(*some, strict=True)
        pairs = zip(
            tokenizer.encode_batch(first),
            tokenizer.encode_batch(second)
            if c.pairs
            else [np.zeros(0, np.int32)] * len(some),
            strict=True,
        )
        rows = [packed_row(tokenizer, a, b, c.max_seq_length) for a, b in pairs]
        pad = tokenizer.pad_id
        yield Features.from_rows(rows, {}, pad, c.max_seq_length)


def make_step(model: AlbertModel, pooling: str, layer: int) -> Callable:
    """Return batch -> the vectors or maps of its texts."""

    def step(batch):
        inputs = (batch[n] for n in ("input_ids", "input_mask", "segment_ids"))
        encoded = model(*inputs, return_all=True)
        if pooling == "pooled":
            return encoded["pooled_output"]
        if pooling == "attention":
            return encoded["attention_probs"][layer - 1]  # [B, A, T, T]
        x = encoded["embedding_output"]
        if layer:
            x = encoded["hidden_states"][layer - 1]
        if pooling == "tokens":
            return x
        return SENTENCE[pooling](x, batch["input_mask"])

    return step


def values_of(
    chunk: Features, c: EmbedConfig, step: Callable
) -> list[np.ndarray]:
    """Return the array of each text, in order, without padding."""
    batches = evaluation_batches(chunk, c.batch_size, bucketed=True)
    found: dict[int, np.ndarray] = {}
    for batch in batches:
        values = step(batch).numpy()
        for number, value in zip(
            batch["example_numbers"].numpy(), values, strict=True
        ):
            if number >= 0:
                found[number] = cut(value, chunk.lengths[number], c.pooling)
    return [found[i] for i in range(len(chunk))]


def cut(value: np.ndarray, tokens: int, pooling: str) -> np.ndarray:
    """Return a text's part of its padded row, in float32."""
    if pooling == "tokens":
        value = value[:tokens]
    elif pooling == "attention":
        value = value[:, :tokens, :tokens].ravel()
    return value.astype(np.float32)


@contextlib.contextmanager
def array_file(path: str, dtype: type, shape: tuple) -> Iterator[Callable]:
    """Yield a function that appends arrays to an `.npy` file of that shape."""
    with files.atomic_path(path) as temporary:
        with files.opened(temporary, "wb") as file:
            header = {
                "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
                "fortran_order": False,
                "shape": shape,
            }
            np.lib.format.write_array_header_1_0(file, header)
            yield lambda array: file.write(array.astype(dtype).tobytes())


def measure(c: EmbedConfig, tokenizer: Tokenizer) -> np.ndarray:
    """Return the number of tokens of each text."""
    lengths = [chunk.lengths for chunk in chunks(c, tokenizer)]
    if not lengths:
        raise InputError(
            "`input_file` must have a text. Received: "
            f"input_file={c.input_file}"
        )
    return np.concatenate(lengths).astype(np.int64)


def layout(
    c: EmbedConfig, config: AlbertConfig, layer: int, lengths: np.ndarray
) -> tuple[tuple, np.ndarray]:
    """Return the output's shape, and where each text begins in it."""
    width = config.hidden_size
    if layer == 0 and config.embedding_norm == "embedding":
        width = config.embedding_size
    sizes = lengths if c.pooling == "tokens" else np.ones_like(lengths)
    if c.pooling == "attention":
        sizes = config.num_attention_heads * lengths**2
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    total = int(offsets[-1])
    return (total,) if c.pooling == "attention" else (total, width), offsets


def embed(c: EmbedConfig) -> tuple:
    """Write the vectors of every line; return the array's shape."""
    config = AlbertConfig.from_model_dir(c.model_dir)
    layer = check(c, config)
    length = c.max_seq_length or min(128, config.max_position_embeddings)
    c = dataclasses.replace(c, max_seq_length=length)
    tokenizer = load_tokenizer(c.model_dir)
    lengths = measure(c, tokenizer)
    shape, offsets = layout(c, config, layer, lengths)
    model = AlbertModel(config)
    model.build()
    checkpoints.restore_weights(model, c.model_dir, only=("albert/",))
    step = functools.partial(tf.function, reduce_retracing=True)(
        make_step(model, c.pooling, layer)
    )
    progress = Progress(len(lengths), unit="text")
    with contextlib.ExitStack() as stack:
        write = stack.enter_context(
            array_file(c.output_file, np.float32, shape)
        )
        write_ids = None
        if c.pooling in RAGGED:
            path, size = c.beside("offsets"), (len(offsets),)
            stack.enter_context(array_file(path, np.int64, size))(offsets)
        if c.pooling == "tokens":
            path, size = c.beside("ids"), (int(lengths.sum()),)
            write_ids = stack.enter_context(array_file(path, np.int32, size))
        for chunk in chunks(c, tokenizer):
            for value in values_of(chunk, c, step):
                write(value)
            if write_ids:
                write_ids(chunk.tokens)
            progress.advance(len(chunk), "embedded")
    progress.close()
    return shape


def main() -> None:
    """Embed as the flags say."""
    c = settings.from_flags(EmbedConfig)
    shape = embed(c)
    print(f"Wrote {c.output_file}, float32 {list(shape)}")


def cli() -> None:
    """Run the command line."""
    settings.define_flags(EmbedConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
