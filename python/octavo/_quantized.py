"""8-bit tensors with their scales."""

from __future__ import annotations

import dataclasses
from typing import Any

_TENSORS = ("data", "scales", "mean")


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

        if "dtype" in options or any(isinstance(x, torch.dtype) for x in where):
            raise TypeError("dtype is given; supported: a device, since a Quantized keeps its types.")
        return self._changed(lambda x: x.to(*where, **options))

    def cpu(self) -> Quantized:
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Quantized:
        return self.to("cuda" if device is None else device)

    def dequantize(self, dtype: Any = "float32", layout: str = "bhsd") -> Any:
        """The values, without undoing rotation or smoothing; of PyTorch tensors on any device."""
        from . import _octavo

        if not _is_torch(self.data) or self.data.device.type == "cpu":
            return _octavo.dequantize(self, dtype, layout)
        return _dequantize_torch(self, dtype, layout)

    def tensors(self) -> dict[str, Any]:
        """What safetensors saves: its metadata is metadata(), and from_tensors() reads both."""
        return {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}

    def metadata(self) -> dict[str, str]:
        return {"format": self.format, "granularity": self.granularity, "block_rows": str(self.block_rows),
                "transposed": str(self.transposed), "max_quantized": repr(self.max_quantized)}

    @staticmethod
    def from_tensors(tensors: dict[str, Any], metadata: dict[str, str]) -> Quantized:
        missing = [name for name in ("format", "granularity") if name not in metadata]
        if missing:
            raise ValueError(f"metadata is without {missing[0]}; supported: what Quantized.metadata() gives.")
        return Quantized(tensors["data"], tensors["scales"], metadata["format"], metadata["granularity"],
                         int(metadata.get("block_rows", "64")), tensors.get("mean"),
                         transposed=metadata.get("transposed") == "True",
                         max_quantized=float(metadata.get("max_quantized", "0")))

    def _changed(self, change: Any) -> Quantized:
        made = {name: None if x is None else change(x) for name, x in
                ((name, getattr(self, name)) for name in _TENSORS)}
        return dataclasses.replace(self, **made)


def _is_torch(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch"


def _dequantize_torch(x: Quantized, dtype: Any, layout: str) -> Any:
    """By PyTorch's own functions, for tensors on a GPU."""
    import torch

    if x.transposed:
        raise NotImplementedError("quantized is transposed; supported: tensors that are not transposed.")
    if layout not in ("bhsd", "bshd") or x.data.dim() != 4:
        raise NotImplementedError("quantized is a varlen batch; supported on a GPU: four dimensions in "
                                  "layout bhsd or bshd.")
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
