#!/usr/bin/env python3
"""Compares Octavo with PyTorch's SDPA backends: one process, one GPU, the same inputs, calls interleaved.

A sample is the mean of the calls of one CUDA-graph replay; the replay before it is not timed, so
that the sample does not include launching the graph. Octavo and its peers alternate, sample by sample:
the chip's clock changes with its temperature, and must be the same for both. $OCTAVO_KERNELS forces a
family of kernels, and every case must then have run on it.

Octavo runs twice; the difference between the two is the resolution of the run. Peers that are not
installed are taken from a file of earlier times (--recorded), scaled by the ratio of the times of
PyTorch's cuDNN backend then and now.
usage: compare_torch.py --library build/liboctavo.so --command build/octavo --json FILE
                        [--grid bench/grid.csv] [--peers flash,cudnn] [--recorded CSV]
                        [--least RATIO] [--commit HASH]
"""

import argparse
import csv
import importlib.util
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

import octavo_c



def of_package(name):
    """Loads a module of the package, which need not be installed. Its folder must not be on the path:
    it contains a torch.py."""
    path = pathlib.Path(__file__).resolve().parent.parent / "python/octavo" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_timers = of_package("_timers")

SCHEMA = 1  # of docs/json.md
SAMPLES = 15
REST_S = 0.1
CALLS = 20  # of a graph; fewer if CALLS of them take longer than this:
LONGEST_REPLAY_US = 8000
WARMUP_MS = 50
# Both round P and O to 16 bits, each in its own order; outputs reach 4, where the last bit is 4e-3.
# This only checks that both computed the same thing: `octavo check` is the judge.
MOST_DIFFERENCE = {"f16": 1e-2, "bf16": 6e-2, "sim8": 6e-2}
DEVICE = "cuda:0"


def flops(case):
    full = 4 * case["batch"] * case["heads"] * case["length"] ** 2 * case["head_dim"]
    return full / 2 if case["causal"] != "none" else full


SIZES = ("batch", "heads", "length", "head_dim")
LONGEST = 16384


def read_grid(path, family=""):
    """The cases of the grid in f16. For the sm90 family also the presets and the longest in bf16, for
    the others the `mission` preset (1, 8, 512, 64) in sim8."""
    sizes = SIZES
    cases = []
    with open(path, newline="") as lines:
        for line in csv.DictReader(lines):
            case = {"name": line["preset"] or ",".join(line[s] for s in sizes), "dtype": "f16"}
            case.update({s: int(line[s]) for s in sizes}, causal=line["causal"])
            cases.append(case)
    if family == "sm90":
        return cases + [{**c, "dtype": "bf16"} for c in cases
                        if not c["name"][0].isdigit() or c["length"] == LONGEST]
    return cases + [{**c, "dtype": "sim8"} for c in cases if c["name"] == "mission"]


def read_recorded(path):
    """Times of peers by case; empty if no file is given."""
    if path is None:
        return {}
    with open(path, newline="") as lines:
        return {tuple(line[k] for k in (*SIZES, "causal")):
                {k[:-3]: float(v) for k, v in line.items() if k.endswith("_us") and v}
                for line in csv.DictReader(lines)}


def scaled(recorded, case, measured_us):
    """The recorded times of a case, scaled by the ratio of cuDNN's times then and now."""
    then = recorded.get(tuple(str(case[k]) for k in (*SIZES, "causal")), {})
    if case["dtype"] != "f16" or "cudnn" not in then or "cudnn" not in measured_us:
        return {}
    pace = measured_us["cudnn"] / then["cudnn"]
    return {name: us * pace for name, us in then.items() if name != "cudnn"}


def calls_for(us):
    return max(1, min(CALLS, int(LONGEST_REPLAY_US / us)))


def smi(fields):
    """The values of nvidia-smi, None for each it does not have."""
    try:
        text = subprocess.run(
            ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}",
             "--format=csv,noheader,nounits"],
            check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return dict.fromkeys(fields)
    values = [v.strip() for v in text.splitlines()[0].split(",")]
    return {f: None if v.startswith("[") else v for f, v in zip(fields, values)}


def as_number(text):
    return None if text is None else float(text)


def take_turns(graphs):
    """Samples of all, after a warm-up of all."""
    spent = 0.0
    while spent < WARMUP_MS * 1e3:
        spent += 2 * sum(g.sample_us() * g.calls for g in graphs)
    samples = [[] for _ in graphs]
    for _ in range(SAMPLES):
        for graph, into in zip(graphs, samples):
            into.append(graph.sample_us())
    return samples


def one_by_one(makers):
    """Samples of each under its own load, after a rest and one uncounted sample. Clocks are lower right
    after a load that draws more power: by 15% for a while, without the rest. Each graph is created when
    its turn comes, and destroyed before the next: while three are alive, every kernel of any of them
    starts 0.2 us later, until the process ends."""
    def samples(make):
        graph = make()
        time.sleep(REST_S)
        return [graph.sample_us() for _ in range(SAMPLES + 1)][1:]
    return [samples(make) for make in makers]


class Comparison:
    def __init__(self, torch, octavo, peers, recorded):
        self.torch, self.octavo, self.peers, self.recorded = torch, octavo, peers, recorded
        self.clock = _timers.Clock()

    def sdpa(self, peer, q, k, v, causal):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[peer]
        with sdpa_kernel(backend):
            return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def operand(self, case, x, arguments, name, keep):
        """Adds a tensor to the plan's arguments: as it is, or quantized on the host."""
        if case["dtype"] in octavo_c.WIDE:
            setattr(arguments, name,
                    self.octavo.bhsd(x.data_ptr(), octavo_c.WIDE[case["dtype"]], x.shape))
            return
        host = x.cpu()
        codes = self.torch.empty(x.shape, dtype=self.torch.uint8)
        scales = self.torch.empty(x.shape[:2], dtype=self.torch.float32)
        self.octavo.quantize_per_head(
            self.octavo.bhsd(host.data_ptr(), octavo_c.F16, x.shape),
            self.octavo.bhsd(codes.data_ptr(), octavo_c.SIM8, x.shape), scales.data_ptr())
        codes, scales = codes.cuda(), scales.cuda()
        keep += [codes, scales]
        setattr(arguments, name, self.octavo.bhsd(codes.data_ptr(), octavo_c.SIM8, x.shape))
        of = getattr(arguments, f"{name}_scales")
        of.data, of.granularity = scales.data_ptr(), octavo_c.PER_HEAD

    def measure(self, case):
        torch = self.torch
        shape = [case[s] for s in ("batch", "heads", "length", "head_dim")]
        dtype = torch.bfloat16 if case["dtype"] == "bf16" else torch.float16
        q, k, v = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3))
        out = torch.full_like(q, math.nan)
        keep = []
        arguments = self.octavo.arguments()
        for name, x in (("q", q), ("k", k), ("v", v)):
            self.operand(case, x, arguments, name, keep)
        wide = octavo_c.WIDE.get(case["dtype"], octavo_c.F16)
        arguments.out = self.octavo.bhsd(out.data_ptr(), wide, shape)
        plan = octavo_c.Plan(self.octavo, arguments, self.octavo.options(case["causal"]), DEVICE)
        workspace = torch.empty(max(plan.workspace_bytes, 1), device="cuda", dtype=torch.uint8)

        def ours():
            plan.run(workspace.data_ptr(), torch.cuda.current_stream().cuda_stream)

        theirs = {peer: lambda peer=peer: self.sdpa(peer, q, k, v, case["causal"] != "none")
                  for peer in self.peers}
        ours()
        first = next(iter(theirs.values()))
        difference = (out.float() - first().float()).abs().max().item()
        calls = calls_for(_timers.Graph(torch, first, 1).sample_us())
        seen = len(self.clock.seen)
        samples = take_turns([_timers.Graph(torch, c, calls) for c in (ours, ours, *theirs.values())])
        row = row_of(case, calls, samples[0], samples[1], dict(zip(theirs, samples[2:])),
                     self.recorded, difference)
        row.update(self.clock.since(seen), kernel=plan.kernel, config=plan.config,
                   reason=plan.reason)
        return row


def row_of(case, calls, ours, again, theirs, recorded, difference):
    row = {**case, "calls": calls}
    medians = {peer: statistics.median(us) for peer, us in theirs.items()}
    fastest = min(medians, key=medians.get)
    for who, us in (("octavo", ours), ("peer", theirs[fastest])):
        low, median, high = statistics.quantiles(us, n=4, method="inclusive")
        row.update({f"{who}_us": median, f"{who}_low_us": low, f"{who}_high_us": high,
                    f"{who}_gflops": flops(case) / median / 1e3})
    row.update(peer=fastest, peers_us=medians, recorded_us=scaled(recorded, case, medians))
    best = min([row["peer_us"], *row["recorded_us"].values()])
    row["ratio"] = best / row["octavo_us"]
    row["ratio_interval"] = (_timers.ratio_interval(theirs[fastest], ours) if best == row["peer_us"] else None)
    row["again_ratio"] = statistics.median(again) / row["octavo_us"]
    row["max_difference"] = difference if math.isfinite(difference) else None
    row["octavo_samples_us"] = [round(u, 4) for u in ours]
    row["peer_samples_us"] = [round(u, 4) for u in theirs[fastest]]
    return row


def failures_of(rows, family, least=1.0):
    for row in rows:
        what = f"{row['name']} {row['dtype']} causal={row['causal']}"
        if row["max_difference"] is None or row["max_difference"] > MOST_DIFFERENCE[row["dtype"]]:
            yield (f"{what}: differs from the peer by {row['max_difference']}; "
                   f"allowed: {MOST_DIFFERENCE[row['dtype']]}")
        if row["ratio"] < least:
            yield f"{what}: {row['ratio']:.3f} times as fast as the best peer; wanted: {least:g}"
        if family and not row["kernel"].startswith(family):
            yield f"{what}: ran on {row['kernel']}; wanted: {family}"


def summary_of(rows):
    """Geometric mean and minimum over the f16 cases, which are the same work for both."""
    ratios = [r["ratio"] for r in rows if r["dtype"] == "f16"]
    return {"geometric_mean": statistics.geometric_mean(ratios), "minimum": min(ratios),
            "resolution": max(abs(r["again_ratio"] - 1) for r in rows)}


def add_digests(rows, command):
    """Adds to each row the digests of its kernel and of that kernel's sources. Returns the name of the
    compiler."""
    told = {}
    for config in {r["config"] for r in rows}:
        told[config] = json.loads(
            subprocess.run([command, "cache", "explain", config, "--json", "-"], check=True,
                           capture_output=True, text=True).stdout)
    for row in rows:
        row["kernel_sha256"] = told[row["config"]]["kernel"].get("sha256")
        row["sources_sha256"] = told[row["config"]]["sources_sha256"]
    return "; ".join(sorted({a["compiler"] for a in told.values()}))


def machine(torch, peers):
    told = smi(["driver_version", "clocks.max.sm", "power.limit"])
    chip = torch.cuda.get_device_properties(0)
    return {"device": DEVICE,
            "gpu": {"name": chip.name, "sms": chip.multi_processor_count,
                    "memory_bytes": chip.total_memory, "driver": told["driver_version"],
                    "clock_max_mhz": as_number(told["clocks.max.sm"]),
                    "power_limit_w": as_number(told["power.limit"])},
            "peer": {"name": f"PyTorch SDPA: {', '.join(peers)}", "torch": torch.__version__,
                     "cuda": torch.version.cuda}}


def compare(arguments):
    try:
        import torch
    except ImportError:
        sys.exit("compare_torch: this Python has no PyTorch; $PYTHON names another one")
    if not torch.cuda.is_available():
        sys.exit("compare_torch: PyTorch finds no GPU here")
    octavo = octavo_c.Octavo(arguments.library)
    family = os.environ.get("OCTAVO_KERNELS", "")
    peers = arguments.peers.split(",")
    report = {"schema": SCHEMA, "kind": "compare", "version": octavo.version(),
              **machine(torch, peers),
              "commit": arguments.commit, "family": family or None, "samples": SAMPLES}
    torch.manual_seed(42)
    comparison = Comparison(torch, octavo, peers, read_recorded(arguments.recorded))
    rows = []
    with torch.no_grad():
        for case in read_grid(arguments.grid, family):
            rows.append(comparison.measure(case))
            r = rows[-1]
            print(f"{r['name']:>16} {r['dtype']:>4} {r['causal']:>8} {r['octavo_us']:9.2f} us "
                  f"{r['peer_us']:9.2f} us ({r['peer']}) {r['ratio']:6.3f}", flush=True)
    comparison.clock.stop()
    report.update(compiler=add_digests(rows, arguments.command), **summary_of(rows))
    failures = list(failures_of(rows, family, arguments.least))
    report.update(passed=not failures, failures=failures, rows=rows)
    pathlib.Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    print(f"geometric mean {report['geometric_mean']:.3f}, minimum {report['minimum']:.3f}")
    for sentence in failures:
        print(sentence)
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--grid", default="bench/grid.csv")
    parser.add_argument("--peers", default="flash")
    parser.add_argument("--recorded")
    parser.add_argument("--least", type=float, default=1.0)
    parser.add_argument("--commit")
    sys.exit(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
