"""Tables of symbols: presets, tables made from data, and files."""

import pytest

from albert_tf.base.errors import InputError
from albert_tf.text import symbols


def test_the_presets_are_those_of_the_projects():
    """PL-BERT has 178 ids and uses 177; Kokoro has 114 symbols and roles."""
    plbert, kokoro = map(symbols.preset, ("plbert", "kokoro"))
    assert plbert.vocab_size == kokoro.vocab_size == 178
    assert len(plbert.symbols) == 177 and len(kokoro.symbols) == 116
    assert plbert.symbols["'"] == 176 and 174 not in plbert.symbols.values()
    known = {"$": 0, ";": 1, " ": 16, "M": 29, "a": 43, "ɑ": 69, "ˈ": 156}
    known |= {"ː": 158, "ᵻ": 177}
    for symbol, i in known.items():
        assert plbert.symbols[symbol] == kokoro.symbols[symbol] == i
    assert (plbert.symbols["A"], plbert.symbols["Z"]) == (17, 42)
    others = {"A": 24, "(": 12, ")": 13, "\u0303": 17, "ꭧ": 23, "ᵊ": 42}
    assert {s: kokoro.symbols[s] for s in others} == others
    assert "g" not in kokoro.symbols


def test_a_table_made_from_data_has_every_symbol():
    """Roles get symbols that the data lack, whatever the data's order."""
    table = symbols.made_of("bM$a ")
    assert table == symbols.made_of("a $Mb")
    assert {*"bM$a"} <= table.ids.keys()
    assert not {table.pad, table.mask} & {*"bM$a "}
    assert len({*table.symbols.values()}) == table.vocab_size == 7


def test_a_table_survives_its_files(tmp_path):
    """Symbols, roles and words are read back; words may be missing."""
    table = symbols.made_of("ab").with_words(["x", "y"])
    table.save(str(tmp_path))
    assert symbols.read_table(str(tmp_path)) == table
    assert table.labels == {"x": 2, "y": 3}
    (tmp_path / "words.json").unlink()
    found = symbols.vocabulary_in(str(tmp_path))
    assert found.words == () and found.fingerprint() != table.fingerprint()
    assert symbols.have_same_ids(found, table)
    assert not symbols.have_same_ids(found, symbols.made_of("ac"))


@pytest.mark.parametrize(
    "content",
    [
        '{"symbols": {"ab": 0, "$": 1}, "pad": "$"}',
        '{"symbols": {"$": 0, "M": "1"}}',
        '{"symbols": {"$": 0, "M": 1}, "pad": "$", "mask": "M"}',
    ],
)
def test_a_damaged_table_is_an_error(tmp_path, content):
    """Symbols of two characters, other ids and missing roles are named."""
    (tmp_path / "symbols.json").write_text(content)
    with pytest.raises(InputError, match=r"`symbols.json` must .* Received: "):
        symbols.read_table(str(tmp_path))


def test_symbols_are_matched_by_name():
    """Each new id is matched with the old id of its symbol, if any."""
    old, new = symbols.preset("plbert"), symbols.made_of("ɑᵊa")
    found = symbols.origins(old, new)
    expected = {"$": [0], "M": [29], " ": [16], "ɑ": [69], "ᵊ": [], "a": [43]}
    assert {s: found[i] for s, i in new.symbols.items()} == expected
