"""The tokenizer files of a Hugging Face folder, and their special pieces."""

import dataclasses
import itertools
import sys
from collections.abc import Collection

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.json_values import flag_in
from albert_tf.conversion.tokenizer_json import (
    ADDED_TOKENS,
    ROLES,
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
)
from albert_tf.text.tokenizers import TOKENIZERS

SPECIAL_TOKENS = "special_tokens_map.json"

# {kind of tokenizer: file names, the most reliable first}
VOCABULARIES = {
    "sentencepiece": ("spiece.model", "*.model"),
    "wordpiece": ("vocab.txt", "vocab*.txt"),
}

# The two names of one class, before and since version 5 of transformers.
PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")

# Common names of the pieces in `ROLES`, for folders whose settings lack them.
OTHER_NAMES = (
    *(("<pad>", "[PAD]"), ("<unk>", "[UNK]"), ("[CLS]", "<s>")),
    *(("[SEP]", "</s>"), ("[MASK]", "<mask>")),
)
COMMON_NAMES = {name for names in OTHER_NAMES for name in names}


# Errors raised by files with an unexpected structure.
MALFORMED = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError),
    *(StopIteration, TypeError, ValueError),
)


def flag_of(part: dict, name: str, default: bool) -> bool:
    """Return a boolean field of an object in `tokenizer.json`, or a default."""
    flag = flag_in(part, name, TOKENIZER_JSON)
    return default if flag is None else flag


def length_of(values: dict, name: str, source: str) -> int | None:
    """Return a maximum number of tokens from `values`, or None if missing."""
    limit = values.get(name)
    is_valid = isinstance(limit, int | float) and limit >= 1
    rule = f"{source}: `{name}` must be a number of at least 1."
    require(is_valid or limit is None, rule, **{name: repr(limit)})
    return limit and int(min(limit, sys.maxsize))  # 1e30 means no limit


def token_limit(folder: str) -> int | None:
    """Return a tokenizer's maximum number of tokens, or None if missing."""
    values = files.read_optional_json(folder, TOKENIZER_CONFIG)
    return length_of(values, "model_max_length", TOKENIZER_CONFIG)


def find_vocabulary(folders: list[str]) -> tuple[str, str] | None:
    """Return the first vocabulary's kind and path, or None if there is none."""
    for kind, patterns in VOCABULARIES.items():
        for pattern, folder in itertools.product(patterns, folders):
            paths = files.matches(pattern, folder)
            rule = "There must be only one vocabulary next to the weights."
            require(len(paths) < 2, rule, vocabularies=", ".join(paths))
            if paths:
                return kind, paths[0]
    return None


MOST_GAPS = 1 << 16  # maximum number of unused ids


def check_ids(ids: Collection[int], size: int) -> None:
    """Raise `InputError` unless ids are numbers without large gaps.

    Args:
      ids: the ids of pieces.
      size: the number of pieces that precede these pieces.
    """
    legal = all(type(id) is int and id >= 0 for id in ids)
    largest = max(ids, default=0) if legal else None
    legal = legal and largest <= size + len(ids) + MOST_GAPS
    rule = "The ids of pieces must be numbers without large gaps."
    require(legal, rule, largest=largest, pieces=size + len(ids))


@dataclasses.dataclass(frozen=True)
class Added:
    """A piece that is added to the vocabulary."""

    id: int
    piece: str
    special: bool


@dataclasses.dataclass(frozen=True)
class HubFiles:
    """The files of a tokenizer.

    Attributes:
      folder: the folder that contains the files.
      content: content of `tokenizer.json`, or {} if the file is missing.
      settings: content of `tokenizer_config.json` and
        `special_tokens_map.json`.
      differences: warnings about behavior that our tokenizer does not
        reproduce.
      notes: changes that were needed to produce the same ids.
    """

    folder: str
    content: dict
    settings: dict
    differences: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, folder: str) -> "HubFiles":
        """Return the tokenizer files of a folder."""
        settings = files.read_optional_json(folder, SPECIAL_TOKENS)
        settings |= files.read_optional_json(folder, TOKENIZER_CONFIG)
        content = files.read_optional_json(folder, TOKENIZER_JSON)
        if "model" not in content and "type" in content:
            content = {}  # this package's own file in a model directory
        return cls(folder, content, settings)

    @property
    def model(self) -> dict:
        return self.content.get("model", {})

    @property
    def type(self) -> str:
        """The model's type, inferred if an older file omits it."""
        is_list = isinstance(self.model.get("vocab"), list)
        kind = "BPE" if "merges" in self.model else "WordPiece"
        return self.model.get("type", "Unigram" if is_list else kind)

    @property
    def uses_only_json(self) -> bool:
        """Whether the tokenizer class follows only `tokenizer.json`."""
        name = self.settings.get("tokenizer_class")
        return bool(self.content) and name in PLAIN_CLASSES

    def flags(self, *names: str) -> dict[str, bool]:
        """Return {name: value} for the boolean settings in the files."""
        path = files.join(self.folder, TOKENIZER_CONFIG)
        flags = {n: flag_in(self.settings, n, path) for n in names}
        return {name: x for name, x in flags.items() if x is not None}

    def accents(self) -> dict[str, bool]:
        """Return {"strip_accents": ...} if `keep_accents` is set, or {}."""
        keep = self.flags("keep_accents")
        return {"strip_accents": not keep["keep_accents"]} if keep else {}

    def added(self, size: int) -> list[Added]:
        """Return the pieces added to a vocabulary, in the order of their ids.

        Args:
          size: the number of pieces in the vocabulary.
        """
        pieces: dict[int, Added] = {}
        listed = files.read_optional_json(self.folder, ADDED_TOKENS)
        special_names = {self.name(role) for role in ROLES}
        markers = self.markers()
        for piece, id in listed.items():
            pieces[id] = Added(id, piece, piece in special_names)
        for token in self._tokens():
            id, piece = token["id"], token["content"]
            special = flag_of(token, "special", False) and piece not in markers
            pieces[id] = Added(id, piece, special)
        check_ids(pieces, size)
        return [pieces[id] for id in sorted(pieces) if id >= size]

    def _tokens(self) -> list[dict]:
        """Return the pieces that `tokenizers` matches in texts."""
        decoder = self.settings.get("added_tokens_decoder") or {}
        tokens = [{**token, "id": int(id)} for id, token in decoder.items()]
        return [*tokens, *self.content.get("added_tokens", ())]

    def markers(self) -> set[str]:
        """Return the special pieces that mark parts of a text, like `[E1]`.

        These are the special pieces that the settings list as additional, and
        those that no setting lists. Unlike the pieces in `ROLES`, they occur in
        texts.
        """
        listed: list = []
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = self.settings.get(key) or []
            listed += tokens.values() if isinstance(tokens, dict) else tokens
        names = {x["content"] if isinstance(x, dict) else x for x in listed}
        names |= {
            token["content"]
            for token in self._tokens()
            if flag_of(token, "special", False)
            and token["content"] not in COMMON_NAMES
        }
        return names - {self.name(role) for role in ROLES}

    def name(self, role: str) -> str | None:
        """Return a special piece's name in the settings, or None if missing."""
        value = self.settings.get(f"{role}_token")
        return value.get("content") if isinstance(value, dict) else value


def rename_special(hub: HubFiles, pieces: list[str], kind: str) -> list[str]:
    """Give special pieces their released names; return the new names.

    If another piece has the new name, the two pieces swap names. The renaming
    is recorded in `hub.notes`.

    Args:
      hub: the files, which may name the special pieces.
      pieces: the vocabulary, which is changed.
      kind: a key of `TOKENIZERS`.
    """
    special, vocabulary, renames = TOKENIZERS[kind].special, set(pieces), {}
    for role, name, alternatives in zip(
        ROLES, special, OTHER_NAMES, strict=True
    ):
        source_name = hub.name(role)
        if source_name not in vocabulary:
            candidates = (name, *alternatives)
            source_name = next((x for x in candidates if x in vocabulary), name)
        if source_name != name:
            renames[source_name] = name
    if renames:
        shown = ", ".join(f"{old} to {new}" for old, new in renames.items())
        hub.notes.append(
            f"special pieces are renamed as in the release: {shown}"
        )
    # The new name of one piece may be the old name of another.
    new_names = [(pieces.index(old), new) for old, new in renames.items()]
    for index, new in new_names:
        if new in pieces:
            pieces[pieces.index(new)] = pieces[index]
        pieces[index] = new
    return list(renames.values())


def fitting(hub: HubFiles, added: list[Added], rows: int | None) -> list[Added]:
    """Return the added pieces that have a row in the embedding table.

    Omitted pieces are recorded as a difference. If `rows` is None, the number
    of rows is unlimited.
    """
    if rows is None:
        return added
    omitted = [piece.piece for piece in added if piece.id >= rows]
    if omitted:
        hub.differences.append(
            f"the added pieces {', '.join(omitted)} are omitted, because the "
            f"embedding table has only {rows} rows"
        )
    return [piece for piece in added if piece.id < rows]
