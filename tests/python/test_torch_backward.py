# SPDX-License-Identifier: Apache-2.0
"""Gradients in PyTorch: eager, compiled, with autocast, against fp64 gradients of PyTorch's attention."""

import shutil

import pytest

torch = pytest.importorskip("torch")
import torch._inductor.config  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import octavo  # noqa: E402
import octavo.torch  # noqa: E402

# Each of these is a way of its own to the operators; octavo.torch.attention calls octavo.attention.
CALLS = {
    "octavo.attention": lambda q, k, v, causal=False: octavo.attention(q, k, v, causal=causal),
    "sdpa": lambda q, k, v, causal=False: octavo.torch.sdpa(q, k, v, is_causal=causal),
    "operator": lambda q, k, v, causal=False: torch.ops.octavo.attention(
        q, k, v, causal="top_left" if causal else "none"),
}
COMPILERS = [pytest.param("aot_eager", id="aot_eager"),
             pytest.param("inductor", id="inductor", marks=pytest.mark.skipif(
                 not (shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler"))]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(scope="module", autouse=True)
def inductor(tmp_path_factory):
    """Inductor begins with an empty cache, and compiles no programs to find out which vector instructions there are."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        changes.setattr(torch._inductor.config.cpp, "vec_isa_ok", False)
        yield


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    octavo.torch.reset_fallbacks()


@pytest.fixture(params=CALLS)
def call(request):
    return CALLS[request.param]


def tensors(*shape, dtype=torch.float32, kv=None):
    """q, k and v that require grad."""
    shapes = (shape, kv or shape, kv or shape)
    return [torch.randn(one).to(dtype).requires_grad_() for one in shapes]


def mask_of(rows, keys, causal=None, window=(-1, -1)):
    """True for the keys that each row sees; causal is None, "top_left" or "bottom_right"."""
    shift = 0 if causal == "top_left" else keys - rows
    beyond = torch.arange(keys)[None, :] - torch.arange(rows)[:, None] - shift
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        seen &= beyond <= 0
    if window[0] >= 0:
        seen &= beyond >= -window[0]
    if window[1] >= 0:
        seen &= beyond <= window[1]
    return seen


def exact_gradients(inputs, dout, seen=None, scale=None):
    """Gradients in fp64 by PyTorch's math; rows that see no key have none."""
    q, k, v = (x.detach().double().requires_grad_() for x in inputs)
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
    s = q @ keys.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if seen is not None:
        s = s.masked_fill(~seen, -1e30)
    p = s.softmax(-1)
    if seen is not None:
        p = p * seen
    out = p @ values
    return torch.autograd.grad(out, (q, k, v), dout.double())


def close(found, wanted, dtype=None):
    tolerance = TOLERANCES[dtype or found[0].dtype]
    for one, other in zip(found, wanted):
        assert one.shape == other.shape
        limit = tolerance * (1 + other.abs().max())
        assert (one.double() - other).abs().max() <= limit


def gradients(inputs, out, dout):
    return torch.autograd.grad(out, inputs, dout)


# -------------------------------------------------------------------------------------------- eager


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("causal", [False, True])
def test_eager(call, dtype, causal):
    inputs = tensors(2, 3, 33, 16, dtype=dtype)
    out = call(*inputs, causal=causal)
    assert out.requires_grad and out.dtype == dtype
    dout = torch.randn_like(out)
    seen = mask_of(33, 33, "top_left") if causal else None
    found = gradients(inputs, out, dout)
    assert all(g.dtype == dtype for g in found)
    close(found, exact_gradients(inputs, dout, seen))
    assert octavo.torch.fallbacks() == {}


@pytest.mark.parametrize("options", [
    {"causal": "bottom_right"}, {"causal": "top_left", "window": (5, None)}, {"window": (3, 2)},
    {"scale": 0.4}, {"batch_invariant": True}, {"precision": "native"}])
def test_options(options):
    inputs = tensors(2, 4, 20, 24, kv=(2, 2, 31, 24))
    out = octavo.attention(*inputs, **options)
    dout = torch.randn_like(out)
    window = tuple(-1 if side is None else side for side in options.get("window", (-1, -1)))
    seen = mask_of(20, 31, options.get("causal"), window)
    close(gradients(inputs, out, dout), exact_gradients(inputs, dout, seen, options.get("scale")))


def test_rows_without_keys():
    inputs = tensors(1, 2, 12, 8, kv=(1, 2, 7, 8))
    out = octavo.attention(*inputs, causal="bottom_right")
    dout = torch.randn_like(out)
    found = gradients(inputs, out, dout)
    assert found[0][:, :, :5].abs().max() == 0
    close(found, exact_gradients(inputs, dout, mask_of(12, 7, "bottom_right")))


def test_precision_of_the_dtype():
    inputs = tensors(1, 2, 12, 16, dtype=torch.bfloat16)
    out = octavo.attention(*inputs, precision="bf16")
    dout = torch.randn_like(out)
    close(gradients(inputs, out, dout), exact_gradients(inputs, dout))


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2)])
def test_some_inputs_only(call, which):
    inputs = [x.detach() for x in tensors(1, 2, 9, 8)]
    for one in which:
        inputs[one].requires_grad_()
    out = call(*inputs)
    dout = torch.randn_like(out)
    out.backward(dout)
    wanted = exact_gradients(inputs, dout)
    for i, x in enumerate(inputs):
        assert (x.grad is not None) == (i in which)
        if i in which:
            close([x.grad], [wanted[i]])


def test_layouts_strides_and_expanded_gradients():
    q, k, v = tensors(2, 9, 4, 16)  # (batch, seqlen, heads, head_dim)
    out = octavo.attention(q, k, v, layout="bshd")
    found = torch.autograd.grad(out.sum(), (q, k, v))  # dout is an expanded number
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    wanted = exact_gradients(turned, torch.ones(2, 4, 9, 16))
    close([x.transpose(1, 2) for x in found], wanted)
    # Views in the order of (batch, seqlen, heads, head_dim), with a transposed gradient.
    out = octavo.attention(*turned)
    dout = torch.randn(2, 4, 16, 9).transpose(2, 3)
    close([x.transpose(1, 2) for x in torch.autograd.grad(out, (q, k, v), dout)],
          exact_gradients(turned, dout))


def test_lse_with_a_gradient():
    inputs = tensors(1, 2, 9, 8)
    out, lse = octavo.attention(*inputs, return_lse=True)
    assert out.requires_grad and not lse.requires_grad
    dout = torch.randn_like(out)
    close(gradients(inputs, out, dout), exact_gradients(inputs, dout))


def test_varlen():
    q, k, v = tensors(20, 4, 16, kv=(23, 2, 16))
    cu_q = torch.tensor([0, 7, 7, 18], dtype=torch.int32)  # the last two tokens are of no sequence
    cu_kv = torch.tensor([0, 10, 12, 23], dtype=torch.int32)
    options = {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv, "causal": "bottom_right"}
    out = octavo.attention(q, k, v, **options)
    dout = torch.randn_like(out)
    found = gradients((q, k, v), out, dout)
    wanted = [torch.zeros_like(x, dtype=torch.float64) for x in (q, k, v)]
    for n in (0, 2):
        rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_kv[n], cu_kv[n + 1])
        parts = [x[one].transpose(0, 1)[None] for x, one in ((q, rows), (k, keys), (v, keys))]
        seen = mask_of(parts[0].shape[2], parts[1].shape[2], "bottom_right")
        sums = exact_gradients(parts, dout[rows].transpose(0, 1)[None], seen)
        for whole, one, part in zip(wanted, (rows, keys, keys), sums):
            whole[one] = part[0].transpose(0, 1)
    close(found, wanted)


def test_zero_sizes():
    q, k, v = tensors(1, 2, 0, 8, kv=(1, 2, 5, 8))
    octavo.attention(q, k, v).sum().backward()
    assert q.grad.shape == q.shape and k.grad.abs().max() == 0 and v.grad.abs().max() == 0


def test_without_a_gradient_nothing_is_recorded(call):
    q, k, v = tensors(1, 2, 9, 8)
    with torch.no_grad():
        assert not call(q, k, v).requires_grad
    assert not call(q.detach(), k.detach(), v.detach()).requires_grad


def test_gradients_have_the_same_bits_every_time():
    inputs = tensors(2, 4, 300, 32, kv=(2, 2, 200, 32))
    out = octavo.attention(*inputs)
    dout = torch.randn_like(out)
    first = torch.autograd.grad(out, inputs, dout, retain_graph=True)
    for threads in (1, 2, 3):
        octavo.set_cpu_threads(threads)
        again = torch.autograd.grad(out, inputs, dout, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again))
    octavo.set_cpu_threads(0)


def test_gradients_through_vmap():
    inputs = tensors(3, 1, 2, 9, 16)
    out = torch.func.vmap(octavo.attention)(*inputs)
    dout = torch.randn_like(out)
    found = gradients(inputs, out, dout)
    flat = [x.detach().flatten(0, 1) for x in inputs]
    close([x.flatten(0, 1) for x in found], exact_gradients(flat, dout.flatten(0, 1)))


def test_checkpointing(call):
    inputs = tensors(1, 2, 30, 16)
    dout = torch.randn(1, 2, 30, 16)
    plain = gradients(inputs, call(*(x * 2 for x in inputs)), dout)
    for reentrant in (False, True):
        out = checkpoint(lambda *x: call(*(one * 2 for one in x)), *inputs, use_reentrant=reentrant)
        for x in inputs:
            x.grad = None
        out.backward(dout)
        assert all(torch.equal(a, x.grad) for a, x in zip(plain, inputs))


# gradcheck compares with finite differences, which need inputs in fp64: the CPU kernels have f32, so
# steps and tolerances are coarse.
@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_gradcheck():
    inputs = tensors(1, 2, 5, 4)
    torch.autograd.gradcheck(lambda q, k, v: octavo.attention(q, k, v, causal=True), inputs, eps=1e-2,
                             atol=2e-2, rtol=2e-2, nondet_tol=0.0)


# ----------------------------------------------------------------------------------------- compiled


class Projected(torch.nn.Module):
    """A layer whose attention sees values that require grad and are not leaves."""

    def __init__(self, call):
        super().__init__()
        torch.manual_seed(1)
        self.call = call
        self.linear = torch.nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.linear(x).chunk(3, -1)
        return self.call(*(one.unflatten(-1, (2, 8)).transpose(1, 2) for one in (q, k, v)), causal=True)


def theirs(q, k, v, causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


# Compiled code dropped the gradient of this weight once. Every backend gets the same operator from every
# call.
@pytest.mark.parametrize("name, backend", [(name, "aot_eager") for name in CALLS] + [
    ("octavo.attention", "eager"), pytest.param("octavo.attention", "inductor", marks=COMPILERS[1].marks)])
def test_weights_get_their_gradients(name, backend):
    x = torch.randn(1, 6, 16)
    found = []
    for one, compiled in ((CALLS[name], False), (CALLS[name], True), (theirs, False)):
        model = Projected(one)
        run = torch.compile(model, backend=backend, fullgraph=True) if compiled else model
        run(x).square().sum().backward()
        found.append(model.linear.weight.grad)
    assert found[2].abs().sum() > 1
    for one in found[:2]:
        torch.testing.assert_close(one, found[2], atol=1e-5, rtol=1e-5)
    assert octavo.torch.fallbacks() == {}


@pytest.mark.parametrize("backend", COMPILERS)
def test_compiled_without_gradients(backend):
    compiled = torch.compile(lambda q, k, v: octavo.attention(q * 2, k, v, causal=True) + 1, backend=backend,
                             fullgraph=True)
    q, k, v = (torch.randn(2, 3, 12, 16) for _ in range(3))
    wanted = F.scaled_dot_product_attention(2 * q.double(), k.double(), v.double(), is_causal=True) + 1
    torch.testing.assert_close(compiled(q, k, v).double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", COMPILERS)
def test_compiled_groups_and_new_lengths(backend):
    compiled = torch.compile(lambda q, k, v: octavo.attention(q * 2, k, v, causal="bottom_right") * 3,
                             backend=backend, fullgraph=True, dynamic=True)
    for rows in (9, 14, 21):
        inputs = tensors(2, 4, rows, 16, kv=(2, 2, 25, 16))
        out = compiled(*inputs)
        dout = torch.randn_like(out)
        q, k, v = inputs
        dq, dk, dv = exact_gradients((q * 2, k, v), dout * 3, mask_of(rows, 25, "bottom_right"))
        close(gradients(inputs, out, dout), (dq * 2, dk, dv))


def test_compiled_varlen():
    starts = torch.tensor([0, 5, 14], dtype=torch.int32)

    def model(q, k, v, starts):
        return octavo.attention(q, k, v, causal=True, cu_seqlens_q=starts, cu_seqlens_kv=starts,
                                max_seqlen_q=9, max_seqlen_kv=9)

    inputs = tensors(14, 2, 16)
    out = torch.compile(model, backend="aot_eager", fullgraph=True)(*inputs, starts)
    dout = torch.randn_like(out)
    for a, b in zip(gradients(inputs, out, dout), gradients(inputs, model(*inputs, starts), dout)):
        torch.testing.assert_close(a, b)


def test_compiled_checkpointing(call):
    x = torch.randn(1, 6, 16)
    found = []
    for compiled in (False, True):
        model = Projected(call)

        def run(x, model=model):
            return checkpoint(model, x, use_reentrant=False)

        run = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
        run(x).square().sum().backward()
        found.append(model.linear.weight.grad)
    torch.testing.assert_close(*found)


# ----------------------------------------------------------------------------------------- autocast


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(call, compiled):
    inputs = tensors(1, 2, 12, 16)

    def model(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return call(q, k, v, causal=True)

    run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    out = run(*inputs)
    assert out.dtype == torch.bfloat16
    dout = torch.randn_like(out)
    found = gradients(inputs, out, dout)
    assert all(g.dtype == torch.float32 for g in found)
    close(found, exact_gradients(inputs, dout, mask_of(12, 12, "top_left")), torch.bfloat16)
    assert octavo.torch.fallbacks() == {}


# --------------------------------------------------------------------------------------- operators


@pytest.mark.parametrize("operator", ["attention", "attention_lse"])
@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right", "window": [3, -1], "scale": 0.3},
                                     {"layout": "bshd"}])
def test_opcheck_with_gradients(operator, options):
    q, k, v = (x.detach().transpose(1, 2).requires_grad_() for x in tensors(2, 5, 4, 16))
    torch.library.opcheck(getattr(torch.ops.octavo, operator), (q, k, v), options)


@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right", "window": [3, -1], "scale": 0.3}])
def test_opcheck_of_the_backward_operator(options):
    q, k, v = (x.detach() for x in tensors(2, 4, 5, 16, kv=(2, 2, 7, 16)))
    out, lse = torch.ops.octavo.attention_lse(q, k, v, **options)
    dout = torch.randn(2, 5, 4, 16).transpose(1, 2)
    torch.library.opcheck(torch.ops.octavo.attention_backward, (dout, q, k, v, out, lse), options)


def test_attention_backward_by_itself():
    q, k, v = (x.detach() for x in tensors(2, 4, 5, 16, kv=(2, 2, 7, 16)))
    out, lse = octavo.attention(q, k, v, return_lse=True)
    dout = torch.randn_like(out)
    found = octavo.attention_backward(dout, q, k, v, out, lse)
    close(found, exact_gradients((q, k, v), dout))
    for one, like in zip(found, (q, k, v)):
        assert one.stride() == like.stride()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        again = octavo.attention_backward(dout, q, k, v, out=out, lse=lse, causal=False)
    assert all(torch.equal(a, b) for a, b in zip(found, again))
    assert any(one.key == "octavo::attention_backward" for one in profiled.key_averages())


# ----------------------------------------------------------------------------------- what is refused


def test_a_second_derivative_is_refused(call):
    inputs = tensors(1, 2, 9, 8)
    first = torch.autograd.grad(call(*inputs).square().sum(), inputs, create_graph=True)
    close(first, exact_gradients(inputs, 2 * theirs(*inputs).detach()))
    with pytest.raises(NotImplementedError, match="A second derivative of octavo's attention is needed"):
        torch.autograd.grad(first[0].sum(), inputs)


@pytest.mark.parametrize("precision", ["fp8", "int8", "fp16"])
def test_other_precisions_are_refused(precision):
    inputs = tensors(1, 2, 9, 16)
    with pytest.raises(NotImplementedError, match=f"precision is {precision} with inputs of f32; supported"):
        octavo.attention(*inputs, precision=precision)
    with torch.no_grad():
        octavo.attention(*inputs, precision=precision)


def test_other_dtypes_are_refused():
    q, k, v = tensors(1, 2, 9, 16)
    with pytest.raises(NotImplementedError, match="k dtype is bf16; supported here: the dtype of q"):
        octavo.attention(q, k.to(torch.bfloat16), v)
    with pytest.raises(NotImplementedError, match="out dtype is f16; supported here: the dtype of q"):
        octavo.attention(q, k, v, out_dtype=torch.float16)


def test_what_the_operators_lack_is_refused():
    q, k, v = tensors(1, 2, 9, 16)
    with pytest.raises(NotImplementedError, match="out is given for tensors that require grad; supported"):
        octavo.attention(q, k, v, out=torch.empty_like(q))
    with pytest.raises(NotImplementedError, match="return_amax is given for tensors that require grad"):
        octavo.attention(q, k, v, return_amax=True)
    with pytest.raises(NotImplementedError, match="q, k or v is quantized beside tensors that require"):
        octavo.attention(q, octavo.quantize(k.detach(), "int8"), v)


@pytest.mark.parametrize("change, words", [
    ({"dout": torch.zeros(1, 2, 8, 16)}, r"dout.shape is \(1, 2, 8, 16\); supported: \(1, 2, 9, 16\)"),
    ({"dout": torch.zeros(1, 2, 9, 16, dtype=torch.float16)}, "dout.dtype is f16; supported: the dtype of q"),
    ({"out": torch.zeros(1, 2, 9, 8)}, "out.shape is"),
    ({"lse": torch.zeros(1, 2, 8)}, r"lse.shape is \(1, 2, 8\); supported: \(1, 2, 9\)"),
    ({"lse": torch.zeros(2, 9)}, r"lse is of 2 dimensions; supported: \(batch, heads, seqlen\)"),
    ({"lse": torch.zeros(1, 2, 9, dtype=torch.float16)}, "lse.dtype is f16; supported: f32"),
])
def test_wrong_arguments_of_the_backward_pass(change, words):
    q, k, v = (x.detach() for x in tensors(1, 2, 9, 16))
    out, lse = octavo.attention(q, k, v, return_lse=True)
    given = {"dout": torch.zeros_like(out), "out": out, "lse": lse, **change}
    with pytest.raises(ValueError, match=words):
        octavo.attention_backward(q=q, k=k, v=v, **given)


def test_missing_and_unknown_arguments_of_the_backward_pass():
    q, k, v = (x.detach() for x in tensors(1, 2, 9, 16))
    with pytest.raises(TypeError, match=r"attention_backward\(\) needs out"):
        octavo.attention_backward(q, q, k, v)
    with pytest.raises(TypeError, match="unexpected keyword argument 'is_causal'; did you mean 'causal'"):
        octavo.attention_backward(q, q, k, v, q, q, is_causal=True)
    with pytest.raises(TypeError, match="takes 6 positional arguments, dout, q, k, v, out and lse, but 7"):
        octavo.attention_backward(q, q, k, v, q, q, q)


def test_forward_mode_is_refused():
    q, k, v = tensors(1, 2, 9, 16)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q.detach(), torch.randn(1, 2, 9, 16))
        with pytest.raises(NotImplementedError, match="q is a dual tensor with a tangent; supported"):
            octavo.attention(dual, k, v)
