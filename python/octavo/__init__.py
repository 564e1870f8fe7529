# SPDX-License-Identifier: Apache-2.0
"""Octavo: fused scaled-dot-product attention in 32, 16 and 8 bits, on NVIDIA GPUs and CPUs.

    out = octavo.attention(q, k, v, causal=True)

NumPy, PyTorch, CuPy and JAX arrays are read without a copy, and the result is of the same kind. The
modules for frameworks are imported when they are first used: octavo.torch has a replacement for scaled_dot_product_attention and the operators for torch.compile;
octavo.transformers has the attention function for Hugging Face models; octavo.jax has attention for jax.jit, jax.vmap and jax.grad; octavo.distributed has attention
on sequences that are divided among GPUs.
"""

import importlib as _importlib
import typing as _typing

from ._octavo import (
    __version__,
    attention,
    attention_backward,
    dequantize,
    devices,
    explain,
    quantize,
    random_normal,
    set_cpu_threads,
)
from ._block_mask import BlockMask
from ._kv_cache import KvCache
from ._merge_states import merge_states
from ._quantized import Quantized
from ._results import DeviceInfo, Explanation
from ._warnings import LayoutWarning

__all__ = [
    "BlockMask",
    "DeviceInfo",
    "Explanation",
    "KvCache",
    "LayoutWarning",
    "Quantized",
    "__version__",
    "attention",
    "attention_backward",
    "dequantize",
    "devices",
    "explain",
    "merge_states",
    "quantize",
    "random_normal",
    "set_cpu_threads",
]

_MODULES = ("bench", "distributed", "jax", "torch", "transformers")
if _typing.TYPE_CHECKING:
    from . import bench, distributed, jax, torch, transformers  # noqa: F401


def __getattr__(name: str) -> _typing.Any:
    if name in _MODULES:
        return _importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
