"""Codes of 8 bits with their scales."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Quantized:
    """An 8-bit tensor as attention() takes it for q, k or v.

    codes        (batch, heads, rows, columns): one byte each, of any 8-bit type;
                 (batch, heads, columns, keys) where transposed, whatever the layout of the call
    scales       float32, contiguous, in the shape of the granularity
    format       what the bytes are: e4m3, e5m2, int8, sim8
    granularity  tensor (1), head (B, H), block (B, H, blocks), row (B, H, S), channel (B, H, D)
    block_rows   rows that share a scale, where the granularity is block
    mean         (B, H, D): what smoothing subtracted from every row; None without it
    transposed   V as Hopper's 8-bit kernels read it: its keys side by side, sixteen by sixteen in
                 the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, zeros in place of those that the
                 last sixteen lacks; int8 with the sign bits flipped
    largest_code no code's magnitude exceeds it; 0: any code of the format may come
    stats        amax, clipped_fraction, flushed_fraction, sqnr_db, values, nan_values, inf_values
    """

    codes: Any
    scales: Any
    format: str = "e4m3"
    granularity: str = "head"
    block_rows: int = 64
    mean: Any = None
    stats: dict[str, float] | None = None
    transposed: bool = False
    largest_code: float = 0.0
