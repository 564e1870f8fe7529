"""Octavo: fused scaled-dot-product attention in 32, 16 and 8 bits, on NVIDIA GPUs and CPUs.

    out = octavo.attention(q, k, v, causal=True)

Arrays of NumPy, PyTorch, CuPy and JAX, read without a copy; the result is of the same kind.
octavo.torch has the drop-in for scaled_dot_product_attention and the operator for torch.compile,
octavo.transformers the attention of Hugging Face models.
"""

from ._octavo import (
    __version__,
    attention,
    dequantize,
    devices,
    explain,
    quantize,
    random_normal,
    set_cpu_threads,
)
from ._quantized import Quantized
from ._told import DeviceInfo, Explanation
from ._warnings import LayoutWarning

__all__ = [
    "DeviceInfo",
    "Explanation",
    "LayoutWarning",
    "Quantized",
    "__version__",
    "attention",
    "dequantize",
    "devices",
    "explain",
    "quantize",
    "random_normal",
    "set_cpu_threads",
]
