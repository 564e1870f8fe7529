# SPDX-License-Identifier: Apache-2.0
"""Benchmark of Octavo against PyTorch's scaled_dot_product_attention: python -m octavo.bench

Both compute the same inputs in the same process. Their samples alternate, because the clock of a GPU
changes with its temperature and must be the same for both. On a GPU a sample is one replay of a CUDA
graph of several calls, on the CPU it is one call. An untimed replay or call precedes each sample, so
that the launch of the graph and the caches of the other library do not affect it. --launch stream
times calls from the host instead, --l2 cold overwrites L2 before each call, --buffers N rotates over
N copies of the inputs. --compile runs both through torch.compile; together with --launch stream, the
time includes the host time of a compiled call. Octavo is timed twice, as if it were its own peer:
differences between libraries that are smaller than this A/A difference are not significant.

--regime sustained times replays under a load that lasts, where the power limit sets the clock, and
reads the energy of a call from the board. The backend fa3 is the first build of FlashAttention-3 that
serves the inputs: a package, or a library named by --peer-path or $OCTAVO_PEERS. With --prequantized,
both get 8-bit inputs.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import random
import statistics
import sys
import time

import octavo
from octavo import _peers, _power, _timers

SHAPES = {  # batch, heads, seqlen, head_dim
    "mission": (1, 8, 512, 64),
    "small": (2, 8, 512, 64),
    "long": (2, 8, 2048, 64),
    "wide": (2, 8, 512, 128),
    "stress": (4, 8, 2048, 64),
}
BACKENDS = {
    "auto": None,
    "flash": "FLASH_ATTENTION",
    "mem_efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
    "cudnn": "CUDNN_ATTENTION",
}
# Packages that are timed if they are installed.
PACKAGES = ("flash_attn", "xformers", "cutlass")
FA3 = "fa3"  # a build of FlashAttention-3, wherever it comes from
SCHEMA = 1
GRAPH_CALLS = 20  # fewer if a replay would take longer than the next constant
LONGEST_REPLAY_US = 8000
TURNS = 3  # of a sustained load
# The largest quantized value of Q and K by head_dim, so that the kernels' 16-bit scores cannot overflow.
LARGEST_QUANTIZED = {64: 30.0, 128: 22.0, 256: 15.0}


class Calls:
    """Times one call on the CPU."""

    calls = 1

    def __init__(self, call):
        self.call = call

    def sample_us(self):
        self.call()
        begin = time.perf_counter()
        self.call()
        return (time.perf_counter() - begin) * 1e6


def timer(torch, arguments, device, call):
    if device != "cuda":
        return Calls(call)
    once = _timers.Graph(torch, call, 1).sample_us()
    calls = max(1, min(GRAPH_CALLS, int(LONGEST_REPLAY_US / once)))
    return _timers.timer_of(torch, call, arguments.launch, arguments.l2, calls)


def take_turns(timers, warmup, iters):
    """Takes `iters` samples of each timer, alternating.

    The order changes from round to round, because spinning threads of one slow down the next.
    """
    draw = random.Random(0)
    turns = [(one, []) for one in timers]
    for i in range(warmup + iters):
        for one, samples in draw.sample(turns, len(turns)):
            taken = one.sample_us()
            if i >= warmup:
                samples.append(taken)
    return [samples for _, samples in turns]


def summary_of(samples):
    if len(samples) < 2:
        low = median = high = samples[0]
    else:
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return {"median_us": median, "low_us": low, "high_us": high,
            "samples_us": [round(s, 4) for s in samples]}


def package_call(package, q, k, v, causal):
    """A call of another package, which uses the bshd layout; ImportError if it is not installed."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if package == "flash_attn":
        from flash_attn import flash_attn_func
        return lambda: flash_attn_func(q, k, v, causal=causal).transpose(1, 2)
    from xformers import ops
    bias = ops.LowerTriangularMask() if causal else None
    op = (ops.fmha.cutlass.FwOp, None) if package == "cutlass" else None
    return lambda: ops.memory_efficient_attention(q, k, v, attn_bias=bias, op=op).transpose(1, 2)


class NoClock:
    """Stands in for the clock on the CPU, where nothing is recorded."""

    seen = ()

    def since(self, start):
        return {"clock_mhz": None, "power_w": None, "throttle": None}

    def stop(self):
        pass


class Bench:
    def __init__(self, torch, arguments):
        self.torch, self.arguments = torch, arguments
        self.device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = getattr(torch, arguments.dtype or
                             ("float16" if self.device == "cuda" else "float32"))
        self.clock = _timers.Clock() if self.device == "cuda" else NoClock()
        self.meter = _power.Meter() if arguments.regime == "sustained" else None
        self.builds = _peers.Builds(torch, arguments.peer_path) if FA3 in arguments.backend else None
        self.options = {"causal": arguments.causal}
        if arguments.precision:
            self.options["precision"] = arguments.precision

    def inputs(self, shape):
        """The inputs that the command `octavo bench` uses for the same seed."""
        made = []
        for stream in range(3):
            x = self.torch.empty(shape, dtype=self.dtype)
            octavo.random_normal(x, self.arguments.seed, stream)
            made.append(x.to(self.device))
        return made

    def theirs(self, backend, q, k, v):
        """The peer's call, or the reason why it is not available."""
        if self.arguments.compile and backend in (*PACKAGES, FA3):
            return None, f"{backend} is not compiled"
        make = {FA3: self.fa3_call}.get(backend, package_call if backend in PACKAGES else self.sdpa_call)
        try:
            call = make(backend, q, k, v, self.arguments.causal)
            call()
        except (ImportError, RuntimeError, ValueError, NotImplementedError) as refused:
            return None, str(refused).splitlines()[0]
        return call, None

    def fa3_call(self, backend, q, k, v, causal):
        """FlashAttention-3 in its own memory order, on 8-bit inputs with --prequantized."""
        operands = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        if self.arguments.prequantized:
            operands = [x.to(self.torch.float8_e4m3fn) for x in operands]
        _, call = self.builds.first(lambda build: build.forward(*operands, causal))
        return lambda: call()[0].transpose(1, 2)

    def ours(self, q, k, v):
        """Octavo's call, and its operands; these are quantized here with --prequantized."""
        options = dict(self.options)
        if self.arguments.prequantized:
            most = {"max_quantized": LARGEST_QUANTIZED.get(q.shape[-1], 0.0)}
            options["out_dtype"] = q.dtype
            q, k, v = (octavo.quantize(q, granularity="row", **most), octavo.quantize(k, **most),
                       octavo.quantize(v, granularity="channel", transposed=self.device == "cuda"))
        function = octavo.attention
        if self.arguments.compile:
            from octavo.torch import attention as function
        function = self.maybe_compiled(functools.partial(function, **options))
        return (lambda: function(q, k, v)), (q, k, v), options

    def sdpa_call(self, backend, q, k, v, causal):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        chosen = BACKENDS[backend]
        function = self.maybe_compiled(functools.partial(
            self.torch.nn.functional.scaled_dot_product_attention, is_causal=causal))
        if chosen is None:
            return lambda: function(q, k, v)

        def call():
            with sdpa_kernel(getattr(SDPBackend, chosen)):
                return function(q, k, v)

        return call

    def maybe_compiled(self, function):
        """The function, compiled by torch.compile with --compile."""
        if not self.arguments.compile:
            return function
        return self.torch.compile(lambda q, k, v: function(q, k, v), fullgraph=True)

    def truth(self, q, k, v):
        """Attention in float64, head by head, so that memory does not grow with the batch."""
        torch = self.torch
        out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
        rows = torch.arange(q.shape[2], device=q.device)
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                s = q[b, h].double() @ k[b, h].double().T / q.shape[3] ** 0.5
                if self.arguments.causal:
                    s.masked_fill_(rows[None, :] > rows[:, None], float("-inf"))
                out[b, h] = s.softmax(-1) @ v[b, h].double()
        return out

    def time(self, row, ours, theirs):
        """Adds the samples of Octavo's calls and the peer's, and what follows from them."""
        seen = len(self.clock.seen)
        series = [_timers.in_turn(calls) for calls in (ours, theirs, ours) if calls]
        if self.arguments.regime == "sustained":
            loads = [_timers.Load(self.torch, call, _timers.Graph(self.torch, call, 1).sample_us())
                     for call in series]
            samples, watts = _timers.sustained_turns(loads, self.meter, self.clock, TURNS)
            calls = loads[0].calls
            row["joules"] = {who: _timers.joules_of(w, statistics.median(us)) for who, w, us in
                             zip(("octavo", "peer") if theirs else ("octavo",), watts, samples)}
        else:
            timed = [timer(self.torch, self.arguments, self.device, call) for call in series]
            samples, calls = take_turns(timed, self.arguments.warmup, self.arguments.iters), timed[0].calls
        row.update(self.clock.since(seen), calls=calls, octavo=summary_of(samples[0]),
                   octavo_again=summary_of(samples[-1]), peer=None)
        row["again_ratio"] = row["octavo_again"]["median_us"] / row["octavo"]["median_us"]
        if theirs:
            row["peer"] = summary_of(samples[1])
            row["ratio"] = row["peer"]["median_us"] / row["octavo"]["median_us"]
            row["ratio_interval"] = _timers.ratio_interval(samples[1], samples[0])
        return row

    def row(self, name, backend):
        shape = SHAPES[name]
        q, k, v = self.inputs(shape)
        copies = [(q, k, v)] + [tuple(x.clone() for x in (q, k, v)) for _ in range(1, self.arguments.buffers)]
        row = {"name": name, "shape": list(shape), "backend": backend}
        ours = [self.ours(*copy) for copy in copies]
        call, operands, options = ours[0]
        explanation = octavo.explain(*operands, **options)
        row.update(kernel=explanation.kernel, config=explanation.config)
        theirs, refused = self.theirs(backend, q, k, v)
        if not theirs:
            row["not_available"] = refused
        if not self.arguments.skip_correctness:
            truth = self.truth(q, k, v)
            row["max_error"] = (call().double() - truth).abs().max().item()
            if theirs:
                row["peer_max_error"] = (theirs().double() - truth).abs().max().item()
            del truth
        of_theirs = [self.theirs(backend, *copy)[0] for copy in copies] if theirs else []
        return self.time(row, [made[0] for made in ours], of_theirs)

    def stop(self):
        self.clock.stop()
        if self.meter:
            self.meter.stop()

    def machine(self):
        made = {"device": self.device, "torch": self.torch.__version__,
                "dtype": str(self.dtype).removeprefix("torch.")}
        if self.device == "cuda":
            made["gpu"] = self.torch.cuda.get_device_name()
            made["cuda"] = self.torch.version.cuda
        else:
            made["threads"] = self.torch.get_num_threads()
        return made


def line_of(row):
    shape = ",".join(str(n) for n in row["shape"])
    ours = row["octavo"]
    spread = f"{ours['low_us']:.2f}-{ours['high_us']:.2f}"
    text = f"{row['name']:>8} {shape:>14} {row['backend']:>13} {ours['median_us']:11.2f} {spread:>19} "
    if row["peer"]:
        peer = row["peer"]
        low, high = row["ratio_interval"]
        spread = f"{peer['low_us']:.2f}-{peer['high_us']:.2f}"
        text += (f"{peer['median_us']:11.2f} {spread:>19} {row['ratio']:6.3f} "
                 f"{f'{low:.3f}-{high:.3f}':>12}")
    else:
        text += f"{'not available':>51}"
    text += f" {row['again_ratio']:6.3f}"
    if "max_error" in row:
        peer = f"{row['peer_max_error']:.1e}" if "peer_max_error" in row else "-"
        text += f" {row['max_error']:9.1e} {peer:>9}"
    if "joules" in row:
        told = [row["joules"].get(who) for who in ("octavo", "peer")]
        text += "".join(" " * 9 + "-" if j is None else f" {j:9.3g}" for j in told)
    return text


def heading(with_errors, with_joules=False):
    text = (f"{'shape':>8} {'B,H,S,D':>14} {'peer':>13} {'octavo us':>11} {'quartiles':>19} "
            f"{'peer us':>11} {'quartiles':>19} {'ratio':>6} {'95%':>12} {'A/A':>6}")
    text += f" {'error':>9} {'of peer':>9}" if with_errors else ""
    return text + (f" {'J a call':>9} {'of peer':>9}" if with_joules else "")


def names_of(text, known, what):
    names = [n for n in text.split(",") if n]
    for one in names:
        if one not in known:
            raise argparse.ArgumentTypeError(
                f"{what} is '{one}'; supported: {', '.join(known)}.")
    return names


def parse(words):
    parser = argparse.ArgumentParser(prog="python -m octavo.bench",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=list(SHAPES), help="comma separated: " + ", ".join(SHAPES),
                        type=lambda text: names_of(text, SHAPES, "a shape"))
    parser.add_argument("--backend", default=["auto"],
                        help="comma separated: " + ", ".join(BACKENDS) + " of PyTorch; "
                        + ", ".join((*PACKAGES, FA3)) + " if they are installed",
                        type=lambda text: names_of(text, (*BACKENDS, *PACKAGES, FA3), "a backend"))
    parser.add_argument("--launch", choices=("graph", "stream"), default="graph",
                        help="on a GPU: replays of a CUDA graph, or calls from the host")
    parser.add_argument("--l2", choices=("warm", "cold"), default="warm",
                        help="on a GPU: as the last call left it, or overwritten before each call")
    parser.add_argument("--buffers", type=int, default=1,
                        help="copies of the inputs that calls rotate over (1)")
    parser.add_argument("--regime", choices=("burst", "sustained"), default="burst",
                        help="on a GPU: a few calls at a time, or a load that lasts, with joules")
    parser.add_argument("--peer-path", action="append", default=[],
                        help="a library of FlashAttention-3, or a folder of them, for the backend fa3")
    parser.add_argument("--prequantized", action="store_true",
                        help="E4M3 inputs, quantized before; for the backend fa3 too")
    parser.add_argument("--iters", type=int, default=100, help="timed samples of each library (100)")
    parser.add_argument("--warmup", type=int, default=20, help="untimed samples before those (20)")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--skip-correctness", action="store_true",
                        help="do not compare both with float64 first")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--compile", action="store_true",
                        help="run both libraries through torch.compile")
    parser.add_argument("--dtype", choices=("float16", "bfloat16", "float32"),
                        help="float16 on a GPU, float32 on the CPU")
    parser.add_argument("--precision", help="precision of octavo.attention, e.g. fp8")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda if there is a GPU")
    parser.add_argument("--json", default="runs/summary.json", help="output file for the samples")
    arguments = parser.parse_args(words)
    if arguments.iters < 1 or arguments.warmup < 0:
        parser.error("--iters is at least 1 and --warmup at least 0")
    if arguments.buffers < 1:
        parser.error(f"--buffers is {arguments.buffers}; supported: 1 or more.")
    if arguments.prequantized and arguments.compile:
        parser.error("--prequantized is given with --compile; supported: one of the two.")
    if arguments.regime == "sustained" and (arguments.launch, arguments.l2) != ("graph", "warm"):
        parser.error(f"the timing is launch {arguments.launch}, L2 {arguments.l2} under a sustained load; "
                     "supported: launch graph, L2 warm.")
    return arguments


def main(words=None):
    arguments = parse(words)
    try:
        import torch
    except ImportError:
        sys.exit("octavo.bench: this Python has no PyTorch, which is what Octavo is held against")
    bench = Bench(torch, arguments)
    if bench.device == "cpu" and arguments.regime == "sustained":
        sys.exit("octavo.bench: the regime is sustained on cpu; supported: burst there, both on a GPU.")
    if bench.device == "cpu" and (arguments.launch, arguments.l2) != ("graph", "warm"):
        sys.exit(f"octavo.bench: the timing is launch {arguments.launch}, L2 {arguments.l2} on cpu; "
                 "supported: those of a GPU there, none elsewhere.")
    report = {"schema": SCHEMA, "kind": "python_bench", "version": octavo.__version__,
              **bench.machine(), "seed": arguments.seed, "warmup": arguments.warmup,
              "iters": arguments.iters, "launch": arguments.launch, "l2": arguments.l2,
              "buffers": arguments.buffers, "causal": arguments.causal, "compile": arguments.compile,
              "precision": arguments.precision, "regime": arguments.regime,
              "prequantized": arguments.prequantized, "rows": []}
    print(f"octavo {octavo.__version__}, PyTorch {torch.__version__}, "
          f"{report.get('gpu', 'CPU')}, {report['dtype']}, medians of {arguments.iters}")
    print(heading(not arguments.skip_correctness, arguments.regime == "sustained"))
    with torch.no_grad():
        for name in arguments.shapes:
            for backend in arguments.backend:
                report["rows"].append(bench.row(name, backend))
                print(line_of(report["rows"][-1]), flush=True)
    bench.stop()
    path = pathlib.Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
