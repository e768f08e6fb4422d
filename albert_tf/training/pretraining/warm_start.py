"""Warm starts from another model's weights, even with a new vocabulary."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.data.records.metadata import log_frequencies, read_piece_counts
from albert_tf.model.config import BLOCK, AlbertConfig
from albert_tf.model.phonemes import HEADS
from albert_tf.text import symbols
from albert_tf.text.normalization import normalize
from albert_tf.text.sentencepiece_models import WORD_MARK
from albert_tf.text.symbols import load_vocabulary, vocabulary_in
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.text.wordpiece import (
    IDEOGRAPH,
    is_punctuation,
    lowercase_and_strip,
)
from albert_tf.training import checkpoint_files, checkpoints

WORDS = "albert/embeddings/word_embeddings"
BIASES = "mlm/output_bias"
SYMBOL_HEAD, WORD_HEAD = HEADS

# The old and new texts are considered to be in the same language if pieces that
# are in both vocabularies cover more than this share of the new text.
SAME_LANGUAGE = 0.5

NORMALIZE = {"sentencepiece": normalize, "wordpiece": lowercase_and_strip}


def marked_pieces(tokenizer: Tokenizer) -> list[str]:
    """Return all pieces in SentencePiece notation."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    if tokenizer.kind == "sentencepiece":
        return pieces
    return [p[2:] if p.startswith("##") else WORD_MARK + p for p in pieces]


def toggle_mark(piece: str) -> str:
    """Return a piece without its initial ▁, or with a ▁ if it has none."""
    bare = piece.removeprefix(WORD_MARK)
    return WORD_MARK + piece if bare == piece else bare


def is_separate_word(piece: str) -> bool:
    """Return whether WordPiece always treats a piece as a separate word."""
    text = piece.removeprefix(WORD_MARK)
    return len(text) == 1 and bool(
        IDEOGRAPH.match(text) or is_punctuation(text)
    )


def cut(text: str, ids: dict[str, int]) -> list[int]:
    """Split a text from left to right, longest match first; return the ids.

    The result is [] if any position has no matching piece. Pieces match with or
    without ▁, but exact matches are preferred.
    """
    matched, begin = [], 0
    while begin < len(text):
        for end in range(len(text), begin, -1):
            piece = text[begin:end]
            id = ids.get(piece, ids.get(toggle_mark(piece)))
            if id is not None:
                matched.append(id)
                begin = end
                break
        else:
            return []
    return matched


def origins(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Return the ids of the old pieces that make up each new piece.

    There is one id if the old vocabulary contains the piece, and none if the
    old vocabulary lacks any of the piece's characters. Special pieces are
    matched by role, and other pieces that represent no text by name.
    """
    not_words = set(old.not_words.tolist())
    words = marked_pieces(old)
    ids = {p: i for i, p in enumerate(words) if i not in not_words}
    names = {words[i]: i for i in not_words}
    roles = ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")
    special = {getattr(new, r): getattr(old, r) for r in roles}

    def origin(i: int, piece: str) -> list[int]:
        if i in special:
            return [special[i]]
        if i in new.not_words:
            return [names[piece]] if piece in names else []
        if old.kind != new.kind and is_separate_word(piece):
            piece = toggle_mark(piece)
        if piece in ids:
            return [ids[piece]]
        texts = piece.split(WORD_MARK)
        rule = NORMALIZE[old.kind]
        return cut(WORD_MARK.join(rule(t, old.config) for t in texts), ids)

    return [origin(i, piece) for i, piece in enumerate(marked_pieces(new))]


class Transplant:
    """Initial weights of pieces, derived from rows of another vocabulary.

    The methods `means`, `biases` and `columns` return the initial value of a
    variable of the new model. Their argument `old` is the variable's value in
    the source model, and `new` is its random value in the new model.

    Args:
      origins: the ids of each new piece's old pieces, as returned by `origins`.
      counts: [V], the counts of the new pieces in the records, or None if
        unknown.
    """

    def __init__(self, origins: list[list[int]], counts: np.ndarray | None):
        self.origins, self.counts = origins, counts
        self.old_pieces = np.array([len(ids) for ids in origins])

    def means(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return, for each piece, the mean of the rows of its old pieces.

        A piece without old pieces keeps its row in `new`.
        """
        rows = np.array(new, np.float32)
        for i, ids in enumerate(self.origins):
            if ids:
                rows[i] = old[ids].mean(0)
        return rows

    def biases(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return the MLM output biases of the new pieces.

        Pieces in both vocabularies keep their biases, which fit their rows.
        Other pieces receive log frequencies, shifted to match the kept biases
        on average. In a different language, all pieces receive log frequencies:
        few pieces are in both vocabularies, and their biases do not reflect
        their frequencies in that language. If the counts are unknown, a
        piece receives the mean bias of its old pieces or, if it has none, of
        all old pieces.
        """
        biases = self.means(old, np.full_like(new, old.mean()))
        if self.counts is None:
            return biases
        frequencies = log_frequencies(self.counts)
        shared = self.old_pieces == 1
        weights = self.counts * shared
        if weights.sum() <= SAME_LANGUAGE * self.counts.sum():
            return frequencies
        shift = np.average(biases - frequencies, weights=weights)
        biases[~shared] = frequencies[~shared] + shift
        return biases

    def columns(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return the mean of each piece's old columns; see `means`."""
        return self.means(old.T, new.T).T

    def changes(self) -> dict[str, Callable]:
        """Return {variable: a function (old value, new value) -> value}."""
        return {
            WORDS: self.means,
            BIASES: self.biases,
            f"{SYMBOL_HEAD}kernel": self.columns,
            f"{SYMBOL_HEAD}bias": self.means,
        }

    def describe(self) -> str:
        """Return a line with the counts of copied, composed and new rows."""
        total, num_origins = len(self.origins), self.old_pieces
        copied, new = np.sum(num_origins == 1), np.sum(num_origins == 0)
        return (
            f"{total:,} pieces: {copied:,} from the old vocabulary, "
            f"{total - copied - new:,} composed of its pieces, {new:,} new"
        )


ORIGINS = {symbols.SymbolTable: symbols.origins}


def read_transplant(
    model_dir: str, vocabulary: Vocabulary, data_dir: str, size: int
) -> Transplant:
    """Return the transplant from a model directory to a folder of records.

    Args:
      model_dir: the source.
      vocabulary, data_dir: the records' tokenizer or symbols, and their folder.
      size: number of rows in the new table, V or more.
    """
    padding = [[] for _ in range(size - vocabulary.vocab_size)]
    find_origins = ORIGINS.get(type(vocabulary), origins)
    return Transplant(
        find_origins(load_vocabulary(model_dir), vocabulary) + padding,
        read_piece_counts(data_dir, size),
    )


POSITIONS = "albert/embeddings/position_embeddings"

# Settings that determine the shapes and meaning of weights.
FIXED_KEYS = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_attention_heads",
    "head_size",
    "intermediate_size",
    "inner_group_num",
    "hidden_act",
    "type_vocab_size",
    "embedding_norm",
)

# Values of `init_state`.
WEIGHTS, RUN, TRANSPLANT = STATES = ("weights", "run", "transplant")


def check_source(
    source: AlbertConfig, target: AlbertConfig, state: str = WEIGHTS
) -> None:
    """Raise an error if the target cannot use the source's weights."""
    different = [
        f"{key}={getattr(source, key)} instead of {getattr(target, key)}"
        for key in FIXED_KEYS
        if getattr(source, key) != getattr(target, key)
        and (key, state) != ("vocab_size", TRANSPLANT)
    ]
    rule = "`init_checkpoint` may differ from `albert_config_file` only in "
    rule += "layers, groups, sharing, positions and dropout and, with "
    rule += "`init_state=transplant`, in the vocabulary."
    require(not different, f"{rule} Received: {', '.join(different)}")


def _kind(vocabulary: Vocabulary | None) -> str:
    """Return the kind of a vocabulary, for an error message."""
    if isinstance(vocabulary, symbols.SymbolTable):
        return "phoneme symbols"
    return "a tokenizer" if vocabulary else "no tokenizer"


def check_warm_start(
    model_dir: str | None,
    state: str,
    target: AlbertConfig,
    vocabulary: Vocabulary | None,
) -> None:
    """Raise an error if the source is incompatible with the new run.

    Args:
      model_dir: the source, or None.
      state: one of `STATES`.
      target: the new run's architecture.
      vocabulary: the records' tokenizer or symbols, if known.
    """
    rule = "`init_state=run` needs an `init_checkpoint`, whose run continues."
    require(model_dir or state != RUN, rule, init_checkpoint=model_dir)
    source_vocabulary = model_dir and vocabulary_in(model_dir)
    kinds = [_kind(source_vocabulary), _kind(vocabulary)]
    require(
        state != TRANSPLANT or (source_vocabulary and kinds[0] == kinds[1]),
        "`init_state=transplant` needs an `init_checkpoint` and records that "
        "both have a tokenizer, or that both have phoneme symbols.",
        init_checkpoint=f"{model_dir} with {kinds[0]}",
        records=f"with {kinds[1]}",
    )
    if model_dir:
        source = AlbertConfig.from_model_dir(model_dir, "init_checkpoint")
        check_source(source, target, state)
        require(
            state != RUN or source == target,
            "`init_state=run` needs the architecture of `init_checkpoint`.",
            init_checkpoint=f"{model_dir} with another albert_config.json",
        )
        require(
            checkpoints.has_weights(model_dir),
            "`init_checkpoint` must contain a checkpoint.",
            init_checkpoint=model_dir,
        )
    if source_vocabulary and state != TRANSPLANT:
        require(
            symbols.have_same_ids(source_vocabulary, vocabulary),
            "`init_checkpoint` must have the tokenizer of the records, or "
            "`init_state` must be transplant, which rebuilds the word "
            "embeddings for the records' tokenizer.",
            init_checkpoint=f"{model_dir} with another tokenizer",
        )


def source_name(name: str, source: AlbertConfig, target: AlbertConfig) -> str:
    """Return the source's name for a variable in the target.

    A block receives the weights of the source's layer at the same relative
    depth as the first layer that uses the block.
    """
    match = BLOCK.match(name)
    if not match:
        return name
    kind, block = match[1], int(match[2])
    blocks, origins = target.blocks(kind), source.blocks(kind)
    origin = origins[blocks.index(block) * len(origins) // len(blocks)]
    return f"albert/encoder/{kind}_{origin}_{name[match.end() :]}"


def describe_warm_start(
    source: AlbertConfig, target: AlbertConfig, names: dict[str, str]
) -> list[str]:
    """Return lines that describe how layers, groups and positions change."""
    lines = []
    if source.num_hidden_layers != target.num_hidden_layers:
        lines.append(
            f"{target.num_hidden_layers} layers from {source.num_hidden_layers}"
        )
    moved = {
        (match[1], int(match[2])): BLOCK.match(origin)[2]
        for name, origin in names.items()
        if name != origin and (match := BLOCK.match(name))
    }
    lines += [
        f"{kind}_{block}_* from {kind}_{origin}_*"
        for (kind, block), origin in sorted(moved.items())
    ]
    old, new = (c.max_position_embeddings for c in (source, target))
    if old < new:
        lines.append(f"{new} positions from {old}, which are repeated")
    elif old > new:
        lines.append(f"the first {new} of {old} positions")
    return lines


def start_weights(
    model,
    model_dir: str,
    target: AlbertConfig,
    transplant: Transplant | None = None,
    vocabulary: Vocabulary | None = None,
) -> list[str]:
    """Load weights from a model directory; return lines that describe them.

    A longer position table repeats the source's table from the beginning.

    Args:
      model: the model with its pretraining heads.
      model_dir: the source; a head that the source lacks, or whose outputs have
        a different meaning there, keeps its random weights.
      target: the model's architecture.
      transplant: required if the source has a different vocabulary.
      vocabulary: the run's vocabulary, if known.
    """
    source = AlbertConfig.from_model_dir(model_dir)
    changes = transplant.changes() if transplant else {}
    prefix = checkpoints.for_inference(model_dir)
    source_vocabulary = vocabulary_in(model_dir)
    words = source_vocabulary.words if source_vocabulary else ()
    # Other heads' outputs keep their meaning, or a transplant matches the ids.
    foreign = WORD_HEAD if vocabulary and vocabulary.words != words else ()
    table = checkpoints.read_table(prefix)
    stored = [name for name in table if not name.startswith(foreign)]
    variables, absent = checkpoints.present(model, stored)
    names = {n: source_name(n, source, target) for n in variables}
    missing = sorted(set(names.values()) - set(stored))
    rule = "`init_checkpoint` must contain every weight."
    received = f"{prefix} without {', '.join(missing)}"
    require(not missing, rule, init_checkpoint=received)
    read = checkpoints.reader(prefix)
    for name, variable in variables.items():
        value = read(names[name])
        if name == POSITIONS:
            value = value[np.arange(variable.shape[0]) % len(value)]
        if name in changes:
            value = changes[name](value, variable.numpy())
        variable.assign(value)
    lines = [f"Weights of {prefix}"]
    lines += describe_warm_start(source, target, names)
    for head in absent:
        lines.append(f"a new {head[:-1]} head, because no stored head fits")
    if transplant:
        new_symbols = symbols.named(source_vocabulary, vocabulary)
        lines.append(transplant.describe() + new_symbols)
    return lines


def start_run(model_dir: str, state: dict[str, tf.Variable]) -> list[str]:
    """Restore weights, slots and step; return lines that describe them.

    Args:
      model_dir: the source, with the same architecture.
      state: all variables of the new run.
    """
    rule = "`init_state=run` needs a checkpoint with the optimizer's slots, as "
    rule += "written by `pretrain.py`."
    prefix = checkpoint_files.latest(model_dir)
    require(prefix, rule, init_checkpoint=model_dir)
    checkpoints.restore_run(prefix, state, rule)
    step = state[f"{checkpoints.OPTIMIZER}iterations"]
    return [f"Weights, slots and step {int(step.numpy())} of {prefix}"]
