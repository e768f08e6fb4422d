"""The report is one page with every curve, and needs nothing else."""

import html.parser
import re

import pytest

from albert_tf import report
from albert_tf.training import report_chart
from albert_tf.training.history import History


class Page(html.parser.HTMLParser):
    """Collects tags that must be closed, captions and links."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.points = [], [], []
        self.text = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in ("meta", "line", "circle", "polyline", "rect"):
            self.open.append(tag)
        if tag == "polyline":
            pairs = attributes["points"].split()
            self.points.append([tuple(map(float, p.split(","))) for p in pairs])
        self.links += [
            attributes[k] for k in ("src", "href") if k in attributes
        ]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag in self.open[-1:] and tag not in ("meta",):
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def run_dir(tmp_path):
    """A run's folder, with 1,000 training rows and a warning."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "metadata.json").write_text(
        '{"max_seq_length": 128, "statistics": {"swapped_share": 0.4987}}'
    )
    folder = tmp_path / "run <b>"
    folder.mkdir()
    history = History(str(folder))
    for step in range(1, 1001):
        values = {
            "steps": 1,
            "loss": 10 - step / 200,
            "examples_per_second": 30.0,
            "trust_ratio_min": 0.1,
            "trust_ratio_max": 10.0,
            "odd_metric": 1.0,
        }
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
    text = report.page(str(run_dir))
    page = Page(text)
    assert page.open == [] and page.links == []
    assert "http" not in text and "<script" not in text
    shown = " ".join(page.text)
    for piece in ("run <b>", "5 < 6 & flat", "hidden_size", "77", "a=b"):
        assert piece in shown
    for piece in ("1,000 of 2,000", "swapped_share", "0.4987", "odd_metric"):
        assert piece in shown


def test_curves_are_thinned_and_fall_as_the_loss_does(run_dir):
    """At most 300 points, in the frame, down where the values go down."""
    points = Page(report.page(str(run_dir))).points
    loss = points[0]
    assert 200 < len(loss) <= 300
    xs, ys = zip(*loss, strict=True)
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys)  # pixels grow downwards
    assert all(0 <= x <= report_chart.WIDTH for x in xs)
    assert all(0 <= y <= report_chart.HEIGHT for y in ys)


def test_the_command_writes_the_page(run_dir, capsys):
    """`python -m albert_tf.report` names the file that it wrote."""
    assert report.cli([str(run_dir)]) == 0
    path = run_dir / "report.html"
    assert capsys.readouterr().out.strip() == str(path)
    assert path.read_text("utf-8") == report.page(str(run_dir))


@pytest.mark.parametrize("content", [None, "", "{broken\n"])
def test_a_folder_without_a_history_is_one_error(tmp_path, capsys, content):
    """Missing, empty and damaged histories are one line each."""
    if content is not None:
        (tmp_path / "history.jsonl").write_text(content)
    assert report.cli([str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1


@pytest.mark.parametrize(
    "low, high, expected",
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.48, 0.61, [0.5, 0.55, 0.6]),
        (0, 125000, [0, 50000, 100000]),
    ],
)
def test_ticks_are_round_numbers(low, high, expected):
    """Steps of 1, 2 or 5 times a power of ten, inside the bounds."""
    assert report_chart.ticks(low, high) == pytest.approx(expected)


def test_a_log_axis_gives_equal_ratios_equal_room():
    """1, 10 and 100 are equally far apart, and are labelled."""
    axis = report_chart.Axis([1.0, 100.0], 200, 0, log=True, margin=0.05)
    assert axis(1) - axis(10) == pytest.approx(axis(10) - axis(100))
    assert axis.ticks() == pytest.approx([1, 10, 100])


@pytest.mark.parametrize(
    "value, text",
    [(1250000, "1.25M"), (20000, "20k"), (0.00176, "0.00176"), (3, "3")],
)
def test_labels_are_short(value, text):
    """Large numbers get a letter."""
    assert report_chart.label(value) == text


def test_constant_values_have_a_frame(tmp_path):
    """A curve without any range is drawn, not divided by zero."""
    history = History(str(tmp_path))
    history.add(5, "train", {"steps": 5, "loss": 0.0})
    svg = report_chart.chart("Loss", history, ("loss",))
    assert re.search(r"<circle", svg) and "nan" not in svg
