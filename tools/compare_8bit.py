#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the 8-bit modes next to FP8 peers, on the grid of sizes: one process, one GPU, samples alternated.

Octavo is timed on operands quantized in advance, with V transposed or by rows, and on f16 tensors with
the quantizers included, beside its own kernel in f16. FlashAttention-3 runs on E4M3 inputs and on f16
inputs where a build is found (tools/compare_torch.py says how), PyTorch's cuDNN backend in f16. FP8
peers that cannot run here are taken from a file of earlier times, scaled by the ratio of cuDNN's times
in f16 then and now, and marked so. The regimes and budgets are those of tools/compare_torch.py; under
the sustained load fp8, fp8_fast and FlashAttention-3 in FP8 are timed.

usage: compare_8bit.py --library build/liboctavo.so --json FILE [--grid bench/grid_sm90.csv]
                       [--recorded bench/peers_h200_fp8.csv] [--peer-path PATH]...
                       [--regimes burst,sustained] [--burst-budget S] [--sustained-budget S]
                       [--commit HASH]
"""

import argparse
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
MAX_QUANTIZED_QK = {64: 30.0, 128: 22.0, 256: 15.0}
# Allowed difference to f16 from rounding to 8 bits, on standard normal data. `octavo check` is the
# judge.
MOST_DIFFERENCE = 0.3
SAMPLES = 7
UNDER_LOAD = ("fp8", "fp8_fast", "fa3")


class Quantized:
    """8-bit values and scales as the library's own quantizers produce them."""

    def __init__(self, torch, q, k, v, dtype):
        self.torch, self.dtype = torch, dtype
        self.most = MAX_QUANTIZED_QK[q.shape[3]] if dtype == E4M3 else 127.0
        self.q = self.quantize(q, q.abs().amax(3, keepdim=True), self.most)
        if dtype == E4M3:
            self.k = self.quantize(k, k.abs().amax((2, 3), keepdim=True), self.most)
        else:
            blocks = k.unflatten(2, (-1, 64)).abs().amax((3, 4))
            self.k = self.quantize(k, blocks.repeat_interleave(64, 2)[..., None], self.most)
            self.k = self.k[0], self.k[1][:, :, ::64].contiguous()
        self.v = self.quantize(v, v.abs().amax(2, keepdim=True), 448.0 if dtype == E4M3 else 127.0)
        sixteens = self.v[0].view(torch.uint8).transpose(2, 3).unflatten(3, (-1, 16))
        flipped = 0 if dtype == E4M3 else 0x80  # INT8's sign bits
        self.v_transposed = sixteens[..., KEY_ORDER].flatten(3).contiguous() ^ flipped

    def quantize(self, x, amax, most):
        scale = amax.float() / most
        y = x.float() / scale
        quantized = y.to(self.torch.float8_e4m3fn) if self.dtype == E4M3 else y.round().to(self.torch.int8)
        return quantized, scale.contiguous()


class Inputs8Bit:
    """The tensors of a case, in f16 and in 8 bits, and the output of every call."""

    def __init__(self, torch, case):
        self.causal, self.shape = case["causal"], [case[s] for s in SIZES]
        self.q, self.k, self.v = (torch.randn(self.shape, device=compare_torch.MEMORY, dtype=torch.float16) for _ in range(3))
        self.out = torch.empty_like(self.q)
        self.fp8, self.int8 = (Quantized(torch, self.q, self.k, self.v, dtype) for dtype in (E4M3, INT8))


class Problem8Bit:
    """One case: every call of a library by name."""

    def __init__(self, comparison, inputs):
        self.comparison, self.torch, self.octavo = comparison, comparison.torch, comparison.octavo
        self.inputs, torch, fp8, int8 = inputs, self.torch, inputs.fp8, inputs.int8
        self.causal, self.shape, self.out = inputs.causal, inputs.shape, inputs.out
        self.q, self.k, self.v = inputs.q, inputs.k, inputs.v
        wide = self.octavo.arguments()
        for name, x in (("q", self.q), ("k", self.k), ("v", self.v), ("out", self.out)):
            setattr(wide, name, self.octavo.bhsd(x.data_ptr(), octavo_c.F16, self.shape))
        self.plans = {"fp8": self.plan(self.of_quantized(fp8, True)),
                      "fp8_rows": self.plan(self.of_quantized(fp8, False)),
                      "fp8_fast": self.plan(self.of_quantized(fp8, True), FP8_FAST),
                      "int8": self.plan(self.of_quantized(int8, True)),
                      "fp8_from_f16": self.plan(wide, FP8), "native": self.plan(wide)}
        room = max(p.workspace_bytes for p in self.plans.values())
        self.workspace = torch.empty(max(room, 1), device=compare_torch.MEMORY, dtype=torch.uint8)

    def scales(self, into, tensor, granularity):
        into.data, into.granularity, into.block_rows = tensor.data_ptr(), granularity, 64

    def plan(self, arguments, precision=NATIVE):
        options = self.octavo.options(self.causal)
        options.precision = precision
        return octavo_c.Plan(self.octavo, arguments, options, compare_torch.DEVICE)

    def of_quantized(self, x, transposed):
        a = self.octavo.arguments()
        shape = list(x.q[0].shape)
        a.q = self.octavo.bhsd(x.q[0].data_ptr(), x.dtype, shape)
        a.k = self.octavo.bhsd(x.k[0].data_ptr(), x.dtype, shape)
        v = x.v_transposed if transposed else x.v[0]
        a.v = self.octavo.bhsd(v.data_ptr(), x.dtype, list(v.shape))
        a.v_layout = TRANSPOSED if transposed else 0
        a.out = self.octavo.bhsd(self.out.data_ptr(), octavo_c.F16, shape)
        self.scales(a.q_scales, x.q[1], ROW)
        self.scales(a.k_scales, x.k[1], HEAD if x.dtype == E4M3 else BLOCK)
        self.scales(a.v_scales, x.v[1], CHANNEL)
        a.q_max_quantized = a.k_max_quantized = x.most
        return a

    def run(self, plan):
        plan.run(self.workspace.data_ptr(), self.torch.cuda.current_stream().cuda_stream)
        return self.out

    def fa3(self, dtype):
        """FlashAttention-3 in its own memory order, (batch, seqlen, heads, head_dim)."""
        operands = [x.transpose(1, 2).contiguous().to(dtype) for x in (self.q, self.k, self.v)]
        build, call = self.comparison.builds.first(lambda b: b.forward(*operands, self.causal != "none"))
        self.comparison.used[build.name] = build.namespace
        return lambda: call()[0].transpose(1, 2)

    def calls(self):
        """(Octavo's calls, the peers' calls, why the others cannot run)"""
        ours = {way: lambda plan=plan: self.run(plan) for way, plan in self.plans.items()}
        theirs = {"cudnn_f16": self.comparison.sdpa_call("cudnn", self.q, self.k, self.v, self.causal != "none")}
        refused = {}
        for name, dtype in (("fa3", self.torch.float8_e4m3fn), ("fa3_f16", self.torch.float16)):
            try:
                theirs[name] = self.fa3(dtype)
            except compare_torch._peers.UNAVAILABLE as missing:
                refused[name] = compare_torch._peers.first_line(missing)
        return ours, theirs, refused


def checked(case, out, calls, exact):
    """The largest difference of each call from f16; RuntimeError if one is another function."""
    differences = {}
    for name, call in calls.items():
        out.fill_(float("nan"))
        differences[name] = (call().float() - exact).abs().max().item()
        if not differences[name] < MOST_DIFFERENCE:
            raise RuntimeError(f"{name} differs from f16 by {differences[name]}; allowed: {MOST_DIFFERENCE}")
    return differences


class Comparison8Bit:
    def __init__(self, torch, octavo, recorded, builds=None):
        self.torch, self.octavo, self.recorded = torch, octavo, recorded
        self.comparison = compare_torch.Comparison(torch, octavo, ["cudnn"], {}, builds)
        self.builds, self.used = self.comparison.builds, self.comparison.used
        self.sdpa_call = self.comparison.sdpa_call

    def measure(self, case, regime="burst"):
        problem = Problem8Bit(self, Inputs8Bit(self.torch, case))
        ours, theirs, refused = problem.calls()
        differences = checked(case, problem.out, {**ours, **theirs}, theirs["cudnn_f16"]().float())
        row = {**{k: case[k] for k in ("name", *SIZES, "causal")}, "dtype": "e4m3", "regime": regime,
               "max_difference": differences, "not_available": refused,
               "kernel": {way: plan.config for way, plan in problem.plans.items()}}
        timed = burst_times if regime == "burst" else load_times
        known = timed(self, {**ours, **theirs})
        medians = known.pop("us")
        return with_peers({**row, **known}, medians, self.recorded)


def burst_times(comparison, calls):
    timers, torch = compare_torch._timers, comparison.torch
    count = compare_torch.calls_for(timers.Graph(torch, calls["native"], 1).sample_us())
    graphs = [timers.Graph(torch, call, count) for call in calls.values()]
    timers.alternated([g.sample_us for g in graphs], 1)
    samples = timers.alternated([g.sample_us for g in graphs], SAMPLES)
    return {"calls": count, "us": {name: statistics.median(s) for name, s in zip(calls, samples)}}


def load_times(comparison, calls):
    timers, torch = compare_torch._timers, comparison.torch
    calls = {name: call for name, call in calls.items() if name in UNDER_LOAD}
    loads = [timers.Load(torch, call, timers.Graph(torch, call, 1).sample_us()) for call in calls.values()]
    times, watts = timers.sustained_turns(loads, comparison.comparison.meter, comparison.comparison.clock,
                                          compare_torch.TURNS)
    us = {name: statistics.median(t) for name, t in zip(calls, times)}
    watts = dict(zip(calls, watts))
    joules = {name: timers.joules_of(w, us[name]) for name, w in watts.items()}
    return {"calls": loads[0].calls, "us": us, "watts": watts, "joules": joules}


def with_peers(row, medians, recorded):
    """Adds the times: Octavo's, those of peers that ran, those of peers on record whose library did not
    run in FP8, scaled to this run; and the ratios to the best of them."""
    row["us"] = {way: us for way, us in medians.items() if way not in ("cudnn_f16", "fa3", "fa3_f16")}
    row["peers_us"] = {name: us for name, us in medians.items() if name == "fa3"}
    row["cudnn_f16_us"], row["fa3_f16_us"] = medians.get("cudnn_f16"), medians.get("fa3_f16")
    then = recorded.get(tuple(str(row[k]) for k in (*SIZES, "causal")), {})
    pace = row["pace"] = (row["cudnn_f16_us"] / then["torch_cudnn_f16"]
                          if then and row["cudnn_f16_us"] else None)
    row["recorded_us"] = {name: us * pace for name, us in then.items()
                          if pace and name not in ("torch_cudnn_f16", "best_f16", *row["peers_us"])}
    best = min([*row["peers_us"].values(), *row["recorded_us"].values()], default=None)
    live = min(row["peers_us"].values(), default=None)
    prequantized = {way: us for way, us in row["us"].items() if way not in ("fp8_from_f16", "native")}
    row["ratio"] = {way: best and best / us for way, us in prequantized.items()}
    row["ratio_live"] = {way: live and live / us for way, us in prequantized.items()}
    f16 = [us for us in (row["cudnn_f16_us"], row["fa3_f16_us"]) if us]
    if row["fa3_f16_us"] is None and pace:
        f16.append(then["best_f16"] * pace)
    row["best_f16_peer_us"] = min(f16, default=None)
    from_f16 = row["us"].get("fp8_from_f16")
    row["ratio_to_f16"] = row["best_f16_peer_us"] / from_f16 if f16 and from_f16 else None
    row["ratio_to_native"] = row["us"]["native"] / from_f16 if from_f16 else None
    return row


def summary_of(rows):
    ratios = [r["ratio_live"]["fp8"] for r in rows if r["ratio_live"].get("fp8")]
    return {"cases": len(ratios), "minimum": min(ratios, default=None),
            "geometric_mean": statistics.geometric_mean(ratios) if ratios else None}


def line_of(row):
    times = [*row["us"].items(), *row["peers_us"].items()]
    return (f"{row['regime']:>9} {row['name']:>16} {row['causal']:>8} " +
            " ".join(f"{way} {us:.2f}" for way, us in times) + " us, ratio of fp8 " +
            ", ".join(f"{name} {row[key]['fp8']:.3f}" for name, key in (("to the best", "ratio"), ("to the best that ran", "ratio_live"))
                      if row[key]["fp8"]))


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--grid", default="bench/grid_sm90.csv")
    parser.add_argument("--recorded", default="bench/peers_h200_fp8.csv")
    parser.add_argument("--peer-path", action="append", default=[])
    parser.add_argument("--regimes", default=["burst"],
                        type=lambda t: compare_torch.names_of(t, compare_torch.REGIMES, "a regime"))
    parser.add_argument("--burst-budget", type=float)
    parser.add_argument("--sustained-budget", type=float)
    parser.add_argument("--commit")
    return parser.parse_args(words)


def main():
    arguments = parse()
    import torch
    octavo = octavo_c.Octavo(arguments.library)
    builds = compare_torch._peers.Builds(torch, arguments.peer_path)
    comparison = Comparison8Bit(torch, octavo, compare_torch.read_recorded(arguments.recorded), builds)
    cases = [c for c in compare_torch.read_grid(arguments.grid, "sm90") if c["dtype"] == "f16"]
    budgets = {"burst": arguments.burst_budget, "sustained": arguments.sustained_budget}
    rows, left = {"burst": [], "sustained": []}, compare_torch.Left()
    torch.manual_seed(42)
    with torch.no_grad():
        for regime in (r for r in compare_torch.REGIMES if r in arguments.regimes):
            rows[regime] = list(compare_torch.within_budget(
                cases, budgets[regime], lambda i: comparison.measure(cases[i], regime), left,
                regime, line_of).values())
    comparison.comparison.stop()
    report = {"schema": compare_torch.SCHEMA, "kind": "compare_8bit", "version": octavo.version(),
              **compare_torch.machine(torch, ["cudnn", "fa3"], comparison.used), "commit": arguments.commit,
              "samples": SAMPLES, "summary": summary_of(rows["burst"]),
              "sustained_summary": summary_of(rows["sustained"]), "not_measured": left.not_measured,
              "passed": not left.failures, "failures": left.failures,
              "rows": rows["burst"], "sustained": rows["sustained"]}
    pathlib.Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    print(*left.failures, *left.not_measured, sep="\n")
    return 1 if left.failures else 0


if __name__ == "__main__":
    sys.exit(main())
