#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times block-sparse attention on a GPU: random blocks at several densities, in blocks of 64 and 128,
beside the dense kernel and torch's FlexAttention (compiled) in the same process, and a top-k selection.

    tools/time_block_masks.py [--json FILE] [--quick] [--no-flex] [--precisions bf16,fp8,int8]

In 8 bits the operands are quantized before, and there is no FlexAttention. TFLOP/s count the blocks that
are there: 4 * block_size^2 * head_dim for each. Medians of rounds in which the candidates take turns. Exit
code 1 if an output differs from FlexAttention's, or from dense attention with a mask tensor at a small size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

import octavo
import torch

SHAPE = (1, 32, 32768, 128)  # batch, heads, seqlen, head_dim
DENSITIES = (0.05, 0.125, 0.25, 0.5)


def tensors(batch, heads, seqlen, head_dim, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(batch, heads, seqlen, head_dim, device="cuda", dtype=torch.bfloat16, generator=generator)
            for _ in range(3)]


def random_blocks(heads, blocks, density, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.rand(1, heads, blocks, blocks, device="cuda", generator=generator) < density


def milliseconds(calls, rounds):
    """The median of each call's times, which are taken in turn."""
    for call in calls.values():
        call()
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(x) for name, x in times.items()}


def flex_call(q, k, v, mask, size):
    """FlexAttention over the same lists. Its mask_mod is not the trivial one, whose lists a backend may
    ignore, and the lists are of full blocks, for which it is not evaluated."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    none = torch.zeros_like(mask.full_kv_num_blocks)
    lists = BlockMask.from_kv_blocks(none, mask.full_kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices,
                                     BLOCK_SIZE=size, mask_mod=lambda b, h, i, j: i >= j)
    torch._dynamo.reset()  # else sizes that change from case to case become dynamic
    compiled = torch.compile(flex_attention, dynamic=False)
    tiles = {"BLOCK_M": min(size, 128), "BLOCK_N": 64}  # its tiles must divide the blocks
    return lambda: compiled(q, k, v, block_mask=lists, kernel_options=tiles)


def operands(q, k, v, precision):
    """What attention() takes in a precision: the tensors, or quantized ones."""
    if precision == "bf16":
        return q, k, v
    return [octavo.quantize(x, operand=name, precision=precision) for x, name in zip((q, k, v), "qkv")]


def worst_difference(a, b):
    return (a.float() - b.float()).abs().max().item()


def check_small(size, precision):
    """Against dense 16-bit attention with a mask tensor, partial blocks with bits included."""
    q, k, v = tensors(2, 4, 700, 128, seed=size)
    mask = torch.rand(2, 4, 700, 700, device="cuda") < 0.5
    mask[:, :, 100:300, 200:500] = False
    mask[:, :, 300:600, 500:] = True
    sparse = octavo.attention(*operands(q, k, v, precision), block_mask=octavo.BlockMask.from_mask(mask, size))
    dense = octavo.attention(q, k, v, mask=mask)
    return worst_difference(sparse, dense)


def time_sizes(given, precision, rounds):
    """All sizes of blocks and densities beside the dense kernel; and whether an output is wrong."""
    batch, heads, seqlen, head_dim = SHAPE
    q, k, v = tensors(*SHAPE)
    used = operands(q, k, v, precision)
    results, failed = [], False
    for size in (128, 64):
        for density in (0.125, 0.5) if given.quick else DENSITIES:
            blocks = random_blocks(heads, seqlen // size, density, seed=size)
            mask = octavo.BlockMask.from_dense_blocks(blocks, size)
            calls = {"dense": lambda: octavo.attention(*used),
                     "sparse": lambda: octavo.attention(*used, block_mask=mask)}
            if precision == "bf16" and not given.no_flex:
                calls["flex"] = flex_call(q, k, v, mask, size)
                difference = worst_difference(calls["sparse"](), calls["flex"]())
                failed |= not difference < 0.02
            ms = milliseconds(calls, rounds)
            flop = 4 * head_dim * size * size * int(blocks.sum())
            row = {"precision": precision, "block_size": size, "density": density, "ms": ms,
                   "tflops": {"dense": 4 * heads * head_dim * seqlen**2 / ms["dense"] / 1e9,
                              **{x: flop / ms[x] / 1e9 for x in ms if x != "dense"}}}
            row["of_dense"] = row["tflops"]["sparse"] / row["tflops"]["dense"]
            text = " ".join(f"{name} {value:.0f}" for name, value in row["tflops"].items())
            if "flex" in ms:
                row["of_flex"] = ms["flex"] / ms["sparse"]
                text += f", {row['of_flex']:.2f}x flex, difference {difference:.1e}"
            print(f"{precision} {size} density {density}: TFLOP/s {text}, {row['of_dense']:.3f} of dense", flush=True)
            results.append(row)
    return results, failed


def time_top_k(precision, rounds):
    heads, head_dim = 8, SHAPE[3]
    seqlen, chosen, size = 110080, 64, 64
    used = operands(*tensors(1, heads, seqlen, head_dim), precision)
    picks = torch.rand(1, heads, seqlen // size, seqlen // size, device="cuda").topk(chosen).indices
    mask = octavo.BlockMask.from_indices(picks, size)
    ms = milliseconds({"sparse": lambda: octavo.attention(*used, block_mask=mask)}, rounds)["sparse"]
    tflops = 4 * head_dim * heads * seqlen * chosen * size / ms / 1e9
    print(f"{precision} top-{chosen} blocks of {size} over {seqlen} tokens, {heads} heads: {tflops:.0f} TFLOP/s")
    return {"precision": precision, "top_k": chosen, "seqlen": seqlen, "heads": heads, "ms": ms, "tflops": tflops}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--quick", action="store_true", help="two densities, fewer rounds, no top-k")
    parser.add_argument("--no-flex", action="store_true", help="without FlexAttention")
    parser.add_argument("--precisions", default="bf16", help="of bf16, fp8, fp8_fast, int8; separated by commas")
    given = parser.parse_args()
    rounds = 5 if given.quick else 15
    failed = False
    results = []
    for precision in given.precisions.split(","):
        for size in (64, 128):
            difference = check_small(size, precision)
            failed |= not difference < (0.02 if precision == "bf16" else 0.2)
            print(f"{precision} blocks of {size}: worst difference from a mask tensor {difference:.2e}")
        rows, wrong = time_sizes(given, precision, rounds)
        results += rows
        failed |= wrong
        if not given.quick:
            results.append(time_top_k(precision, rounds))
    if given.json:
        with open(given.json, "w") as file:
            json.dump(results, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
