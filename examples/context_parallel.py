#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention on one sequence that two processes share, and its gradients, compared with one process.

    python examples/context_parallel.py            # two processes on the CPU
    torchrun --nproc-per-node 8 examples/context_parallel.py    # one GPU each, or the CPU

Each rank has a part of the tokens (zigzag: an early and a late part, so that causal attention gives
all ranks the same work) and calls context_parallel with its part of q, k and v.

Tensor parallelism needs nothing of this: examples/tensor_parallel.py.
"""

from __future__ import annotations

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing

import octavo
from octavo.distributed import context_parallel, explain, positions, shard, unshard

BATCH, HEADS_Q, HEADS_KV, SEQLEN, HEAD_DIM = 1, 8, 2, 512, 64


def rotate(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """A rotary embedding; it needs each token's place in the whole sequence."""
    frequencies = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2, device=x.device) / HEAD_DIM)
    angles = places[:, None] * frequencies
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def attention_and_gradients(inputs, dout, places, attention):
    q, k, v = (x.detach().requires_grad_() for x in inputs)
    out = attention(rotate(q, places), rotate(k, places), v)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), dout)]


def run(device: str) -> float:
    """The largest difference from one process; every rank returns the same."""
    torch.manual_seed(0)  # every rank draws the same sequence; a program would load its part alone
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shapes = [(BATCH, heads, SEQLEN, HEAD_DIM) for heads in (HEADS_Q, HEADS_KV, HEADS_KV, HEADS_Q)]
    *inputs, dout = (torch.randn(shape).to(device, dtype) for shape in shapes)

    part = lambda x: shard(x, dim=2)
    found = attention_and_gradients([part(x) for x in inputs], part(dout), positions(SEQLEN, device=device),
                                    lambda q, k, v: context_parallel(q, k, v, causal=True))
    wanted = attention_and_gradients(inputs, dout, torch.arange(SEQLEN, device=device),
                                     lambda q, k, v: octavo.attention(q, k, v, causal=True))
    if dist.get_rank() == 0:
        told = explain(*(part(x) for x in inputs), causal=True)
        print(f"{told.method}: {told.reason}; a rank sends {told.sent_bytes_forward} bytes forward and "
              f"{told.sent_bytes_backward} backward")
    return max((unshard(one, dim=2) - other).abs().max().item() for one, other in zip(found, wanted))


def main(rank: int, ranks: int, method: str) -> None:
    device = "cuda" if torch.cuda.device_count() >= ranks else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=method, rank=rank,
                            world_size=ranks)
    difference = run(device)
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
