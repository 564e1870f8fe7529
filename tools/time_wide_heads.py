#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times attention with more than 256 columns, and with 192 and 128, on a GPU beside PyTorch's backends.

    tools/time_wide_heads.py [--json FILE]

Medians of rounds in which the candidates take turns, in bf16. The unfused backend, whose scores fill
memory, is left out above 4,096 tokens. Modifiers, padding and varlen batches are compared with attention
in float32 first; exit code 1 if one of them is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings

import octavo
import torch
import torch.nn.functional as F
from time_block_masks import milliseconds
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = ((1, 16, 4096, 512, 512), (4, 8, 2048, 512, 512), (1, 16, 8192, 512, 512), (1, 16, 4096, 384, 384),
          (1, 16, 4096, 64, 512), (1, 16, 4096, 512, 128), (1, 16, 8192, 192, 128), (2, 16, 4096, 192, 128))
CHECKED = ((512, 512), (320, 320), (64, 512), (512, 128))  # head_dim and head_dim_v
LARGEST_ERROR = 3e-2
MOST_UNFUSED_TOKENS = 4096
ROUNDS = 9
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)


def tensors(batch, heads, heads_kv, rows, keys, head_dim, head_dim_v):
    return [torch.randn(batch, h, s, d, device="cuda", dtype=torch.bfloat16)
            for h, s, d in ((heads, rows, head_dim), (heads_kv, keys, head_dim), (heads_kv, keys, head_dim_v))]


def reference(q, k, v, causal=False, softcap=None, bias=None, mask=None, slopes=None):
    """Attention in float32; the diagonal ends at the last key."""
    k, v = (x.float().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q.float() @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.float()
    query = torch.arange(q.shape[2], device="cuda")[:, None] + (k.shape[2] - q.shape[2])
    key = torch.arange(k.shape[2], device="cuda")
    if slopes is not None:
        scores = scores - slopes.float()[:, None, None] * (query - key).abs()
    if causal:
        scores = scores.masked_fill(key > query, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.nan_to_num(torch.softmax(scores, -1)) @ v


def checked_calls(head_dim, head_dim_v):
    """(name, result, reference) of calls with modifiers and of other batches."""
    q, k, v = tensors(2, 4, 2, 300, 333, head_dim, head_dim_v)
    bias = torch.randn(2, 4, 300, 333, device="cuda", dtype=torch.bfloat16)
    mask = torch.rand(2, 4, 300, 333, device="cuda") < 0.7
    slopes = torch.rand(4, device="cuda")
    yield ("softcap, bias, mask, causal",
           octavo.attention(q, k, v, causal="bottom_right", softcap=5.0, bias=bias, mask=mask),
           reference(q, k, v, True, 5.0, bias, mask))
    yield "ALiBi", octavo.attention(q, k, v, alibi_slopes=slopes), reference(q, k, v, slopes=slopes)
    lengths = torch.tensor([210, 333], dtype=torch.int32, device="cuda")
    seen = torch.arange(333, device="cuda") < lengths[:, None, None, None]
    yield "padded", octavo.attention(q, k, v, seqlens_kv=lengths), reference(q, k, v, mask=seen)
    starts = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    tokens = [x[0, :, :300].transpose(0, 1).contiguous() for x in (q, k, v)]
    parts = [reference(*(x[None, a:b].transpose(1, 2) for x in tokens))[0].transpose(0, 1) for a, b in ((0, 100), (100, 300))]
    yield ("varlen", octavo.attention(*tokens, cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=200,
                                      max_seqlen_kv=200), torch.cat(parts))


def worst_error():
    worst = 0.0
    for dims in CHECKED:
        for name, found, wanted in checked_calls(*dims):
            error = (found.float() - wanted).abs().max().item()
            print(f"{dims[0]},{dims[1]} {name}: {error:.2e}", flush=True)
            worst = max(worst, error)
    return worst


def candidates(q, k, v, causal):
    """Octavo, and the backends of PyTorch that serve the call."""
    calls = {"octavo": lambda: octavo.attention(q, k, v, causal=causal)}
    for backend in BACKENDS:
        def call(backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        if backend == SDPBackend.MATH and q.shape[2] > MOST_UNFUSED_TOKENS:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call()
        except RuntimeError:
            continue
        calls[backend.name] = call
    return calls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the results to this file")
    given = parser.parse_args()
    worst, times = worst_error(), []
    for batch, heads, seqlen, head_dim, head_dim_v in SHAPES:
        for causal in (False, True):
            q, k, v = tensors(batch, heads, heads, seqlen, seqlen, head_dim, head_dim_v)
            ms = milliseconds(candidates(q, k, v, causal), ROUNDS)
            ratio = min(x for name, x in ms.items() if name != "octavo") / ms["octavo"]
            print(f"{batch},{heads},{seqlen},{head_dim},{head_dim_v} causal={causal}: {ms['octavo']:.3f} ms, "
                  f"PyTorch's best takes {ratio:.2f} times as long", flush=True)
            times.append({"shape": [batch, heads, seqlen, head_dim, head_dim_v], "causal": causal, "ms": ms, "ratio": ratio})
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"times": times, "worst_error": worst}, file, indent=1)
    sys.exit(not worst < LARGEST_ERROR)


if __name__ == "__main__":
    main()
