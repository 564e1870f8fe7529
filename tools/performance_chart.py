#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the chart of the README: the forward pass on an H200 beside FlashAttention-3 and cuDNN.

usage: performance_chart.py            writes docs/assets/forward_h200_{light,dark}.svg
       performance_chart.py --check    fails if they were drawn from other numbers

The numbers are those of evidence/nvidia-h200/sm90_compare.json; each file names them in its description.
Drawing needs matplotlib (tools/docs_requirements.txt); --check does not.
"""

import argparse
import html
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "evidence/nvidia-h200/sm90_compare.json"
TOKENS = 16384  # of a case: batch times length
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MASKS = (("none", "full"), ("top_left", "causal"))
# Colours that people with any colour vision can tell apart (Okabe and Ito), each with a hatch-free fill.
THEMES = {
    "light": {"ink": "#1f2328", "soft": "#59636e", "grid": "#d1d9e0",
              "bars": ("#0072b2", "#e69f00", "#9aa4ae")},
    "dark": {"ink": "#f0f6fc", "soft": "#9198a1", "grid": "#3d444d",
             "bars": ("#56b4e9", "#e69f00", "#6e7781")},
}
NAMES = ("Octavo", "FlashAttention-3", "cuDNN")


def times_of(row):
    """Microseconds of Octavo, FlashAttention-3 and cuDNN, which took turns in one process."""
    return row["octavo_us"], row["peers_us"]["fa3"], row["peers_us"]["cudnn"]


def flop(row):
    products = 4 * row["batch"] * row["heads"] * row["length"] ** 2 * row["head_dim"]
    return products / (1 if row["causal"] == "none" else 2)


def panels(report):
    """{(head_dim, causal): {length: TFLOP/s of each of NAMES}} of the cases in float16 that fill the GPU."""
    found = {}
    for row in report["rows"]:
        if row["dtype"] == "f16" and row["regime"] == "burst" and row["batch"] * row["length"] == TOKENS:
            speeds = [round(flop(row) / us / 1e6, 1) for us in times_of(row)]
            found.setdefault((row["head_dim"], row["causal"]), {})[row["length"]] = speeds
    return found


def description(report):
    """What the chart shows, in words and numbers: the text that --check compares."""
    cases = [f"head_dim {head_dim} {dict(MASKS)[causal]} length {length}: "
             + ", ".join(f"{speed:g}" for speed in speeds)
             for (head_dim, causal), of in sorted(panels(report).items()) for length, speeds in sorted(of.items())]
    return (f"TFLOP/s of the forward pass in float16 on an {report['gpu']['name']}, {TOKENS} tokens a call, for "
            f"{', '.join(NAMES)}. " + "; ".join(cases) + ".")


def draw(report, theme, path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    colours = THEMES[theme]
    plt.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "octavo", "font.size": 11,
        "text.color": colours["ink"], "axes.labelcolor": colours["soft"], "xtick.color": colours["soft"],
        "ytick.color": colours["soft"], "axes.edgecolor": colours["grid"]})
    data = panels(report)
    head_dims = sorted({head_dim for head_dim, _ in data})
    figure, grid = plt.subplots(len(MASKS), len(head_dims), figsize=(10.4, 5.2), sharey=True, squeeze=False)
    for line, (causal, mask) in zip(grid, MASKS):
        for axis, head_dim in zip(line, head_dims):
            of = data[head_dim, causal]
            for i, (name, colour) in enumerate(zip(NAMES, colours["bars"])):
                axis.bar([x + (i - 1) * 0.28 for x in range(len(LENGTHS))], [of[n][i] for n in LENGTHS], 0.26,
                         color=colour, label=name)
            axis.set_title(f"head_dim {head_dim}, {mask}", fontsize=11, color=colours["ink"])
            axis.set_xticks(range(len(LENGTHS)), [str(n) if n < 1024 else f"{n // 1024}k" for n in LENGTHS])
            axis.tick_params(length=0)
            axis.grid(axis="y", color=colours["grid"], linewidth=0.6)
            axis.set_axisbelow(True)
            axis.spines[["top", "right", "left"]].set_visible(False)
        line[0].set_ylabel("TFLOP/s")
    for axis in grid[-1]:
        axis.set_xlabel("sequence length")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncol=len(NAMES), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None,
                                                     "Title": "Octavo beside FlashAttention-3 and cuDNN"})
    plt.close(figure)
    # Laid out with the font that matplotlib brings, which is wide; shown with the reader's own.
    text = path.read_text().replace("'DejaVu Sans'", "system-ui, 'Helvetica Neue', Arial, 'DejaVu Sans'")
    words = html.escape(description(report))
    path.write_text(re.sub(r"(<svg [^>]*>)", rf"\1\n <desc>{words}</desc>", text, count=1))


def described(path):
    found = re.search(r"<desc>(.*?)</desc>", path.read_text(), re.DOTALL) if path.is_file() else None
    return html.unescape(found[1]) if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    arguments = parser.parse_args()
    report = json.loads((arguments.root / EVIDENCE.relative_to(ROOT)).read_text())
    for theme in THEMES:
        path = arguments.root / f"docs/assets/forward_h200_{theme}.svg"
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(report, theme, path)
        elif described(path) != description(report):
            sys.exit(f"performance_chart: {path.name} shows other numbers than {EVIDENCE.name}; "
                     "tools/performance_chart.py draws it again.")


if __name__ == "__main__":
    main()
