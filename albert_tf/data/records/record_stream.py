"""The batches of `input_pipeline`, in NumPy and without TensorFlow.

The examples, their order and their masks are the same as for a single reader of
`input_pipeline`.

Shapes: B batch size, T tokens, P predictions, R = T - 3 tokens of both
segments.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from albert_tf.base.errors import InputError
from albert_tf.data.layout import Masker, id_type
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records import tfrecord
from albert_tf.data.records.metadata import (
    EVAL,
    MASKED_NAMES,
    TRAIN,
    Metadata,
    entry_path,
    static_sizes,
)
from albert_tf.data.records.record_checks import check_record

# Number of records that are shuffled together.
SHUFFLE_BLOCK = 1 << 14

# The generator Philox4x32-10, from Salmon et al., Parallel random numbers: as
# easy as 1, 2, 3 (2011). FIRST_KEY is the key of TensorFlow's stateless
# generators.
FACTORS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint32)
FIRST_KEY = np.array([0x3EC8F720, 0x02461E29], np.uint32)


def philox(key: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Return random bits, uint32 [n, 4], for a key [2] and counters [n, 4]."""
    x = counters
    for round in range(10):
        product = x[:, ::2].astype(np.uint64) * FACTORS  # [n, 2]
        high = (product >> np.uint64(32)).astype(np.uint32)[:, ::-1]
        low = product.astype(np.uint32)[:, ::-1]
        mixed = high ^ x[:, 1::2] ^ (key + WEYL * np.uint32(round))
        x = np.stack([mixed[:, 0], low[:, 0], mixed[:, 1], low[:, 1]], axis=1)
    return x


def random_integers(seed: Sequence[int], count: int) -> np.ndarray:
    """Return the integers of `tf.random.stateless_uniform`, int64 [count]."""
    words = np.array(seed, np.int64).view(np.uint32)[None]
    key = philox(FIRST_KEY, words)[0]
    counters = np.zeros([-(-count // 2), 4], np.uint32)
    counters[:, 0] = np.arange(len(counters))
    counters[:, 2:] = key[2:]
    return philox(key[:2], counters).reshape(-1).view(np.int64)[:count]


def fold_in(seed: Sequence[int], number: int, dtype=np.int64) -> tuple:
    """Return the same seed as `tf.random.experimental.stateless_fold_in`.

    Args:
      seed: the seed to start from.
      number: the number to fold in.
      dtype: the type of the number in TensorFlow, which is int32 for a Python
        integer.
    """
    return int(random_integers(seed, 1).view(dtype)[0]), number


def permutation(size: int, seed: Sequence[int]) -> np.ndarray:
    """Return a permutation that depends only on its size and the seed."""
    return np.argsort(random_integers(seed, size), kind="stable")


Features = list[dict[str, Sequence]]


def _static_batch(features: Features, metadata: Metadata) -> dict:
    """Return the arrays of static records."""
    return {
        name: np.array(
            [feature[name] for feature in features],
            np.float32 if name == "masked_lm_weights" else np.int64,
        )
        for name in static_sizes(metadata)
        if name != "next_sentence_labels"
    }


def _padded(rows: list[np.ndarray], room: int) -> np.ndarray:
    """Return rows of different lengths as one array [B, room]."""
    result = np.zeros([len(rows), room], rows[0].dtype)
    for target, row in zip(result, rows, strict=True):
        target[: len(row)] = row
    return result


def _dynamic_batch(
    features: Features, metadata: Metadata, positions: np.ndarray, mask: Masker
) -> dict:
    """Return the masked arrays of dynamic records."""
    room, dtype = metadata.max_seq_length - 3, id_type(metadata.vocab_size)
    ids = [np.frombuffer(f["token_ids"][0], dtype) for f in features]
    bits = [np.frombuffer(f["word_starts"][0], np.uint8) for f in features]
    starts = _padded([np.unpackbits(x)[:room] for x in bits], room) > 0
    sizes = np.array([f["segment_lengths"] for f in features], np.int64)
    ids = _padded(ids, room).astype(np.int32)
    arrays = mask(positions, ids, starts, sizes)
    return dict(zip(MASKED_NAMES, arrays, strict=True))


class RecordStream:
    """The records of a folder as batches of arrays.

    Args:
      data_dir: the folder of records.
      metadata: the folder's metadata.
      seed: the seed for shuffling and masking.
    """

    def __init__(self, data_dir: str, metadata: Metadata, seed: int):
        self.data_dir, self.metadata, self.seed = data_dir, metadata, seed
        is_dynamic = metadata.masking(TRAIN) == DYNAMIC
        self.mask = Masker(data_dir, metadata, seed) if is_dynamic else None

    def _read(self, split: str, order: Sequence[int], first: int):
        """Yield the records of files in a given order, starting at an index."""
        entries = [self.metadata.splits[split][i] for i in order]
        for entry in entries:
            if first < entry.records:
                path = entry_path(self.data_dir, entry)
                yield from itertools.islice(tfrecord.read(path), first, None)
            first = max(first - entry.records, 0)

    def _epoch(self, epoch: int, first: int) -> Iterator[bytes]:
        """Yield the shuffled records of an epoch, starting at an index."""
        key = self.seed, epoch
        files = len(self.metadata.splits[TRAIN])
        order = permutation(files, fold_in(key, 0, np.int32))
        block, offset = divmod(first, SHUFFLE_BLOCK)
        records = self._read(TRAIN, order, block * SHUFFLE_BLOCK)
        while part := list(itertools.islice(records, SHUFFLE_BLOCK)):
            block += 1
            index = permutation(len(part), fold_in(key, block))
            yield from (part[i] for i in index[offset:])
            offset = 0

    def train(self, start: int, batch_size: int) -> Iterator[tuple]:
        """Yield the arguments of `batch` endlessly, from position `start`."""
        epoch, first = divmod(start, self.metadata.count(TRAIN))
        firsts = itertools.chain([first], itertools.repeat(0))
        epochs = map(self._epoch, itertools.count(epoch), firsts)
        records = itertools.chain.from_iterable(epochs)
        for position in itertools.count(start, batch_size):
            yield list(itertools.islice(records, batch_size)), position

    def _parsed(self, record: bytes, form: str) -> dict[str, Sequence]:
        """Return the features of a record, which must match the metadata."""
        try:
            feature = tfrecord.parse(record)
            check_record(feature, self.metadata, form)
        except ValueError as error:
            raise InputError(
                f"The records must match their metadata: {error}; make or copy "
                f"them again. Received: data_dir={self.data_dir}"
            ) from None
        return feature

    def batch(self, records: list[bytes], position: int | None = None) -> dict:
        """Return the arrays of records; see `input_pipeline.train_batches`.

        Args:
          records: [B] serialized examples.
          position: the first record's position in the stream, or None for
            held-out records.

        Raises:
          InputError: if the records do not match their metadata.
        """
        form = self.metadata.form(EVAL if position is None else TRAIN)
        features = [self._parsed(record, form) for record in records]
        if form == DYNAMIC:
            positions = position + np.arange(len(records))
            batch = _dynamic_batch(
                features, self.metadata, positions, self.mask
            )
        else:
            batch = _static_batch(features, self.metadata)
        labels = [f["next_sentence_labels"][0] for f in features]
        batch["sentence_order_labels"] = np.array(labels)
        batch["example_weights"] = np.ones(len(records))
        types = {"f": np.float32, "i": np.int32}
        return {n: x.astype(types[x.dtype.kind]) for n, x in batch.items()}

    def held_out(self, batch_size: int) -> Iterator[dict]:
        """Yield the held-out batches once; zeros pad the last batch."""
        order = range(len(self.metadata.splits[EVAL]))
        records = self._read(EVAL, order, 0)
        while part := list(itertools.islice(records, batch_size)):
            missing = batch_size - len(part)
            yield {
                name: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
                for name, x in self.batch(part).items()
            }
