# SPDX-License-Identifier: Apache-2.0
"""The operators behind octavo.distributed: attention on a sequence that is divided among ranks.

A rank is at (a, u) of a grid of A x U ranks. Either number may be 1; the shards of the sequence are in
the order a * U + u.

    exchange among the U ranks of a row      all rows of the row's shards, 1 / U of the heads
    gather K and V among the A ranks         all keys, in chunks of heads; attention; complete rows
    exchange back                            the rank's own rows, all heads

U = 1 is the method "all_gather", A = 1 is "ulysses". Every row gets its whole softmax in one call, so
nothing has to be merged, and the LSE that the backward pass needs is that of the whole row.

Tensors of this file have the dimensions (seqlen, batch, heads, head_dim), in any memory order: shards
that arrive one after the other are then the whole sequence without a copy. Collectives are
asynchronous. NCCL runs them on a stream of its own, and wait() makes the current stream wait, not the
host; so while the attention of one chunk runs, the next chunk arrives. Persistent kernels would keep
NCCL's from starting, so beside a collective they leave `sm_margin` SMs free.
"""

from __future__ import annotations

import functools
import zlib
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import octavo

from ._sequence_shards import Mask, check_documents, from_shards, plan_runs, segments, to_shards

_VARLEN = "varlen"


# ------------------------------------------------------------------------------------ the dimensions


def to_rows(x: Tensor, layout: str) -> Tensor:
    """A view with the dimensions (seqlen, batch, heads, head_dim)."""
    if layout == _VARLEN:
        return x.unsqueeze(1)
    return x.permute(2, 0, 1, 3) if layout == "bhsd" else x.transpose(0, 1)


def _from_rows(x: Tensor, layout: str) -> Tensor:
    if layout == _VARLEN:
        return x.squeeze(1)
    return x.permute(1, 2, 0, 3) if layout == "bhsd" else x.transpose(0, 1)


class Group:
    """A process group by its name, as operators take it; the empty name is this rank alone."""

    def __init__(self, name: str):
        self.name = name
        self.group = dist.distributed_c10d._resolve_process_group(name) if name else None
        self.size = dist.get_world_size(self.group) if name else 1
        self.rank = dist.get_rank(self.group) if name else 0

    def runs_on_sms(self, x: Tensor) -> bool:
        """Whether collectives of x need SMs of the GPU."""
        return x.is_cuda and self.size > 1 and self._sends_cuda_by("nccl")

    def start_gather(self, x: Tensor) -> Started:
        """Starts to gather the rows of all ranks, in the order of ranks."""
        sent = self._staged(x)
        gathered = sent.new_empty((self.size * x.shape[0], *x.shape[1:]))
        work = dist.all_gather_into_tensor(gathered, sent, group=self.group, async_op=True)
        return Started(gathered, work, x.device)

    def start_exchange(self, x: Tensor) -> Started:
        """Starts to send x[i] to rank i; the result's [i] is what rank i has sent."""
        sent = self._staged(x)
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=self.group, async_op=True)
        return Started(received, work, x.device)

    def _staged(self, x: Tensor) -> Tensor:
        """What is sent; Gloo exchanges tensors of the CPU alone."""
        x = x.contiguous()
        return x.cpu() if x.is_cuda and self._sends_cuda_by("gloo") else x

    def _sends_cuda_by(self, backend: str) -> bool:
        """A group may have a backend for each device: "cpu:gloo,cuda:nccl"."""
        return f"cuda:{backend}" in dist.get_backend_config(self.group)


class Started(NamedTuple):
    """A collective that runs, and the device on which its result is needed."""

    result: Tensor
    work: dist.Work
    device: torch.device


def finish(started: Started) -> Tensor:
    """The result of a collective; the current stream waits for it."""
    started.work.wait()
    return started.result.to(started.device)


# ------------------------------------------------------------------------- exchange of rows and heads


def replication(heads_q: int, heads_kv: int, ranks: int) -> int:
    """How often each KV head is repeated so that every rank gets whole groups of heads."""
    group = heads_q // heads_kv
    return next(n for n in range(1, group + 1) if group % n == 0 and heads_kv * n % ranks == 0)


def _repeat(x: Tensor, times: int) -> Tensor:
    return x if times == 1 else x.repeat_interleave(times, 2)


def _sum_repeated(x: Tensor, times: int) -> Tensor:
    """The gradient of _repeat, in float32."""
    return x if times == 1 else x.unflatten(2, (-1, times)).float().sum(3).to(x.dtype)


def rows_to_heads(tensors: list[Tensor], group: Group, sharding: str) -> list[Tensor]:
    """All rows of the group with this rank's part of the heads, from this rank's rows with all heads."""
    if group.size == 1:
        return tensors
    split = [x.unflatten(2, (group.size, -1)) for x in tensors]
    sent = torch.cat(split, 3).permute(2, 0, 1, 3, 4)
    received = from_shards(finish(group.start_exchange(sent)).flatten(0, 1), group.size, sharding)
    return list(received.split([x.shape[3] for x in split], 2))


def heads_to_rows(tensors: list[Tensor], group: Group, sharding: str) -> list[Tensor]:
    """The inverse of rows_to_heads."""
    if group.size == 1:
        return tensors
    sent = to_shards(torch.cat(tensors, 2), group.size, sharding).unflatten(0, (group.size, -1))
    received = finish(group.start_exchange(sent)).permute(1, 2, 0, 3, 4)
    return [x.flatten(2, 3) for x in received.split([x.shape[2] for x in tensors], 3)]


# ---------------------------------------------------------------------------- attention on all keys


@functools.lru_cache(maxsize=256)
def _cumulative(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(lengths, dtype=torch.int32, device=device)


def sum_in_order(parts: Tensor) -> Tensor:
    """Adds what the ranks have sent, in the order of ranks and in float32: the same bits in every run."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(parts.dtype)


class Modifiers(NamedTuple):
    """What changes the scores, for the heads of one tensor of queries."""

    softcap: float = 0.0
    sinks: Tensor | None = None  # (heads)
    alibi_slopes: Tensor | None = None  # (heads) or (batch, heads)

    def of_heads(self, heads: slice) -> Modifiers:
        return self._replace(sinks=None if self.sinks is None else self.sinks[heads],
                             alibi_slopes=None if self.alibi_slopes is None
                             else self.alibi_slopes[..., heads].contiguous())

    def options(self) -> dict:
        """The arguments of octavo.attention; None and 0 are its defaults."""
        return self._asdict()


class Attention:
    """Attention of this rank's rows with all keys, of which each rank of `group` has a part.

    Each row is in one call, which sees all of its keys. So the sinks are given to every call, and the
    diagonal from which ALiBi counts is that of the call where the mask is causal.
    """

    def __init__(self, group: Group, rows: int, sharding: str, causal: bool, window: list[int] | None,
                 scale: float | None, documents: list[int] | None, chunks: int, sm_margin: int, layout: str,
                 modifiers: Modifiers):
        seqlen = rows * group.size
        own = segments(sharding, seqlen, group.size, group.rank)
        # The shard of a group of one rank is the whole sequence, already in order.
        own = [(0, seqlen)] if group.size == 1 else own
        documents = (0, seqlen) if documents is None else check_documents(documents, seqlen)
        self.runs = plan_runs(own, Mask.of(causal, window), documents)
        self.group, self.sharding, self.scale = group, sharding, scale
        self.sm_margin, self.modifiers = sm_margin, modifiers
        self.varlen = layout == _VARLEN
        self.complete = sum(run.q_end - run.q_begin for run in self.runs) == rows
        self.chunks = chunks if group.size > 1 else 1

    def _options(self, run, heads, device):
        options = {"causal": run.causal, "window": run.window, "scale": self.scale}
        options |= self.modifiers.of_heads(heads).options()
        if self.varlen:
            cu_q, cu_kv = run.cu_seqlens_q, run.cu_seqlens_kv
            longest = [max(b - a for a, b in zip(cu, cu[1:])) for cu in (cu_q, cu_kv)]
            return options | {"cu_seqlens_q": _cumulative(cu_q, device), "max_seqlen_q": longest[0],
                              "cu_seqlens_kv": _cumulative(cu_kv, device), "max_seqlen_kv": longest[1]}
        return options | {"layout": "bshd"}

    def _argument(self, x, begin, end):
        return x[begin:end, 0] if self.varlen else x[begin:end].transpose(0, 1)

    def _lse(self, lse, run):
        """The part of (batch, heads, rows) that a call computes or reads."""
        part = lse[:, :, run.q_begin:run.q_end]
        return part[0] if self.varlen else part

    def _head_slices(self, heads_q, heads_kv):
        """(q heads, KV heads) of each chunk."""
        group = heads_q // heads_kv
        step = -(-heads_kv // min(self.chunks, heads_kv))
        firsts = range(0, heads_kv, step)
        return [(slice(i * group, (i + step) * group), slice(i, min(i + step, heads_kv))) for i in firsts]

    def _gathered(self, k, v, slices):
        """K and V of the whole sequence, one chunk of heads after the other."""
        if self.group.size == 1:
            yield slices[0][0], k, v
            return
        start = lambda kv: self.group.start_gather(torch.cat((k[:, :, kv], v[:, :, kv]), 2))
        arriving = start(slices[0][1])
        for i, (q_heads, _) in enumerate(slices):
            kv = finish(arriving)
            if i + 1 < len(slices):
                arriving = start(slices[i + 1][1])
            kv = from_shards(kv, self.group.size, self.sharding)
            yield (q_heads, *kv.chunk(2, 2))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Tensor:
        """Writes `out` and returns the LSE as (batch, heads, rows)."""
        lse = q.new_full((q.shape[1], q.shape[2], q.shape[0]), -torch.inf, dtype=torch.float32)
        if not self.complete:  # rows that belong to no document
            out.zero_()
        slices = self._head_slices(q.shape[2], k.shape[2])
        for heads, keys, values in self._gathered(k, v, slices):
            arriving = heads != slices[-1][0] and self.group.runs_on_sms(q)
            for run in self.runs:
                _, found = octavo.attention(
                    self._argument(q[:, :, heads], run.q_begin, run.q_end),
                    self._argument(keys, run.k_begin, run.k_end),
                    self._argument(values, run.k_begin, run.k_end),
                    out=self._argument(out[:, :, heads], run.q_begin, run.q_end), return_lse=True,
                    sm_margin=self.sm_margin if arriving else 0, **self._options(run, heads, q.device))
                self._lse(lse[:, heads], run).copy_(found)
        return lse

    def _chunk_gradients(self, heads, tensors, keys, values, lse, dq, dsinks):
        """Writes the chunk's parts of dq and dsinks; returns dK and dV of all keys from this rank's rows."""
        total = keys.new_zeros((keys.shape[0], keys.shape[1], 2 * keys.shape[2], keys.shape[3]),
                               dtype=torch.float32)
        dk, dv = total.chunk(2, 2)
        for run in self.runs:
            dout, q, out = (self._argument(x[:, :, heads], run.q_begin, run.q_end) for x in tensors)
            found = octavo.attention_backward(
                dout, q, self._argument(keys, run.k_begin, run.k_end),
                self._argument(values, run.k_begin, run.k_end), out,
                self._lse(lse[:, heads], run).contiguous(), return_dsinks=dsinks is not None,
                **self._options(run, heads, q.device))
            self._argument(dq[:, :, heads], run.q_begin, run.q_end).copy_(found[0])
            self._argument(dk, run.k_begin, run.k_end).add_(found[1])
            self._argument(dv, run.k_begin, run.k_end).add_(found[2])
            if dsinks is not None:
                dsinks[heads].add_(found[3])
        return total.to(keys.dtype)

    def backward(self, dout, q, k, v, out, lse, needs_dsinks):
        """dq, dk and dv of this rank's rows, and dsinks from these rows or None."""
        dsinks = lse.new_zeros(q.shape[2]) if needs_dsinks else None
        dq = torch.empty_like(q) if self.complete else torch.zeros_like(q)
        summed, leaving = [], None
        for heads, keys, values in self._gathered(k, v, self._head_slices(q.shape[2], k.shape[2])):
            total = self._chunk_gradients(heads, (dout, q, out), keys, values, lse, dq, dsinks)
            if self.group.size == 1:
                return (dq, *total.chunk(2, 2), dsinks)
            # The gradients of the chunk before have travelled while this chunk was computed.
            if leaving is not None:
                summed.append(sum_in_order(finish(leaving)))
            total = to_shards(total, self.group.size, self.sharding)
            leaving = self.group.start_exchange(total.unflatten(0, (self.group.size, -1)))
        summed.append(sum_in_order(finish(leaving)))
        dk, dv = (torch.cat(both, 2) for both in zip(*(one.chunk(2, 2) for one in summed)))
        return dq, dk, dv, dsinks


# ------------------------------------------------------------------------- agreement of the ranks

NEVER, ONCE, ALWAYS = 0, 1, 2
_agreed: set[tuple] = set()
_MOST_AGREED = 4096
_SETTINGS = ("method", "sharding", "causal", "window", "scale", "chunks", "layout", "softcap",
             "the shape, dtype or gradient of sinks", "the shape or dtype of alibi_slopes")
_TENSOR_FIELDS = tuple(f"{name}.{field}" for name in "qkv"
                       for field in (*(f"shape[{i}]" for i in range(4)), "dtype", "requires_grad"))
_FIELDS = ("failed", *_TENSOR_FIELDS, *_SETTINGS, "cu_seqlens")


def check_level(check: bool | None, device: torch.device) -> int:
    """A host cannot wait for a GPU in every call, so there one check for each combination is the default."""
    if check is None:
        return ALWAYS if device.type == "cpu" else ONCE
    return ALWAYS if check else NEVER


def _checksum(value) -> int:
    return zlib.crc32(repr(value).encode())


def _described(tensor: Tensor | None):
    return None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)


def _signature(tensors, settings, documents) -> list[int]:
    """What must be the same on every rank, as numbers in the order of _FIELDS."""
    numbers = [0]
    for x in tensors:
        numbers += [*x.shape, *(4 - x.dim()) * [-1], _checksum(x.dtype), int(x.requires_grad)]
    return numbers + [_checksum(value) for value in (*settings, documents)]


def _difference(table: list[list[int]]) -> str | None:
    """The sentence about the first field in which the ranks differ; table[rank][field]."""
    failed = [rank for rank, row in enumerate(table) if row[0]]
    if failed:
        return (f"the arguments of rank {failed[0]} of the group are wrong or differ from another rank's; "
                "supported: the same right arguments on every rank.")
    for name, *values in zip(_FIELDS, *table):
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            shown = (f"{values[0]} on rank 0 and {values[other]} on rank {other}" if ".shape" in name
                     else f"different on ranks 0 and {other}")
            return f"{name} is {shown} of the group; supported: the same on every rank."
    return None


def _agree(groups: list[Group], device: torch.device, numbers: list[int], level: int) -> None:
    """Raises ValueError on every rank if the numbers differ."""
    key = (tuple(group.name for group in groups), device.type, tuple(numbers))
    if level == NEVER or (level == ONCE and key in _agreed):
        return
    error = None
    for group in groups:
        if group.size == 1:
            continue
        # On a mesh, ranks of the second dimension learn what failed in the first.
        numbers = [int(error is not None), *numbers[1:]] if error else numbers
        table = finish(group.start_gather(torch.tensor(numbers, dtype=torch.int64, device=device)))
        error = error or _difference(table.view(group.size, -1).tolist())
    if error:
        raise ValueError(error)
    if len(_agreed) >= _MOST_AGREED:
        _agreed.clear()
    _agreed.add(key)


def tell_failure(names: list[str], device: torch.device, level: int) -> None:
    """Makes the other ranks raise an error, where they are about to compare arguments with this one."""
    if level == ALWAYS:
        try:
            _agree([Group(name) for name in names], device, [1] + [0] * (len(_FIELDS) - 1), level)
        except ValueError:
            pass  # this rank raises its own error


def agree_on_decode(names: list[str], q: Tensor, settings: tuple, level: int) -> None:
    """Raises ValueError on every rank if the queries or settings differ; k and v may."""
    scale, softcap, layout, sinks = settings
    same = (None, None, None, None, scale, None, layout, softcap, _described(sinks), None)
    _agree([Group(name) for name in names], q.device, _signature((q, q, q), same, None), level)


# ------------------------------------------------------------------------------------- the operators


def _modifiers(softcap: float, sinks: Tensor | None, slopes: Tensor | None, heads: int, ulysses: Group):
    """The modifiers of the heads that this rank computes: those of its place in `ulysses`."""
    step = heads // ulysses.size
    return Modifiers(softcap, sinks, slopes).of_heads(slice(ulysses.rank * step, (ulysses.rank + 1) * step))


@torch.library.custom_op("octavo::context_parallel", mutates_args=())
def context_parallel_op(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, sinks: Tensor | None,
        alibi_slopes: Tensor | None, gather: str, ulysses: str, sharding: str, causal: bool,
        window: list[int] | None, scale: float | None, softcap: float, chunks: int, sm_margin: int,
        layout: str, return_lse: bool, check: int) -> list[Tensor]:
    """out and LSE of this rank's rows, then what the backward pass needs of the exchanged tensors."""
    gather, ulysses = Group(gather), Group(ulysses)
    documents = None if cu_seqlens is None else cu_seqlens.tolist()
    settings = ((gather.size, ulysses.size), sharding, causal, window, scale, chunks, layout, softcap,
                _described(sinks), _described(alibi_slopes))
    _agree([gather, ulysses], q.device, _signature((q, k, v), settings, documents), check)
    rows = [to_rows(x, layout) for x in (q, k, v)]
    times = replication(rows[0].shape[2], rows[1].shape[2], ulysses.size)
    attention = Attention(gather, rows[0].shape[0] * ulysses.size, sharding, causal, window, scale, documents,
                          chunks, sm_margin, layout,
                          _modifiers(softcap, sinks, alibi_slopes, rows[0].shape[2], ulysses))
    out = torch.empty_like(q)
    if ulysses.size == 1:
        return [out, attention.forward(*rows, to_rows(out, layout))]
    heads = rows_to_heads([rows[0], *(_repeat(x, times) for x in rows[1:])], ulysses, sharding)
    out_heads = torch.empty_like(heads[0])
    lse_heads = attention.forward(*heads, out_heads)
    to_rows(out, layout).copy_(heads_to_rows([out_heads], ulysses, sharding)[0])
    lse = lse_heads.new_empty(0)
    if return_lse:
        lse = heads_to_rows([lse_heads.permute(2, 0, 1).unsqueeze(3)], ulysses, sharding)[0]
        lse = lse.squeeze(3).permute(1, 2, 0).contiguous()
    return [out, lse, *(x.contiguous() for x in heads), out_heads, lse_heads]


@context_parallel_op.register_fake
def _fake(q, k, v, cu_seqlens, sinks, alibi_slopes, gather, ulysses, sharding, causal, window, scale,
          softcap, chunks, sm_margin, layout, return_lse, check):
    ranks = Group(ulysses).size
    rows, batch, heads_q, head_dim = to_rows(q, layout).shape
    lse = lambda heads, rows: q.new_empty((batch, heads, rows), dtype=torch.float32)
    out = torch.empty_like(q)
    if ranks == 1:
        return [out, lse(heads_q, rows)]
    heads_kv = to_rows(k, layout).shape[2]
    heads = [heads_q // ranks] + 2 * [heads_kv * replication(heads_q, heads_kv, ranks) // ranks]
    exchanged = [q.new_empty((rows * ranks, batch, n, head_dim)) for n in heads]
    return [out, lse(heads_q, rows) if return_lse else q.new_empty(0, dtype=torch.float32), *exchanged,
            torch.empty_like(exchanged[0]), lse(heads[0], rows * ranks)]


@torch.library.custom_op("octavo::context_parallel_backward", mutates_args=())
def context_parallel_backward_op(
        dout: Tensor, saved: list[Tensor], cu_seqlens: Tensor | None, sinks: Tensor | None,
        alibi_slopes: Tensor | None, heads_kv: int, needs_dsinks: bool, gather: str, ulysses: str,
        sharding: str, causal: bool, window: list[int] | None, scale: float | None, softcap: float,
        chunks: int, sm_margin: int, layout: str) -> list[Tensor]:
    """dq, dk, dv and dsinks, which is empty unless needed. `saved`: q, k, v, out and LSE; of "ulysses" the
    exchanged ones. The dsinks of all ranks add up to the gradient."""
    gather, ulysses = Group(gather), Group(ulysses)
    documents = None if cu_seqlens is None else cu_seqlens.tolist()
    # The gradient of a sum is an expanded number, and others may be transposed.
    rows = to_rows(dout if dout.stride(-1) == 1 else dout.contiguous(), layout)
    heads_q = rows.shape[2]
    attention = Attention(gather, rows.shape[0] * ulysses.size, sharding, causal, window, scale, documents,
                          chunks, sm_margin, layout, _modifiers(softcap, sinks, alibi_slopes, heads_q, ulysses))
    dsinks = rows.new_zeros(heads_q if needs_dsinks else 0, dtype=torch.float32)
    if ulysses.size == 1:
        q, k, v, out = (to_rows(x, layout) for x in saved[:4])
        *gradients, found = attention.backward(rows, q, k, v, out, saved[4], needs_dsinks)
    else:
        dout_heads, = rows_to_heads([rows], ulysses, sharding)
        *gradients, found = attention.backward(dout_heads, *saved, needs_dsinks)
        dq, dk, dv = heads_to_rows(gradients, ulysses, sharding)
        gradients = (dq, *(_sum_repeated(x, x.shape[2] // heads_kv) for x in (dk, dv)))
    if needs_dsinks:
        dsinks.view(ulysses.size, -1)[ulysses.rank].copy_(found)
    return [*(_from_rows(x, layout).contiguous() for x in gradients), dsinks]


@context_parallel_backward_op.register_fake
def _fake_backward(dout, saved, cu_seqlens, sinks, alibi_slopes, heads_kv, needs_dsinks, gather, ulysses,
                   sharding, causal, window, scale, softcap, chunks, sm_margin, layout):
    rows, batch, heads_q, head_dim = to_rows(dout, layout).shape
    empty = lambda heads: _from_rows(dout.new_empty((rows, batch, heads, head_dim)), layout).contiguous()
    return [empty(heads_q), empty(heads_kv), empty(heads_kv),
            dout.new_empty(heads_q if needs_dsinks else 0, dtype=torch.float32)]


def _setup_context(ctx, inputs, output):
    (q, k, v), tensors, ctx.settings = inputs[:3], inputs[3:6], inputs[6:-2]
    ctx.heads_kv = to_rows(k, ctx.settings[-1]).shape[2]
    saved = [q, k, v, *output] if len(output) == 2 else output[2:]
    ctx.save_for_backward(*tensors, *saved)
    ctx.set_materialize_grads(False)


def _backward(ctx, gradients):
    given = 6 + len(ctx.settings) + 2  # the inputs of the operator
    if gradients[0] is None:
        return (None,) * given
    cu_seqlens, sinks, slopes, *saved = ctx.saved_tensors
    needs_dsinks = ctx.needs_input_grad[4]
    dq, dk, dv, dsinks = torch.ops.octavo.context_parallel_backward(
        gradients[0], saved, cu_seqlens, sinks, slopes, ctx.heads_kv, needs_dsinks, *ctx.settings)
    return (dq, dk, dv, None, dsinks if needs_dsinks else None) + (None,) * (given - 5)


context_parallel_op.register_autograd(_backward, setup_context=_setup_context)
