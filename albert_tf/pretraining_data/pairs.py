"""Documents to segment pairs for the sentence-order task.

A chunk is as many whole sentences of one document as fit; it is cut into A
and B at a random sentence boundary, and a fair coin swaps them. No sentence
is cut at the outer ends of a pair: the sentence that does not fit begins the
next chunk. A cut sentence would stand next to the other segment exactly when
the two are swapped, which gives the label away.

Glossary: N tokens, S sentences, n pairs.
"""

import dataclasses
from collections import Counter

import numpy as np

from albert_tf.errors import InputError
from albert_tf.pretraining_data.documents import Documents
from albert_tf.settings import setting, validate

# [CLS] A [SEP] B [SEP]
SPECIAL_TOKENS = 3

# Pieces that end a sentence: Latin, Chinese, Devanagari and Arabic ones.
ENDINGS = frozenset(". ! ? \u2026 \u3002 \uff01 \uff1f \u0964 \u061f".split())

# Rows of tokens that are looked at together.
BATCH = 4096

SINGLE_SEGMENT_POLICIES = ("split", "drop", "google")

# Whether pairs and masks are made right, or as the released code made them.
COMPAT = ("none", "google")


@dataclasses.dataclass(frozen=True)
class PairsConfig:
    """How documents are cut into pairs of segments."""

    max_seq_length: int = setting(
        512, "Tokens of an example, special ones included.", minimum=8
    )
    short_seq_prob: float = setting(
        0.1,
        "Share of the chunks that get a random, shorter target length.",
        minimum=0.0,
        maximum=1.0,
    )
    single_segment_policy: str | None = setting(
        None,
        "What becomes of a chunk of one sentence: split at a sentence end or "
        "a word inside it (the default), drop, or google (a random document "
        "follows, always labelled swapped, as released).",
        choices=SINGLE_SEGMENT_POLICIES,
    )
    random_next_sentence: bool = setting(
        False,
        "Whether B comes from another document in half of the pairs, "
        "labelled 1 (BERT's next-sentence task), and pairs are not swapped.",
    )
    compat: str = setting(
        "none",
        "google reproduces the pairs and masks of the released code, faults "
        "included.",
        choices=COMPAT,
    )

    def __post_init__(self):
        validate(self)

        if self.compat == "google" and self.policy != "google":
            raise InputError(
                "`single_segment_policy` must be google, or not be given, "
                "with --compat=google. Received: "
                f"single_segment_policy={self.single_segment_policy}"
            )

    @property
    def policy(self) -> str:
        """What becomes of a chunk of one sentence."""
        default = "google" if self.compat == "google" else "split"
        return self.single_segment_policy or default

    @property
    def room(self) -> int:
        """The tokens of A and B together."""
        return self.max_seq_length - SPECIAL_TOKENS


def sentence_ends(tokenizer) -> np.ndarray:
    """Return which pieces end a sentence, [V] bool."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    return np.array([piece.lstrip("\u2581#") in ENDINGS for piece in pieces])


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Segment pairs as token ranges of the documents; each field [n]."""

    a_start: np.ndarray
    a_end: np.ndarray
    b_start: np.ndarray
    b_end: np.ndarray
    swapped: np.ndarray  # bool, the sentence-order label

    def take(self, index: np.ndarray) -> "Pairs":
        """Return the pairs at the given indices."""
        fields = dataclasses.fields(self)
        return Pairs(*(getattr(self, f.name)[index] for f in fields))

    def tokens(self) -> int:
        """Return the tokens of all pairs."""
        a, b = self.a_end - self.a_start, self.b_end - self.b_start
        return int(np.sum(a + b))

    def __len__(self) -> int:
        return len(self.a_start)


def join(first: Pairs, second: Pairs) -> Pairs:
    """Return the pairs of both."""
    fields = [field.name for field in dataclasses.fields(Pairs)]
    return Pairs(
        *(
            np.concatenate([getattr(first, name), getattr(second, name)])
            for name in fields
        )
    )


def cut_long(
    offsets: np.ndarray, documents: Documents, stops: np.ndarray, room: int
) -> np.ndarray:
    """Return the token offsets at which to cut sentences longer than `room`.

    A piece ends at its last sentence end in its second half, else at its last
    word, else where the room ends.
    """
    found = []
    for sentence in np.flatnonzero(np.diff(offsets) > room):
        begin, end = int(offsets[sentence]), int(offsets[sentence + 1])
        while end - begin > room:
            window = slice(begin, begin + room + 1)
            word = documents.starts[window].copy()
            word[0] = False
            stop = word & np.roll(stops[documents.ids[window]], 1)
            stop[: room // 2] = False
            places = np.flatnonzero(stop if stop.any() else word)
            begin += int(places[-1]) if places.size else room
            found.append(begin)
    return np.array(found, np.int64)


def sentences(
    documents: Documents, stops: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return sentence offsets [S + 1] and each sentence's part end [S].

    A part end is an index into the offsets.
    """
    offsets = np.zeros(len(documents.sentences) + 1, np.int64)
    np.cumsum(documents.sentences, out=offsets[1:])
    part_ends = offsets[np.cumsum(documents.parts, dtype=np.int64)]
    more = cut_long(offsets, documents, stops, room)
    offsets = np.sort(np.concatenate([offsets, more]))
    ends = np.searchsorted(part_ends, offsets[:-1], side="right")
    return offsets, np.searchsorted(offsets, part_ends[ends])


def targets(count: int, config: PairsConfig, rng: np.random.Generator):
    """Draw the target length of a chunk for each place it may begin at."""
    short = rng.random(count) < config.short_seq_prob
    lengths = rng.integers(2, config.room, count, endpoint=True)
    return np.where(short, lengths, config.room)


def chunk_ends(
    offsets: np.ndarray,
    part_ends: np.ndarray,
    targets: np.ndarray,
    room: int,
) -> np.ndarray:
    """Return where a chunk would end that begins at each sentence, [S].

    A chunk takes sentences until it reaches its target, and gives back the
    last one if that does not fit.
    """
    begins = offsets[:-1]
    stop = np.searchsorted(offsets, begins + targets)
    stop = np.minimum(stop, part_ends)
    too_long = offsets[stop] - begins > room
    stop -= too_long & (stop > np.arange(len(begins)) + 1)
    return stop


def chain(following: np.ndarray) -> np.ndarray:
    """Return the sentences that chunks begin at; each leads to the next."""
    steps = following.tolist()
    first, found = 0, []
    while first < len(steps):
        found.append(first)
        first = steps[first]
    return np.array(found, np.int64)


def _split_points(
    starts: np.ndarray,
    ends: np.ndarray,
    documents: Documents,
    stops: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw where to cut ranges of tokens in two, [n]; the start if nowhere.

    A sentence end inside the range comes first, then a word start of its
    middle half, then any word start.
    """
    width = int((ends - starts).max(initial=1))
    place = np.arange(width)
    length = (ends - starts)[:, None]
    inside = (place > 0) & (place < length)
    index = np.minimum(starts[:, None] + place, len(documents.ids) - 1)
    word = documents.starts[index] & inside
    middle = word & (4 * place >= length) & (4 * place <= 3 * length)
    stop = word & stops[documents.ids[np.maximum(index - 1, 0)]]
    rank = word.astype(np.float32) + middle + 2 * stop
    rank += rng.random(rank.shape, dtype=np.float32) * (rank > 0)
    return starts + np.argmax(rank, axis=1)


def _random_followers(
    starts: np.ndarray,
    ends: np.ndarray,
    offsets: np.ndarray,
    part_ends: np.ndarray,
    room: int,
    rng: np.random.Generator,
) -> Pairs:
    """Pair each range of tokens with the text at a random sentence."""
    sentence = rng.integers(0, len(part_ends), len(starts))
    b_start = offsets[sentence]
    least = np.minimum(offsets[sentence + 1] - b_start, room // 2)
    size = np.maximum(room - (ends - starts), least)
    b_end = np.minimum(b_start + size, offsets[part_ends[sentence]])
    a_end = np.minimum(ends, starts + room - (b_end - b_start))
    return Pairs(starts, a_end, b_start, b_end, np.ones(len(starts), bool))


def ordered(
    starts: np.ndarray,
    middles: np.ndarray,
    ends: np.ndarray,
    rng: np.random.Generator,
) -> Pairs:
    """Cut ranges in two and swap the halves of a random half of them."""
    swapped = rng.random(len(starts)) < 0.5
    return Pairs(
        np.where(swapped, middles, starts),
        np.where(swapped, ends, middles),
        np.where(swapped, starts, middles),
        np.where(swapped, middles, ends),
        swapped,
    )


def split(
    starts: np.ndarray,
    ends: np.ndarray,
    documents: Documents,
    stops: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return where ranges of tokens are cut in two, the start if nowhere."""
    middles = starts.copy()
    for first in range(0, len(starts), BATCH):
        rows = slice(first, first + BATCH)
        middles[rows] = _split_points(
            starts[rows], ends[rows], documents, stops, rng
        )
    return middles


def make_pairs(
    documents: Documents,
    stops: np.ndarray,
    config: PairsConfig,
    rng: np.random.Generator,
) -> tuple[Pairs, Counter]:
    """Cut documents into segment pairs, in random order, and count.

    Args:
      documents: the tokenised text of one shard.
      stops: [V] which pieces end a sentence.
      config: lengths and policies.
      rng: the source of randomness.
    """
    offsets, part_ends = sentences(documents, stops, config.room)
    aims = targets(len(part_ends), config, rng)
    following = chunk_ends(offsets, part_ends, aims, config.room)
    firsts = chain(following)
    lasts = following[firsts]
    size = lasts - firsts
    middles = firsts + 1 + (rng.random(len(size)) * (size - 1)).astype(np.int64)
    many = size > 1
    pairs = ordered(
        offsets[firsts[many]], offsets[middles[many]], offsets[lasts[many]], rng
    )
    starts, ends = offsets[firsts[~many]], offsets[lasts[~many]]
    counts = Counter(one_segment_chunks=len(starts))
    if config.policy == "google":
        singles = _random_followers(
            starts, ends, offsets, part_ends, config.room, rng
        )
        counts["truncated_tokens"] = int(np.sum(ends - singles.a_end))
    elif config.policy == "split":
        cuts = split(starts, ends, documents, stops, rng)
        kept = cuts > starts
        singles = ordered(starts[kept], cuts[kept], ends[kept], rng)
    else:
        singles = pairs.take(slice(0))
    joined = join(pairs, singles)
    counts["dropped_chunks"] = len(firsts) - len(joined)
    return joined.take(rng.permutation(len(joined))), counts
