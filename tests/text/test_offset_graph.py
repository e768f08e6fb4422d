"""Pieces and offsets in the graph, against the Python tokenizers."""

import pytest
from test_tokenizer_graph import OPTIONS, TEXTS, encoded, graph_of, random_texts

from albert_tf.text.text_graph import offset_graph

MORE = [
    "  the  cat\u00a0\u2028 at ",
    "\u0301the\u0301 caf\u0065\u0301\u0301 \u0301 naïve",
    "```a'''' ''",
    "1,000,000, 2010, b12,",
    "中!\u0301 中\u0301文 a\u00ad\u0301b",
    "ﬁ ½ \ufdfa x",
]


@pytest.mark.parametrize(("make", "options"), OPTIONS)
def test_offsets_equal_the_python_tokenizer(make, options):
    """Ids, starts and ends equal Python's for texts with all special rules."""
    tokenizer = make(**options)
    texts = [*TEXTS, *MORE, *random_texts(200)]
    found = offset_graph(tokenizer, graph_of(make, **options))(encoded(texts))
    for text, *rows in zip(
        texts, *(ragged.to_list() for ragged in found), strict=True
    ):
        assert rows == list(tokenizer.encode_with_offsets(text)), text


def test_an_empty_batch_has_no_pieces():
    """An empty batch of strings returns empty ragged tensors."""
    make, options = OPTIONS[0]
    graph = offset_graph(make(**options), graph_of(make, **options))
    found = graph(encoded(["a"])[:0])
    assert [ragged.nrows() for ragged in found] == [0, 0, 0]
