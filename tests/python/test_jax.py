"""JAX arrays on the CPU: read and returned only through DLPack."""

import numpy
import pytest

import octavo
from conftest import reference

jax = pytest.importorskip("jax")
jax.config.update("jax_platforms", "cpu")


def test_jax_in_jax_out(normal):
    q, k, v = (jax.numpy.asarray(normal(1, 2, 20, 16)) for _ in range(3))
    out, lse = octavo.attention(q, k, v, causal=True, return_lse=True)
    assert isinstance(out, jax.Array) and isinstance(lse, jax.Array)
    wanted, wanted_lse = reference(q, k, v, "top_left")
    numpy.testing.assert_allclose(out, wanted, atol=1e-5)
    numpy.testing.assert_allclose(lse, wanted_lse, atol=1e-5)


def test_bfloat16(normal):
    q, k, v = (jax.numpy.asarray(normal(1, 2, 20, 16), jax.numpy.bfloat16) for _ in range(3))
    out = octavo.attention(q, k, v)
    assert out.dtype == jax.numpy.bfloat16
    numpy.testing.assert_allclose(numpy.asarray(out, numpy.float32), reference(q, k, v)[0], atol=2e-2)


def test_what_jax_keeps_is_not_written(normal):
    x = jax.numpy.asarray(normal(1, 2, 4, 8))
    other = jax.numpy.asarray(normal(1, 2, 4, 8))
    before = numpy.array(x)
    try:
        octavo.attention(other, other, other, out=x)
    except ValueError as refused:
        assert "may not be written" in str(refused)
        numpy.testing.assert_array_equal(before, x)
    else:
        pytest.fail("an array of JAX was written")


def test_traced_arrays_are_refused_by_name(normal):
    x = jax.numpy.asarray(normal(1, 2, 4, 8))
    for transform in (jax.jit, jax.vmap, jax.grad):
        inputs = x[None] if transform is jax.vmap else x
        with pytest.raises(TypeError, match="q is a traced JAX array; supported: arrays of JAX outside"):
            transform(lambda x: octavo.attention(x, x, x))(inputs)
