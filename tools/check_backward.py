#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks gradients on a GPU against PyTorch in fp64, and their bits from run to run.

Random problems (types, head dimensions, masks, grouped heads, varlen and padded batches, pairs of
score modifiers and block masks, strides) run through the C interface of liboctavo, forward and
backward. An error is measured against fp64 gradients. It may be twice that of PyTorch's math in the
same 16-bit type, or twice what rounding O to that type does to gradients in fp64, if that is more:
delta = rowsum(dO * O) is computed from the O that was stored. One rounding of the largest gradient
and what FP32 leaves where a gradient cancels are added. Every problem runs twice and must give the
same bits. Rows that belong to no sequence of a varlen batch must stay untouched, and padding must get
zeros. With --time the backward pass is timed next to PyTorch's flash backend, and with each modifier
next to itself without.

usage: check_backward.py --library build/liboctavo.so [--cases 200] [--per-kernel 1]
                         [--seconds N] [--seed 0] [--device cuda:0] [--time]
"""

import argparse
import random
import statistics
import sys
import time
from ctypes import byref, c_void_p

import octavo_c

ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8}
HEAD_DIMS = (8, 16, 40, 64, 64, 72, 80, 96, 104, 128, 128, 160, 192, 200, 256)
MODIFIERS = ("softcap", "bias", "alibi", "sinks", "mask", "padding", "blocks")
SOFTCAP = 1.5
CANCELLED = 2e-4  # FP32 rounding of dP - delta, added up over rows whose exact gradient is 0
MARK = 12345.0  # in gradients before a run, where no result may appear
TIMED = ((1, 32, 16384, 64), (8, 32, 2048, 64), (1, 16, 16384, 128), (4, 16, 4096, 128),
         (8, 16, 2048, 128), (1, 8, 16384, 256), (1, 8, 512, 64))


class Case:
    """One problem; lengths are lists in a varlen batch."""

    def __init__(self, dtype, batch, heads_q, heads_kv, q_lengths, kv_lengths, head_dim, causal="none",
                 window=(-1, -1), scale=None, varlen=False, gap=0, modifiers=(), bias_by=(True, True),
                 padding=()):
        self.dtype, self.batch, self.heads_q, self.heads_kv = dtype, batch, heads_q, heads_kv
        self.q_lengths, self.kv_lengths, self.head_dim = q_lengths, kv_lengths, head_dim
        self.causal, self.window, self.scale = causal, window, scale
        self.varlen, self.gap, self.modifiers = varlen, gap, modifiers
        self.bias_by = bias_by  # whether bias and mask have batch entries, and heads, of their own
        self.padding = padding  # (before, queries, before, keys) of each batch entry
        self.block_size = 0  # of a block mask

    def __str__(self):
        return (f"{self.dtype} B={self.batch} H={self.heads_q}/{self.heads_kv} Sq={self.q_lengths} "
                f"Skv={self.kv_lengths} D={self.head_dim} {self.causal} window={self.window} "
                f"scale={self.scale} gap={self.gap} modifiers={self.modifiers} by={self.bias_by} "
                f"padding={self.padding} block_size={self.block_size}")

    @staticmethod
    def sample(r, kernels):
        """A problem; what selects kernels is drawn from `kernels`."""
        varlen = kernels.random() < 0.25
        heads_kv = r.choice((1, 1, 2, 3))
        count = r.choice((1, 3, 5)) if varlen else 1
        longest = r.choice((40, 200, 700))
        q = [r.randint(0 if varlen else 1, longest) for _ in range(count)]
        kv = q if r.random() < 0.4 else [r.randint(0 if varlen else 1, longest) for _ in range(count)]
        window = (-1, -1) if r.random() < 0.6 else (r.randint(-1, 90), r.randint(-1, 90))
        case = Case(kernels.choice(("f16", "bf16")), 1 if varlen else r.choice((1, 2, 3)),
                    heads_kv * r.choice((1, 1, 2, 4)), heads_kv, q, kv, kernels.choice(HEAD_DIMS),
                    r.choice(("none", "top_left", "bottom_right")), window,
                    r.choice((None, None, 0.3, -0.1)), varlen, kernels.choice((0, 0, 0, 1, 2, 4, 8)))
        if kernels.random() < 0.6:
            case.draw_modifiers(r, kernels)
        return case

    def draw_modifiers(self, r, kernels):
        known = [x for x in MODIFIERS if not self.varlen or x in ("softcap", "alibi", "sinks")]
        self.modifiers = tuple(kernels.sample(known, 2))
        if "blocks" in self.modifiers:  # not in a padded batch
            self.modifiers = tuple(x for x in self.modifiers if x != "padding")
            self.block_size = kernels.choice((64, 128))
        self.bias_by = (r.random() < 0.5, r.random() < 0.5)
        if "padding" in self.modifiers:
            self.padding = []
            for _ in range(self.batch):
                rows = []
                for length in (self.q_lengths[0], self.kv_lengths[0]):
                    before = r.randint(0, length)
                    rows += [before, r.randint(0, length - before)]
                self.padding.append(tuple(rows))

    def spans(self):
        """(batch, first query, queries, first key, keys) of each sequence."""
        if self.padding:
            return [(b, *rows) for b, rows in enumerate(self.padding)]
        if not self.varlen:
            return [(b, 0, self.q_lengths[0], 0, self.kv_lengths[0]) for b in range(self.batch)]
        spans, q, kv = [], 0, 0
        for q_length, kv_length in zip(self.q_lengths, self.kv_lengths):
            spans.append((0, q, q_length, kv, kv_length))
            q, kv = q + q_length, kv + kv_length
        return spans


class Tensors:
    """Inputs and outputs of a case on the GPU: NaN between rows, and a few tokens of no sequence."""

    def __init__(self, torch, case, seed, where="cuda"):
        self.torch, self.case, self.where = torch, case, where
        generator = torch.Generator(where).manual_seed(seed)
        extra = 3 if case.varlen else 0
        tokens_q, tokens_kv = sum(case.q_lengths) + extra, sum(case.kv_lengths) + extra
        q_shape = (case.batch, case.heads_q, tokens_q, case.head_dim)
        kv_shape = (case.batch, case.heads_kv, tokens_kv, case.head_dim)

        def normal(shape, end):
            x = self.spread(shape, float("nan"))
            values = torch.randn(shape, generator=generator, device=where).to(x.dtype)
            x[:, :, :end] = values[:, :, :end]
            for b, rows in enumerate(case.padding):
                before, count = rows[:2] if shape is q_shape else rows[2:]
                x[b, :, :before] = x[b, :, before + count:] = float("nan")
            return x
        ends = sum(case.q_lengths), sum(case.kv_lengths)
        self.q, self.dout = normal(q_shape, ends[0]), normal(q_shape, ends[0])
        self.k, self.v = normal(kv_shape, ends[1]), normal(kv_shape, ends[1])
        self.out = self.spread(q_shape, float("nan"))
        self.lse = torch.full(q_shape[:3] + (1,), float("nan"), device=where)
        self.dq, self.dk, self.dv = (self.spread(s, MARK) for s in (q_shape, kv_shape, kv_shape))
        self.cu_q = self.cu(case.q_lengths) if case.varlen else None
        self.cu_kv = self.cu(case.kv_lengths) if case.varlen else None
        self.add_modifiers(generator, (case.batch, case.heads_q, tokens_q, tokens_kv))

    def add_modifiers(self, generator, scores):
        torch, case, where = self.torch, self.case, self.where
        shape = tuple(n if i > 1 or case.bias_by[i] else 1 for i, n in enumerate(scores))
        sequences = len(case.spans())
        self.bias = self.dbias = self.mask = self.slopes = self.sinks = self.dsinks = None
        if "bias" in case.modifiers:
            self.bias = torch.randn(shape, generator=generator, device=where)
            if case.bias_by[0]:
                self.bias = self.bias.to(self.q.dtype)
            self.dbias = torch.full_like(self.bias, MARK)
        if "mask" in case.modifiers:
            self.mask = torch.rand(shape, generator=generator, device=where) < 0.8
        if "alibi" in case.modifiers:
            self.slopes = torch.rand(sequences, case.heads_q, generator=generator, device=where) * 0.1
        if "sinks" in case.modifiers:
            self.sinks = torch.randn(case.heads_q, generator=generator, device=where)
            self.dsinks = torch.full_like(self.sinks, MARK)
        self.blocks = self.lists = None
        if case.block_size:
            self.add_blocks(generator, shape)
        columns = zip(*case.padding) if case.padding else ()
        self.padding = [torch.tensor(x, dtype=torch.int32, device=where) for x in columns]

    def add_blocks(self, generator, shape):
        """A third of the blocks is hidden, a third seen in full, and of the others a part."""
        torch, size = self.torch, self.case.block_size
        counts = tuple(-(-n // size) for n in shape[2:])
        kinds = torch.randint(0, 3, (*shape[:2], *counts), generator=generator, device=self.where)
        bits = torch.rand((*kinds.shape, size, size), generator=generator, device=self.where) < 0.5
        tiles = (kinds == 2)[..., None, None] | ((kinds == 1)[..., None, None] & bits)
        rows = tiles.transpose(3, 4).reshape(*shape[:2], counts[0] * size, counts[1] * size)
        self.blocks = rows[:, :, :shape[2], :shape[3]]

        def listed(of_kind):
            order = (~of_kind).int().argsort(dim=-1, stable=True)
            return of_kind.sum(-1).int().contiguous(), order.int().contiguous()

        partial = kinds == 1
        numbers = (partial.reshape(-1).cumsum(0) - 1).reshape(partial.shape)
        (few, indices), full = listed(partial), listed(kinds == 2)
        powers = 1 << torch.arange(32, device=self.where)
        words = (bits[partial].reshape(-1, size, size // 32, 32).long() * powers).sum(-1)
        words = torch.cat((words, words.new_zeros(1, size, size // 32)))  # never empty
        self.lists = {"kv_num_blocks": few, "kv_indices": indices, "full_kv_num_blocks": full[0],
                      "full_kv_indices": full[1],
                      "bit_indices": numbers.gather(-1, indices.long()).clamp(min=0).int().contiguous(),
                      "bits": words.to(torch.int32).contiguous()}

    def spread(self, shape, value):
        """A tensor with `gap` elements between its rows."""
        dtype = self.torch.float16 if self.case.dtype == "f16" else self.torch.bfloat16
        wide = self.torch.full(shape[:3] + (shape[3] + self.case.gap,), value, dtype=dtype,
                               device=self.where)
        return wide[..., :shape[3]]

    def cu(self, lengths):
        totals = [0]
        for length in lengths:
            totals.append(totals[-1] + length)
        return self.torch.tensor(totals, dtype=self.torch.int32, device=self.where)

    def gradients(self):
        found = {"dq": self.dq, "dk": self.dk, "dv": self.dv, "dbias": self.dbias, "dsinks": self.dsinks}
        return {name: x for name, x in found.items() if x is not None}


def tensor_of(x, dtype):
    made = octavo_c.Tensor()
    made.data, made.dtype = x.data_ptr(), dtype
    made.shape[:], made.stride[:] = x.shape, x.stride()
    return made


class Backward:
    """The library's forward and backward pass on torch tensors, on the current stream."""

    def __init__(self, torch, octavo, device):
        self.torch, self.octavo, self.device = torch, octavo, device.encode()
        self.where = "cpu" if device == "cpu" else "cuda"

    def fill(self, made, t):
        c, element = t.case, octavo_c.WIDE[t.case.dtype]
        for name in ("q", "k", "v", "out"):
            setattr(made, name, tensor_of(getattr(t, name), element))
        made.lse = tensor_of(t.lse, octavo_c.F32)
        if c.scale is not None:
            made.has_scale, made.scale = 1, c.scale
        if c.varlen:
            made.cu_seqlens_q, made.cu_seqlens_kv = t.cu_q.data_ptr(), t.cu_kv.data_ptr()
            made.sequences = len(c.q_lengths)
            made.max_seqlen_q, made.max_seqlen_kv = max(c.q_lengths), max(c.kv_lengths)
        names = ("leftpad_q", "seqlens_q", "leftpad_kv", "seqlens_kv")
        for name, lengths in zip(names, t.padding):
            setattr(made, name, lengths.data_ptr())
        if t.bias is not None:
            made.bias = self.score_tensor(t.bias)
        if t.mask is not None:
            made.mask = tensor_of(t.mask, octavo_c.BOOL)
        if t.slopes is not None:
            made.alibi_slopes, made.alibi_batch_stride = t.slopes.data_ptr(), t.slopes.shape[1]
        if t.sinks is not None:
            made.sinks = t.sinks.data_ptr()
        if t.lists is not None:
            self.fill_blocks(made.block_mask, t)
        return made

    @staticmethod
    def fill_blocks(made, t):
        made.block_size = t.case.block_size
        made.batch, made.heads, made.q_blocks = t.lists["kv_num_blocks"].shape
        made.kv_capacity = made.full_kv_capacity = t.lists["kv_indices"].shape[3]
        made.bit_blocks = len(t.lists["bits"])
        for name, x in t.lists.items():
            setattr(made, name, x.data_ptr())

    def score_tensor(self, x):
        torch = self.torch
        dtype = {torch.float32: octavo_c.F32, torch.float16: octavo_c.F16, torch.bfloat16: octavo_c.BF16}
        return tensor_of(x, dtype[x.dtype])

    def options(self, case):
        made = self.octavo.options(case.causal)
        made.window_left, made.window_right = case.window
        made.softcap = SOFTCAP if "softcap" in case.modifiers else 0
        return made

    def stream(self):
        if self.device == b"cpu":
            return None
        return c_void_p(self.torch.cuda.current_stream().cuda_stream)

    def forward(self, t):
        made = self.fill(self.octavo.arguments(), t)
        self.octavo.check(self.octavo.c.octavo_attention(
            byref(made), byref(self.options(t.case)), self.device, self.stream()))

    def backward(self, t):
        made = self.fill(self.octavo.backward_arguments(), t)
        element = octavo_c.WIDE[t.case.dtype]
        for name in ("dout", "dq", "dk", "dv"):
            setattr(made, name, tensor_of(getattr(t, name), element))
        if t.dbias is not None:
            made.dbias = self.score_tensor(t.dbias)
        if t.dsinks is not None:
            made.dsinks = t.dsinks.data_ptr()
        self.octavo.check(self.octavo.c.octavo_attention_backward(
            byref(made), byref(self.options(t.case)), self.device, self.stream()))


def distances(torch, case, seqlen_q, seqlen_kv, where):
    """From each key to each query's diagonal."""
    offset = 0 if case.causal == "top_left" else seqlen_kv - seqlen_q
    diagonal = torch.arange(seqlen_q, device=where)[:, None] + offset
    return torch.arange(seqlen_kv, device=where)[None, :] - diagonal


def visible(torch, case, ahead):
    """Which keys each query sees, by their distances."""
    left, right = case.window
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if case.causal != "none":
        seen &= ahead <= 0
    if left >= 0:
        seen &= ahead >= -left
    if right >= 0:
        seen &= ahead <= right
    return seen


def weights(torch, t, s, bias, sinks, sequence, b, rows, keys):
    """P and LSE of one sequence from scores s = scale * q k."""
    case = t.case
    ahead = distances(torch, case, s.shape[1], s.shape[2], t.where)
    seen = visible(torch, case, ahead).expand(s.shape)
    if "softcap" in case.modifiers:
        s = SOFTCAP * torch.tanh(s / SOFTCAP)
    if bias is not None:
        s = s + bias
    if t.slopes is not None:
        s = s - t.slopes[sequence].to(s.dtype)[:, None, None] * ahead.abs()
    if t.mask is not None:
        whole = (case.batch, case.heads_q, *t.mask.shape[2:])
        seen = seen & t.mask.expand(whole)[b][:, rows, keys]
    if t.blocks is not None:
        seen = seen & t.blocks.expand(case.batch, case.heads_q, *t.blocks.shape[2:])[b]
    # Rows without keys get 0, not the NaN of an empty softmax.
    s = s.masked_fill(~seen, torch.finfo(s.dtype).min)
    if sinks is not None:
        s = torch.cat((s, sinks[:, None, None].expand(-1, s.shape[1], 1)), 2)
    return torch.softmax(s, 2)[:, :, :seen.shape[2]].masked_fill(~seen, 0), torch.logsumexp(s, 2)


def math_gradients(torch, t, dtype, rounds_out=False):
    """Gradients by PyTorch's autograd in `dtype`; MARK where no sequence of a varlen batch is.

    With rounds_out, delta is that of O rounded to the problem's type. It then changes by
    rowsum(dO * (rounded O - O)), and dS by -P times as much: as if the loss had so much less of the LSE.
    """
    case = t.case
    group = case.heads_q // case.heads_kv
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    found = {name: torch.full(x.shape, MARK if case.varlen and name in ("dq", "dk", "dv") else 0,
                              dtype=torch.float64, device=t.where)
             for name, x in t.gradients().items()}
    for sequence, (b, q_begin, q_count, kv_begin, kv_count) in enumerate(case.spans()):
        rows, keys = slice(q_begin, q_begin + q_count), slice(kv_begin, kv_begin + kv_count)

        def leaf(x):
            return None if x is None else x.to(dtype).detach().clone().requires_grad_()

        q, k, v = (leaf(x[b][:, part]) for x, part in ((t.q, rows), (t.k, keys), (t.v, keys)))
        whole = None if t.bias is None else t.bias.expand(case.batch, case.heads_q, *t.bias.shape[2:])
        bias = leaf(None if whole is None else whole[b][:, rows, keys])
        sinks = leaf(t.sinks)
        s = (q @ k.repeat_interleave(group, 0).transpose(1, 2)) * scale
        probability, lse = weights(torch, t, s, bias, sinks, sequence, b, rows, keys)
        out = probability @ v.repeat_interleave(group, 0)
        dout = t.dout[b][:, rows].to(dtype)
        loss = (dout * out).sum()
        if rounds_out:
            rounded = out.detach().to(t.q.dtype).to(dtype)
            loss = loss - ((dout * (rounded - out.detach())).sum(2) * lse).sum()
        loss.backward()
        for name, part, x in (("dq", rows, q), ("dk", keys, k), ("dv", keys, v)):
            found[name][b][:, part] = x.grad.double()
        if bias is not None:
            entry = found["dbias"][b if t.bias.shape[0] > 1 else 0][:, rows, keys]
            entry += bias.grad.double() if t.bias.shape[1] > 1 else bias.grad.double().sum(0, True)
        if sinks is not None:
            found["dsinks"] += sinks.grad.double()
    return found


def failures(torch, t, first_bits):
    """What is wrong with the gradients of a case, as sentences."""
    exact = math_gradients(torch, t, torch.float64)
    peers = [math_gradients(torch, t, t.q.dtype), math_gradients(torch, t, torch.float64, True)]
    for name, x in t.gradients().items():
        if not torch.equal(x.view(torch.int16), first_bits[name]):
            yield f"{name} has other bits in the second run"
        owned = exact[name] != MARK
        if not torch.all(x[~owned].float() == torch.tensor(MARK, dtype=x.dtype).float()):
            yield f"{name} is written where no sequence is"
        if not owned.any():
            continue
        wanted = exact[name][owned]
        for b, rows in enumerate(t.case.padding if name in ("dq", "dk", "dv") else ()):
            before, count = rows[:2] if name == "dq" else rows[2:]
            if (x[b, :, :before] != 0).any() or (x[b, :, before + count:] != 0).any():
                yield f"{name} is not zero in the padding of entry {b}"
        error = (x[owned].double() - wanted).abs().max().item()
        allowed = (2 * max((peer[name][owned] - wanted).abs().max().item() for peer in peers) +
                   ROUNDING[t.case.dtype] * wanted.abs().max().item() + CANCELLED)
        if not error <= allowed:
            yield f"{name} is off by {error:.3g}, allowed {allowed:.3g}"


def check_case(torch, octavo, case, seed):
    t = Tensors(torch, case, seed, octavo.where)
    octavo.forward(t)
    octavo.backward(t)
    # Bits are compared, since a NaN differs from itself.
    first = {name: x.view(torch.int16).clone() for name, x in t.gradients().items()}
    octavo.backward(t)
    if octavo.where != "cpu":
        torch.cuda.synchronize()
    return list(failures(torch, t, first))


def median_us(torch, run, repeats=15):
    run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times)


def time_shapes(torch, octavo):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    print("shape                      mask      octavo us  TFLOP/s   flash us  TFLOP/s  ratio")
    for batch, heads, length, head_dim in TIMED:
        for causal in ("none", "top_left"):
            t = Tensors(torch, Case("bf16", batch, heads, heads, [length], [length], head_dim, causal),
                        0)
            octavo.forward(t)
            ours = median_us(torch, lambda: octavo.backward(t))
            q, k, v = (x.detach().requires_grad_() for x in (t.q, t.k, t.v))
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                out = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=causal != "none")
            theirs = median_us(torch, lambda: torch.autograd.grad(out, (q, k, v), t.dout,
                                                                  retain_graph=True))
            flops = 10 * batch * heads * length**2 * head_dim / (1 if causal == "none" else 2)
            shape = f"({batch},{heads},{length},{head_dim})"
            print(f"{shape:26} {causal:9} {ours:9.1f} {flops / ours / 1e6:8.0f}  {theirs:9.1f} "
                  f"{flops / theirs / 1e6:8.0f}  {theirs / ours:5.2f}", flush=True)


def time_modifiers(torch, octavo):
    print("\nshape                   modifier      us  of the plain kernels")
    for head_dim in (64, 128, 256):
        plain = None
        for modifier in (None, "softcap", "alibi", "sinks", "padding", "mask", "bias", "blocks"):
            case = Case("bf16", 2, 16, 16, [4096], [4096], head_dim, "top_left",
                        modifiers=(modifier,) if modifier else ())
            if modifier == "padding":
                case.padding = [(0, 2048, 0, 2048)] * 2
            case.block_size = 128 if modifier == "blocks" else 0
            t = Tensors(torch, case, 0)
            octavo.forward(t)
            us = median_us(torch, lambda: octavo.backward(t), 7)
            plain = plain or us
            print(f"(2,16,4096,{head_dim}) causal {modifier or 'none':9} {us:9.1f} {us / plain:6.2f}",
                  flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seconds", type=float, help="begin no case after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-kernel", type=int, default=1,
                        help="problems in turn of one type, head dimension and set of modifiers, whose "
                             "kernels are compiled once")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    import torch
    if options.device != "cpu" and not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU")
    octavo = Backward(torch, octavo_c.Octavo(options.library), options.device)
    failed = done = 0
    start = time.monotonic()
    for i in range(options.cases):
        if options.seconds is not None and time.monotonic() - start > options.seconds:
            break
        done += 1
        kernels = random.Random(f"kernels {options.seed} {i // options.per_kernel}")
        case = Case.sample(random.Random(options.seed + i), kernels)
        try:
            wrong = check_case(torch, octavo, case, options.seed + i)
        except RuntimeError as error:
            wrong = [f"raised: {error}"]
        failed += bool(wrong)
        for sentence in wrong:
            print(f"case {options.seed + i}: {sentence}: {case}", flush=True)
    print(f"{done} cases, {failed} failed")
    if options.time:
        time_shapes(torch, octavo)
        time_modifiers(torch, octavo)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
