#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: the heads of attention on two ranks, which needs nothing of octavo.distributed.

    python examples/tensor_parallel.py            # two processes on the CPU
    torchrun --nproc-per-node 2 examples/tensor_parallel.py    # one GPU each, or the CPU

Heads do not depend on each other. Each rank has the columns of the projections that make its heads of q,
and their heads of k and v, and calls octavo.attention on them. The output projection adds the heads up, so
each rank has its rows of that weight, and one all_reduce adds the parts.
"""

from __future__ import annotations

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing

import octavo

BATCH, SEQLEN, WIDTH, HEADS_Q, HEADS_KV, HEAD_DIM = 2, 64, 256, 8, 2, 32


def attend(x, weights, heads_q, heads_kv):
    """Projections, causal attention on some of the heads, and their part of the output projection."""
    to_q, to_k, to_v, to_out = weights
    heads = lambda weight, n: (x @ weight).unflatten(2, (n, HEAD_DIM))
    out = octavo.attention(heads(to_q, heads_q), heads(to_k, heads_kv), heads(to_v, heads_kv), causal=True,
                           layout="bshd")
    return out.flatten(2) @ to_out


def run(rank: int, ranks: int, device: str) -> float:
    """The largest difference from one process; every rank returns the same."""
    torch.manual_seed(0)  # every rank draws all weights; a program would load its part alone
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    draw = lambda *shape: (torch.randn(*shape) / 16).to(device, dtype)
    x = draw(BATCH, SEQLEN, WIDTH) * 16
    weights = [draw(WIDTH, heads * HEAD_DIM) for heads in (HEADS_Q, HEADS_KV, HEADS_KV)]
    weights.append(draw(HEADS_Q * HEAD_DIM, WIDTH))
    own = [weight.chunk(ranks, 1)[rank] for weight in weights[:3]] + [weights[3].chunk(ranks, 0)[rank]]
    out = attend(x, own, HEADS_Q // ranks, HEADS_KV // ranks)
    dist.all_reduce(out)
    return (out - attend(x, weights, HEADS_Q, HEADS_KV)).abs().max().item()


def main(rank: int, ranks: int, method: str) -> None:
    device = "cuda" if torch.cuda.device_count() >= ranks else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    if HEADS_KV % ranks:
        sys.exit(f"{ranks} processes; supported: numbers that divide the {HEADS_KV} heads of k.")
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=method, rank=rank,
                            world_size=ranks)
    difference = run(rank, ranks, device)
    if rank == 0:
        print(f"{ranks} processes on {device}: largest difference from one process {difference:.1e}")
    dist.destroy_process_group()
    if difference > (0.1 if device == "cuda" else 1e-4):
        sys.exit(1)


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(main, (2, f"file://{folder}/store"), 2)
