# SPDX-License-Identifier: Apache-2.0
"""Attention on sequences that are divided among the ranks of a process group.

    tokens, labels = (octavo.distributed.shard(x, group, dim=1) for x in (tokens, labels))
    positions = octavo.distributed.positions(seqlen, group)          # for the rotary embedding
    ...
    out = octavo.distributed.context_parallel(q, k, v, group, causal=True)

Each rank has q, k and v of its own tokens and gets the output for them; gradients flow to all ranks.
docs/context_parallel.md has the methods, the bytes they send and what is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

import octavo

from . import _context_parallel as _cp
from . import torch as _torch
from ._merge_states import merge_tensors
from ._sequence_shards import (Mask, check_documents, check_length, from_shards, parts, segments,
                               visible_scores)

__all__ = ["Explanation", "context_parallel", "decode", "explain", "merge_states", "positions", "shard", "unshard"]

METHODS = ("auto", "all_gather", "ulysses")
_LAYOUTS = {"bhsd": (2, 1), "bshd": (1, 2), "varlen": (0, 1)}  # the dimensions of seqlen and heads
# Above this ratio of the largest work of a rank to the mean, "auto" prefers "ulysses", which is balanced.
_UNBALANCED = 1.1
# The SMs that kernels leave free while K and V arrive by NCCL, whose kernels take one SM for each channel.
_SM_MARGIN = 8

_Group = dist.ProcessGroup | DeviceMesh | None


# ----------------------------------------------------------------------------------------- groups


# torch.compile runs this while it traces, and sees the names and numbers alone.
@torch.compiler.assume_constant_result
def _resolve(group: _Group) -> tuple[tuple[str, int, int], ...]:
    """(name, size, this rank) of each dimension of the group or mesh."""
    if group is None:
        group = dist.group.WORLD
    if isinstance(group, DeviceMesh):
        if group.get_coordinate() is None:
            raise ValueError("group is a mesh without this rank; supported: meshes with it.")
        if group.ndim > 2:
            raise ValueError(f"group is a mesh of {group.ndim} dimensions; supported: 1, and 2 for "
                             "(all_gather, ulysses).")
        groups = [group.get_group(i) for i in range(group.ndim)]
    elif isinstance(group, dist.ProcessGroup):
        groups = [group]
    else:
        raise ValueError(f"group is {group!r}; supported: a ProcessGroup with this rank, a DeviceMesh, or "
                         "None for the default group of an initialized torch.distributed.")
    named = tuple((one.group_name, dist.get_world_size(one), dist.get_rank(one)) for one in groups)
    if any(rank < 0 for _, _, rank in named):
        raise ValueError("group does not have this rank; supported: groups with it.")
    return named


def number_of_ranks(group: _Group) -> tuple[int, int]:
    """The number of shards, and the number of this rank's shard."""
    size, rank = 1, 0
    for _, ranks, own in _resolve(group):
        size, rank = size * ranks, rank * ranks + own
    return size, rank


# --------------------------------------------------------------------------------------- shards


def shard(x: Tensor, group: _Group = None, dim: int = 1, sharding: str = "zigzag") -> Tensor:
    """The rows of `x` along `dim` that this rank gets, of a tensor that every rank has.

    It serves inputs, labels, position ids and the cosines and sines of a rotary embedding. Shift
    labels before: the token that follows the last one of a shard is on another rank.
    """
    ranks, rank = number_of_ranks(group)
    check_length(x.shape[dim], ranks, sharding, f"x.shape[{dim}]")
    own = [x.narrow(dim, begin, end - begin) for begin, end in segments(sharding, x.shape[dim], ranks, rank)]
    return own[0].contiguous() if len(own) == 1 else torch.cat(own, dim)


@torch.no_grad()
def unshard(x: Tensor, group: _Group = None, dim: int = 1, sharding: str = "zigzag") -> Tensor:
    """The whole tensor, on every rank, from the shards of all ranks. It has no gradient."""
    parts(sharding)
    ranks, rank = number_of_ranks(group)
    if x.shape[dim] % parts(sharding):
        raise ValueError(f"x.shape[{dim}] is {x.shape[dim]}; supported: even numbers for zigzag sharding.")
    x = x.movedim(dim, 0)
    for name, _, _ in reversed(_resolve(group)):  # the last dimension of a mesh changes fastest
        x = _cp.finish(_cp.Group(name).start_gather(x))
    return from_shards(x, ranks, sharding).movedim(0, dim).contiguous()


def positions(seqlen: int, group: _Group = None, sharding: str = "zigzag",
              cu_seqlens: Tensor | Sequence[int] | None = None, device=None) -> Tensor:
    """The positions of this rank's rows in the sequence, or in their document with `cu_seqlens`."""
    whole = torch.arange(seqlen, device=device)
    if cu_seqlens is not None:
        starts = torch.as_tensor(cu_seqlens, device=device).long()
        whole = whole - starts[torch.searchsorted(starts, whole, right=True) - 1]
    return shard(whole, group, 0, sharding)


# --------------------------------------------------------------------------------------- merging


@torch.no_grad()
def merge_states(out: Tensor | Sequence[Tensor], lse: Tensor | Sequence[Tensor], group: _Group = None,
                 *, layout: str = "bhsd") -> tuple[Tensor, Tensor]:
    """Merges attention over parts of the keys into attention over all of them: (out, lse).

    Without `group`, `out` and `lse` list the results for the parts (or have them in a leading
    dimension). With `group`, each rank has the result for its part of the keys, and every rank gets the
    merged one. Parts are added in their order, that of ranks, in float32: the bits do not depend on
    which part arrived first. Rows without a visible key have lse -inf and out 0. There is no gradient.
    """
    if layout not in ("bhsd", "bshd"):
        raise ValueError(f"layout is {layout!r}; supported: 'bhsd', 'bshd'.")
    if group is not None:
        outs, lses = out.unsqueeze(0), lse.unsqueeze(0)
        for name, _, _ in reversed(_resolve(group)):
            started = [_cp.Group(name).start_gather(x) for x in (outs, lses)]
            outs, lses = (_cp.finish(x) for x in started)
    else:
        outs, lses = list(out), list(lse)
    if len(outs) == 0 or len(outs) != len(lses):
        raise ValueError(f"out has {len(outs)} parts and lse has {len(lses)}; supported: the same number, "
                         "from 1 on.")
    return merge_tensors(outs, lses, layout)


def decode(q: Tensor, k: Tensor, v: Tensor, group: _Group = None, *, scale: float | None = None,
           softcap: float | None = None, sinks: Tensor | None = None, seqlens_kv: Tensor | None = None,
           page_table: Tensor | None = None, layout: str = "bhsd", return_lse: bool = False,
           check: bool | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of the same queries on every rank with a KV cache of which each rank has a part.

    Each rank computes attention on its own keys, in float32; one collective gathers these results and
    their LSE, and every rank merges them in the order of ranks: all ranks get the same bits. Which rank has
    which keys does not matter, so that a new token's key and value may go to any one rank.

    q            (batch, heads, seqlen, head_dim), or layout="bshd"; every query sees all keys
    k, v         this rank's part, of any length; or with page_table a paged cache, as in octavo.attention
    seqlens_kv   int32 (batch): how many keys this rank has of each sequence, 0 too; all if None
    softcap, sinks    as in octavo.attention, the same on every rank
    check        whether all ranks compare their shapes and settings, as in context_parallel
    """
    if any(_torch._requires_grad(x) for x in (q, k, v, sinks)):
        raise NotImplementedError("a tensor requires grad in decode; supported: calls under torch.no_grad().")
    named = _resolve(group)
    names, level = [name for name, _, _ in named], _cp.check_level(check, q.device)
    try:
        if layout not in ("bhsd", "bshd"):
            raise ValueError(f"layout is {layout!r}; supported: 'bhsd', 'bshd'.")
        # The term of the sinks belongs to the sum once, so one rank's part has it.
        first = all(rank == 0 for _, _, rank in named)
        out, lse = octavo.attention(q, k, v, scale=scale, softcap=softcap, sinks=sinks if first else None,
                                    seqlens_kv=seqlens_kv, page_table=page_table, layout=layout,
                                    out_dtype=torch.float32, return_lse=True)
    except (TypeError, ValueError, NotImplementedError):
        _cp.tell_failure(names, q.device, level)
        raise
    _cp.agree_on_decode(names, q, (scale, softcap, layout, sinks), level)
    column = lse.transpose(1, 2) if layout == "bshd" else lse
    parts = torch.cat((out, column.unsqueeze(-1)), -1).unsqueeze(0)
    for name, ranks, _ in reversed(named):
        parts = _cp.finish(_cp.Group(name).start_gather(parts)) if ranks > 1 else parts
    lses = parts[..., -1].transpose(2, 3) if layout == "bshd" else parts[..., -1]
    out, lse = merge_tensors(parts[..., :-1], lses, layout)
    return (out.to(q.dtype), lse) if return_lse else out.to(q.dtype)


# ------------------------------------------------------------------------------------ the choice


@dataclasses.dataclass(frozen=True)
class Explanation:
    """How context_parallel runs a problem."""

    method: str  # "all_gather", "ulysses" or "all_gather x ulysses"
    reason: str  # why it was chosen
    all_gather_ranks: int
    ulysses_ranks: int
    sharding: str
    kv_replication: int  # how often "ulysses" sends each KV head
    sent_bytes_forward: int  # by one rank
    sent_bytes_backward: int
    work: tuple[float, ...]  # the scores that each shard computes, relative to the mean
    sm_margin: int  # the SMs that kernels leave free while K and V arrive; 0 if nothing arrives then


@dataclasses.dataclass(frozen=True)
class _Problem:
    """The sizes that a choice depends on: of one rank's tensors, and of the whole sequence."""

    rows: int
    batch: int
    heads_q: int
    heads_kv: int
    head_dim: int
    element_bytes: int
    sharding: str
    mask: Mask
    documents: tuple[int, ...]
    alibi: bool

    @property
    def needs_whole_sequence(self) -> bool:
        """ALiBi counts from the diagonal of a call, which is that of the sequence if the call ends there."""
        return self.alibi and self.mask.right != 0

    def ulysses_bytes(self, ranks: int) -> int:
        """Bytes of each direction: q, k, v and out; in the backward pass dout, dq, dk and dv."""
        heads_kv = self.heads_kv * _cp.replication(self.heads_q, self.heads_kv, ranks)
        return self._bytes(2 * (self.heads_q + heads_kv)) * (ranks - 1) // ranks

    def gather_bytes(self, ranks: int, ulysses: int = 1) -> int:
        """Bytes of the forward pass: K and V; the backward pass sends dK and dV as well."""
        heads_kv = self.heads_kv * _cp.replication(self.heads_q, self.heads_kv, ulysses)
        return self._bytes(2 * heads_kv) * (ranks - 1)

    def _bytes(self, heads: int) -> int:
        return self.rows * self.batch * heads * self.head_dim * self.element_bytes

    def work(self, gather: int, ulysses: int) -> tuple[float, ...]:
        shards = [segments(self.sharding, self.rows * gather * ulysses, gather, a) for a in range(gather)]
        scores = [visible_scores(own, self.mask, self.documents) for own in shards]
        mean = sum(scores) / gather
        return tuple(score / mean if mean else 1.0 for score in scores for _ in range(ulysses))


@functools.lru_cache(maxsize=256)  # thousands of documents take milliseconds
def _cached_choice(problem: _Problem, ranks: int) -> tuple[str, str]:
    return _choose(problem, ranks)


def _choose(problem: _Problem, ranks: int) -> tuple[str, str]:
    """The method of `auto` on a group of one dimension, and the reason."""
    if ranks == 1:
        return "all_gather", "the group has one rank"
    if problem.needs_whole_sequence:
        return "ulysses", "alibi_slopes without a causal mask need all rows of a head on one rank"
    if problem.heads_q % ranks:
        return "all_gather", f"{ranks} ranks do not divide {problem.heads_q} heads"
    work = max(problem.work(ranks, 1))
    if work > _UNBALANCED:
        return "ulysses", f"all_gather would give one rank {work:.2f} times the mean work"
    gather, ulysses = 3 * problem.gather_bytes(ranks), 2 * problem.ulysses_bytes(ranks)
    method, other = ("all_gather", "ulysses") if gather <= ulysses else ("ulysses", "all_gather")
    least, most = min(gather, ulysses), max(gather, ulysses)
    return method, f"it sends {least} bytes per rank in both passes, {other} {most}"


def _decide(problem: _Problem, method: str, sizes: Sequence[int]) -> tuple[int, int, str]:
    """(all_gather ranks, ulysses ranks, reason); raises ValueError for what a method cannot do."""
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; supported: 'auto', 'all_gather', 'ulysses'.")
    reason = "method says so"
    if len(sizes) == 2:
        if method != "auto":
            raise ValueError(f"method is {method!r} with a mesh of two dimensions; supported: 'auto', which is "
                             "all_gather on the first and ulysses on the second.")
        gather, ulysses, reason = *sizes, "group is a mesh of two dimensions"
    else:
        if method == "auto":
            choose = _choose if torch.compiler.is_compiling() else _cached_choice
            method, reason = choose(problem, sizes[0])
        gather, ulysses = (sizes[0], 1) if method == "all_gather" else (1, sizes[0])
    if problem.heads_q % ulysses:
        raise ValueError(f"q has {problem.heads_q} heads; supported by ulysses: multiples of its {ulysses} ranks.")
    if gather > 1 and problem.needs_whole_sequence:
        raise NotImplementedError("alibi_slopes is given with keys behind the diagonal; supported by all_gather: "
                                  "causal=True.")
    return gather, ulysses, reason


def _sequence_dim(layout):
    if layout not in _LAYOUTS:
        raise ValueError(f"layout is {layout!r}; supported: 'bhsd', 'bshd'.")
    return _LAYOUTS[layout][0]


def _check_tensors(q, k, v, layout):
    dims = 3 if layout == "varlen" else 4
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != dims:
            raise ValueError(f"{name} has {x.dim()} dimensions; supported: {dims} "
                             f"({'(tokens, heads, head_dim) with cu_seqlens' if dims == 3 else layout}).")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f"{name} is {x.dtype} on {x.device}; supported: {q.dtype} on {q.device}, as q is.")
        if x.numel() == 0:
            raise ValueError(f"{name}.shape is {tuple(x.shape)}; supported: at least one element.")
    if k.shape != v.shape:
        raise ValueError(f"v.shape is {tuple(v.shape)}; supported: {tuple(k.shape)} (that of k).")
    _, heads = _LAYOUTS[layout]
    for dim in range(dims):
        if dim != heads and k.shape[dim] != q.shape[dim]:
            raise ValueError(f"k.shape is {tuple(k.shape)}; supported: that of q, {tuple(q.shape)}, but for "
                             "heads.")
    if q.shape[heads] % k.shape[heads]:
        raise ValueError(f"q has {q.shape[heads]} heads; supported: multiples of the {k.shape[heads]} of k.")


def _check_modifiers(modifiers: _cp.Modifiers, q, layout):
    softcap, sinks, slopes = modifiers
    if not isinstance(softcap, (int, float)) or not 0 <= softcap < math.inf:
        raise ValueError(f"softcap is {softcap!r}; supported: None or 0 (none), and positive finite numbers.")
    heads = q.shape[_LAYOUTS[layout][1]]
    shapes = {"sinks": [(heads,)], "alibi_slopes": [(heads,)]}
    if layout != "varlen":
        shapes["alibi_slopes"].append((q.shape[0], heads))
    for name, x in (("sinks", sinks), ("alibi_slopes", slopes)):
        if x is None:
            continue
        if not isinstance(x, Tensor) or isinstance(x, DTensor):
            raise ValueError(f"{name} is a {type(x).__name__}; supported: a Tensor that every rank has whole.")
        if tuple(x.shape) not in shapes[name] or x.dtype != torch.float32 or x.device != q.device:
            wanted = " or ".join(map(str, shapes[name]))
            raise ValueError(f"{name} is {tuple(x.shape)} of {x.dtype} on {x.device}; supported: {wanted} of "
                             f"torch.float32 on {q.device}.")
    if _torch._requires_grad(slopes):
        raise NotImplementedError(_torch._SLOPES)


def _documents(cu_seqlens, seqlen):
    """cu_seqlens as numbers, checked."""
    if cu_seqlens is None:
        return (0, seqlen)
    return check_documents(cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens, seqlen)


def _make_problem(q, k, v, ranks, layout, sharding, causal, window, cu_seqlens, modifiers, traced=False):
    """The checked problem of a call."""
    if not isinstance(causal, bool):
        raise ValueError(f"causal is {causal!r}; supported: True, False.")
    _check_tensors(q, k, v, layout)
    _check_modifiers(modifiers, q, layout)
    mask = Mask.of(causal, window)
    seqlen, heads = _LAYOUTS[layout]
    rows = q.shape[seqlen]
    if rows % parts(sharding):
        raise ValueError(f"q has {rows} tokens on this rank; supported: even numbers for zigzag sharding.")
    # Traced code does not know the values of cu_seqlens; the operator checks them.
    documents = (0, rows * ranks) if traced else _documents(cu_seqlens, rows * ranks)
    batch = 1 if layout == "varlen" else q.shape[0]
    return _Problem(rows, batch, q.shape[heads], k.shape[heads], q.shape[-1], q.element_size(), sharding, mask,
                    documents, modifiers.alibi_slopes is not None)


def _local_tensors(q, k, v, group, dim):
    """This rank's tensors of DTensors that are sharded along `dim`, the sequence, and their group."""
    tensors = (q, k, v)
    if not any(isinstance(x, DTensor) for x in tensors):
        return tensors, group
    if not all(isinstance(x, DTensor) for x in tensors):
        raise ValueError("one of q, k and v is a DTensor and another is none; supported: three or none.")
    if any(x.device_mesh != q.device_mesh or x.placements != q.placements for x in tensors):
        raise ValueError(f"q, k and v are placed differently; supported: {q.placements} for all, as q is.")
    mesh = q.device_mesh
    own = [i for i, placement in enumerate(q.placements) if placement == Shard(dim)]
    if not own or not all(placement.is_shard() for placement in q.placements):
        raise ValueError(f"q has the placements {q.placements}; supported: Shard({dim}) (the sequence) on one or "
                         "two dimensions of the mesh, and other Shards.")
    if group is None:
        names = mesh.mesh_dim_names
        if mesh.ndim > len(own) and names is None:
            raise ValueError("group is None for DTensors on a mesh whose dimensions have no names; supported: "
                             "a group, or a mesh with names.")
        group = mesh if mesh.ndim == len(own) else mesh[tuple(names[i] for i in own)]
    return tuple(x.to_local() for x in tensors), group


def _margin_beside(group: _cp.Group, q, heads_kv: int, chunks: int, sm_margin: int | None) -> int:
    """The SMs that kernels leave free while K and V arrive."""
    overlaps = min(chunks, heads_kv) > 1 and group.runs_on_sms(q)
    return (_SM_MARGIN if sm_margin is None else sm_margin) if overlaps else 0


def _check_schedule(chunks, sm_margin):
    if chunks < 1:
        raise ValueError(f"chunks is {chunks}; supported: 1 and above.")
    if sm_margin is not None and sm_margin < 0:
        raise ValueError(f"sm_margin is {sm_margin}; supported: None ({_SM_MARGIN} beside NCCL), 0 and above.")


def explain(q: Tensor, k: Tensor, v: Tensor, group: _Group = None, *, method: str = "auto",
            causal: bool = False, window: Sequence[int | None] | None = None,
            cu_seqlens: Tensor | Sequence[int] | None = None, sharding: str = "zigzag",
            layout: str = "bhsd", softcap: float | None = None, sinks: Tensor | None = None,
            alibi_slopes: Tensor | None = None, chunks: int = 4, sm_margin: int | None = None) -> Explanation:
    """What context_parallel would do with these arguments, and why; nothing is sent."""
    layout = "varlen" if cu_seqlens is not None else layout
    (q, k, v), group = _local_tensors(q, k, v, group, _sequence_dim(layout))
    named = _resolve(group)
    sizes = [size for _, size, _ in named]
    problem = _make_problem(q, k, v, math.prod(sizes), layout, sharding, causal, window, cu_seqlens,
                            _cp.Modifiers(softcap or 0, sinks, alibi_slopes))
    gather, ulysses, reason = _decide(problem, method, sizes)
    _check_schedule(chunks, sm_margin)
    exchanged, gathered = problem.ulysses_bytes(ulysses), problem.gather_bytes(gather, ulysses)
    names = [name for name, ranks in (("all_gather", gather), ("ulysses", ulysses)) if ranks > 1]
    times = _cp.replication(problem.heads_q, problem.heads_kv, ulysses)
    margin = _margin_beside(_cp.Group(named[0][0] if gather > 1 else ""), q, problem.heads_kv * times // ulysses,
                            chunks, sm_margin)
    return Explanation(" x ".join(names) or "all_gather", reason, gather, ulysses, sharding, times,
                       exchanged + gathered, exchanged + 2 * gathered, problem.work(gather, ulysses), margin)


# -------------------------------------------------------------------------------------- attention


def _on_host(cu_seqlens):
    """cu_seqlens as a tensor of the CPU, where its values are read; traced code cannot copy it there."""
    if cu_seqlens is None or (isinstance(cu_seqlens, Tensor) and torch.compiler.is_compiling()):
        return cu_seqlens
    numbers = cu_seqlens.cpu() if isinstance(cu_seqlens, Tensor) else torch.tensor(list(cu_seqlens))
    if numbers.is_floating_point() and numbers.numel() > 0:
        raise ValueError(f"cu_seqlens is of {numbers.dtype}; supported: integers.")
    return numbers


@torch.compiler.assume_constant_result
def _backward_refusal(device, dtype, heads_q, heads_kv, head_dim, varlen):
    """The sentence that says why there is no backward pass, or None."""
    dtypes = 4 * (dtype.removeprefix("torch."),)
    return _torch._cached_refusal(device, dtypes, heads_q, heads_kv, head_dim, head_dim, "native",
                                  varlen)


def _refuse_gradient(q, k, v, sinks, problem, layout):
    if any(_torch._requires_grad(x) for x in (q, k, v, sinks)):
        refusal = _backward_refusal(str(q.device), str(q.dtype), problem.heads_q, problem.heads_kv,
                                    problem.head_dim, layout == "varlen")
        if refusal is not None:
            raise NotImplementedError(refusal)


# Parameters of octavo.attention that context_parallel does not have, and what serves instead.
_REFUSED = {name: f"{name} is given to context_parallel; supported: {instead}." for names, instead in (
    (("seqlens_q", "seqlens_kv", "leftpad_q", "leftpad_kv"), "cu_seqlens, which leaves padding out"),
    (("bias", "mask"), "causal, window, cu_seqlens, softcap, sinks and alibi_slopes"),
    (("page_table",), "octavo.distributed.decode for a KV cache"),
    (("precision", "quantization", "out_scale", "out_dtype", "max_error"), "the precision of the inputs"),
    (("out", "stream", "return_amax", "batch_invariant", "overlap_launch"), "None"),
    (("cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q", "max_seqlen_kv"), "cu_seqlens, that of all tokens"),
    (("dropout_p", "dropout"), "attention without dropout")) for name in names}


def _refuse_others(others: dict) -> None:
    for name, value in others.items():
        if name not in _REFUSED:
            raise TypeError(f"context_parallel() got an unexpected keyword argument '{name}'")
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            raise NotImplementedError(_REFUSED[name])


def context_parallel(q: Tensor, k: Tensor, v: Tensor, group: _Group = None, *, method: str = "auto",
                     causal: bool = False, window: Sequence[int | None] | None = None,
                     cu_seqlens: Tensor | Sequence[int] | None = None, sharding: str = "zigzag",
                     scale: float | None = None, softcap: float | None = None, sinks: Tensor | None = None,
                     alibi_slopes: Tensor | None = None, layout: str = "bhsd", return_lse: bool = False,
                     chunks: int = 4, sm_margin: int | None = None, check: bool | None = None,
                     **others) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of this rank's queries with the keys of all ranks of `group`; differentiable.

    q, k, v      this rank's shard, as (batch, heads, seqlen, head_dim), or with layout="bshd"; with
                 cu_seqlens (tokens, heads, head_dim). Fewer heads of k and v than of q are GQA. DTensors
                 that are sharded along the sequence are supported.
    group        a ProcessGroup, a DeviceMesh of one dimension or two (all_gather, ulysses), or None for
                 the default group
    method       "all_gather" gathers K and V, "ulysses" exchanges rows for heads, "auto" chooses
    causal       queries see no later token; window=(left, right) also limits how far they see
    cu_seqlens   cumulative lengths of the documents of the whole sequence, the same on every rank;
                 tokens behind the last belong to none and give 0. Best on the CPU, where it is read
    sharding     "zigzag" or "contiguous", as in shard()
    softcap, sinks, alibi_slopes    as in octavo.attention, of all heads and the same on every rank. The
                 gradients of sinks on all ranks add up to the gradient, as those of weights do. With
                 all_gather, slopes need a causal mask
    chunks       all_gather: in how many parts the heads of K and V arrive
    sm_margin    all_gather over NCCL: how many SMs kernels leave free while a part arrives; None: 8
    check        whether all ranks compare their shapes and settings: True in every call, False never;
                 None in every call on the CPU, once for each new combination on a GPU

    Other parameters of octavo.attention raise NotImplementedError.
    """
    layout = "varlen" if cu_seqlens is not None else layout
    if isinstance(q, DTensor) and return_lse:
        raise ValueError("return_lse is True for DTensors; supported: False.")
    given = q
    (q, k, v), group = _local_tensors(q, k, v, group, _sequence_dim(layout))
    q, k, v = (_torch._autocast(x) for x in (q, k, v))
    q, k, v = (x if x.dim() == 0 or x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    named = _resolve(group)
    sizes = [size for _, size, _ in named]
    level = _cp.check_level(check, q.device)
    modifiers = _cp.Modifiers(0.0 if softcap is None else softcap, sinks, alibi_slopes)
    try:
        _refuse_others(others)
        cu_seqlens = _on_host(cu_seqlens)
        problem = _make_problem(q, k, v, math.prod(sizes), layout, sharding, causal, window, cu_seqlens, modifiers,
                                torch.compiler.is_compiling())
        gather, ulysses, _ = _decide(problem, method, sizes)
        _check_schedule(chunks, sm_margin)
        _refuse_gradient(q, k, v, sinks, problem, layout)
    except Exception:  # of any type: the other ranks wait for this one
        if not torch.compiler.is_compiling():
            _cp.tell_failure([name for name, _, _ in named], q.device, level)
        raise
    names = [name for name, _, _ in named]
    if len(names) == 1:
        names = [names[0] if ranks > 1 else "" for ranks in (gather, ulysses)]
    mask = None if problem.mask.everything else [problem.mask.left, problem.mask.right]
    out, lse, *_ = _cp.context_parallel_op(q, k, v, cu_seqlens, sinks, alibi_slopes, *names, sharding, causal, mask,
                                           scale, float(modifiers.softcap), chunks,
                                           _SM_MARGIN if sm_margin is None else sm_margin, layout, return_lse, level)
    if isinstance(given, DTensor):
        return DTensor.from_local(out, given.device_mesh, given.placements, run_check=False)
    if not return_lse:
        return out
    return out, lse.detach().squeeze(0) if layout == "varlen" else lse.detach()
