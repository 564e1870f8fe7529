# SPDX-License-Identifier: Apache-2.0
"""A paged KV cache for decoding."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from . import _octavo
from ._quantized import Quantized

_FORMATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "int8", "int4": "int4"}


class KvCache:
    """K and V of many sequences in pages of equal size.

        cache = octavo.KvCache(pages=512, heads=8, head_dim=128)
        sequence = cache.add_sequence()
        cache.select([sequence])                            # the batch of the next calls
        cache.append(k, v)                                  # (1, heads, tokens, head_dim)
        out = cache.attention(q, causal="bottom_right")

    pages        the number of pages, which all sequences share
    heads        of k and v
    page_size    rows of a page: a multiple of 16 from 16 to 256
    dtype        float32, float16, bfloat16, or quantized with a scale for each row of each head:
                 float8_e4m3fn, float8_e5m2, int8; or "int4", with a scale and a zero for each group
                 of channels of a row
    group        of int4: channels that share a scale, 32 or 64
    layout       memory order: "bhsd" for (pages, heads, page_size, head_dim), "bshd" for (pages,
                 page_size, heads, head_dim)
    max_batch    the most sequences that can be selected together
    pages_per_sequence    the most pages of a sequence; None: all
    device       "cpu", or a GPU ("cuda", "cuda:1"), where dtype is not float32

    A failed call leaves the cache as it was. One thread at a time may use it. On a GPU every call is
    ordered by the current stream, and only read() waits for it. append() and attention() can be captured
    in a CUDA graph, which then serves growing sequences:

        cache.append(k, v); cache.attention(q)              # once before, to load the kernels
        cache.reserve(1)
        with torch.cuda.graph(graph):
            cache.append(k, v)
            out = cache.attention(q)
        cache.advance(1)                                    # before every graph.replay()
    """

    def __init__(self, pages: int, heads: int, head_dim: int, *, page_size: int = 64,
                 dtype: Any = "float16", layout: str = "bhsd", max_batch: int = 64,
                 pages_per_sequence: int | None = None, group: int = 64, device: Any = "cpu"):
        self._cache = _octavo._KvCache(pages, page_size, heads, head_dim, dtype, layout, max_batch,
                                       pages_per_sequence or 0, group, str(device))
        self.device = self._cache.device()
        name = getattr(dtype, "__name__", str(dtype))  # a type, a dtype or a name
        self._format = _FORMATS.get(name.rsplit(".", 1)[-1])
        self.pages, self.heads, self.head_dim, self.page_size = pages, heads, head_dim, page_size
        self.layout, self.max_batch = layout, max_batch
        self.pages_per_sequence = self._cache.pages_per_sequence()

    def add_sequence(self) -> int:
        """Returns the number of a new, empty sequence."""
        return self._cache.add_sequence()

    def fork(self, sequence: int) -> int:
        """Returns the number of a new sequence with the same keys, which shares the pages."""
        return self._cache.fork(sequence)

    def free_sequence(self, sequence: int) -> None:
        """Frees the pages that no other sequence shares. The number is used again."""
        self._cache.free_sequence(sequence, self._stream())

    def length(self, sequence: int) -> int:
        """The number of tokens of a sequence."""
        return self._cache.length(sequence)

    @property
    def free_pages(self) -> int:
        return self._cache.free_pages()

    def select(self, sequences: Sequence[int]) -> None:
        """Makes these sequences the batch of append() and attention(), in this order."""
        self._cache.select(list(sequences), self._stream())

    def reserve(self, tokens: int) -> None:
        """Takes the pages for so many more tokens of each selected sequence; else append() does it."""
        self._cache.reserve(tokens, self._stream())

    def advance(self, tokens: int) -> None:
        """Announces that a CUDA graph which has captured append() of so many tokens is launched next.

        It takes pages as reserve() does, and counts the tokens. If it raises, do not launch the graph.
        """
        self._cache.advance(tokens, self._stream())

    def append(self, k: Any, v: Any, *, rotary: tuple[Any, Any] | None = None, interleaved: bool = False,
               layout: str = "bhsd") -> None:
        """Appends tokens to the selected sequences: k and v are (batch, heads, tokens, head_dim).

        rotary       (cos, sin), float32 (positions, pairs): a rotary embedding of k by the position in
                     the sequence; channels beyond 2 * pairs stay as they are
        interleaved  pair i is channels 2i and 2i + 1, instead of i and pairs + i
        layout       of k and v: "bshd" for (batch, tokens, heads, head_dim)

        Raises MemoryError if there are not enough free pages.
        """
        self._cache.append(k, v, rotary, interleaved, layout, self._stream())

    def arguments(self) -> dict[str, Any]:
        """k, v, page_table and seqlens_kv of octavo.attention() for the selected sequences.

        They are views of the cache, in its layout: append() changes them.
        """
        arrays = self._cache.arrays()
        if self.device.startswith("cuda") and "torch" in sys.modules:
            arrays = {name: sys.modules["torch"].from_dlpack(x) for name, x in arrays.items()}
        if self._format is not None:
            for name in ("k", "v"):
                arrays[name] = Quantized(arrays[name], arrays.pop(name + "_scales"), self._format,
                                         "group" if self._format == "int4" else "row")
        return arrays

    def attention(self, q: Any, **options: Any) -> Any:
        """octavo.attention() over the selected sequences: q is (batch, heads, seqlen, head_dim).

        q, out and lse are in the layout of the cache.
        """
        return _octavo.attention(q, **self.arguments(), layout=self.layout, **options)

    def read(self, sequence: int, dtype: Any = "float32") -> tuple[Any, Any]:
        """K and V of a sequence as NumPy arrays (1, heads, length, head_dim), dequantized."""
        import numpy

        shape = (1, self.heads, self.length(sequence), self.head_dim)
        k, v = numpy.empty(shape, dtype), numpy.empty(shape, dtype)
        self._cache.read(sequence, k, v, self._stream())
        return k, v

    def _stream(self) -> int:
        """The address of PyTorch's current stream on the cache's GPU, or of the default stream."""
        if self.device.startswith("cuda") and "torch" in sys.modules:
            return sys.modules["torch"].cuda.current_stream(self.device).cuda_stream
        return 0
