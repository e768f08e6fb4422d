"""The forward pass of ALBERT in NumPy, float64, written from the paper.

Sources: Section 3.1 of https://arxiv.org/abs/1909.11942 and, for the layers,
https://arxiv.org/abs/1810.04805. The functions compute one sequence and one
head at a time. Weights are a table {name: array} with the project's names.
"""

import math

import numpy as np

ERF = np.vectorize(math.erf)


def gelu(x):
    """Return GELU in the tanh form of https://arxiv.org/abs/1606.08415."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_erf": lambda x: x * (1 + ERF(x / np.sqrt(2))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "linear": lambda x: x,
}


class Weights:
    """The weights whose names begin with a common path."""

    def __init__(self, table, path=""):
        self.table, self.path = table, path

    def under(self, path):
        return Weights(self.table, f"{self.path}{path}/")

    def __getitem__(self, name):
        return np.asarray(self.table[self.path + name], np.float64)

    def dense(self, name, x):
        return x @ self[f"{name}/kernel"] + self[f"{name}/bias"]

    def norm(self, x):
        centered = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12)
        gamma, beta = self["layer_norm/gamma"], self["layer_norm/beta"]
        return centered / spread * gamma + beta


def embed(weights, config, ids, segments):
    """Return the normalized embedding [T, E or H] and encoder input [T, H]."""
    w = weights.under("albert/embeddings")
    x = w["word_embeddings"][ids]
    rest = w["token_type_embeddings"][segments]
    rest = rest + w["position_embeddings"][: len(ids)]
    if config.embedding_norm == "hidden":
        x = w.norm(x @ w["embedding_hidden_mapping_in/kernel"] + rest)
        return x, x
    x = w.norm(x + rest)
    if config.embedding_size == config.hidden_size:
        return x, x
    return x, w.dense("embedding_hidden_mapping_in", x)


def attend(w, config, x, mask):
    """Return the output of self-attention, and the attention maps [A, T, T]."""
    heads = config.num_attention_heads
    size = config.attention_head_size or config.hidden_size // heads
    context, maps = np.zeros([len(x), heads * size]), []
    for a in range(heads):
        one = slice(a * size, (a + 1) * size)
        q, k, v = (w.dense(n, x)[:, one] for n in ("query", "key", "value"))
        scores = q @ k.T / np.sqrt(size) - 10000.0 * (1 - mask)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        maps.append(weights / weights.sum(-1, keepdims=True))
        context[:, one] = maps[-1] @ v
    return w.norm(x + w.dense("output", context)), np.stack(maps)


def encode(table, config, ids, mask, segments):
    """Return the embedding, outputs, attention maps and pooled output.

    The embedding is [T, E or H], and the pooled output [H]. Each layer has an
    output [T, H] and maps [A, T, T].
    """
    weights = Weights(table)
    embedding, x = embed(weights, config, ids, segments)
    act = ACTIVATIONS[config.hidden_act]
    layers, maps = [], []
    for i in range(config.num_hidden_layers):
        group = i * config.num_hidden_groups // config.num_hidden_layers
        g = group if config.sharing in ("all", "attention") else i
        h = group if config.sharing in ("all", "ffn") else i
        for k in range(config.inner_group_num):
            w = weights.under(f"albert/encoder/attention_{g}_{k}")
            x, probs = attend(w, config, x, mask)
            w = weights.under(f"albert/encoder/ffn_{h}_{k}")
            x = w.norm(x + w.dense("output", act(w.dense("intermediate", x))))
            layers.append(x)
            maps.append(probs)
    pooled = np.tanh(weights.under("albert").dense("pooler", x[0]))
    return embedding, layers, maps, pooled


def heads(table, config, sequence, pooled, positions):
    """Return logits [M, V] of masked words, and [2] of the segment order."""
    weights = Weights(table)
    w = weights.under("mlm")
    act = ACTIVATIONS[config.hidden_act]
    x = w.norm(act(w.dense("transform", sequence[positions])))
    tables = weights.under("albert/embeddings")
    words = tables["word_embeddings"]
    if config.embedding_norm == "hidden":
        words = words @ tables["embedding_hidden_mapping_in/kernel"]
    order = weights.under("sop").dense("classifier", pooled)
    return x @ words.T + w["output_bias"], order
