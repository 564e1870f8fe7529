# SPDX-License-Identifier: Apache-2.0
"""Padding, softcap, bias, ALiBi, mask tensors and sinks in PyTorch, on the CPU."""

import numpy
import pytest

import octavo
from modified import modified

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import octavo.torch  # noqa: E402

OPTIONS = {
    "padding": lambda: {"seqlens_q": ints(7, 9), "seqlens_kv": ints(4, 12), "leftpad_q": ints(1, 0),
                        "leftpad_kv": ints(2, 1), "causal": "bottom_right"},
    "bias": lambda: {"bias": torch.randn(1, 4, 9, 13)},
    "mask": lambda: {"mask": torch.rand(2, 1, 9, 13) < 0.7},
    "alibi and sinks": lambda: {"alibi_slopes": torch.rand(2, 4), "sinks": torch.randn(4)},
    "softcap": lambda: {"softcap": 1.5},
    "all": lambda: {"softcap": 1.5, "bias": torch.randn(4, 9, 13), "mask": torch.rand(9, 13) < 0.7,
                    "alibi_slopes": torch.rand(4), "sinks": torch.randn(4), "seqlens_kv": ints(13, 5)},
}


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    octavo.torch.reset_fallbacks()


def tensors(dtype=torch.float32, *lead):
    return [torch.randn(*lead, 2, *shape).to(dtype) for shape in ((4, 9, 16), (2, 13, 16), (2, 13, 16))]


def exact(q, k, v, **options):
    given = {name: x.double().numpy() if isinstance(x, torch.Tensor) and x.is_floating_point()
             else x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    return torch.from_numpy(modified(*(x.detach().double().numpy() for x in (q, k, v)), **given)[0])


def close(out, wanted):
    tolerance = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}[out.dtype]
    torch.testing.assert_close(out.double(), wanted.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eager(name, dtype):
    inputs, options = tensors(dtype), OPTIONS[name]()
    close(octavo.attention(*inputs, **options), exact(*inputs, **options))
    close(torch.ops.octavo.attention(*inputs, **options), exact(*inputs, **options))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("operator", ["attention", "attention_lse"])
def test_opcheck(name, operator):
    torch.library.opcheck(getattr(torch.ops.octavo, operator), tuple(tensors()), OPTIONS[name]())


# test_gradients compiles every case.
@pytest.mark.parametrize("name", ["padding", "all"])
def test_compiled_without_gradients(name):
    inputs, options = tensors(), OPTIONS[name]()
    compiled = torch.compile(lambda q, k, v, options: octavo.attention(q * 2, k, v, **options) + 1,
                             fullgraph=True, backend="aot_eager")
    close(compiled(*inputs, options), exact(inputs[0] * 2, *inputs[1:], **options) + 1)


def test_meta_tensors_and_make_fx():
    inputs, options = tensors(), OPTIONS["all"]()
    on_meta = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    assert octavo.attention(*(x.to("meta") for x in inputs), **on_meta).shape == inputs[0].shape
    graph = make_fx(lambda q, k, v: octavo.attention(q, k, v, **options))(*inputs)
    assert [str(node.target) for node in graph.graph.nodes].count("octavo.attention.default") == 1
    others = tensors()
    close(graph(*others), exact(*others, **options))


def test_a_subclass_among_the_options():
    from torch._subclasses.fake_tensor import FakeTensorMode

    inputs = tensors()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = octavo.attention(*inputs, mask=mode.from_tensor(torch.ones(13, dtype=torch.bool)))
    assert type(out).__name__ == "FakeTensor"


def test_autocast():
    inputs, options = tensors(), OPTIONS["all"]()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = octavo.attention(*inputs, **options)
    assert out.dtype == torch.bfloat16
    close(out, exact(*inputs, **options))


def test_causal_true_needs_equal_padding():
    q = tensors()[0]
    lengths = ints(7, 9)
    wanted = exact(q, q, q, causal="top_left", seqlens_q=lengths, seqlens_kv=lengths)
    call = torch.compile(lambda q, a, b: octavo.attention(q, q, q, causal=True, seqlens_q=a, seqlens_kv=b),
                         fullgraph=True, backend="aot_eager")
    close(octavo.attention(q, q, q, causal=True, seqlens_q=lengths, seqlens_kv=lengths), wanted)
    close(call(q, lengths, lengths), wanted)
    with pytest.raises(Exception, match="causal is True with different padding"):
        call(q, lengths, lengths.clone())


# --------------------------------------------------------------------------------------------- vmap

MAPPED = {
    "seqlens_kv": (lambda n: torch.randint(1, 13, (n, 2), dtype=torch.int32), (0, None)),
    "leftpad_q": (lambda n: torch.randint(0, 9, (n, 2), dtype=torch.int32), (0, None)),
    "bias": (lambda n: torch.randn(n, 2, 4, 9, 13), (0, None, 1)),
    "bias that broadcasts": (lambda n: torch.randn(n, 4, 1, 13), (0, None, 1)),
    "mask": (lambda n: torch.rand(n, 9, 13) < 0.7, (0, None)),
    "alibi_slopes": (lambda n: torch.rand(n, 4), (0, None)),
    "alibi_slopes of sequences": (lambda n: torch.rand(n, 2, 4), (0, None)),
    "sinks": (lambda n: torch.randn(n, 4), (None,)),
}


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap(name):
    make, dims = MAPPED[name]
    inputs, options = tensors(torch.float32, 3), make(3)
    parameter = name.split()[0]
    for dim in dims:
        given = options[0] if dim is None else options.movedim(0, dim).contiguous()
        out = torch.func.vmap(lambda q, k, v, x: octavo.attention(q, k, v, **{parameter: x}),
                              in_dims=(0, 0, 0, dim))(*inputs, given)
        for i in range(3):
            one = options[0] if dim is None else options[i]
            close(out[i], exact(*(x[i] for x in inputs), **{parameter: one}))


def test_mapped_sinks_are_refused():
    with pytest.raises(NotImplementedError, match="sinks is mapped by vmap; supported: the same"):
        torch.func.vmap(lambda q, k, v, x: octavo.attention(q, k, v, sinks=x))(
            *tensors(torch.float32, 3), torch.randn(3, 4))


# -------------------------------------------------------------------------------------- derivatives


def plain(q, k, v, causal=None, softcap=None, bias=None, mask=None, alibi_slopes=None, sinks=None,
          **padding):
    """Attention by differentiable operations, sequence by sequence."""
    batch, heads, rows, dim = q.shape
    columns, group = k.shape[2], heads // k.shape[1]
    whole = torch.Size((batch, heads, rows, columns))
    found = []
    for b in range(batch):
        (begin, end), (first, last) = (span(padding, b, n, side) for n, side in ((rows, "q"), (columns, "kv")))
        mine, keys = slice(begin, end), slice(first, last)
        s = q[b, :, mine] @ k[b].repeat_interleave(group, 0)[:, keys].mT * dim ** -0.5
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        if bias is not None:
            s = s + bias.expand(whole)[b, :, mine, keys]
        shift = 0 if causal == "top_left" else s.shape[2] - s.shape[1]
        beyond = torch.arange(s.shape[2])[None] - torch.arange(s.shape[1])[:, None] - shift
        if alibi_slopes is not None:
            s = s - alibi_slopes.expand(batch, heads)[b][:, None, None] * beyond.abs()
        seen = beyond <= (0 if causal else columns + rows)
        if mask is not None:
            seen = seen & mask.expand(whole)[b, :, mine, keys]
        s = torch.where(seen, s, -1e30)
        if sinks is not None:
            s = torch.cat((s, sinks[:, None, None].expand(-1, s.shape[1], 1)), -1)
        p = s.softmax(-1)[..., :last - first] * seen
        out = p @ v[b].repeat_interleave(group, 0)[:, keys]
        found.append(F.pad(out, (0, 0, begin, rows - end)))
    return torch.stack(found)


def span(padding, b, rows, side):
    begin = int(padding[f"leftpad_{side}"][b]) if f"leftpad_{side}" in padding else 0
    return begin, begin + int(padding[f"seqlens_{side}"][b]) if f"seqlens_{side}" in padding else rows


LEARNED = ("bias", "sinks")


def gradients(call, inputs, options, dtype):
    """The gradients of q, k, v and of the learned options, and the output."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    given = {name: x.detach().to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
             for name, x in options.items()}
    learned = [given[name].requires_grad_() for name in LEARNED if name in given]
    out = call(*leaves, **given)
    weights = torch.linspace(-1, 1, out.numel(), dtype=dtype).reshape(out.shape)
    return torch.autograd.grad((out * weights).sum(), (*leaves, *learned)), out


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(name, compiled):
    inputs, options = tensors(), OPTIONS[name]()
    call = torch.compile(octavo.torch.attention, fullgraph=True, backend="aot_eager") if compiled \
        else octavo.torch.attention
    found, out = gradients(call, inputs, options, torch.float32)
    wanted, exact_out = gradients(plain, inputs, options, torch.float64)
    torch.testing.assert_close(out.double(), exact_out, atol=1e-5, rtol=1e-5)
    for one, other in zip(found, wanted):
        assert one.dtype == torch.float32 and other.abs().sum() > 0
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)


BIASES = {"4D": (2, 4, 9, 13), "heads": (4, 9, 13), "2D": (9, 13), "keys": (2, 1, 1, 13), "rows": (4, 9, 1),
          "one": (1,), "a number": ()}


@pytest.mark.parametrize("shape", BIASES)
@pytest.mark.parametrize("expanded", [False, True])
def test_gradients_of_a_bias_have_its_shape(shape, expanded):
    def called(call):
        def with_view(q, k, v, bias):
            return call(q, k, v, bias=bias.expand(2, 4, 9, 13) if expanded else bias)

        return with_view

    inputs, options = tensors(), {"bias": torch.randn(BIASES[shape])}
    found, _ = gradients(called(octavo.attention), inputs, options, torch.float32)
    wanted, _ = gradients(called(plain), inputs, options, torch.float64)
    assert found[3].shape == BIASES[shape]
    torch.testing.assert_close(found[3].double(), wanted[3], atol=2e-5, rtol=2e-5)


def test_only_what_requires_grad_gets_one():
    inputs, bias = tensors(), torch.randn(4, 9, 13, requires_grad=True)
    sinks = torch.randn(4)
    octavo.attention(*inputs, bias=bias, sinks=sinks, softcap=2.0).sum().backward()
    assert bias.grad.abs().sum() > 0 and sinks.grad is None and inputs[0].grad is None


@pytest.mark.parametrize("name", ["bias", "sinks", "alibi_slopes"])
def test_gradients_that_out_would_lose_are_refused(name):
    q, k, v = (torch.randn(1, 2, 5, 16) for _ in range(3))
    shape = (1, 2, 5, 5) if name == "bias" else (2,)
    value = torch.randn(shape, requires_grad=True)
    with pytest.raises(NotImplementedError, match="out is given for tensors that require grad"):
        octavo.attention(q, k, v, out=torch.empty_like(q), **{name: value})
    with torch.no_grad():
        octavo.attention(q, k, v, out=torch.empty_like(q), **{name: value})


def test_gradients_of_slopes_are_refused():
    slopes = torch.nn.Parameter(torch.rand(4))
    for call in (octavo.attention, torch.ops.octavo.attention):
        with pytest.raises(NotImplementedError, match="alibi_slopes is a tensor that requires grad"):
            call(*tensors(), alibi_slopes=slopes)
    with torch.no_grad():
        octavo.attention(*tensors(), alibi_slopes=slopes)


@pytest.mark.parametrize("name", ["bias", "alibi_slopes", "sinks"])
def test_tangents_are_refused(name):
    shape = {"bias": (4, 9, 13)}.get(name, (4,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.randn(shape), torch.ones(shape))
        with pytest.raises(NotImplementedError, match=f"{name} is a dual tensor with a tangent"):
            octavo.attention(*tensors(), **{name: dual})


def test_backward_by_hand_and_its_operators():
    inputs, options = tensors(), OPTIONS["all"]()
    wanted, _ = gradients(octavo.attention, inputs, options, torch.float32)
    out, lse = octavo.attention(*inputs, **options, return_lse=True)
    dout = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
    made = octavo.attention_backward(dout, *inputs, out, lse, **options, return_dbias=True, return_dsinks=True)
    assert len(made) == 5 and all(torch.equal(x, y) for x, y in zip(made, wanted))
    assert len(octavo.attention_backward(dout, *inputs, out, lse, **options)) == 3
    traced = make_fx(lambda: octavo.attention_backward(dout, *inputs, out, lse, **options, return_dsinks=True))()
    assert torch.equal(traced()[3], wanted[4])
    with pytest.raises(ValueError, match="return_dbias is True without bias; supported: False without bias"):
        octavo.attention_backward(dout, *inputs, out, lse, return_dbias=True)
    order = [options.get(x) for x in octavo.torch._BACKWARD_TENSORS]
    torch.library.opcheck(torch.ops.octavo.attention_backward_modifiers.default,
                          (dout, *inputs, out, lse, *order), {"softcap": 1.5, "return_dbias": True})


def test_a_softcap_of_zero_has_gradients():
    q, k, v = tensors()
    q.requires_grad_()
    octavo.attention(q, k, v, softcap=0.0).sum().backward()
    assert q.grad.abs().sum() > 0


# --------------------------------------------------------------------------------------------- sdpa

MASKS = {
    "boolean 2D": lambda: torch.rand(9, 13) < 0.7,
    "boolean 3D": lambda: torch.rand(4, 9, 13) < 0.7,
    "boolean 4D": lambda: torch.rand(2, 4, 9, 13) < 0.7,
    "keys": lambda: torch.rand(2, 1, 1, 13) < 0.7,
    "queries": lambda: torch.rand(9, 1) < 0.7,
    "expanded": lambda: (torch.rand(2, 1, 1, 13) < 0.7).expand(2, 4, 9, 13),
    "transposed": lambda: (torch.rand(13, 9) < 0.7).T,
    "additive": lambda: torch.randn(2, 1, 9, 13),
    "additive with -inf": lambda: torch.randn(9, 13).masked_fill(torch.rand(9, 13) < 0.3, -torch.inf),
    "additive transposed": lambda: torch.randn(13, 9).T,
    "a row without keys": lambda: torch.arange(9)[:, None] != torch.full((13,), 4),
}


@pytest.mark.parametrize("name, dtype, compiled", [
    *((name, dtype, False) for name in MASKS for dtype in (torch.float32, torch.bfloat16)),
    *((name, torch.float32, True) for name in MASKS),
    *((name, torch.bfloat16, True) for name in ("boolean 2D", "additive"))])
def test_sdpa_serves_masks(name, dtype, compiled):
    q, k, v = tensors(dtype)
    mask = MASKS[name]()
    mask = mask if mask.dtype == torch.bool else mask.to(dtype)
    call = torch.compile(octavo.torch.sdpa, fullgraph=True, backend="aot_eager") if compiled \
        else octavo.torch.sdpa
    out = call(q, k, v, attn_mask=mask, enable_gqa=True)
    wide = mask if mask.dtype == torch.bool else mask.double()
    close(out, F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=wide,
                                              enable_gqa=True))
    assert octavo.torch.fallbacks() == {}


def test_sdpa_with_masks_agrees_over_random_cases():
    draw = numpy.random.default_rng(11)
    for _ in range(100):
        b, h, group, sq, skv = (int(draw.integers(1, 5)) for _ in range(5))
        q, k, v = (torch.randn(b, heads, rows, 8) for heads, rows in
                   ((h * group, sq), (h, skv), (h, skv)))
        shape = [n if draw.integers(2) else 1 for n in (b, h * group, sq, skv)][int(draw.integers(3)):]
        mask = torch.randn(shape) if draw.integers(2) else torch.rand(shape) < 0.6
        options = {"attn_mask": mask, "enable_gqa": group > 1, "scale": [None, 0.2][draw.integers(2)]}
        close(octavo.torch.sdpa(q, k, v, **options), F.scaled_dot_product_attention(q, k, v, **options))
    assert octavo.torch.fallbacks() == {}


@pytest.mark.parametrize("which", ["query", "mask", "a padding mask", "expanded"])
@pytest.mark.parametrize("compiled", [False, True])
def test_sdpa_with_a_mask_has_the_gradients_of_pytorch(which, compiled):
    found = []
    for call in (octavo.torch.sdpa, F.scaled_dot_product_attention):
        torch.manual_seed(3)
        q, k, v = tensors()
        leaf = mask = torch.randn(2, 1, 1, 13) if which == "expanded" else torch.randn(9, 13)
        if which == "query":
            leaf = q
        if which == "a padding mask":
            leaf, mask = q, torch.arange(13)[None, None, None] < torch.tensor([13, 8])[:, None, None, None]
        leaf.requires_grad_()
        mask = mask.expand(2, 4, 9, 13) if which == "expanded" else mask
        run = torch.compile(call, backend="aot_eager") if compiled and call is octavo.torch.sdpa else call
        run(q, k, v, attn_mask=mask, enable_gqa=True).square().sum().backward()
        found.append(leaf.grad)
    assert found[0].abs().sum() > 0
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)
    assert octavo.torch.fallbacks() == {}


@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.parametrize("change", [
    {"attn_mask": torch.ones(9, 12, dtype=torch.bool)},
    {"attn_mask": torch.ones(9, 13, dtype=torch.float64)},
    {"attn_mask": torch.ones(9, 13, dtype=torch.int32)},
])
def test_sdpa_raises_what_pytorch_raises(change):
    q, k, v = tensors()
    with pytest.raises(RuntimeError):
        octavo.torch.sdpa(q, k, v, enable_gqa=True, **change)
    assert sum(octavo.torch.fallbacks().values()) == 1


# Versions of PyTorch differ in whether they allow both.
@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
def test_sdpa_leaves_a_mask_with_is_causal_to_pytorch():
    q, k, v = tensors()
    results = []
    for call in (octavo.torch.sdpa, F.scaled_dot_product_attention):
        try:
            results.append(call(q, q, q, attn_mask=torch.ones(9, 9, dtype=torch.bool), is_causal=True))
        except RuntimeError as refused:
            results.append(str(refused))
    assert type(results[0]) is type(results[1])
    assert octavo.torch.fallbacks() == {"attn_mask is given together with is_causal": 1}
