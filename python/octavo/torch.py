"""Octavo in PyTorch: a drop-in for scaled_dot_product_attention, and operators for its dispatcher.

    from octavo.torch import sdpa
    out = sdpa(q, k, v, is_causal=True)      # falls back to PyTorch, visibly, where it must
    octavo.torch.fallbacks()                 # why, and how often

    out = octavo.torch.attention(q, k, v, causal=True)     # under torch.compile too, no graph break

Plain eager calls go straight to the library: PyTorch's dispatcher would cost them several
microseconds. Whenever something has to see the call (torch.compile, make_fx, torch.jit.trace, vmap
and the other transforms of torch.func, autocast, a profiler, any mode) it takes the operators
octavo::attention and octavo::attention_lse; route_of() in src/torch_route.cc decides.
"""

from __future__ import annotations

import collections
import warnings

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

import octavo
from octavo import _octavo
from octavo._octavo import _plain_sdpa

__all__ = ["FallbackWarning", "attention", "fallbacks", "reset_fallbacks", "sdpa"]

# ----------------------------------------------------------------------------------- the operators

# Tensors come by position: PyTorch has vmap rules for those alone. The names are octavo.attention's.
_PARAMETERS = (
    "(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_kv=None, *, "
    "str causal='none', int[2]? window=None, float? scale=None, str precision='native', "
    "str layout='bhsd', ScalarType? out_dtype=None, SymInt? max_seqlen_q=None, "
    "SymInt? max_seqlen_kv=None, bool batch_invariant=False, bool overlap_launch=False, "
    "float? max_error=None)"
)
_LIBRARY = torch.library.Library("octavo", "DEF")
# The output's memory order is that of q, whatever its strides. Without the second tag Inductor asks
# for the very strides of eager code, and writes every default of the schema into each call.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
for _name, _returns in (("attention", "Tensor"), ("attention_lse", "(Tensor, Tensor)")):
    _LIBRARY.define(f"{_name}{_PARAMETERS} -> {_returns}", tags=_TAGS)
_OPERATORS = {False: torch.ops.octavo.attention.default, True: torch.ops.octavo.attention_lse.default}


def _fake(q, k, v, cu_seqlens_q=None, cu_seqlens_kv=None, *, out_dtype=None, **options):
    return torch.empty_like(q, dtype=out_dtype or q.dtype)


def _fake_lse(q, k, v, cu_seqlens_q=None, cu_seqlens_kv=None, *, layout="bhsd", **options):
    if cu_seqlens_q is not None:
        tokens, heads, _ = q.shape
        shape = (heads, tokens)
    elif layout == "bshd":
        batch, rows, heads, _ = q.shape
        shape = (batch, heads, rows)
    else:
        shape = q.shape[:3]
    return _fake(q, k, v, **options), q.new_empty(shape, dtype=torch.float32)


def _below_autograd(lse, q, k, v, cu_seqlens_q=None, cu_seqlens_kv=None, **options):
    """The operator for what comes after Autograd; its kernel there has refused derivatives."""
    with torch._C._AutoDispatchBelowAutograd():
        return _OPERATORS[lse](q, k, v, cu_seqlens_q, cu_seqlens_kv, **options)


def _has_tangent(tensor):
    return forward_ad.unpack_dual(tensor).tangent is not None


_CAST = (torch.float32, torch.float16, torch.bfloat16)


def _autocast_dtype(tensor):
    """The dtype that scaled_dot_product_attention would take the tensor in."""
    kind = tensor.device.type
    if tensor.dtype in _CAST and kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return tensor.dtype


def _autocast(tensor):
    return tensor.to(_autocast_dtype(tensor)) if isinstance(tensor, torch.Tensor) else tensor


_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA)


def _autocast_kernel(operator):
    def kernel(q, k, v, *packed, **options):
        q, k, v = (_autocast(x) for x in (q, k, v))
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return operator(q, k, v, *packed, **options)

    return kernel


def _fold(tensor, dim, size):
    """The vmapped dimension as a part of the batch; shared memory where a tensor is not vmapped."""
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    tensor = tensor.flatten(0, 1)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _vmap_rule(operator):
    def rule(info, in_dims, q, k, v, cu_seqlens_q=None, cu_seqlens_kv=None, **options):
        if cu_seqlens_q is not None or cu_seqlens_kv is not None:
            raise NotImplementedError("cu_seqlens_q is given under vmap; supported: None there, as a "
                                      "varlen batch has no dimension that vmap's could join.")
        size = info.batch_size
        folded = (_fold(x, dim, size) for x, dim in zip((q, k, v), in_dims))
        results = operator(*folded, **options)
        if isinstance(results, torch.Tensor):
            return results.unflatten(0, (size, results.shape[0] // size)), 0
        return tuple(x.unflatten(0, (size, x.shape[0] // size)) for x in results), (0, 0)

    return rule


for _name, _operator, _kernel, _autograd_kernel, _meta in (
        ("attention", _OPERATORS[False], _octavo._kernel, _octavo._autograd_kernel, _fake),
        ("attention_lse", _OPERATORS[True], _octavo._kernel_lse, _octavo._autograd_kernel_lse,
         _fake_lse)):
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _kernel, _key)
        _LIBRARY.impl(_name, _autocast_kernel(_operator), "Autocast" + _key)
    _LIBRARY.impl(_name, _autograd_kernel, "Autograd")
    torch.library.register_fake(f"octavo::{_name}", _meta, lib=_LIBRARY)
    torch.library.register_vmap(f"octavo::{_name}", _vmap_rule(_operator), lib=_LIBRARY)

# ------------------------------------------------------------------------------ calls of operators

_GRADIENT = {name: _octavo._gradient_sentence(name) for name in "qkv"}
_TRACED = "traced code (torch.compile, make_fx, torch.jit.trace, torch.func, a dispatch mode)"


def _lacking(q, k, v, quantization, stream, out_scale, return_amax):
    """The sentence for the first argument that the operators do not have; None if there is none."""
    for name, value in (("quantization", quantization), ("stream", stream), ("out_scale", out_scale),
                        ("return_amax", return_amax or None)):
        if value is not None:
            return f"{name} is given; supported: None in {_TRACED}."
    for name, value in (("q", q), ("k", k), ("v", v)):
        if not isinstance(value, torch.Tensor):
            return f"{name} is no tensor; supported: tensors in {_TRACED}."
    return None


def _alignment(causal, q, k, layout, cu_seqlens_q, cu_seqlens_kv):
    """`causal` as the operators take it."""
    if isinstance(causal, str):
        return causal
    if causal is None or causal is False:
        return "none"
    if causal is not True:
        raise TypeError(f"causal is {causal!r}; supported: False, True, 'top_left', 'bottom_right'.")
    rows = 1 if layout == "bshd" else -2
    if cu_seqlens_q is not cu_seqlens_kv or (cu_seqlens_q is None
                                             and q.shape[rows] != k.shape[rows]):
        raise ValueError("causal is True with rows of q and k that are not as many; supported: "
                         "'top_left' or 'bottom_right' there.")
    return "top_left"


def _traced(q, k, v, *, causal=False, window=None, scale=None, precision=None, out=None,
            return_lse=False, layout="bhsd", out_dtype=None, cu_seqlens_q=None, cu_seqlens_kv=None,
            max_seqlen_q=None, max_seqlen_kv=None, quantization=None, batch_invariant=False,
            overlap_launch=False, stream=None, max_error=None, out_scale=None, return_amax=False):
    lacking = _lacking(q, k, v, quantization, stream, out_scale, return_amax)
    if lacking is not None:
        raise TypeError(lacking)
    if torch.is_grad_enabled():  # so that compiled code says so while it is traced
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if tensor.requires_grad:
                raise NotImplementedError(_GRADIENT[name])
    alignment = _alignment(causal, q, k, layout, cu_seqlens_q, cu_seqlens_kv)
    # Each argument that is passed costs a compiled call part of a microsecond, defaults too.
    given = {}
    if alignment != "none":
        given["causal"] = alignment
    if window is not None:
        given["window"] = [-1 if side is None else side for side in window]
    if layout is not None and layout != "bhsd":
        given["layout"] = layout
    if out is not None and out_dtype is None and out.dtype != q.dtype:
        out_dtype = out.dtype
    for name, value in (("scale", scale), ("precision", precision), ("out_dtype", out_dtype),
                        ("max_seqlen_q", max_seqlen_q), ("max_seqlen_kv", max_seqlen_kv),
                        ("batch_invariant", batch_invariant or None),
                        ("overlap_launch", overlap_launch or None), ("max_error", max_error)):
        if value is not None:
            given[name] = value
    packed = () if cu_seqlens_q is None and cu_seqlens_kv is None else (cu_seqlens_q, cu_seqlens_kv)
    operator = torch.ops.octavo.attention_lse if return_lse else torch.ops.octavo.attention
    made = operator(q, k, v, *packed, **given)
    if out is None:
        return made
    if out.shape != q.shape:
        raise ValueError(f"out.shape is {tuple(out.shape)}; supported: {tuple(q.shape)} (that of q).")
    return (out.copy_(made[0]), made[1]) if return_lse else out.copy_(made)


def _by_operator(transformed, q, k, v, **options):
    """An eager call that PyTorch has to see. `transformed`: the short path would be wrong."""
    out = options.get("out")
    names = ("quantization", "stream", "out_scale", "return_amax")
    lacking = _lacking(q, k, v, *(options.get(name) for name in names))
    if out is not None and not isinstance(out, torch.Tensor):
        lacking = lacking or f"out is no tensor; supported: tensors in {_TRACED}."
    if transformed and lacking is not None:
        raise TypeError(lacking)
    # As with PyTorch's own functions, autocast leaves calls with out= alone.
    if transformed or (lacking is None and out is None):
        if out is None:
            return _traced(q, k, v, **options)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return _traced(q, k, v, **options)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor):
            continue
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise NotImplementedError(_GRADIENT[name])
        if _has_tangent(tensor):
            raise NotImplementedError(_octavo._tangent_sentence(name))
    if out is None:
        q, k, v = (_autocast(x) for x in (q, k, v))
    with torch.autograd.profiler.record_function("octavo::attention"):
        return _octavo._run(q, k, v, **options)


def attention(q, k, v, **options):
    """octavo.attention for tensors, traceable by torch.compile.

    The same parameters; in traced code without quantization, stream, out_scale, return_amax and
    octavo.Quantized.
    """
    if torch.compiler.is_compiling() and torch.is_grad_enabled():
        # octavo.attention refuses as well, but Dynamo makes an exception of its own of that.
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if tensor.requires_grad:
                raise NotImplementedError(_GRADIENT[name])
    return octavo.attention(q, k, v, **options)


# Dynamo puts these calls into its graph as they are, and runs them for fake tensors. Were it to look
# into them, it would guard on each name and default that it reads there, before every compiled call:
# a hundred guards took as long as the call itself.
torch.compiler.allow_in_graph(octavo.attention)

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


_TYPES = {"cpu": _CAST, "meta": _CAST, "cuda": (torch.float16, torch.bfloat16)}
_MOST_COLUMNS_ON_CUDA = 256


def _why_never(q, k, v, attn_mask, dropout_p):
    """The reason for a fallback whatever the tensors are, one of three; None if there is none."""
    if attn_mask is not None:
        return "attn_mask is given"
    if dropout_p > 0:
        return "dropout_p is not 0"
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return "a gradient is wanted, and there is no backward pass"
    return None


def _why_not(q, k, v, enable_gqa):
    """The reason for a fallback by types and shapes, one of a fixed few; None if there is none."""
    kind, dtype = q.device.type, _autocast_dtype(q)
    if kind not in _TYPES or k.device != q.device or v.device != q.device:
        return "tensors are not on one CPU or CUDA device"
    if dtype not in _TYPES[kind] or _autocast_dtype(k) != dtype or _autocast_dtype(v) != dtype:
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


def _operator_sdpa(query, key, value, is_causal, scale):
    given = {"causal": "top_left"} if is_causal else {}
    if scale is not None:
        given["scale"] = scale
    return torch.ops.octavo.attention(query, key, value, **given)


@torch.compiler.allow_in_graph  # as octavo.attention, above
def _sdpa_in_graph(query, key, value, is_causal, scale, enable_gqa):
    reason = _why_not(query, key, value, enable_gqa)
    if reason is None:
        return _operator_sdpa(query, key, value, is_causal, scale)
    if isinstance(query, FakeTensor):  # Dynamo's run; others follow for the same call
        count_fallback(reason)
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale,
                                          enable_gqa=enable_gqa)


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
         enable_gqa=False):
    """torch.nn.functional.scaled_dot_product_attention by Octavo.

    The same parameters and the same results within rounding. What Octavo does not serve (a mask
    tensor, dropout, a gradient, odd types and shapes) goes to PyTorch: fallbacks() counts it, and
    the first of each reason is a FallbackWarning.
    """
    if torch.compiler.is_compiling():
        reason = _why_never(query, key, value, attn_mask, dropout_p)
        if reason is None:
            return _sdpa_in_graph(query, key, value, is_causal, scale, enable_gqa)
    else:
        if attn_mask is None and not dropout_p:
            out = _plain_sdpa(query, key, value, is_causal, scale, enable_gqa)
            if out is not None:
                return out
        reason = (_why_never(query, key, value, attn_mask, dropout_p)
                  or _why_not(query, key, value, enable_gqa))
        if reason is None:
            try:
                return _operator_sdpa(query, key, value, is_causal, scale)
            # An old GPU, a kernel that is not there, a derivative that only a transform of
            # torch.func knows of; an argument that PyTorch may have a sentence for.
            except (NotImplementedError, TypeError, ValueError) as refused:
                reason = str(refused)
    count_fallback(reason)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask,
                                          dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                                          enable_gqa=enable_gqa)
