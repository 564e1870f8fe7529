# SPDX-License-Identifier: Apache-2.0
"""The charts of tools/report.py, drawn by matplotlib as inline SVG. Colours are those of the page's style, so that they
follow light, dark and print; every bar and point has its values as attributes.

Without matplotlib every chart is empty, and the report says so: its tables have all numbers.
"""

import html
import io
import re

try:
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None

WIDTH = 5.2  # inches: as many points as a phone has columns of pixels, so that text is drawn in its size
# Colours that stand for variables of the page's style.
INK, SOFT, RULE, GOOD, BAD = "#010101", "#020202", "#030303", "#040404", "#050505"
SERIES = ("#060606", "#070707", "#080808", "#090909", "#0a0a0a", "#0b0b0b")
VARIABLES = {INK: "ink", SOFT: "soft", RULE: "rule", GOOD: "good", BAD: "bad",
             **{colour: name for colour, name in zip(SERIES, "abcdef")}}


def can_draw():
    return plt is not None


def figure(height, label):
    plt.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": label, "font.size": 8, "text.color": INK, "axes.labelcolor": SOFT,
        "xtick.color": SOFT, "ytick.color": INK, "axes.edgecolor": RULE, "grid.color": RULE, "grid.linewidth": 0.5,
        "axes.spines.top": False, "axes.spines.right": False})
    shown, axis = plt.subplots(figsize=(WIDTH, height))
    axis.set_axisbelow(True)
    return shown, axis


def svg(shown, label):
    """The drawing as an element of a page: no file header, no identifiers but those that it refers to itself."""
    buffer = io.StringIO()
    shown.savefig(buffer, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(shown)
    text = buffer.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>',
                  rf'<svg viewBox="\1" role="img" aria-label="{html.escape(label)}">', text, count=1)
    # "value=1.5" and "x=1 y=2" are what draw() named its parts.
    text = re.sub(r' id="value=([^"]*)"', r' data-value="\1"', text)
    text = re.sub(r' id="x=([^" ]*) y=([^" ]*)( [^"]*)?"', r' data-x="\1" data-y="\2"', text)
    used = set(re.findall(r"#(\w+)", text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    for colour, name in VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    text = re.sub(r"font-family: [^;\"]*;?", "", text)
    return text.replace("xlink:href", "href").strip()


def bars(items, label, mark=1.0):
    """Horizontal bars of (name, value), with a line where both are equal."""
    if not items or not can_draw():
        return ""
    shown, axis = figure(0.5 + 0.2 * len(items), label)
    for i, (name, value) in enumerate(items):
        bar, = axis.barh(i, value, 0.7, color=GOOD if value >= mark else BAD)
        bar.set_gid(f"value={value!r}")
        axis.text(value, i, f" {value:.2f}", va="center")
    axis.axvline(mark, color=SOFT, linestyle="--", linewidth=0.8)
    axis.set_yticks(range(len(items)), [name for name, _ in items])
    axis.set_xlim(0, 1.15 * max([mark] + [value for _, value in items]))
    axis.set_ylim(len(items) - 0.5, -0.5)
    axis.tick_params(length=0)
    axis.spines["left"].set_visible(False)
    return svg(shown, label)


def logarithmic(axis, x_title, y_title, base):
    axis.set_xscale("log", base=base)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1e-3 else f"{value:.0e}")
    axis.minorticks_off()
    low, high = axis.get_ylim()
    if high / low < 1e3:  # a tick for each power of ten would be too few
        axis.set_yticks([digit * 10.0 ** k for k in range(-6, 9) for digit in (1, 2, 5)
                         if low <= digit * 10.0 ** k <= high])
    axis.set_xlabel(x_title)
    axis.set_ylabel(y_title)
    axis.grid(True)


def points(axis, places, colour, size=4):
    for x, y, *name in places:
        # Two series may have the same point: the name tells them apart.
        dot, = axis.plot([x], [y], "o", color=colour, markersize=size)
        dot.set_gid(f"x={x!r} y={y!r} {colour[1:]}{''.join(name)}".replace('"', ""))


def lines(series, x_title, y_title, label):
    """{name: [(x, y)]} on two logarithmic axes."""
    series = {name: places for name, places in series.items() if places}
    if not series or not can_draw():
        return ""
    shown, axis = figure(3, label)
    for number, (name, places) in enumerate(series.items()):
        colour = SERIES[number % len(SERIES)]
        axis.plot(*zip(*places), color=colour, label=name, linewidth=1.2)
        points(axis, places, colour, 3)
    logarithmic(axis, x_title, y_title, 2)
    axis.set_xticks(sorted({x for places in series.values() for x, _ in places}))
    axis.legend(frameon=False)
    return svg(shown, label)


def scatter(named, x_title, y_title, label):
    """(name, x, y) on two logarithmic axes."""
    if not named or not can_draw():
        return ""
    shown, axis = figure(3, label)
    points(axis, [(x, y, name) for name, x, y in named], SERIES[0])
    logarithmic(axis, x_title, y_title, 2)
    axis.margins(x=0.25, y=0.15)
    # Above and below in turn, as names beside each other would overlap.
    for i, (name, x, y) in enumerate(sorted(named, key=lambda one: one[1])):
        axis.annotate(name, (x, y), (0, 5 if i % 2 else -11), textcoords="offset points", ha="center")
    return svg(shown, label)


def roofline(named, peak, slope, label):
    """(name, x, y) under a roof: y is at most slope * x, and at most peak."""
    if not named or not can_draw():
        return ""
    knee = peak / slope
    shown, axis = figure(3, label)
    left = min([knee / 4] + [x for _, x, _ in named])
    right = max([knee * 16] + [x for _, x, _ in named])
    axis.plot([left, knee, right], [slope * left, peak, peak], color=SERIES[5], linewidth=1.2)
    points(axis, [(x, y, name) for name, x, y in named], SERIES[0], 3)
    logarithmic(axis, "FLOP per byte of DRAM", "TFLOP/s", 10)
    return svg(shown, label)
