# SPDX-License-Identifier: Apache-2.0
"""PyTorch on a GPU: parity with SDPA, streams, graphs, torch.compile, and the cost of a call."""

import functools
import time

import numpy
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no GPU here", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

import octavo  # noqa: E402
import octavo.torch  # noqa: E402

CASES = 300


def tensors(*shape, dtype=torch.float16):
    return [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3)]


def in_16_bits(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Unfused attention, with P and O rounded to the type of the inputs."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q.float() @ k.float().transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if is_causal:
        s.masked_fill_(torch.ones(s.shape[2:], device=s.device).triu(1).bool(), -torch.inf)
    if attn_mask is not None:
        s.masked_fill_(~attn_mask, -torch.inf)
    return (s.softmax(-1).to(q.dtype).float() @ v.float()).to(q.dtype)


def check_16_bits(out, q, k, v, **options):
    """Twice the error of unfused 16-bit attention, plus the rounding of the output, plus a last bit."""
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), **options)
    rounded = (in_16_bits(q, k, v, **options).double() - exact).abs().max()
    floor = ((exact.to(out.dtype) + 0.3 - 0.3).double() - exact).abs().max()
    error = (out.double() - exact).abs().max()
    assert error <= 2 * rounded + 2 * floor + torch.finfo(out.dtype).eps, float(error)


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(42)
    octavo.torch.reset_fallbacks()


def random_case(draw):
    b, h, group = (int(draw.integers(1, 4)) for _ in range(3))
    sq, skv = (int(draw.integers(1, 400)) for _ in range(2))
    d = 8 * int(draw.integers(1, 33))
    dtype = [torch.float16, torch.bfloat16][draw.integers(2)]
    q = torch.randn(b, h * group, sq, d, device="cuda", dtype=dtype)
    k, v = (torch.randn(b, h, skv, d, device="cuda", dtype=dtype) for _ in range(2))
    if draw.integers(2):  # (batch, seqlen, heads, head_dim) in memory
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    options = {"is_causal": bool(draw.integers(2)), "enable_gqa": group > 1,
               "scale": [None, 0.1][draw.integers(2)]}
    if draw.integers(20) == 0:
        options["attn_mask"] = torch.rand(sq, skv, device="cuda") < 0.9
        options["is_causal"] = False
    return (q, k, v), options


def test_parity_with_sdpa():
    draw = numpy.random.default_rng(42)
    for _ in range(CASES):
        inputs, options = random_case(draw)
        check_16_bits(octavo.torch.sdpa(*inputs, **options), *inputs, **options)
    assert octavo.torch.fallbacks() == {}


def test_out_lse_and_varlen():
    q, k, v = tensors(2, 4, 130, 64)
    out = torch.empty_like(q)
    given, lse = octavo.attention(q, k, v, causal=True, out=out, return_lse=True)
    assert given is out and lse.device == q.device
    check_16_bits(out, q, k, v, is_causal=True)
    s = q.double() @ k.double().transpose(2, 3) / 8
    s.masked_fill_(torch.ones(130, 130, device="cuda").triu(1).bool(), -torch.inf)
    torch.testing.assert_close(lse.double(), s.logsumexp(-1), atol=1e-3, rtol=1e-3)
    starts = torch.tensor([0, 100, 260], dtype=torch.int32, device="cuda")
    varlen = [x.transpose(1, 2).reshape(260, 4, 64) for x in (q, k, v)]
    with pytest.raises(ValueError, match="max_seqlen_q is None"):
        octavo.attention(*varlen, cu_seqlens_q=starts, cu_seqlens_kv=starts)
    out = octavo.attention(*varlen, cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=160,
                           max_seqlen_kv=160)
    for rows in (slice(0, 100), slice(100, 260)):
        part = [x[rows].transpose(0, 1)[None] for x in varlen]
        check_16_bits(out[rows].transpose(0, 1)[None], *part)


def exact_gradients(q, k, v, dout, mask):
    """The gradients in fp64; rows that see no key have none."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(2, 3) / q.shape[3]**0.5
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
    weights = torch.where(mask.any(-1)[:, None], weights, 0.0)
    (weights @ v.repeat_interleave(group, 1)).backward(dout.double())
    return q.grad, k.grad, v.grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads, heads_kv, sq, skv, dim", [(4, 4, 300, 300, 64), (4, 2, 200, 513, 128), (3, 1, 513, 130, 80),
                                                           (2, 2, 130, 200, 160), (2, 2, 65, 1, 40)])
@pytest.mark.parametrize("causal, window", [(False, None), ("top_left", None), ("bottom_right", (40, 0)), (False, (5, 70))])
def test_gradients(dtype, heads, heads_kv, sq, skv, dim, causal, window):
    torch.manual_seed(0)
    q, dout = (torch.randn(2, heads, sq, dim, device="cuda", dtype=dtype) for _ in range(2))
    k, v = (torch.randn(2, heads_kv, skv, dim, device="cuda", dtype=dtype) for _ in range(2))
    out, lse = octavo.attention(q, k, v, causal=causal, window=window, return_lse=True)
    diagonal = torch.arange(sq, device="cuda")[:, None] + (0 if causal == "top_left" else skv - sq)
    keys = torch.arange(skv, device="cuda")[None]
    left, right = window or (skv + sq, skv + sq)
    mask = (keys >= diagonal - left) & (keys <= diagonal + (0 if causal else right))
    exact = exact_gradients(q, k, v, dout, mask)
    first = octavo.attention_backward(dout, q, k, v, out, lse, causal=causal, window=window)
    for found, wanted in zip(first, exact):
        step = 2**-11 if dtype == torch.float16 else 2**-8
        assert (found.double() - wanted).abs().max() <= 4 * step * wanted.abs().max() + 2e-4
    for _ in range(20):
        again = octavo.attention_backward(dout, q, k, v, out, lse, causal=causal, window=window)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_gradients_in_a_captured_graph():
    q, k, v, dout = (torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    out, lse = octavo.attention(q, k, v, causal=True, return_lse=True)
    wanted = octavo.attention_backward(dout, q, k, v, out, lse, causal=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = octavo.attention_backward(dout, q, k, v, out, lse, causal=True)
    for x in found:
        x.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))


def test_gradients_of_a_varlen_batch():
    tokens, starts = 260, torch.tensor([0, 100, 230], dtype=torch.int32, device="cuda")
    q, k, v, dout = (torch.randn(tokens, 2, 64, device="cuda", dtype=torch.float16) for _ in range(4))
    for x in (q, k, v, dout):
        x[230:] = torch.nan  # tokens of no sequence
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts, "max_seqlen_q": 130, "max_seqlen_kv": 130}
    out, lse = octavo.attention(q, k, v, causal="top_left", return_lse=True, **lengths)
    found = octavo.attention_backward(dout, q, k, v, out, lse, causal="top_left", **lengths)
    for rows in (slice(0, 100), slice(100, 230)):
        part = [x[rows].transpose(0, 1)[None] for x in (q, k, v, dout)]
        length = rows.stop - rows.start
        mask = torch.ones(length, length, device="cuda", dtype=torch.bool).tril()
        for x, wanted in zip(found, exact_gradients(*part, mask)):
            torch.testing.assert_close(x[rows].transpose(0, 1)[None].double(), wanted, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("precision, most", [("fp8", 0.15), ("int8", 0.1), ("sim8", 0.15)])
def test_8_bit_modes_and_inputs(precision, most):
    q, k, v = tensors(1, 8, 512, 64)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    out = octavo.attention(q, k, v, precision=precision)
    assert 1e-4 < (out.double() - exact).abs().max() < most
    # Quantized once as the fastest kernels take them: the bits of quantizing in the call.
    made = [octavo.quantize(x, operand=operand, precision=precision) for x, operand in zip((q, k, v), "qkv")]
    assert all(x.data.is_cuda and x.scales.is_cuda for x in made)
    assert made[2].transposed == (torch.cuda.get_device_capability() == (9, 0) and precision != "sim8")
    torch.testing.assert_close(octavo.attention(*made, precision=precision), out, rtol=0, atol=0)
    # By heads, and on the host: the same bits.
    format = {"fp8": "e4m3"}.get(precision, precision)
    for x in (q, k, v):
        here, there = octavo.quantize(x, format), octavo.quantize(x.cpu(), format)
        assert torch.equal(here.data.cpu().view(torch.uint8), there.data.view(torch.uint8))
        assert torch.equal(here.scales.cpu(), there.scales)
        torch.testing.assert_close(here.dequantize().cpu(), there.dequantize(), rtol=1e-6, atol=0)


def test_quantize_on_a_side_stream_and_of_a_varlen_batch():
    x = tensors(1, 8, 512, 64)[0]
    wanted = octavo.quantize(x, operand="k")
    torch.cuda.synchronize()
    side, late = torch.cuda.Stream(), torch.empty_like(x)
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        late.copy_(x)
        made = octavo.quantize(late, operand="k")
    side.synchronize()
    assert torch.equal(made.data.view(torch.uint8), wanted.data.view(torch.uint8))
    lengths = (100, 0, 131)
    starts = torch.tensor((0, 100, 100, 231), dtype=torch.int32, device="cuda")
    q, k, v = (x[0].transpose(0, 1)[:231].contiguous() for x in tensors(1, 4, 240, 64))
    batch = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts, "max_seqlen_q": max(lengths), "max_seqlen_kv": max(lengths)}
    made = [octavo.quantize(x, operand=operand, cu_seqlens=starts, max_seqlen=max(lengths))
            for x, operand in zip((q, k, v), "qkv")]
    torch.testing.assert_close(octavo.attention(*made, **batch), octavo.attention(q, k, v, precision="fp8", **batch),
                               rtol=0, atol=0)


def test_dequantize_stays_on_the_gpu():
    lengths = (100, 0, 131)
    starts = torch.tensor((0, 100, 100, 231), dtype=torch.int32, device="cuda")
    for x in (tensors(2, 4, 100, 64)[0], tensors(231, 4, 64)[0]):
        batch = {} if x.dim() == 4 else {"cu_seqlens": starts}
        longest = {} if x.dim() == 4 else {"max_seqlen": max(lengths)}
        for operand in "qkv":
            for precision in ("fp8", "int8"):
                made = octavo.quantize(x, operand=operand, precision=precision, **batch, **longest)
                found = made.dequantize(torch.float32, **batch)
                assert found.is_cuda and found.shape == x.shape
                assert (found - x).abs().max() < (0.3 if precision == "fp8" else 0.05)
                torch.testing.assert_close(made.cpu().dequantize(**{name: y.cpu() for name, y in batch.items()}),
                                           found.cpu(), rtol=1e-6, atol=0)


def test_what_a_gpu_does_not_serve():
    q, k, v = tensors(1, 2, 8, 64, dtype=torch.float32)
    with pytest.raises(NotImplementedError):
        octavo.attention(q, k, v)
    with pytest.warns(octavo.torch.FallbackWarning, match="dtypes are not supported on cuda"):
        octavo.torch.sdpa(q, k, v)
    with pytest.raises(ValueError, match="k is on cpu; supported: cuda:0, where q is"):
        octavo.attention(q, k.cpu(), v)


def test_the_current_stream():
    q, k, v = tensors(1, 8, 512, 64)
    wanted = octavo.attention(q, k, v)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    late = torch.empty_like(q)
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # q arrives long after the call, but on the same stream
        late.copy_(q)
        out = octavo.attention(late, k, v)
    side.synchronize()
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("precision", [None, "fp8"])  # fp8 has a workspace
def test_a_given_stream(precision):
    q, k, v = tensors(1, 8, 512, 64)
    wanted = octavo.attention(q, k, v, precision=precision)
    side = torch.cuda.Stream()
    for stream in (side, side.cuda_stream):
        late = torch.zeros_like(q)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            late.copy_(q)
        out = octavo.attention(late, k, v, stream=stream, precision=precision)
        side.synchronize()
        assert torch.equal(out, wanted)


@pytest.mark.parametrize("precision", [None, "fp8"])
def test_graph_capture(precision):
    q, k, v = tensors(1, 8, 512, 64)
    octavo.attention(q, k, v, precision=precision)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = octavo.attention(q, k, v, precision=precision)
        out = octavo.attention(out, k, v, precision=precision)
    for _ in range(3):
        for x in (q, k, v):
            x.normal_()
        # Other allocations must not be in the graph's memory.
        other = octavo.attention(*tensors(1, 8, 512, 64), precision=precision)
        graph.replay()
        first = octavo.attention(q, k, v, precision=precision)
        assert torch.equal(out, octavo.attention(first, k, v, precision=precision))
        del other


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode):
    def model(q, k, v):
        return octavo.torch.sdpa(q * 2, k, v, is_causal=True) + octavo.attention(q, k, v)

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    with torch.no_grad():
        for _ in range(4):
            q, k, v = tensors(2, 4, 128, 64)
            torch.testing.assert_close(compiled(q, k, v).clone(), model(q, k, v), atol=2e-3,
                                       rtol=2e-3)
    assert octavo.torch.fallbacks() == {}


MODIFIERS = {
    "nothing": lambda: {},
    "softcap": lambda: {"softcap": 1.5},
    "another softcap": lambda: {"softcap": 4.0},
    "bias": lambda: {"bias": torch.randn(1, 4, 130, 200)},
    "bias in 16 bits": lambda: {"bias": torch.randn(2, 1, 130, 200).half()},
    "mask": lambda: {"mask": torch.rand(2, 4, 130, 200) < 0.7},
    "alibi": lambda: {"alibi_slopes": torch.rand(2, 4), "causal": "bottom_right"},
    "sinks": lambda: {"sinks": torch.randn(4), "causal": "bottom_right", "window": (50, -1)},
    "right padding": lambda: {"seqlens_q": ints(130, 70), "seqlens_kv": ints(150, 33)},
    "left padding": lambda: {"leftpad_q": ints(5, 100), "leftpad_kv": ints(0, 180), "causal": "bottom_right"},
    "all": lambda: {"softcap": 1.5, "bias": torch.randn(130, 200), "mask": torch.rand(130, 200) < 0.7,
                    "alibi_slopes": torch.rand(4), "sinks": torch.randn(4), "seqlens_kv": ints(200, 77)},
}


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


# One plan after another for the same shapes: each must be found again by what was asked for.
def test_padding_and_modifiers():
    from modified import modified

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, rows, 64).half() for heads, rows in ((4, 130), (2, 200), (2, 200)))
    cases = [make() for make in MODIFIERS.values()]
    for options in cases + cases[::-1]:
        given, exact = {}, {}
        for name, x in options.items():
            tensor = isinstance(x, torch.Tensor)
            given[name] = x.cuda() if tensor else x
            exact[name] = x.numpy() if tensor else x
        out = octavo.attention(q.cuda(), k.cuda(), v.cuda(), **given)
        wanted = torch.from_numpy(modified(q, k, v, **exact)[0])
        torch.testing.assert_close(out.cpu().double(), wanted, atol=4e-3, rtol=4e-3)


def cost_us(call, calls=2000):
    """The time of one of many calls in a row: the host's work, or the GPU's if that is more."""
    for _ in range(200):
        call()
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) / calls * 1e6)
    return best


def test_cost_of_calls_in_a_row():
    q, k, v = tensors(1, 8, 512, 64)
    out = torch.empty_like(q)
    with torch.no_grad():
        cost = {
            "octavo.attention": cost_us(lambda: octavo.attention(q, k, v)),
            "octavo.attention, out given": cost_us(lambda: octavo.attention(q, k, v, out=out)),
            "octavo.torch.sdpa": cost_us(lambda: octavo.torch.sdpa(q, k, v)),
            "F.scaled_dot_product_attention": cost_us(
                lambda: F.scaled_dot_product_attention(q, k, v)),
            "torch.empty_like": cost_us(lambda: torch.empty_like(q)),
        }
    for name, us in cost.items():
        print(f"\n{name}: {us:.2f} us", end="")
    assert cost["octavo.attention"] <= 12


def test_cost_of_compiled_calls_in_a_row():
    q, k, v = tensors(1, 8, 512, 64)
    torch._dynamo.reset()
    with torch.no_grad():
        cost = {name: cost_us(functools.partial(torch.compile(function, fullgraph=True), q, k, v))
                for name, function in (
                    ("octavo.attention", lambda q, k, v: octavo.attention(q, k, v)),
                    ("octavo.torch.sdpa", lambda q, k, v: octavo.torch.sdpa(q, k, v)),
                    ("F.scaled_dot_product_attention",
                     lambda q, k, v: F.scaled_dot_product_attention(q, k, v)))}
        cost["operator, not compiled"] = cost_us(lambda: torch.ops.octavo.attention.default(q, k, v))
    for name, us in cost.items():
        print(f"\ncompiled {name}: {us:.2f} us", end="")
    assert cost["octavo.attention"] <= cost["F.scaled_dot_product_attention"] + 10  # the goal is 3
