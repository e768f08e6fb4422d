"""Run pretraining steps with one library, for `train_step.py`.

    python benchmarks/train_step_peers.py IMPLEMENTATION CASE

All libraries compute the same step: ALBERT's two losses, with the masked-LM
head only at the predicted positions; clipping by the global norm; and AdamW,
without dropout, in float32 or with products in bfloat16. This module adds the
parts of the loss that a peer lacks.

Shapes: B batch, T tokens, P predictions, H hidden width, V vocabulary.
"""

import dataclasses
import json
import sys
from collections.abc import Callable

import numpy as np
from turns import CORES, serve

# Settings of the optimizer.
RATE, DECAY, EPSILON, CLIP = 1e-4, 0.01, 1e-6, 1.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, described by the released config keys, and a batch's sizes."""

    batch: int
    tokens: int
    predictions: int
    model: dict[str, int]
    dtype: str = "float32"  # or bfloat16: dtype of products, not of weights

    @property
    def policy(self) -> str:
        """The Keras policy of `dtype`."""
        return "mixed_bfloat16" if self.dtype == "bfloat16" else "float32"

    def data(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return a random batch, which is the same for every library."""
        rng = np.random.default_rng(seed)
        b, t, p = self.batch, self.tokens, self.predictions
        vocab = self.model["vocab_size"]
        rows = [rng.permutation(t)[:p] for _ in range(b)]
        segments = np.broadcast_to(np.arange(t) >= t // 2, (b, t))
        return {
            "input_ids": rng.integers(5, vocab, (b, t), np.int32),
            "input_mask": np.ones((b, t), np.int32),
            "segment_ids": segments.astype(np.int32),
            "masked_lm_positions": np.sort(rows).astype(np.int32),
            "masked_lm_ids": rng.integers(5, vocab, (b, p), np.int32),
            "masked_lm_weights": np.ones((b, p), np.float32),
            "sentence_order_labels": rng.integers(0, 2, b, np.int32),
            "example_weights": np.ones(b, np.float32),
        }


def model(hidden: int, layers: int, heads: int) -> dict[str, int]:
    """Return the config of an architecture."""
    return {
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
    }


BASE = model(768, 12, 12)
CASES = {
    "base-128": Case(4, 128, 20, BASE),
    "base-512": Case(1, 512, 77, BASE),
    "albert_tiny-128": Case(32, 128, 20, model(312, 4, 12)),
    "tiny-64": Case(64, 64, 10, model(256, 4, 4)),
}


def ours(case: Case, jit: bool) -> Callable[[], float]:
    """Return a function that runs a step of `pretrain.py`'s trainer."""
    from albert_tf.base import program

    with program.quiet_start():
        import tensorflow as tf

    from albert_tf.model.albert import AlbertForPretraining
    from albert_tf.model.config import AlbertConfig
    from albert_tf.training import distribution
    from albert_tf.training.objectives import PretrainingObjective
    from albert_tf.training.optimizer import OptimizerConfig
    from albert_tf.training.trainer import Trainer
    from albert_tf.training.training_config import TrainingConfig

    training = TrainingConfig(
        train_batch_size=case.batch, jit_compile=jit or None, dtype=case.dtype
    )
    trainer = Trainer(
        distribution.make_strategy(distribution.DistributionConfig()),
        lambda: AlbertForPretraining(AlbertConfig(**case.model), case.policy),
        PretrainingObjective(),
        OptimizerConfig(
            optimizer="adamw",
            learning_rate=RATE,
            num_warmup_steps=0,
            weight_decay_rate=DECAY,
            clip_norm=CLIP,
        ),
        training,
    )
    iterator = trainer.iterator(
        lambda **_: tf.data.Dataset.from_tensors(case.data()).repeat(), 0
    )

    def step() -> float:
        report = trainer.run_steps(iterator, tf.constant(1)).report.numpy()
        return trainer.evaluator.summarize(report)["loss"]

    return step


class KerasHub:
    """A trainer of KerasHub's backbone and masked-LM head, with AdamW.

    KerasHub lacks the sentence-order loss, which this class adds.

    Args:
      case: the model and the batch.

    Attributes:
      variables: the trained variables, in the order of `gradients`.
    """

    def __init__(self, case: Case):
        import keras
        import keras_hub

        keras.config.set_dtype_policy(case.policy)
        hidden = case.model["hidden_size"]
        self.backbone = keras_hub.models.AlbertBackbone(
            vocabulary_size=case.model["vocab_size"],
            num_layers=case.model["num_hidden_layers"],
            num_heads=case.model["num_attention_heads"],
            embedding_dim=case.model["embedding_size"],
            hidden_dim=hidden,
            intermediate_dim=case.model["intermediate_size"],
            dropout=0.0,
            max_sequence_length=512,
        )
        self.head = keras_hub.layers.MaskedLMHead(
            token_embedding=self.backbone.token_embedding,
            intermediate_activation=lambda x: keras.activations.gelu(x, True),
        )
        self.head.build((case.batch, case.tokens, hidden))
        self.order = keras.layers.Dense(2)
        self.order.build((case.batch, hidden))
        # The tied embedding table belongs to both the backbone and the head.
        models = (self.backbone, self.head, self.order)
        unique = {id(v): v for m in models for v in m.trainable_variables}
        self.variables = list(unique.values())
        self.optimizer = keras.optimizers.AdamW(
            RATE, weight_decay=DECAY, epsilon=EPSILON
        )
        self.optimizer.build(self.variables)

    def gradients(self, batch):
        """Return the loss and its gradients, without clipping."""
        import tensorflow as tf

        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        with tf.GradientTape() as tape:
            outputs = self.backbone(
                {
                    "token_ids": batch["input_ids"],
                    "segment_ids": batch["segment_ids"],
                    "padding_mask": batch["input_mask"],
                }
            )
            mlm = self.head(
                outputs["sequence_output"],
                mask_positions=batch["masked_lm_positions"],
            )  # [B, P, V]
            sop = self.order(outputs["pooled_output"])  # [B, 2]
            mlm, sop = (tf.cast(x, tf.float32) for x in (mlm, sop))
            losses = (
                cross_entropy(batch["masked_lm_ids"], mlm),
                cross_entropy(batch["sentence_order_labels"], sop),
            )
            loss = tf.add_n([tf.reduce_mean(part) for part in losses])
        gradients = tape.gradient(loss, [v.value for v in self.variables])
        return loss, [tf.convert_to_tensor(g) for g in gradients]

    def update(self, gradients) -> None:
        """Clip the gradients and apply them."""
        import tensorflow as tf

        clipped, _ = tf.clip_by_global_norm(gradients, CLIP)
        self.optimizer.apply(clipped, self.variables)


def keras_hub(case: Case, jit: bool) -> Callable[[], float]:
    """Return a function that runs a step of KerasHub, with XLA if `jit`."""
    import tensorflow as tf

    model = KerasHub(case)
    batch = {k: tf.constant(v) for k, v in case.data().items()}

    @tf.function(jit_compile=jit)
    def train(batch):
        loss, gradients = model.gradients(batch)
        model.update(gradients)
        return loss

    return lambda: float(train(batch).numpy())


def hugging_face_model(case: Case, form: str):
    """Return Hugging Face's ALBERT; `form` is sdpa, eager or compiled."""
    from transformers import AlbertConfig, AlbertForPreTraining

    dropouts = ("hidden_dropout", "attention_probs_dropout")
    config = AlbertConfig(
        **case.model,
        **{f"{name}_prob": 0.0 for name in (*dropouts, "classifier_dropout")},
        hidden_act="gelu_new",
        attn_implementation="eager" if form == "eager" else "sdpa",
    )
    return AlbertForPreTraining(config).train()


def hugging_face(case: Case, form: str) -> Callable[[], float]:
    """Return a function that runs a step of Hugging Face's ALBERT."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(CORES)
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs, as XLA
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = hugging_face_model(case, form).to(device)
    data = {k: torch.from_numpy(v).to(device) for k, v in case.data().items()}
    whole = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    batch = {k: v.long() if k in whole else v for k, v in data.items()}
    labels = data["masked_lm_ids"].long().flatten()
    orders = data["sentence_order_labels"].long()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, weight_decay=DECAY, eps=EPSILON, fused=True
    )
    half = case.dtype == "bfloat16"

    def loss_of(batch):
        outputs = model.albert(
            batch["input_ids"], batch["input_mask"], batch["segment_ids"]
        )
        hidden = outputs.last_hidden_state  # [B, T, H]
        at = batch["masked_lm_positions"][..., None]  # [B, P, 1]
        at = at.expand(-1, -1, hidden.shape[-1])  # [B, P, H]
        # The library would compute logits at all T positions, but the loss
        # needs only P of them.
        logits = model.predictions(hidden.gather(1, at))
        sop = model.sop_classifier(outputs.pooler_output)
        mlm = cross_entropy(logits.flatten(0, 1), labels)
        return mlm + cross_entropy(sop, orders)

    if form == "compiled":
        loss_of = torch.compile(loss_of)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, half):
            loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    return step


def matrix_product(case: Case, size: int) -> Callable[[], float]:
    """Return a function that computes a matrix product, as the speed limit."""
    import tensorflow as tf

    square = tf.random.stateless_normal([size, size], [0, 1])
    square = tf.cast(square, case.dtype)
    product = tf.function(lambda x: tf.matmul(x, x)[0, 0])
    return lambda: float(product(square))


LIMIT, PRODUCT_SIZE = "matrix product", 2048
# {name: (function that returns a step, its argument)}
IMPLEMENTATIONS = {
    LIMIT: (matrix_product, PRODUCT_SIZE),
    "albert_tf": (ours, False),
    "albert_tf XLA": (ours, True),
    "KerasHub": (keras_hub, False),
    "KerasHub XLA": (keras_hub, True),
    "Hugging Face sdpa": (hugging_face, "sdpa"),
    "Hugging Face eager": (hugging_face, "eager"),
    "Hugging Face compiled": (hugging_face, "compiled"),
}


def make_work() -> Callable[[str], dict]:
    """Return the function that runs a step, as the arguments specify."""
    make, argument = IMPLEMENTATIONS[sys.argv[1]]
    step = make(Case(**json.loads(sys.argv[2])), argument)
    return lambda _: {"loss": step()}


if __name__ == "__main__":
    serve(make_work)
