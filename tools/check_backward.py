#!/usr/bin/env python3
"""Checks gradients on a GPU against PyTorch in fp64, and their bits from run to run.

Random problems (types, head dimensions, masks, grouped heads, varlen batches, strides) run through
the C interface of liboctavo, forward and backward. An error is measured against fp64 gradients and
held against that of PyTorch's math in the same 16-bit type: at most twice as large, plus one rounding
of the largest gradient and what FP32 leaves where a gradient cancels. Every problem runs twice and must give the same bits, and rows that belong
to no sequence must stay untouched. With --time the backward pass is timed next to PyTorch's flash
backend.

usage: check_backward.py --library build/liboctavo.so [--cases 200] [--seed 0] [--time]
"""

import argparse
import random
import statistics
import sys
from ctypes import byref, c_void_p

import octavo_c

ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8}
HEAD_DIMS = (8, 16, 40, 64, 64, 72, 80, 96, 104, 128, 128, 160, 192, 200, 256)
CANCELLED = 2e-4  # FP32 rounding of dP - delta, added up over rows whose exact gradient is 0
MARK = 12345.0  # in gradients before a run, where no result may appear
TIMED = ((1, 32, 16384, 64), (8, 32, 2048, 64), (1, 16, 16384, 128), (4, 16, 4096, 128),
         (8, 16, 2048, 128), (1, 8, 16384, 256), (1, 8, 512, 64))


class Case:
    """One problem; lengths are lists in a varlen batch."""

    def __init__(self, dtype, batch, heads_q, heads_kv, q_lengths, kv_lengths, head_dim, causal="none",
                 window=(-1, -1), scale=None, varlen=False, gap=0):
        self.dtype, self.batch, self.heads_q, self.heads_kv = dtype, batch, heads_q, heads_kv
        self.q_lengths, self.kv_lengths, self.head_dim = q_lengths, kv_lengths, head_dim
        self.causal, self.window, self.scale = causal, window, scale
        self.varlen, self.gap = varlen, gap

    def __str__(self):
        return (f"{self.dtype} B={self.batch} H={self.heads_q}/{self.heads_kv} Sq={self.q_lengths} "
                f"Skv={self.kv_lengths} D={self.head_dim} {self.causal} window={self.window} "
                f"scale={self.scale} gap={self.gap}")

    @staticmethod
    def sample(r):
        varlen = r.random() < 0.25
        heads_kv = r.choice((1, 1, 2, 3))
        count = r.choice((1, 3, 5)) if varlen else 1
        longest = r.choice((40, 200, 700))
        q = [r.randint(0 if varlen else 1, longest) for _ in range(count)]
        kv = q if r.random() < 0.4 else [r.randint(0 if varlen else 1, longest) for _ in range(count)]
        window = (-1, -1) if r.random() < 0.6 else (r.randint(-1, 90), r.randint(-1, 90))
        return Case(r.choice(("f16", "bf16")), 1 if varlen else r.choice((1, 2, 3)),
                    heads_kv * r.choice((1, 1, 2, 4)), heads_kv, q, kv, r.choice(HEAD_DIMS),
                    r.choice(("none", "top_left", "bottom_right")), window,
                    r.choice((None, None, 0.3, -0.1)), varlen, r.choice((0, 0, 0, 1, 2, 4, 8)))

    def spans(self):
        """(batch, first query, queries, first key, keys) of each sequence."""
        if not self.varlen:
            return [(b, 0, self.q_lengths[0], 0, self.kv_lengths[0]) for b in range(self.batch)]
        spans, q, kv = [], 0, 0
        for q_length, kv_length in zip(self.q_lengths, self.kv_lengths):
            spans.append((0, q, q_length, kv, kv_length))
            q, kv = q + q_length, kv + kv_length
        return spans


class Tensors:
    """Inputs and outputs of a case on the GPU: NaN between rows, and a few tokens of no sequence."""

    def __init__(self, torch, case, seed):
        self.torch, self.case = torch, case
        generator = torch.Generator("cuda").manual_seed(seed)
        extra = 3 if case.varlen else 0
        tokens_q, tokens_kv = sum(case.q_lengths) + extra, sum(case.kv_lengths) + extra
        q_shape = (case.batch, case.heads_q, tokens_q, case.head_dim)
        kv_shape = (case.batch, case.heads_kv, tokens_kv, case.head_dim)

        def normal(shape, end):
            x = self.spread(shape, float("nan"))
            values = torch.randn(shape, generator=generator, device="cuda").to(x.dtype)
            x[:, :, :end] = values[:, :, :end]
            return x
        ends = sum(case.q_lengths), sum(case.kv_lengths)
        self.q, self.dout = normal(q_shape, ends[0]), normal(q_shape, ends[0])
        self.k, self.v = normal(kv_shape, ends[1]), normal(kv_shape, ends[1])
        self.out = self.spread(q_shape, float("nan"))
        self.lse = torch.full(q_shape[:3] + (1,), float("nan"), device="cuda")
        self.dq, self.dk, self.dv = (self.spread(s, MARK) for s in (q_shape, kv_shape, kv_shape))
        self.cu_q = self.cu(case.q_lengths) if case.varlen else None
        self.cu_kv = self.cu(case.kv_lengths) if case.varlen else None

    def spread(self, shape, value):
        """A tensor with `gap` elements between its rows."""
        dtype = self.torch.float16 if self.case.dtype == "f16" else self.torch.bfloat16
        wide = self.torch.full(shape[:3] + (shape[3] + self.case.gap,), value, dtype=dtype,
                               device="cuda")
        return wide[..., :shape[3]]

    def cu(self, lengths):
        totals = [0]
        for length in lengths:
            totals.append(totals[-1] + length)
        return self.torch.tensor(totals, dtype=self.torch.int32, device="cuda")

    def gradients(self):
        return {"dq": self.dq, "dk": self.dk, "dv": self.dv}


def tensor_of(x, dtype):
    made = octavo_c.Tensor()
    made.data, made.dtype = x.data_ptr(), dtype
    made.shape[:], made.stride[:] = x.shape, x.stride()
    return made


class Backward:
    """The library's forward and backward pass on torch tensors, on the current stream."""

    def __init__(self, torch, octavo, device):
        self.torch, self.octavo, self.device = torch, octavo, device.encode()

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
        return made

    def options(self, case):
        made = self.octavo.options(case.causal)
        made.window_left, made.window_right = case.window
        return made

    def stream(self):
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
        self.octavo.check(self.octavo.c.octavo_attention_backward(
            byref(made), byref(self.options(t.case)), self.device, self.stream()))


def visible(torch, case, seqlen_q, seqlen_kv):
    """Which keys each query sees."""
    offset = 0 if case.causal == "top_left" else seqlen_kv - seqlen_q
    diagonal = torch.arange(seqlen_q, device="cuda")[:, None] + offset
    key = torch.arange(seqlen_kv, device="cuda")[None, :]
    left, right = case.window
    seen = torch.ones(seqlen_q, seqlen_kv, dtype=torch.bool, device="cuda")
    if case.causal != "none":
        seen &= key <= diagonal
    if left >= 0:
        seen &= key >= diagonal - left
    if right >= 0:
        seen &= key <= diagonal + right
    return seen


def math_gradients(torch, t, dtype):
    """Gradients by PyTorch's autograd in `dtype`; MARK where no sequence is."""
    case = t.case
    group = case.heads_q // case.heads_kv
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    found = {name: torch.full(x.shape, MARK, dtype=torch.float64, device="cuda")
             for name, x in t.gradients().items()}
    for b, q_begin, q_count, kv_begin, kv_count in case.spans():
        rows, keys = slice(q_begin, q_begin + q_count), slice(kv_begin, kv_begin + kv_count)
        q, k, v = (x[b][:, part].to(dtype).detach().requires_grad_()
                   for x, part in ((t.q, rows), (t.k, keys), (t.v, keys)))
        seen = visible(torch, case, q_count, kv_count)
        s = (q @ k.repeat_interleave(group, 0).transpose(1, 2)) * scale
        # Rows without keys get 0, not the NaN of an empty softmax.
        p = torch.softmax(s.masked_fill(~seen, torch.finfo(dtype).min), 2).masked_fill(~seen, 0)
        out = p @ v.repeat_interleave(group, 0)
        out.backward(t.dout[b][:, rows].to(dtype))
        for name, part, x in (("dq", rows, q), ("dk", keys, k), ("dv", keys, v)):
            found[name][b][:, part] = x.grad.double()
    return found


def failures(torch, t, first_bits):
    """What is wrong with the gradients of a case, as sentences."""
    exact = math_gradients(torch, t, torch.float64)
    peer = math_gradients(torch, t, t.q.dtype)
    for name, x in t.gradients().items():
        if not torch.equal(x.view(torch.int16), first_bits[name]):
            yield f"{name} has other bits in the second run"
        owned = exact[name] != MARK
        if not torch.all(x[~owned].float() == torch.tensor(MARK, dtype=x.dtype).float()):
            yield f"{name} is written where no sequence is"
        if not owned.any():
            continue
        wanted = exact[name][owned]
        error = (x[owned].double() - wanted).abs().max().item()
        allowed = (2 * (peer[name][owned] - wanted).abs().max().item() +
                   ROUNDING[t.case.dtype] * wanted.abs().max().item() + CANCELLED)
        if not error <= allowed:
            yield f"{name} is off by {error:.3g}, allowed {allowed:.3g}"


def check_case(torch, octavo, case, seed):
    t = Tensors(torch, case, seed)
    octavo.forward(t)
    octavo.backward(t)
    # Bits are compared, since a NaN differs from itself.
    first = {name: x.view(torch.int16).clone() for name, x in t.gradients().items()}
    octavo.backward(t)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    import torch
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU")
    octavo = Backward(torch, octavo_c.Octavo(options.library), options.device)
    failed = 0
    for i in range(options.cases):
        case = Case.sample(random.Random(options.seed + i))
        wrong = check_case(torch, octavo, case, options.seed + i)
        failed += bool(wrong)
        for sentence in wrong:
            print(f"case {options.seed + i}: {sentence}: {case}", flush=True)
    print(f"{options.cases} cases, {failed} failed")
    if options.time:
        time_shapes(torch, octavo)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
