#!/usr/bin/env python3
"""The 8-bit modes beside FP8 peers on record, on the grid of sizes, on one GPU.

Ours are timed by `octavo bench`: of operands that were quantized before (--packed), with V
transposed or by rows, and from f16 tensors with the quantizers included. The peers' times are from a file, scaled by PyTorch's cuDNN
backend in f16, which is timed here on every case and has its time in that file too.

usage: compare_8bit.py --command build/octavo --json FILE [--grid bench/grid_sm90.csv]
                       [--recorded bench/peers_h200_fp8.csv] [--commit HASH]
"""

import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import compare_torch

SIZES = compare_torch.SIZES
# Name in the report, precision, how operands come, and whether of all cases or only of presets and
# the longest: quantizing them for `octavo bench` takes longer than all the rest.
WAYS = [("fp8", "fp8", ["--packed"], True),
        ("fp8_from_f16", "fp8", [], True),
        ("fp8_fast", "fp8_fast", ["--packed"], False),
        ("int8", "int8", ["--packed"], False),
        ("fp8_rows", "fp8", ["--packed", "--v-layout", "rows"], False)]
PACKED = ("fp8", "fp8_fast", "int8")
ITERS = 40


def is_of_few(case):
    return not case["name"][0].isdigit() or case["length"] == compare_torch.LONGEST


def ours(command, cases, causal, precision, how):
    """Medians in microseconds, in the order of the cases."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "bench.json"
        call = [command, "bench", "--device", "cuda", "--precision", precision, "--iters", str(ITERS),
                "--skip-correctness", "--no-three-loop", "--json", str(path), *how]
        call += ["--causal", causal] if causal != "none" else []
        for case in cases:
            call += ["--shape", ",".join(str(case[s]) for s in SIZES)]
        subprocess.run(call, check=True, capture_output=True, text=True)
        rows = json.loads(path.read_text())["rows"]
    assert [[r[s] for s in SIZES] for r in rows] == [[c[s] for s in SIZES] for c in cases]
    return [r["median_us"] for r in rows]


def cudnn_f16_us(torch, comparison, case):
    shape = [case[s] for s in SIZES]
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))

    def call():
        return comparison.sdpa("cudnn", q, k, v, case["causal"] != "none")

    graph = compare_torch._timers.Graph
    calls = compare_torch.calls_for(graph(torch, call, 1).sample_us())
    return statistics.median(compare_torch.take_turns([graph(torch, call, calls)])[0])


def with_peers(row, recorded):
    """The peers' times at the pace of this run, and ratios to the best of them."""
    then = recorded[tuple(str(row[k]) for k in (*SIZES, "causal"))]
    pace = row["cudnn_f16_us"] / then["torch_cudnn_f16"]
    row["peers_us"] = {name: us * pace for name, us in then.items()
                       if name not in ("torch_cudnn_f16", "best_f16")}
    row["best_f16_peer_us"] = then["best_f16"] * pace
    best = min(row["peers_us"].values())
    row["ratio"] = {way: best / row["us"][way] for way in PACKED if way in row["us"]}
    row["ratio_to_f16"] = row["best_f16_peer_us"] / row["us"]["fp8_from_f16"]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--grid", default="bench/grid_sm90.csv")
    parser.add_argument("--recorded", default="bench/peers_h200_fp8.csv")
    parser.add_argument("--commit")
    arguments = parser.parse_args()
    import torch
    recorded = compare_torch.read_recorded(arguments.recorded)
    cases = [c for c in compare_torch.read_grid(arguments.grid, "sm90") if c["dtype"] == "f16"]
    comparison = compare_torch.Comparison(torch, None, ["cudnn"], recorded)
    torch.manual_seed(42)
    with torch.no_grad():
        rows = [{**{k: v for k, v in c.items() if k != "dtype"}, "us": {},
                 "cudnn_f16_us": cudnn_f16_us(torch, comparison, c)} for c in cases]
    comparison.clock.stop()
    for way, precision, how, of_all in WAYS:
        for causal in sorted({r["causal"] for r in rows}):
            of_mask = [r for r in rows if r["causal"] == causal and (of_all or is_of_few(r))]
            times = ours(arguments.command, of_mask, causal, precision, how)
            for row, us in zip(of_mask, times):
                row["us"][way] = us
    rows = [with_peers(r, recorded) for r in rows]
    report = {"schema": compare_torch.SCHEMA, "kind": "compare_8bit",
              **compare_torch.machine(torch, ["cudnn"]), "commit": arguments.commit, "iters": ITERS,
              "rows": rows}
    pathlib.Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    for row in rows:
        print(f"{row['name']:>16} {row['causal']:>8} " +
              " ".join(f"{way} {us:.2f} us" for way, us in row["us"].items()) +
              f" fp8 {row['ratio']['fp8']:.3f} times the best FP8 peer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
