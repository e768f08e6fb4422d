"""Train a SentencePiece model with ALBERT's symbols on a corpus."""

import contextlib
import dataclasses
import io
import re
import tempfile
from collections import Counter
from collections.abc import Iterator

import sentencepiece

from albert_tf.base import files, program
from albert_tf.base.errors import InputError, require
from albert_tf.base.replacing import names_like
from albert_tf.base.settings import OUTPUT_DIR, TOKENIZER, setting, variant
from albert_tf.data.builder import text_blocks
from albert_tf.data.builder.boundaries import (
    ALONE,
    MANY_MARKS,
    Letters,
    character_kind,
    has_many_marks,
    letter_shares,
    letter_warnings,
)
from albert_tf.data.builder.build_folder import disk_errors
from albert_tf.data.builder.text_formats import (
    CORPUS,
    BadItems,
    SentencesConfig,
    check_table_layout,
    lines_of,
    split_sentences,
    warn_of_bad_items,
)
from albert_tf.data.records.metadata import is_described
from albert_tf.data.table_sources import InMemoryTable, texts_of
from albert_tf.text.normalization import AUTO, TextConfig, has_marks, normalize
from albert_tf.text.tokenizers import SentencePieceTokenizer
from albert_tf.text.vocabulary import (
    OTHER_VOCABULARY,
    VOCABULARIES,
    WEIGHTS,
)

# Ids 0 and 1 are `<pad>` and `<unk>`; these pieces follow. Source: the README
# of google-research/albert.
CONTROL_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]")
USER_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")

# The trainer skips longer sentences. The limit is the trainer's default, as in
# the release.
MAX_SENTENCE_BYTES = 4192

# Warn if a larger share of the bytes was skipped because lines are too long.
MUCH_LONG = 0.01

# Number of sentences to sample from a larger corpus.
MAX_SENTENCES = 10_000_000

# The number of threads affects the trainer's sums, and thus the pieces.
NUM_THREADS = 16

VOCAB_LIST = "spiece.vocab"


@dataclasses.dataclass(frozen=True)
class TrainTokenizerConfig(TextConfig, SentencesConfig):
    """Settings for tokenizer training; the defaults are the released values."""

    input_file: str | InMemoryTable | None = variant(CORPUS)
    output_dir: str | None = variant(
        OUTPUT_DIR, help="Folder for the tokenizer files."
    )
    vocab_size: int = setting(
        30000,
        "Number of pieces in the vocabulary.",
        minimum=14,
        maximum=10**7,
        group=TOKENIZER,
    )
    character_coverage: float = setting(
        0.99995,
        "Share of the characters in the text that the pieces must cover.",
        minimum=0.98,
        maximum=1.0,
        group=TOKENIZER,
    )


def _documents(
    config: TrainTokenizerConfig, counts: Counter
) -> Iterator[list[str]]:
    """Yield the documents of the corpus; count bad items in `counts`."""
    if not isinstance(config.input_file, str):
        check_table_layout("tables", config.input_format, config.input_file)
        bad = BadItems(config.on_bad_text, counts)
        for text in texts_of(config.input_file, config.text_field, bad):
            yield lines_of(text)
        return
    paths = text_blocks.input_paths(config.input_file, config.output_dir)
    text_blocks.check_files(paths, config)
    for path in paths:
        for block in text_blocks.blocks(path, 0, config):
            yield from text_blocks.read_documents(block, config, counts)


def _lines(config: TrainTokenizerConfig, counts: Counter) -> Iterator[str]:
    """Yield the sentences of the corpus; count bad items in `counts`."""
    for document in _documents(config, counts):
        yield from split_sentences(document, config.split_sentences)


def _long_word(word: str) -> Iterator[str]:
    """Cut a word that is too long after characters of the kind `ALONE`.

    These include punctuation; a word without such characters is not cut.
    """
    while len(word.encode()) > MAX_SENTENCE_BYTES:
        head = word.encode()[:MAX_SENTENCE_BYTES].decode(errors="ignore")
        ends = range(len(head), 0, -1)
        end = next((i for i in ends if character_kind(head[i - 1]) == ALONE), 0)
        if not end:
            break
        yield word[:end]
        word = word[end:]
    yield word


def cut(line: str) -> Iterator[str]:
    """Cut a line into parts that are short enough for the trainer.

    A line is cut between words, which the trainer separates anyway, or after
    punctuation. A run without spaces or punctuation is not cut, even if it is
    too long.
    """
    if len(line) * 4 <= MAX_SENTENCE_BYTES:
        yield line
        return
    piece, size = [], 0
    for word in line.split(" "):
        for part in _long_word(word):
            bytes = len(part.encode()) + 1
            if piece and size + bytes > MAX_SENTENCE_BYTES:
                yield " ".join(piece)
                piece, size = [], 0
            piece.append(part)
            size += bytes
    yield " ".join(piece)


class Sentences:
    """An iterable of sentences, normalized like the tokenizer's input.

    The trainer treats an exception from its input as the end of the input, so
    this class stores the exception.

    Attributes:
      counts: the number of `sentences`; the number of `long` sentences, which
        contain a run that exceeds the trainer's limit; the total `bytes`; the
        skipped `long_bytes`; and the number of `dotless` letters ı.
      letters: counts of letters before accents are removed.
      error: the exception that ended the iteration, or None.
    """

    def __init__(self, config: TrainTokenizerConfig):
        self.counts: Counter = Counter()
        self.letters = Letters(has_marks, config.strip_accents)
        self.error: BaseException | None = None
        self._config = config

    def __iter__(self) -> Iterator[str]:
        try:
            for line in _lines(self._config, self.counts):
                self.letters.add(line)
                self.counts["dotless"] += line.count("ı")
                line = normalize(line, self._config)
                self.counts["sentences"] += bool(line)
                pieces = list(cut(line))
                sizes = [len(piece.encode()) for piece in pieces]
                long = [size for size in sizes if size > MAX_SENTENCE_BYTES]
                self.counts["bytes"] += sum(sizes)
                self.counts["long"] += bool(long)
                self.counts["long_bytes"] += sum(long)
                yield from pieces
        except (Exception, KeyboardInterrupt) as error:
            self.error = error


@contextlib.contextmanager
def _rereadable(
    config: TrainTokenizerConfig,
) -> Iterator[TrainTokenizerConfig]:
    """Yield settings whose input text can be read more than once.

    `strip_accents=auto` reads the text twice, so pipes are copied to a
    temporary folder.
    """
    source = config.input_file
    once = isinstance(source, str) and text_blocks.has_pipes(source)
    if config.strip_accents != AUTO or not once:
        yield config
        return
    with tempfile.TemporaryDirectory() as folder:
        copied = text_blocks.with_pipes_copied(source, folder)
        yield dataclasses.replace(config, input_file=copied)


def choose_accents(config: TrainTokenizerConfig) -> TrainTokenizerConfig:
    """Replace `strip_accents=auto` with the value that suits the text."""
    if config.strip_accents != AUTO:
        return config
    letters = Letters(has_marks, True)
    for line in _lines(config, Counter()):
        letters.add(line)
    keep_accents = has_many_marks(letters.counts())
    return dataclasses.replace(config, strip_accents=not keep_accents)


def _explain(
    error: RuntimeError, config: TrainTokenizerConfig, counts: Counter
) -> InputError:
    """Translate a trainer error into an error about the user's settings."""
    message = str(error)
    size = f"Received: vocab_size={config.vocab_size}"
    if match := re.search(r"too high.*<= (\d+)", message):
        return InputError(
            "`vocab_size` is too large for this corpus: the largest possible "
            f"value is {match[1]}. {size}"
        )
    if match := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return InputError(
            "`vocab_size` must cover every symbol and character of the corpus: "
            f"use at least {match[1]}, or lower `character_coverage`. {size}"
        )
    if counts["sentences"] == counts["long"]:
        return InputError(
            "`input_file` must contain sentences of at most "
            f"{MAX_SENTENCE_BYTES} bytes, one per line. Received: "
            f"{counts['sentences']} sentences, {counts['long']} longer"
        )
    return InputError(f"SentencePiece training failed: {message}")


def train(config: TrainTokenizerConfig, sentences: Sentences) -> bytes:
    """Train a SentencePiece model and return its bytes.

    Like the released model, the result includes the trainer's default
    normalization, `nmt_nfkc`.

    Raises:
      InputError: if training fails, for example because the vocabulary is too
        large for the text. An error in reading the text is raised unchanged.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            input_sentence_size=MAX_SENTENCES,
            shuffle_input_sentence=True,
            max_sentence_length=MAX_SENTENCE_BYTES,
            num_threads=NUM_THREADS,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(CONTROL_SYMBOLS),
            user_defined_symbols=list(USER_SYMBOLS),
            minloglevel=2,
        )
    except RuntimeError as error:
        raise (
            sentences.error or _explain(error, config, sentences.counts)
        ) from None
    if sentences.error:
        raise sentences.error
    return model.getvalue()


def vocabulary_list(model: bytes) -> str:
    """Return a model's pieces and scores, one piece per line."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return "".join(
        f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n"
        for i in range(processor.get_piece_size())
    )


def make_vocabulary(config: TrainTokenizerConfig) -> Counter:
    """Train a tokenizer and write its files; return counts of the text."""
    folder = config.output_dir
    rule = "`output_dir` must not be a file."
    require(not files.is_file(folder), rule, output_dir=folder)
    require(
        not names_like(WEIGHTS, folder) and not is_described(folder),
        "`output_dir` must not contain a model or records, which have their "
        "own tokenizer.",
        output_dir=folder,
    )
    stored = SentencePieceTokenizer.stored_in(folder)
    existing = names_like(VOCABULARIES, folder)
    same_size = (
        stored.vocab_size == config.vocab_size if stored else not existing
    )
    received = f"{folder} with {', '.join(existing)}"
    require(same_size, OTHER_VOCABULARY, output_dir=received)
    with _rereadable(config) as readable:
        config = choose_accents(readable)
        sentences = Sentences(config)
        model = train(config, sentences)
    warn_of_bad_items(sentences.counts, config.on_bad_text)
    tokenizer = SentencePieceTokenizer(model, config)
    with disk_errors(folder):
        tokenizer.save(folder)
        path = files.join(folder, VOCAB_LIST)
        files.write_text(path, vocabulary_list(model))
    return sentences.counts + Counter(
        sentences.letters.counts(),
        accents_dropped=config.strip_accents,
        lower_case=config.do_lower_case,
    )


def warnings(counts: Counter) -> Iterator[str]:
    """Yield warnings about the text, with advice."""
    marked, beyond = letter_shares(counts)
    dropped = marked if counts["accents_dropped"] else 0.0
    yield from letter_warnings(dropped, beyond)
    dotless = counts["lower_case"] * counts["dotless"]
    if dotless > MANY_MARKS * counts["letters"]:
        yield (
            "the text contains the letter ı, as in Turkish, but lower-casing "
            "changed its capital form, I, to i; to preserve the difference, "
            "pass --nodo_lower_case to train_tokenizer and to the builder"
        )
    if counts["long_bytes"] > MUCH_LONG * counts["bytes"]:
        yield (
            f"{counts['long_bytes'] / counts['bytes']:.0%} of the bytes were "
            "skipped because lines contain more than "
            f"{MAX_SENTENCE_BYTES} bytes without a space; put spaces between "
            "words"
        )


@dataclasses.dataclass(frozen=True)
class TrainedTokenizer:
    """The result of tokenizer training.

    Attributes:
      output_dir: the folder of the tokenizer files.
      sentences: the number of sentences read.
      long: the number of sentences that were skipped, at least in part, because
        they were too long.
    """

    output_dir: str
    sentences: int
    long: int


@program.command(TrainTokenizerConfig)
def train_tokenizer(config: TrainTokenizerConfig) -> TrainedTokenizer:
    """Train a SentencePiece model with ALBERT's symbols on a corpus."""
    counts = make_vocabulary(config)
    print(
        f"{config.output_dir}: {config.vocab_size} pieces from "
        f"{counts['sentences']} sentences, {counts['long']} skipped as "
        f"longer than {MAX_SENTENCE_BYTES} bytes; accents "
        f"{'dropped' if counts['accents_dropped'] else 'kept'}"
    )
    for warning in warnings(counts):
        print(f"Warning: {warning}")
    return TrainedTokenizer(
        config.output_dir, counts["sentences"], counts["long"]
    )


cli = train_tokenizer.program.cli
