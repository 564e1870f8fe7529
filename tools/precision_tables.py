#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the measured tables of docs/precision.md, from the reports of `octavo accuracy --json` on a GPU.

usage: precision_tables.py            writes docs/precision.md
       precision_tables.py --check    fails if it says something else
"""

import argparse
import csv
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "evidence/nvidia-h200/accuracy.json"
PEERS = ROOT / "bench/peers_fp8_bias.csv"
PAGE = ROOT / "docs/precision.md"
BEGIN = "<!-- precision: made by tools/precision_tables.py -->"
END = "<!-- precision: end -->"
PEER_NAMES = {"fa3": "FlashAttention-3", "cudnn-9.19": "cuDNN 9.19"}


def size_of(row):
    return row["heads"], row["seqlen_q"], row["seqlen_kv"], row["head_dim"]


def time_of(us):
    return "not measured" if us is None else f"{us:.4g}"


def error_tables(rows):
    """A table for each distribution and size, except for distributions with a row per length."""
    lines = []
    for data, size in dict.fromkeys((r["data"], size_of(r)) for r in rows):
        own = [r for r in rows if (r["data"], size_of(r)) == (data, size)]
        heads, seqlen_q, seqlen_kv, head_dim = size
        lines += ["", f"**{data}**, (1, {heads}, {seqlen_q}, {head_dim}), {seqlen_kv} keys", "",
                  "| mode | max | rmse | relative rmse | 1 - cosine | kernel max | kernel rmse | us | prequantized, us |",
                  "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
        for r in own:
            if r["not_available"] is not None:
                lines.append(f"| `{r['precision']}` | not available | | | | | | | |")
                continue
            t, k = r["total"], r["kernel_error"]
            lines.append(
                f"| `{r['precision']}` | {t['max_abs']:.1e} | {t['rmse']:.1e} | {t['relative_rmse']:.1e} | "
                f"{1 - t['cosine']:.1e} | {k['max_abs']:.1e} | {k['rmse']:.1e} | {time_of(r['us'])} | "
                f"{time_of(r['prequantized_us'])} |")
    return lines


def by_length(rows, data, cell):
    """A table of modes by number of keys."""
    own = [r for r in rows if r["data"] == data and r["not_available"] is None]
    keys = sorted({r["seqlen_kv"] for r in own})
    lines = ["| | " + " | ".join(f"{n}" for n in keys) + " |", "| --- |" + " ---: |" * len(keys)]
    for precision in dict.fromkeys(r["precision"] for r in own):
        cells = {r["seqlen_kv"]: cell(r) for r in own if r["precision"] == precision}
        lines.append(f"| `{precision}` | " + " | ".join(cells.get(n, "") for n in keys) + " |")
    return keys, lines


def peer_lines(keys):
    found = {}
    for row in csv.DictReader(PEERS.read_text().splitlines()):
        if row["dtype"] == "e4m3" and row["D"] == "128":
            found.setdefault(row["impl"], {})[int(row["S"])] = float(row["mean_out_over_mean_v"]) - 1
    return [f"| {PEER_NAMES[impl]}, FP8 | " +
            " | ".join(f"{at[n]:+.1e}" if n in at else "" for n in keys) + " |"
            for impl, at in found.items()]


def tables(report):
    rows = report["rows"]
    lines = [f"## Measured", "", f"{report['machine']}, `octavo accuracy`, the worst of {report['seeds']} seeds (one beyond 4096 keys). *kernel*: against fp64 on "
             "what the mode makes of the inputs. Times by replays of a CUDA graph, from 16-bit tensors; *prequantized*: of operands quantized before."]
    lines += ["", "![time against error](../evidence/nvidia-h200/accuracy.svg)"]
    lines += error_tables([r for r in rows if r["data"] not in ("v_mean", "long")])
    keys, bias = by_length(rows, "v_mean", lambda r: f"{r['total']['bias']:+.1e}")
    lines += ["", "**Bias**: V of mean 2, D = 128; the mean error over the mean output, by keys. The peers' are on record "
              "([bench/peers_fp8_bias.csv](../bench/peers_fp8_bias.csv)), of as many queries as keys.", ""] + bias + peer_lines(keys)
    _, kernel = by_length(rows, "v_mean", lambda r: f"{r['kernel_error']['bias']:+.1e}")
    lines += ["", "The kernels' part of it, against fp64 on the quantized inputs:", ""] + kernel
    _, long = by_length(rows, "long", lambda r: f"{r['total']['relative_rmse']:.1e}")
    lines += ["", "**Length**: relative rmse on standard normal data, D = 64, by keys.", ""] + long
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    head, tail = page.split(BEGIN)[0], page.split(END)[1]
    made = ["## Measured", "", "Nothing yet."]
    if SOURCE.is_file():
        made = tables(json.loads(SOURCE.read_text()))
    whole = head + "\n".join([BEGIN, *made, END]) + tail
    if not arguments.check:
        PAGE.write_text(whole)
    elif page != whole:
        sys.exit("docs/precision.md is not what tools/precision_tables.py makes of evidence/nvidia-h200/accuracy.json.")


if __name__ == "__main__":
    main()
