"""Word boundaries and sentence breaks are in the expected places."""

import re
import sys

import numpy as np
import pytest
import vocabularies
from tiny_corpus import make_records, unmasked_features

from albert_tf.base.errors import InputError
from albert_tf.data.builder import boundaries
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizers import (
    SentencePieceTokenizer,
    WordPieceTokenizer,
    load_saved_tokenizer,
)

SPECIAL = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()


class Characters:
    """A tokenizer with the pieces of given texts; ▁ marks a word's start."""

    kind = "sentencepiece"
    not_words = np.array([0], np.int32)

    def __init__(self, *texts):
        self.texts = texts
        pieces = {p: 0 for text in texts for p in self.cut(text)}
        self._pieces = ["<unk>", *pieces]
        self.vocab_size = len(self._pieces)
        self.word_starts = np.ones(self.vocab_size, bool)

    @staticmethod
    def cut(text):
        """Split a text at each | or, if there is none, into characters."""
        marked = "▁" + text.replace(" ", "▁")
        if "|" in text:
            return marked.split("|")
        return re.findall("▁?[^▁]", marked)

    def pieces(self, ids):
        """Return the pieces with the given ids."""
        return [self._pieces[i] for i in ids]

    def encode_joined(self, texts):
        """Return the joined ids of all texts, and the end of each text."""
        rows = [[self._pieces.index(p) for p in self.cut(t)] for t in texts]
        return np.array(sum(rows, []), np.int32), np.cumsum([*map(len, rows)])


def unicode_words(text):
    """Return the words that the Unicode rule finds in a text."""
    tokenizer = Characters(text, "before")
    lines = ["before", text]
    ids, sizes, starts = boundaries.encode(tokenizer, "unicode", lines)
    own = slice(sizes[0], None)
    words = []
    for piece, start in zip(
        tokenizer.pieces(ids[own]), starts[own], strict=True
    ):
        if start:
            words.append("")
        words[-1] += piece
    return words


@pytest.mark.parametrize(
    "text, words",
    [
        ("ab cd", ["ab", "cd"]),
        ("don't stop", ["don", "'", "t", "stop"]),
        ("dogs' tails", ["dogs", "'", "tails"]),
        ("1,000.5 or 2", ["1", ",", "000", ".", "5", "or", "2"]),
        ("one,two", ["one", ",", "two"]),
        ("e.g. x2", ["e", ".", "g", ".", "x2"]),
        ("(a_b)!", ["(", "a_b", ")", "!"]),
        ("привет мир", ["привет", "мир"]),
        ("東京abc", ["東", "京", "abc"]),
        ("カタカナです", ["カタカナ", "で", "す"]),
        ("スーパー゠マン", ["スーパー゠マン"]),
        ("ไทย", ["ไ", "ท", "ย"]),
        ("नमस्ते दोस्त", ["नमस्ते", "दोस्त"]),
        ("cafe\u0301s", ["cafe\u0301s"]),
        ("क्\u200dष", ["क्\u200dष"]),
        ("אבג", ["אבג"]),
        ("한국어 말", ["한국어", "말"]),
        ("play|ing| |it|'s| fi|ne", ["playing", "it", "'s", "fine"]),
        ("x'|s| 東\u0301|b", ["x'", "s", "東\u0301", "b"]),
        ("मे री| |मा|ँ| |!| |a|b", ["मेरी", "माँ", "!", "ab"]),
        ("東| |京| |カ|カ|です", ["東", "京", "カカ", "です"]),
    ],
)
def test_unicode_rule(text, words):
    """For any pieces, words follow UAX #29, except at punctuation."""
    found = unicode_words(text)
    assert [word.replace("▁", "") for word in found] == words


@pytest.mark.parametrize("rule", ["english", "unicode", "segmented"])
def test_no_word_begins_inside_a_character(rule):
    """Under every rule, the byte pieces of a character belong to one word.

    Under the Unicode rule, this word also contains the adjacent letters.
    """
    content = vocabularies.trained(
        sentence_iterator=iter(["abcd cab dab"] * 20),
        vocab_size=290,
        byte_fallback=True,
    )
    tokenizer = SentencePieceTokenizer(content, TextConfig())
    line = "ab\u0493cd \u0493\u0493 \u20ac \U0001f602"
    ids, _, starts = boundaries.encode(tokenizer, rule, [line])
    pieces = tokenizer.pieces(ids)
    begins = [
        piece for piece, start in zip(pieces, starts, strict=True) if start
    ]
    assert not [x for x in begins if re.match("<0x[89AB]", x)]
    assert len([x for x in pieces if x.startswith("<0x")]) == 3 * 2 + 3 + 4
    if rule != "english":
        assert starts.sum() == 4


@pytest.mark.parametrize(
    ("text", "number"),
    [("\u65e5\u672c\u8a9e", 3), ("\u304b\u306a\u3002", 3), ("ab\u2014cd", 2)],
)
def test_ideographs_spelled_by_bytes_are_words(text, number):
    """Bytes of ideographs, kana and punctuation do not join into long words."""
    content = vocabularies.trained(
        sentence_iterator=iter(["abcd cab dab"] * 20),
        vocab_size=290,
        byte_fallback=True,
    )
    tokenizer = SentencePieceTokenizer(content, TextConfig())
    ids, _, starts = boundaries.encode(tokenizer, "unicode", [f"ab {text}"])
    assert starts.sum() == 1 + number


def broken(tokenizer, text):
    """Return the sentences in a text as strings of joined pieces."""
    ids, _ = tokenizer.encode_joined([text])
    breaks = boundaries.sentence_breaks(ids, tokenizer)
    parts = np.split(np.array(tokenizer.pieces(ids)), breaks)
    return ["".join(part) for part in parts]


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("so|.| he|!| why|?| 3|.| x", ["▁so.", "▁he!", "▁why?", "▁3.", "▁x"]),
        ("2|.|5|.|so|, e|.|g|.|x", ["▁2.5.so,▁e.g.x"]),
        ("tu| ?| oui| !| |.| x", ["▁tu▁?", "▁oui▁!▁.", "▁x"]),
        ('he|.|"| so|.| |.| |.| x', ['▁he."▁so.▁.▁.', "▁x"]),
        (
            "之。今。。《故》。”カ。カ。다",
            ["▁之。", "今。。《故》。”カ。", "カ。다"],
        ),
        ("है|।| हम|؟| x|…|y", ["▁है।", "▁हम؟", "▁x…y"]),
        ("之|。|今a|。|a今", ["▁之。", "今a。a今"]),
        ("之|。| |今|。| |カ|！| |。|之", ["▁之。", "▁今。", "▁カ！▁。", "之"]),
        ("है|।| |ह|म|؟| ", ["▁है।", "▁हम؟▁"]),
    ],
)
def test_sentences_break_after_an_end_and_a_space(text, sentences):
    """A sentence begins after an ending such as `.` and a space.

    In a script without spaces, a sentence begins at the letter after an ending.
    """
    assert broken(Characters(text), text) == sentences


def test_sentences_break_at_any_whole_word_of_wordpiece():
    """In WordPiece, a letter after an ending such as `.` begins a sentence.

    Digits, punctuation, `##` pieces and empty pieces do not.
    """
    vocabulary = [*SPECIAL, *"ab.2”之今。", "##b", "", "x", "a2"]
    tokenizer = WordPieceTokenizer("\n".join(vocabulary).encode(), TextConfig())
    assert broken(tokenizer, "a. ab. 2.2 b.b ? a") == [
        "a.",
        "a##b.2.2b.",
        "b[UNK]a",
    ]
    assert broken(tokenizer, "之。今。” 今") == ["之。", "今。”今"]
    assert broken(tokenizer, "b. a2 b") == ["b.", "a2b"]


def chinese(texts):
    """Return a WordPiece tokenizer of the characters in texts."""
    characters = sorted({c for text in texts for c in text if c.strip()})
    pieces = [*SPECIAL, *characters, *(f"##{c}" for c in characters)]
    return WordPieceTokenizer("\n".join(pieces).encode(), TextConfig())


def grouped(tokenizer, rule, texts):
    """Return the words of each text as strings of joined pieces."""
    ids, sizes, starts = boundaries.encode(tokenizer, rule, texts)
    assert len(ids) == len(starts) == sizes.sum()
    pieces = [p.removeprefix("##") for p in tokenizer.pieces(ids)]
    found, last = [], 0
    for size in sizes:
        words = []
        for i in range(last, last + size):
            if starts[i]:
                words.append("")
            words[-1] += pieces[i]
        found.append(words)
        last += size
    return found


ZH = ["我在北京大学学习。", "2010年 abc 很好", "\u3000他说：“好”！"]


def test_chinese_words_are_those_of_jieba():
    """Chinese words equal the words that jieba finds."""
    jieba = pytest.importorskip("jieba")
    expected = [[w for w in jieba.cut(t) if w.strip()] for t in ZH]
    assert grouped(chinese(ZH), "chinese", ZH) == expected
    assert "北京大学" in expected[0]


def test_segmented_words_are_parted_by_spaces():
    """Under the rule `segmented`, only spaces separate words."""
    texts = ["我 在 北京大学  学习 。", " abc,d 很好 ", ""]
    expected = [text.split() for text in texts]
    assert grouped(chinese(texts), "segmented", texts) == expected


def test_segmented_english_pieces():
    """SentencePiece's word-boundary marker belongs to the word that follows."""
    texts = ["the cat 1,000 sat. [x] naïve", "a"]
    assert grouped(vocabularies.english(), "segmented", texts) == [
        ["▁the", "▁cat", "▁1,000", "▁sat.", "▁[x]", "▁naive"],
        ["▁a"],
    ]


@pytest.mark.parametrize("make", [vocabularies.english, vocabularies.chinese])
def test_every_rule_gives_the_same_ids(make):
    """Word rules do not affect ids.

    Under a rule other than the tokenizer's own, every text begins with a new
    word.
    """
    tokenizer = make()
    texts = ["The cat's 1,000 unaffable cafés", "", "中文 un", "[ ] -", ""]
    expected = np.concatenate(tokenizer.encode_batch(texts))
    own = boundaries.RELEASED[tokenizer.kind]
    for rule in (None, own, "unicode", "segmented"):
        ids, sizes, starts = boundaries.encode(tokenizer, rule, texts)
        np.testing.assert_array_equal(ids, expected)
        assert ids.dtype == np.int32 and starts.dtype == bool
        if rule in (None, own):
            np.testing.assert_array_equal(starts, tokenizer.word_starts[ids])
        else:
            assert starts[(np.cumsum(sizes) - sizes)[sizes > 0]].all()


def test_rules_that_do_not_fit_are_refused(monkeypatch):
    """An error names an unsuitable rule, or the extra that a rule requires."""
    with pytest.raises(InputError, match="english with a wordpiece"):
        boundaries.check_word_rule("english", vocabularies.chinese())
    with pytest.raises(InputError, match="wordpiece with a sentencepiece"):
        boundaries.check_word_rule("wordpiece", vocabularies.english())
    monkeypatch.setitem(sys.modules, "jieba", None)
    boundaries.check_word_rule("segmented", vocabularies.chinese())
    with pytest.raises(InputError, match="albert-tf.zh"):
        boundaries.check_word_rule("chinese", vocabularies.chinese())


def test_records_keep_the_boundaries(corpus, tmp_path):
    """Records store the word boundaries of the rule `segmented`.

    Masks cover whole words as this rule defines them.
    """
    text = (corpus / "a.txt").read_text().replace(" .", ".")
    (tmp_path / "a.txt").write_text(text)
    changes = {
        "input_file": str(tmp_path / "a.txt"),
        "word_boundaries": "segmented",
    }
    metadata = make_records(corpus, tmp_path / "out", **changes)
    (stop,) = load_saved_tokenizer(str(tmp_path / "out")).encode(".")
    stops = 0
    for entry in metadata.splits["train"]:
        for arrays in unmasked_features(tmp_path / "out" / entry.file):
            ends = np.flatnonzero(arrays["input_ids"] == stop)
            stops += len(ends)
            assert not arrays["token_boundary"][ends].any()
            masked = np.isin([ends, ends - 1], arrays["masked"])
            assert (masked[0] == masked[1]).all()
    assert stops > 100
