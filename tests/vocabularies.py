"""Vocabularies that are small enough to be made in tests."""

import functools
import io
import json
import pathlib
from collections.abc import Sequence

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.text.normalization import TextConfig
from albert_tf.text.sentencepiece_models import CONTROL, NORMAL, UNKNOWN
from albert_tf.text.tokenizers import SentencePieceTokenizer, WordPieceTokenizer

SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
CHARACTERS = "▁0123456789abcdefghijklmnopqrstuvwxyz,.'\"`()[]-σςéΣ"

# Pieces that end in a digit and a comma, with and without ▁.
NUMBERS = """▁1, 0, 00, ▁1 ▁0 ▁00 ▁000 ▁2010 ▁2010, 000 000, ▁9 9, 10 ▁12 12,
7,""".split()
WORDS = "▁the ▁cat ▁s at ▁cafe ▁[ the [cls] Ed e's ▁naïve".split()

# Texts that are difficult to tokenize.
TEXTS = (
    "",
    " ",
    "The café, in 2010, naïve cafe\u0301s",
    "ﬁne ½ ΑΣ  ΑΣΑ \u00a0 straße",
    "中文 12, 한국 ''x'' ``y``",
    "\u0301a\u0301\u0302 e\u3000",
    "İI 1,000,000, a\u200bb \x00 \ufeff",
)

WORDPIECES = """[PAD] [unused1] [UNK] [CLS] [SEP] [MASK] un ##aff ##able a ##a
the cafe caf ##e ##é , . - ! ' 中 文 「 」 σ ##ς ##σ ##ο ο 10 ##0 Un [ ]
mask cls i ##i""".split()

# Combining marks that normalization reorders. The vocabulary has each mark as a
# first piece and as a later piece.
MARKS = "\u302e\U0001d165\U0001d16d"
WORDPIECES += [*MARKS, *(f"##{mark}" for mark in MARKS)]


def trained(**settings) -> bytes:
    """Train a SentencePiece model with the given settings; return its bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        **settings,
        model_writer=model,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=list(SPECIAL[2:]),
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


@functools.cache
def sentencepiece_model(special: Sequence[str] = SPECIAL) -> bytes:
    """Return a model with the given special pieces; it favors long pieces."""
    # The trainer writes the model's other settings.
    content = trained(sentence_iterator=iter(["a b c"] * 10), vocab_size=10)
    proto = ModelProto.FromString(content)
    del proto.pieces[:]
    for piece in special:
        kind = UNKNOWN if piece == "<unk>" else CONTROL
        proto.pieces.add(piece=piece, score=0.0, type=kind)
    for i, piece in enumerate([*CHARACTERS, *NUMBERS, *WORDS]):
        # These scores differ for all segmentations.
        score = -10.0 - i / 1024 + len(piece) / 4
        proto.pieces.add(piece=piece, score=score, type=NORMAL)
    return proto.SerializeToString()


def exchange(folder, pieces: Sequence[str]) -> None:
    """Replace a folder's WordPiece vocabulary; remove the old one's checksum.

    A user might do the same on purpose.
    """
    folder = pathlib.Path(folder)
    (folder / "vocab.txt").write_text("\n".join(pieces))
    settings = folder / "tokenizer.json"
    values = json.loads(settings.read_text())
    del values["vocabulary_sha256"]
    settings.write_text(json.dumps(values))


def english(**text) -> SentencePieceTokenizer:
    """Return an English SentencePiece tokenizer; `text` configures it."""
    return SentencePieceTokenizer(sentencepiece_model(), TextConfig(**text))


def chinese(**text) -> WordPieceTokenizer:
    """Return a Chinese WordPiece tokenizer; `text` configures it."""
    content = "\n".join(WORDPIECES).encode() + b"\n"
    return WordPieceTokenizer(content, TextConfig(**text))
