"""Files of Hugging Face tokenizers are read; wrong values raise errors."""

import json
import sys

import pytest

from albert_tf.base.errors import InputError
from albert_tf.conversion.tokenizer_files import (
    Added,
    HubFiles,
    check_ids,
    find_vocabulary,
    fitting,
    length_of,
    rename_special,
)


@pytest.mark.parametrize(
    ("limit", "length"),
    [
        *((None, None), (1, 1), (512, 512), (20.5, 20), (1e30, sys.maxsize)),
        *((10**30, sys.maxsize), (sys.maxsize, sys.maxsize)),
    ],
)
def test_limits_are_numbers(limit, length):
    """A length limit is rounded down to a whole number, up to `sys.maxsize`."""
    assert length_of({"n": limit}, "n", "a file") == length
    assert length_of({}, "n", "a file") is None


@pytest.mark.parametrize("limit", [0, 0.5, -1, "20", [], float("nan")])
def test_limits_that_are_none(limit):
    """An error names a limit that is not a number, or is less than 1."""
    with pytest.raises(InputError, match="a file: `n` must be a number of.*n="):
        length_of({"n": limit}, "n", "a file")


@pytest.mark.parametrize(
    ("ids", "size", "legal"),
    [
        *(([], 0, True), ([0], 0, True), ([-1], 0, False)),
        *(([0, 2 + 65_536], 0, True), ([0, 3 + 65_536], 0, False)),
        *(([11 + 65_536], 10, True), ([12 + 65_536], 10, False)),
        *((["1"], 0, False), ([1.0], 0, False), ([True], 0, False)),
    ],
)
def test_ids_have_no_large_gaps(ids, size, legal):
    """Ids are whole numbers, at most 65,536 above the number of pieces."""
    if legal:
        check_ids(ids, size)
        return
    message = f"numbers without large gaps.*pieces={size + len(ids)}$"
    with pytest.raises(InputError, match=message):
        check_ids(ids, size)


def test_added_pieces_need_rows():
    """Added pieces without a row in the embedding table are left out."""
    hub = HubFiles("", {}, {})
    added = [Added(7, "a", False), Added(8, "b", True), Added(9, "c", False)]
    assert fitting(hub, added, None) == added and not hub.differences
    assert fitting(hub, added, 10) == added and not hub.differences
    assert fitting(hub, added, 8) == added[:1]
    assert hub.differences == [
        "the added pieces b, c are omitted, because the embedding table has "
        "only 8 rows"
    ]


def test_added_pieces_are_listed_in_three_files(tmp_path):
    """Added pieces are sorted by id; the last file overrides earlier ones.

    The files are `added_tokens.json`, `tokenizer_config.json` and
    `tokenizer.json`. Only pieces with a role are special.
    """
    (tmp_path / "added_tokens.json").write_text('{"[X]": 12, "b": 9, "c": 8}')
    decoder = {"10": {"content": "d"}, "9": {"content": "e", "special": True}}
    roles = {"cls_token": "[X]", "sep_token": "f"}
    settings = roles | {"added_tokens_decoder": decoder}
    rows = {"added_tokens": [{"id": 10, "content": "f", "special": "true"}]}
    hub = HubFiles(str(tmp_path), rows, settings)
    assert hub.added(9) == [
        Added(9, "e", False),
        Added(10, "f", True),
        Added(12, "[X]", True),
    ]
    hub = HubFiles(str(tmp_path), {}, {"added_tokens_decoder": decoder})
    wanted = [Added(10, "d", False), Added(12, "[X]", False)]
    assert hub.added(10) == wanted


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ({"vocab": [["a", 0.0]]}, "Unigram"),
        ({"vocab": {"a": 0}}, "WordPiece"),
        ({"vocab": {"a": 0}, "merges": []}, "BPE"),
        ({"vocab": {"a": 0}, "type": "WordLevel"}, "WordLevel"),
    ],
)
def test_the_type_of_a_model(model, kind):
    """A model's missing type is inferred from its vocabulary and merges."""
    assert HubFiles("", {"model": model}, {}).type == kind


@pytest.mark.parametrize(
    ("content", "read"),
    [
        ({"type": "wordpiece", "do_lower_case": True}, False),
        ({"type": "x", "model": {}}, True),
        ({"version": "1.0"}, True),
    ],
)
def test_our_own_file_is_not_the_librarys(content, read, tmp_path):
    """A `tokenizer.json` in our own format is ignored."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    found = HubFiles.of(str(tmp_path))
    assert found.content == (content if read else {})


def test_settings_override_the_map_of_special_tokens(tmp_path):
    """`tokenizer_config.json` overrides `special_tokens_map.json`."""
    path = tmp_path / "special_tokens_map.json"
    path.write_text(json.dumps({"cls_token": "a", "sep_token": "b"}))
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"cls_token": {"content": "c"}}))
    found = HubFiles.of(str(tmp_path))
    assert [found.name(x) for x in ("cls", "sep", "pad")] == ["c", "b", None]


def test_pieces_with_a_role_are_no_markers():
    """The markers are the listed special pieces that have no role."""
    listed = ["[E1]", "<mask>", {"content": "[CLS]"}, {"content": "[E2]"}]
    settings = {"mask_token": "<mask>", "cls_token": {"content": "[CLS]"}}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        hub = HubFiles("", {}, settings | {key: listed})
        assert hub.markers() == {"[E1]", "[E2]"}
    assert HubFiles("", {}, settings).markers() == set()


def test_the_vocabulary_of_a_folder(tmp_path):
    """SentencePiece models precede WordPiece, and usual names other names.

    If two folders contain the same file name, the first folder is used. Several
    files of the same kind with other names raise an error.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, names in (
        (first, ["vocab_a.txt", "vocab.txt", "my.model"]),
        (second, ["vocab_b.txt", "vocab_c.txt", "spiece.model", "my.model"]),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    both = [str(first), str(second)]
    kinds = "sentencepiece", "wordpiece"
    assert find_vocabulary(both) == (kinds[0], f"{second}/spiece.model")
    (second / "spiece.model").unlink()
    assert find_vocabulary(both) == (kinds[0], f"{first}/my.model")
    for folder in (first, second):
        (folder / "my.model").unlink()
    assert find_vocabulary(both) == (kinds[1], f"{first}/vocab.txt")
    (first / "vocab.txt").unlink()
    assert find_vocabulary(both) == (kinds[1], f"{first}/vocab_a.txt")
    with pytest.raises(InputError, match="only one vocabulary"):
        find_vocabulary([str(second)])
    assert find_vocabulary([str(tmp_path)]) is None


USUAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize(
    ("pieces", "settings", "renamed"),
    [
        (USUAL, {}, USUAL),
        (["<unk>", *USUAL, "<s>"], {}, ["<unk>", *USUAL, "<s>"]),
        ("<pad> <unk> <s> </s> <mask> a".split(), {}, [*USUAL, "a"]),
        (
            [*USUAL, "<mask>"],
            {"mask_token": "<mask>"},
            [*USUAL[:-1], "<mask>", "[MASK]"],
        ),
        (["x", *USUAL], {"mask_token": "y", "cls_token": "z"}, ["x", *USUAL]),
        (
            ["c", *USUAL],
            {"cls_token": "c", "sep_token": "[CLS]"},
            ["[CLS]", "[PAD]", "[UNK]", "[SEP]", "c", "[MASK]"],
        ),
        (
            USUAL,
            {"cls_token": "[SEP]", "sep_token": "[CLS]"},
            ["[PAD]", "[UNK]", "[SEP]", "[CLS]", "[MASK]"],
        ),
    ],
)
def test_the_piece_of_each_role_gets_the_released_name(
    pieces, settings, renamed
):
    """The settings name a role's piece, then the release, then other folders.

    A piece that has a role's released name but not the role swaps names with
    the role's piece. Other pieces keep their names, and all keep their ids.
    """
    found = list(pieces)
    hub = HubFiles("", {}, settings)
    changed = rename_special(hub, found, "wordpiece")
    assert found == renamed
    assert bool(changed) == bool(hub.notes) == (pieces != renamed)
