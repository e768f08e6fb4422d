"""What the pretraining steps of `train_step.py` work on."""

import dataclasses

import numpy as np

# Of the optimizer.
RATE, DECAY, EPSILON, CLIP = 1e-4, 0.01, 1e-6, 1.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A model's shape and a batch's."""

    batch: int
    tokens: int
    predictions: int
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    vocab: int = 30000
    embedding: int = 128
    dtype: str = "float32"  # or bfloat16, of products; weights are float32

    @property
    def policy(self) -> str:
        """The Keras policy of `dtype`."""
        return "mixed_bfloat16" if self.dtype == "bfloat16" else "float32"

    def data(self) -> dict[str, np.ndarray]:
        """Return one random batch, the same in every library."""
        rng = np.random.default_rng(0)
        b, t, p = self.batch, self.tokens, self.predictions
        rows = [rng.permutation(t)[:p] for _ in range(b)]
        segments = np.broadcast_to(np.arange(t) >= t // 2, (b, t))
        return {
            "input_ids": rng.integers(5, self.vocab, (b, t), np.int32),
            "input_mask": np.ones((b, t), np.int32),
            "segment_ids": segments.astype(np.int32),
            "masked_lm_positions": np.sort(rows).astype(np.int32),
            "masked_lm_ids": rng.integers(5, self.vocab, (b, p), np.int32),
            "masked_lm_weights": np.ones((b, p), np.float32),
            "sentence_order_labels": rng.integers(0, 2, b, np.int32),
            "example_weights": np.ones(b, np.float32),
        }


TINY = {"hidden": 256, "layers": 4, "heads": 4, "intermediate": 1024}
ALBERT_TINY = {"hidden": 312, "layers": 4, "heads": 12, "intermediate": 1248}
CASES = {
    "base-128": Case(4, 128, 20),
    "base-512": Case(1, 512, 77),
    "albert_tiny-128": Case(32, 128, 20, **ALBERT_TINY),
    "tiny-64": Case(64, 64, 10, **TINY),
}
