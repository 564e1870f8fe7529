# SPDX-License-Identifier: Apache-2.0
"""Octavo in JAX: attention under jax.jit, jax.vmap and jax.grad, on CPUs and GPUs.

    out = octavo.jax.attention(q, k, v, causal=True)
    gradients = jax.grad(lambda q: octavo.jax.attention(q, k, v, causal=True).sum())(q)

A call is a custom call of XLA, whose handlers are in src/xla_call.cc. Arguments are checked when JAX
traces the call, by the checks of octavo.attention. Gradients are computed by attention_backward, a
second custom call. vmap merges its dimension into the batch; what has no batch to merge it into
(cu_seqlens, mapped sinks) runs one by one.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from . import _octavo

__all__ = ["attention"]

_OPTIONAL_ARRAYS = ("cu_seqlens_q", "cu_seqlens_kv", "seqlens_q", "seqlens_kv", "leftpad_q", "leftpad_kv",
                    "bias", "mask", "alibi_slopes", "sinks", "page_table")
# The options of the forward pass that determine its gradients.
_SHARED_OPTIONS = ("causal", "window", "scale", "precision", "layout", "max_seqlen_q", "max_seqlen_kv",
                   "softcap", "batch_invariant")


@dataclasses.dataclass(frozen=True)
class _Call:
    """What is known of a call when it is traced, beside the types of its operands."""

    names: tuple[str, ...]  # parameters of octavo.attention or attention_backward; one per operand
    same: tuple[str, ...]  # cu_seqlens, seqlens, leftpad: one array for q and for k and v
    options: tuple[tuple[str, Any], ...]

    def option(self, name: str) -> Any:
        return dict(self.options).get(name)

    def with_options(self, **options: Any) -> _Call:
        return dataclasses.replace(self, options=tuple({**dict(self.options), **options}.items()))

    @property
    def varlen(self) -> bool:
        return "cu_seqlens_q" in self.names


# ------------------------------------------------------------------------------------ the operators

_attention_p = Primitive("octavo_attention")
_backward_p = Primitive("octavo_attention_backward")
_TRACE = {} if not hasattr(_octavo, "_xla_handlers") else {
    _attention_p: _octavo._trace_attention, _backward_p: _octavo._trace_backward}


def _trace(primitive, call, operands, device=None):
    """The results of a call, with shape and dtype, and the attributes of its custom call. Raises the
    errors of octavo.attention; with a device, also that of what the device does not support."""
    arrays = {name: _octavo._TracedArray(x.shape, x.dtype.name) for name, x in zip(call.names, operands)}
    for name in call.same:
        arrays[f"{name}_kv"] = arrays[f"{name}_q"]
    return _TRACE[primitive](device, **arrays, **dict(call.options))


def _varying_axes(x):
    """The axes of jax.shard_map over which an array varies; older versions of JAX call them vma."""
    aval = jax.typeof(x)
    return getattr(getattr(aval, "mat", None), "varying", None) or getattr(aval, "vma", frozenset())


def _vary_alike(arrays):
    """Arrays that all vary over the axes of jax.shard_map over which any of them varies."""
    axes = frozenset().union(*map(_varying_axes, arrays))
    missing = [tuple(axes - _varying_axes(x)) for x in arrays]
    return [jax.lax.pcast(x, some, to="varying") if some else x for x, some in zip(arrays, missing)]


def _bind(primitive, call, operands):
    initial = []
    if call.varlen:  # tokens that belong to no sequence are not written
        results, _ = _trace(primitive, call, operands)
        initial = [jnp.full(x.shape, 0, x.dtype) for x in results]
        if primitive is _attention_p and len(initial) > 1:
            initial[1] = jnp.full_like(initial[1], -jnp.inf)
    return primitive.bind(*_vary_alike([*operands, *initial]), call=call)


def _abstract(primitive, *operands, call):
    results, _ = _trace(primitive, call, operands)
    modifiers = [name for name in ("bias", "sinks") if call.option(f"return_d{name}")]
    like = ("q", "q") if primitive is _attention_p else ("q", "k", "v", *modifiers)
    # An update keeps what the type of an operand says about devices.
    return [operands[call.names.index(name)].update(shape=tuple(x.shape), dtype=jnp.dtype(x.dtype), weak_type=False)
            for name, x in zip(like, results)]


@functools.cache
def _has_gpu():
    return any(x.available and x.name.startswith("cuda") for x in _octavo.devices())


def _lower(primitive, platform, context, *operands, call):
    # A program for a GPU may be compiled on a machine without one.
    device = "cpu" if platform == "cpu" else "cuda:0" if _has_gpu() else None
    results, attributes = _trace(primitive, call, context.avals_in, device)
    initial = {len(call.names) + i: i for i in range(len(results))} if call.varlen else {}
    numbers = {int: numpy.int64, float: numpy.float64}
    attributes = {name: numbers.get(type(x), str)(x) for name, x in attributes.items()}
    lower = jax.ffi.ffi_lowering(primitive.name, operand_output_aliases=initial)
    return lower(context, *operands, operands=" ".join(call.names), **attributes)


def _run(primitive, *operands, call):
    """Runs an operator outside of any program, as under jax.disable_jit()."""
    with jax.disable_jit(False):
        return jax.jit(functools.partial(primitive.bind, call=call))(*operands)


# --------------------------------------------------------------------------------------------- vmap

# The dimensions of the operands that may begin with the batch.
_DIMENSIONS = {"q": 4, "k": 4, "v": 4, "out": 4, "dout": 4, "lse": 3, "seqlens_q": 1, "seqlens_kv": 1,
               "leftpad_q": 1, "leftpad_kv": 1, "page_table": 2, "bias": 4, "mask": 4, "alibi_slopes": 2}
_BROADCAST = ("bias", "mask", "alibi_slopes")


def _can_merge(call, mapped, shapes, batch):
    """Whether the mapped dimension can be merged into the batch. `shapes` are without it."""
    if call.varlen or "sinks" in mapped or call.option("return_dsinks"):
        return False
    if "page_table" in call.names and mapped & {"k", "v"}:
        return False
    # The gradient of a bias that broadcasts over the batch would be summed over all of it.
    return not call.option("return_dbias") or batch == 1 or (
        len(shapes["bias"]) == 4 and shapes["bias"][0] == batch)


def _merge(call, name, x, dim, size, batch, behind):
    """x with the mapped dimension merged into the batch: behind its other entries, or before them."""
    holds_for_all = name == "sinks" or ("page_table" in call.names and name in ("k", "v"))
    expands = name in _BROADCAST and not (name == "bias" and call.option("return_dbias"))
    if dim is None:
        if holds_for_all or (expands and (x.ndim < _DIMENSIONS[name] or x.shape[0] == 1)):
            return x
        x, dim = jnp.broadcast_to(x, (size, *x.shape)), 0
    x = jnp.moveaxis(x, dim, 0)
    missing = _DIMENSIONS[name] + 1 - x.ndim
    x = x.reshape(size, *(1,) * missing, *x.shape[1:])
    if x.shape[1] != batch:  # 1, of an operand that broadcasts
        x = jnp.broadcast_to(x, (size, batch, *x.shape[2:]))
    return (x.swapaxes(0, 1) if behind else x).reshape(size * batch, *x.shape[2:])


def _one_by_one(primitive, call, operands, dims):
    def run(mapped):
        mapped = iter(mapped)
        return primitive.bind(*(x if dim is None else next(mapped) for x, dim in zip(operands, dims)),
                              call=call)

    mapped = [jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims) if dim is not None]
    results = jax.lax.map(run, mapped)
    return results, [0] * len(results)


def _batch(primitive, operands, dims, *, call):
    size = next(x.shape[dim] for x, dim in zip(operands, dims) if dim is not None)
    shapes = {name: x.shape if dim is None else x.shape[:dim] + x.shape[dim + 1:]
              for name, x, dim in zip(call.names, operands, dims)}
    batch = shapes["q"][0]
    mapped = {name for name, dim in zip(call.names, dims) if dim is not None}
    if not _can_merge(call, mapped, shapes, batch):
        return _one_by_one(primitive, call, operands, dims)
    # Where the mapped dimension of q is behind the batch, it is merged there: nothing is transposed.
    behind = dims[call.names.index("q")] == 1
    results = primitive.bind(*(_merge(call, name, x, dim, size, batch, behind)
                               for name, x, dim in zip(call.names, operands, dims)), call=call)
    split = (batch, size) if behind else (size, batch)
    return [x.reshape(*split, *x.shape[1:]) for x in results], [int(behind)] * len(results)


for _primitive in _TRACE:
    _primitive.multiple_results = True
    _primitive.def_abstract_eval(functools.partial(_abstract, _primitive))
    _primitive.def_impl(functools.partial(_run, _primitive))
    batching.primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
    for _platform in ("cpu", "cuda"):
        mlir.register_lowering(_primitive, functools.partial(_lower, _primitive, _platform),
                               platform=_platform)
for (_target, _platform), _handler in getattr(_octavo, "_xla_handlers", {}).items():
    jax.ffi.register_ffi_target(_target, _handler, platform=_platform)

# -------------------------------------------------------------------------------------- derivatives


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gradients(call, operands):
    return tuple(_bind(_backward_p, call, operands))


def _gradients_forward(call, operands):
    return _gradients(call, operands), None


def _gradients_backward(call, residuals, cotangents):
    raise NotImplementedError("A second derivative of octavo's attention is needed; supported: first "
                              "derivatives.")


_gradients.defvjp(_gradients_forward, _gradients_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call, operands):
    return tuple(_bind(_attention_p, call, operands))


def _attention_forward(call, operands):
    arrays = dict(zip(call.names, (x.value for x in operands)))
    wanted = {name for name, x in zip(call.names, operands) if x.perturbed}
    for name in ("alibi_slopes", "page_table"):
        if name in (wanted if name == "alibi_slopes" else arrays):
            raise NotImplementedError(f"{name} is given to a call that is differentiated"
                                      f"{' with respect to it' if name in wanted else ''}; supported: "
                                      "gradients of q, k, v, bias and sinks, without a paged cache.")
    out, lse = _attention(call.with_options(return_lse=True), tuple(arrays.values()))
    # A dictionary's keys are known when the backward pass is traced.
    residuals = (arrays, out, lse, {name: () for name in ("bias", "sinks") if name in wanted})
    return ((out, lse) if call.option("return_lse") else (out,)), residuals


def _attention_backward(call, residuals, cotangents):
    arrays, out, lse, wanted = residuals
    dout, *others = cotangents
    if any(not isinstance(x, SymbolicZero) for x in others):
        raise NotImplementedError("A gradient of lse is needed; supported: gradients of out.")
    if isinstance(dout, SymbolicZero):
        return (None,)
    bias = arrays.get("bias")
    if "bias" in wanted:  # with rows and columns of its own for all queries and keys, as a GPU needs it
        rows = 1 if call.option("layout") == "bshd" else 2
        arrays["bias"] = jnp.broadcast_to(
            bias, (*bias.shape[:-2], arrays["q"].shape[rows], arrays["k"].shape[rows]))
    options = {name: call.option(name) for name in _SHARED_OPTIONS}
    options |= {"return_dbias": "bias" in wanted, "return_dsinks": "sinks" in wanted}
    arrays = {"dout": dout, "out": out, "lse": lse, **{name: arrays[name] for name in call.names}}
    gradients = _gradients(_Call(tuple(arrays), call.same, tuple(options.items())), tuple(arrays.values()))
    named = dict(zip(("q", "k", "v", *wanted), gradients))
    if "bias" in wanted:
        named["bias"] = _sum_to(named["bias"], bias.shape)
    return (tuple(named.get(name) for name in call.names),)


def _sum_to(x, shape):
    """Sums over the dimensions along which an array of this shape was broadcast."""
    wide = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(i for i, (is_, was) in enumerate(zip(x.shape, wide)) if is_ != was)
    return x.sum(axes, keepdims=True).reshape(shape) if axes else x.reshape(shape)


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)

# ------------------------------------------------------------------------------------------ the call

# Eager calls of one kind are traced once.
_compiled = jax.jit(_attention, static_argnums=0)


def _check_array(name, x):
    if not isinstance(x, (jax.Array, numpy.ndarray)):
        raise TypeError(f"{name} is of type {type(x).__name__}; supported: arrays of JAX and NumPy.")


def _number(given):
    return None if given is None else float(given)


def _out_dtype(given):
    name = jnp.dtype(given).name
    if name not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"out_dtype is {name!r}; supported: float32, float16, bfloat16.")
    return name


def attention(q: Any, k: Any, v: Any, *, causal: bool | str | None = False,
              window: tuple[int | None, int | None] | None = None, scale: float | None = None,
              precision: str | None = None, return_lse: bool = False, layout: str = "bhsd",
              out_dtype: Any = None, cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None,
              max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None,
              batch_invariant: bool = False, max_error: float | None = None, seqlens_q: Any = None,
              seqlens_kv: Any = None, leftpad_q: Any = None, leftpad_kv: Any = None, bias: Any = None,
              mask: Any = None, alibi_slopes: Any = None, sinks: Any = None, softcap: float | None = None,
              page_table: Any = None, sm_margin: int = 0) -> Any:
    """octavo.attention for arrays of JAX, eagerly and under jax.jit, jax.vmap, jax.grad, jax.checkpoint
    and jax.shard_map.

    The parameters are those of octavo.attention; those that are no arrays are static. With cu_seqlens,
    max_seqlen_q and max_seqlen_kv are required, and tokens that belong to no sequence get output 0 and
    lse -inf. q, k, v, bias and sinks have gradients; lse has none.
    """
    if not _TRACE:
        raise RuntimeError("octavo.jax was built without XLA's headers; supported: a build of octavo in an "
                           "environment with jaxlib, which has them.")
    given = {name: x for name, x in zip(("q", "k", "v", *_OPTIONAL_ARRAYS), (
        q, k, v, cu_seqlens_q, cu_seqlens_kv, seqlens_q, seqlens_kv, leftpad_q, leftpad_kv, bias, mask,
        alibi_slopes, sinks, page_table)) if x is not None or name in "qkv"}
    for name, x in given.items():
        _check_array(name, x)
    same = tuple(name for name in ("cu_seqlens", "seqlens", "leftpad")
                 if f"{name}_q" in given and given[f"{name}_q"] is given.get(f"{name}_kv"))
    options = {
        "causal": causal, "window": tuple(window) if isinstance(window, list) else window,
        "scale": _number(scale), "precision": precision, "return_lse": bool(return_lse),
        "layout": layout, "out_dtype": None if out_dtype is None else _out_dtype(out_dtype),
        "max_seqlen_q": max_seqlen_q, "max_seqlen_kv": max_seqlen_kv, "batch_invariant": bool(batch_invariant),
        "max_error": _number(max_error), "softcap": _number(softcap), "sm_margin": sm_margin}
    call = _Call(tuple(given), same, tuple(options.items()))
    results = _compiled(call, tuple(_vary_alike(given.values())))
    return results if return_lse else results[0]
