"""The chunks that CoNLL-2000's script `conlleval` finds, and their F1.

This module was written from the script's published tables of chunk ends and
starts, not from this project. Tags of other schemes are first rewritten as
IOBES tags. https://www.clips.uantwerpen.be/conll2000/chunking/output.html
"""

# The script has the letters B, I, O and E. As in its successors for IOBES, S
# is always a chunk by itself, and E ends every chunk.
ENDS = {"BB", "BO", "IB", "IO", "EE", "EI", "EO", "EB"}
STARTS = {"BB", "IB", "OB", "OI", "EE", "EI", "OE", "EB"}
AS_IOBES = str.maketrans("MLUW", "IESS")


def split_tag(tag):
    """Return a tag's prefix, rewritten as in IOBES, and the tag's type."""
    letter, _, kind = tag.partition("-")
    return letter.translate(AS_IOBES), kind


def chunks(tags):
    """Return the chunks as a set of (first word, last word, type) tuples."""
    found, start = set(), 0
    before, kind_before, inside = "O", "", False
    for i, tag in enumerate([*tags, "O"]):
        letter, kind = split_tag(tag)
        change = kind != kind_before
        ends = before + letter in ENDS or before == "S" or letter == "S"
        if inside and (ends or change and before != "O"):
            found.add((start, i - 1, kind_before))
            inside = False
        starts = before + letter in STARTS or before == "S" or letter == "S"
        if letter != "O" and (starts or change):
            start, inside = i, True
        before, kind_before = letter, kind
    return found


def f1(labels, predictions):
    """Return F1 over all rows of tags."""
    gold = {(n, *c) for n, row in enumerate(labels) for c in chunks(row)}
    guess = {(n, *c) for n, row in enumerate(predictions) for c in chunks(row)}
    return 2 * len(gold & guess) / max(len(gold) + len(guess), 1)
