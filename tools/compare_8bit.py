#!/usr/bin/env python3
"""Times the 8-bit modes next to recorded FP8 peers, on the grid of sizes: one process, one GPU.

Octavo is timed on operands quantized in advance, with V transposed or by rows, and on f16 tensors with
the quantizers included; PyTorch's cuDNN backend runs in f16 next to them. Peers that are not installed
are taken from a file of earlier times, scaled by the ratio of that backend's times then and now. They
were timed each by itself, from graphs of 20 calls, and so is everything here, without a longer load
before: if samples alternate with kernels that draw less power, cuDNN runs up to 11% faster than by
itself, and those kernels slower (docs/kernels/sm90_experiments.md).

usage: compare_8bit.py --library build/liboctavo.so --json FILE [--grid bench/grid_sm90.csv]
                       [--recorded bench/peers_h200_fp8.csv] [--commit HASH]
"""

import argparse
import functools
import json
import pathlib
import statistics
import sys

import compare_torch
import octavo_c

SIZES = compare_torch.SIZES
E4M3, INT8 = 3, 5
HEAD, BLOCK, ROW, CHANNEL = 1, 2, 3, 4
NATIVE, FP8, FP8_FAST = 0, 3, 5
TRANSPOSED = 1
KEY_ORDER = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]  # of each sixteen keys of V
# The largest quantized value of Q and K by head_dim, so that |q k| fits FP16.
LARGEST_SCORE_CODE = {64: 30.0, 128: 22.0, 256: 15.0}
# Allowed difference to f16 from rounding to 8 bits, on standard normal data. `octavo check` is the
# judge.
MOST_DIFFERENCE = 0.3


class Quantized:
    """8-bit values and scales as the library's own quantizers produce them."""

    def __init__(self, torch, q, k, v, dtype):
        self.torch, self.dtype = torch, dtype
        self.most = LARGEST_SCORE_CODE[q.shape[3]] if dtype == E4M3 else 127.0
        self.q = self.codes(q, q.abs().amax(3, keepdim=True), self.most)
        if dtype == E4M3:
            self.k = self.codes(k, k.abs().amax((2, 3), keepdim=True), self.most)
        else:
            blocks = k.unflatten(2, (-1, 64)).abs().amax((3, 4))
            self.k = self.codes(k, blocks.repeat_interleave(64, 2)[..., None], self.most)
            self.k = self.k[0], self.k[1][:, :, ::64].contiguous()
        self.v = self.codes(v, v.abs().amax(2, keepdim=True), 448.0 if dtype == E4M3 else 127.0)
        sixteens = self.v[0].view(torch.uint8).transpose(2, 3).unflatten(3, (-1, 16))
        flipped = 0 if dtype == E4M3 else 0x80  # INT8's sign bits
        self.v_transposed = sixteens[..., KEY_ORDER].flatten(3).contiguous() ^ flipped

    def codes(self, x, amax, most):
        scale = amax.float() / most
        y = x.float() / scale
        codes = y.to(self.torch.float8_e4m3fn) if self.dtype == E4M3 else y.round().to(self.torch.int8)
        return codes, scale.contiguous()


class Comparison8Bit:
    def __init__(self, torch, octavo, recorded):
        self.torch, self.octavo, self.recorded = torch, octavo, recorded
        self.comparison = compare_torch.Comparison(torch, octavo, ["cudnn"], {})

    def scales(self, into, tensor, granularity):
        into.data, into.granularity, into.block_rows = tensor.data_ptr(), granularity, 64

    def plan(self, arguments, causal, precision=NATIVE):
        options = self.octavo.options(causal)
        options.precision = precision
        return octavo_c.Plan(self.octavo, arguments, options, compare_torch.DEVICE)

    def of_codes(self, x, out, transposed):
        a = self.octavo.arguments()
        shape = list(x.q[0].shape)
        a.q = self.octavo.bhsd(x.q[0].data_ptr(), x.dtype, shape)
        a.k = self.octavo.bhsd(x.k[0].data_ptr(), x.dtype, shape)
        v = x.v_transposed if transposed else x.v[0]
        a.v = self.octavo.bhsd(v.data_ptr(), x.dtype, list(v.shape))
        a.v_layout = TRANSPOSED if transposed else 0
        a.out = self.octavo.bhsd(out.data_ptr(), octavo_c.F16, shape)
        self.scales(a.q_scales, x.q[1], ROW)
        self.scales(a.k_scales, x.k[1], HEAD if x.dtype == E4M3 else BLOCK)
        self.scales(a.v_scales, x.v[1], CHANNEL)
        a.q_max_quantized = a.k_max_quantized = x.most
        return a

    def measure(self, case):
        torch = self.torch
        shape = [case[s] for s in SIZES]
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
        out = torch.empty_like(q)
        fp8, int8 = (Quantized(torch, q, k, v, dtype) for dtype in (E4M3, INT8))
        wide = self.octavo.arguments()
        for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
            setattr(wide, name, self.octavo.bhsd(x.data_ptr(), octavo_c.F16, shape))
        causal = case["causal"]
        plans = {"fp8": self.plan(self.of_codes(fp8, out, True), causal),
                 "fp8_rows": self.plan(self.of_codes(fp8, out, False), causal),
                 "fp8_fast": self.plan(self.of_codes(fp8, out, True), causal, FP8_FAST),
                 "int8": self.plan(self.of_codes(int8, out, True), causal),
                 "fp8_from_f16": self.plan(wide, causal, FP8)}
        room = max(p.workspace_bytes for p in plans.values())
        workspace = torch.empty(max(room, 1), device="cuda", dtype=torch.uint8)

        def runs(plan):
            return lambda: plan.run(workspace.data_ptr(), torch.cuda.current_stream().cuda_stream)

        def peer():
            return self.comparison.sdpa("cudnn", q, k, v, causal != "none")

        exact, differences = peer().float(), {}
        for way, plan in plans.items():
            out.fill_(float("nan"))
            runs(plan)()
            difference = (out.float() - exact).abs().max().item()
            if not difference < MOST_DIFFERENCE:
                sys.exit(f"compare_8bit: {case['name']} {way} differs from f16 by {difference}; "
                         f"allowed: {MOST_DIFFERENCE}")
            differences[way] = difference
        calls = compare_torch.CALLS
        samples = compare_torch.one_by_one(
            [functools.partial(compare_torch._timers.Graph, torch, call, calls)
             for call in (peer, *map(runs, plans.values()))])
        medians = [statistics.median(s) for s in samples]
        row = {**{k: case[k] for k in ("name", *SIZES, "causal")}, "calls": calls,
               "us": dict(zip(plans, medians[1:])), "cudnn_f16_us": medians[0],
               "max_difference": differences,
               "kernel": {way: plan.config for way, plan in plans.items()}}
        return with_peers(row, self.recorded)


def with_peers(row, recorded):
    """The recorded peers' times scaled to this run, and the ratios to the best of them."""
    then = recorded[tuple(str(row[k]) for k in (*SIZES, "causal"))]
    pace = row["pace"] = row["cudnn_f16_us"] / then["torch_cudnn_f16"]
    row["peers_us"] = {name: us * pace for name, us in then.items()
                       if name not in ("torch_cudnn_f16", "best_f16")}
    row["best_f16_peer_us"] = then["best_f16"] * pace
    best = min(row["peers_us"].values())
    row["ratio"] = {way: best / us for way, us in row["us"].items() if way != "fp8_from_f16"}
    row["ratio_to_f16"] = row["best_f16_peer_us"] / row["us"]["fp8_from_f16"]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--grid", default="bench/grid_sm90.csv")
    parser.add_argument("--recorded", default="bench/peers_h200_fp8.csv")
    parser.add_argument("--commit")
    arguments = parser.parse_args()
    import torch
    octavo = octavo_c.Octavo(arguments.library)
    comparison = Comparison8Bit(torch, octavo, compare_torch.read_recorded(arguments.recorded))
    report = {"schema": compare_torch.SCHEMA, "kind": "compare_8bit", "version": octavo.version(),
              **compare_torch.machine(torch, ["cudnn"]), "commit": arguments.commit,
              "samples": compare_torch.SAMPLES, "rows": []}
    torch.manual_seed(42)
    with torch.no_grad():
        for case in compare_torch.read_grid(arguments.grid, "sm90"):
            if case["dtype"] != "f16":
                continue
            row = comparison.measure(case)
            report["rows"].append(row)
            print(f"{row['name']:>16} {row['causal']:>8} " +
                  " ".join(f"{way} {us:.2f}" for way, us in row["us"].items()) +
                  f" us, fp8 {row['ratio']['fp8']:.3f} times the best FP8 peer", flush=True)
            pathlib.Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    comparison.comparison.clock.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
