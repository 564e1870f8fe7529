# SPDX-License-Identifier: Apache-2.0
"""Block masks: which blocks of keys each block of queries attends to."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from . import _octavo

_SIZES = (64, 128)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockMask:
    """A block mask as attention() takes it, in the layout of PyTorch's FlexAttention.

    A block is block_size queries by block_size keys. A query sees the keys of the blocks that either
    list has for its block of queries, as far as the bits, `causal` and `window` let it. Arrays are
    int32 and contiguous, on q's device. batch and heads are those of q or 1, which holds for all.

    block_size          64 or 128
    kv_num_blocks       (batch, heads, q_blocks): how many partial blocks a block of queries has
    kv_indices          (batch, heads, q_blocks, n): which they are, ascending
    full_kv_num_blocks, full_kv_indices    blocks without bits, likewise
    bit_indices         of the shape of kv_indices: which entry of `bits` a partial block has
    bits                int32 (entries, block_size, block_size / 32): bit j % 32 of word j / 32 of a
                        query is set if it sees key j of the block. None: partial blocks are cut by
                        `causal` and `window` alone

    from_dense_blocks(), from_mask(), from_ranges(), from_flex() and from_indices() make one.
    """

    block_size: int
    kv_num_blocks: Any = None
    kv_indices: Any = None
    full_kv_num_blocks: Any = None
    full_kv_indices: Any = None
    bit_indices: Any = None
    bits: Any = None

    @classmethod
    def from_dense_blocks(cls, blocks, block_size: int = 128) -> BlockMask:
        """From a boolean array ([[batch,] heads,] q_blocks, kv_blocks): whole blocks are seen or hidden."""
        _check_size(block_size)
        counts, indices = _lists(_leading(blocks, "blocks", "bool"))
        return cls(block_size, full_kv_num_blocks=counts, full_kv_indices=indices)

    @classmethod
    def from_mask(cls, mask, block_size: int = 128) -> BlockMask:
        """From a boolean array ([[batch,] heads,] seqlen_q, seqlen_kv): True where a query sees a key."""
        _check_size(block_size)
        tiles = _tiles(_leading(mask, "mask", "bool"), block_size)
        seen = tiles.any(-1).any(-1)
        full = tiles.all(-1).all(-1)
        partial = seen & ~full
        counts, indices = _lists(partial)
        full_counts, full_indices = _lists(full)
        # Entries of bits are numbered in the order of the lists, which is that of the blocks.
        numbers = (partial.reshape(-1).cumsum(0) - 1).reshape(partial.shape)
        bit_indices = _int32(_gather(numbers, indices))
        bits = _pack(tiles[partial])
        if bits.shape[0] == 0:
            return cls(block_size, full_kv_num_blocks=full_counts, full_kv_indices=full_indices)
        return cls(block_size, counts, indices, full_counts, full_indices, bit_indices, bits)

    @classmethod
    def from_ranges(cls, begin, end, seqlen_kv: int, block_size: int = 128, *, causal=False) -> BlockMask:
        """From one range of keys for each query: integers ([[batch,] heads,] seqlen_q), where query i sees
        keys begin[i] to end[i] - 1, and none if end[i] <= begin[i]. A number holds for all queries.
        causal, as in attention(), hides the keys after the diagonal as well; attention() then needs
        no causal. The lists are made on the host, without a tensor of all scores."""
        _check_size(block_size)
        begin, end, like = _range_ends(begin, end, _key_count(seqlen_kv))
        lists = _octavo._block_mask_from_ranges(begin, end, seqlen_kv, block_size,
                                        _causal_name(causal, begin.shape[-1], seqlen_kv))
        return cls(block_size, *(None if x is None else _as(x, like) for x in lists))

    @classmethod
    def from_flex(cls, block_mask) -> BlockMask:
        """From a torch.nn.attention.flex_attention.BlockMask, whose mask_mod is evaluated once, on its
        partial blocks. The mask does not change when tensors that mask_mod reads change later."""
        import torch

        sizes = block_mask.BLOCK_SIZE
        sizes = (sizes, sizes) if isinstance(sizes, int) else tuple(sizes)
        if sizes[0] != sizes[1] or sizes[0] not in _SIZES:
            raise ValueError(f"BLOCK_SIZE is {sizes}; supported: (64, 64), (128, 128).")
        size = sizes[0]
        counts, indices = _int32(block_mask.kv_num_blocks), _int32(block_mask.kv_indices)
        full = block_mask.full_kv_num_blocks
        lists = {}
        if full is not None:
            lists = {"full_kv_num_blocks": _int32(full),
                     "full_kv_indices": _ascending(_int32(block_mask.full_kv_indices), _int32(full))}
        indices = _ascending(indices, counts)
        used = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
        b, h, row, _ = used.nonzero(as_tuple=True)
        if len(b) == 0:
            return cls(size, **lists)
        bits = _evaluate(block_mask, size, b, h, row, indices[used])
        numbers = used.reshape(-1).cumsum(0) - 1
        bit_indices = _int32(numbers.clamp(min=0).reshape(used.shape))
        return cls(size, counts, indices, **lists, bit_indices=bit_indices, bits=bits)

    @classmethod
    def from_indices(cls, indices, block_size: int = 64) -> BlockMask:
        """From the blocks that each block of queries selects, as a top-k search gives them: integers
        ([[batch,] heads,] q_blocks, k) in any order. Negative ones and repetitions do not count."""
        _check_size(block_size)
        unused = np.iinfo(np.int32).max
        indices = _int64(_leading(indices, "indices", "integers")).clip(max=unused - 1)
        chosen = _sorted(_where(indices < 0, unused, indices))
        repeated = _where(chosen[..., 1:] == chosen[..., :-1], unused, chosen[..., 1:])
        chosen = _sorted(_concatenate([chosen[..., :1], repeated]))
        counts = _int32((chosen != unused).sum(-1))
        return cls(block_size, full_kv_num_blocks=counts, full_kv_indices=_int32(chosen))


def _check_size(block_size):
    if block_size not in _SIZES:
        raise ValueError(f"block_size is {block_size}; supported: 64, 128.")


# ------------------------------------------------------------------- what NumPy and PyTorch share


def _is_torch(x):
    return type(x).__module__.startswith("torch")


def _kind(x):
    """The kind of numbers in an array: "bool", "integers" or "others"."""
    if not _is_torch(x):
        return {"b": "bool", "i": "integers", "u": "integers"}.get(x.dtype.kind, "others")
    import torch

    if x.dtype == torch.bool:
        return "bool"
    return "others" if x.is_floating_point() or x.is_complex() else "integers"


def _leading(x, what, kind):
    """Adds leading dimensions of size 1, up to four in all."""
    if not _is_torch(x):
        x = np.asarray(x)
    if _kind(x) != kind:
        raise TypeError(f"{what} is of {x.dtype}; supported: {kind}.")
    if not 2 <= x.ndim <= 4:
        raise ValueError(f"{what} has {x.ndim} dimensions; supported: 2 to 4.")
    return x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))


def _int64(x):
    return x.long() if _is_torch(x) else x.astype(np.int64)


def _int32(x):
    if not _is_torch(x):
        return np.ascontiguousarray(x, dtype=np.int32)
    import torch

    return x.to(torch.int32).contiguous()


def _key_count(seqlen_kv):
    if not isinstance(seqlen_kv, (int, np.integer)):
        raise TypeError(f"seqlen_kv is {seqlen_kv!r}; supported: integers.")
    if not 0 <= seqlen_kv <= 2**30:
        raise ValueError(f"seqlen_kv is {seqlen_kv}; supported: 0 to 2^30.")
    return seqlen_kv


def _range_ends(begin, end, keys):
    """Both ends of ranges as NumPy arrays (batch, heads, seqlen_q), and the one that is not a number."""
    like = end if np.ndim(begin) == 0 else begin
    ends = []
    for what, x in (("begin", begin), ("end", end)):
        array = np.asarray(x.cpu() if _is_torch(x) else x)
        if _kind(array) != "integers":
            raise TypeError(f"{what} is of {array.dtype}; supported: integers.")
        outside = array[(array < 0) | (array > keys)]
        if outside.size:
            raise ValueError(f"{what} has {outside[0]}; supported: 0 to {keys}, the number of keys.")
        ends.append(array.astype(np.int32))
    try:
        shape = np.broadcast_shapes(ends[0].shape, ends[1].shape)
    except ValueError:
        raise ValueError(f"end has the shape {ends[1].shape}; supported: shapes that broadcast with begin's, "
                         f"{ends[0].shape}.") from None
    if not 1 <= len(shape) <= 3:
        raise ValueError(f"begin and end have {len(shape)} dimensions; supported: 1 to 3.")
    shape = (1,) * (3 - len(shape)) + shape
    return *(np.ascontiguousarray(np.broadcast_to(x, shape)) for x in ends), like


def _causal_name(causal, queries, keys):
    if causal is None or causal is False:
        return "none"
    if causal is not True:
        return str(causal)
    if queries != keys:
        raise ValueError(f"causal is True with {queries} queries and {keys} keys; supported: "
                         "'top_left', 'bottom_right', or as many keys as queries.")
    return "top_left"


def _as(x, like):
    """A NumPy array as one of the kind of `like`, on its device."""
    if not _is_torch(like):
        return x
    import torch

    return torch.from_numpy(np.array(x)).to(like.device)


def _where(condition, x, y):
    if not _is_torch(y):
        return np.where(condition, x, y)
    return y.masked_fill(condition, x)


def _sorted(x):
    return x.sort(dim=-1).values if _is_torch(x) else np.sort(x, axis=-1)


def _concatenate(parts):
    if not _is_torch(parts[0]):
        return np.concatenate(parts, axis=-1)
    import torch

    return torch.cat(parts, dim=-1)


def _gather(x, indices):
    if not _is_torch(x):
        return np.take_along_axis(x, indices.astype(np.int64), axis=-1)
    return x.gather(-1, indices.long())


def _lists(blocks):
    """The number of set blocks of each row, and their indices before those of the others."""
    if _is_torch(blocks):
        order = (~blocks).int().argsort(dim=-1, stable=True)
        return _int32(blocks.sum(-1)), _int32(order)
    return _int32(blocks.sum(-1)), _int32(np.argsort(~blocks, axis=-1, kind="stable"))


def _tiles(mask, size):
    """(B, H, S, T) as (B, H, blocks, blocks, size, size); what is behind the end counts as hidden."""
    b, h, rows, keys = mask.shape
    pad_rows, pad_keys = -rows % size, -keys % size
    if _is_torch(mask):
        import torch

        mask = torch.nn.functional.pad(mask, (0, pad_keys, 0, pad_rows))
    else:
        mask = np.pad(mask, ((0, 0), (0, 0), (0, pad_rows), (0, pad_keys)))
    tiles = mask.reshape(b, h, (rows + pad_rows) // size, size, (keys + pad_keys) // size, size)
    return tiles.swapaxes(3, 4)


def _pack(tiles):
    """Booleans (n, size, size) as bits, int32 (n, size, size / 32)."""
    n, size, _ = tiles.shape
    if not _is_torch(tiles):
        return np.packbits(tiles, axis=-1, bitorder="little").view(np.int32).reshape(n, size, size // 32)
    import torch

    weights = torch.ones(32, dtype=torch.int32, device=tiles.device) << torch.arange(
        32, dtype=torch.int32, device=tiles.device)
    words = tiles.reshape(n, size, size // 32, 32).int() * weights
    return words.sum(-1, dtype=torch.int32)


def _ascending(indices, counts):
    """FlexAttention does not promise an order within a list."""
    import torch

    unused = torch.arange(indices.shape[-1], device=indices.device) >= counts[..., None]
    return _int32(_sorted(_where(unused, np.iinfo(np.int32).max, indices)))


def _evaluate(block_mask, size, b, h, row, column):
    """The bits of blocks (b, h, row, column) of a FlexAttention mask."""
    import torch

    rows, keys = block_mask.seq_lengths
    within = torch.arange(size, device=b.device)
    most = 256  # blocks at a time: mask_mod may need many bytes for each score
    parts = []
    for first in range(0, len(b), most):
        some = slice(first, first + most)
        # What is behind the last query or key is never read, but mask_mod may look something up.
        q = (row[some, None] * size + within).clamp(max=rows - 1)
        k = (column[some, None].long() * size + within).clamp(max=keys - 1)
        seen = block_mask.mask_mod(b[some, None, None], h[some, None, None], q[:, :, None], k[:, None, :])
        parts.append(_pack(torch.as_tensor(seen, device=b.device).bool().expand(len(q), size, size)))
    return torch.cat(parts)
