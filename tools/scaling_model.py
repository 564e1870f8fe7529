#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans context-parallel attention on many GPUs: bytes, FLOPs and overlap from measured kernel times.

usage: scaling_model.py              writes the tables of docs/scaling.md
       scaling_model.py --check      fails if the page says something else
       scaling_model.py --print [--seqlen N] [--ranks P,P] [--heads Q,KV] [--nvlink GB/s] [--infiniband GB/s]

One layer of causal attention in bf16: batch 1, head_dim 128, zigzag sharding. docs/scaling.md states the
assumptions.
"""

import argparse
import dataclasses
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORWARD = ROOT / "evidence/nvidia-h200/sm90_compare.json"
BACKWARD = ROOT / "evidence/nvidia-h200/sm90_backward.json"
PAGE = ROOT / "docs/scaling.md"
BEGIN, END = "<!-- scaling: made by tools/scaling_model.py -->", "<!-- scaling: end -->"

GPUS_PER_MACHINE = 8
SMS, SM_MARGIN = 132, 8
TILE = 128  # rows of a forward tile, keys of a backward one
HEAD_DIM, ROW_BYTES = 128, 256
CHUNKS = (1, 4)  # at once, and the default of context_parallel
RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
LENGTHS = (131072, 1048576)


@dataclasses.dataclass(frozen=True)
class Machine:
    """TFLOP/s of the two passes on one GPU, and GB/s of one GPU in each direction."""

    forward: float
    backward: float
    nvlink: float = 450
    infiniband: float = 50


@dataclasses.dataclass(frozen=True)
class Layer:
    seqlen: int
    heads_q: int = 64
    heads_kv: int = 8

    def flops(self, backward):
        """Of all ranks: two products of the visible half of the scores, five in the backward pass."""
        return (5 if backward else 2) * self.heads_q * HEAD_DIM * self.seqlen**2


@dataclasses.dataclass(frozen=True)
class Pass:
    """What one rank does in one pass."""

    received_bytes: float
    attention_ms: float
    communication_ms: float
    total_ms: float
    held_bytes: float  # K and V of all ranks and their gradients


@dataclasses.dataclass(frozen=True)
class Mesh:
    """`gather` ranks by all_gather times `ulysses` ranks; in a product, the latter are in one machine."""

    gather: int
    ulysses: int
    chunks: int

    @property
    def ranks(self):
        return self.gather * self.ulysses

    @property
    def name(self):
        if self.ulysses == 1:
            return f"all_gather, {self.chunks} chunk{'s' * (self.chunks > 1)}"
        return "ulysses" if self.gather == 1 else f"{self.gather} x {self.ulysses}"


def measured():
    """(forward, backward) TFLOP/s of (1,16,16384,128), causal, bf16, on one H200."""
    shape = {"dtype": "bf16", "length": 16384, "heads": 16, "head_dim": 128, "causal": "top_left"}

    def of(report):
        return next(row["octavo_gflops"] / 1e3 for row in json.loads(report.read_text())["sustained"]
                    if all(row[key] == value for key, value in shape.items()))
    return of(FORWARD), of(BACKWARD)


def busy_share(tiles, sms):
    """The share of the SMs that have work, if every tile takes as long: the last round is not full."""
    return tiles / (-(-tiles // sms) * sms) * sms / SMS


def attention_ms(layer, machine, mesh, heads_q, heads_kv, backward, margin):
    """Of one chunk of heads, for this rank's rows. The rows of a zigzag shard are two calls. CTAs of the backward
    pass take keys, of which a call sees half of the sequence on average; they leave no SMs free."""
    rows = layer.seqlen / mesh.gather / (2 if mesh.gather > 1 else 1)
    if backward:
        share = busy_share(-(-layer.seqlen // 2 // TILE) * heads_kv, SMS)
    else:
        share = busy_share(-(-rows // TILE) * heads_q, SMS - margin)
    filled = rows / (-(-rows // TILE) * TILE)
    rate = (machine.backward if backward else machine.forward) * 1e12 * share * filled
    return layer.flops(backward) / mesh.gather * heads_q / layer.heads_q / rate * 1e3


def gather_ms(machine, mesh, shard_bytes):
    """To receive the shards of all other ranks. Without ulysses the rings of NCCL bring each byte into a machine
    once, by one of its adapters; with it the ranks of a machine gather different heads."""
    received = shard_bytes * (mesh.gather - 1)
    outside = received if mesh.ulysses > 1 else shard_bytes * max(mesh.gather - GPUS_PER_MACHINE, 0) / GPUS_PER_MACHINE
    inside = 0 if mesh.ulysses > 1 else received
    return max(inside / machine.nvlink, outside / machine.infiniband) / 1e6


def pipeline_ms(attention, gather, exchange):
    """all_gather: a chunk arrives during the attention of the one before, and in the backward pass the dK and dV
    of a chunk leave during the attention of the next. `attention`: the times of the chunks."""
    chunks = len(attention)
    beside = [(gather if i + 1 < chunks else 0) + (exchange if i > 0 else 0) for i in range(chunks)]
    return gather + sum(map(max, attention, beside)) + exchange


def model(layer, machine, mesh, backward):
    heads_kv = max(layer.heads_kv, mesh.ulysses)  # replicated
    rows = layer.seqlen / mesh.ranks
    exchanged = 2 * (layer.heads_q + heads_kv) * rows * ROW_BYTES * (mesh.ulysses - 1) / mesh.ulysses
    bandwidth = machine.nvlink if mesh.ulysses <= GPUS_PER_MACHINE else machine.infiniband
    exchange_ms = exchanged / bandwidth / 1e6
    own_q, own_kv = (heads / mesh.ulysses / mesh.chunks for heads in (layer.heads_q, heads_kv))
    shard_bytes = 2 * own_kv * rows * mesh.ulysses * ROW_BYTES
    margins = [SM_MARGIN] * (mesh.chunks - 1) + [0]  # nothing arrives beside the last chunk
    attention = [attention_ms(layer, machine, mesh, own_q, own_kv, backward, margin) for margin in margins]
    gather = gather_ms(machine, mesh, shard_bytes) if mesh.gather > 1 else 0
    leave = gather if backward else 0
    received = exchanged + (mesh.gather - 1) * shard_bytes * mesh.chunks * (2 if backward else 1)
    # Three copies of a chunk's K and V; dK and dV in float32 and in bf16, and those that travel.
    held = shard_bytes * mesh.gather * (7 if backward else 3) if mesh.gather > 1 else shard_bytes
    return Pass(received, sum(attention), exchange_ms + (gather + leave) * mesh.chunks,
                exchange_ms + pipeline_ms(attention, gather, leave), held)


def families(layer, ranks):
    """The plans of each row of the table, of which it shows the fastest."""
    if layer.heads_q % ranks == 0:
        yield [Mesh(1, ranks, 1)]
    yield from ([Mesh(ranks, 1, chunks)] for chunks in CHUNKS)
    if ranks > GPUS_PER_MACHINE:
        yield [Mesh(ranks // n, n, chunks) for n in (2, 4, 8) for chunks in CHUNKS
               if layer.heads_q % n == 0 and chunks <= max(layer.heads_kv, n) // n]


def rows_of(layer, machine, ranks):
    """(mesh, forward pass, backward pass) of each row."""
    for family in families(layer, ranks):
        both = [(mesh, model(layer, machine, mesh, False), model(layer, machine, mesh, True)) for mesh in family]
        yield min(both, key=lambda row: row[1].total_ms + row[2].total_ms)


def table(layer, machine, ranks=RANKS):
    lines = ["| GPUs | method | TFLOP per GPU | GB received | attention, ms | communication, ms | total, ms | hidden | "
             "GB held |", "|---:|---|---:|---:|---:|---:|---:|---:|---:|"]
    for n in ranks:
        if layer.seqlen % (2 * n):
            continue
        tflop = (layer.flops(False) + layer.flops(True)) / n / 1e12
        for mesh, one, two in rows_of(layer, machine, n):
            attention, sent, total = (getattr(one, x) + getattr(two, x)
                                      for x in ("attention_ms", "communication_ms", "total_ms"))
            hidden = max(0, 1 - (total - attention) / sent)
            received = (one.received_bytes + two.received_bytes) / 1e9
            lines.append(f"| {n} | {mesh.name} | {tflop:.3g} | {received:.2g} | {attention:.3g} | {sent:.3g} | "
                         f"{total:.3g} | {hidden:.0%} | {two.held_bytes / 1e9:.2g} |")
    return lines


def page_tables():
    machine = Machine(*measured())
    lines = [f"From {machine.forward:.0f} TFLOP/s forward and {machine.backward:.0f} backward."]
    for seqlen in LENGTHS:
        lines += ["", f"**{seqlen:,} tokens**", "", *table(Layer(seqlen), machine)]
    return lines


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--print", action="store_true")
    parser.add_argument("--seqlen", type=int, default=LENGTHS[1])
    parser.add_argument("--ranks", type=numbers, default=RANKS)
    parser.add_argument("--heads", type=numbers, default=[64, 8])
    parser.add_argument("--nvlink", type=float, default=450)
    parser.add_argument("--infiniband", type=float, default=50)
    given = parser.parse_args()
    if given.print:
        machine = Machine(*measured(), given.nvlink, given.infiniband)
        print("\n".join(table(Layer(given.seqlen, *given.heads), machine, given.ranks)))
        return
    page = PAGE.read_text()
    whole = page.split(BEGIN)[0] + "\n".join([BEGIN, *page_tables(), END]) + page.split(END)[1]
    if not given.check:
        PAGE.write_text(whole)
    elif page != whole:
        sys.exit("docs/scaling.md is not what tools/scaling_model.py makes of the measured times: run it.")


if __name__ == "__main__":
    main()
