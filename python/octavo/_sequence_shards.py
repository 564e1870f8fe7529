# SPDX-License-Identifier: Apache-2.0
"""How a sequence is divided among ranks, and which calls of attention the rows of a rank need.

Nothing here communicates. Tensors have their rows (tokens) in dimension 0.

    contiguous, 2 ranks    rank 0: 0 1 2 3    rank 1: 4 5 6 7
    zigzag, 2 ranks        rank 0: 0 1 6 7    rank 1: 2 3 4 5

Under a causal mask later rows see more keys. Zigzag gives each rank an early and a late part, so that
all ranks see equally many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

SHARDINGS = ("zigzag", "contiguous")
UNLIMITED = -1


def parts(sharding: str) -> int:
    """The number of contiguous parts that the shard of one rank consists of."""
    if sharding not in SHARDINGS:
        raise ValueError(f"sharding is {sharding!r}; supported: 'zigzag', 'contiguous'.")
    return 2 if sharding == "zigzag" else 1


def check_length(rows: int, ranks: int, sharding: str, name: str) -> None:
    divisor = ranks * parts(sharding)
    if rows % divisor:
        raise ValueError(f"{name} is {rows}; supported: multiples of {divisor} ({sharding} sharding over "
                         f"{ranks} ranks).")


def check_documents(cu_seqlens: Sequence[int], seqlen: int) -> tuple[int, ...]:
    numbers = list(cu_seqlens)
    if not numbers or numbers[0] != 0 or sorted(numbers) != numbers or numbers[-1] > seqlen:
        shown = numbers if len(numbers) <= 8 else f"[{numbers[0]}, ..., {numbers[-1]}]"
        raise ValueError(f"cu_seqlens is {shown}; supported: numbers that start at 0, do not decrease and end at "
                         f"the {seqlen} tokens of all ranks or before.")
    return tuple(numbers)


def segments(sharding: str, rows: int, ranks: int, rank: int) -> list[tuple[int, int]]:
    """The rows [begin, end) of the whole sequence that a rank has, in the order of its shard."""
    length = rows // (ranks * parts(sharding))
    numbers = [rank] if parts(sharding) == 1 else [rank, 2 * ranks - 1 - rank]
    return [(i * length, (i + 1) * length) for i in numbers]


def from_shards(x: torch.Tensor, ranks: int, sharding: str) -> torch.Tensor:
    """The whole sequence, from the shards of all ranks one after the other."""
    if parts(sharding) == 1 or ranks == 1:
        return x
    x = x.unflatten(0, (ranks, 2, -1))
    return torch.cat((x[:, 0], x[:, 1].flip(0))).flatten(0, 1)


def to_shards(x: torch.Tensor, ranks: int, sharding: str) -> torch.Tensor:
    """The shards of all ranks one after the other, from the whole sequence."""
    if parts(sharding) == 1 or ranks == 1:
        return x
    x = x.unflatten(0, (2, ranks, -1))
    return torch.stack((x[0], x[1].flip(0)), 1).flatten(0, 2)


@dataclasses.dataclass(frozen=True)
class Mask:
    """Row i sees keys i - left to i + right of its document; UNLIMITED is no limit on that side."""

    left: int = UNLIMITED
    right: int = UNLIMITED

    @staticmethod
    def of(causal: bool, window: Sequence[int | None] | None) -> Mask:
        sides = [UNLIMITED if side is None else side for side in window or (None, None)]
        if len(sides) != 2 or any(not isinstance(side, int) or side < UNLIMITED for side in sides):
            raise ValueError(f"window is {tuple(window)}; supported: two numbers from 0 on, and None or -1 for no "
                             "limit.")
        return Mask(sides[0], 0 if causal else sides[1])

    @property
    def everything(self) -> bool:
        return self.left == UNLIMITED and self.right == UNLIMITED


@dataclasses.dataclass(frozen=True)
class Run:
    """One call of attention: rows [q_begin, q_end) of a shard with keys [k_begin, k_end) of the sequence.

    Octavo aligns the last row of a document with its last key. Where the call has keys behind its
    last row, the limits in `options` are shifted by their number.
    """

    q_begin: int
    q_end: int
    k_begin: int
    k_end: int
    cu_seqlens_q: tuple[int, ...]
    cu_seqlens_kv: tuple[int, ...]
    causal: str
    window: tuple[int, int] | None


def _run(documents, first_row, shift, mask):
    """The call for (row_begin, row_end, key_begin, key_end) of consecutive documents."""
    keys = documents[0][2]
    cu_q = (0, *(row_end - documents[0][0] for _, row_end, _, _ in documents))
    cu_kv = (0, *(key_end - keys for _, _, _, key_end in documents))
    left, right = mask.left, mask.right
    causal = right == 0 and shift == 0
    left = left + shift if left != UNLIMITED else left
    right = UNLIMITED if causal or right == UNLIMITED else right - shift
    window = None if left == right == UNLIMITED else (left, right)
    begin = documents[0][0] - first_row
    return Run(begin, begin + cu_q[-1], keys, keys + cu_kv[-1], cu_q, cu_kv,
               "bottom_right" if causal else "none", window)


def plan_runs(segment_list: Sequence[tuple[int, int]], mask: Mask,
              documents: Sequence[int]) -> list[Run]:
    """The calls for the rows of a shard; `documents` are cumulative lengths, (0, seqlen) for one."""
    runs, local = [], 0
    for begin, end in segment_list:
        whole, shifted = [], []
        for first, last in zip(documents, documents[1:]):
            row_begin, row_end = max(first, begin), min(last, end)
            if row_begin >= row_end:
                continue
            key_begin = first if mask.left == UNLIMITED else max(first, row_begin - mask.left)
            key_end = last if mask.right == UNLIMITED else min(last, row_end + mask.right)
            # Only the last document of a segment can have keys behind its last row. As they shift
            # the limits of a mask, it gets a call of its own.
            alone = key_end > row_end and not mask.everything
            (shifted if alone else whole).append((row_begin, row_end, key_begin, key_end))
        first_row = begin - local
        if whole:
            runs.append(_run(whole, first_row, 0, mask))
        if shifted:
            runs.append(_run(shifted, first_row, shifted[0][3] - shifted[0][1], mask))
        local += end - begin
    return runs


def _sum_of_least(begin: int, end: int, shift: int, limit: int) -> int:
    """The sum of min(i + shift, limit) over begin <= i < end."""
    below = min(max(limit - shift, begin), end)
    return (begin + below - 1) * (below - begin) // 2 + shift * (below - begin) + limit * (end - below)


def visible_scores(segment_list: Sequence[tuple[int, int]], mask: Mask,
                   documents: Sequence[int]) -> int:
    """How many pairs of a row and a key a shard computes."""
    total = 0
    for begin, end in segment_list:
        for first, last in zip(documents, documents[1:]):
            low, high = max(first, begin), min(last, end)
            rows = high - low
            if rows <= 0:
                continue
            total += last * rows if mask.right == UNLIMITED else _sum_of_least(low, high, mask.right + 1, last)
            total -= first * rows
            if mask.left != UNLIMITED:  # max(first, i - left) = first + i - left - min(first, i - left)
                total -= (low + high - 1) * rows // 2 - mask.left * rows
                total += _sum_of_least(low, high, -mask.left, first)
    return total
