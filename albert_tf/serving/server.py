"""The signatures of a model directory: basic and head-specific signatures.

A pretrained model fills masks and scores sentence order; a fine-tuned model
performs its task.

Shapes: B batch, T tokens, P masks per text, K = top_k, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.model.albert import AlbertForPretraining, AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.model.phonemes import HEADS
from albert_tf.serving.entities import entity_signature
from albert_tf.serving.questions import answer_signature, choice_signature
from albert_tf.serving.signatures import (
    Encoder,
    ServingConfig,
    Signature,
    Tensors,
    graph_function,
)
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import Task
from albert_tf.text.packing import INPUTS
from albert_tf.text.tokenizers import tokenizer_in
from albert_tf.training import checkpoints


def ensure_shape(spec: tf.TensorSpec, values: tf.Tensor) -> tf.Tensor:
    """Check that an input of a request has the shape of its spec.

    TensorFlow itself does not check signatures, and operations on other shapes
    would fail with errors about internal shapes. TensorFlow also replaces
    `tf.shape` with the constants in the spec, so `tf.debugging` would find no
    difference. The error contains the name, the shape and the spec.
    """
    name = f"{spec.name}_of_shape"
    values = tf.compat.v1.placeholder_with_default(values, None, name)
    return tf.ensure_shape(values, spec.shape)


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """A model and the functions that it serves.

    Attributes:
      encoder: the model's encoder and tokenizer.
      weights: {name: variable} for every variable that the functions use.
      signatures: {name: signature}.
      default: the name of the signature to serve as `serving_default`.
      number_inputs: the inputs of `numbers`.
      numbers: a function that maps ids [B, T] to outputs, for formats without
        strings.
      task: a fine-tuned model's task, or None.
    """

    encoder: Encoder
    weights: dict[str, tf.Variable]
    signatures: dict[str, Signature]
    default: str
    number_inputs: list[tf.TensorSpec]
    numbers: Callable[..., Tensors]
    task: Task | None = None

    def call(self, name: str, *request) -> Tensors:
        """Return a signature's answer to a request."""
        return self.signatures[name].call(*request)

    def concrete(self) -> dict:
        """Return {name: concrete function}, including `serving_default`."""

        def graph(name: str):
            specs = self.signatures[name].inputs

            def serve(*request):
                return self.call(name, *map(ensure_shape, specs, request))

            return graph_function(serve, specs).get_concrete_function()

        functions = {name: graph(name) for name in self.signatures}
        return {"serving_default": functions[self.default], **functions}


def example_signature(
    encoder: Encoder, signature: Signature, optional: Sequence[str] = ()
) -> Signature:
    """Return a signature that accepts serialized `tf.train.Example`s [B].

    The features are named after the signature's inputs. Features for lists,
    such as choices, contain any number of strings. If an `optional` feature is
    missing, its text is "".
    """
    many = tf.io.RaggedFeature(tf.string)
    one = tf.io.FixedLenFeature([], tf.string)
    features = {
        spec.name: many if spec.shape.rank > 1 else one
        for spec in signature.inputs
    }
    for name in optional:
        features[name] = tf.io.FixedLenFeature([], tf.string, "")

    def call(examples: tf.Tensor) -> Tensors:
        parsed = tf.io.parse_example(examples, features)
        request = [parsed[spec.name] for spec in signature.inputs]
        if isinstance(request[-1], tf.RaggedTensor):
            dense = request[-1].to_tensor("")
            rows, width = tf.unstack(tf.shape(dense))
            padding = tf.fill([rows, tf.maximum(1 - width, 0)], "")
            request[-1] = tf.concat([dense, padding], axis=1)
        return signature.call(*request)

    return Signature(encoder.string_specs("examples"), call)


# Signatures that all models have; a model without text input has only `ids`.
BASIC = (
    *("ids", "text", "text_pair", "tokenize", "tokenize_pair"),
    *("embed", "attention", "tf_example"),
)


def basic_signatures(
    encoder: Encoder, heads: Callable[[Tensors, Tensors], Tensors]
) -> dict[str, Signature]:
    """Return the signatures in `BASIC`.

    Args:
      encoder: the model's encoder.
      heads: a function that maps the encoder's outputs and inputs to the
        heads' outputs.
    """

    def encoded_once(**inputs) -> Tensors:
        encoded = encoder.encode(**inputs)
        return encoded | heads(encoded, inputs)

    compute = graph_function(encoded_once)

    def of_ids(*values: tf.Tensor) -> Tensors:
        return encoder.run(compute, dict(zip(INPUTS, values, strict=True)))

    ids = Signature(encoder.id_specs(), of_ids)
    if not encoder.takes_text:
        return {"ids": ids}

    def sentence_vectors(**inputs) -> Tensors:
        embedded = encoder.embeddings(**inputs)
        return {name: embedded[name] for name in ("pooled", "mean")}

    tokens, shown = (*INPUTS, "pieces"), ("input_mask", "pieces")
    attended = graph_function(encoder.attention), (*INPUTS[1:], "pieces")
    examples = encoder.text_signature(
        graph_function(sentence_vectors), pair=True
    )
    return {
        "ids": ids,
        "text": encoder.text_signature(compute),
        "text_pair": encoder.text_signature(compute, pair=True),
        "tokenize": encoder.text_signature(None, tokens),
        "tokenize_pair": encoder.text_signature(None, tokens, pair=True),
        "embed": encoder.text_signature(
            graph_function(encoder.embeddings), shown
        ),
        "attention": encoder.text_signature(*attended, pair=True),
        "tf_example": example_signature(encoder, examples, ["text_pair"]),
    }


# Pretrained models.

# The number of masks per text in formats with fixed shapes.
NUMBER_MASKS = 8


def mask_rows(encoder: Encoder, text: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
    """Return rows with the `positions` [B, P] of masks, and the mask counts."""
    inputs = encoder.pack(encoder.text_graph.encode_masked(text))
    is_mask = inputs["input_ids"] == encoder.tokenizer.mask_id  # [B, T]
    count = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
    positions = tf.RaggedTensor.from_row_lengths(
        tf.cast(tf.where(is_mask)[:, 1], tf.int32), count
    ).to_tensor()  # [B, P]
    return inputs | {"positions": positions}, count


def fill_mask(encoder: Encoder, model: AlbertForPretraining) -> Signature:
    """Return the signature that fills every `[MASK]` in strings [B].

    The outputs are `pieces` and `probabilities` [B, P, K], most probable first;
    the `positions` of masks among the tokens, int32 [B, P]; and `mask_count`,
    int32 [B]. For texts with fewer than P masks, `pieces` are padded with "",
    `probabilities` with 0 and `positions` with -1; masks beyond the maximum
    length are not counted.
    """
    config, tokenizer = encoder.config, encoder.tokenizer
    require(
        config.top_k <= tokenizer.vocab_size,
        "`top_k` must be at most the number of pieces, "
        f"{tokenizer.vocab_size}.",
        top_k=config.top_k,
    )

    def likeliest(positions, **inputs) -> Tensors:
        encoded = encoder.encode(**inputs, positions=positions)
        masks = encoded["sequence_output"]  # [B, P, H]
        logits = model.mlm(masks, embeddings=encoder.albert.embeddings)
        # The embedding table may have more rows than the vocabulary.
        distribution = tf.nn.softmax(logits)[..., : tokenizer.vocab_size]
        probabilities, ids = tf.math.top_k(distribution, config.top_k)
        return {"probabilities": probabilities, "ids": ids}

    compute = graph_function(likeliest)

    def call(text: tf.Tensor) -> Tensors:
        inputs, count = mask_rows(encoder, text)
        outputs, positions = encoder.run(compute, inputs), inputs["positions"]
        valid = tf.sequence_mask(count, tf.shape(positions)[1])
        pieces = tf.gather(encoder.vocabulary, outputs["ids"])
        valid_pieces = valid[..., None]  # [B, P, 1]
        return {
            "pieces": tf.where(valid_pieces, pieces, ""),
            "probabilities": tf.where(
                valid_pieces, outputs["probabilities"], 0.0
            ),
            "positions": tf.where(valid, positions, -1),
            "mask_count": count,
        }

    return Signature(encoder.string_specs("text"), call)


def sentence_order(encoder: Encoder, model: AlbertForPretraining) -> Signature:
    """Return the signature for the probability [B] that a pair is in order."""

    def in_order(**inputs) -> Tensors:
        logits = model.sop(encoder.pool(**inputs)["pooled_output"])
        return {"in_order": tf.nn.softmax(logits)[:, 0]}

    return encoder.text_signature(graph_function(in_order), pair=True)


def pretrained_server(
    encoder: Encoder,
    model: AlbertForPretraining,
    weights: dict[str, tf.Variable],
) -> ServedModel:
    """Return a server for the encoder and the heads that have weights.

    Args:
      encoder: the model's encoder.
      model: the restored model.
      weights: {name: variable}, without absent heads.
    """
    parts = {name.split("/")[0] for name in weights}

    def order(encoded: Tensors, inputs: Tensors) -> Tensors:
        if "sop" not in parts:
            return {}
        return {"sop_logits": model.sop(encoded["pooled_output"])}  # [B, 2]

    def numbers(mlm_positions=None, **inputs) -> Tensors:
        encoded = encoder.outputs(**inputs)
        outputs = encoded | order(encoded, inputs)
        if mlm_positions is None:
            return outputs
        masks = tf.gather(
            encoded["sequence_output"], mlm_positions, batch_dims=1
        )  # [B, P, H]
        logits = model.mlm(
            masks, embeddings=encoder.albert.embeddings
        )  # [B, P, V]
        return outputs | {"mlm_logits": logits}

    signatures = basic_signatures(encoder, order)
    number_inputs = encoder.id_specs()
    if "mlm" in parts:
        config = encoder.config
        masks = NUMBER_MASKS if config.fixed_length else None
        shape = [config.batch_size, masks]
        number_inputs.append(tf.TensorSpec(shape, tf.int32, "mlm_positions"))
    if encoder.takes_text and "mlm" in parts:
        signatures["fill_mask"] = fill_mask(encoder, model)
    if encoder.takes_text and "sop" in parts:
        signatures["sentence_order"] = sentence_order(encoder, model)
    default = "text" if encoder.takes_text else "ids"
    return ServedModel(
        encoder, weights, signatures, default, number_inputs, numbers
    )


# Fine-tuned models.


def with_labels(task: Task, outputs: Tensors) -> Tensors:
    """Return the outputs with the names of classes or of several numbers.

    `labels` [B, C] contains all names. If a text has one class, `label` [B] is
    the most probable class. If a text may have several classes, `chosen` [B, C]
    marks the predicted classes.
    """
    if task.signature not in ("classify", "score") or not task.labels:
        return outputs
    labels = tf.constant(task.labels)
    logits = outputs["logits"]
    outputs = outputs | {"labels": tf.broadcast_to(labels, tf.shape(logits))}
    if task.kind == "classification":
        best = tf.argmax(logits, axis=-1)
        return outputs | {"label": tf.gather(labels, best)}
    if task.kind == "multilabel":
        chosen = outputs["probabilities"] > task.threshold
        return outputs | {"chosen": chosen}
    return outputs


# Functions that create signatures for inputs other than a text or a pair.
MAKERS = {
    "answer": answer_signature,
    "choose": choice_signature,
    "entities": entity_signature,
}


def task_server(encoder: Encoder, model, task: Task) -> ServedModel:
    """Return the server of a fine-tuned model with restored weights."""
    # If inputs are shorter than in training, windows must still cover the text.
    task = task.updated(max_seq_length=encoder.config.max_seq_length)

    def of_head(encoded: Tensors, inputs: Tensors) -> Tensors:
        outputs = task.named(model.head(encoded, inputs))
        return outputs | task.served(outputs)

    def named(encoded: Tensors, inputs: Tensors) -> Tensors:
        return with_labels(task, of_head(encoded, inputs))

    def numbers(**inputs) -> Tensors:
        encode = encoder.pooled if model.reads_pooled else encoder.outputs
        encoded = encode(**inputs)
        names = ("sequence_output",) if task.kind == "embedding" else ()
        return {k: encoded[k] for k in names} | of_head(encoded, inputs)

    signatures, default = basic_signatures(encoder, named), "ids"
    if encoder.takes_text:
        default = task.signature
        encode = encoder.pool if model.reads_pooled else encoder.encode
        outputs = graph_function(
            lambda **inputs: named(encode(**inputs), inputs)
        )
        if make := MAKERS.get(default):
            signature = make(encoder, outputs, task)
        else:
            signature = encoder.text_signature(outputs, pair=task.is_pair)
        signatures[default] = signature
        signatures["tf_example"] = example_signature(encoder, signature)
    return ServedModel(
        encoder,
        checkpoints.named_variables(model),
        signatures,
        default,
        encoder.id_specs(),
        numbers,
        task,
    )


# Loading.


def make_encoder(
    albert: AlbertModel,
    model_dir: str,
    serving: ServingConfig,
    default_length: int,
) -> Encoder:
    """Return an encoder, with the model directory's tokenizer if there is one.

    Args:
      albert: the encoder.
      model_dir: the model directory.
      serving: settings of the export.
      default_length: the default for `max_seq_length`.
    """
    length = serving.max_seq_length or default_length
    albert.config.check_length("max_seq_length", length)
    tokenizer = tokenizer_in(model_dir)
    if tokenizer:
        albert.config.check_pieces(tokenizer.vocab_size, model_dir)
    serving = dataclasses.replace(serving, max_seq_length=length)
    return Encoder(albert, serving, tokenizer)


def pretrained_weights(model, model_dir: str) -> dict[str, tf.Variable]:
    """Restore a pretrained model; return the weights that exist on disk.

    Phoneme heads are omitted.
    """
    prefix = checkpoints.for_inference(model_dir)
    weights, _ = checkpoints.present(model, checkpoints.read_table(prefix))
    checkpoints.restore(prefix, weights, (checkpoints.OPTIMIZER, *HEADS))
    return weights


def served_task(model_dir: str, serving: ServingConfig) -> Task:
    """Return a fine-tuned model's task, with the threshold in `serving`."""
    limit = serving.null_score_diff_threshold
    return load_task(model_dir).updated(null_score_diff_threshold=limit)


def load_server(
    model_dir: str, serving: ServingConfig, policy: str = "float32"
) -> ServedModel:
    """Return the server of a model directory, with weights in float32.

    Args:
      model_dir: a model directory, pretrained or fine-tuned.
      serving: settings of the export.
      policy: the Keras dtype policy; see `AlbertModel`.

    Raises:
      InputError: if the directory is incomplete or does not fit the settings.
    """
    config = AlbertConfig.from_model_dir(model_dir)
    if is_finetuned(model_dir):
        task = served_task(model_dir, serving)
        model = task.build_model(config, policy)
        length = task.config.max_seq_length
        encoder = make_encoder(model.albert, model_dir, serving, length)
        checkpoints.restore_weights(model, model_dir)
        return task_server(encoder, model, task)
    limit = serving.null_score_diff_threshold
    rule = "`null_score_diff_threshold` needs a question-answering model."
    require(limit is None, rule, null_score_diff_threshold=limit)
    model = AlbertForPretraining(config, dtype=policy)
    length = config.max_position_embeddings
    encoder = make_encoder(model.albert, model_dir, serving, length)
    weights = pretrained_weights(model, model_dir)
    return pretrained_server(encoder, model, weights)
