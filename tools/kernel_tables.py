#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the measured tables of pages in docs/kernels, and of docs/evolve.md.

usage: kernel_tables.py           writes them, from the reports in evidence/nvidia-h200 that TABLES names
       kernel_tables.py --check   fails if a page says something else

`tools/time_block_masks.py --json`, `tools/time_wide_heads.py --json`, `tools/evidence.sh live --parts
backward` and `tools/evolve_evidence.py` write such files.
"""

import argparse
import json
import pathlib
import sys

from ladder_tables import between, table

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "evidence/nvidia-h200"
PAGES = ROOT / "docs"
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


def backward(report):
    """TFLOP/s of the backward pass and its peers in bursts, and its time in units of FlashAttention-3's."""
    def place(row):
        return row["head_dim"], -row["length"], row["causal"] != "none"

    sustained = {(row["name"], row["causal"]): row for row in report["sustained"]}
    lines = []
    for row in sorted(report["rows"], key=place):
        speed = row["octavo_gflops"] / 1e3
        peers = [f"{speed * row['octavo_us'] / row['peers_us'][name]:.0f}" if name in row["peers_us"] else ""
                 for name in ("fa3", "fa3_deterministic", "cudnn", "flash")]
        long = sustained.get((row["name"], row["causal"]))
        ratios = [f"{one['peers_us']['fa3'] / one['octavo_us']:.2f}" if one else "" for one in (row, long)]
        shape = ",".join(str(row[key]) for key in ("batch", "heads", "length", "head_dim"))
        lines.append([f"({shape}){' c' if row['causal'] != 'none' else ''}", f"{speed:.0f}", *peers, *ratios])
    return table(["shape", "Octavo", "FA3", "FA3 deterministic", "cuDNN", "FA2", "ratio to FA3", "sustained"], lines)


def evolve(report):
    """What runs found from slow configurations, what exhaustive searches find, and what became of patches."""
    found = table(["from", "changes", "gain", "beside the shipped kernel", "candidates", "seconds",
                   "gain of random", "gain of best_of_n"],
                  [[f"{back['base_us']:.2f} us", back["changes"], f"{back['speedup'] - 1:+.1%}",
                    f"{back['beside_shipped']['ratio'] - 1:+.1%}", str(back["judged"]), str(back["seconds"])] +
                   [f"{back['controls'][name] - 1:+.1%}" if name in back["controls"] else ""
                    for name in ("random", "best_of_n")] for back in report["comebacks"]])
    shapes = table(["batch, heads, tokens, D", "configurations", "the table's choice", "the best of all"],
                   [[", ".join(map(str, row["shape"])), str(row["configurations"]), f"{row['choice_us']:.2f} us",
                     f"{row['best_us']:.2f} us"] for row in report["exhaustive"]])
    patches = table(["change", "outcome", "gain"],
                    [[row["change"], row["outcome"], f"{row['speedup'] - 1:+.1%}" if row["speedup"] else ""]
                     for row in report["patches"]])
    same = report["same_kernel"]
    compared = (f"A kernel beside itself, {same['trials']} times: taken for faster {same['faster']} times, for slower "
                f"{same['slower']} times. "
                f"The widest interval was {same['resolution_percent']:.2f}% to either side.")
    return "\n\n".join([found, shapes, patches, compared])


TABLES = {"kernels/block_mask": ("block_masks.json", block_masks),
          "kernels/wide_heads": ("wide_heads.json", wide_heads),
          "kernels/sm90_backward_experiments": ("sm90_backward.json", backward),
          "evolve": ("evolve.json", evolve)}


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
            sys.exit(f"docs/{page}.md is not what tools/kernel_tables.py makes of it: run it.")


if __name__ == "__main__":
    main()
