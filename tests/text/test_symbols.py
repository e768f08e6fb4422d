"""Tables of symbols are presets, made from data, or read from files."""

import dataclasses
import json

import pytest

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.text import symbols
from albert_tf.text.tokenizers import load_saved_tokenizer


def test_the_presets_are_those_of_the_projects():
    """Both presets have 178 ids; PL-BERT has 177 symbols, and Kokoro has 116.

    Symbols have the same ids as in these projects.
    """
    plbert, kokoro = map(symbols.preset, ("plbert", "kokoro"))
    assert plbert.vocab_size == kokoro.vocab_size == 178
    assert len(plbert.symbols) == 177 and len(kokoro.symbols) == 116
    assert plbert.symbols["'"] == 176 and 174 not in plbert.symbols.values()
    shared = {"$": 0, ";": 1, " ": 16, "M": 29, "a": 43, "ɑ": 69, "ˈ": 156}
    shared |= {"ː": 158, "ᵻ": 177}
    for symbol, i in shared.items():
        assert plbert.symbols[symbol] == kokoro.symbols[symbol] == i
    assert (plbert.symbols["A"], plbert.symbols["Z"]) == (17, 42)
    others = {"A": 24, "(": 12, ")": 13, "\u0303": 17, "ꭧ": 23, "ᵊ": 42}
    assert {s: kokoro.symbols[s] for s in others} == others
    assert "g" not in kokoro.symbols


def test_a_table_made_from_data_has_every_symbol():
    """A table made from data has all symbols that occur in the data.

    The order of the symbols has no effect. Padding and masks get symbols that
    the data lack.
    """
    table = symbols.made_of("bM$a ")
    assert table == symbols.made_of("a $Mb")
    assert {*"bM$a"} <= table.ids.keys()
    assert not {table.pad, table.mask} & {*"bM$a "}
    assert len({*table.symbols.values()}) == table.vocab_size == 7


@pytest.mark.parametrize("data", ["", "$M_#", "$M_#@", "$M_#@\ue000"])
def test_padding_and_masks_always_have_symbols(data):
    """A table for any data has padding and masks that the data do not use."""
    table = symbols.made_of(iter(data))
    assert table.pad != table.mask and not {table.pad, table.mask} & {*data}
    assert table.ids.keys() == {*data, " "}


def test_a_table_survives_its_files(tmp_path):
    """A saved table is read back unchanged; its file of words is optional.

    Padding and masks may have any symbols.
    """
    table = symbols.made_of("a$Mb").with_words(["x", "y"])
    assert not {table.pad, table.mask} & {"$", "M"}
    table.save(str(tmp_path))
    assert symbols.read_table(str(tmp_path)) == table
    assert table.labels == {"x": 2, "y": 3}
    (tmp_path / "words.json").unlink()
    found = symbols.vocabulary_in(str(tmp_path))
    assert found.words == () and found.fingerprint() != table.fingerprint()
    assert symbols.have_same_ids(found, table)
    assert not symbols.have_same_ids(found, symbols.made_of("ac"))


@pytest.mark.parametrize(
    "change",
    [
        {"symbols": {"$": 0, "M": 1, " ": 2, "a": 4, "b": 3}},
        {"symbols": {"$": 0, "M": 1, " ": 2, "a": 3, "c": 4}},
        {"pad": "a"},
        {"mask": "a"},
        {"separator": "a"},
        {"words": (" ", "<other>", "y", "x")},
    ],
)
def test_fingerprints_tell_tables_from_others(change):
    """The fingerprint depends on ids, roles and words, but not on the order."""
    listed = {"$": 0, "M": 1, " ": 2, "a": 3, "b": 4}
    table = symbols.SymbolTable(listed).with_words(["x", "y"])
    reverse = dict(reversed(listed.items()))
    again = symbols.SymbolTable(reverse).with_words(["x", "y"])
    assert again.fingerprint() == table.fingerprint()
    other = dataclasses.replace(table, **change)
    assert other.fingerprint() != table.fingerprint()
    assert symbols.have_same_ids(other, table) == ("words" in change)


SYMBOLS = {"$": 0, "M": 1, " ": 2, "a": 3}
ROLES = {"pad": "$", "mask": "M", "separator": " "}
WORDS = [" ", "<other>", "x", "y"]
NESTED = "[" * 10**5


DAMAGED_SYMBOLS = [
    ("[", "line 1"),
    (NESTED, "symbols.json"),
    ([SYMBOLS], "path="),
    (ROLES, "symbols=None"),
    (ROLES | {"symbols": {}}, "symbols={}"),
    (ROLES | {"symbols": [*SYMBOLS]}, r"symbols=\['\$', "),
    *(
        (ROLES | {"symbols": SYMBOLS | {symbol: i}}, f"'{symbol}': {i!r}")
        for symbol, i in {
            **{"ab": 4, "": 4, "b": 3, "c": -1, "d": 1 << 16, "e": 10**30},
            **{"f": 1.0, "g": "4", "h": None, "i": True},
        }.items()
    ),
    (ROLES | {"symbols": {"$": 0, "M": 2, " ": 3, "a": True}}, "'a': True"),
    ({"symbols": SYMBOLS}, "pad=None, mask=None, separator=None"),
    (ROLES | {"symbols": SYMBOLS, "pad": "M"}, "pad='M', mask='M'"),
    (ROLES | {"symbols": SYMBOLS, "mask": "b"}, "mask='b'"),
    (ROLES | {"symbols": SYMBOLS, "pad": [1]}, r"pad=\[1\]"),
]
DAMAGED_WORDS = [
    ("[", "line 1"),
    (NESTED, "words.json"),
    (None, "words=None"),
    ({"x": 2}, "words={'x': 2}"),
    ("7", "words=7"),
    (WORDS[:1], r"words=\[' '\]"),
    (WORDS[:2], r"words=\[' ', '<other>'\]"),
    (WORDS[1:], "words='<other>', label 0"),
    (WORDS[:1] + WORDS[2:], "words='x', label 1"),
    ([*WORDS, "x"], "words='x', label 4"),
    ([*WORDS, 3], "words=3, label 4"),
    ([*WORDS, ["z"]], r"words=\['z'\], label 4"),
]


@pytest.mark.parametrize(
    ("name", "content", "received"),
    [
        *(("symbols.json", *row) for row in DAMAGED_SYMBOLS),
        *(("words.json", *row) for row in DAMAGED_WORDS),
    ],
)
def test_damaged_files_are_an_error(tmp_path, name, content, received):
    """The error for a damaged file quotes the first invalid symbol or word.

    For a word, the error also states the label.
    """
    symbols.made_of("ab").save(str(tmp_path))
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / name).write_text(text)
    message = rf"`{name}` must .* Received: .*{received}"
    with pytest.raises(InputError, match=message):
        symbols.read_table(str(tmp_path))


def test_an_unknown_table_is_an_error():
    """The error for an unknown table lists the presets and suggests one.

    The suggestion is the preset with the most similar name.
    """
    message = "plbert, kokoro, auto, or a folder with symbols.json; did you "
    message += "mean `kokoro`. Received: symbols=kokro"
    with pytest.raises(InputError, match=message):
        symbols.named_table("kokro")


def test_folders_with_familiar_names(tmp_path, monkeypatch):
    """The name of a preset never means a folder.

    A folder with symbols has no tokenizer, but may contain another library's
    `tokenizer.json`.
    """
    table, folder = symbols.made_of("ab"), tmp_path / "kokoro"
    table.save(str(folder))
    with pytest.raises(InputError, match="is a phoneme model.*kokoro$"):
        load_saved_tokenizer(str(folder))
    monkeypatch.chdir(tmp_path)
    assert symbols.named_table("kokoro") == symbols.preset("kokoro")
    (folder / "tokenizer.json").write_text("{}")
    for read in (symbols.vocabulary_in, symbols.load_vocabulary):
        assert read(str(folder)) == table
    assert symbols.named_table("./kokoro") == table


def test_a_table_is_not_replaced(tmp_path, monkeypatch):
    """A table is saved only over an equal table or an interrupted `save`."""
    write, first = files.write_json, []

    def fail_second(path, value):
        if first:
            raise OSError
        first.append(write(path, value))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_json", fail_second)
        with pytest.raises(OSError):
            symbols.made_of("ab").save(str(tmp_path))
    table = symbols.made_of("abc").with_words(["w"])
    for _ in range(2):
        table.save(str(tmp_path))
    with pytest.raises(InputError, match="other symbols.*with symbols.json"):
        symbols.made_of("ab").save(str(tmp_path))
    assert symbols.read_table(str(tmp_path)) == table


def test_ids_may_be_large(tmp_path):
    """The largest legal id is 65,535."""
    symbols.made_of("a").save(str(tmp_path))
    path, largest = tmp_path / "symbols.json", {"b": (1 << 16) - 1}
    path.write_text(json.dumps(ROLES | {"symbols": SYMBOLS | largest}))
    assert symbols.read_table(str(tmp_path)).vocab_size == 1 << 16
    path.write_text(json.dumps(ROLES | {"symbols": {}}))
    with pytest.raises(
        InputError, match="each character to a different id from 0 to 65535"
    ):
        symbols.read_table(str(tmp_path))


def test_new_symbols_are_listed():
    """`named` lists the symbols that only the new table has, in order."""
    old, new = symbols.made_of("ab"), symbols.made_of("cxab")
    assert symbols.named(old, new) == ": c x"
    assert symbols.named(new, old) == symbols.named(old, None) == ""


def test_symbols_are_matched_by_name():
    """Each new id is matched with the old id of the same symbol, if any."""
    old, new = symbols.preset("plbert"), symbols.made_of("ɑᵊa")
    found = symbols.origins(old, new)
    expected = {"$": [0], "M": [29], " ": [16], "ɑ": [69], "ᵊ": [], "a": [43]}
    assert {s: found[i] for s, i in new.symbols.items()} == expected


def test_roles_are_matched_whatever_their_symbols():
    """Padding, mask and separator are matched by role, not by symbol.

    In X-SAMPA, `M` is a vowel, which must not start as the mask.
    """
    old, new = symbols.preset("plbert"), symbols.made_of("a$MZ")
    found = symbols.origins(old, new)
    expected = {new.pad: [0], new.mask: [29], " ": [16], "a": [43]}
    expected |= {"$": [], "M": [], "Z": [old.symbols["Z"]]}
    assert {s: found[i] for s, i in new.symbols.items()} == expected
    back = symbols.origins(new, old)
    expected = {s: [i] for s, i in new.symbols.items() if s in "aZ "}
    expected |= {"$": [new.symbols[new.pad]], "M": [new.symbols[new.mask]]}
    others = {s: [] for s in old.symbols if s not in expected}
    found = {s: back[i] for s, i in old.symbols.items()}
    assert found == expected | others
