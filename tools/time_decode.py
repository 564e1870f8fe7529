#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times decoding on a GPU: a few query tokens over long KV caches, beside cuDNN and FlashAttention-3.

usage: time_decode.py [--json FILE] [--formats NAME,...] [--cases N,...] [--rounds N] [--peers PATH]...
                      [--budget S] [--prepare] [--limits]
       time_decode.py --table FILE      prints the table of a --json FILE in Markdown

Octavo is timed over dense tensors and over an octavo.KvCache of each format: bf16 in pages of 16 and of
128 rows, and float8_e4m3fn, int8 and int4 in pages of 128. cuDNN serves one query token over dense
tensors, FlashAttention-3 dense and paged tensors in bf16 and FP8. All candidates of a case take turns. A
sample is the replay of a CUDA graph of at least 24 calls, which rotate over caches that are together
larger than the L2 cache. The last case has sequences of very different length; its ratio is the time
beside the same tokens in equal lengths. The limit is the bytes of K and V at the bandwidth of a copy that
this run measures.

Before it is timed, each candidate's output is compared with fp32 attention over the same K and V, of the
first sequence. --prepare only makes the plans, which compiles their kernels into the cache on disk.
Exit code 1: an output is wrong, or with --limits a time is above the limit of its case in CASES.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import sys
import time

try:
    import octavo
    import torch
    from octavo import _peers, _timers
except ImportError:  # --table needs neither
    pass

CALLS = 24  # the least of a graph: its launch costs 8 to 10 us
ROTATED_BYTES = 200 << 20  # of all caches of a candidate, several times the L2 cache
COPIED_BYTES = 1 << 30
FORMATS = ("dense", "paged16", "paged128", "fp8", "int8", "int4")
CACHES = {"paged16": ("bfloat16", 16), "paged128": ("bfloat16", 128), "fp8": ("float8_e4m3fn", 128),
          "int8": ("int8", 128), "int4": ("int4", 128)}
# Bytes of a value, and of what its row of head_dim values carries besides.
VALUE_BYTES = {"dense": 2, "paged16": 2, "paged128": 2, "fp8": 1, "int8": 1, "int4": 0.5}
# The worst relative error of an output, as the root mean square: a format's, not the kernel's.
WORST = {"dense": 6e-3, "paged16": 6e-3, "paged128": 6e-3, "fp8": 6e-2, "int8": 2e-2, "int4": 2e-1}


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_kv: int
    head_dim: int
    most_us: dict = dataclasses.field(default_factory=dict)  # --limits
    lengths: tuple = ()  # of the sequences, if they differ

    def name(self):
        heads = f"{self.heads_q}/{self.heads_kv}"
        keys = f"{min(self.lengths)}..{max(self.lengths)}" if self.lengths else self.seqlen_kv
        return f"{self.batch},{heads},{self.seqlen_q},{keys},{self.head_dim}"

    def tokens(self):
        return sum(self.lengths) if self.lengths else self.batch * self.seqlen_kv

    def kv_bytes(self, form):
        return int(2 * self.tokens() * self.heads_kv * self.head_dim * VALUE_BYTES[form])


def uneven(batch, least, most):
    """Lengths in geometric steps, in an order that is not sorted."""
    steps = [round(least * (most / least) ** (i / (batch - 1))) for i in range(batch)]
    return tuple(steps[(7 * i) % batch] for i in range(batch))


UNEVEN = uneven(64, 100, 100_000)
CASES = (
    Case(1, 32, 8, 1, 4096, 128, {"dense": 8.0}),
    Case(1, 32, 8, 1, 32768, 128, {"dense": 36, "fp8": 22, "int8": 22}),
    Case(1, 32, 8, 4, 131072, 128, {"dense": 130}),
    Case(1, 8, 1, 1, 65536, 128, {"dense": 13}),
    Case(8, 64, 8, 1, 8192, 64, {"dense": 34}),
    Case(32, 32, 8, 1, 4096, 128, {"dense": 128, "fp8": 70, "int8": 70}),
    Case(128, 32, 8, 4, 2048, 128, {"dense": 252, "fp8": 138, "int8": 138}),
    Case(64, 8, 2, 1, sum(UNEVEN) // 64, 128, lengths=UNEVEN),
)


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def sets_of(case, form):
    return max(2, math.ceil(ROTATED_BYTES / case.kv_bytes(form)))


class Dense:
    """K and V as tensors, (batch, heads, seqlen, head_dim)."""

    def __init__(self, case):
        self.case = case
        self.kv = [[normal(case.batch, case.heads_kv, case.seqlen_kv, case.head_dim) for _ in range(2)]
                   for _ in range(sets_of(case, "dense"))]

    def first(self):
        return [x[0].float() for x in self.kv[0]]

    def octavo(self, q):
        return [lambda k=k, v=v: octavo.attention(q, k, v, causal="bottom_right") for k, v in self.kv]

    def cudnn(self, q):
        if self.case.seqlen_q != 1:
            raise ValueError("cuDNN's causal mask is top-left; supported: one query token")
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def call(k, v):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return [lambda k=k, v=v: call(k, v) for k, v in self.kv]


class Paged:
    """Octavo's KV caches of one format."""

    def __init__(self, case, form):
        dtype, page = CACHES[form]
        lengths = case.lengths or (case.seqlen_kv,) * case.batch
        pages = sum(-(-n // page) for n in lengths)
        self.caches = [octavo.KvCache(pages, case.heads_kv, case.head_dim, page_size=page, dtype=dtype,
                                      max_batch=case.batch, pages_per_sequence=-(-max(lengths) // page),
                                      device="cuda")
                       for _ in range(sets_of(case, form))]
        for cache in self.caches:
            sequences = [cache.add_sequence() for _ in lengths]
            for sequence, length in zip(sequences, lengths):
                cache.select([sequence])
                k, v = (normal(1, case.heads_kv, length, case.head_dim) for _ in range(2))
                cache.append(k, v)
                if cache is self.caches[0] and sequence == sequences[0]:
                    self.kv = [x[0].float() for x in (k, v)]
            cache.select(sequences)

    def first(self):
        return self.kv

    def octavo(self, q):
        return [lambda c=c: c.attention(q, causal="bottom_right") for c in self.caches]


class Fa3:
    """Pages of FlashAttention-3, (pages, page, heads, head_dim); those of a sequence are scattered."""

    def __init__(self, case, page, dtype):
        self.case, self.dtype = case, dtype
        pages = case.batch * case.seqlen_kv // page
        form = "dense" if dtype == torch.bfloat16 else "fp8"
        self.kv = [[normal(pages, page, case.heads_kv, case.head_dim).to(dtype) for _ in range(2)]
                   for _ in range(sets_of(case, form))]
        self.table = torch.randperm(pages, device="cuda", dtype=torch.int32).view(case.batch, -1)
        self.lengths = torch.full((case.batch,), case.seqlen_kv, device="cuda", dtype=torch.int32)

    def first(self):
        return [x[self.table[0].long()].flatten(0, 1).transpose(0, 1).float() for x in self.kv[0]]

    def calls(self, builds, q):
        q = q.transpose(1, 2).contiguous().to(self.dtype)
        return [builds.first(lambda build, k=k, v=v: build.decode(q, k, v, self.table, self.lengths))[1]
                for k, v in self.kv]


def exact(q, kv):
    """fp32 attention of the first sequence: (heads, seqlen_q, head_dim)."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[0], 0) for x in kv)
    seqlen_q, seqlen_kv = q.shape[2], k.shape[1]
    s = q[0].float() @ k.transpose(1, 2) / q.shape[3] ** 0.5
    seen = torch.ones(seqlen_q, seqlen_kv, dtype=torch.bool, device="cuda").tril(seqlen_kv - seqlen_q)
    return s.masked_fill(~seen, -math.inf).softmax(-1) @ v


def error_of(out, wanted):
    out = out[0] if torch.is_tensor(out) else out[0][0]
    out = out.float()
    if out.shape != wanted.shape:  # (seqlen_q, heads, head_dim)
        out = out.transpose(0, 1)
    return ((out - wanted).square().mean() / wanted.square().mean()).sqrt().item()


class Candidate:
    """One way to compute a case; its memory lives as long as it does."""

    def __init__(self, name, form, memory, calls, q):
        self.name, self.form, self.memory = name, form, memory
        self.error = error_of(calls[0](), exact(q, memory.first()))
        self.calls = calls

    def is_right(self):
        return self.error < (2 if self.name.startswith("fa3") else 1) * WORST[self.form]

    def capture(self):
        count = len(self.calls) * -(-CALLS // len(self.calls))
        for call in self.calls:
            call()
        self.graph = _timers.Graph(torch, _timers.in_turn(self.calls), count)


def candidates(case, formats, builds, q, missing):
    """Every candidate of a case that can be made; `missing` gets the reasons of the others."""
    makers = []
    if "dense" in formats and not case.lengths:
        dense = Dense(case)
        makers += [("octavo dense", "dense", lambda: (dense, dense.octavo(q))),
                   ("cudnn dense", "dense", lambda: (dense, dense.cudnn(q)))]
    for form in formats:
        if form in CACHES:
            def cache(form=form):
                paged = Paged(case, form)
                return paged, paged.octavo(q)
            makers.append((f"octavo {form}", form, cache))
    if builds is not None and not case.lengths:
        for name, form, dtype in (("fa3 paged128", "dense", torch.bfloat16),
                                  ("fa3 fp8 paged128", "fp8", torch.float8_e4m3fn)):
            def pages(dtype=dtype):
                fa3 = Fa3(case, 128, dtype)
                return fa3, fa3.calls(builds, q)
            makers.append((name, form, pages))
    for name, form, make in makers:
        try:
            yield Candidate(name, form, *make(), q)
        except (ValueError, RuntimeError, TypeError) as refused:
            missing[name] = _peers.first_line(refused)


def equal_lengths(case):
    return dataclasses.replace(case, lengths=())


def measure(case, formats, builds, rounds):
    torch.manual_seed(0)
    q = normal(case.batch, case.heads_q, case.seqlen_q, case.head_dim)
    missing = {}
    found = list(candidates(case, formats, builds, q, missing))
    if case.lengths:  # beside the same tokens in equal lengths
        for other in candidates(equal_lengths(case), [f for f in formats if f in CACHES], None, q, missing):
            other.name += ", equal lengths"
            found.append(other)
    for candidate in found:
        candidate.capture()
    samples = [candidate.graph.sample_us for candidate in found]
    _timers.alternated(samples, 1)
    times = _timers.alternated(samples, rounds)
    return {"case": case.name(), "missing": missing,
            "kv_bytes": {c.name: case.kv_bytes(c.form) for c in found},
            "us": {c.name: statistics.median(t) for c, t in zip(found, times)},
            "error": {c.name: c.error for c in found},
            "wrong": [c.name for c in found if not c.is_right()]}


def copy_bandwidth():
    """Bytes per us, read and written, of the fastest of many copies: an idle GPU's clocks rise slowly."""
    source, target = (torch.empty(COPIED_BYTES // 4, dtype=torch.int32, device="cuda") for _ in range(2))
    graph = _timers.Graph(torch, lambda: target.copy_(source), 4)
    return 2 * COPIED_BYTES / min(graph.sample_us() for _ in range(100))


def line_of(row, bandwidth):
    parts = []
    for name, us in row["us"].items():
        share = row["kv_bytes"][name] / bandwidth / us
        parts.append(f"{name} {us:.1f} us ({row['kv_bytes'][name] / us / 1e6:.2f} TB/s, {share:.0%})")
    return f"{row['case']:>26}  " + "; ".join(parts)


def too_slow(case, row):
    for form, most in case.most_us.items():
        us = row["us"].get(f"octavo {form}")
        if us is None or us > most:
            yield f"{row['case']}: octavo {form} takes {us} us; wanted: {most}"


def table_of(report):
    """The times of all cases, in us."""
    names = list(dict.fromkeys(name for row in report["rows"] for name in row["us"]))
    yield "| batch, heads, queries, keys, head_dim | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for row in report["rows"]:
        cells = (f"{row['us'][name]:.1f}" if name in row["us"] else "" for name in names)
        yield f"| {row['case']} | " + " | ".join(cells) + " |"


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--formats", default=",".join(FORMATS), type=lambda text: text.split(","))
    parser.add_argument("--cases", help="numbers of cases, from 0", type=lambda t: [int(n) for n in t.split(",")])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peers", action="append", default=[])
    parser.add_argument("--budget", type=float, help="seconds; the cases left are listed as not measured")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--table", type=pathlib.Path)
    given = parser.parse_args(words)
    if unknown := set(given.formats) - set(FORMATS):
        parser.error(f"--formats has '{', '.join(sorted(unknown))}'; supported: {', '.join(FORMATS)}.")
    return given


def prepare(cases, formats):
    for case in cases:
        q = normal(case.batch, case.heads_q, case.seqlen_q, case.head_dim)
        for _ in candidates(case, formats, None, q, {}):
            pass


def main():
    given = parse()
    if given.table:
        return print(*table_of(json.loads(given.table.read_text())), sep="\n")
    if not torch.cuda.is_available():
        sys.exit("time_decode.py needs a GPU, and PyTorch finds none.")
    cases = [CASES[n] for n in given.cases] if given.cases else list(CASES)
    if given.prepare:
        return prepare(cases, given.formats)
    start, failures, rows = time.monotonic(), [], []
    bandwidth = copy_bandwidth()
    print(f"a copy reads and writes {bandwidth / 1e6:.2f} TB/s")
    builds = _peers.Builds(torch, given.peers)
    with torch.no_grad():
        for case in cases:
            if given.budget and time.monotonic() - start > given.budget:
                failures.append(f"{case.name()}: not measured, --budget is spent")
                continue
            row = measure(case, given.formats, builds, given.rounds)
            rows.append(row)
            print(line_of(row, bandwidth), flush=True)
            for name, reason in row["missing"].items():
                print(f"    {name} was not measured: {reason}")
            failures += [f"{row['case']}: {name} has an error of {row['error'][name]:.2e}" for name in row["wrong"]]
            failures += too_slow(case, row) if given.limits else []
            torch.cuda.empty_cache()
    if given.json:
        given.json.write_text(json.dumps({"copy_bytes_per_us": bandwidth, "rows": rows}, indent=1) + "\n")
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
