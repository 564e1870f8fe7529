# SPDX-License-Identifier: Apache-2.0
"""8-bit tensors with their scales."""

from __future__ import annotations

import dataclasses
from typing import Any

_TENSORS = ("data", "scales", "mean")
# The order in which a transposed tensor stores the keys of a group.
_STORED = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)
_GROUP = len(_STORED)


@dataclasses.dataclass(frozen=True, eq=False)
class Quantized:
    """An 8-bit tensor as attention() takes it for q, k or v. torch.save() stores it; torch.load() reads it
    once octavo.torch is imported.

    data         the quantized values, (batch, heads, seqlen, head_dim), of any 8-bit type;
                 (batch, heads, head_dim, keys) if transposed, whatever the layout of the call
    scales       float32, contiguous, in the shape of the granularity
    format       the number format of data: e4m3, e5m2, int8, sim8; int4 of a paged cache only: its
                 data are (pages, heads, page_size, head_dim / 2) bytes, and its scales float16
                 (pages, heads, 2 * groups, page_size), scales and then zeros
    granularity  tensor (1), head (B, H), block (B, H, blocks), row (B, H, S), channel (B, H, D); in a
                 varlen batch B counts sequences, but for row, which has (1, H, tokens); group for int4
    block_rows   rows that share a scale if the granularity is block
    mean         (B, H, D): the mean that smoothing subtracted from every row, or None
    transposed   V as Hopper's 8-bit kernels read it: keys are contiguous, each group of sixteen in
                 the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, and the last group is padded with
                 zeros; int8 has its sign bits flipped
    max_quantized  an upper bound on the magnitude of data; 0: no bound is known
    seqlen       the number of keys of a transposed tensor, whose data are padded to sixteens; None: not known
    stats        amax, clipped_fraction, flushed_fraction, sqnr_db, values, nan_values, inf_values;
                 None if it was quantized on a GPU or as a varlen batch
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
    seqlen: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of data."""
        return tuple(self.data.shape)

    @property
    def device(self) -> Any:
        """The device of data."""
        return self.data.device

    def to(self, *where: Any, **options: Any) -> Quantized:
        """PyTorch's Tensor.to() of a device, for all tensors; their types stay."""
        import torch

        if not _is_torch(self.data):
            raise TypeError(f"data is of type {type(self.data).__name__}; supported: PyTorch's tensors.")
        if "dtype" in options or any(isinstance(x, torch.dtype) for x in where):
            raise TypeError("dtype is given; supported: a device, since a Quantized keeps its types.")
        return self._changed(lambda x: x.to(*where, **options))

    def cpu(self) -> Quantized:
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Quantized:
        return self.to("cuda" if device is None else device)

    def dequantize(self, dtype: Any = "float32", layout: str = "bhsd", *, cu_seqlens: Any = None) -> Any:
        """The values, without undoing rotation or smoothing; of PyTorch tensors on any device.

        cu_seqlens   of a varlen batch, those that it was quantized with. They are read on the host, and
                     tokens that belong to no sequence get 0
        """
        from . import _octavo

        if cu_seqlens is not None:
            return _dequantize_varlen(self, dtype, [int(x) for x in cu_seqlens])
        if self.transposed:
            if self.seqlen is None:
                raise ValueError("seqlen is None in a transposed Quantized; supported: the number of its keys.")
            made = _rows(self, 0, self.seqlen).dequantize(dtype)
            return made.swapaxes(1, 2) if layout == "bshd" else made
        if not _is_torch(self.data) or self.data.device.type == "cpu":
            return _octavo.dequantize(self, dtype, layout)
        return _dequantize_torch(self, dtype, layout)

    def tensors(self) -> dict[str, Any]:
        """What safetensors saves: its metadata is metadata(), and from_tensors() reads both."""
        return {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}

    def metadata(self) -> dict[str, str]:
        known = {} if self.seqlen is None else {"seqlen": str(self.seqlen)}
        return {"format": self.format, "granularity": self.granularity, "block_rows": str(self.block_rows),
                "transposed": str(self.transposed), "max_quantized": repr(self.max_quantized), **known}

    @staticmethod
    def from_tensors(tensors: dict[str, Any], metadata: dict[str, str]) -> Quantized:
        missing = [name for name in ("format", "granularity") if name not in metadata]
        if missing:
            raise ValueError(f"metadata is without {missing[0]}; supported: what Quantized.metadata() gives.")
        return Quantized(tensors["data"], tensors["scales"], metadata["format"], metadata["granularity"],
                         int(metadata.get("block_rows", "64")), tensors.get("mean"),
                         transposed=metadata.get("transposed") == "True",
                         max_quantized=float(metadata.get("max_quantized", "0")),
                         seqlen=int(metadata["seqlen"]) if "seqlen" in metadata else None)

    def _changed(self, change: Any) -> Quantized:
        made = {name: None if x is None else change(x) for name, x in
                ((name, getattr(self, name)) for name in _TENSORS)}
        return dataclasses.replace(self, **made)


def _is_torch(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch"


def _contiguous(x: Any) -> Any:
    return x.contiguous() if _is_torch(x) else x.copy()


def _rows(x: Quantized, begin: int, end: int) -> Quantized:
    """Keys begin to end of a transposed tensor as (batch, heads, seqlen, head_dim); begin starts a group."""
    is_torch = _is_torch(x.data)
    if is_torch:
        import torch
    groups = -(-(end - begin) // _GROUP)
    data = x.data.view(torch.uint8 if is_torch else "uint8")[..., begin:begin + groups * _GROUP]
    positions = [_STORED.index(key) for key in range(_GROUP)]
    keys = data.reshape(*data.shape[:-1], groups, _GROUP)[..., positions].reshape(data.shape)
    if x.format == "int8":
        keys = keys ^ 128  # int8 is stored with its sign bit flipped
    rows = _contiguous(keys[..., :end - begin].swapaxes(2, 3))
    return dataclasses.replace(x, data=rows.view(x.data.dtype), transposed=False, seqlen=None)


def _sequence(x: Quantized, number: int, begin: int, end: int) -> Quantized:
    """One sequence of a varlen batch as (1, seqlen, heads, head_dim)."""
    scales = x.scales[:, :, begin:end] if x.granularity == "row" else x.scales[number:number + 1]
    if x.granularity == "block":
        scales = scales[:, :, :-(-(end - begin) // x.block_rows)]
    one = dataclasses.replace(x, scales=_contiguous(scales))
    if not x.transposed:
        return dataclasses.replace(one, data=x.data[None, begin:end])
    first = (begin // _GROUP + number) * _GROUP  # each sequence starts a new group
    rows = _rows(one, first, first + end - begin)
    return dataclasses.replace(rows, data=_contiguous(rows.data.swapaxes(1, 2)))


def _dequantize_varlen(x: Quantized, dtype: Any, starts: list[int]) -> Any:
    tokens = x.seqlen if x.transposed else x.data.shape[0]
    if tokens is None:
        raise ValueError("seqlen is None in a transposed Quantized; supported: the number of its tokens.")
    made = _zeros(x, (tokens, *(x.data.shape[1:3] if x.transposed else x.data.shape[1:])), dtype)
    for number, (begin, end) in enumerate(zip(starts, starts[1:])):
        if end > begin:
            made[begin:end] = _sequence(x, number, begin, end).dequantize(dtype, "bshd")[0]
    return made


def _zeros(like: Quantized, shape: tuple[int, ...], dtype: Any) -> Any:
    name = getattr(dtype, "__name__", str(dtype)).rpartition(".")[2]
    if _is_torch(like.data):
        import torch

        return torch.zeros(shape, dtype=getattr(torch, name), device=like.data.device)
    import numpy

    if name == "bfloat16":
        import ml_dtypes  # NumPy has no bfloat16 of its own

        return numpy.zeros(shape, ml_dtypes.bfloat16)
    return numpy.zeros(shape, name)


def _dequantize_torch(x: Quantized, dtype: Any, layout: str) -> Any:
    """By PyTorch's own functions, for tensors on a GPU."""
    import torch

    if layout not in ("bhsd", "bshd"):
        raise ValueError(f"layout is {layout!r}; supported: bhsd, bshd.")
    if x.data.dim() != 4:
        raise ValueError(f"data is of {x.data.dim()} dimensions; supported: 4, or 3 with cu_seqlens.")
    values = x.data.transpose(1, 2) if layout == "bshd" else x.data
    values = (values.float() - 128) / 127 if x.format == "sim8" else values.float()
    scales = x.scales
    if x.granularity == "head":
        scales = scales[:, :, None, None]
    elif x.granularity == "channel":
        scales = scales[:, :, None, :]
    elif x.granularity == "row":
        scales = scales[:, :, :, None]
    elif x.granularity == "block":
        scales = scales.repeat_interleave(x.block_rows, 2)[:, :, :values.shape[2], None]
    made = (values * scales).to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    return made.transpose(1, 2) if layout == "bshd" else made
