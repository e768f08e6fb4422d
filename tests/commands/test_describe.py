"""`describe` agrees with the built model and its graph."""

import dataclasses
import math

import goldens
import programs
import pytest
import tiny
import tiny_phonemes

from albert_tf.base.errors import InputError
from albert_tf.conversion import describe
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig, forward_flops
from albert_tf.model.phonemes import AlbertForPhonemes

MODELS = goldens.FOLDER.parents[2] / "configs" / "models"

# Parameters of the backbone with its pooler, as in KerasHub's presets, and of
# the model with its heads.
BACKBONES = {
    "base": (11_683_584, 11_813_810),
    "large": (17_683_968, 17_847_474),
    "xlarge": (58_724_864, 59_021_490),
    "xxlarge": (222_595_584, 223_158_450),
}


def count(config, parts):
    return sum(describe.parameters(config, {})[part] for part in parts)


@pytest.mark.parametrize("size", BACKBONES)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_released_backbones(size, version):
    """The four sizes have exactly the released numbers of parameters."""
    path = str(MODELS / f"albert_{size}_{version}.json")
    config = AlbertConfig.from_json_file(path)
    backbone, whole = BACKBONES[size]
    assert count(config, describe.BACKBONE) == backbone
    assert count(config, describe.PARAMETER_GROUPS) == whole
    lines = describe.size_report(path)
    text = "\n".join(lines)
    assert f"{backbone:,}" in text
    assert f"{whole:,}" in text
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    assert lines[1].split() == [
        f"albert_{size}_{version}",
        f"{backbone / 1e6:.0f}M",
        *map(str, (layers, config.hidden_size, 128, heads)),
        "True",
    ]
    assert describe.size_report(path, 512) == lines
    last = describe.size_report(path, 1)[-1].split()
    assert last[:2] == ["one", "sequence"] and last[-1] == "100.0%"


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_parts_add_up_to_the_model(variant):
    """Each variable of the built model is counted once, in its own part."""
    config = goldens.variant(variant)
    model = AlbertForPretraining(config)
    assert count(config, describe.PARAMETER_GROUPS) == model.count_params()
    parts = describe.parameters(config, {})
    tables = model.albert.embeddings
    words = tables.word_embeddings
    assert parts["word embeddings"] == math.prod(words.shape)
    projection = tables.projection.count_params() if tables.projection else 0
    assert parts["embedding projection"] == projection
    assert parts["pooler"] == model.albert.pooler.count_params()
    assert parts["masked-LM head"] == model.mlm.count_params()
    assert parts["sentence-order head"] == model.sop.count_params()
    encoder = model.albert.encoder.count_params()
    assert parts["attention"] + parts["feed-forward"] == encoder


def test_bert_of_the_same_shape():
    """BERT-base with ALBERT's vocabulary has the size computed by hand.

    Without the pooler, it has the 108M parameters that the paper states.
    """
    config = AlbertConfig()
    bert = describe.as_bert(config)
    # Table 1: V x H, positions, segments, norm; 12 layers; pooler.
    h, i = 768, 3072
    layer = 4 * (h * h + h) + 2 * h * i + h + i + 4 * h
    tables = (30000 + 512 + 2 + 2) * h
    assert count(bert, describe.BACKBONE) == tables + 12 * layer + h * h + h
    inner = dataclasses.replace(config, inner_group_num=2, sharing="ffn")
    assert describe.parameters(describe.as_bert(inner), {})["attention"] == (
        2 * describe.parameters(bert, {})["attention"]
    )


def row_of(lines, title) -> list[str]:
    """Return the cells of a table's row, without the row's title."""
    line = next(x for x in lines if x.strip().startswith(f"{title} "))
    return line.strip().removeprefix(title).split()


def test_ratios_are_those_of_bert():
    """Rows have our number, BERT's number and, if neither is 0, their ratio."""
    lines = describe.parameter_lines(AlbertConfig(), {})
    numbers = ["11,683,584", "109,081,344", "9.3x"]
    assert row_of(lines, "backbone") == numbers
    assert row_of(lines, "embedding projection") == ["99,072", "0"]
    assert row_of(lines, "masked-LM head") == ["128,688", "622,128", "4.8x"]
    assert row_of(lines, "sentence-order head") == ["1,538", "1,538", "1.0x"]
    groups = list(describe.PARAMETER_GROUPS)
    titles = ["parameters", *groups[:6], "backbone", *groups[6:]]
    starts = [line.strip().partition("  ")[0] for line in lines]
    assert starts == [*titles, "with both heads"]
    lines = describe.parameter_lines(goldens.variant("unfactorized"), {})
    assert row_of(lines, "embedding projection") == ["0", "0"]
    assert row_of(lines, "word embeddings") == ["720", "720", "1.0x"]


@pytest.mark.parametrize(
    ("variant", "heads", "shared"),
    [
        *(("shared", "3", "True"), ("groups", "3", "True")),
        *(("attention shared", "3", "attention"), ("ffn shared", "3", "FFN")),
        *(("unshared", "3", "False"), ("pruned heads", "2 of 4", "True")),
    ],
)
def test_a_row_of_table_1(variant, heads, shared):
    """Rows of Table 1 state layers, widths, heads and what the layers share."""
    config = goldens.variant(variant)
    _, row = describe.paper_lines("x", config)
    assert row.split() == ["x", "0M", "4", "12", "6", *heads.split(), shared]
    groups = dataclasses.replace(config, num_hidden_groups=4)
    assert describe.paper_lines("x", groups)[1].split()[-1] == "False"


def test_operations_are_counted_in_billions():
    """Training takes three times as many operations as inference.

    By default, 15% of the tokens are predicted.
    """
    config = AlbertConfig()
    for tokens, predictions in ((1, 1), (10, 2), (128, 19)):
        lines = describe.flops_lines(config, tokens, {})
        parts = forward_flops(config, tokens, predictions)
        title = f"GFLOPs, {tokens} tokens, {predictions} predictions"
        assert lines[0].startswith(title)
        total = sum(parts.values())
        forward, training = (f"{n * total / 1e9:,.3f}" for n in (1, 3))
        wanted = [forward, training, "100.0%"]
        assert row_of(lines, "one sequence") == wanted
        share = f"{parts['feed-forward'] / total:.1%}"
        assert row_of(lines, "feed-forward")[-1] == share


def test_command_line():
    """The command describes several configs; an error exits with status 1."""
    command = "-m", "albert_tf.describe", MODELS / "tiny.json"
    done = programs.run(
        *command, MODELS / "small.json", "--sequence_length=128"
    )
    assert done.stdout.count("128 tokens, 19 predictions") == 2
    assert done.stdout.startswith("Table 1")
    assert done.stdout.count("\n\n\nTable 1") == 1
    assert programs.run(*command[:2], ",").returncode == 1
    done = programs.run(*command, "--sequence_length=513")
    assert done.returncode == 1 and done.stdout == ""
    assert "sequence_length=513" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("path", "values", "message"),
    [
        ("tiny.json", {"sequence_length": 0}, "sequence_length=0"),
        ("nowhere.json", {}, "nowhere.json"),
    ],
)
def test_mistakes_are_named(path, values, message):
    """A missing config file or a length of 0 is named in an error."""
    with pytest.raises(InputError, match=message):
        describe.size_report(str(MODELS / path), **values)


def test_a_model_directory_is_its_config(tmp_path):
    """A model directory has the same description as the config in it.

    A folder with a `config.json` raises an error that names
    `convert_checkpoint`.
    """
    path = tmp_path / "albert_config.json"
    path.write_text((MODELS / "tiny.json").read_text())
    of_folder, of_file = map(describe.size_report, map(str, (tmp_path, path)))
    assert of_folder[2:] == of_file[2:]
    path.rename(tmp_path / "config.json")
    with pytest.raises(InputError, match="convert_checkpoint"):
        describe.size_report(str(tmp_path))


def test_every_spelling_of_a_folder_has_its_name(tmp_path, monkeypatch):
    """A trailing slash or `.` does not hide the name of a model directory."""
    tiny.CONFIG.save(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path in (f"{tmp_path}/", ".", str(tmp_path)):
        assert describe.size_report(path)[1].startswith(f"{tmp_path.name} ")


def test_a_phoneme_model_has_its_own_heads(tmp_path):
    """The report on a phoneme model lists its symbol head and its word head.

    Each head has an output for every position.
    """
    table = tiny_phonemes.save_model(tmp_path)
    lines = describe.size_report(str(tmp_path))
    text = "\n".join(lines)
    assert "masked-LM" not in text and "sentence-order" not in text
    assert "32 tokens, 32 predictions" in text
    model = AlbertForPhonemes(
        AlbertConfig.from_model_dir(str(tmp_path)), len(table.words)
    )
    for name in ("symbol", "word"):
        number = getattr(model, f"{name}s").count_params()
        assert row_of(lines, f"{name} head")[0] == f"{number:,}"
    whole = row_of(lines, "with both heads")[0]
    assert whole == f"{model.count_params():,}"
    lines = describe.flops_lines(AlbertConfig(), 100, {"word head": 5000})
    assert "100 tokens, 100 predictions" in lines[0]
    # A multiplication and an addition for each token, width and class.
    assert row_of(lines, "word head")[:2] == ["0.768", "2.304"]


@pytest.mark.parametrize("content", [None, "[]", '{"model_type": "bert"}'])
def test_an_error_names_the_setting(tmp_path, content):
    """The error for a config names `config`, not a flag of other programs."""
    path = tmp_path / "mine.json"
    if content:
        path.write_text(content)
    with pytest.raises(InputError, match=r"`config` (must|.*mine)"):
        describe.size_report(str(path))
