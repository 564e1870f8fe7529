"""The charts of tools/report.py, as inline SVG: colours come from the page's style, so that they follow
light, dark and print."""

import html
import math

WIDTH = 720
LABEL = 190
ROW = 22
SERIES = ("a", "b", "c", "d", "e", "f")  # classes of the page's style, in this order


def text(x, y, words, anchor="start", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{html.escape(words)}</text>'


def svg(height, parts, label):
    return (f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{html.escape(label)}">'
            + "".join(parts) + "</svg>")


def bars(items, label, mark=1.0):
    """Horizontal bars of (name, value), with a line where both are equal."""
    if not items:
        return ""
    most = max([mark] + [value for _, value in items]) * 1.12
    scale = (WIDTH - LABEL - 60) / most
    parts = []
    for i, (name, value) in enumerate(items):
        y = i * ROW
        kind = "good" if value >= mark else "bad"
        parts.append(text(LABEL - 8, y + 15, name, "end"))
        parts.append(f'<rect class="bar {kind}" x="{LABEL}" y="{y + 3}" height="{ROW - 7}" '
                     f'width="{value * scale:.2f}" data-value="{value!r}"/>')
        parts.append(text(LABEL + value * scale + 6, y + 15, f"{value:.2f}"))
    height = len(items) * ROW + 4
    x = LABEL + mark * scale
    parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
    return svg(height, parts, label)


class LogAxis:
    """Positions of values on a logarithmic axis, with its ticks."""

    def __init__(self, values, begin, end, base):
        self.begin, self.end, self.base = begin, end, base
        low, high = min(values), max(values)
        self.low = math.floor(math.log(low, base) + 1e-9)
        self.high = max(math.ceil(math.log(high, base) - 1e-9), self.low + 1)

    def at(self, value):
        share = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self):
        return [self.base ** k for k in range(self.low, self.high + 1)]


def axes(x, y, x_title, y_title, bottom):
    parts = []
    for tick in x.ticks():
        parts.append(f'<line class="grid" x1="{x.at(tick):.1f}" x2="{x.at(tick):.1f}" y1="{y.end}" '
                     f'y2="{y.begin}"/>')
        parts.append(text(x.at(tick), bottom - 22, f"{tick:g}", "middle"))
    for tick in y.ticks():
        parts.append(f'<line class="grid" x1="{x.begin}" x2="{x.end}" y1="{y.at(tick):.1f}" '
                     f'y2="{y.at(tick):.1f}"/>')
        parts.append(text(x.begin - 6, y.at(tick) + 4, f"{tick:g}", "end"))
    parts.append(text((x.begin + x.end) / 2, bottom - 4, x_title, "middle"))
    parts.append(text(4, 12, y_title))
    return parts


def lines(series, x_title, y_title, label):
    """{name: [(x, y)]} on two logarithmic axes; every point has its values as attributes."""
    series = {name: points for name, points in series.items() if points}
    if not series:
        return ""
    bottom = 340
    x = LogAxis([p[0] for points in series.values() for p in points], 60, WIDTH - 130, 2)
    y = LogAxis([p[1] for points in series.values() for p in points], bottom - 40, 24, 10)
    parts = axes(x, y, x_title, y_title, bottom)
    for number, (name, points) in enumerate(series.items()):
        kind = SERIES[number % len(SERIES)]
        path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in points)
        parts.append(f'<polyline class="line {kind}" points="{path}"/>')
        parts += [f'<circle class="dot {kind}" cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="3" '
                  f'data-x="{a!r}" data-y="{b!r}"/>' for a, b in points]
        parts.append(f'<rect class="dot {kind}" x="{WIDTH - 118}" y="{24 + number * 20}" width="12" '
                     'height="12"/>')
        parts.append(text(WIDTH - 100, 35 + number * 20, name))
    return svg(bottom, parts, label)


def scatter(points, x_title, y_title, label):
    """(name, x, y) on two logarithmic axes."""
    if not points:
        return ""
    bottom = 320
    x = LogAxis([p[1] for p in points], 60, WIDTH - 100, 2)
    y = LogAxis([p[2] for p in points], bottom - 40, 24, 10)
    parts = axes(x, y, x_title, y_title, bottom)
    for name, a, b in points:
        parts.append(f'<circle class="dot a" cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="5" '
                     f'data-x="{a!r}" data-y="{b!r}"/>')
        parts.append(text(x.at(a) + 8, y.at(b) + 4, name))
    return svg(bottom, parts, label)


def roofline(points, peak, slope, label):
    """(name, x, y) under a roof: y is at most slope * x, and at most peak. Names are titles of the
    points, because there are too many for labels."""
    if not points:
        return ""
    bottom, knee = 340, peak / slope
    x = LogAxis([p[1] for p in points] + [knee / 4, knee * 16], 60, WIDTH - 30, 10)
    y = LogAxis([p[2] for p in points] + [peak], bottom - 40, 24, 10)
    parts = axes(x, y, "FLOP a byte", "TFLOP/s", bottom)
    left = max(x.base ** x.low, y.base ** y.low / slope)
    corners = [(left, slope * left), (knee, peak), (x.base ** x.high, peak)]
    path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in corners)
    parts.append(f'<polyline class="line f" points="{path}"/>')
    for name, a, b in points:
        parts.append(f'<circle class="dot a" cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="4" data-x="{a!r}" '
                     f'data-y="{b!r}"><title>{html.escape(name)}</title></circle>')
    return svg(bottom, parts, label)
