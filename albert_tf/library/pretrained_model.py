"""A pretrained ALBERT: vectors, attention and predictions for masked words.

Shapes: B batch, T tokens, P requested tokens, H hidden width, V vocabulary, N
texts.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.settings import positive
from albert_tf.conversion.sources import Reading
from albert_tf.library.base_model import (
    ModelWithTokenizer,
    check_keywords,
    check_length,
    of_ids,
    open_model,
    restore,
)
from albert_tf.library.changed_layers import add_low_rank
from albert_tf.library.embed import (
    EmbedConfig,
    check_layer,
    make_step,
    pooling_of,
    vectors_of,
)
from albert_tf.model.albert import AlbertModel, MaskedLMHead, SentenceOrderHead
from albert_tf.model.config import AlbertConfig
from albert_tf.model.layers import as_array, registered
from albert_tf.tasks.embedding import Embedding
from albert_tf.tasks.features import Features
from albert_tf.tasks.numerics import likeliest
from albert_tf.tasks.registry import task_of
from albert_tf.tasks.task import Task
from albert_tf.text.packing import check_masks, checked_texts, packed_row
from albert_tf.text.tokenizers import Tokenizer

# Arguments of `load` other than the path.
SETTINGS = (
    *("added_pieces", "dtype", "encoder_only", "lora_rank", "max_length"),
    "name",
)
HEADS = {"mlm": MaskedLMHead, "sop": SentenceOrderHead}


class Filling(NamedTuple):
    """A candidate piece for a mask, and the piece's probability."""

    piece: str
    probability: float


def checked_positions(positions: Any, ids: Any) -> Any:
    """Return positions [B, P] of ids [B, T], or raise `InputError`.

    On GPUs, TensorFlow would read zeros at positions outside a row.
    """
    for x in (positions, ids):
        if tf.is_symbolic_tensor(x) or isinstance(x, keras.KerasTensor):
            return positions
    positions, (rows, tokens) = as_array("positions", positions), ids.shape
    rule = "`positions` must be integers [B, P] from 0 to T - 1 for ids [B, T]."
    legal = (
        positions.dtype.kind in "iu"
        and positions.ndim == 2
        and len(positions) == rows
        and ((positions >= 0) & (positions < tokens)).all()
    )
    received = {"positions": repr(positions)[:60], "ids": (rows, tokens)}
    require(legal, rule, **received)
    return positions


@registered
class Albert(ModelWithTokenizer):
    """An ALBERT model with its tokenizer and the heads that have weights.

    Args:
      config: the architecture.
      tokenizer: the tokenizer, or None for a model that accepts only ids.
      heads: names of the heads, any of "mlm" and "sop".
      max_length: maximum number of tokens in a text. Default: the model's
        number of positions.
      task: for an embedding model, its task, which sets the pooling of `embed`;
        otherwise None.
      **kwargs: passed to `keras.Model`.
    """

    text_methods = "`embed` and `fill_mask`"
    evaluate, fit = of_ids("evaluate"), of_ids("fit")
    predict = of_ids("predict")

    def __init__(
        self,
        config: AlbertConfig,
        tokenizer: Tokenizer | None = None,
        heads: Sequence[str] = tuple(HEADS),
        max_length: int | None = None,
        task: Task | None = None,
        **kwargs,
    ):
        super().__init__(config, tokenizer, max_length, **kwargs)
        self.task = task
        albert = self.albert = AlbertModel(config, dtype=self.dtype_policy)
        albert.build()

        @functools.lru_cache(maxsize=1)  # frees graphs of earlier variables
        def steps_of(variables):
            # Each graph is traced once and serves all later calls to `embed`.
            return functools.cache(functools.partial(make_step, albert))

        self._steps_of = steps_of
        self.heads = tuple(heads)
        for name in self.heads:
            head = HEADS[name](config, name=name, dtype=self.dtype_policy)
            head.build()
            head.trainable = False  # calls and `fit` do not use the heads
            setattr(self, name, head)

    @classmethod
    def load(
        cls,
        path: str,
        lora_rank: int | None = None,
        added_pieces: Sequence[str] | None = None,
        encoder_only: bool = False,
        **kwargs,
    ) -> "Albert":
        """Load a pretrained ALBERT model with its tokenizer.

        Args:
          path: a model directory, whose fine-tuned head or phoneme heads are
            omitted; an unpacked release; or a Hugging Face folder. The pooling
            and the length of an embedding model become the defaults of `embed`.
          lora_rank: as for `Classifier.load`.
          added_pieces: as for `Classifier.load`.
          encoder_only: whether to omit all heads, including unknown heads.
          **kwargs: `max_length`, and `name` and `dtype` of a Keras model.

        Raises:
          InputError: if the path contains no model, or if the model's parts do
            not fit together.
        """
        check_keywords(kwargs, SETTINGS)
        reading = Reading(encoder_only=encoder_only)
        source = open_model(path, reading, added_pieces)
        parts = {name.partition("/")[0] for name in source.tensors.shapes}
        heads = [name for name in HEADS if name in parts]
        task = source.task
        if task and task.kind == Embedding.kind:
            length = check_length(kwargs.get("max_length"), source.config)
            task = task.within(source.config.max_position_embeddings)
            task = task.updated(max_seq_length=length)
            kwargs |= {"task": task, "max_length": task.config.max_seq_length}
        model = cls(source.config, source.tokenizer, heads, **kwargs)
        restore(model, source)
        if lora_rank is not None:
            add_low_rank(model.albert, lora_rank)
        return model

    def named_weights(self):
        return {v.path: v.value for v in self.weights}

    def named_inputs(self, inputs, extra):
        return self.albert.named_inputs(inputs, extra)

    def get_config(self):
        task = self.task and self.task.description()
        return super().get_config() | {"heads": list(self.heads), "task": task}

    @classmethod
    def from_config(cls, config):
        task = config.get("task")  # files of earlier versions have none
        return super().from_config(config | {"task": task and task_of(task)})

    def call(
        self,
        input_ids,
        input_mask=None,
        segment_ids=None,
        training=None,
        return_all=False,
    ):
        """Encode a batch.

        Args:
          input_ids: int32 [B, T], or the tokenizer's output, a dict of all
            three inputs.
          input_mask: int32 [B, T], 1 for tokens. Default: ones.
          segment_ids: int32 [B, T]. Default: zeros.
          training: whether to apply dropout.
          return_all: whether to return the results of every layer.

        Returns:
          The outputs of `AlbertModel`: `sequence_output` [B, T, H] and
          `pooled_output` [B, H]; with `return_all`, also `embedding_output` and
          each layer's `hidden_states` and `attention_probs`.
        """
        inputs = input_ids, input_mask, segment_ids
        return self.albert(*inputs, training=training, return_all=return_all)

    def masked_lm_logits(self, inputs: dict, positions) -> tf.Tensor:
        """Return the float32 logits [B, P, V] of `positions` [B, P]."""
        names = ", ".join(self.heads) or "none"
        rule = "The model must have the head `mlm`."
        require("mlm" in self.heads, rule, heads=names)
        inputs = self.albert.named_inputs(inputs, {})
        positions = checked_positions(positions, inputs["input_ids"])
        states = self.albert(inputs, positions=positions)["sequence_output"]
        return self.mlm(states, embeddings=self.albert.embeddings)

    def fill_mask(self, texts: str | Sequence[str], top_k: int = 5) -> list:
        """Return the most probable pieces for every `[MASK]`.

        Args:
          texts: one text or several; each must contain a mask, and all its
            masks must be among its first `max_length` tokens.
          top_k: number of pieces for each mask.

        Returns:
          A list that contains, for each mask, a list of `top_k` `Filling`
          tuples, the most probable first; for several texts, a list of such
          results.
        """
        top_k = positive("top_k", top_k)
        several = not isinstance(texts, str)
        texts = checked_texts(texts if several else [texts], "texts")
        filled = [self._filled(text, top_k) for text in texts]
        return filled if several else filled[0]

    def _filled(self, text: str, top_k: int) -> list[list[Filling]]:
        tokenizer, empty = self.need_tokenizer(), np.zeros(0, np.int32)
        ids = tokenizer.encode_masked(text)
        row, _ = packed_row(tokenizer, ids, empty, self.max_length)
        positions = np.flatnonzero(row == tokenizer.mask_id)
        check_masks(text, len(positions))
        logits = self.masked_lm_logits(
            {"input_ids": row[None]}, positions[None]
        )
        return [
            [Filling(*pair) for pair in likeliest(tokenizer, x, top_k)]
            for x in logits[0].numpy()
        ]

    def _step(self, *how) -> Callable:
        """Return the graph of `make_step`, or a new graph for changed layers.

        Keras's `quantize` and LoRA change the variables of layers.
        """
        variables = [(v.path, v.dtype) for v in self.albert.variables]
        return self._steps_of(tuple(variables))(*how)

    def embed(
        self,
        texts: str | Sequence[str],
        pooling: str | None = None,
        layer: int = -1,
        max_length: int | None = None,
        batch_size: int = 32,
    ) -> np.ndarray:
        """Return the float32 vectors [N, H] of texts, or [H] of a single text.

        `python -m albert_tf.embed` writes the same vectors but, by default,
        truncates texts to 128 tokens unless the model is an embedding model.

        Args:
          texts: N strings, or a single string.
          pooling: a value of `EmbedConfig.pooling`, such as "unit_mean", "cls"
            (the first token) or "pooled" (the pooler's output). Default: the
            pooling of an embedding model, otherwise "mean", not normalized.
          layer: 0 is the embedding, 1 the first layer and -1 the last layer.
          max_length: maximum number of tokens in a text. Default: the model's
            value.
          batch_size: number of texts per batch.
        """
        is_single = isinstance(texts, str)
        texts = checked_texts([texts] if is_single else texts, "texts")
        require(texts, "`texts` must not be empty.", texts=texts)
        length = check_length(max_length, self.config) or self.max_length
        pooling = pooling_of(self.task) if pooling is None else pooling
        options = {"pooling": pooling, "layer": layer, "batch_size": batch_size}
        settings = EmbedConfig(output_file=".npy", **options)
        layer = check_layer(settings, self.config)
        features = Features.from_texts(self.need_tokenizer(), texts, length)
        step = self._step(pooling, layer)
        vectors = vectors_of(features, settings.batch_size, step)
        return vectors[0] if is_single else vectors


load = Albert.load
