"""The meaning of tags in each scheme, and of tags that break the rules."""

import pytest

from albert_tf.tasks.conll import (
    CLASSES,
    all_tags,
    entity_spans,
    find_scheme,
    invalid_transitions,
    only_separates,
)


@pytest.mark.parametrize(
    ("scheme", "tags", "completed"),
    [
        ("IO", "I-A O I-B", "O I-A I-B"),
        ("IO", "I-A E-A O", "O I-A E-A"),  # IOE
        ("BIO", "B-B I-B B-A", "O B-A I-A B-B I-B"),
        ("BIO", "B I O", "O B I"),
        ("BIO", "B_x I_x O", "O B_x I_x"),
        ("BIO", "B-X-Y O", "O B-X-Y I-X-Y"),
        ("BIO", "B-A I-A O X", "O B-A I-A X"),
        ("BIO", "B-A I-A O X X X", "O B-A I-A X"),
        ("IO", "I-D I-B I-E I-A I-C", "O I-A I-B I-C I-D I-E"),
        ("BIOES", "S-A", "O B-A I-A E-A S-A"),
        ("BIOES", "B-A M-A E-A S-A", "O B-A M-A E-A S-A"),
        ("BIOES", "B M E S", "O B M E S"),
        ("BIOES", "B-A L-A U-A", "O B-A I-A L-A U-A"),
        ("BIOES", "B-A M-A E-A W-A O", "O B-A M-A E-A W-A"),
        (CLASSES, "NN VB -LRB- S-x O", "O -LRB- NN S-x VB"),
        (CLASSES, "N V A P R S C M Q I Y X", "A C I M N P Q R S V X Y"),
        (CLASSES, "person O time", "O person time"),
        (CLASSES, "art-film O event-war", "O art-film event-war"),
        (CLASSES, "0 1 2", "0 1 2"),
        (CLASSES, "B-A X O", "O B-A X"),  # half of the tags are classes
        (CLASSES, "O", "O"),
    ],
)
def test_the_scheme_follows_from_the_set_of_tags(scheme, tags, completed):
    """Tags determine their scheme; `all_tags` adds missing prefixes."""
    tags = tags.split()
    assert find_scheme(tags) == scheme
    assert all_tags(tags) == tuple(completed.split())
    assert find_scheme(all_tags(tags)) == scheme


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O B-X I-X O", [[1, 2, "X"]]),
        ("I-X I-X I-Y", [[0, 1, "X"], [2, 2, "Y"]]),
        ("B-X B-X", [[0, 0, "X"], [1, 1, "X"]]),
        ("B-X E-X I-X S-Y", [[0, 1, "X"], [2, 2, "X"], [3, 3, "Y"]]),
        (
            "E-X E-X O I-X B-Y I-X",
            [[0, 0, "X"], [1, 1, "X"], [3, 3, "X"], [4, 4, "Y"], [5, 5, "X"]],
        ),
        ("B-X M-X M-X E-X", [[0, 3, "X"]]),
        ("B-X S-X I-X", [[0, 0, "X"], [1, 1, "X"], [2, 2, "X"]]),
        ("B-X I-X L-X U-X", [[0, 2, "X"], [3, 3, "X"]]),
        ("B M E S O", [[0, 2, "_"], [3, 3, "_"]]),
        ("B_x I_x O", [[0, 1, "x"]]),
        ("O X -LRB- B-", []),
    ],
)
def test_spans_of_tags(tags, spans):
    """An entity ends at an ending tag, or before O, B, S or another type."""
    assert entity_spans(tags.split()) == spans


@pytest.mark.parametrize(
    ("scheme", "tags", "words"),
    [
        ("IO", "I-A I-B O I-A", []),
        ("IO", "I-A E-A E-B O E-A I-B I-A E-A", []),  # IOE1 and IOE2
        ("BIO", "B-A I-A B-A O", []),
        ("BIO", "O I-A", [1]),
        ("BIO", "B-A I-B I-B", [1]),
        ("BIOES", "B-A I-A E-A S-B O", []),
        ("BIOES", "B-A M-A L-A U-B W-B", []),
        ("BIOES", "B-A O", [1]),
        ("BIOES", "S-A I-A E-A", [1]),
        ("BIOES", "O E-A", [1]),
        ("BIOES", "B-A I-B E-B", [1]),
        ("BIOES", "B-A B-A E-A", [1]),
        ("BIOES", "O B-A", [2]),  # the sentence ends within an entity
        (CLASSES, "NN VB", []),
    ],
)
def test_tags_that_cannot_follow_each_other(scheme, tags, words):
    """An illegal transition is counted at its second word."""
    assert invalid_transitions(tags.split(), scheme) == words


def test_tags_that_begin_entities_as_iob1_does():
    """In IOB1, a B tag occurs only between two entities of the same type."""
    assert only_separates("I-A B-A I-A O I-B".split())
    assert not only_separates("I-A O B-A".split())
    assert not only_separates("I-A B-B".split())
    assert not only_separates("I-B B-A".split())
