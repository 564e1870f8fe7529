# SPDX-License-Identifier: Apache-2.0
"""octavo.jax.attention on a GPU: values, gradients, streams of XLA, several kernels in one program."""

import functools

import numpy
import pytest

jax = pytest.importorskip("jax")
try:
    GPU = jax.devices("cuda")[0]
except RuntimeError:
    pytest.skip("JAX finds no GPU here", allow_module_level=True)

import jax.numpy as jnp  # noqa: E402

import octavo  # noqa: E402

jax.config.update("jax_default_device", GPU)
jax.config.update("jax_default_matmul_precision", "highest")


def inputs(*shapes, dtype=jnp.float16):
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape, jnp.float32).astype(dtype) for key, shape in zip(keys, shapes)]


def plain(q, k, v, causal=False, softcap=None, bias=None, sinks=None):
    """Unfused attention in float32; a causal mask is bottom_right."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[3]**-0.5
    s = softcap * jnp.tanh(s / softcap) if softcap else s
    s = s if bias is None else s + bias
    if causal:
        s = jnp.where(jnp.tri(*s.shape[2:], s.shape[3] - s.shape[2], dtype=bool), s, -jnp.inf)
    if sinks is not None:
        s = jnp.concatenate([s, jnp.broadcast_to(sinks[:, None, None], (*s.shape[:3], 1))], -1)
        v = jnp.concatenate([v, jnp.zeros((*v.shape[:2], 1, v.shape[3]))], 2)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(s, -1), v)


def close(found, wanted, dtype):
    wanted = numpy.asarray(wanted, numpy.float32)
    step = 2**-11 if dtype == jnp.float16 else 2**-8
    numpy.testing.assert_allclose(numpy.asarray(found, numpy.float32), wanted,
                                  atol=4 * step * float(numpy.abs(wanted).max()) + 2e-4, rtol=0)


def run(f, arrays, dout):
    out, pull = jax.vjp(f, *arrays)
    return out, pull(dout)


compiled = jax.jit(run, static_argnums=0)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("heads_kv, rows, keys, dim", [(4, 512, 512, 64), (2, 200, 513, 128), (1, 1, 4096, 128)])
def test_values_and_gradients(dtype, heads_kv, rows, keys, dim):
    arrays = inputs((2, 4, rows, dim), (2, heads_kv, keys, dim), (2, heads_kv, keys, dim), dtype=dtype)
    dout, = inputs((2, 4, rows, dim), dtype=dtype)
    f = functools.partial(octavo.jax.attention, causal="bottom_right")
    found = compiled(f, arrays, dout)
    wanted = compiled(lambda *x: plain(*x, causal=True).astype(dtype), arrays, dout)
    assert found[0].devices() == {GPU}
    jax.tree.map(functools.partial(close, dtype=dtype), found, wanted)
    for _ in range(10):  # the same bits in every run
        jax.tree.map(numpy.testing.assert_array_equal, compiled(f, arrays, dout), found)
    numpy.testing.assert_array_equal(f(*arrays), jax.jit(f)(*arrays))
    close(f(*arrays), wanted[0], dtype=dtype)


def test_modifiers_and_their_gradients():
    arrays = [*inputs((2, 4, 130, 64), (2, 2, 200, 64), (2, 2, 200, 64)),
              *inputs((4, 1, 200), (4,), dtype=jnp.float32)]
    dout, = inputs((2, 4, 130, 64))
    found = compiled(lambda q, k, v, bias, sinks: octavo.jax.attention(q, k, v, bias=bias, sinks=sinks, softcap=3.0),
                     arrays, dout)
    wanted = compiled(lambda q, k, v, bias, sinks: plain(q, k, v, bias=bias, sinks=sinks, softcap=3.0).astype(q.dtype),
                      arrays, dout)
    jax.tree.map(functools.partial(close, dtype=jnp.float16), found, wanted)


def test_vmap_and_varlen():
    q, k, v = inputs((2, 3, 4, 130, 64), (2, 4, 130, 64), (2, 4, 130, 64))
    f = functools.partial(octavo.jax.attention, causal=True)
    found = jax.jit(jax.vmap(f, (1, None, None), 1))(q, k, v)
    close(found, jnp.stack([plain(q[:, i], k, v, causal=True) for i in range(3)], 1), jnp.float16)
    starts = jnp.array([0, 100, 230])
    flat = [x.swapaxes(1, 2).reshape(260, 4, 64).at[230:].set(jnp.nan) for x in (q[:, 0], k, v)]
    f = functools.partial(octavo.jax.attention, cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=130,
                          max_seqlen_kv=130, causal=True)
    out, gradients = compiled(f, flat, flat[0].at[230:].set(0))
    for x in (out, *gradients):
        assert not x[230:].any()
    for a, b in ((0, 100), (100, 230)):
        part = [x[a:b].swapaxes(0, 1)[None] for x in flat]
        wanted = compiled(lambda *x: plain(*x, causal=True).astype(jnp.float16), part, part[0])
        for x, y in zip((out, *gradients), (wanted[0], *wanted[1])):
            close(x[a:b].swapaxes(0, 1)[None], y, jnp.float16)


@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_8_bits_have_a_workspace(precision):
    arrays = inputs(*[(1, 8, 512, 64)] * 3)
    out = jax.jit(functools.partial(octavo.jax.attention, precision=precision))(*arrays)
    assert 1e-4 < float(jnp.abs(out - plain(*arrays)).max()) < 0.15


def test_the_order_of_a_program():
    """What XLA computes before and behind a call, and a chain of calls in a loop."""
    q, k, v = inputs(*[(1, 8, 512, 64)] * 3)

    def layers(f, x):
        return jax.lax.scan(lambda x, _: ((x + f(jnp.sin(x), k, v)) * 0.5, None), x, None, length=20)[0]

    found = jax.jit(lambda x: layers(octavo.jax.attention, x))(q)
    close(found, jax.jit(lambda x: layers(lambda *x: plain(*x).astype(q.dtype), x))(q), jnp.float16)


def test_what_a_gpu_does_not_serve():
    q, k, v = inputs(*[(1, 2, 64, 64)] * 3, dtype=jnp.float32)
    with pytest.raises(NotImplementedError, match="f32"):
        octavo.jax.attention(q, k, v)
    with pytest.raises(NotImplementedError, match="f32"):
        jax.jit(octavo.jax.attention).lower(q, k, v)
    host = jax.devices("cpu")[0]
    on_host = [jax.device_put(x, host) for x in (q, k, v)]
    assert octavo.jax.attention(*on_host).devices() == {host}
