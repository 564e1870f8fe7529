# SPDX-License-Identifier: Apache-2.0
"""Octavo in PyTorch: a replacement for scaled_dot_product_attention, and operators.

    from octavo.torch import sdpa
    out = sdpa(q, k, v, is_causal=True)      # falls back to PyTorch with a warning
    octavo.torch.fallbacks()                 # the reasons, and how often

    out = octavo.torch.attention(q, k, v, causal=True)     # under torch.compile too, no graph break

Plain eager calls go directly to the library, because PyTorch's dispatcher would cost them several
microseconds. If PyTorch has to observe the call (torch.compile, make_fx, torch.jit.trace, vmap and
the other transforms of torch.func, autocast, a profiler, any mode), or a gradient is needed, it goes
through the operators octavo::attention and octavo::attention_lse; route_of() in src/torch_route.cc
decides. Their gradients are computed by octavo::attention_backward.
"""

from __future__ import annotations

import collections
import functools
import warnings

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

import octavo
from octavo import _octavo
from octavo._octavo import _plain_sdpa

__all__ = ["FallbackWarning", "attention", "fallbacks", "reset_fallbacks", "sdpa"]

torch.serialization.add_safe_globals([octavo.Quantized])  # torch.load() reads it

# ----------------------------------------------------------------------------------- the operators

# Tensors are positional, because PyTorch's vmap rules support only those. The names are those of
# octavo.attention and, for a block mask, those of octavo.BlockMask, with its block_size.
_BLOCK_MASK_TENSORS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices",
                       "bit_indices", "bits")
_OPTIONAL_TENSORS = ("cu_seqlens_q", "cu_seqlens_kv", "seqlens_q", "seqlens_kv", "leftpad_q",
                     "leftpad_kv", "bias", "mask", "alibi_slopes", "sinks", "page_table", *_BLOCK_MASK_TENSORS)
# There is no backward pass over the pages of a cache.
_BACKWARD_TENSORS = tuple(x for x in _OPTIONAL_TENSORS if x != "page_table")
_PARAMETERS = (
    "(Tensor q, Tensor k, Tensor v, " + ", ".join(f"Tensor? {x}=None" for x in _OPTIONAL_TENSORS) + ", *, "
    "str causal='none', int[2]? window=None, float? scale=None, str precision='native', "
    "str layout='bhsd', ScalarType? out_dtype=None, SymInt? max_seqlen_q=None, "
    "SymInt? max_seqlen_kv=None, bool batch_invariant=False, bool overlap_launch=False, "
    "float? max_error=None, float? softcap=None, SymInt sm_margin=0, int block_size=0)"
)
_BACKWARD_PARAMETERS = (
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    + ", ".join(f"Tensor? {x}=None" for x in _BACKWARD_TENSORS) + ", *, "
    "str causal='none', int[2]? window=None, float? scale=None, "
    "str precision='native', str layout='bhsd', SymInt? max_seqlen_q=None, "
    "SymInt? max_seqlen_kv=None, bool batch_invariant=False, float? softcap=None, int block_size=0"
)
_LIBRARY = torch.library.Library("octavo", "DEF")
# The output has the memory order of q, whatever its strides. Without the second tag Inductor requires
# the exact strides of eager code, and writes every default of the schema into each call.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
for _name, _returns in (("attention", "Tensor"), ("attention_lse", "(Tensor, Tensor)")):
    _LIBRARY.define(f"{_name}{_PARAMETERS} -> {_returns}", tags=_TAGS)
_LIBRARY.define(f"attention_backward{_BACKWARD_PARAMETERS}) -> (Tensor, Tensor, Tensor)", tags=_TAGS)
# The same with the gradients of bias and of sinks; without elements where they are not requested.
_LIBRARY.define(f"attention_backward_modifiers{_BACKWARD_PARAMETERS}, bool return_dbias=False, "
                "bool return_dsinks=False) -> (Tensor, Tensor, Tensor, Tensor, Tensor)", tags=_TAGS)
_OPERATORS = {False: torch.ops.octavo.attention.default, True: torch.ops.octavo.attention_lse.default}


def _fake(q, k, v, *tensors, out_dtype=None, **options):
    dtype, columns = out_dtype or q.dtype, v.shape[-1]
    if columns == q.shape[-1]:
        return torch.empty_like(q, dtype=dtype)
    # In q's memory order, as make_like() of the extension makes it.
    order = [*sorted(range(q.dim() - 1), key=lambda i: -q.stride(i)), q.dim() - 1]
    shape = (*q.shape[:-1], columns)
    made = q.new_empty([shape[i] for i in order], dtype=dtype)
    return made.permute([order.index(i) for i in range(q.dim())])


def _fake_lse(q, k, v, cu_seqlens_q=None, *tensors, layout="bhsd", **options):
    if cu_seqlens_q is not None:
        tokens, heads, _ = q.shape
        shape = (heads, tokens)
    elif layout == "bshd":
        batch, rows, heads, _ = q.shape
        shape = (batch, heads, rows)
    else:
        shape = q.shape[:3]
    return _fake(q, k, v, **options), q.new_empty(shape, dtype=torch.float32)


def _below_autograd(lse, q, k, v, **options):
    """Redispatches below Autograd, for a call that needs no derivative."""
    with torch._C._AutoDispatchBelowAutograd():
        return _OPERATORS[lse](q, k, v, **options)


def _has_tangent(tensor):
    return forward_ad.unpack_dual(tensor).tangent is not None


_CAST = (torch.float32, torch.float16, torch.bfloat16)


def _autocast_dtype(tensor):
    """The dtype to which autocast casts the tensor for scaled_dot_product_attention."""
    kind = tensor.device.type
    if tensor.dtype in _CAST and kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return tensor.dtype


def _autocast(tensor):
    return tensor.to(_autocast_dtype(tensor)) if isinstance(tensor, torch.Tensor) else tensor


_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA)


def _autocast_kernel(operator):
    def kernel(q, k, v, *tensors, **options):
        q, k, v = (_autocast(x) for x in (q, k, v))
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return operator(q, k, v, *tensors, **options)

    return kernel


def _merge_into_batch(tensor, dim, size):
    """Merges the vmapped dimension into the batch; expands a tensor that is not vmapped."""
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    tensor = tensor.flatten(0, 1)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


# The dimensions of the optional tensors; all but sinks may begin with the batch.
_DIMENSIONS = {"seqlens_q": 1, "seqlens_kv": 1, "leftpad_q": 1, "leftpad_kv": 1, "bias": 4, "mask": 4,
               "alibi_slopes": 2}


def _merge_optional(name, tensor, dim, size, batch):
    """_merge_into_batch() for an optional tensor, which may lack the batch dimension or broadcast."""
    if name == "sinks":
        if dim is not None:
            raise NotImplementedError("sinks is mapped by vmap; supported: the same sinks for all calls.")
        return tensor
    dimensions = _DIMENSIONS[name]
    if dim is None:
        # The merged batch has other entries, but broadcasting still holds for all of them.
        if tensor.dim() < dimensions or (dimensions == 4 and tensor.shape[0] == 1):
            return tensor
        tensor = tensor.expand(size, *tensor.shape)
    else:
        tensor = tensor.movedim(dim, 0)
        missing = dimensions + 1 - tensor.dim()
        tensor = tensor.reshape(size, *(1,) * missing, *tensor.shape[1:])
        if tensor.shape[1] == 1:
            tensor = tensor.expand(size, batch, *tensor.shape[2:])
    tensor = tensor.flatten(0, 1)
    return tensor if dimensions == 4 and tensor.stride(-1) == 1 else tensor.contiguous()


def _vmap_rule(operator):
    def rule(info, in_dims, q, k, v, *tensors, **options):
        size = info.batch_size
        q, k, v = (_merge_into_batch(x, dim, size) for x, dim in zip((q, k, v), in_dims))
        for name, tensor, dim in zip(_OPTIONAL_TENSORS, tensors, in_dims[3:]):
            if tensor is None:
                continue
            if name in _BLOCK_MASK_TENSORS:
                if dim is not None or (name != "bits" and tensor.shape[0] != 1):
                    raise NotImplementedError("block_mask has entries of a batch or is mapped by vmap; "
                                              "supported: the same block mask for all calls, with batch 1.")
                options[name] = tensor
                continue
            if name not in _DIMENSIONS and name != "sinks":
                what = "a paged cache" if name == "page_table" else "a varlen batch"
                raise NotImplementedError(f"{name} is given under vmap; supported: None there, as {what} has no "
                                          "batch dimension that vmap's could be merged into.")
            options[name] = _merge_optional(name, tensor, dim, size, q.shape[0] // size)
        results = operator(q, k, v, **options)
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

# -------------------------------------------------------------------------------------- derivatives

_GRADIENT = ("{} is given for tensors that require grad; supported: None there, or calls under "
             "torch.no_grad().")
_SLOPES = ("alibi_slopes is a tensor that requires grad; supported: slopes without a gradient "
           "(alibi_slopes.detach()).")
# The options of the forward pass that determine its gradients.
_SHARED_OPTIONS = ("causal", "window", "scale", "precision", "layout", "max_seqlen_q",
                   "max_seqlen_kv", "batch_invariant", "softcap", "block_size")


@functools.lru_cache(maxsize=1024)
def _cached_refusal(device, dtypes, heads_q, heads_kv, head_dim, head_dim_v, precision, varlen,
                    block_size=0):
    return _octavo._backward_refusal(device, list(dtypes), heads_q, heads_kv, head_dim, head_dim_v,
                                     precision, varlen, block_size)


def _backward_refusal(q, k, v, cu_seqlens_q=None, *, layout="bhsd", precision="native",
                      out_dtype=None, dtypes=None, alibi_slopes=None, page_table=None, block_size=0,
                      **options):
    """The sentence that says why there is no backward pass for this call, or None."""
    if _requires_grad(alibi_slopes):
        return _SLOPES
    if page_table is not None:
        return _GRADIENT.format("page_table")
    if torch._C._functorch.maybe_current_level() is not None:
        return ("a gradient is taken by a transform of torch.func; supported: backward() and "
                "torch.autograd.grad().")
    dtypes = dtypes or (q.dtype, k.dtype, v.dtype, out_dtype or q.dtype)
    dtypes = tuple(str(x).removeprefix("torch.") for x in dtypes)
    varlen = cu_seqlens_q is not None
    heads = 1 if varlen else 2 if layout == "bshd" else 1
    if q.dim() != (3 if varlen else 4) or k.dim() != q.dim():
        return None  # the operator itself says what is wrong
    device = "cpu" if q.device.type in ("cpu", "meta") else str(q.device)
    try:
        return _cached_refusal(device, dtypes, int(q.shape[heads]), int(k.shape[heads]),
                               int(q.shape[-1]), int(v.shape[-1]), precision or "native", varlen,
                               block_size)
    except ValueError:
        return None


class _Attention(torch.autograd.Function):
    """Attention with its gradients of q, k, v, bias and sinks. lse is not differentiable."""

    @staticmethod
    def forward(ctx, options, q, k, v, *tensors):
        out, lse = _below_autograd(True, q, k, v, **dict(zip(_BACKWARD_TENSORS, tensors)), **options)
        ctx.save_for_backward(q, k, v, out, lse, *tensors)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        ctx.options = {name: options[name] for name in _SHARED_OPTIONS if name in options}
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        others = dict.fromkeys(_BACKWARD_TENSORS)
        if dout is None:
            return (None,) * 4 + tuple(others.values())
        needed = dict(zip(_BACKWARD_TENSORS, ctx.needs_input_grad[4:]))
        if not needed["bias"] and not needed["sinks"]:
            gradients = torch.ops.octavo.attention_backward(dout, *ctx.saved_tensors, **ctx.options)
        else:
            *gradients, others["bias"], others["sinks"] = torch.ops.octavo.attention_backward_modifiers(
                dout, *ctx.saved_tensors, **ctx.options, return_dbias=needed["bias"],
                return_dsinks=needed["sinks"])
        return (None, *gradients, *(others[x] if needed[x] else None for x in _BACKWARD_TENSORS))


class _Gradients(torch.autograd.Function):
    """The gradients of attention, which have no derivative."""

    @staticmethod
    def forward(ctx, operator, options, *tensors):
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*tensors, **options)

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("A second derivative of octavo's attention is needed; supported: "
                                  "first derivatives.")


def _differentiable(lse, q, k, v, return_lse=False, **options):
    """The Autograd kernel of the operators, for tensors that require grad."""
    tensors = {name: options.pop(name, None) for name in _BACKWARD_TENSORS}
    refusal = _backward_refusal(q, k, v, tensors["cu_seqlens_q"],
                                alibi_slopes=tensors["alibi_slopes"], **options)
    if refusal is not None:
        raise NotImplementedError(refusal)
    results = _Attention.apply(options, q, k, v, *tensors.values())
    return results if lse else results[0]


def _requires_grad(tensor):
    return torch.is_grad_enabled() and isinstance(tensor, torch.Tensor) and tensor.requires_grad


def _backward_autograd(operator):
    def kernel(*tensors, **options):
        if any(_requires_grad(x) for x in tensors):
            return _Gradients.apply(operator, options, *tensors)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*tensors, **options)

    return kernel


def _contiguous_rows(tensor):
    return tensor if tensor.shape[-1] == 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _backward_kernel(dout, q, k, v, out, lse, *tensors, block_size=0, **options):
    # The gradient of a sum is an expanded number, and others may be transposed.
    if dout.stride(-1) != 1:
        dout = dout.contiguous()
    given = {name: tensor for name, tensor in zip(_BACKWARD_TENSORS, tensors) if tensor is not None}
    lists = {name: given.pop(name) for name in _BLOCK_MASK_TENSORS if name in given}
    if block_size != 0 or lists:
        given["block_mask"] = octavo.BlockMask(block_size, **lists)
    return _octavo._run_backward(dout, q, k, v, out, lse, **given, **options)


def _whole_rows(bias, q, k, layout):
    """The bias with rows and columns of its own for all queries and keys, as a GPU needs it."""
    rows = 1 if layout == "bshd" else 2
    return _contiguous_rows(bias.expand(*bias.shape[:-2], q.shape[rows], k.shape[rows]))


def _modifiers_backward_kernel(dout, q, k, v, out, lse, *tensors, return_dbias=False,
                               return_dsinks=False, layout="bhsd", **options):
    tensors = dict(zip(_BACKWARD_TENSORS, tensors))
    bias = tensors.get("bias")
    if return_dbias:
        whole = bias if bias.dim() >= 2 else bias.reshape((1,) * (2 - bias.dim()) + bias.shape)
        tensors["bias"] = _whole_rows(whole, q, k, layout) if q.is_cuda else _contiguous_rows(whole)
    *gradients, = _backward_kernel(dout, q, k, v, out, lse, *tensors.values(), layout=layout,
                                   return_dbias=return_dbias, return_dsinks=return_dsinks, **options)
    dsinks = gradients.pop() if return_dsinks else q.new_empty(0)
    dbias = gradients.pop().sum_to_size(bias.shape) if return_dbias else q.new_empty(0)
    return (*gradients, dbias, dsinks)


def _fake_backward(dout, q, k, v, out, lse, *tensors, **options):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _fake_modifiers_backward(dout, q, k, v, out, lse, *tensors, return_dbias=False,
                             return_dsinks=False, **options):
    tensors = dict(zip(_BACKWARD_TENSORS, tensors))
    dbias = tensors["bias"].new_empty(tensors["bias"].shape) if return_dbias else q.new_empty(0)
    dsinks = torch.empty_like(tensors["sinks"]) if return_dsinks else q.new_empty(0)
    return *_fake_backward(dout, q, k, v, out, lse), dbias, dsinks


for _name, _kernel, _meta in (
        ("attention_backward", _backward_kernel, _fake_backward),
        ("attention_backward_modifiers", _modifiers_backward_kernel, _fake_modifiers_backward)):
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _kernel, _key)
    _LIBRARY.impl(_name, _backward_autograd(getattr(torch.ops.octavo, _name)), "Autograd")
    torch.library.register_fake(f"octavo::{_name}", _meta, lib=_LIBRARY)


def _backward_by_operator(dout, q, k, v, *, out, lse, causal=False, stream=None, return_dbias=False,
                          return_dsinks=False, **options):
    """octavo.attention_backward where PyTorch has to observe the call."""
    if stream is not None:
        raise TypeError(f"stream is given; supported: None in {_TRACED}.")
    if options.get("window") is not None:
        options["window"] = [-1 if side is None else side for side in options["window"]]
    options |= _of_block_mask(options.pop("block_mask", None))
    tensors = {name: options.pop(name, None) for name in _BACKWARD_TENSORS}
    padding = [tensors[x] for x in ("seqlens_q", "seqlens_kv", "leftpad_q", "leftpad_kv")]
    options["causal"] = _alignment(causal, q, k, options.get("layout"), tensors["cu_seqlens_q"],
                                   tensors["cu_seqlens_kv"], padding)
    inputs = (dout, q, k, v, out, lse, *tensors.values())
    if not return_dbias and not return_dsinks:
        return torch.ops.octavo.attention_backward(*inputs, **options)
    *gradients, dbias, dsinks = torch.ops.octavo.attention_backward_modifiers(
        *inputs, return_dbias=return_dbias, return_dsinks=return_dsinks, **options)
    return (*gradients, *((dbias,) if return_dbias else ()), *((dsinks,) if return_dsinks else ()))


# ------------------------------------------------------------------------------ calls of operators

_TRACED = "traced code (torch.compile, make_fx, torch.jit.trace, torch.func, a dispatch mode)"


def _of_block_mask(mask):
    """The arguments of an operator that stand for an octavo.BlockMask, or none."""
    if mask is None:
        return {}
    if not isinstance(mask, octavo.BlockMask):
        raise TypeError(f"block_mask is of type {type(mask).__name__}; supported: octavo.BlockMask, which "
                        "from_flex() makes of a BlockMask of FlexAttention.")
    fields = {name: getattr(mask, name) for name in _BLOCK_MASK_TENSORS}
    return {"block_size": mask.block_size,
            **{name: x if isinstance(x, torch.Tensor) else torch.as_tensor(x)
               for name, x in fields.items() if x is not None}}


def _unsupported_argument(q, k, v, quantization, stream, out_scale, return_amax, draft_tree):
    """The error for the first argument that the operators do not support, or None."""
    for name, value in (("quantization", quantization), ("stream", stream), ("out_scale", out_scale),
                        ("return_amax", return_amax or None), ("draft_tree", draft_tree)):
        if value is not None:
            return f"{name} is given; supported: None in {_TRACED}."
    for name, value in (("q", q), ("k", k), ("v", v)):
        if not isinstance(value, torch.Tensor):
            return f"{name} is no tensor; supported: tensors in {_TRACED}."
    return None


def _alignment(causal, q, k, layout, cu_seqlens_q, cu_seqlens_kv, padding=(None,) * 4):
    """Converts `causal` to the operators' string. `padding`: seqlens and leftpad, of q and of k and v."""
    if isinstance(causal, str):
        return causal
    if causal is None or causal is False:
        return "none"
    if causal is not True:
        raise TypeError(f"causal is {causal!r}; supported: False, True, 'top_left', 'bottom_right'.")
    rows = 1 if layout == "bshd" else -2
    if cu_seqlens_q is not cu_seqlens_kv or (cu_seqlens_q is None
                                             and q.shape[rows] != k.shape[rows]):
        raise ValueError("causal is True with different seqlen of q and k; supported: "
                         "'top_left' or 'bottom_right'.")
    if padding[0] is not padding[1] or padding[2] is not padding[3]:
        raise ValueError("causal is True with different padding of q and of k and v (other arrays of "
                         "lengths); supported: 'top_left' or 'bottom_right'.")
    return "top_left"


def _traced(q, k, v, *, causal=False, window=None, scale=None, precision=None, out=None,
            return_lse=False, layout="bhsd", out_dtype=None, cu_seqlens_q=None, cu_seqlens_kv=None,
            max_seqlen_q=None, max_seqlen_kv=None, quantization=None, batch_invariant=False,
            overlap_launch=False, stream=None, max_error=None, out_scale=None, return_amax=False,
            seqlens_q=None, seqlens_kv=None, leftpad_q=None, leftpad_kv=None, bias=None, mask=None,
            alibi_slopes=None, sinks=None, softcap=None, page_table=None, block_mask=None,
            draft_tree=None, sm_margin=0):
    unsupported = _unsupported_argument(q, k, v, quantization, stream, out_scale, return_amax, draft_tree)
    if unsupported is not None:
        raise TypeError(unsupported)
    if out is not None and any(_requires_grad(x) for x in (q, k, v, bias, sinks)):
        raise NotImplementedError(_GRADIENT.format("out"))
    if page_table is not None and causal is True:
        raise ValueError("causal is True with a page_table; supported: 'bottom_right', False.")
    alignment = _alignment(causal, q, k, layout, cu_seqlens_q, cu_seqlens_kv,
                           (seqlens_q, seqlens_kv, leftpad_q, leftpad_kv))
    # Pass only what differs from the defaults: each argument costs a compiled call part of a microsecond.
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
                        ("overlap_launch", overlap_launch or None), ("max_error", max_error),
                        ("softcap", softcap or None), ("sm_margin", sm_margin or None)):
        if value is not None:
            given[name] = value
    blocks = _of_block_mask(block_mask)
    if blocks:
        given["block_size"] = blocks["block_size"]
    tensors = [cu_seqlens_q, cu_seqlens_kv, seqlens_q, seqlens_kv, leftpad_q, leftpad_kv, bias, mask,
               alibi_slopes, sinks, page_table, *(blocks.get(name) for name in _BLOCK_MASK_TENSORS)]
    while tensors and tensors[-1] is None:
        tensors.pop()
    operator = torch.ops.octavo.attention_lse if return_lse else torch.ops.octavo.attention
    made = operator(q, k, v, *tensors, **given)
    if out is None:
        return made
    made_shape = (made[0] if return_lse else made).shape
    if out.shape != made_shape:
        raise ValueError(f"out.shape is {tuple(out.shape)}; supported: {tuple(made_shape)} "
                         "(that of q, with the columns of v).")
    return (out.copy_(made[0]), made[1]) if return_lse else out.copy_(made)


def _unsupported_gradient(q, k, v, options):
    """The error for an argument that the operators do not support, for tensors that require grad."""
    for name in ("out", "quantization", "stream", "out_scale", "return_amax", "draft_tree"):
        if options.get(name) is not None and options[name] is not False:
            return _GRADIENT.format(name)
    return "q, k or v is quantized beside tensors that require grad; supported: tensors of one dtype."


def _by_operator(transformed, q, k, v, **options):
    """An eager call that PyTorch has to observe. `transformed`: the direct path would be wrong."""
    out = options.get("out")
    names = ("quantization", "stream", "out_scale", "return_amax", "draft_tree")
    unsupported = _unsupported_argument(q, k, v, *(options.get(name) for name in names))
    if out is not None and not isinstance(out, torch.Tensor):
        unsupported = unsupported or f"out is no tensor; supported: tensors in {_TRACED}."
    if transformed and unsupported is not None:
        raise TypeError(unsupported)
    # As in PyTorch's own functions, autocast does not affect calls with out=.
    if transformed or (unsupported is None and out is None):
        if out is None:
            return _traced(q, k, v, **options)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return _traced(q, k, v, **options)
    differentiable = {"q": q, "k": k, "v": v}
    differentiable |= {name: options.get(name) for name in ("bias", "sinks", "alibi_slopes")}
    if any(_requires_grad(x) for x in differentiable.values()):
        raise NotImplementedError(_unsupported_gradient(q, k, v, options))
    for name, tensor in differentiable.items():
        if isinstance(tensor, torch.Tensor) and _has_tangent(tensor):
            raise NotImplementedError(_octavo._tangent_sentence(name))
    if out is None:
        q, k, v = (_autocast(x) for x in (q, k, v))
    with torch.autograd.profiler.record_function("octavo::attention"):
        return _octavo._run(q, k, v, **options)


def attention(q, k, v, **options):
    """octavo.attention for tensors, traceable by torch.compile.

    It has the same parameters. Traced code does not support quantization, stream, out_scale,
    return_amax and octavo.Quantized.
    """
    return octavo.attention(q, k, v, **options)


# Dynamo puts these calls into its graph without tracing into them, and runs them on fake tensors. If
# it traced into them, it would guard on each name and default that it reads there, before every
# compiled call: a hundred guards took as long as the call itself.
torch.compiler.allow_in_graph(octavo.attention)

# ------------------------------------------------------------------------------------------- sdpa


class FallbackWarning(UserWarning):
    """A call fell back to PyTorch's scaled_dot_product_attention; issued once per reason."""


_counts: collections.Counter[str] = collections.Counter()


def fallbacks() -> dict[str, int]:
    """The number of calls that fell back to PyTorch since the last reset, by reason.

    A compiled function is counted when it is traced, not when it runs.
    """
    return dict(_counts)


def reset_fallbacks() -> None:
    """Resets the counts, and warns about each reason again."""
    _counts.clear()


# Runs once per traced call, during tracing, and adds nothing to the graph.
@torch.compiler.assume_constant_result
def count_fallback(reason: str) -> None:
    """Counts a call that falls back to PyTorch, and warns if it is the first of its reason."""
    _counts[reason] += 1
    if _counts[reason] == 1:
        warnings.warn(f"octavo falls back to PyTorch's attention: {reason}", FallbackWarning,
                      stacklevel=3)


_TYPES = {"cpu": _CAST, "meta": _CAST, "cuda": (torch.float16, torch.bfloat16)}
_LARGEST_HEAD_DIM_ON_CUDA = 512


def _fallback_by_mask(q, k, attn_mask, is_causal):
    """The reason for a fallback because of a mask tensor, or None. PyTorch raises its own errors."""
    if not isinstance(attn_mask, torch.Tensor):
        return "attn_mask is no tensor"
    if is_causal:
        return "attn_mask is given together with is_causal"
    if attn_mask.device != q.device:
        return "tensors are not on one CPU or CUDA device"
    dtype = _autocast_dtype(attn_mask)
    if dtype not in (torch.bool, torch.float32, _autocast_dtype(q)):
        return f"dtypes are not supported on {q.device.type}"
    scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    shape = attn_mask.shape
    if len(shape) > 4 or any(x != 1 and x != s for x, s in zip(reversed(shape), reversed(scores))):
        return "attn_mask does not broadcast to (batch, heads, seqlen_q, seqlen_kv)"
    return None


def _fallback_by_gradient(q, k, v, attn_mask=None):
    """The reason for a fallback because there is no backward pass for these tensors, or None."""
    if not any(_requires_grad(x) for x in (q, k, v, attn_mask)):
        return None
    return _backward_refusal(q, k, v, dtypes=tuple(_autocast_dtype(x) for x in (q, k, v, q)))


def _fallback_by_tensors(q, k, v, enable_gqa):
    """The reason for a fallback because of types or shapes, or None."""
    kind, dtype = q.device.type, _autocast_dtype(q)
    if kind not in _TYPES or k.device != q.device or v.device != q.device:
        return "tensors are not on one CPU or CUDA device"
    if dtype not in _TYPES[kind] or _autocast_dtype(k) != dtype or _autocast_dtype(v) != dtype:
        return f"dtypes are not supported on {kind}"
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if len(q_shape) != 4 or len(k_shape) != 4 or len(v_shape) != 4 or k_shape[:3] != v_shape[:3]:
        return "shapes are not (batch, heads, seqlen, head_dim) with a value for each key"
    if q_shape[0] != k_shape[0] or q_shape[3] != k_shape[3]:
        return "batch or head_dim of query and key differ"
    if q_shape[1] != k_shape[1] and not (enable_gqa and q_shape[1] % k_shape[1] == 0):
        return "heads of query and key differ without enable_gqa"
    if kind == "cuda" and max(q_shape[3], v_shape[3]) > _LARGEST_HEAD_DIM_ON_CUDA:
        return f"head_dim is above {_LARGEST_HEAD_DIM_ON_CUDA} on cuda"
    if q.stride(3) != 1 or k.stride(3) != 1 or v.stride(3) != 1:
        return "the last dimension is not contiguous"
    return None


def _sdpa_fallback(q, k, v, attn_mask, is_causal, enable_gqa):
    """The reason for a fallback of sdpa() because of its tensors, or None."""
    reason = _fallback_by_tensors(q, k, v, enable_gqa)
    if reason is None and attn_mask is not None:
        reason = _fallback_by_mask(q, k, attn_mask, is_causal)
    return reason


def _operator_sdpa(query, key, value, attn_mask, is_causal, scale):
    given = {"causal": "top_left"} if is_causal else {}
    if scale is not None:
        given["scale"] = scale
    if attn_mask is not None:
        # The library reads masks along their rows; an expanded one (stride 0) is fine.
        if attn_mask.dim() > 0 and attn_mask.shape[-1] > 1 and attn_mask.stride(-1) > 1:
            attn_mask = attn_mask.contiguous()
        given["mask" if attn_mask.dtype == torch.bool else "bias"] = attn_mask
    return torch.ops.octavo.attention(query, key, value, **given)


@torch.compiler.allow_in_graph  # for the same reason as octavo.attention above
def _sdpa_in_graph(query, key, value, attn_mask, is_causal, scale, enable_gqa):
    reason = _sdpa_fallback(query, key, value, attn_mask, is_causal, enable_gqa)
    reason = reason or _fallback_by_gradient(query, key, value, attn_mask)
    if reason is None:
        return _operator_sdpa(query, key, value, attn_mask, is_causal, scale)
    if isinstance(query, FakeTensor):  # count only Dynamo's run; others follow for the same call
        count_fallback(reason)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal,
                                          scale=scale, enable_gqa=enable_gqa)


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
         enable_gqa=False):
    """Replaces torch.nn.functional.scaled_dot_product_attention.

    The parameters are the same, and so are the results within rounding. Calls that Octavo does not
    support (dropout, other types and shapes) fall back to PyTorch:
    fallbacks() counts them, and the first of each reason issues a FallbackWarning.
    """
    if dropout_p > 0:
        reason = "dropout_p is not 0"
    elif torch.compiler.is_compiling():
        return _sdpa_in_graph(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    else:
        out = _plain_sdpa(query, key, value, attn_mask, is_causal, scale, enable_gqa)
        if out is not None:
            return out
        reason = _sdpa_fallback(query, key, value, attn_mask, is_causal, enable_gqa)
        if reason is None and attn_mask is not None:
            reason = _fallback_by_gradient(query, key, value, attn_mask)
        if reason is None:
            try:
                return _operator_sdpa(query, key, value, attn_mask, is_causal, scale)
            # Causes: an old GPU, a missing kernel, a derivative that only a transform of torch.func
            # knows of, or a wrong argument, for which PyTorch may raise its own error.
            except (NotImplementedError, TypeError, ValueError) as refused:
                reason = str(refused)
    count_fallback(reason)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask,
                                          dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                                          enable_gqa=enable_gqa)
