# SPDX-License-Identifier: Apache-2.0
"""PyTorch's requirements for an operator, tested on octavo's: on the CPU, and on a GPU if there is one."""

import threading

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import octavo  # noqa: E402
import octavo.torch  # noqa: E402

DEVICES = [pytest.param("cpu", id="cpu"),
           pytest.param("cuda", id="cuda", marks=pytest.mark.skipif(
               not torch.cuda.is_available(), reason="PyTorch finds no GPU here"))]
# Each of these computes attention, causal if requested, and is a way of its own to the operators;
# octavo.torch.attention calls octavo.attention.
CALLS = {
    "octavo.attention": lambda q, k, v, causal=False: octavo.attention(q, k, v, causal=causal),
    "sdpa": lambda q, k, v, causal=False: octavo.torch.sdpa(q, k, v, is_causal=causal),
    "operator": lambda q, k, v, causal=False: torch.ops.octavo.attention(
        q, k, v, causal="top_left" if causal else "none"),
}
NO_BACKWARD = "device is a toaster; supported here: others for the backward pass."
BY_TRANSFORM = "a gradient is taken by a transform of torch.func; supported: backward"


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(params=[one for one in CALLS if one != "operator"])
def call(request):
    return CALLS[request.param]


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    # A cache of compiled code identifies operators only by name, whatever their parameters were.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    torch.manual_seed(0)
    octavo.torch.reset_fallbacks()


def served_dtype(device):
    return torch.float16 if device == "cuda" else torch.float32


def tensors(device, *shape, dtype=None):
    """Three tensors of a type that the device serves."""
    dtype = dtype or served_dtype(device)
    return [torch.randn(shape, device=device).to(dtype) for _ in range(3)]


def close(out, wanted):
    tolerance = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}[out.dtype]
    torch.testing.assert_close(out.double(), wanted.double(), atol=tolerance, rtol=tolerance)


def exact(q, k, v, causal=False):
    return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.seen.append(str(function))
        return function(*arguments, **(named or {}))


@pytest.fixture
def without_backward(monkeypatch):
    """Tensors of a kind that has no backward pass."""
    monkeypatch.setattr(octavo.torch, "_cached_refusal", lambda *of: NO_BACKWARD)


# ------------------------------------------------------------------------------- short path or not


def test_eager_calls_take_the_short_path(device, call, monkeypatch):
    q, k, v = tensors(device, 1, 2, 8, 16)
    monkeypatch.setattr(octavo.torch, "_by_operator", None)  # every other call uses it
    monkeypatch.setattr(octavo.torch, "_operator_sdpa", None)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            close(call(q, k, v), exact(q, k, v))
    out = torch.empty_like(q)
    assert octavo.attention(q, k, v, out=out) is out


# Otherwise slower functions of PyTorch determine the same.
def test_dispatch_keys_are_read_directly():
    assert octavo._octavo._reads_dispatch_keys()


def test_a_mode_sees_the_operator(device, call):
    q, k, v = tensors(device, 1, 2, 8, 16)
    with Watch() as watch:
        close(call(q, k, v), exact(q, k, v))
    assert watch.seen.count("octavo.attention.default") == 1


def test_modes_of_other_threads_do_not_matter():
    q, k, v = tensors("cpu", 1, 2, 8, 16)
    seen = []

    def other():
        seen.append(octavo.attention(q, k, v))

    with Watch() as watch:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    close(seen[0], exact(q, k, v))
    assert watch.seen == []


def test_out_is_written_under_a_mode(device):
    q, k, v = tensors(device, 1, 2, 8, 16)
    for shape in (q.shape, (2, *q.shape[1:])):
        out = torch.empty(shape, device=device, dtype=q.dtype)
        with Watch() as watch:
            if shape != q.shape:
                with pytest.raises(ValueError, match="out.shape is"):
                    octavo.attention(q, k, v, out=out)
                continue
            assert octavo.attention(q, k, v, out=out) is out
        close(out, exact(q, k, v))
        assert "octavo.attention.default" in watch.seen


def test_a_function_mode_sees_the_operator(device, call):
    from torch.overrides import TorchFunctionMode

    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):
            seen.append(str(function))
            return function(*arguments, **(named or {}))

    q, k, v = tensors(device, 1, 2, 8, 16)
    with Functions():
        out = call(q, k, v)
    close(out, exact(q, k, v))
    assert any("octavo" in name for name in seen)
    with torch.device(device):  # also a function mode, which hides no parameter
        made = [octavo.quantize(x.float().cpu(), "int8") for x in (q, k, v)]
    if device == "cpu":
        with torch.device(device):
            assert octavo.attention(*made).shape == q.shape


def test_what_operators_lack_is_refused_under_a_transform():
    q, k, v = tensors("cpu", 1, 2, 8, 16)
    made = octavo.quantize(k, "int8")
    with Watch(), pytest.raises(TypeError, match="k is no tensor; supported: tensors in traced code"):
        octavo.attention(q, made, v)
    with Watch(), pytest.raises(TypeError, match="return_amax is given; supported: None in traced"):
        octavo.attention(q, k, v, return_amax=True)


# ------------------------------------------------------------------------------------ the operators


# test_torch.py and test_torch_backward.py have it on the CPU.
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")
@pytest.mark.parametrize("operator", ["attention", "attention_lse"])
@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right", "window": [3, -1], "scale": 0.3},
                                     {"layout": "bshd"}])
def test_opcheck(operator, options):
    q, k, v = (x.transpose(1, 2) for x in tensors("cuda", 2, 5, 4, 16))
    torch.library.opcheck(getattr(torch.ops.octavo, operator), (q, k, v), options)


def test_meta_tensors(call):
    q, k, v = (x.transpose(1, 2).to("meta") for x in tensors("cpu", 2, 5, 4, 16))
    out = call(q, k, v)
    assert out.device.type == "meta" and (out.shape, out.stride()) == (q.shape, q.stride())
    assert octavo.torch.fallbacks() == {}


def test_fake_tensors(device, call):
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = (x.transpose(1, 2) for x in tensors(device, 2, 5, 4, 16))
    real = call(q, k, v)
    with FakeTensorMode() as mode:
        out = call(*(mode.from_tensor(x) for x in (q, k, v)))
        assert type(out) is type(mode.from_tensor(q))
        assert (out.shape, out.stride(), out.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize("tracing", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_records_the_operator(device, call, tracing, pre_dispatch):
    q, k, v = tensors(device, 1, 2, 8, 16)
    graph = make_fx(lambda q, k, v: call(q * 2, k, v, causal=True), tracing_mode=tracing,
                    pre_dispatch=pre_dispatch)(q, k, v)
    targets = [str(node.target) for node in graph.graph.nodes]
    assert targets.count("octavo.attention.default") == 1
    others = tensors(device, 1, 2, 8, 16)
    close(graph(*others), exact(others[0] * 2, *others[1:], causal=True))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is not supported")
def test_jit_trace_is_right_on_new_inputs(device, call):
    inputs = tensors(device, 1, 2, 8, 16)
    traced = torch.jit.trace(lambda q, k, v: call(q * 2, k, v, causal=True), tuple(inputs))
    assert "octavo::attention" in str(traced.graph)
    others = tensors(device, 1, 2, 8, 16)
    close(traced(*others), exact(others[0] * 2, *others[1:], causal=True))


def test_profiler_shows_the_name(device, call):
    q, k, v = tensors(device, 1, 2, 8, 16)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        call(q, k, v)
    counts = {one.key: one.count for one in profiled.key_averages()}
    assert counts.get("octavo::attention") == 1


# Calls with features that the operators lack are recorded as well, and not refused.
def test_profiler_shows_calls_that_operators_lack():
    q, k, v = tensors("cpu", 1, 2, 8, 16)
    made, out = octavo.quantize(k, "int8"), torch.empty_like(q)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        octavo.attention(q, made, v)
        assert octavo.attention(q, k, v, out=out) is out
    counts = {one.key: one.count for one in profiled.key_averages()}
    assert counts.get("octavo::attention") == 2
    close(out, exact(q, k, v))


# ---------------------------------------------------------------------------------------- autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_as_sdpa(device, call, dtype):
    q, k, v = tensors(device, 1, 2, 8, 16, dtype=torch.float32)
    k = k.to(torch.bfloat16)  # tensors that are cast may have different types
    with torch.autocast(device, dtype=dtype):
        out, theirs = call(q, k, v, causal=True), F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert out.dtype == theirs.dtype == dtype
    close(out, theirs)
    assert octavo.torch.fallbacks() == {}
    with torch.autocast(device, dtype=dtype, enabled=False):
        assert octavo.torch.sdpa(v, v, v).dtype == torch.float32


def test_autocast_leaves_other_arguments_alone():
    q, k, v = tensors("cpu", 1, 2, 8, 16)
    made, out = octavo.quantize(k, "int8"), torch.empty_like(q)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert octavo.attention(q, made, v).dtype == torch.bfloat16
        assert octavo.attention(q, k, v, out=out) is out
    assert torch.equal(out, octavo.attention(q, k, v))


@pytest.mark.parametrize("name", CALLS)
def test_autocast_in_compiled_code(device, name):
    q, k, v = tensors(device, 1, 2, 8, 16, dtype=torch.float32)

    def model(q, k, v):
        with torch.autocast(device, dtype=torch.bfloat16):
            return CALLS[name](q, k, v)

    out = torch.compile(model, fullgraph=True, backend="aot_eager")(q, k, v)
    assert out.dtype == torch.bfloat16
    close(out, exact(q, k, v))


# -------------------------------------------------------------------------------------- derivatives


# test_torch_backward.py tests gradients where there is a backward pass.
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("name", [one for one in CALLS if one != "sdpa"])
def test_a_gradient_without_a_backward_pass_is_refused(device, name, which, without_backward):
    inputs = tensors(device, 1, 2, 8, 16)
    inputs[which].requires_grad_()
    with pytest.raises(NotImplementedError, match=NO_BACKWARD):
        CALLS[name](*inputs)
    with pytest.raises(NotImplementedError, match=NO_BACKWARD), Watch():
        CALLS[name](*inputs)
    with torch.no_grad():
        close(CALLS[name](*inputs), exact(*inputs))


class Projected(torch.nn.Module):
    """A layer whose attention sees values that require grad and are not leaves."""

    def __init__(self, name, device):
        super().__init__()
        torch.manual_seed(1)
        self.name = name
        self.linear = torch.nn.Linear(16, 48, device=device, dtype=served_dtype(device))

    def forward(self, x):
        q, k, v = self.linear(x).chunk(3, -1)
        call = CALLS.get(self.name) or (
            lambda q, k, v, causal: F.scaled_dot_product_attention(q, k, v, is_causal=causal))
        return call(*(one.unflatten(-1, (2, 8)).transpose(1, 2) for one in (q, k, v)), causal=True)


# The gradient of this weight was lost once: without an error it would be nearly zero.
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", [one for one in CALLS if one != "sdpa"])
def test_compiled_code_refuses_gradients(device, name, backend, without_backward):
    model = Projected(name, device)
    x = torch.randn(1, 6, 16, device=device).to(served_dtype(device))
    with pytest.raises(Exception, match=NO_BACKWARD):
        torch.compile(model, backend=backend)(x)
    torch._dynamo.reset()
    with torch.no_grad():
        if device == "cpu":
            close(torch.compile(model, backend=backend)(x), model(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match=NO_BACKWARD):
        torch.compile(model, backend=backend, fullgraph=True)(x)


@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_sdpa_without_a_backward_pass_has_the_gradients_of_pytorch(device, backend, without_backward):
    x = torch.randn(1, 6, 16, device=device).to(served_dtype(device))
    gradients = []
    # Both are compiled: PyTorch's compiled attention has other gradients than its eager one where it takes
    # cuDNN's kernel (seen on an H200: off by their own size).
    for name in ("sdpa", "PyTorch's"):
        model = Projected(name, device)
        run = torch.compile(model, backend=backend, fullgraph=True) if backend else model
        run(x).square().sum().backward()
        gradients.append(model.linear.weight.grad)
    tolerance = 1e-4 if device == "cpu" else 1e-2
    torch.testing.assert_close(*gradients, atol=tolerance, rtol=tolerance)
    assert list(octavo.torch.fallbacks()) == [NO_BACKWARD]


# Inductor compiles for seconds, and gets the same operator from every call. test_torch_backward.py has
# it on the CPU: the first program of a process takes the longest.
@pytest.mark.parametrize("name, backend", [(name, "aot_eager") for name in CALLS] + (
    [("octavo.attention", "inductor")] if torch.cuda.is_available() else []))
def test_compiled_code_without_gradients(device, name, backend):
    def model(q, k, v):
        return CALLS[name](q * 2, k, v, causal=True) + 1

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for order in (lambda x: x, lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)):
        q, k, v = (order(x) for x in tensors(device, 2, 3, 12, 16))
        out = compiled(q, k, v)
        close(out, exact(q * 2, k, v, causal=True) + 1)
        assert out.stride() == q.stride()
    assert octavo.torch.fallbacks() == {}


# Every compiled call checks again every name and default that Dynamo reads.
@pytest.mark.parametrize("name", CALLS)
def test_compiled_calls_have_few_guards(name):
    counts = []
    call = CALLS[name]

    def count(guards):
        counts.append(len(guards))
        return [True] * len(guards)

    try:
        compiled = torch.compile(lambda q, k, v: call(q, k, v), fullgraph=True, backend="eager",
                                 options={"guard_filter_fn": count})
        with torch.no_grad():
            compiled(*tensors("cpu", 1, 2, 8, 16))
    except (RuntimeError, TypeError) as refused:
        pytest.skip(f"this PyTorch does not show its guards: {refused}")
    assert counts and counts[0] < 40, counts


@pytest.mark.parametrize("lse", [False, True])
def test_compiled_out(device, lse):
    def model(q, k, v, out):
        given = octavo.attention(q, k, v, out=out, return_lse=lse)
        return given[1] if lse else given + 1

    q, k, v = tensors(device, 1, 2, 8, 16)
    out = torch.empty_like(q)
    torch.compile(model, fullgraph=True, backend="aot_eager")(q, k, v, out)
    close(out, exact(q, k, v))


@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
def test_functorch_grad(device):
    q, k, v = tensors(device, 1, 2, 8, 16, dtype=torch.float32)
    for name in ("octavo.attention", "operator"):
        with pytest.raises(NotImplementedError, match=BY_TRANSFORM):
            torch.func.grad(lambda q: CALLS[name](q, k, v).sum())(q)
    of_ours = torch.func.grad(lambda q: octavo.torch.sdpa(q, k, v).square().sum())(q)
    of_theirs = torch.func.grad(lambda q: F.scaled_dot_product_attention(q, k, v).square().sum())(q)
    torch.testing.assert_close(of_ours, of_theirs)


# vmap hides that its tensors require grad; the operator detects it below vmap.
@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_functorch_grad_of_vmap(device):
    q, k, v = tensors(device, 3, 1, 2, 8, 16)

    def loss(function):
        return lambda q: torch.func.vmap(function)(q, k, v).float().square().sum()

    with pytest.raises(NotImplementedError, match=BY_TRANSFORM):
        torch.func.grad(loss(octavo.attention))(q)
    # PyTorch's fused backward gives garbage under vmap on CUDA (2.11), with or without Octavo.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        of_ours = torch.func.grad(loss(octavo.torch.sdpa))(q)
        of_theirs = torch.func.grad(loss(F.scaled_dot_product_attention))(q)
    close(of_ours, of_theirs)


@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.parametrize("form", ["dual_level", "jvp"])
def test_forward_mode_is_refused(form):
    q, k, v = tensors("cpu", 1, 2, 8, 16)
    tangent = torch.randn_like(q)

    def derivative(function):
        if form == "jvp":
            return torch.func.jvp(function, (q,), (tangent,))[1]
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, tangent)
            return torch.autograd.forward_ad.unpack_dual(function(dual)).tangent

    for name in ("octavo.attention", "operator"):
        with pytest.raises(NotImplementedError, match="q is a dual tensor with a tangent; supported:"):
            derivative(lambda q: CALLS[name](q, k, v))
    made = octavo.quantize(k, "int8")
    with pytest.raises((NotImplementedError, TypeError)):
        derivative(lambda q: octavo.attention(q, made, v))

    def math(q):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v)

    def ours(q):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return octavo.torch.sdpa(q, k, v)

    torch.testing.assert_close(derivative(ours), derivative(math))
    with torch.autograd.forward_ad.dual_level():  # nothing is dual here
        close(octavo.attention(q, k, v), exact(q, k, v))


# --------------------------------------------------------------------------------------------- vmap


@pytest.mark.filterwarnings("ignore::octavo.torch.FallbackWarning")
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 0, None), (2, 0, 1), (4, None, 0)])
@pytest.mark.parametrize("batch", [1, 2])
def test_vmap(device, call, in_dims, batch):
    whole = tensors(device, 3, batch, 2, 8, 16)
    given = [x[0] if dim is None else x.movedim(0, dim).contiguous() for x, dim in zip(whole, in_dims)]
    wanted = torch.stack([exact(*(x[0] if dim is None else x[i] for x, dim in zip(whole, in_dims)))
                          for i in range(3)])
    close(torch.func.vmap(call, in_dims=in_dims)(*given), wanted)
    if in_dims[0] != 4:  # there columns are not contiguous, which sdpa leaves to PyTorch
        assert octavo.torch.fallbacks() == {}


def test_vmap_of_vmap_and_lse(device):
    whole = tensors(device, 3, 2, 1, 2, 8, 16)
    twice = torch.func.vmap(torch.func.vmap(lambda q, k, v: octavo.attention(q, k, v, return_lse=True)))
    out, lse = twice(*whole)
    close(out, exact(*(x.flatten(0, 2) for x in whole)).view_as(out))
    assert lse.shape == (3, 2, 1, 2, 8)
    flat, flat_lse = octavo.attention(*(x.flatten(0, 2) for x in whole), return_lse=True)
    torch.testing.assert_close(lse, flat_lse.view_as(lse))


def test_vmap_over_layouts_and_varlen_batches(device):
    whole = tensors(device, 3, 2, 8, 4, 16)
    out = torch.func.vmap(lambda q, k, v: octavo.attention(q, k, v, layout="bshd"))(*whole)
    close(out, exact(*(x.transpose(2, 3) for x in whole)).transpose(2, 3))
    starts = torch.tensor([0, 3, 8], dtype=torch.int32, device=device)
    varlen = tensors(device, 3, 8, 2, 16)
    with pytest.raises(NotImplementedError, match="cu_seqlens_q is given under vmap; supported: None"):
        torch.func.vmap(lambda q, k, v: octavo.attention(
            q, k, v, cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=5,
            max_seqlen_kv=5))(*varlen)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")
@pytest.mark.parametrize("name", CALLS)
def test_cuda_graphs(name):
    q, k, v = tensors("cuda", 1, 2, 64, 64)
    CALLS[name](q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = CALLS[name](q, k, v)
    for x in (q, k, v):
        x.normal_()
    graph.replay()
    close(out, exact(q, k, v))
