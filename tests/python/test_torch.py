# SPDX-License-Identifier: Apache-2.0
"""octavo.attention and octavo.torch with PyTorch tensors on the CPU."""

import warnings

import numpy
import pytest

import octavo
from conftest import reference

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import octavo.torch  # noqa: E402


@pytest.fixture
def tensors(normal):
    """tensors(dtype, *shape): returns three tensors."""
    return lambda dtype, *shape: [torch.from_numpy(normal(*shape)).to(dtype) for _ in range(3)]


@pytest.fixture(autouse=True)
def no_fallbacks_before():
    octavo.torch.reset_fallbacks()


def close(out, wanted):
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[out.dtype]
    torch.testing.assert_close(out.double(), torch.as_tensor(wanted), atol=tolerance, rtol=tolerance)


def truth(q, k, v, *options, **named):
    return reference(*(x.detach().double().numpy() for x in (q, k, v)), *options, **named)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_tensor_in_tensor_out(tensors, dtype, causal):
    q, k, v = tensors(dtype, 2, 3, 33, 16)
    out, lse = octavo.attention(q, k, v, causal=causal, return_lse=True)
    assert type(out) is torch.Tensor and out.dtype == dtype and out.shape == q.shape
    assert lse.shape == (2, 3, 33) and lse.dtype == torch.float32
    close(out, truth(q, k, v, "top_left" if causal else None))


def test_memory_order_is_the_query_s(tensors):
    q, k, v = (x.transpose(1, 2) for x in tensors(torch.float32, 2, 21, 3, 16))
    out = octavo.attention(q, k, v)
    assert out.stride() == q.stride() and out.transpose(1, 2).is_contiguous()
    close(out, truth(q, k, v))


def test_other_columns_of_v(tensors):
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, _ = (x.transpose(1, 2) for x in tensors(torch.float32, 2, 21, 3, 16))
    v, _, _ = (x.transpose(1, 2) for x in tensors(torch.float32, 2, 21, 3, 8))
    out, lse = octavo.attention(q, k, v, return_lse=True)
    assert out.shape == (2, 3, 21, 8) and out.transpose(1, 2).is_contiguous()
    close(out, truth(q, k, v))
    with FakeTensorMode() as mode:
        fake, fake_lse = octavo.attention(*(mode.from_tensor(x) for x in (q, k, v)), return_lse=True)
        assert (fake.shape, fake.stride(), fake.dtype) == (out.shape, out.stride(), out.dtype)
        assert fake_lse.shape == lse.shape
    torch._dynamo.reset()
    compiled = torch.compile(octavo.torch.sdpa, fullgraph=True, backend="aot_eager")
    for function in (octavo.torch.sdpa, compiled):
        close(function(q, k, v, is_causal=True), truth(q, k, v, "top_left"))
    assert octavo.torch.fallbacks() == {}
    with pytest.raises(NotImplementedError, match="head_dim_v is 8"):
        octavo.attention(q, k, v.clone().requires_grad_())


# Which head dimensions a GPU serves is decided from shapes alone, so fake tensors have the answer.
@pytest.mark.parametrize("columns, columns_v, why", [
    (512, 512, None), (64, 264, None), (520, 520, "head_dim is above 512 on cuda"),
    (64, 520, "head_dim is above 512 on cuda")])
def test_wide_heads(tensors, columns, columns_v, why):
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = tensors(torch.float16, 1, 2, 21, columns)
    v = tensors(torch.float16, 1, 2, 21, columns_v)[2]
    close(octavo.torch.sdpa(q, k, v, is_causal=True), truth(q, k, v, "top_left"))
    assert octavo.torch.fallbacks() == {}
    with FakeTensorMode():
        fake = [torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in (q, k, v)]
        assert octavo.torch._fallback_by_tensors(*fake, False) == why


def test_views_offsets_and_out(tensors):
    q, k, v = (x[1:, :, 3:, 8:] for x in tensors(torch.float32, 3, 2, 20, 24))
    out = torch.full((2, 2, 17, 20), torch.nan)[..., 2:18]
    assert octavo.attention(q, k, v, out=out) is out
    close(out, truth(q, k, v))
    parameter = torch.nn.Parameter(q.clone(), requires_grad=False)
    close(octavo.attention(parameter, k, v), truth(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8(tensors, dtype):
    q, k, v = (x.to(dtype) for x in tensors(torch.float32, 1, 2, 20, 16))
    format = "e4m3" if dtype == torch.float8_e4m3fn else "e5m2"
    one = torch.ones(1)
    out = octavo.attention(*(octavo.Quantized(x, one, format, "tensor") for x in (q, k, v)),
                           out_dtype=torch.bfloat16)
    assert out.dtype == torch.bfloat16
    assert (out.double() - torch.as_tensor(truth(q, k, v))).abs().max() < 0.15
    with pytest.raises(ValueError, match="q is an array of e[45]m[32] without scales; supported: octavo"):
        octavo.attention(q, k, v)


def test_quantized_moves_and_is_saved(tensors, tmp_path):
    x = tensors(torch.float32, 1, 2, 20, 16)[0]
    made = octavo.quantize(x, "e4m3", granularity="row", smooth=True)
    assert made.shape == (1, 2, 20, 16) and made.device == x.device
    torch.save({"k": made}, tmp_path / "k.pt")
    stored = octavo.Quantized.from_tensors(made.tensors(), made.metadata())
    for other in (torch.load(tmp_path / "k.pt")["k"], stored, made.to("cpu"), made.cpu()):
        for name in ("format", "granularity", "block_rows", "transposed", "max_quantized"):
            assert getattr(other, name) == getattr(made, name)
        for name in ("data", "scales", "mean"):
            assert torch.equal(getattr(other, name).view(torch.uint8), getattr(made, name).view(torch.uint8))
    torch.testing.assert_close(made.dequantize(), octavo.dequantize(made), rtol=0, atol=0)
    assert made.dequantize(torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(TypeError, match="dtype is given; supported: a device"):
        made.to(torch.float16)
    with pytest.raises(ValueError, match="metadata is without format"):
        octavo.Quantized.from_tensors(made.tensors(), {})


def test_dequantize_of_what_kernels_take(tensors, tmp_path):
    """Transposed tensors and varlen batches, as PyTorch's operations would on a GPU, stored in both ways."""
    x = tensors(torch.float16, 1, 2, 40, 16)[0]
    flat, starts = x[0].transpose(0, 1).contiguous(), torch.tensor((0, 17, 40), dtype=torch.int32)
    for format in ("e4m3", "int8"):
        rows, columns = (octavo.quantize(x, format, granularity="channel", transposed=t) for t in (False, True))
        wanted = rows.dequantize()
        torch.save(columns, tmp_path / "v.pt")
        for made in (columns, torch.load(tmp_path / "v.pt"),
                     octavo.Quantized.from_tensors(columns.tensors(), columns.metadata())):
            torch.testing.assert_close(made.dequantize(), wanted, rtol=0, atol=0)
        packed = octavo.quantize(flat, format, granularity="channel", transposed=True, cu_seqlens=starts)
        found = packed.dequantize(torch.float16, cu_seqlens=starts)
        assert found.dtype == torch.float16 and (found - flat).abs().max() < 0.3
        alone = octavo.quantize(flat[None, 17:], format, granularity="channel", layout="bshd")
        torch.testing.assert_close(found[17:], alone.dequantize(torch.float16, "bshd")[0], rtol=0, atol=0)


def test_safetensors_stores_quantized_tensors(tensors, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    made = octavo.quantize(tensors(torch.float32, 1, 2, 20, 16)[0], granularity="channel", transposed=True)
    safetensors.save_file(made.tensors(), tmp_path / "v.safetensors", metadata=made.metadata())
    with pytest.importorskip("safetensors").safe_open(tmp_path / "v.safetensors", "pt") as file:
        read = octavo.Quantized.from_tensors({name: file.get_tensor(name) for name in file.keys()}, file.metadata())
    torch.testing.assert_close(read.dequantize(), made.dequantize(), rtol=0, atol=0)


def test_dequantize_by_pytorch_is_the_librarys(tensors):
    x = tensors(torch.float32, 2, 3, 40, 16)[0]
    for format in ("e4m3", "e5m2", "int8", "sim8"):
        for granularity in ("tensor", "head", "block", "row", "channel"):
            made = octavo.quantize(x, format, granularity=granularity, block_rows=16)
            torch.testing.assert_close(octavo._quantized._dequantize_torch(made, "float32", "bhsd"),
                                       made.dequantize(), rtol=1e-6, atol=0)


def test_quantize(tensors):
    x = tensors(torch.float32, 1, 2, 20, 16)[0]
    for format, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2),
                          ("int8", torch.int8), ("sim8", torch.uint8)):
        made = octavo.quantize(x, format, granularity="row")
        assert made.data.dtype == dtype and made.scales.shape == (1, 2, 20)
        assert (octavo.dequantize(made) - x).abs().max() < 0.5
        columns = octavo.quantize(x, format, granularity="channel", transposed=True)
        assert columns.data.dtype == dtype and columns.data.shape == (1, 2, 16, 32)
        rows = octavo.quantize(x, format, granularity="channel")
        torch.testing.assert_close(octavo.attention(x, x, columns), octavo.attention(x, x, rows),
                                   rtol=0, atol=0)
    made = octavo.quantize(x, "e4m3", granularity="tensor")  # the codes are PyTorch's
    torch.testing.assert_close(octavo.dequantize(made), made.data.float() * made.scales)


def test_workspace_of_an_8_bit_mode(tensors):
    q, k, v = tensors(torch.float16, 1, 2, 300, 32)
    assert octavo.explain(q, k, v, precision="int8").workspace_bytes > 0
    for keys in (8, 300, 64):
        few = k[:, :, :keys], v[:, :, :keys]
        out = octavo.attention(q, *few, precision="int8")
        assert (out.double() - torch.as_tensor(truth(q, *few))).abs().max() < 0.1


def test_varlen(tensors):
    q, k, v = tensors(torch.float32, 14, 2, 16)
    starts = torch.tensor([0, 5, 14], dtype=torch.int32)
    out = octavo.attention(q, k, v, causal=True, cu_seqlens_q=starts, cu_seqlens_kv=starts)
    for rows in (slice(0, 5), slice(5, 14)):
        parts = [x[rows].transpose(0, 1)[None] for x in (q, k, v)]
        close(out[rows].transpose(0, 1)[None], truth(*parts, "top_left"))


def test_gradients_are_not_lost_silently(tensors):
    q, k, v = tensors(torch.float32, 1, 2, 8, 8)
    v.requires_grad_()
    out = octavo.attention(q, k, v)
    close(out, truth(q, k, v))
    out.sum().backward()
    assert (v.grad.sum() - out.numel()).abs() < 1e-3  # every row's weights add up to 1
    with torch.no_grad():
        close(octavo.attention(q, k, v), truth(q, k, v))
    with torch.inference_mode():
        close(octavo.attention(q, k, v), truth(q, k, v))


@pytest.mark.parametrize("dtype, format", [(torch.float8_e4m3fn, "e4m3"),
                                           (torch.float8_e5m2, "e5m2"), (torch.int8, "int8")])
def test_outputs_of_8_bits(tensors, dtype, format):
    q, k, v = tensors(torch.float16, 2, 3, 20, 16)
    scale = torch.linspace(0.001, 0.02, 6).reshape(2, 3)
    wide = octavo.attention(q, k, v, out_dtype=torch.float32)
    wanted = octavo.quantize(wide, format, granularity="head", scales=scale).data
    out, amax = octavo.attention(q, k, v, out_dtype=dtype, out_scale=scale, return_amax=True)
    assert out.dtype == dtype and torch.equal(out.view(torch.uint8), wanted.view(torch.uint8))
    assert type(amax) is torch.Tensor and torch.equal(amax, wide.abs().amax((2, 3)))
    room = torch.empty_like(out)
    assert octavo.attention(q, k, v, out=room, out_scale=scale) is room
    assert torch.equal(room.view(torch.uint8), wanted.view(torch.uint8))


def test_outputs_of_8_bits_are_not_traced(tensors):
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = tensors(torch.float16, 1, 2, 5, 16)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in (q, k, v)]
        for options, name in (({"return_amax": True}, "return_amax"),
                              ({"out_scale": torch.ones(1)}, "out_scale")):
            with pytest.raises(TypeError, match=f"{name} is given; supported: None in traced code"):
                octavo.attention(*fake, **options)


@pytest.mark.parametrize("make, why", [
    (lambda x: x.to_sparse(), "without storage|doesn't have storage|layout"),
    (lambda x: x.to("meta"), "meta"),
])
def test_tensors_without_memory_are_refused_in_one_sentence(tensors, make, why):
    q, k, v = tensors(torch.float32, 1, 2, 8, 8)
    with pytest.raises((TypeError, BufferError, RuntimeError)) as refused:
        octavo.attention(q, make(k), v)
    if octavo._octavo._reads_dispatch_keys() and hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        assert isinstance(refused.value, TypeError)
        assert str(refused.value).startswith("k is a tensor that PyTorch does not export (")
        assert "\n" not in str(refused.value)


def test_arguments_of_different_kinds(tensors):
    q, k, v = tensors(torch.float32, 1, 2, 8, 8)
    assert type(octavo.attention(q, k.numpy(), v)) is torch.Tensor
    with pytest.raises(TypeError, match="q dtype is float64"):
        octavo.attention(q.double(), k, v)
    with pytest.raises(ValueError, match="head_dim|k"):
        octavo.attention(q, k[..., :4], v)


# The first call of a shape creates a plan, the others find it; many shapes share the slots of the
# table.
def test_plans_are_found_again(normal):
    for _ in range(2):
        for rows in range(1, 600, 7):
            x = torch.from_numpy(normal(1, 1, rows, 8))
            torch.testing.assert_close(octavo.attention(x, x, x).double(),
                                       torch.as_tensor(truth(x, x, x)), atol=1e-4, rtol=1e-4)


# -------------------------------------------------------------------------------------- the operator

CASES = {
    "plain": ({}, {}),
    "causal": ({"causal": "top_left"}, {}),
    "window": ({"causal": "bottom_right", "window": [3, -1]}, {}),
    "bshd": ({"layout": "bshd"}, {}),
    "precision": ({"precision": "fp8", "scale": 0.3}, {}),
    "out_dtype": ({"out_dtype": torch.bfloat16}, {}),
    "varlen": ({"max_seqlen_q": 6, "max_seqlen_kv": 6, "causal": "top_left"}, {"varlen": True}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("operator", ["attention", "attention_lse"])
def test_opcheck(tensors, name, operator):
    options, how = CASES[name]
    options = dict(options)
    if how.get("varlen"):
        inputs = tensors(torch.float16, 12, 2, 16)
        options["cu_seqlens_q"] = options["cu_seqlens_kv"] = torch.tensor([0, 6, 12],
                                                                          dtype=torch.int32)
    else:
        inputs = [x.transpose(1, 2) for x in tensors(torch.float16, 2, 5, 4, 16)]
    torch.library.opcheck(getattr(torch.ops.octavo, operator), tuple(inputs), options)


def test_fake_tensors(tensors):
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = (x.transpose(1, 2) for x in tensors(torch.float16, 2, 5, 4, 16))
    real, real_lse = octavo.attention(q, k, v, return_lse=True)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in (q, k, v)]
        for call in (octavo.attention, octavo.torch.attention):
            out, lse = call(*fake, causal=True, return_lse=True)
            assert type(out) is type(fake[0])
            assert (out.shape, out.stride(), out.dtype) == (real.shape, real.stride(), real.dtype)
            assert (lse.shape, lse.stride()) == (real_lse.shape, real_lse.stride())
    on_meta = torch.ops.octavo.attention(*(x.to("meta") for x in (q, k, v)))
    assert on_meta.shape == q.shape and on_meta.device.type == "meta"


@pytest.mark.parametrize("function", ["octavo.attention", "octavo.torch.attention", "sdpa"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_graph_breaks(tensors, function, dynamic):
    def model(q, k, v):
        if function == "octavo.attention":
            out = octavo.attention(q * 2, k, v, causal=True)
        elif function == "octavo.torch.attention":
            out = octavo.torch.attention(q * 2, k, v, causal=True, window=(9, None))
        else:
            out = octavo.torch.sdpa(q * 2, k, v, is_causal=True)
        return out + 1

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (12, 9):
        q, k, v = tensors(torch.float32, 2, 3, rows, 16)
        torch.testing.assert_close(compiled(q, k, v), model(q, k, v))
    assert octavo.torch.fallbacks() == {}


def test_traced_code_says_what_it_cannot_take(tensors):
    q, k, v = tensors(torch.float32, 1, 2, 8, 8)
    for given in ({"stream": 0}, {"quantization": {}}):
        with pytest.raises(TypeError, match=f"{list(given)[0]} is given; supported: None in traced"):
            octavo.torch._traced(q, k, v, **given)
    with pytest.raises(TypeError, match="causal is 3; supported: False, True, 'top_left'"):
        octavo.torch._traced(q, k, v, causal=3)
    with pytest.raises(ValueError, match="causal is True with different seqlen of q and k"):
        octavo.torch._traced(q[:, :, :3], k, v, causal=True)


# -------------------------------------------------------------------------------------- the drop-in


def test_sdpa_agrees_over_random_cases(normal):
    draw = numpy.random.default_rng(7)
    for _ in range(200):
        b, h, group = (int(draw.integers(1, 4)) for _ in range(3))
        sq, skv, d = (int(draw.integers(1, 50)) for _ in range(3))
        dtype = [torch.float32, torch.float16, torch.bfloat16][draw.integers(3)]
        q = torch.from_numpy(normal(b, h * group, sq, d)).to(dtype)
        k, v = (torch.from_numpy(normal(b, h, skv, d)).to(dtype) for _ in range(2))
        options = {"is_causal": bool(draw.integers(2)), "enable_gqa": group > 1,
                   "scale": [None, 0.2][draw.integers(2)]}
        close(octavo.torch.sdpa(q, k, v, **options),
              F.scaled_dot_product_attention(q.double(), k.double(), v.double(), **options))
    assert octavo.torch.fallbacks() == {}


@pytest.mark.parametrize("reason, change", [
    ("dropout_p", {"dropout_p": 0.5}),
    ("dtypes", {"dtype": torch.float64}),
    ("shapes", {"shape": (2, 8, 16)}),
    ("the last dimension is not contiguous", {"transposed": True}),
])
def test_sdpa_falls_back_visibly(tensors, reason, change):
    change = dict(change)
    dtype, shape = change.pop("dtype", torch.float32), change.pop("shape", (1, 2, 8, 8))
    q, k, v = tensors(dtype, *shape)
    if change.pop("transposed", False):
        q = q.transpose(2, 3)
    with pytest.warns(octavo.torch.FallbackWarning, match=reason):
        torch.manual_seed(0)
        out = octavo.torch.sdpa(q, k, v, **change)
    torch.manual_seed(0)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, **change))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once for each reason
        octavo.torch.sdpa(q, k, v, **change)
    (found, count), = octavo.torch.fallbacks().items()
    assert reason in found and count == 2


def test_sdpa_raises_what_pytorch_raises(tensors):
    q, k, v = tensors(torch.float32, 1, 4, 8, 8)
    with pytest.warns(octavo.torch.FallbackWarning), pytest.raises(RuntimeError):
        octavo.torch.sdpa(q, k[:, :2], v[:, :2])  # enable_gqa is not set


def test_compiled_sdpa_falls_back_visibly(tensors):
    q, k, v = tensors(torch.float32, 1, 2, 8, 8)
    torch._dynamo.reset()
    compiled = torch.compile(octavo.torch.sdpa, fullgraph=True, backend="aot_eager")
    q, k, v = (x.double() for x in (q, k, v))
    with pytest.warns(octavo.torch.FallbackWarning, match="dtypes are not supported on cpu"):
        out = compiled(q, k, v)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))
    assert octavo.torch.fallbacks() == {"dtypes are not supported on cpu": 1}
