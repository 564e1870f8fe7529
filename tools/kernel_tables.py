#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the measured tables of docs/kernels/block_mask.md and wide_heads.md.

usage: kernel_tables.py           writes them, from evidence/nvidia-h200/block_masks.json and wide_heads.json
       kernel_tables.py --check   fails if a page says something else

`tools/time_block_masks.py --json` and `tools/time_wide_heads.py --json` write such files.
"""

import argparse
import json
import pathlib
import sys

from ladder_tables import between, table

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "evidence/nvidia-h200"
PAGES = ROOT / "docs/kernels"
MARKS = "<!-- measured: made by tools/kernel_tables.py -->", "<!-- measured: end -->"


def block_masks(rows):
    """Speeds relative to the dense kernel, and those of the top-k selection."""
    timed = [row for row in rows if "density" in row]
    densities = sorted({row["density"] for row in timed})
    top_k = {row["precision"]: row for row in rows if "top_k" in row}
    lines = []
    for precision, size in dict.fromkeys((row["precision"], row["block_size"]) for row in timed):
        of_dense = {row["density"]: f"{row['of_dense']:.3f}" for row in timed
                    if (row["precision"], row["block_size"]) == (precision, size)}
        chosen = f"{top_k[precision]['tflops']:.0f}" if size == 64 else ""
        lines.append([precision, str(size), *(of_dense[density] for density in densities), chosen])
    return table(["type", "blocks", *(f"density {density:.1%}" for density in densities), "top-64, TFLOP/s"], lines)


def wide_heads(report):
    """Time, speed, and the time of PyTorch's fastest backend in units of ours, without and with a causal mask."""
    lines = {}
    for row in report["times"]:
        batch, heads, seqlen, head_dim, head_dim_v = row["shape"]
        ms = row["ms"]["octavo"]
        flop = 2 * batch * heads * seqlen**2 * (head_dim + head_dim_v) / (2 if row["causal"] else 1)
        lines.setdefault(tuple(row["shape"]), []).append(f"{ms * 1e3:.0f}, {flop / ms / 1e9:.0f}, {row['ratio']:.2f}")
    return table(["batch, heads, tokens, D, Dv", "full: us, TFLOP/s, ratio to PyTorch", "causal"],
                 [[", ".join(map(str, shape)), *cells] for shape, cells in lines.items()])


TABLES = {"block_mask": ("block_masks.json", block_masks), "wide_heads": ("wide_heads.json", wide_heads)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    for page, (file, made) in TABLES.items():
        path = PAGES / f"{page}.md"
        text = path.read_text()
        whole = between(text, MARKS, made(json.loads((EVIDENCE / file).read_text())))
        if not given.check:
            path.write_text(whole)
        elif text != whole:
            sys.exit(f"docs/kernels/{page}.md is not what tools/kernel_tables.py makes of it: run it.")


if __name__ == "__main__":
    main()
