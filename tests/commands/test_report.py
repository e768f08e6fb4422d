"""The report is one page with every curve, and needs nothing else."""

import base64
import html.parser
import json
import shutil
from xml.etree import ElementTree

import programs
import pytest

from albert_tf.base.errors import InputError
from albert_tf.report import report as write_report
from albert_tf.training.runs import run_report
from albert_tf.training.runs.history import History

VOID = ("meta", "img")  # tags without an end
SVG = "{http://www.w3.org/2000/svg}"


class Page(html.parser.HTMLParser):
    """Collects the text, the links, and the pictures by their names."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.text, self.pictures = [], [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [
            attributes[k] for k in ("src", "href") if k in attributes
        ]
        if tag == "img":
            kind, _, content = attributes["src"].partition(",")
            assert kind == "data:image/svg+xml;base64"
            self.pictures[attributes["alt"]] = base64.b64decode(content)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def curves(svg):
    """Return the points of every line that a legend's sample does not have."""
    paths = [
        path.get("d").replace("M", "").split("L")
        for path in ElementTree.fromstring(svg).iter(f"{SVG}path")
        if "fill: none" in path.get("style", "")
    ]
    points = [[tuple(map(float, p.split())) for p in path] for path in paths]
    return [line for line in points if len(line) > 3]


@pytest.fixture
def run_dir(tmp_path):
    """A run's folder, with 1,000 training rows and a warning."""
    data = tmp_path / "data"
    data.mkdir()
    statistics = {"swapped_share": 0.4987, "eval": {"padding_share": 0.125}}
    metadata = {"max_seq_length": 128, "statistics": statistics}
    (data / "metadata.json").write_text(json.dumps(metadata))
    folder = tmp_path / "run <b>"
    folder.mkdir()
    history = History(str(folder))
    for step in range(1, 1001):
        values = {"steps": 1, "loss": 10 / (1 + step / 200)}
        values |= {"examples_per_second": 30.0, "odd_metric": 1.0}
        values |= {"trust_ratio_min": 0.1, "trust_ratio_max": 10.0}
        history.add(step, "train", values)
    history.add(500, "eval", {"loss": 7.7})
    history.add(600, "health", {"kind": "x", "note": "5 < 6 & flat"})
    history.save()
    (folder / "albert_config.json").write_text('{"hidden_size": 77}')
    (folder / "run.flags").write_text(
        f"--data_dir={data}\n--num_train_steps=2000\n--flag=a=b\n"
    )
    return folder


def test_the_page_holds_everything_and_links_nothing(run_dir):
    """Config, flags, data, notes and curves; tags close, text is escaped."""
    text = run_report.page(str(run_dir))
    page = Page(text)
    assert page.open == []
    assert all(link.startswith("data:") for link in page.links)
    assert "http" not in text and "<script" not in text
    shown = " ".join(page.text)
    for piece in ("run <b>", "5 < 6 & flat", "hidden_size", "77", "a=b"):
        assert piece in shown
    for piece in ("1,000 of 2,000", "swapped_share", "0.4987", "128", "7.7"):
        assert piece in shown
    assert "Held-out records" in page.text and "padding_share" in page.text
    assert list(page.pictures) == ["loss", "trust_ratio", "odd_metric"]
    loss, trust = (page.pictures[k].decode() for k in ("loss", "trust_ratio"))
    assert ">train<" in loss and ">eval<" in loss
    assert ">train min<" in trust and ">train max<" in trust


def test_settings_are_those_of_the_run(run_dir, monkeypatch):
    """Records that the flags do not name are not the run's."""
    (run_dir / "run.flags").unlink()
    monkeypatch.chdir(run_dir.parent / "data")
    assert "swapped_share" not in run_report.page(str(run_dir))


def test_curves_are_thinned_and_fall_as_the_loss_does(run_dir):
    """300 points of 1,000, each a mean, down where the values go down."""
    svg = Page(run_report.page(str(run_dir))).pictures["loss"]
    (line,) = curves(svg)
    xs, ys = zip(*line, strict=True)
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys)  # pixels grow downwards
    steps, means = run_report.thinned(list(range(1000)), [1.0, 3.0] * 500)
    assert len(steps) == len(means) == 300
    assert steps[-1] == 999 and 1.5 < min(means) < max(means) < 2.5


def test_powers_of_ten_are_equally_far_apart_where_ratios_count():
    """The trust ratio's axis is logarithmic, that of the loss is not."""
    history = History("")
    for step in range(4):
        values = {"trust_ratio_max": 10.0**step, "loss": 10.0**step}
        history.add(step, "train", values)
    heights = {}
    for title, names in run_report.panels(history).items():
        (line,) = curves(run_report.chart(history, title, names))
        ys = [y for _, y in line]
        heights[title] = [a - b for a, b in zip(ys, ys[1:], strict=False)]
    ratios = heights["trust_ratio"]
    assert ratios == pytest.approx([ratios[0]] * 3, rel=1e-3)
    assert heights["loss"][2] > 5 * heights["loss"][0]


def test_the_command_writes_the_page(run_dir):
    """`python -m albert_tf.report` names the file that it wrote."""
    command = "-m", "albert_tf.report", run_dir
    printed = programs.run(*command).stdout
    path = run_dir / "report.html"
    assert printed.splitlines() == [str(path)]
    assert path.read_text("utf-8") == run_report.page(str(run_dir))


def test_several_seeds_have_a_page_each(run_dir):
    """Where the runs lie in a folder without a history, each is shown."""
    runs = [run_dir.rename(run_dir.parent / "seed_1")]
    runs.append(shutil.copytree(runs[0], run_dir.parent / "seed_2"))
    write_report(model_dir=str(run_dir.parent))
    for folder in runs:
        page = (folder / "report.html").read_text("utf-8")
        assert page == run_report.page(str(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "history.jsonl"), ("", "must hold"), ("{broken\n", "is damaged")],
)
def test_a_folder_without_a_history_is_one_error(tmp_path, content, message):
    """Missing, empty and damaged histories say what is wrong."""
    if content is not None:
        (tmp_path / "history.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        run_report.page(str(tmp_path))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1250000, "1,250,000"),
        (0.001761234, "0.001761"),
        (45678.9, "45,679"),
        ([1, 0.5], "1, 0.5"),
        (True, "True"),
    ],
)
def test_numbers_are_short(value, text):
    """Thousands are set apart, and digits that say nothing left out."""
    assert run_report.number(value) == text
