"""Codes of 8 bits with their scales."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Quantized:
    """An 8-bit tensor as attention() takes it for q, k or v.

    codes        (batch, heads, rows, columns): one byte each, of any 8-bit type
    scales       float32, contiguous, in the shape of the granularity
    format       what the bytes are: e4m3, e5m2, int8, sim8
    granularity  tensor (1), head (B, H), block (B, H, blocks), row (B, H, S), channel (B, H, D)
    block_rows   rows that share a scale, where the granularity is block
    mean         (B, H, D): what smoothing subtracted from every row; None without it
    stats        amax, clipped_fraction, flushed_fraction, sqnr_db, values, nan_values, inf_values
    """

    codes: Any
    scales: Any
    format: str = "e4m3"
    granularity: str = "head"
    block_rows: int = 64
    mean: Any = None
    stats: dict[str, float] | None = None
