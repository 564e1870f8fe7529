"""8-bit tensors with their scales."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Quantized:
    """An 8-bit tensor as attention() takes it for q, k or v.

    data         the quantized values, (batch, heads, seqlen, head_dim), of any 8-bit type;
                 (batch, heads, head_dim, keys) if transposed, whatever the layout of the call
    scales       float32, contiguous, in the shape of the granularity
    format       the number format of data: e4m3, e5m2, int8, sim8
    granularity  tensor (1), head (B, H), block (B, H, blocks), row (B, H, S), channel (B, H, D)
    block_rows   rows that share a scale if the granularity is block
    mean         (B, H, D): the mean that smoothing subtracted from every row, or None
    transposed   V as Hopper's 8-bit kernels read it: keys are contiguous, each group of sixteen in
                 the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, and the last group is padded with
                 zeros; int8 has its sign bits flipped
    max_quantized  an upper bound on the magnitude of data; 0: no bound is known
    stats        amax, clipped_fraction, flushed_fraction, sqnr_db, values, nan_values, inf_values
    """

    data: Any
    scales: Any
    format: str = "e4m3"
    granularity: str = "head"
    block_rows: int = 64
    mean: Any = None
    stats: dict[str, float] | None = None
    transposed: bool = False
    max_quantized: float = 0.0
