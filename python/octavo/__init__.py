"""Octavo: fused scaled-dot-product attention in 32, 16 and 8 bits, on NVIDIA GPUs and CPUs.

    out = octavo.attention(q, k, v, causal=True)

NumPy, PyTorch, CuPy and JAX arrays are read without a copy, and the result is of the same kind.
octavo.torch has a replacement for scaled_dot_product_attention and the operators for torch.compile;
octavo.transformers has the attention function for Hugging Face models; octavo.distributed has attention
on sequences that are divided among GPUs.
"""

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
