"""Added pieces are found in texts, and all other ids stay the same."""

import functools

import pytest
from vocabularies import TEXTS, chinese, english, trained

from albert_tf.base.errors import InputError
from albert_tf.text.added_pieces import with_pieces
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizers import SentencePieceTokenizer

CASED = functools.partial(chinese, do_lower_case=False)


@pytest.mark.parametrize("make", [english, CASED])
def test_other_ids_stay(make):
    """Added pieces do not change the ids of texts that lack these pieces."""
    before = make()
    after = with_pieces(before, ["newword", "Other"])
    assert after.vocab_size == before.vocab_size + 2
    assert after.pieces(range(before.vocab_size)) == before.pieces(
        range(before.vocab_size)
    )
    for text in TEXTS:
        assert after.encode(text) == before.encode(text), text


def of_pairs():
    """Return a tokenizer of a BPE model, which merges pairs of pieces."""
    lines = iter(["the cat sat"] * 9)
    content = trained(sentence_iterator=lines, model_type="bpe", vocab_size=30)
    return SentencePieceTokenizer(content, TextConfig())


@pytest.mark.slow_after(5)
@pytest.mark.parametrize(
    ("tokenizer", "piece", "text", "found"),
    [
        (english(), "[E1]", "the [E1]cat[e1]", 2),
        (english(do_lower_case=False), "[E1]", "the [E1]cat[e1]", 1),
        (english(), "New  York", "a new york cat", 1),
        (of_pairs(), "[E1]", "the [E1]cat", 1),
        (chinese(), "Covid", "COVID covid, covids", 2),
        (CASED(), "Covid", "COVID Covid", 1),
        (english(), "<URL>", "<url>", 1),
    ],
)
def test_found_in_normalized_text(tokenizer, piece, text, found):
    """An added piece has one id wherever the normalized text contains it."""
    after = with_pieces(tokenizer, [piece])
    ids = after.encode(text)
    assert ids.count(tokenizer.vocab_size) == found
    spans = zip(*after.encode_with_offsets(text), strict=True)
    shown = [text[a:b] for i, a, b in spans if i == tokenizer.vocab_size]
    assert [x.lower() for x in shown] == [
        " ".join(piece.lower().split())
    ] * found


@pytest.mark.parametrize(
    ("make", "pieces", "message"),
    [
        (english, ["[cls]"], "must not be in the vocabulary"),
        (english, ["[MASK]"], "must not be in the vocabulary"),
        (english, [" "], "must not be blank"),
        (english, ["new", "NEW"], "must not be in the vocabulary.*'NEW'"),
        (chinese, ["[E1]"], "one word without punctuation.*E1"),
        (chinese, ["two words"], "one word"),
        (chinese, ["the"], "must not be in the vocabulary"),
    ],
)
def test_pieces_that_cannot_be_added(make, pieces, message):
    """A piece to add must be new, and of a form that texts can contain."""
    with pytest.raises(InputError, match=message):
        with_pieces(make(), pieces)
