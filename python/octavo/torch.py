"""Octavo in PyTorch: a drop-in for scaled_dot_product_attention, and an operator for torch.compile.

    from octavo.torch import sdpa
    out = sdpa(q, k, v, is_causal=True)      # falls back to PyTorch, visibly, where it must
    octavo.torch.fallbacks()                 # why, and how often

    out = octavo.torch.attention(q, k, v, causal=True)     # under torch.compile too, no graph break

Eager calls go straight to octavo.attention: PyTorch's dispatcher would cost them several
microseconds. Only tracing goes through the operators octavo::attention and octavo::attention_lse.
"""

from __future__ import annotations

import collections
import warnings

import torch
import torch.nn.functional as F

import octavo
from octavo._octavo import _plain_sdpa

__all__ = ["FallbackWarning", "attention", "fallbacks", "reset_fallbacks", "sdpa"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)

# ------------------------------------------------------------------------------------ the operator

_PARAMETERS = (
    "(Tensor q, Tensor k, Tensor v, *, str causal='none', int window_left=-1, int window_right=-1, "
    "float? scale=None, str precision='native', str layout='bhsd', ScalarType? out_dtype=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_kv=None, SymInt? max_seqlen_q=None, "
    "SymInt? max_seqlen_kv=None, bool batch_invariant=False, bool overlap_launch=False, "
    "float? max_error=None)"
)
_LIBRARY = torch.library.Library("octavo", "DEF")
for _name, _returns in (("attention", "Tensor"), ("attention_lse", "(Tensor, Tensor)")):
    _LIBRARY.define(f"{_name}{_PARAMETERS} -> {_returns}", tags=torch.Tag.pt2_compliant_tag)


def _run(q, k, v, *, window_left=-1, window_right=-1, **options):
    return octavo.attention(q, k, v, window=(window_left, window_right), **options)


def _run_lse(q, k, v, **options):
    return _run(q, k, v, return_lse=True, **options)


def _fake(q, k, v, *, out_dtype=None, **options):
    return torch.empty_like(q, dtype=out_dtype or q.dtype)


def _fake_lse(q, k, v, *, layout="bhsd", cu_seqlens_q=None, **options):
    if cu_seqlens_q is not None:
        tokens, heads, _ = q.shape
        shape = (heads, tokens)
    elif layout == "bshd":
        batch, rows, heads, _ = q.shape
        shape = (batch, heads, rows)
    else:
        shape = q.shape[:3]
    return _fake(q, k, v, **options), q.new_empty(shape, dtype=torch.float32)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("attention", _run, _key)
    _LIBRARY.impl("attention_lse", _run_lse, _key)
torch.library.register_fake("octavo::attention", _fake, lib=_LIBRARY)
torch.library.register_fake("octavo::attention_lse", _fake_lse, lib=_LIBRARY)

_CAUSAL = {None: "none", False: "none", True: "top_left"}


def _traced(q, k, v, *, causal=False, window=None, scale=None, precision=None, out=None,
            return_lse=False, layout="bhsd", out_dtype=None, cu_seqlens_q=None, cu_seqlens_kv=None,
            max_seqlen_q=None, max_seqlen_kv=None, quantization=None, batch_invariant=False,
            overlap_launch=False, stream=None, max_error=None, out_scale=None, return_amax=False):
    for name, value in (("out", out), ("quantization", quantization), ("stream", stream),
                        ("out_scale", out_scale), ("return_amax", return_amax or None)):
        if value is not None:
            raise TypeError(f"{name} is given; supported: None in traced code.")
    for name, value in (("q", q), ("k", k), ("v", v)):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is no tensor; supported: tensors in traced code.")
    left, right = (-1 if side is None else side for side in window or (-1, -1))
    operator = torch.ops.octavo.attention_lse if return_lse else torch.ops.octavo.attention
    return operator(
        q, k, v, causal=causal if isinstance(causal, str) else _CAUSAL[causal], window_left=left,
        window_right=right, scale=scale, precision=precision or "native", layout=layout,
        out_dtype=out_dtype, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv,
        max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv, batch_invariant=batch_invariant,
        overlap_launch=overlap_launch, max_error=max_error)


def attention(q, k, v, **options):
    """octavo.attention for tensors, traceable by torch.compile.

    The same parameters; in traced code without out, quantization, stream, out_scale, return_amax
    and octavo.Quantized.
    """
    if torch.compiler.is_compiling() or (isinstance(q, torch.Tensor) and type(q) not in _PLAIN):
        return _traced(q, k, v, **options)
    return octavo.attention(q, k, v, **options)


# ------------------------------------------------------------------------------------ the drop-in


class FallbackWarning(UserWarning):
    """A call went to PyTorch's scaled_dot_product_attention instead; once for each reason."""


_counts: collections.Counter[str] = collections.Counter()


def fallbacks() -> dict[str, int]:
    """How many calls fell back to PyTorch since the last reset, by reason.

    A compiled function counts when it is traced, not when it runs.
    """
    return dict(_counts)


def reset_fallbacks() -> None:
    """Forgets the counts, and warns of each reason again."""
    _counts.clear()


# Runs while tracing, once for each traced call, and leaves nothing in the graph.
@torch.compiler.assume_constant_result
def count_fallback(reason: str) -> None:
    """Counts a call that goes to PyTorch, and warns if it is the first of its reason."""
    _counts[reason] += 1
    if _counts[reason] == 1:
        warnings.warn(f"octavo falls back to PyTorch's attention: {reason}", FallbackWarning,
                      stacklevel=3)


_TYPES = {
    "cpu": (torch.float32, torch.float16, torch.bfloat16),
    "cuda": (torch.float16, torch.bfloat16),
}
_MOST_COLUMNS_ON_CUDA = 256


def _why_not(q, k, v, attn_mask, dropout_p, enable_gqa):
    """The reason for a fallback, one of a fixed few; None if there is none."""
    if attn_mask is not None:
        return "attn_mask is given"
    if dropout_p > 0:
        return "dropout_p is not 0"
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return "a gradient is wanted, and there is no backward pass"
    kind, dtype = q.device.type, q.dtype
    if kind not in _TYPES or k.device != q.device or v.device != q.device:
        return "tensors are not on one CPU or CUDA device"
    if dtype not in _TYPES[kind] or k.dtype != dtype or v.dtype != dtype:
        return f"dtypes are not served on {kind}"
    q_shape, k_shape = q.shape, k.shape
    if len(q_shape) != 4 or len(k_shape) != 4 or k_shape != v.shape:
        return "shapes are not (batch, heads, rows, columns) with those of key and value equal"
    if q_shape[0] != k_shape[0] or q_shape[3] != k_shape[3]:
        return "batch or columns of query and key differ"
    if q_shape[1] != k_shape[1] and not (enable_gqa and q_shape[1] % k_shape[1] == 0):
        return "heads of query and key differ without enable_gqa"
    if kind == "cuda" and q_shape[3] > _MOST_COLUMNS_ON_CUDA:
        return "more than 256 columns on cuda"
    if q.stride(3) != 1 or k.stride(3) != 1 or v.stride(3) != 1:
        return "columns are not contiguous"
    return None


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
         enable_gqa=False):
    """torch.nn.functional.scaled_dot_product_attention by Octavo.

    The same parameters and the same results within rounding. What Octavo does not serve (a mask
    tensor, dropout, a gradient, odd types and shapes) goes to PyTorch: fallbacks() counts it, and
    the first of each reason is a FallbackWarning.
    """
    compiling = torch.compiler.is_compiling()
    if attn_mask is None and not dropout_p and not compiling:
        out = _plain_sdpa(query, key, value, is_causal, scale, enable_gqa)
        if out is not None:
            return out
    reason = _why_not(query, key, value, attn_mask, dropout_p, enable_gqa)
    if reason is None:
        causal = "top_left" if is_causal else "none"
        if compiling or type(query) not in _PLAIN:
            return torch.ops.octavo.attention(query, key, value, causal=causal, scale=scale)
        try:
            return octavo.attention(query, key, value, causal=causal, scale=scale)
        except NotImplementedError as refused:  # an old GPU, a kernel that is not there
            reason = str(refused)
    count_fallback(reason)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask,
                                          dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                                          enable_gqa=enable_gqa)


# Compiled code may call octavo.attention itself as well.
if hasattr(torch.compiler, "substitute_in_graph"):
    torch.compiler.substitute_in_graph(octavo.attention, skip_signature_check=True)(_traced)
