"""Texts that are not English cause warnings about settings for English."""

import json
import os
import unicodedata
from collections import Counter
from types import SimpleNamespace

import pytest
import sentencepiece
from tiny_corpus import MASKING, PAIRS, make_records
from vocabularies import chinese, english, trained

from albert_tf.base.errors import InputError
from albert_tf.data import train_tokenizer as vocabulary
from albert_tf.data.builder import boundaries, build, passes
from albert_tf.data.builder.boundaries import (
    Letters,
    letter_shares,
    letter_warnings,
)
from albert_tf.data.builder.text_formats import ReadingConfig
from albert_tf.data.train_tokenizer import (
    TrainTokenizerConfig,
    choose_accents,
    make_vocabulary,
)
from albert_tf.text.normalization import TextConfig, has_marks
from albert_tf.text.tokenizers import (
    SentencePieceTokenizer,
    TokenizerConfig,
    build_tokenizer,
    load_saved_tokenizer,
)

# Article 1 of the Universal Declaration of Human Rights, in languages with
# marks that distinguish words.
MARKED = {
    "vi": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm "
    "và quyền. Mọi con người đều được tạo hoá ban cho lý trí và lương tâm.",
    "ru": "Все люди рождаются свободными и равными в своём достоинстве и "
    "правах. Они наделены разумом и совестью и должны поступать в отношении "
    "друг друга в духе братства. Каждый человек, любой край, мой чай.",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とに"
    "ついて平等である。人間は、理性と良心とを授けられており、互いに同胞の精神"
    "をもって行動しなければならない。",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और "
    "समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है।",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ "
    "ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en "
    "droits. Ils sont doués de raison et de conscience.",
}
# The same article in languages whose marks do not distinguish words.
PLAIN = {
    "en": "All human beings are born free and equal in dignity and rights. "
    "They are endowed with reason and conscience and should act towards one "
    "another in a spirit of brotherhood. " * 9 + "A café.",
    "zh": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。",
    "sw": "Watu wote wamezaliwa huru, hadhi na haki zao ni sawa.",
}
# The English rule splits words of these languages, even without marks.
BEYOND = {"vi", "ru", "hi", "th"}


def letters_of(text):
    """Return a text's letters and marks in composed form."""
    text = unicodedata.normalize("NFC", text)
    return [c for c in text if unicodedata.category(c)[0] in "LM"]


def counted(text, strip):
    """Return all warnings for a text, joined into one string."""
    letters = Letters(has_marks, strip)
    letters.add(text)
    dropped, beyond = letter_shares(letters.counts())
    return " ".join(letter_warnings(dropped * strip, beyond))


def tokenizer_config(text_file, folder, **settings):
    """Return the settings that train a tokenizer in a folder."""
    paths = {"input_file": str(text_file), "output_dir": str(folder)}
    return TrainTokenizerConfig(**paths, **settings)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("name", [*MARKED, *PLAIN])
def test_languages_are_told(name, form, tmp_path):
    """For a language whose accents distinguish words, `auto` keeps accents.

    The default, which strips accents, causes a warning for such a language.
    Composed and decomposed text lead to the same result.
    """
    text = unicodedata.normalize(form, (MARKED | PLAIN)[name])
    (tmp_path / "text").write_text(text)
    config = tokenizer_config(tmp_path / "text", "x", strip_accents="auto")
    assert choose_accents(config).strip_accents == (name in PLAIN)
    warning = counted(text, True)
    assert ("--strip_accents=auto" in warning) == (name in MARKED)
    assert ("--word_boundaries=unicode" in warning) == (name in BEYOND)
    unstripped = counted(text, False)
    assert "--strip_accents=auto" not in unstripped
    if name != "ja":  # the form decides whether its marks are letters
        assert ("--word_boundaries=unicode" in unstripped) == (
            name in BEYOND | {"fr"}
        )


def test_advice_suits_a_user_of_auto_and_unspaced_scripts():
    """Warnings also help users of `auto` and of scripts without spaces."""
    marks, letters = letter_warnings(0.1, 0.137)
    assert marks.endswith("auto removes marks if the vocabulary contains none")
    assert "13.7% of the letters are outside a to z and join into" in letters
    assert "without spaces such as Japanese, with a segmenter" in letters


def test_letters_that_english_does_not_have():
    """Accented, Cyrillic and katakana letters are `beyond_english`.

    ASCII characters, other digits, kanji and hiragana are not.
    """
    text = "aZ'1_.٣²東がé\u0301жカー"
    beyond = "".join(filter(boundaries.beyond_english, text))
    assert beyond == "é\u0301жカー"


def test_letters_are_counted_whenever_a_buffer_is_full(monkeypatch):
    """Texts are collected until they have `BUFFER` characters."""
    monkeypatch.setattr(boundaries, "BUFFER", 10)
    letters, sizes = Letters(has_marks, True), []
    for _ in range(6):
        letters.add("a\u0301b.")
        sizes.append(letters._counts["letters"])
    assert sizes == [0, 0, 9, 9, 9, 18]
    letters.add("éc")
    counts = Counter(letters=20, marked=7, beyond_english=0)
    assert letters.counts() == counts == letters.counts()


def test_shares_at_their_limits():
    """Up to 0.2% marked and 1% `beyond_english` letters cause no warning."""
    assert letter_shares(Counter()) == (0, 0)
    assert letter_shares(Counter(letters=1, marked=1)) == (1, 0)
    few = Counter(letters=1000, marked=2, beyond_english=10)
    assert not boundaries.has_many_marks(few)
    assert not list(letter_warnings(*letter_shares(few)))
    more = few + Counter(marked=1, beyond_english=1)
    assert boundaries.has_many_marks(more)
    first, second = letter_warnings(*letter_shares(more))
    assert first.startswith("0.3% of") and second.startswith("1.1% of")


def model_of(text):
    """Return a SentencePiece model trained on a lowercased text."""
    sentences = iter(text.lower().split(" ") * 3)
    return trained(sentence_iterator=sentences, vocab_size=200)


# Languages with marks below or beside letters, without spaces, with accents, or
# with none of these properties.
SCRIPTS = ["vi", "hi", "ja", "zh", "ru", "th", "fr", "en", "sw"]


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_vocabulary_keeps_the_letters_it_has(name, tmp_path):
    """With `auto`, text keeps all letters that the vocabulary contains."""
    text = (MARKED | PLAIN)[name]
    content = model_of(text if name in MARKED else text[:150])
    (tmp_path / "spiece.model").write_bytes(content)
    path = str(tmp_path / "spiece.model")
    auto = TokenizerConfig(spm_model_file=path, strip_accents="auto")
    tokenizer = build_tokenizer(auto)
    assert tokenizer.config.strip_accents == (name in PLAIN)
    text = text if name in MARKED else text[:150]
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    wanted = model.decode(model.encode(text.lower()))
    found = tokenizer.decode(tokenizer.encode(text))
    assert letters_of(found) == letters_of(wanted)
    # Both rules treat each character of Japanese as a word.
    rule = "unicode" if name in MARKED.keys() - {"ja"} else None
    assert boundaries.resolve_rule("auto", tokenizer) == rule
    # The tokenizer.json next to the model has priority.
    tokenizer = SentencePieceTokenizer(content, TextConfig())
    tokenizer.save(str(tmp_path))
    assert build_tokenizer(auto).config.strip_accents is True
    # Another library's file has no effect, nor has a WordPiece tokenizer's.
    stored = tmp_path / "tokenizer.json"
    for kind in ("WordPiece", "wordpiece"):
        stored.write_text(json.dumps({"type": kind, "strip_accents": True}))
        found = build_tokenizer(auto).config.strip_accents
        assert found == (name in PLAIN)


def test_released_vocabularies_stay_as_they_are():
    """`auto` strips accents if the vocabulary contains no accents."""
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] cafe ##e 中".split()
    content = "\n".join(pieces).encode()
    for extra, strip in ((b"", True), ("\n##é".encode(), False)):
        tokenizer = type(chinese())(
            content + extra, TextConfig(strip_accents="auto")
        )
        assert tokenizer.config.strip_accents is strip
        assert boundaries.resolve_rule("auto", tokenizer) is None
    with pytest.raises(InputError, match="one of True, False, auto"):
        TextConfig(strip_accents="never")


@pytest.mark.parametrize(
    "lower, strip, marks",
    [(True, True, 3), (True, False, 0), (False, True, 0)],
)
def test_marks_that_wordpiece_drops(lower, strip, marks):
    """WordPiece drops accents only from lowercased text."""
    config = TextConfig(do_lower_case=lower, strip_accents=strip)
    tokenizer = type(chinese())(chinese().content, config)
    recipe = SimpleNamespace(tokenizer=tokenizer, reading=ReadingConfig())
    lines = ["Ünï cafe", *"w" * 15, "é", *"w" * 15]  # one line of 16 is read
    found = passes._count_letters(recipe, lines)
    assert found == Counter(letters=8, dropped_marks=marks, beyond_rule=0)


@pytest.mark.parametrize("lower", [True, False])
def test_marks_that_sentencepiece_drops(lower):
    """SentencePiece drops accents whether or not it lower-cases text."""
    for strip, counts in ((True, [3, 0]), (False, [0, 3])):
        tokenizer = english(do_lower_case=lower, strip_accents=strip)
        recipe = SimpleNamespace(tokenizer=tokenizer, reading=ReadingConfig())
        found = passes._count_letters(recipe, ["Ünï café"])
        assert found["letters"] == 7
        assert [found["dropped_marks"], found["beyond_rule"]] == counts


@pytest.fixture
def vietnamese(tmp_path):
    """Return the path of a file of short Vietnamese documents."""
    words = MARKED["vi"].replace(".", "").split()
    lines = [
        " ".join(words[(i * k) % len(words)] for k in range(3, 12)) + " ."
        for i in range(1, 200)
    ]
    path = tmp_path / "vi.txt"
    documents = ["\n".join(lines[i : i + 9]) for i in range(0, 199, 9)]
    path.write_text("\n\n".join(documents))
    return str(path)


def test_the_builder_warns_or_chooses(vietnamese, tmp_path, corpus):
    """By default, Vietnamese loses its tones; warnings name the flags to set.

    If both the tokenizer and the records use `auto`, the tones are kept and
    there is no warning.
    """
    summaries, unknown = {}, {}
    for choice in (True, "auto"):
        folder = tmp_path / str(choice)
        values = {"vocab_size": 50 if choice is True else 60}
        values["strip_accents"] = choice
        trained_in = folder / "vocabulary"
        make_vocabulary(tokenizer_config(vietnamese, trained_in, **values))
        changes = {
            "input_file": vietnamese,
            "vocab_file": None,
            "spm_model_file": trained_in / "spiece.model",
            "strip_accents": choice,
            "word_boundaries": "auto" if choice == "auto" else None,
            "max_seq_length": 64,
            "eval_fraction": 0.0,
            "num_shards": 1,
        }
        metadata = make_records(corpus, folder / "out", **changes)
        summaries[choice] = build.summary(metadata, PAIRS, MASKING)
        unknown[choice] = metadata.statistics["unknown_share"]
    assert "--strip_accents=auto" in summaries[True]
    assert "--word_boundaries=unicode" in summaries[True]
    assert "--strip_accents=auto" not in summaries["auto"]
    assert "--word_boundaries" not in summaries["auto"]
    assert unknown["auto"] == 0
    assert metadata.settings["word_boundaries"] == "unicode"
    tokenizer = load_saved_tokenizer(str(tmp_path / "auto" / "out"))
    tones = [tokenizer.encode(word) for word in ("má", "mà", "mạ", "ma")]
    assert len({tuple(ids) for ids in tones}) == len(tones)


def test_a_vocabulary_of_another_choice_is_refused(
    vietnamese, tmp_path, corpus
):
    """A tokenizer that keeps accents conflicts with the default settings."""
    values = {"vocab_size": 60, "strip_accents": False}
    make_vocabulary(tokenizer_config(vietnamese, tmp_path, **values))
    changes = {"input_file": vietnamese, "vocab_file": None}
    changes["spm_model_file"] = tmp_path / "spiece.model"
    with pytest.raises(InputError, match="--strip_accents=auto.*but False in"):
        make_records(corpus, tmp_path / "out", **changes)


def test_a_warning_of_the_trainer_names_the_flags(vietnamese, tmp_path):
    """For Vietnamese, `train_tokenizer` warns and names both flags to set."""
    config = tokenizer_config(vietnamese, tmp_path / "v", vocab_size=50)
    text = " ".join(vocabulary.warnings(make_vocabulary(config)))
    assert "--strip_accents=auto" in text
    assert "--word_boundaries=unicode" in text


def test_auto_reads_a_pipe(tmp_path, monkeypatch):
    """For a pipe, `auto` makes the same choice as for a file."""
    text = "\n".join([MARKED["vi"]] * 50).encode()
    (tmp_path / "x.txt").write_bytes(text)
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    monkeypatch.setattr("sys.stdin", open(reader))
    for name, source in [("pipe", "-"), ("file", str(tmp_path / "x.txt"))]:
        values = {"vocab_size": 60, "strip_accents": "auto"}
        config = tokenizer_config(source, tmp_path / name, **values)
        counts = make_vocabulary(config)
        assert counts["sentences"] == 50 and not counts["accents_dropped"]
    models = [tmp_path / name / "spiece.model" for name in ("pipe", "file")]
    assert models[0].read_bytes() == models[1].read_bytes()
