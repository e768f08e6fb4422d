"""A chart of a metric's course as inline SVG."""

import html
import math

from albert_tf.training.history import History

WIDTH, HEIGHT = 380, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 12, 26
# Training rows are averaged down to so many points.
MOST_POINTS = 300
COLOURS = ("var(--train)", "var(--third)", "var(--soft)")


def thinned(xs: list, ys: list) -> tuple[list, list]:
    """Return at most `MOST_POINTS` points, each the mean of its neighbours."""
    size = -(-len(xs) // MOST_POINTS)
    starts = range(0, len(xs), size)
    pieces = [(xs[i : i + size], ys[i : i + size]) for i in starts]
    return (
        [piece[-1] for piece, _ in pieces],
        [sum(piece) / len(piece) for _, piece in pieces],
    )


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers that lie between two bounds."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, or else round numbers, between two bounds."""
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    if len(powers) >= 2:
        return [10.0**p for p in powers][:: -(-len(powers) // 5)]
    return [t for t in ticks(low, high, 4) if t > 0]


def label(value: float) -> str:
    """Return a short number for an axis."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


class Axis:
    """A scale from values to a stretch of pixels.

    Args:
      values: what must fit.
      start, end: pixels of the smallest and of the largest value.
      log: whether equal ratios are equally long.
      margin: room beyond the values, as a share of their range.
    """

    def __init__(
        self,
        values: list,
        start: float,
        end: float,
        log: bool = False,
        margin: float = 0.0,
    ):
        self.start, self.end = start, end
        self.scale = math.log if log else float
        self.log = log
        low, high = self.scale(min(values)), self.scale(max(values))
        room = margin * (high - low or abs(high) or 1.0)
        # A range that begins at zero begins at the edge.
        self.low = low - room * (log or low != 0.0)
        self.high = max(high + room, self.low + 1e-9)

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (self.scale(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return where to draw labels."""
        if self.log:
            return log_ticks(math.exp(self.low), math.exp(self.high))
        return ticks(self.low, self.high)


def _grid(x: Axis, y: Axis) -> str:
    lines = []
    for value in y.ticks():
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" '
            f'y2="{y(value):.1f}" stroke="var(--line)"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" '
            f'text-anchor="end">{label(value)}</text>'
        )
    for value in x.ticks():
        anchor = "end" if x(value) > WIDTH - 30 else "middle"
        lines.append(
            f'<text x="{x(value):.1f}" y="{HEIGHT - 8}" '
            f'text-anchor="{anchor}">{label(value)}</text>'
        )
    return "".join(lines)


def _line(xs: list, ys: list, x: Axis, y: Axis, colour: str, dots: bool) -> str:
    points = [f"{x(a):.1f},{y(b):.1f}" for a, b in zip(xs, ys, strict=True)]
    line = (
        f'<polyline points="{" ".join(points)}" fill="none" '
        f'stroke="{colour}" stroke-width="1.6" stroke-linejoin="round"/>'
    )
    if not dots and len(points) > 1:
        return line
    return line + "".join(
        f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="2.4" '
        f'fill="{colour}"/>'
        for p in points
    )


def curves(history: History, names: tuple[str, ...]) -> list[tuple]:
    """Return (label, steps, values, colour, whether dotted) of each curve."""
    found = []
    for name, colour in zip(names, COLOURS, strict=False):
        xs, ys = history.column("train", name)
        title = "training" if len(names) == 1 else name.split("_")[-1]
        if xs:
            found.append((title, *thinned(xs, ys), colour, False))
    xs, ys = history.column("eval", names[0])
    if xs:
        found.append(("held out", xs, ys, "var(--eval)", True))
    return found


def chart(
    title: str,
    history: History,
    names: tuple[str, ...],
    log: bool = False,
    zero: bool = False,
    level: float | None = None,
) -> str:
    """Return a figure of metrics against steps, or nothing without values.

    Args:
      title: what stands above.
      history: where the values are.
      names: metrics to draw; held-out values of the first one.
      log: whether the values' axis is logarithmic.
      zero: whether it begins at zero.
      level: a value to mark, such as that of chance.
    """
    found = curves(history, names)
    values = [v for curve in found for v in curve[2]]
    if not values:
        return ""
    log = log and min(values) > 0
    values += [0.0] if zero else []
    values += [level] if level is not None else []
    steps = [s for curve in found for s in curve[1]]
    x = Axis([0, *steps], LEFT, WIDTH - RIGHT)
    y = Axis(values, HEIGHT - BOTTOM, TOP, log, margin=0.05)
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{html.escape(text)} '
        f"{label(ys[-1])}</span>"
        for text, _, ys, colour, _ in found
    )
    mark = ""
    if level is not None:
        mark = (
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(level):.1f}" '
            f'y2="{y(level):.1f}" stroke="var(--soft)" '
            'stroke-dasharray="4 4"/>'
        )
    lines = "".join(
        _line(xs, ys, x, y, colour, dots) for _, xs, ys, colour, dots in found
    )
    return (
        f"<figure><figcaption><b>{html.escape(title)}</b>{legend}"
        "</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)} against steps">'
        f"{_grid(x, y)}{mark}{lines}</svg></figure>"
    )
