#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Octavo with FlashAttention-3 and PyTorch's SDPA backends: one process, one GPU, the same inputs.

Octavo and its peers alternate, because the chip's clock changes with its temperature and must be the
same for all. Two regimes are timed, which differ in the clock that the power limit leaves:
  burst      a sample is the mean of a few calls in a CUDA graph, after a replay that is not timed
  sustained  a sample is the mean over 0.4 s of replays without a pause, after 0.2 s that are not timed;
             board power is read meanwhile, so that the energy of a call is known. Peers that are far
             slower than the best one in bursts are left out.
$OCTAVO_KERNELS forces a family of kernels, and every case must then have run on it. In bursts Octavo
runs twice; the difference between the two is the resolution of the run.

The peer fa3 is the first build of FlashAttention-3 that serves a case: a package (python/octavo/_peers.py
lists them), or libraries named by --peer-path or $OCTAVO_PEERS. Peers that cannot run here are taken
from a file of earlier times (--recorded), scaled by the ratio of the times of PyTorch's cuDNN backend
then and now, and marked so. Cases are taken largest first; those that a budget has no time for are
listed as not measured.
usage: compare_torch.py --library build/liboctavo.so --command build/octavo --json FILE
                        [--grid bench/grid.csv | --models bench/models.csv] [--mode forward|backward]
                        [--peers flash,cudnn,fa3] [--peer-path PATH]... [--recorded CSV]
                        [--regimes burst,sustained] [--burst-budget S] [--sustained-budget S]
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


_timers, _peers, _power = (of_package(name) for name in ("_timers", "_peers", "_power"))

SCHEMA = 1  # of docs/json.md
SAMPLES = 11
CALLS = 20  # of a graph; fewer if CALLS of them take longer than this:
LONGEST_REPLAY_US = 8000
WARMUP_MS = 50
TURNS = 2  # of a sustained load
WORTH_A_LOAD = 1.15  # times the best peer in bursts; slower peers are not timed under a sustained load
# Both round P and O to 16 bits, each in its own order; outputs reach 4, where the last bit is 4e-3.
# This only checks that both computed the same thing: `octavo check` is the judge.
MOST_DIFFERENCE = {"f16": 1e-2, "bf16": 6e-2, "sim8": 6e-2}
# Gradients sum over all rows, and grow with their number.
MOST_GRADIENT_DIFFERENCE = 0.25
DEVICE = "cuda:0"  # in Octavo's words
MEMORY = "cuda"  # in PyTorch's
REGIMES = ("burst", "sustained")
PEERS = ("flash", "cudnn", "fa3", "fa3_deterministic")
# The library of each peer on record. Such a peer remains only where its library did not run.
RECORDED_LIBRARY = {"cudnn_graph": "cudnn", "fa3": "fa3", "fa3_nomemset": "fa3"}


def flops(case):
    full = (4 * case["batch"] * case["heads"] * case["length"] * case.get("length_kv", case["length"])
            * case["head_dim"])
    full *= 2.5 if case.get("mode") == "backward" else 1
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


def read_models(path):
    """The attention layers of real models, each in the dtype that it is deployed in."""
    with open(path, newline="") as lines:
        return [{"name": line["model"], "dtype": line["dtype"],
                 **{s: int(line[s]) for s in (*SIZES, "heads_kv", "length_kv")}, "causal": line["causal"]}
                for line in csv.DictReader(lines)]


def read_recorded(path):
    """Times of peers by case; empty if no file is given."""
    if path is None:
        return {}
    with open(path, newline="") as lines:
        return {tuple(line[k] for k in (*SIZES, "causal")):
                {k[:-3]: float(v) for k, v in line.items() if k.endswith("_us") and v}
                for line in csv.DictReader(lines)}


def scaled(recorded, case, measured_us):
    """The recorded times of a case, scaled by the ratio of cuDNN's times then and now, of libraries that
    did not run."""
    then = recorded.get(tuple(str(case[k]) for k in (*SIZES, "causal")), {})
    if case["dtype"] != "f16" or "cudnn" not in then or "cudnn" not in measured_us:
        return {}
    pace = measured_us["cudnn"] / then["cudnn"]
    return {name: us * pace for name, us in then.items()
            if RECORDED_LIBRARY.get(name, name) not in measured_us}


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
    return _timers.alternated([g.sample_us for g in graphs], SAMPLES)


def difference_of(theirs, ours):
    """The largest difference of two tensors, or of two lists of tensors."""
    pairs = zip(theirs, ours) if isinstance(theirs, (list, tuple)) else [(theirs, ours)]
    return max((a.float() - b.float()).abs().max().item() for a, b in pairs)


class Forward:
    """One case of attention: its inputs, Octavo's call and the peers' calls."""

    def __init__(self, comparison, case):
        self.comparison, self.case, self.torch = comparison, case, comparison.torch
        torch = self.torch
        self.causal = case["causal"] != "none"
        dtype = torch.bfloat16 if case["dtype"] == "bf16" else torch.float16
        heads_kv, length_kv = case.get("heads_kv", case["heads"]), case.get("length_kv", case["length"])

        def tensor(heads, length):
            # Memory order (batch, seqlen, heads, head_dim), as the projections of a model leave it.
            return torch.randn((case["batch"], length, heads, case["head_dim"]), device=MEMORY,
                               dtype=dtype).transpose(1, 2)

        self.q, self.k, self.v = (tensor(case["heads"], case["length"]), tensor(heads_kv, length_kv),
                                  tensor(heads_kv, length_kv))
        self.gqa = heads_kv != case["heads"]
        self.keep = []  # memory that a plan reads

    def operand(self, x, arguments, name, keep):
        """Adds a tensor to the plan's arguments: as it is, or quantized on the host."""
        octavo, torch = self.comparison.octavo, self.torch
        if self.case["dtype"] in octavo_c.WIDE:
            setattr(arguments, name, octavo.strided(x, octavo_c.WIDE[self.case["dtype"]]))
            return
        host = x.contiguous().cpu()
        quantized = torch.empty(x.shape, dtype=torch.uint8)
        scales = torch.empty(x.shape[:2], dtype=torch.float32)
        octavo.quantize_per_head(
            octavo.bhsd(host.data_ptr(), octavo_c.F16, x.shape),
            octavo.bhsd(quantized.data_ptr(), octavo_c.SIM8, x.shape), scales.data_ptr())
        quantized, scales = quantized.to(MEMORY), scales.to(MEMORY)
        keep += [quantized, scales]
        setattr(arguments, name, octavo.bhsd(quantized.data_ptr(), octavo_c.SIM8, x.shape))
        of = getattr(arguments, f"{name}_scales")
        of.data, of.granularity = scales.data_ptr(), octavo_c.PER_HEAD

    def planned(self, plan, results):
        """(call, what is known of the kernel) of a plan; the call returns `results`."""
        torch = self.torch
        workspace = torch.empty(max(plan.workspace_bytes, 1), device=MEMORY, dtype=torch.uint8)

        def call():
            plan.run(workspace.data_ptr(), torch.cuda.current_stream().cuda_stream)
            return results

        return call, {"kernel": plan.kernel, "config": plan.config, "reason": plan.reason}

    def ours(self, lse=None):
        """(call, what is known of the kernel). The output has Q's memory order."""
        octavo, case = self.comparison.octavo, self.case
        out = self.torch.full_like(self.q, math.nan)
        arguments = octavo.arguments()
        for name, x in (("q", self.q), ("k", self.k), ("v", self.v)):
            self.operand(x, arguments, name, self.keep)
        arguments.out = octavo.strided(out, octavo_c.WIDE.get(case["dtype"], octavo_c.F16))
        if lse is not None:
            arguments.lse = octavo.strided(lse, octavo_c.F32)
        return self.planned(octavo_c.Plan(octavo, arguments, octavo.options(case["causal"]), DEVICE), out)

    def peer(self, name):
        if name == "fa3":
            views = [x.transpose(1, 2) for x in (self.q, self.k, self.v)]
            build, call = self.comparison.builds.first(lambda b: b.forward(*views, self.causal))
            self.comparison.used[build.name] = build.namespace
            return lambda: call()[0].transpose(1, 2)
        if name == "fa3_deterministic":
            raise ValueError("FlashAttention-3 is deterministic in the forward pass")
        return self.comparison.sdpa_call(name, self.q, self.k, self.v, self.causal, self.gqa)


class Backward(Forward):
    """The gradients of one case, from a forward pass that is not timed."""

    def __init__(self, comparison, case):
        super().__init__(comparison, case)
        self.dout = self.torch.randn_like(self.q)

    def ours(self):
        octavo, case, torch = self.comparison.octavo, self.case, self.torch
        lse = torch.empty((*self.q.shape[:3], 1), device=MEMORY, dtype=torch.float32)
        out = super().ours(lse)[0]()
        gradients = [torch.full_like(x, math.nan) for x in (self.q, self.k, self.v)]
        self.keep += [lse, out, gradients]
        arguments = octavo.backward_arguments()
        arguments.lse = octavo.strided(lse, octavo_c.F32)
        for name, x in zip(("q", "k", "v", "out", "dout", "dq", "dk", "dv"),
                           (self.q, self.k, self.v, out, self.dout, *gradients)):
            setattr(arguments, name, octavo.strided(x, octavo_c.WIDE[case["dtype"]]))
        return self.planned(octavo_c.BackwardPlan(octavo, arguments, octavo.options(case["causal"]), DEVICE),
                            gradients)

    def peer(self, name):
        operands = (self.dout, self.q, self.k, self.v)
        if not name.startswith("fa3"):
            if self.gqa:
                raise ValueError("PyTorch's operator for gradients has no GQA")
            call = _peers.torch_backward(self.torch, name, *operands, self.causal)
            return lambda: call()[:3]
        views = [x.transpose(1, 2) for x in operands]
        deterministic = name == "fa3_deterministic"
        build, call = self.comparison.builds.first(
            lambda b: b.backward(*views, self.causal, deterministic))
        self.comparison.used[build.name] = build.namespace
        return lambda: [x.transpose(1, 2) for x in call()]


class Comparison:
    def __init__(self, torch, octavo, peers, recorded, builds=None, mode="forward"):
        self.torch, self.octavo, self.peers, self.recorded = torch, octavo, peers, recorded
        self.builds = builds or _peers.Builds(torch)
        self.problem = {"forward": Forward, "backward": Backward}[mode]
        self.clock, self.meter = _timers.Clock(), _power.Meter()
        self.used = {}  # builds of FlashAttention-3 that ran: name -> namespace of the operators

    def stop(self):
        self.clock.stop()
        self.meter.stop()

    def sdpa_call(self, peer, q, k, v, causal, gqa=False):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[peer]
        function = self.torch.nn.functional.scaled_dot_product_attention

        def call():
            with sdpa_kernel(backend):
                return function(q, k, v, is_causal=causal, enable_gqa=gqa)

        return call

    def calls_of(self, problem, peers):
        """(ours or None, what is known of its kernel, the peers' calls, why the others cannot run).
        Every call has been made once."""
        theirs, refused, ours, known = {}, {}, None, {}
        try:
            ours, known = problem.ours()
        except (ValueError, RuntimeError) as missing:
            refused["octavo"] = _peers.first_line(missing)
        for name in peers:
            try:
                theirs[name] = problem.peer(name)
                theirs[name]()
            except _peers.UNAVAILABLE as missing:
                theirs.pop(name, None)
                refused[name] = _peers.first_line(missing)
        return ours, known, theirs, refused

    def checked(self, ours, theirs):
        """Each peer's largest difference from Octavo, or from the first peer where Octavo has no call."""
        truth = ours() if ours else next(iter(theirs.values()))()
        return {name: difference_of(call(), truth) for name, call in theirs.items()}

    def measure(self, case, regime="burst", peers=None):
        """The row of a case; None if neither Octavo nor a peer can run it."""
        problem = self.problem(self, case)
        ours, known, theirs, refused = self.calls_of(problem, self.peers if peers is None else peers)
        calls = [*([ours] if ours else []), *theirs.values()]
        if not calls:
            return None
        differences = self.checked(ours, theirs)
        seen = len(self.clock.seen)
        timed = self.burst if regime == "burst" else self.sustained
        row = timed(case, ours, theirs, max(differences.values(), default=0.0))
        row.update(self.clock.since(seen), **known, regime=regime, differences=differences,
                   not_available=refused)
        return row

    def burst(self, case, ours, theirs, difference):
        first = next(iter(theirs.values()), ours)
        calls = calls_for(_timers.Graph(self.torch, first, 1).sample_us())
        own = [ours, ours] if ours else []
        samples = take_turns([_timers.Graph(self.torch, c, calls) for c in (*own, *theirs.values())])
        return row_of(case, calls, samples[0] if ours else None, samples[1] if ours else None,
                      dict(zip(theirs, samples[len(own):])), self.recorded, difference)

    def sustained(self, case, ours, theirs, difference):
        calls = {**({"octavo": ours} if ours else {}), **theirs}
        loads = [_timers.Load(self.torch, call, _timers.Graph(self.torch, call, 1).sample_us())
                 for call in calls.values()]
        times, watts = _timers.sustained_turns(loads, self.meter, self.clock, TURNS)
        times, watts = dict(zip(calls, times)), dict(zip(calls, watts))
        own = times.pop("octavo", None)
        row = row_of(case, loads[0].calls, own, own and own[-1:], times, {}, difference)
        row["watts"] = watts
        us = {"octavo": row["octavo_us"], **row["peers_us"]}
        row["joules"] = {name: _timers.joules_of(w, us[name]) for name, w in watts.items()}
        return row


def row_of(case, calls, ours, again, theirs, recorded, difference):
    """`ours` and `theirs`: samples; `ours` is None where Octavo has no call, and its fields are then too."""
    row = {**case, "calls": calls}
    medians = {peer: statistics.median(us) for peer, us in theirs.items()}
    fastest = min(medians, key=medians.get, default=None)
    for who, us in (("octavo", ours), ("peer", theirs.get(fastest))):
        low, median, high = (statistics.quantiles(us, n=4, method="inclusive") if us else (None,) * 3)
        row.update({f"{who}_us": median, f"{who}_low_us": low, f"{who}_high_us": high,
                    f"{who}_gflops": median and flops(case) / median / 1e3})
        row[f"{who}_samples_us"] = [round(u, 4) for u in us or []]
    row.update(peer=fastest, peers_us=medians, recorded_us=scaled(recorded, case, medians))
    best = min([*medians.values(), *row["recorded_us"].values()], default=None)
    both = best is not None and ours is not None
    row["ratio"] = best / row["octavo_us"] if both else None
    row["ratio_live"] = row["peer_us"] / row["octavo_us"] if both and fastest else None
    row["ratio_interval"] = (_timers.ratio_interval(theirs[fastest], ours)
                             if both and best == row["peer_us"] else None)
    row["again_ratio"] = statistics.median(again) / row["octavo_us"] if ours else None
    row["max_difference"] = difference if math.isfinite(difference) else None
    return row


def failures_of(rows, family, least=1.0):
    for row in rows:
        what = f"{row['name']} {row['dtype']} causal={row['causal']}"
        what += f" {row['regime']}" if row.get("regime", "burst") != "burst" else ""
        if row.get("mode") != "backward" and "octavo" in row.get("not_available", {}):
            yield f"{what}: Octavo cannot run it: {row['not_available']['octavo']}"
        allowed = (MOST_GRADIENT_DIFFERENCE if row.get("mode") == "backward"
                   else MOST_DIFFERENCE[row["dtype"]])
        if row["max_difference"] is None or row["max_difference"] > allowed:
            yield f"{what}: differs from the peer by {row['max_difference']}; allowed: {allowed}"
        if row["ratio"] is not None and row["ratio"] < least:
            yield f"{what}: {row['ratio']:.3f} times as fast as the best peer; wanted: {least:g}"
        if family and "kernel" in row and not row["kernel"].startswith(family):
            yield f"{what}: ran on {row['kernel']}; wanted: {family}"


def summary_of(rows, dtypes=("f16",)):
    """Geometric mean and minimum over the cases of these dtypes; by default f16, which is the same work
    for all."""
    ratios = [r["ratio"] for r in rows if r["dtype"] in dtypes and r["ratio"] is not None]
    again = [abs(r["again_ratio"] - 1) for r in rows if r["again_ratio"] is not None]
    return {"geometric_mean": statistics.geometric_mean(ratios) if ratios else None,
            "minimum": min(ratios, default=None), "resolution": max(again, default=None)}


def add_digests(rows, command):
    """Adds to each row the digests of its kernel and of that kernel's sources, null where the command
    does not know the configuration. Returns the name of the compiler."""
    told = {}
    for config in {r["config"] for r in rows if "config" in r}:
        done = subprocess.run([command, "cache", "explain", config, "--json", "-"], capture_output=True,
                              text=True)
        told[config] = json.loads(done.stdout) if done.returncode == 0 else {}
    for row in rows:
        known = told.get(row.get("config"), {})
        row["kernel_sha256"] = known.get("kernel", {}).get("sha256")
        row["sources_sha256"] = known.get("sources_sha256")
    return "; ".join(sorted({a["compiler"] for a in told.values() if a}))


def machine(torch, peers, used=None):
    told = smi(["driver_version", "clocks.max.sm", "power.limit"])
    chip = torch.cuda.get_device_properties(0)
    return {"device": DEVICE,
            "gpu": {"name": chip.name, "sms": chip.multi_processor_count,
                    "memory_bytes": chip.total_memory, "driver": told["driver_version"],
                    "clock_max_mhz": as_number(told["clocks.max.sm"]),
                    "power_limit_w": as_number(told["power.limit"])},
            "peer": {"name": ", ".join(peers), "torch": torch.__version__,
                     "cuda": torch.version.cuda, "fa3": dict(used or {})}}


def worth_a_load(row):
    """The peers of a row in bursts that are near the best one."""
    best = min(row["peers_us"].values(), default=0)
    return [name for name, us in row["peers_us"].items() if us <= WORTH_A_LOAD * best]


def line_of(row):
    peers = "  ".join(f"{name} {us:.2f}" for name, us in row["peers_us"].items())
    ours = "-" if row["octavo_us"] is None else f"{row['octavo_us']:.2f}"
    ratio = "" if row["ratio"] is None else f"  ratio {row['ratio']:.3f}"
    joules = "".join(f"  {name} {j:.3g} J" for name, j in row.get("joules", {}).items() if j is not None)
    return (f"{row['regime']:>9} {row['name']:>24} {row['dtype']:>4} {row['causal']:>8}  octavo {ours}  "
            f"{peers} us{ratio}{joules}")


class Left:
    """Cases without a row, one sentence each: those that were not tried, and those that failed."""

    def __init__(self):
        self.not_measured, self.failures = [], []


def largest_first(cases):
    """Positions by decreasing work. A case that repeats another one in a second dtype comes last."""
    first = {}
    for i, case in enumerate(cases):
        first.setdefault((case["name"], case["causal"]), i)
    return sorted(range(len(cases)), key=lambda i: (
        first[cases[i]["name"], cases[i]["causal"]] != i, -flops(cases[i])))


def within_budget(cases, budget_s, measure, left, what, line=line_of, clock=time.monotonic):
    """The rows of the cases by position, largest first, until the budget is spent. Its last case may
    exceed it. `left` is a Left, which gets the others: a case that fails does not end the run."""
    begin, rows = clock(), {}
    for i in largest_first(cases):
        name = f"{what} {cases[i]['name']} {cases[i]['dtype']} {cases[i]['causal']}"
        if budget_s is not None and clock() - begin >= budget_s:
            left.not_measured.append(f"{name}: the budget of {budget_s:g} s was spent")
            continue
        try:
            row = measure(i)
        except RuntimeError as failed:
            left.failures.append(f"{name}: {_peers.first_line(failed)}")
            continue
        if row is None:
            left.not_measured.append(f"{name}: nothing can run it")
            continue
        rows[i] = row
        print(line(row), flush=True)
    return dict(sorted(rows.items()))


def run_regimes(comparison, cases, regimes, budgets, left):
    """The rows of each regime. Bursts come first: they tell which peers are worth a sustained load."""
    rows = {"burst": {}, "sustained": {}}

    def measure(regime, i):
        burst = rows["burst"].get(i)
        peers = worth_a_load(burst) if regime == "sustained" and burst else None
        return comparison.measure(cases[i], regime, peers)

    for regime in (r for r in REGIMES if r in regimes):
        rows[regime] = within_budget(cases, budgets.get(regime), lambda i: measure(regime, i),
                                     left, regime)
    return [list(rows[regime].values()) for regime in REGIMES]


def cases_of(arguments, family):
    cases = (read_models(arguments.models) if arguments.models else read_grid(arguments.grid, family))
    if arguments.mode == "forward":
        return cases
    # Training is in bf16.
    return [{**c, "dtype": "bf16", "mode": "backward"} for c in cases if c["dtype"] in ("f16", "bf16")
            and (arguments.models or c["dtype"] == "f16")]


KINDS = {("forward", False): "compare", ("forward", True): "compare_models",
         ("backward", False): "compare_backward", ("backward", True): "compare_backward_models"}


def compare(arguments):
    try:
        import torch
    except ImportError:
        sys.exit("compare_torch: this Python has no PyTorch; $PYTHON names another one")
    if not torch.cuda.is_available():
        sys.exit("compare_torch: PyTorch finds no GPU here")
    octavo = octavo_c.Octavo(arguments.library)
    family = os.environ.get("OCTAVO_KERNELS", "")
    builds = _peers.Builds(torch, arguments.peer_path)
    for name, reason in builds.missing.items():
        print(f"FlashAttention-3 of {name} is not used: {reason}")
    torch.manual_seed(42)
    comparison = Comparison(torch, octavo, arguments.peers, read_recorded(arguments.recorded), builds,
                            arguments.mode)
    cases, left = cases_of(arguments, family), Left()
    budgets = {"burst": arguments.burst_budget, "sustained": arguments.sustained_budget}
    with torch.no_grad():
        rows, sustained = run_regimes(comparison, cases, arguments.regimes, budgets, left)
    comparison.stop()
    compiler = add_digests(rows + sustained, arguments.command)
    failures = [*left.failures, *failures_of(rows + sustained, family, arguments.least)]
    dtypes = sorted({c["dtype"] for c in cases}) if arguments.models or arguments.mode == "backward" else ("f16",)
    report = {"schema": SCHEMA, "kind": KINDS[arguments.mode, bool(arguments.models)],
              "version": octavo.version(), **machine(torch, arguments.peers, comparison.used),
              "commit": arguments.commit, "family": family or None, "samples": SAMPLES,
              "compiler": compiler, **summary_of(rows, dtypes), "least": arguments.least,
              "sustained_summary": summary_of(sustained, dtypes), "passed": not failures,
              "failures": failures, "not_measured": left.not_measured, "rows": rows, "sustained": sustained}
    pathlib.Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    for regime, told in (("burst", report), ("sustained", report["sustained_summary"])):
        if told["geometric_mean"] is not None:
            print(f"{regime}: geometric mean {told['geometric_mean']:.3f}, minimum {told['minimum']:.3f}")
    print(*failures, *left.not_measured, sep="\n")
    return 1 if failures else 0


def names_of(text, known, what):
    names = [n for n in text.split(",") if n]
    for one in names:
        if one not in known:
            raise argparse.ArgumentTypeError(f"{what} is '{one}'; supported: {', '.join(known)}.")
    return names


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--grid", default="bench/grid.csv")
    parser.add_argument("--models", help="real model shapes instead of the grid: bench/models.csv")
    parser.add_argument("--mode", choices=("forward", "backward"), default="forward")
    parser.add_argument("--peers", default=["flash"], type=lambda t: names_of(t, PEERS, "a peer"))
    parser.add_argument("--peer-path", action="append", default=[],
                        help="a library of FlashAttention-3, or a folder of them")
    parser.add_argument("--recorded")
    parser.add_argument("--regimes", default=["burst"], type=lambda t: names_of(t, REGIMES, "a regime"))
    parser.add_argument("--burst-budget", type=float, help="seconds for all cases in bursts")
    parser.add_argument("--sustained-budget", type=float)
    parser.add_argument("--least", type=float, default=1.0)
    parser.add_argument("--commit")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(compare(parse()))
