# SPDX-License-Identifier: Apache-2.0
"""Arrays with nothing but __dlpack__ on a fake GPU: a driver that loads kernels and does not run them
(tests/gpu/fake), and arrays that claim to be there."""

import ctypes
import os

import numpy
import pytest

import octavo
from pretend import CUDA, OnGpu

if "OCTAVO_FAKE_CUDA" not in os.environ:
    pytest.skip("ctest says where the driver without a GPU is", allow_module_level=True)

# dlopen returns a library of that name that is already loaded, so the fake driver is found. The
# compiler is fake too, and writes PTX.
ctypes.CDLL(os.environ["OCTAVO_FAKE_CUDA"])
os.environ.update(FAKE_CUDA_ARCH="120", OCTAVO_NVRTC=os.environ["OCTAVO_FAKE_NVRTC"],
                  OCTAVO_CACHE_DIR="/proc/octavo")


class Namespace:
    """The result of an array's __array_namespace__(): accepts anything with __dlpack__."""

    @staticmethod
    def from_dlpack(made):
        assert made.__dlpack_device__() == (CUDA, 0)
        return "taken", made


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setattr(OnGpu, "__array_namespace__", lambda self: Namespace, raising=False)
    return lambda *shape: [OnGpu(numpy.zeros(shape, numpy.float16)) for _ in range(3)]


# This test runs first: nothing is allocated yet, and the driver counts.
def test_too_little_memory(three, monkeypatch):
    q, k, v = three(1, 2, 64, 64)
    monkeypatch.setenv("FAKE_CUDA_MEMORY", "1000")
    with pytest.raises(MemoryError, match="16384 bytes could not be allocated on cuda:0"):
        octavo.attention(q, k, v)


def test_the_gpu_is_seen_and_takes_the_call(three):
    assert octavo.devices()[1].available and "sm_120" in octavo.devices()[1].description
    q, k, v = three(1, 8, 512, 64)
    assert octavo.explain(q, k, v).kernel == "sm80_forward"
    assert octavo.attention(q, k, v)[0] == "taken"
    out, lse = octavo.attention(q, k, v, causal=True, return_lse=True, precision="fp8", stream=0)
    assert out[0] == lse[0] == "taken"
    mine, = three(1, 8, 512, 64)[:1]
    assert octavo.attention(q, k, v, out=mine) is mine


def test_sm_margin(three, monkeypatch):
    """A plan with another margin is another plan; the fake GPU has eight SMs."""
    monkeypatch.setenv("OCTAVO_KERNELS", "decode")
    q, k, v = three(1, 8, 1, 64)[:1] + three(1, 8, 4096, 64)[:2]
    assert "left free" not in octavo.explain(q, k, v).reason
    assert octavo.explain(q, k, v, sm_margin=3).reason.endswith("; 3 of 8 SMs are left free")
    octavo.attention(q, k, v, sm_margin=3)
    for margin, sentence in ((8, "sm_margin is 8; supported: 0 to 7 on cuda:0, which has 8 SMs."),
                             (1 << 40, "sm_margin is 1099511627776; supported: 0 to 7 on cuda:0, which has 8 SMs."),
                             (-1, "sm_margin is -1; supported: 0 \\(none\\) to the SMs of the GPU less one.")):
        with pytest.raises(ValueError, match=sentence):
            octavo.attention(q, k, v, sm_margin=margin)
    with pytest.raises(TypeError, match=r"sm_margin is 'x' \(str\); supported: a number of SMs."):
        octavo.attention(q, k, v, sm_margin="x")


def test_auto_explains_the_cpu_for_what_the_gpu_does_not_serve():
    f16, f32 = (numpy.zeros((1, 2, 64, 64), dtype) for dtype in (numpy.float16, numpy.float32))
    assert octavo.explain(f16, f16, f16, device="auto").device == "cuda:0"
    told = octavo.explain(f32, f32, f32, device="auto")
    assert (told.device, told.kernel) == ("cpu", "cpu_forward")
    assert "; not on cuda:0: " in told.reason and "f32" in told.reason
    with pytest.raises(NotImplementedError, match="f32"):
        octavo.explain(f32, f32, f32, device="cuda:0")


def test_varlen(three):
    starts = OnGpu(numpy.array([0, 4, 12], numpy.int32))
    out = octavo.attention(*three(12, 2, 64), cu_seqlens_q=starts, cu_seqlens_kv=starts,
                           max_seqlen_q=8, max_seqlen_kv=8)
    assert out[0] == "taken"


def test_what_it_does_not_serve():
    q, k, v = (OnGpu(numpy.zeros((1, 2, 8, 64), numpy.float32)) for _ in range(3))
    with pytest.raises(NotImplementedError, match="f32"):
        octavo.attention(q, k, v)


def test_kv_cache():
    cache = octavo.KvCache(4, 2, 64, page_size=16, dtype="int8", device="cuda")
    assert cache.device == "cuda:0"
    sequence = cache.add_sequence()
    cache.select([sequence])
    new = [OnGpu(numpy.zeros((1, 2, 20, 64), numpy.float16)) for _ in range(2)]
    cache.append(*new)
    cache.advance(20)  # as if a graph had appended as many again
    assert cache.length(sequence) == 40 and cache.free_pages == 1
    arrays = cache.arguments()
    for array in (arrays["k"].data, arrays["k"].scales, arrays["page_table"], arrays["seqlens_kv"]):
        assert array.__dlpack_device__() == (CUDA, 0)
    with pytest.raises(ValueError, match="k is on cpu; supported: cuda:0, where the cache is"):
        cache.append(new[0].array, new[1])
    with pytest.raises(ValueError, match="tokens is 25; supported: 0 to 24 for sequence 0, which has 40 of 64"):
        cache.advance(25)
    assert cache.read(sequence)[0].shape == (1, 2, 40, 64)


def test_programs_of_jax_for_what_the_gpu_does_not_serve():
    jax = pytest.importorskip("jax")
    if not hasattr(octavo._octavo, "_xla_handlers"):
        pytest.skip("built without XLA's headers")
    jax.config.update("jax_platforms", "cpu")

    def lower(dtype):
        x = jax.ShapeDtypeStruct((1, 2, 64, 64), dtype)
        return [jax.jit(f).trace(x, x, x).lower(lowering_platforms=("cuda",)) for f in (
            octavo.jax.attention, jax.grad(lambda *x: octavo.jax.attention(*x).astype("float32").sum()))]

    assert all("octavo_attention" in program.as_text() for program in lower("float16"))
    with pytest.raises(NotImplementedError, match="f32"):
        lower("float32")


@pytest.fixture
def torch_on_gpu(monkeypatch):
    """Makes tensors of PyTorch that claim to be on the GPU, which PyTorch itself does not see."""
    torch = pytest.importorskip("torch")

    class Parameter(torch.Tensor):  # named as the only subclass that is read like a plain tensor
        __module__ = "torch.nn.parameter"
        __dlpack_c_exchange_api__ = None
        __torch_function__ = torch._C._disabled_torch_function_impl

        def detach(self):
            return self

        def __dlpack_device__(self):
            return self.on_gpu.__dlpack_device__()

        def __dlpack__(self, **options):
            return self.on_gpu.__dlpack__()

    def make(array):
        made = torch.from_numpy(array).as_subclass(Parameter)
        made.on_gpu = OnGpu(array)
        return made

    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: 0)
    return make


def test_plans_of_torch_tensors(torch_on_gpu):
    """Python keeps the plans of PyTorch's tensors: how many rows of k share a scale makes another one."""
    q, v, out = (torch_on_gpu(numpy.zeros((1, 2, 128, 64), numpy.float16)) for _ in range(3))
    for rows in (64, 32, 64, 16):
        k = octavo.Quantized(torch_on_gpu(numpy.zeros((1, 2, 128, 64), numpy.int8)),
                             torch_on_gpu(numpy.ones((1, 2, 128 // rows), numpy.float32)), "int8", "block", rows)
        assert octavo.attention(q, k, v, out=out) is out
