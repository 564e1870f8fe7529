#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the Hopper forward kernels of two builds of the library in turn: did a change cost speed?

usage: compare_builds.py OLD.so NEW.so [--grid bench/grid_sm90.csv] [--budget S]
                         [--compilers N] [--least-mean RATIO] [--least RATIO]

Both builds get the same tensors, for every case of the grid: f16, FP8 and INT8 quantized in advance,
and FP8 from f16 with the quantizers. A sample is a replay of a CUDA graph of at least 24 calls, and the
builds alternate, because the clock changes with the chip's temperature. The ratio of a case is the
median of old / new over pairs of neighbouring samples: above 1, the new build is faster. Cases that
seem slower are timed once more, with more samples.

Kernels that a library does not contain are compiled before anything is timed, by N processes at once.
Exit code 1: the geometric mean of all ratios is below --least-mean, or one of them below --least, or
the outputs of a case differ, or a case was not measured.
"""

import argparse
import os
import statistics
import subprocess
import sys
import types

import compare_8bit
import compare_torch
import octavo_c

WAYS = ("native", "fp8", "fp8_fast", "int8", "fp8_from_f16")
SAMPLES, SAMPLES_AGAIN = 7, 21
LEAST_CALLS, MOST_CALLS, REPLAY_US = 24, 200, 1000
TIMED_AGAIN = 0.985  # cases with a smaller ratio


def cases_of(path):
    return [c for c in compare_torch.read_grid(path) if c["dtype"] == "f16"]


def calls_for(us):
    return max(LEAST_CALLS, min(MOST_CALLS, int(REPLAY_US / us)))


def ratio_of(old, new):
    """The median over pairs of samples that were taken one after the other."""
    return statistics.median(before / after for before, after in zip(old, new))


class Builds:
    def __init__(self, torch, libraries):
        self.torch = torch
        self.builds = [types.SimpleNamespace(torch=torch, octavo=octavo_c.Octavo(path))
                       for path in libraries]

    def problems(self, case):
        inputs = compare_8bit.Inputs8Bit(self.torch, case)
        return [compare_8bit.Problem8Bit(build, inputs) for build in self.builds]

    def measure(self, case):
        """The rows of a case, one for each way."""
        problems = self.problems(case)
        return [self.row(case, way, problems) for way in WAYS]

    def row(self, case, way, problems):
        calls = [lambda p=p: p.run(p.plans[way]) for p in problems]
        old, new = (call().float().clone() for call in calls)
        count = calls_for(compare_torch._timers.Graph(self.torch, calls[0], 1).sample_us())
        graphs = [compare_torch._timers.Graph(self.torch, call, count) for call in calls]
        compare_torch._timers.alternated([g.sample_us for g in graphs], 1)
        samples = compare_torch._timers.alternated([g.sample_us for g in graphs], SAMPLES)
        if ratio_of(*samples) < TIMED_AGAIN:
            samples = compare_torch._timers.alternated([g.sample_us for g in graphs], SAMPLES_AGAIN)
        return {"name": case["name"], "causal": case["causal"], "way": way, "calls": count,
                "old_us": statistics.median(samples[0]), "new_us": statistics.median(samples[1]),
                "ratio": ratio_of(*samples), "difference": (old - new).abs().max().item()}


def compile_share(builds, cases, share, shares):
    """Makes the plans of every `shares`-th case, so that their kernels are in the cache on disk."""
    for case in cases[share::shares]:
        builds.problems(case)


def compile_all(words, processes):
    """compile_share in several processes."""
    started = [subprocess.Popen([sys.executable, __file__, *words, "--share", f"{i}/{processes}"])
               for i in range(processes)]
    for process in started:
        if process.wait() != 0:
            sys.exit("compare_builds: a process that compiles kernels failed.")


def failures_of(rows, least_mean, least):
    mean = statistics.geometric_mean(r["ratio"] for r in rows)
    if mean < least_mean:
        yield f"geometric mean {mean:.4f}; wanted: {least_mean}"
    for r in rows:
        what = f"{r['name']} causal={r['causal']} {r['way']}"
        if r["ratio"] < least:
            yield f"{what}: {r['ratio']:.3f}; wanted: {least}"
        if not r["difference"] < compare_8bit.MOST_DIFFERENCE:
            yield f"{what}: the outputs differ by {r['difference']}"


def line_of(rows):
    case = rows[0]
    return f"{case['name']:>16} {case['causal']:>8} " + "  ".join(
        f"{r['way']} {r['old_us']:.2f} -> {r['new_us']:.2f} us ({r['ratio']:.3f})" for r in rows)


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--grid", default="bench/grid_sm90.csv")
    parser.add_argument("--budget", type=float, help="seconds for all cases")
    parser.add_argument("--compilers", type=int, default=max(1, (os.cpu_count() or 1) - 2))
    parser.add_argument("--least-mean", type=float, default=0.995)
    parser.add_argument("--least", type=float, default=0.97)
    parser.add_argument("--share", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main():
    arguments = parse()
    import torch
    cases = cases_of(arguments.grid)
    torch.manual_seed(42)
    if arguments.share:
        share, shares = (int(n) for n in arguments.share.split("/"))
        return compile_share(Builds(torch, (arguments.old, arguments.new)), cases, share, shares)
    if arguments.compilers > 1:
        compile_all(sys.argv[1:], arguments.compilers)
    builds, left = Builds(torch, (arguments.old, arguments.new)), compare_torch.Left()
    with torch.no_grad():
        measured = compare_torch.within_budget(cases, arguments.budget,
                                               lambda i: builds.measure(cases[i]), left, "builds", line_of)
    rows = [row for case in measured.values() for row in case]
    failures = [*left.failures, *left.not_measured]
    if rows:
        failures += failures_of(rows, arguments.least_mean, arguments.least)
    for way in WAYS:
        ratios = [r["ratio"] for r in rows if r["way"] == way]
        if ratios:
            print(f"{way:>13}: geometric mean {statistics.geometric_mean(ratios):.4f}, "
                  f"minimum {min(ratios):.4f}, {len(ratios)} cases")
    print(*failures, sep="\n")
    return 1 if failures or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
