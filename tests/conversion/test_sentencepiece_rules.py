"""A SentencePiece model follows the supported rules of a `tokenizer.json`."""

import json

import numpy as np
import pytest
import vocabularies
from hub_tokenizers import (
    METASPACE,
    of_transformers,
    replace,
    with_symbols,
    write,
)
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.base.errors import InputError
from albert_tf.conversion import hub_sentencepiece
from albert_tf.conversion.hub_sentencepiece import (
    SentencePieceReader,
    is_digit,
    keeps_spaces,
    plain_settings,
    splitter,
)
from albert_tf.conversion.hub_tokenizer import read_tokenizer
from albert_tf.conversion.text_rules import NotExpressible
from albert_tf.conversion.tokenizer_files import HubFiles
from albert_tf.conversion.tokenizer_json import (
    FINAL_SIGMA,
    tokenizer_json,
)
from albert_tf.conversion.tokenizer_json import (
    replace as regex,
)
from albert_tf.text.normalization import TextConfig
from albert_tf.text.sentencepiece_models import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
)
from albert_tf.text.tokenizers import SentencePieceTokenizer
from albert_tf.text.wordpiece import is_punctuation

OPEN, CLOSE = replace("``", '"'), replace("''", '"')
NFKD, STRIP, LOWER, SPACES, MAP = (
    {"type": name}
    for name in ("NFKD", "StripAccents", "Lowercase", "Strip", "Precompiled")
)
MARKS = r"[\x{300}-\x{36f}]"
PUNCTUATION, DIGITS = {"type": "Punctuation"}, {"type": "Digits"}


@pytest.mark.parametrize(
    ("rules", "settings"),
    [
        ([], (False, False, False)),
        ([OPEN, CLOSE, NFKD, STRIP, LOWER, MAP], (True, True, True)),
        ([regex("``|''", '"')], (True, False, False)),
        ([NFKD, NFKD, STRIP, STRIP], (False, True, False)),
        ([NFKD, regex(MARKS, "")], (False, True, False)),
        ([SPACES, regex(" {2,}", " "), LOWER], (False, False, True)),
        ([regex(FINAL_SIGMA, "ς"), LOWER], (False, False, True)),
        *(([OPEN], None), ([CLOSE, OPEN], None), ([STRIP], None)),
        *(([NFKD], None), ([LOWER, NFKD, STRIP], None), ([MAP, LOWER], None)),
        *(([replace("``", "x"), CLOSE], None), ([replace("x", '"')], None)),
        *(([NFKD, regex(MARKS, "x")], None), ([{"type": "NFC"}], None)),
    ],
)
def test_rules_that_settings_express(rules, settings):
    """Rules become settings only if they are in the order of our rules."""
    names = ("replace_quotes", "strip_accents", "do_lower_case")
    found = plain_settings(rules, "ab\u0301")
    assert found == (settings and dict(zip(names, settings, strict=True)))


def test_accents_must_be_those_of_the_library():
    """Rules set `strip_accents` only if they strip the marks that we strip.

    Only the `tokenizers` library strips U+0900, which has no combining class.
    """
    assert plain_settings([NFKD, STRIP], "a\u0301\u0903")["strip_accents"]
    assert plain_settings([NFKD, STRIP], "a\u0900") is None
    assert plain_settings([LOWER], "a\u0900")["do_lower_case"]


@pytest.mark.parametrize(
    ("rules", "keeps"),
    [
        ([], True),
        ([regex(" {2,}", " ")], True),
        ([SPACES], True),
        ([SPACES, regex(" {2,}", "▁")], False),
        ([regex(" {2,}", " "), regex(" +$", ""), regex(r"\p{L}", "")], False),
        ([SPACES | {"strip_right": False}, regex(" {2,}", " ")], True),
        ([SPACES | {"strip_right": True}, regex(" {2,}", " ")], False),
    ],
)
def test_spaces_that_rules_keep(rules, keeps):
    """Spaces are kept unless rules remove both repeated and final spaces.

    The pre-tokenizer `WhitespaceSplit` never keeps spaces.
    """
    assert keeps_spaces({"pre_tokenizer": METASPACE}, rules) is keeps
    assert keeps_spaces({}, rules) is keeps
    split = {"type": "WhitespaceSplit"}
    assert not keeps_spaces({"pre_tokenizer": split}, rules)


def test_characters_that_are_split_off():
    """A pre-tokenizer splits off single characters or runs of characters."""
    assert splitter({"type": "WhitespaceSplit"}) is None
    assert splitter(DIGITS) == (is_digit, False)
    assert splitter(DIGITS | {"individual_digits": True}) == (is_digit, True)
    assert splitter({"type": "BertPreTokenizer"}) == (is_punctuation, True)
    assert splitter(PUNCTUATION) == (is_punctuation, True)
    runs = PUNCTUATION | {"behavior": "Contiguous"}
    assert splitter(runs) == (is_punctuation, False)
    for rule in (PUNCTUATION | {"behavior": "Removed"}, {"type": "ByteLevel"}):
        with pytest.raises(NotExpressible, match=rule["type"]):
            splitter(rule)
    assert [*map(is_digit, "1½Ⅷ一a")] == [True, True, True, False, False]


def split_by(*rules) -> tuple[SentencePieceReader, list[dict]]:
    """Apply pre-tokenizers; return the reader and the rules for texts.

    `_split_pieces` returns these rules.
    """
    content = of_transformers(vocabularies.english())
    content["model"]["vocab"] += [[piece, -5.0] for piece in MORE]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*rules]}
    reader = SentencePieceReader(HubFiles("", content, {}), None)
    return reader, reader._split_pieces()


def unused(reader: SentencePieceReader, names) -> set[str]:
    """Return the names among `names` whose pieces are unused."""
    kinds = {piece.piece: piece.type for piece in reader.proto.pieces}
    assert {kinds[name] for name in names} <= {NORMAL, UNUSED}
    return {name for name in names if kinds[name] == UNUSED}


MORE = ("a▁b", "▁▁", "▁ab")


@pytest.mark.parametrize(
    ("settings", "prefix"),
    [
        *(({}, True), ({"add_prefix_space": False}, False)),
        *(({"prepend_scheme": "never"}, False),),
        *(({"prepend_scheme": "first"}, True),),
        ({"prepend_scheme": "always", "add_prefix_space": False}, True),
    ],
)
def test_the_prefix_of_texts(settings, prefix):
    """`Metaspace` decides whether texts begin with ▁; by default, they do."""
    reader, rules = split_by({"type": "Metaspace", **settings})
    assert reader.proto.normalizer_spec.add_dummy_prefix is prefix
    assert rules == reader.hub.differences == []


@pytest.mark.parametrize("split", [None, True, False])
def test_pieces_across_words_are_retired(split):
    """If `Metaspace` splits, as by default, pieces with ▁ inside are unused."""
    more = {} if split is None else {"split": split}
    gone = set() if split is False else {"a▁b", "▁▁"}
    reader, _ = split_by(METASPACE | more)
    assert unused(reader, MORE) == gone


@pytest.mark.parametrize(
    ("rules", "gone", "where"),
    [
        ([{"type": "WhitespaceSplit"}, METASPACE], "", []),
        ([PUNCTUATION, METASPACE], "", [is_punctuation]),
        ([METASPACE, DIGITS], "▁1 ▁2010, 12, 7,", []),
        (
            [METASPACE, DIGITS | {"individual_digits": True}],
            "▁1 ▁2010, 12, 7, 000 10",
            [],
        ),
        ([METASPACE, PUNCTUATION], "▁2010, 12, 7, ▁[ [cls] e's", []),
    ],
)
def test_splits_before_and_after_spaces(rules, gone, where):
    """Splits before `Metaspace` become rules; later splits disable pieces."""
    reader, found = split_by(*rules)
    names = "▁the ▁1 ▁2010, 12, 7, 000 10 1 , ▁[ [cls] e's".split()
    assert unused(reader, names) == {*gone.split()}
    assert [rule["where"] for rule in found] == where
    texts = [f"{rules[-1]['type']}, which also splits text"] * bool(gone)
    assert len(texts) == len(reader.hub.differences)
    assert all(map(str.__contains__, reader.hub.differences, texts))


@pytest.mark.parametrize(
    ("rules", "named", "number"),
    [
        ([DIGITS, METASPACE], "the pre-tokenizer Digits", 0),
        (
            [PUNCTUATION, METASPACE | {"prepend_scheme": "first"}],
            "the pre-tokenizer Punctuation",
            0,
        ),
        (
            [{"type": "ByteLevel"}, PUNCTUATION, METASPACE],
            "the pre-tokenizer ByteLevel",
            1,
        ),
        ([], "a pre-tokenizer without Metaspace (none)", 0),
        (
            [DIGITS, PUNCTUATION],
            "a pre-tokenizer without Metaspace (Digits, Punctuation)",
            0,
        ),
        ([METASPACE | {"replacement": "_"}], "Metaspace by '_'", 0),
    ],
)
def test_splits_without_an_equivalent(rules, named, number):
    """A reported difference names the unsupported part of a pre-tokenizer."""
    reader, found = split_by(*rules)
    assert reader.hub.differences == [
        f"ids may differ: this package has no equivalent for {named} in "
        "tokenizer.json"
    ]
    assert len(found) == number


def test_compiled_rules_replace_the_settings(monkeypatch, tmp_path):
    """If a split is compiled, so are all other rules, and no setting is on.

    The model then removes extra spaces, and its symbols compete with pieces.
    """
    compiled = []

    def table_of(rules):
        compiled.append(rules)
        return {}, []

    monkeypatch.setattr(hub_sentencepiece, "table_of", table_of)
    monkeypatch.setattr(hub_sentencepiece, "charsmap_of", lambda table: b"map")
    tokenizer = with_symbols()
    proto = ModelProto.FromString(tokenizer.content)
    proto.normalizer_spec.remove_extra_whitespaces = False
    path = tmp_path / "spiece.model"
    path.write_bytes(proto.SerializeToString())
    content = of_transformers(tokenizer)
    content["normalizer"] = LOWER
    splits = [PUNCTUATION, METASPACE]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splits}
    content["added_tokens"].pop()  # "caf"
    reader = SentencePieceReader(HubFiles("", content, {}), str(path))
    config = reader.text_config()
    assert not any((config.do_lower_case, config.strip_accents))
    ((lower, split),) = compiled
    assert (lower, split["where"]) == (LOWER, is_punctuation)
    spec = reader.proto.normalizer_spec
    assert spec.remove_extra_whitespaces
    assert spec.precompiled_charsmap == b"map"
    assert reader.proto.pieces[-1].type == NORMAL
    stored = json.loads(spec.normalization_rule_tsv)
    assert stored["normalizer"] == LOWER and stored["decoder"] is None


def test_a_character_map_that_the_json_lacks_is_dropped(tmp_path):
    """Without `Precompiled`, the character map of `spiece.model` is unused."""
    tokenizer = vocabularies.english()
    content = of_transformers(tokenizer)
    proto = ModelProto.FromString(tokenizer.content)
    assert proto.normalizer_spec.precompiled_charsmap
    (tmp_path / "spiece.model").write_bytes(tokenizer.content)
    found, _ = read_tokenizer(write(tmp_path, content | {"normalizer": None}))
    proto = ModelProto.FromString(found.content)
    assert not proto.normalizer_spec.precompiled_charsmap
    assert found.encode("ＡＢ") != tokenizer.encode("ＡＢ")


def test_names_of_bytes_are_pieces_without_byte_fallback():
    """Without byte fallback, a piece such as <0x41> is an ordinary piece."""
    content = of_transformers(vocabularies.english())
    content["model"]["vocab"].append(["<0x41>", -5.0])
    for fallback, kind in ((True, BYTE), (False, NORMAL)):
        content["model"]["byte_fallback"] = fallback
        reader = SentencePieceReader(HubFiles("", content, {}), None)
        assert reader.proto.pieces[-1].type == kind


@pytest.mark.slow
def test_normalizers_without_an_equivalent_are_named(tmp_path):
    """A reported difference names an unsupported normalizer."""
    rule = {"type": "Reversed"}
    folder = write(tmp_path, of_transformers(vocabularies.english(), rule))
    named = "no equivalent for Reversed in tokenizer.json"
    assert any(named in difference for difference in read_tokenizer(folder)[1])


def test_spaces_as_pieces_are_named(tmp_path):
    """A source that encodes trailing and repeated spaces causes a warning."""
    content = of_transformers(vocabularies.english())
    folder = write(tmp_path, content | {"pre_tokenizer": METASPACE})
    assert read_tokenizer(folder)[1] == [
        "only the source encodes trailing and repeated spaces"
    ]


def test_pieces_of_bytes(tmp_path):
    """A round trip through `tokenizer.json` preserves byte fallback.

    The ids and the types of all pieces stay the same.
    """
    content = vocabularies.trained(
        sentence_iterator=iter(["the cat sat, on 1, 2, mats"] * 20),
        byte_fallback=True,
        vocab_size=290,
    )
    tokenizer = SentencePieceTokenizer(content, TextConfig())
    again, _ = read_tokenizer(write(tmp_path, tokenizer_json(tokenizer)))
    before, after = (
        ModelProto.FromString(t.content) for t in (tokenizer, again)
    )
    assert after.trainer_spec.byte_fallback
    kinds = [piece.type for piece in after.pieces]
    assert kinds == [piece.type for piece in before.pieces]
    assert kinds.count(BYTE) == 256
    assert again.encode("the ☃") == tokenizer.encode("the ☃")


def test_special_pieces_may_have_any_id(tmp_path):
    """A round trip through `tokenizer.json` keeps the ids of special pieces."""
    special = "<unk>", "[CLS]", "[MASK]", "<pad>", "[SEP]"
    content = vocabularies.sentencepiece_model(special)
    tokenizer = SentencePieceTokenizer(content, TextConfig())
    written = tokenizer_json(tokenizer)
    assert written["model"]["unk_id"] == 0
    packed = written["post_processor"]["special_tokens"]
    assert {x: packed[x]["ids"] for x in packed} == {"[CLS]": [1], "[SEP]": [4]}
    added = {x["id"]: x["content"] for x in written["added_tokens"]}
    assert added == dict(enumerate(special))
    again, _ = read_tokenizer(write(tmp_path, written))
    before, after = (
        ModelProto.FromString(t.content) for t in (tokenizer, again)
    )
    kinds = [[piece.type for piece in p.pieces] for p in (before, after)]
    assert kinds[0] == kinds[1]
    for text in vocabularies.TEXTS:
        assert again.encode(text) == tokenizer.encode(text), text


def test_scores_go_there_and_back(tmp_path):
    """In `tokenizer.json`, pieces that are never chosen have lower scores.

    Reading the file restores the scores.
    """
    tokenizer = vocabularies.english()
    content = tokenizer_json(tokenizer)
    again, _ = read_tokenizer(write(tmp_path, content))
    before, after = (
        ModelProto.FromString(t.content) for t in (tokenizer, again)
    )
    scores = [[piece.score for piece in p.pieces] for p in (before, after)]
    np.testing.assert_allclose(*scores, rtol=1e-5)
    stored = dict(content["model"]["vocab"])
    for piece in before.pieces:
        never = piece.piece.endswith(("0,", "1,", "2,", "7,", "9,"))
        assert stored[piece.piece] == piece.score - 100.0 * never
    assert not after.trainer_spec.byte_fallback


@pytest.mark.parametrize(
    ("settings", "form", "wanted"),
    [
        ({}, tokenizer_json, "released"),
        ({}, of_transformers, "none"),
        ({"digit_comma": "strip"}, of_transformers, "strip"),
        ({"digit_comma": "odd"}, of_transformers, "none"),
    ],
)
def test_the_rule_of_numbers_follows_from_scores(
    settings, form, wanted, tmp_path
):
    """Without a valid setting, scores determine whether `1,` can be a piece."""
    folder = write(tmp_path, form(vocabularies.english()), **settings)
    assert read_tokenizer(folder)[0].config.digit_comma == wanted


def test_models_without_numbers_follow_the_release(tmp_path):
    """Without a piece such as `1,`, the released rule for numbers applies.

    It also applies if only some of these pieces can be chosen.
    """
    content = tokenizer_json(vocabularies.english())
    content["model"]["vocab"].append(["33,", -0.1])  # user-defined
    folder = write(tmp_path, content)
    assert read_tokenizer(folder)[0].config.digit_comma == "released"
    content = of_transformers(vocabularies.english())
    content["model"]["vocab"] = [
        row
        for row in content["model"]["vocab"]
        if len(row[0]) == 1 or row[0][-1] != ","
    ]
    folder = write(tmp_path, content)
    assert read_tokenizer(folder)[0].config.digit_comma == "released"


def test_symbols_compete_unless_they_are_added(tmp_path):
    """User-defined symbols outside `added_tokens` become ordinary pieces."""
    path = tmp_path / "spiece.model"
    tokenizer = with_symbols()
    path.write_bytes(tokenizer.content)
    content = of_transformers(tokenizer)
    content["added_tokens"].pop()  # "caf"
    content["model"]["vocab"][-1][1] = -3.0
    reader = SentencePieceReader(HubFiles("", content, {}), str(path))
    before = [(p.piece, p.type, p.score) for p in reader.proto.pieces]
    assert before[-1] == ("caf", USER_DEFINED, 0.0)
    assert before[-2] == ("''", USER_DEFINED, 0.0)
    reader._score_symbols()
    after = [(p.piece, p.type, p.score) for p in reader.proto.pieces]
    assert after == [*before[:-1], ("caf", NORMAL, -3.0)]


def test_kinds_of_added_pieces(tmp_path):
    """Added pieces are recognized in texts unless they have a role.

    Gaps in the ids are filled with unused pieces.
    """
    tokenizer = vocabularies.english()
    content, size = tokenizer_json(tokenizer), tokenizer.vocab_size
    rows = {size + 1: "New  York", size + 2: "The"}
    content["added_tokens"] += [
        *({"id": id, "content": name} for id, name in rows.items()),
        {"id": size + 3, "content": "Zed", "special": True},
        {"id": size + 4, "content": "<mask>", "special": True},
    ]
    settings = {"mask_token": "<mask>"}
    found, _ = read_tokenizer(write(tmp_path, content, **settings))
    proto = ModelProto.FromString(found.content)
    assert [(p.piece, p.type) for p in proto.pieces[size:]] == [
        (f"[unused{size}]", UNUSED),
        ("new▁york", USER_DEFINED),
        ("the", USER_DEFINED),
        ("zed", USER_DEFINED),
        ("[MASK]", CONTROL),
    ]
    (index,) = (i for i, p in enumerate(tokenizer._pieces) if p == "the")
    old = proto.pieces[index]
    assert (old.piece, old.type) == (f"[unused{index}]", UNUSED)


def test_a_damaged_model_is_named(tmp_path):
    """The error for a damaged `spiece.model` contains the file's path."""
    path = tmp_path / "spiece.model"
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match=f"SentencePiece model.*={path}"):
        read_tokenizer(str(tmp_path))
