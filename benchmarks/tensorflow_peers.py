"""TensorFlow libraries' ALBERT for training, with this project's losses.

Without dropout, and with AdamW. KerasHub lacks the loss of sentences' order;
it is added here. B batch, P predictions, V vocabulary.
"""

import functools
from collections.abc import Callable

from train_step_cases import CLIP, DECAY, EPSILON, RATE, Case


class TensorFlowModel:
    """ALBERT's loss over a TensorFlow library's model, and its update.

    Args:
      outputs: batch -> (MLM logits [B, P, V], SOP logits [B, 2]).
      variables: what is trained.
      update: applies clipped gradients.
    """

    def __init__(self, outputs: Callable, variables: list, update: Callable):
        self.outputs, self.variables = outputs, variables
        self.update = update

    def gradients(self, batch):
        """Return the loss and its gradients, not clipped."""
        import tensorflow as tf

        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        with tf.GradientTape() as tape:
            logits = self.outputs(batch)
            mlm, sop = (tf.cast(x, tf.float32) for x in logits)
            losses = (
                cross_entropy(batch["masked_lm_ids"], mlm),
                cross_entropy(batch["sentence_order_labels"], sop),
            )
            loss = tf.add_n([tf.reduce_mean(part) for part in losses])
        # The Model Garden's own pooler is not what its head reads.
        zero = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(loss, self.variables, None, zero)
        return loss, [tf.convert_to_tensor(g) for g in gradients]

    def step(self, case: Case, jit: bool) -> Callable[[], float]:
        """Return a step; `jit` is whether to compile it with XLA."""
        import tensorflow as tf

        batch = {k: tf.constant(v) for k, v in case.data().items()}

        @tf.function(jit_compile=jit)
        def train(batch):
            loss, gradients = self.gradients(batch)
            self.update(tf.clip_by_global_norm(gradients, CLIP)[0])
            return loss

        return lambda: float(train(batch).numpy())


def keras_hub_model(case: Case) -> TensorFlowModel:
    """KerasHub's backbone and masked-LM head."""
    import keras
    import keras_hub

    keras.config.set_dtype_policy(case.policy)
    backbone = keras_hub.models.AlbertBackbone(
        vocabulary_size=case.vocab,
        num_layers=case.layers,
        num_heads=case.heads,
        embedding_dim=case.embedding,
        hidden_dim=case.hidden,
        intermediate_dim=case.intermediate,
        dropout=0.0,
        max_sequence_length=512,
    )
    head = keras_hub.layers.MaskedLMHead(
        token_embedding=backbone.token_embedding,
        intermediate_activation=lambda x: keras.activations.gelu(x, True),
    )
    head.build((case.batch, case.tokens, case.hidden))
    order = keras.layers.Dense(2)
    order.build((case.batch, case.hidden))

    def outputs(batch):
        found = backbone(
            {
                "token_ids": batch["input_ids"],
                "segment_ids": batch["segment_ids"],
                "padding_mask": batch["input_mask"],
            }
        )
        positions = batch["masked_lm_positions"]
        mlm = head(found["sequence_output"], mask_positions=positions)
        return mlm, order(found["pooled_output"])

    # The tied word table belongs to the backbone and to the head.
    models = (backbone, head, order)
    unique = {id(v): v for m in models for v in m.trainable_variables}
    variables = list(unique.values())
    more = {"weight_decay": DECAY, "epsilon": EPSILON}
    optimizer = keras.optimizers.AdamW(RATE, **more)
    optimizer.build(variables)
    return TensorFlowModel(
        outputs,
        [v.value for v in variables],
        lambda gradients: optimizer.apply(gradients, variables),
    )


def model_garden_model(case: Case) -> TensorFlowModel:
    """The Model Garden's encoder with the heads of its pretraining task."""
    import tf_keras
    from official.nlp.modeling import layers, models, networks

    tf_keras.mixed_precision.set_global_policy(case.policy)
    encoder = networks.AlbertEncoder(
        vocab_size=case.vocab,
        embedding_width=case.embedding,
        hidden_size=case.hidden,
        num_layers=case.layers,
        num_attention_heads=case.heads,
        intermediate_size=case.intermediate,
        type_vocab_size=2,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        dict_outputs=True,
    )
    order = layers.ClassificationHead(
        case.hidden, 2, dropout_rate=0.0, name="order"
    )
    gelu = functools.partial(tf_keras.activations.gelu, approximate=True)
    model = models.BertPretrainerV2(encoder, gelu, "uniform", [order])

    def outputs(batch):
        found = model(
            {
                "input_word_ids": batch["input_ids"],
                "input_mask": batch["input_mask"],
                "input_type_ids": batch["segment_ids"],
                "masked_lm_positions": batch["masked_lm_positions"],
            }
        )
        return found["mlm_logits"], found["order"]

    outputs(case.data())
    variables = model.trainable_variables
    more = {"weight_decay": DECAY, "epsilon": EPSILON, "jit_compile": False}
    optimizer = tf_keras.optimizers.AdamW(RATE, **more)
    optimizer.build(variables)

    def update(gradients):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return TensorFlowModel(outputs, variables, update)


TENSORFLOW_MODELS = {
    "KerasHub": keras_hub_model,
    "Model Garden": model_garden_model,
}
