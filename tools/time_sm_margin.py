#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the forward pass with some SMs left free, on a GPU: what does sm_margin cost the kernel?

usage: time_sm_margin.py [--margins 0,4,8] [--shape 1,16,16384,128] [--samples N] [--most RATIO] [--json FILE]

bf16, without a mask and causal. A sample is a replay of a CUDA graph; the margins take turns, because the
clock changes with the chip's temperature. The ratio is the median of time / time of the first margin, over
neighbouring samples. Exit code 1: the ratio of a margin is above --most, or its output has other bits.
"""

import argparse
import json
import pathlib
import statistics
import sys

CALLS = 4  # of a graph; at the default shape each takes milliseconds


def numbers(text):
    return [int(x) for x in text.split(",")]


def rows_of(torch, octavo, shape, margins, samples):
    """For each mask and margin its time, its ratio, and whether its bits are those of the first margin."""
    from octavo import _timers

    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for causal in (False, True):
        calls = [lambda m=m: octavo.attention(q, k, v, causal=causal, sm_margin=m) for m in margins]
        outs = [call().clone() for call in calls]
        graphs = [_timers.Graph(torch, call, CALLS) for call in calls]
        _timers.alternated([graph.sample_us for graph in graphs], 2)  # warm
        times = _timers.alternated([graph.sample_us for graph in graphs], samples)
        for margin, one, out in zip(margins, times, outs):
            yield {"causal": causal, "sm_margin": margin, "us": statistics.median(one),
                   "ratio": statistics.median(x / first for x, first in zip(one, times[0])),
                   "same_bits": torch.equal(out, outs[0]),
                   "reason": octavo.explain(q, k, v, causal=causal, sm_margin=margin).reason}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--margins", type=numbers, default=[0, 4, 8])
    parser.add_argument("--shape", type=numbers, default=[1, 16, 16384, 128])
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--most", type=float, default=1.08)
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    import octavo
    import torch

    if not torch.cuda.is_available():
        sys.exit("time_sm_margin.py needs a GPU, and PyTorch finds none.")
    rows = list(rows_of(torch, octavo, given.shape, given.margins, given.samples))
    for row in rows:
        print(f"{'causal' if row['causal'] else 'full':6}  sm_margin {row['sm_margin']:3}  {row['us']:8.1f} us  "
              f"{row['ratio']:.3f}  {'same bits' if row['same_bits'] else 'OTHER BITS'}  {row['reason']}")
    if given.json:
        given.json.write_text(json.dumps({"shape": given.shape, "gpu": torch.cuda.get_device_name(), "rows": rows},
                                         indent=1))
    if any(row["ratio"] > given.most or not row["same_bits"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
