"""Phoneme symbols, and the words that a phoneme model predicts.

A symbol is one character. The presets are the tables of PL-BERT and StyleTTS 2
(`text_utils.py`) and of Kokoro (`vocab` in its `config.json`).
"""

import dataclasses
import functools
import zlib
from collections.abc import Iterable, Iterator, Mapping

from albert_tf.base import files
from albert_tf.base.errors import near, require
from albert_tf.text.tokenizers import load_saved_tokenizer, tokenizer_in
from albert_tf.text.vocabulary import SYMBOLS_FILE, Vocabulary

WORDS_FILE = "words.json"  # next to the symbols

PAD, MASK, SEPARATOR = "$", "M", " "
GAP = "_"  # an id without a symbol
MOST_SYMBOLS = 1 << 16
# The symbol of each id. PL-BERT has two apostrophes, and uses the second.
PRESETS = {
    "plbert": '$;:,.!?¡¿—…"«»“” ABCDEFGHIJKLMNOPQRSTUVWXYZ'
    "abcdefghijklmnopqrstuvwxyzɑɐɒæɓʙβɔɕçɗɖðʤəɘɚɛɜɝɞɟʄɡɠɢʛɦɧħɥʜɨɪʝɭɬɫɮʟɱɯɰŋɳɲɴø"
    "ɵɸθœɶʘɹɺɾɻʀʁɽʂʃʈʧʉʊʋⱱʌɣɤʍχʎʏʑʐʒʔʡʕʢǀǁǂǃˈˌːˑʼʴʰʱʲʷˠˤ˞↓↑→↗↘'\u0329'ᵻ",
    "kokoro": '$;:,.!?__—…"()“” \u0303ʣʥʦʨᵝ\uab67AI___M_O_Q_ST__W_Yᵊ'
    "abcdef_hijklmnopqrstuvwxyzɑɐɒæ__βɔɕç_ɖðʤə_ɚɛɜ__ɟ_ɡ______ɥ_ɨɪʝ______ɯɰŋɳɲɴø"
    "_ɸθœ__ɹ_ɾɻ_ʁɽʂʃʈʧ_ʊʋ_ʌɣɤ_χʎ___ʒʔ_______ˈˌː___ʰ_ʲ____↓_→↗↘___ᵻ",
}
AUTO = "auto"
# The labels of separators and of words that are not in the table.
SEPARATOR_LABEL, OTHER_LABEL = 0, 1
FIRST_WORDS = (SEPARATOR, "<other>")


@dataclasses.dataclass(frozen=True)
class SymbolTable(Vocabulary):
    """Symbols with their ids, and the word for each label.

    Phoneme models have a symbol table instead of a tokenizer.

    Attributes:
      symbols: {symbol: id}.
      pad, mask, separator: the symbols for padding, for masked positions and
        for the space between words.
      words: the word for each label; empty if the words are unknown.
    """

    symbols: Mapping[str, int]
    pad: str = PAD
    mask: str = MASK
    separator: str = SEPARATOR
    words: tuple[str, ...] = ()

    @property
    def vocab_size(self) -> int:
        """The number of ids, including unused ids."""
        return max(self.symbols.values()) + 1

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """{symbol: id} for all symbols except padding and the mask."""
        reserved = self.pad, self.mask
        return {s: i for s, i in self.symbols.items() if s not in reserved}

    @functools.cached_property
    def labels(self) -> dict[str, int]:
        """{word: label} for all words except the two reserved words."""
        return {x: i for i, x in enumerate(self.words) if i > OTHER_LABEL}

    def with_words(self, words: Iterable[str]) -> "SymbolTable":
        """Return a copy that assigns the labels 2, 3, ... to `words`."""
        return dataclasses.replace(self, words=(*FIRST_WORDS, *words))

    def fingerprint(self) -> str:
        """Return a string that identifies the table, including its words."""
        values = sorted(self.symbols.items()), self.words
        values += self.pad, self.mask, self.separator
        return f"symbols {zlib.crc32(repr(values).encode()):08x}"

    @staticmethod
    def stored_in(folder: str) -> "SymbolTable | None":
        """Return the table in a folder, or None if there is none."""
        return table_in(folder)

    def save(self, folder: str) -> None:
        """Write `symbols.json` and `words.json` to a folder."""
        self.check_claim(folder)
        values = dataclasses.asdict(self)
        words = list(values.pop("words"))
        files.make_folder(folder)
        # `symbols.json` is last, so that an interrupted `save` can be repeated.
        files.write_json(files.join(folder, WORDS_FILE), words)
        files.write_json(files.join(folder, SYMBOLS_FILE), values)


def preset(name: str) -> SymbolTable:
    """Return the table with a given name in `PRESETS`."""
    listed = enumerate(PRESETS[name])
    return SymbolTable({s: i for i, s in listed if s != GAP})


def made_of(symbols: Iterable[str]) -> SymbolTable:
    """Return a table of padding, mask, separator and the given symbols."""
    used = set(symbols)
    private = map(chr, range(0xE000, 0xF900))  # without a meaning in Unicode
    reserved = [s for s in (PAD, MASK, *"_#@", *private) if s not in used]
    pad, mask = reserved[:2]
    all_symbols = dict.fromkeys((pad, mask, SEPARATOR, *sorted(used)))
    return SymbolTable({s: i for i, s in enumerate(all_symbols)}, pad, mask)


def origins(old: SymbolTable, new: SymbolTable) -> list[list[int]]:
    """Return a list for each new id, with the old id of the same symbol.

    The list is empty if the old table lacks the symbol. Padding, mask and
    separator correspond even if the tables use different symbols for them.
    """
    roles = "pad", "mask", "separator"
    special = {getattr(new, role): getattr(old, role) for role in roles}
    others = {s: s for s in old.symbols if s not in special.values()}
    sources = others | special
    result = [[] for _ in range(new.vocab_size)]
    for symbol, i in new.symbols.items():
        result[i] += [old.symbols[sources[symbol]]] if symbol in sources else []
    return result


def _wrong_symbols(symbols: dict) -> Iterator[str]:
    """Yield the entries that do not map a character to a unique legal id."""
    used = set()
    for symbol, i in symbols.items():
        legal = type(i) is int and 0 <= i < MOST_SYMBOLS and i not in used
        if not legal or len(symbol) != 1:
            yield f"{symbol!r:.60}: {i!r:.60}"
        used |= {i} if legal else set()


def _read_symbols(path: str) -> SymbolTable:
    """Return the symbol table in a file `symbols.json`, without words."""
    values = files.read_json_object(path, f"`{SYMBOLS_FILE}`")
    symbols, copy = values.get("symbols"), " Copy the file again."
    rule = f"`{SYMBOLS_FILE}` must contain `symbols`, an object that maps each "
    rule += f"character to a different id from 0 to {MOST_SYMBOLS - 1}."
    legal = isinstance(symbols, dict) and symbols
    require(legal, rule + copy, file=path, symbols=f"{symbols!r:.60}")
    wrong = next(_wrong_symbols(symbols), None)
    require(wrong is None, rule + copy, file=path, symbols=wrong)
    roles = {k: values.get(k) for k in ("pad", "mask", "separator")}
    named = {s for s in roles.values() if isinstance(s, str) and s in symbols}
    rule = f"`{SYMBOLS_FILE}` must name three of its symbols as `pad`, `mask` "
    rule += "and `separator`."
    shown = {role: f"{symbol!r:.60}" for role, symbol in roles.items()}
    require(len(named) == len(roles), rule + copy, file=path, **shown)
    return SymbolTable(symbols, **roles)


def _wrong_words(words: list) -> Iterator[str]:
    """Yield descriptions of the words that are illegal for their labels.

    The first two labels have reserved words; all other words must differ.
    """
    used = set()
    for label, word in enumerate(words):
        is_reserved = label <= OTHER_LABEL and word == FIRST_WORDS[label]
        is_new = label > OTHER_LABEL and type(word) is str and word not in used
        if not is_reserved and not is_new:
            yield f"{word!r:.60}, label {label}"
        used |= {word} if is_new else set()


def _read_words(path: str) -> tuple[str, ...]:
    """Return the words in a file `words.json`, one for each label.

    The result is empty if the file contains an empty list.
    """
    words = files.read_json(path, f"`{WORDS_FILE}`")
    first = " and ".join(map(repr, FIRST_WORDS))
    rule = f"`{WORDS_FILE}` must list {first}, followed by different words, or "
    rule += "be an empty list. Copy the file again."
    listed = isinstance(words, list) and len(words) not in (1, OTHER_LABEL + 1)
    require(listed, rule, file=path, words=f"{words!r:.60}")
    wrong = next(_wrong_words(words), None)
    require(wrong is None, rule, file=path, words=wrong)
    return tuple(words)


def read_table(folder: str) -> SymbolTable:
    """Return the symbol table in a folder; `words.json` may be missing."""
    table = _read_symbols(files.join(folder, SYMBOLS_FILE))
    path = files.join(folder, WORDS_FILE)
    words = _read_words(path) if files.exists(path) else ()
    return dataclasses.replace(table, words=words)


def table_in(folder: str) -> SymbolTable | None:
    """Return the table in a folder, or None if there is none."""
    exists = files.exists(files.join(folder, SYMBOLS_FILE))
    return read_table(folder) if exists else None


def named_table(name: str) -> SymbolTable:
    """Return the preset table with a given name, or the table in a folder."""
    legal = *PRESETS, AUTO
    rule = f"`symbols` must be {', '.join(legal)}, or a folder with "
    rule += SYMBOLS_FILE + near(name, legal)
    table = preset(name) if name in PRESETS else table_in(name)
    require(table is not None, rule, symbols=name)
    return table


def vocabulary_in(folder: str) -> Vocabulary | None:
    """Return the symbols or tokenizer in a folder, or None if it has none."""
    return table_in(folder) or tokenizer_in(folder)


def named(old: Vocabulary | None, new: Vocabulary | None) -> str:
    """Return ": " followed by the symbols that `new` adds, or "" if none.

    For a tokenizer, the result is "".
    """
    if not isinstance(new, SymbolTable):
        return ""
    names = sorted(new.symbols.keys() - old.symbols.keys())
    return f": {' '.join(names)}" if names else ""


def have_same_ids(old: Vocabulary, new: Vocabulary) -> bool:
    """Return whether two vocabularies are equal, apart from their `words`."""
    first, second = (
        dataclasses.replace(v, words=()) if isinstance(v, SymbolTable) else v
        for v in (old, new)
    )
    return first.fingerprint() == second.fingerprint()


def load_vocabulary(folder: str) -> Vocabulary:
    """Return the symbols or the tokenizer in a folder."""
    return table_in(folder) or load_saved_tokenizer(folder)
