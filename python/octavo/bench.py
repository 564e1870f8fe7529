"""Octavo beside PyTorch's scaled_dot_product_attention: python -m octavo.bench

Both compute the same inputs in the same process, sample by sample in turn: a chip's clock moves
with its heat, and both must see the same of it. On a GPU a sample is one replay of a CUDA graph of
some calls, on the CPU it is one call; one that is not timed goes before it, so that launching the
graph, or what the other left in the caches, is not in it. --launch stream times calls from the host
instead, --l2 cold overwrites L2 before each, --buffers N lets calls take N copies of the inputs in
turn. With --compile both are compiled by torch.compile; with --launch stream beside it, what a
compiled call costs the host is in the time. Octavo is timed twice, as if it were its
own peer: what that ratio is away from 1 is what the others cannot be believed beyond.
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
from octavo import _timers

SHAPES = {  # batch, heads, length, head dimension
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
# Packages that are timed where they are installed.
PACKAGES = ("flash_attn", "xformers", "cutlass")
SCHEMA = 1
GRAPH_CALLS = 20  # fewer where they take longer than this:
LONGEST_REPLAY_US = 8000


class Calls:
    """One call on the CPU."""

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
    """So many samples of each, in turn.

    The order changes from round to round: threads of one that still spin slow down the next.
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
    """A call of another package, which takes heads after rows; ImportError where it is not here."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if package == "flash_attn":
        from flash_attn import flash_attn_func
        return lambda: flash_attn_func(q, k, v, causal=causal).transpose(1, 2)
    from xformers import ops
    bias = ops.LowerTriangularMask() if causal else None
    op = (ops.fmha.cutlass.FwOp, None) if package == "cutlass" else None
    return lambda: ops.memory_efficient_attention(q, k, v, attn_bias=bias, op=op).transpose(1, 2)


class NoClock:
    """The CPU's, of which nothing is known."""

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
        self.options = {"causal": arguments.causal}
        if arguments.precision:
            self.options["precision"] = arguments.precision

    def inputs(self, shape):
        """The inputs of the command `octavo bench` for the same seed."""
        made = []
        for stream in range(3):
            x = self.torch.empty(shape, dtype=self.dtype)
            octavo.random_normal(x, self.arguments.seed, stream)
            made.append(x.to(self.device))
        return made

    def theirs(self, backend, q, k, v):
        """The peer's call, or why it cannot be made."""
        if self.arguments.compile and backend in PACKAGES:
            return None, f"{backend} is not compiled"
        try:
            call = (package_call if backend in PACKAGES else self.sdpa_call)(backend, q, k, v,
                                                                             self.arguments.causal)
            call()
        except (ImportError, RuntimeError, ValueError, NotImplementedError) as refused:
            return None, str(refused).splitlines()[0]
        return call, None

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
        """The function, or with --compile what torch.compile makes of it."""
        if not self.arguments.compile:
            return function
        return self.torch.compile(lambda q, k, v: function(q, k, v), fullgraph=True)

    def truth(self, q, k, v):
        """Attention in float64, head by head: no memory that grows with the batch."""
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

    def row(self, name, backend):
        shape = SHAPES[name]
        q, k, v = self.inputs(shape)
        copies = [(q, k, v)] + [tuple(x.clone() for x in (q, k, v)) for _ in range(1, self.arguments.buffers)]
        row = {"name": name, "shape": list(shape), "backend": backend}

        function = octavo.attention
        if self.arguments.compile:
            from octavo.torch import attention as function
        function = self.maybe_compiled(functools.partial(function, **self.options))

        def ours(q=q, k=k, v=v):
            return function(q, k, v)

        told = octavo.explain(q, k, v, **self.options)
        row.update(kernel=told.kernel, config=told.config)
        theirs, refused = self.theirs(backend, q, k, v)
        if not self.arguments.skip_correctness:
            truth = self.truth(q, k, v)
            row["max_error"] = (ours().double() - truth).abs().max().item()
            if theirs:
                row["peer_max_error"] = (theirs().double() - truth).abs().max().item()
            del truth
        of_ours = [functools.partial(ours, *copy) for copy in copies]
        of_theirs = [self.theirs(backend, *copy)[0] for copy in copies] if theirs else []
        timed = [timer(self.torch, self.arguments, self.device, _timers.in_turn(calls))
                 for calls in (of_ours, of_theirs, of_ours) if calls]
        seen = len(self.clock.seen)
        samples = take_turns(timed, self.arguments.warmup, self.arguments.iters)
        row.update(self.clock.since(seen))
        row.update(calls=timed[0].calls, octavo=summary_of(samples[0]),
                   octavo_again=summary_of(samples[-1]))
        row["again_ratio"] = row["octavo_again"]["median_us"] / row["octavo"]["median_us"]
        if not theirs:
            return {**row, "peer": None, "not_available": refused}
        row["peer"] = summary_of(samples[1])
        row["ratio"] = row["peer"]["median_us"] / row["octavo"]["median_us"]
        row["ratio_interval"] = _timers.ratio_interval(samples[1], samples[0])
        return row

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
    return text


def heading(with_errors):
    text = (f"{'shape':>8} {'B,H,S,D':>14} {'peer':>13} {'octavo us':>11} {'quartiles':>19} "
            f"{'peer us':>11} {'quartiles':>19} {'ratio':>6} {'95%':>12} {'A/A':>6}")
    return text + (f" {'error':>9} {'of peer':>9}" if with_errors else "")


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
    parser.add_argument("--shapes", default=list(SHAPES), help="comma separated, of " + ", ".join(SHAPES),
                        type=lambda text: names_of(text, SHAPES, "a shape"))
    parser.add_argument("--backend", default=["auto"],
                        help="of PyTorch, comma separated, of " + ", ".join(BACKENDS) + "; and "
                        + ", ".join(PACKAGES) + ", where they are installed",
                        type=lambda text: names_of(text, (*BACKENDS, *PACKAGES), "a backend"))
    parser.add_argument("--launch", choices=("graph", "stream"), default="graph",
                        help="on a GPU: replays of a CUDA graph, or calls from the host")
    parser.add_argument("--l2", choices=("warm", "cold"), default="warm",
                        help="on a GPU: as the last call left it, or overwritten before each")
    parser.add_argument("--buffers", type=int, default=1,
                        help="copies of the inputs that calls take in turn (1)")
    parser.add_argument("--iters", type=int, default=100, help="samples of each (100)")
    parser.add_argument("--warmup", type=int, default=20, help="samples before those (20)")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--skip-correctness", action="store_true",
                        help="do not hold both against float64 first")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--compile", action="store_true",
                        help="calls by torch.compile, PyTorch's as well as Octavo's")
    parser.add_argument("--dtype", choices=("float16", "bfloat16", "float32"),
                        help="float16 on a GPU, float32 on the CPU")
    parser.add_argument("--precision", help="of octavo.attention, e.g. fp8")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda where there is a GPU")
    parser.add_argument("--json", default="runs/summary.json", help="where the samples go")
    arguments = parser.parse_args(words)
    if arguments.iters < 1 or arguments.warmup < 0:
        parser.error("--iters is at least 1 and --warmup at least 0")
    if arguments.buffers < 1:
        parser.error(f"--buffers is {arguments.buffers}; supported: 1 or more.")
    return arguments


def main(words=None):
    arguments = parse(words)
    try:
        import torch
    except ImportError:
        sys.exit("octavo.bench: this Python has no PyTorch, which is what Octavo is held against")
    bench = Bench(torch, arguments)
    if bench.device == "cpu" and (arguments.launch, arguments.l2) != ("graph", "warm"):
        sys.exit(f"octavo.bench: the timing is launch {arguments.launch}, L2 {arguments.l2} on cpu; "
                 "supported: those of a GPU there, none elsewhere.")
    report = {"schema": SCHEMA, "kind": "python_bench", "version": octavo.__version__,
              **bench.machine(), "seed": arguments.seed, "warmup": arguments.warmup,
              "iters": arguments.iters, "launch": arguments.launch, "l2": arguments.l2,
              "buffers": arguments.buffers, "causal": arguments.causal, "compile": arguments.compile,
              "precision": arguments.precision, "rows": []}
    print(f"octavo {octavo.__version__}, PyTorch {torch.__version__}, "
          f"{report.get('gpu', 'CPU')}, {report['dtype']}, medians of {arguments.iters}")
    print(heading(not arguments.skip_correctness))
    with torch.no_grad():
        for name in arguments.shapes:
            for backend in arguments.backend:
                report["rows"].append(bench.row(name, backend))
                print(line_of(report["rows"][-1]), flush=True)
    bench.clock.stop()
    path = pathlib.Path(arguments.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
