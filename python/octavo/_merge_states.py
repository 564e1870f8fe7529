# SPDX-License-Identifier: Apache-2.0
"""Merges attention over parts of the keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from . import _octavo


def merge_tensors(outs: Sequence[Any], lses: Sequence[Any], layout: str) -> tuple[Any, Any]:
    """merge_states() in PyTorch's operations, for tensors on any device."""
    import torch

    largest = torch.stack(list(lses)).amax(0)
    largest = torch.where(largest.isinf(), 0.0, largest)  # rows without a key have weights of 0
    total = merged = None
    for one, one_lse in zip(outs, lses):
        weight = (one_lse - largest).exp()
        column = (weight.transpose(1, 2) if layout == "bshd" else weight).unsqueeze(-1)
        # A part in which a row sees no key does not count, even if it holds NaN.
        term = torch.where(column > 0, one.float() * column, 0.0)
        total = weight if total is None else total + weight
        merged = term if merged is None else merged + term
    divisor = (total.transpose(1, 2) if layout == "bshd" else total).unsqueeze(-1)
    merged = torch.where(divisor > 0, merged / divisor, 0.0).to(outs[0].dtype)
    return merged, total.log() + largest


def _on_a_gpu(parts: Any) -> bool:
    torch = sys.modules.get("torch")
    return (torch is not None and hasattr(parts, "__len__") and len(parts) > 0
            and all(isinstance(x, torch.Tensor) and x.is_cuda for x in parts))


def _check_parts(out: Sequence[Any], lse: Sequence[Any], layout: str) -> None:
    torch = sys.modules["torch"]
    wide = (torch.float32, torch.float16, torch.bfloat16)
    shape, dtype = tuple(out[0].shape), out[0].dtype
    for i, (one, one_lse) in enumerate(zip(out, lse)):
        if one.dtype not in wide or one.dtype != dtype or one.ndim != 4 or tuple(one.shape) != shape:
            raise ValueError(f"out[{i}] is {tuple(one.shape)} of {one.dtype}; supported: four dimensions of "
                             f"float32, float16 or bfloat16, the same in all parts, here {shape} of {dtype}.")
        rows = (shape[0], shape[2], shape[1]) if layout == "bshd" else shape[:3]
        if one_lse.dtype != torch.float32 or tuple(one_lse.shape) != rows:
            raise ValueError(f"lse[{i}] is {tuple(one_lse.shape)} of {one_lse.dtype}; supported: {rows} of "
                             "torch.float32.")


def merge_states(out: Sequence[Any], lse: Sequence[Any], *, layout: str = "bhsd") -> tuple[Any, Any]:
    """Merges attention over parts of the keys into attention over all of them: (out, lse).

    out and lse list the results for the parts, as attention(return_lse=True) gives them, or have them
    in a leading dimension. Parts are added in their order in float32. A part in which a row sees no key
    (lse -inf) does not count for the row. NumPy arrays and others in host memory, and PyTorch tensors on
    any device; octavo.distributed.merge_states merges over processes. There is no gradient.

    layout       of out: "bhsd", or "bshd" for (batch, seqlen, heads, head_dim); lse is (batch, heads,
                 seqlen) in both
    """
    if not (_on_a_gpu(out) and _on_a_gpu(lse) and len(out) == len(lse)):
        return _octavo._merge_states(out, lse, layout=layout)
    if layout not in ("bhsd", "bshd"):
        raise ValueError(f"layout is {layout!r}; supported: 'bhsd', 'bshd'.")
    _check_parts(out, lse, layout)
    with sys.modules["torch"].no_grad():
        return merge_tensors(out, lse, layout)
