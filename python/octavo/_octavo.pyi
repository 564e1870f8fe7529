# SPDX-License-Identifier: Apache-2.0
from typing import Any, Literal, TypedDict, TypeVar

from ._block_mask import BlockMask
from ._quantized import Quantized
from ._results import DeviceInfo, Explanation

__version__: str

# A NumPy, PyTorch, CuPy or JAX array, or any other object with __dlpack__.
_Array = TypeVar("_Array")
_Causal = bool | Literal["none", "top_left", "bottom_right"] | None
_Precision = (
    Literal[
        "native", "fp16", "bf16", "fp8", "fp8_mixed", "fp8_fast", "int8", "int8_mixed", "sim8", "auto"
    ]
    | None
)
_Granularity = Literal["tensor", "head", "block", "row", "channel"]
_Rule = Literal["amax", "least_squares"]
_Layout = Literal["bhsd", "bshd"]

class _Quantization(TypedDict, total=False):
    qk: _Granularity
    v: _Granularity
    block_rows: int
    rule: _Rule
    smooth_k: bool
    hadamard: bool

def attention(
    q: _Array | Quantized,
    k: _Array | Quantized,
    v: _Array | Quantized,
    *,
    causal: _Causal = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    precision: _Precision = None,
    out: _Array | None = None,
    return_lse: bool = False,
    layout: _Layout = "bhsd",
    out_dtype: Any = None,
    cu_seqlens_q: _Array | None = None,
    cu_seqlens_kv: _Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    quantization: _Quantization | None = None,
    batch_invariant: bool = False,
    overlap_launch: bool = False,
    stream: Any = None,
    max_error: float | None = None,
    out_scale: _Array | None = None,
    return_amax: bool = False,
    seqlens_q: _Array | None = None,
    seqlens_kv: _Array | None = None,
    leftpad_q: _Array | None = None,
    leftpad_kv: _Array | None = None,
    bias: _Array | None = None,
    mask: _Array | None = None,
    alibi_slopes: _Array | None = None,
    sinks: _Array | None = None,
    softcap: float | None = None,
    page_table: _Array | None = None,
    block_mask: BlockMask | None = None,
    draft_tree: _Array | None = None,
    sm_margin: int = 0,
) -> Any: ...
def attention_backward(
    dout: _Array,
    q: _Array,
    k: _Array,
    v: _Array,
    out: _Array,
    lse: _Array,
    *,
    causal: _Causal = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    precision: _Precision = None,
    layout: _Layout = "bhsd",
    cu_seqlens_q: _Array | None = None,
    cu_seqlens_kv: _Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    seqlens_q: _Array | None = None,
    seqlens_kv: _Array | None = None,
    leftpad_q: _Array | None = None,
    leftpad_kv: _Array | None = None,
    bias: _Array | None = None,
    mask: _Array | None = None,
    alibi_slopes: _Array | None = None,
    sinks: _Array | None = None,
    softcap: float | None = None,
    block_mask: BlockMask | None = None,
    return_dbias: bool = False,
    return_dsinks: bool = False,
    batch_invariant: bool = False,
    stream: Any = None,
) -> tuple[_Array, ...]: ...
def explain(
    q: _Array | Quantized,
    k: _Array | Quantized,
    v: _Array | Quantized,
    *,
    causal: _Causal = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    precision: _Precision = None,
    out: _Array | None = None,
    return_lse: bool = False,
    layout: _Layout = "bhsd",
    out_dtype: Any = None,
    cu_seqlens_q: _Array | None = None,
    cu_seqlens_kv: _Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    quantization: _Quantization | None = None,
    batch_invariant: bool = False,
    overlap_launch: bool = False,
    stream: Any = None,
    max_error: float | None = None,
    out_scale: _Array | None = None,
    return_amax: bool = False,
    seqlens_q: _Array | None = None,
    seqlens_kv: _Array | None = None,
    leftpad_q: _Array | None = None,
    leftpad_kv: _Array | None = None,
    bias: _Array | None = None,
    mask: _Array | None = None,
    alibi_slopes: _Array | None = None,
    sinks: _Array | None = None,
    softcap: float | None = None,
    page_table: _Array | None = None,
    block_mask: BlockMask | None = None,
    draft_tree: _Array | None = None,
    sm_margin: int = 0,
    device: str | None = None,
) -> Explanation: ...
def devices() -> list[DeviceInfo]: ...
def quantize(
    x: _Array,
    format: Literal["e4m3", "e5m2", "int8", "sim8"] | None = None,
    *,
    operand: Literal["q", "k", "v"] | None = None,
    precision: Literal["fp8", "fp8_mixed", "fp8_fast", "int8", "int8_mixed", "sim8"] = "fp8",
    granularity: _Granularity | None = None,
    block_rows: int = 64,
    rule: _Rule = "amax",
    smooth: bool = False,
    hadamard: bool = False,
    scales: Any = None,
    layout: _Layout = "bhsd",
    transposed: bool | None = None,
    max_quantized: float | None = None,
    cu_seqlens: _Array | None = None,
    max_seqlen: int | None = None,
    stream: Any = None,
) -> Quantized: ...
def dequantize(quantized: Quantized, dtype: Any = "float32", layout: _Layout = "bhsd") -> Any: ...
def set_cpu_threads(threads: int) -> None: ...
def random_normal(array: Any, seed: int, stream: int = 0) -> None: ...

class _KvCache:
    def __init__(
        self,
        pages: int,
        page_size: int,
        heads: int,
        head_dim: int,
        dtype: Any,
        layout: str,
        max_batch: int,
        pages_per_sequence: int,
        group: int,
        device: str,
    ) -> None: ...
    def add_sequence(self) -> int: ...
    def fork(self, sequence: int) -> int: ...
    def free_sequence(self, sequence: int, stream: int) -> None: ...
    def length(self, sequence: int) -> int: ...
    def free_pages(self) -> int: ...
    def select(self, sequences: list[int], stream: int) -> None: ...
    def reserve(self, tokens: int, stream: int) -> None: ...
    def advance(self, tokens: int, stream: int) -> None: ...
    def device(self) -> str: ...
    def append(self, k: Any, v: Any, rotary: Any, interleaved: bool, layout: str, stream: int) -> None: ...
    def read(self, sequence: int, k: Any, v: Any, stream: int) -> None: ...
    def pages_per_sequence(self) -> int: ...
    def arrays(self) -> dict[str, Any]: ...
