# SPDX-License-Identifier: Apache-2.0
"""JAX on the CPU: octavo.attention on its arrays, and octavo.jax.attention under its transforms."""

import functools

import numpy
import pytest

import octavo
import test_modifiers
from conftest import reference
from modified import modified

jax = pytest.importorskip("jax")
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_disable_most_optimizations", True)  # programs are compiled in half the time
import jax.numpy as jnp  # noqa: E402


# ---------------------------------------------------------------- arrays read and returned by DLPack


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


@pytest.mark.parametrize("name", ["all", "both sides", "alibi of sequences"])
def test_options_that_are_arrays(normal, name):
    *arrays, options = test_modifiers.arguments(normal, name)
    given = {one: jnp.asarray(x) if isinstance(x, numpy.ndarray) else x for one, x in options.items()}
    out = octavo.attention(*map(jnp.asarray, arrays), **given)
    assert isinstance(out, jax.Array)
    test_modifiers.close(out, modified(*arrays, **options)[0])


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
        with pytest.raises(TypeError, match="q is a traced JAX array; supported: .*octavo.jax.attention"):
            transform(lambda x: octavo.attention(x, x, x))(inputs)


# ------------------------------------------------------------------------------ octavo.jax.attention


def attend(*arrays, **options):
    return octavo.jax.attention(*arrays, **options)


def inputs(normal, heads=4, heads_kv=2, rows=9, keys=13, batch=2, dim=16):
    q = normal(batch, heads, rows, dim)
    return [jnp.asarray(x) for x in (q, normal(batch, heads_kv, keys, dim), normal(batch, heads_kv, keys, dim))]


def run(f, arrays, dout):
    """The result of f, and the gradients of its arrays."""
    out, pull = jax.vjp(f, *arrays)
    return out, pull(dout)


compiled = jax.jit(run, static_argnums=0)


def octavos(arrays, dout, tensors=(), **options):
    """run() by the functions for NumPy, which have tests of their own; `tensors` names arrays among the options."""
    dense = {name: numpy.asarray(x) if isinstance(x, jax.Array) else x for name, x in options.items()}
    q, k, v, dout = (numpy.asarray(x) for x in (*arrays, dout))
    out, lse = octavo.attention(q, k, v, **dense, return_lse=True)
    gradients = octavo.attention_backward(dout, q, k, v, out, lse, **dense, return_dbias="bias" in tensors,
                                          return_dsinks="sinks" in tensors)
    return out, gradients


CLOSE = functools.partial(numpy.testing.assert_allclose, atol=2e-6, rtol=2e-6)
EQUAL = numpy.testing.assert_array_equal


def modifiers(normal, name, heads=4, rows=9, keys=13):
    """Options of a call by the name of a case."""
    return {
        "plain": dict(scale=0.2),
        "causal": dict(causal="bottom_right", window=(5, None)),
        "top_left": dict(causal="top_left", softcap=2.0),
        "bias": dict(bias=jnp.asarray(normal(heads, rows, keys))),
        "bias_of_keys": dict(bias=jnp.asarray(normal(2, 1, 1, keys))),
        "mask": dict(mask=jnp.asarray(normal(1, 1, rows, keys) > -1)),
        "alibi": dict(alibi_slopes=jnp.asarray(abs(normal(heads))), causal="bottom_right"),
        "sinks": dict(sinks=jnp.asarray(normal(heads)), alibi_slopes=jnp.asarray(abs(normal(2, heads)))),
        "padding": dict(seqlens_q=jnp.array([9, 4]), seqlens_kv=jnp.array([6, 13]), causal="bottom_right"),
        "leftpad": dict(leftpad_kv=jnp.array([0, 3]), seqlens_kv=jnp.array([6, 9])),
    }[name]


CASES = ("plain", "causal", "top_left", "bias", "bias_of_keys", "mask", "alibi", "sinks", "padding", "leftpad")


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(normal, name):
    arrays, options = inputs(normal), modifiers(normal, name)
    dout = jnp.asarray(normal(*arrays[0].shape))
    tensors = [name for name in ("bias", "sinks") if name in options]
    wanted = octavos(arrays, dout, tensors, **options)
    given = [options.pop(name) for name in tensors]
    found = compiled(lambda q, k, v, *given: attend(q, k, v, **dict(zip(tensors, given)), **options),
                     [*arrays, *given], dout)
    jax.tree.map(CLOSE, found, wanted)  # the gradient of a bias is summed by JAX
    if name == "plain":
        jax.tree.map(EQUAL, run(functools.partial(attend, **options), arrays, dout), found)
        out, lse = attend(*arrays, **options, return_lse=True)
        EQUAL(lse, octavo.attention(*map(numpy.asarray, arrays), **options, return_lse=True)[1])


def test_the_attention_of_jax(normal):
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in inputs(normal))
    bias, dout = jnp.asarray(normal(2, 4, 9, 13)), jnp.asarray(normal(*q.shape))
    found = compiled(lambda q, k, v, bias: attend(q, k, v, layout="bshd", bias=bias, mask=bias > -1),
                     (q, k, v, bias), dout)
    wanted = compiled(lambda q, k, v, bias: jax.nn.dot_product_attention(q, k, v, bias, mask=bias > -1),
                      (q, k, v, bias), dout)
    jax.tree.map(functools.partial(CLOSE, atol=2e-5, rtol=2e-5), found, wanted)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_16_bits(normal, dtype):
    arrays = [x.astype(dtype) for x in inputs(normal)]
    found = compiled(functools.partial(attend, causal="bottom_right"), arrays, arrays[0])
    wanted = octavos(arrays, arrays[0], causal="bottom_right")
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted)):
        assert x.dtype == dtype
        EQUAL(x.astype(jnp.float32), numpy.asarray(y, numpy.float32))
    wide = attend(*arrays, out_dtype=jnp.float32, precision="int8")
    EQUAL(wide, octavo.attention(*map(numpy.asarray, arrays), out_dtype="float32", precision="int8"))


def by_loop(in_axes, arrays, dout, axis, names=(), tensors=(), **options):
    """octavos() of each entry of mapped arrays; the gradients of those that are not mapped are summed."""
    arrays, size = [numpy.asarray(x) for x in arrays], dout.shape[axis]
    outs, sums = [], [0] * len(arrays)
    for i in range(size):
        one = [x if dim is None else numpy.take(x, i, dim) for x, dim in zip(arrays, in_axes)]
        out, gradients = octavos(one[:3], numpy.take(dout, i, axis), tensors, **dict(zip(names, one[3:])), **options)
        outs.append(out)
        for j, gradient in enumerate(gradients):
            place = numpy.zeros(arrays[j].shape, "float32")
            if in_axes[j] is None:
                place += gradient
            else:
                numpy.moveaxis(place, in_axes[j], 0)[i] = gradient
            sums[j] = sums[j] + place
    return numpy.stack(outs, axis), sums


def split(x, axis):
    """(6, ...) as (2, ...) with a mapped dimension of size 3."""
    return jnp.moveaxis(x.reshape(3, 2, *x.shape[1:]), 0, axis)


@pytest.mark.parametrize("in_axes", [(0, 0, 0), (1, 1, 1), (2, 0, 4), (0, None, None), (None, 1, 1)])
def test_vmap(normal, in_axes):
    arrays = [x[:2] if axis is None else split(x, axis) for x, axis in zip(inputs(normal, batch=6), in_axes)]
    dout = normal(2, 3, 4, 9, 16)
    f = jax.vmap(functools.partial(attend, causal="bottom_right"), in_axes, 1)
    found, wanted = compiled(f, arrays, dout), by_loop(in_axes, arrays, dout, 1, causal="bottom_right")
    jax.tree.map(CLOSE, found, (wanted[0], tuple(wanted[1])))


VMAPPED = {
    "bias of all": ("bias", (4, 9, 13), None, 0),
    "bias of each": ("bias", (9, 13), 0, 1),
    "bias of a batch": ("bias", (2, 1, 9, 13), 1, 1),
    "bias of one entry": ("bias", (1, 4, 1, 13), None, 1),
    "slopes of each": ("alibi_slopes", (4,), 0, 0),
    "slopes of a batch": ("alibi_slopes", (2, 4), None, 1),
    "lengths": ("seqlens_kv", (2,), 0, 1),
    "mask of all": ("mask", (9, 13), None, 0),
    "sinks of all": ("sinks", (4,), None, 0),
    "sinks of each": ("sinks", (4,), 1, 1),
}


@pytest.mark.parametrize("name", VMAPPED)
def test_vmap_of_modifiers(normal, name):
    what, shape, dim, axis = VMAPPED[name]
    arrays = [split(x, axis) for x in inputs(normal, batch=6)]
    given = abs(normal(*(shape if dim is None else (*shape[:dim], 3, *shape[dim:]))))
    given = {"seqlens_kv": lambda x: (x * 4).astype("int32"), "mask": lambda x: x < 1}.get(what, lambda x: x)(given)
    dout = normal(3, 2, 4, 9, 16)
    tensors = [what] if what in ("bias", "sinks") else []
    in_axes = (axis, axis, axis, dim)
    wanted_out, wanted = by_loop(in_axes, [*arrays, given], numpy.moveaxis(dout, 0, axis), axis, [what], tensors)

    def f(q, k, v, given):
        return attend(q, k, v, **{what: given if tensors else jax.lax.stop_gradient(given)})

    out, gradients = compiled(jax.vmap(f, in_axes, axis), [*arrays, given], jnp.moveaxis(dout, 0, axis))
    CLOSE(out, wanted_out)
    for x, y in zip(gradients, wanted[:3 + len(tensors)]):
        CLOSE(x, y)
    if what == "bias":  # of each entry, its own gradient
        each = jax.jit(jax.vmap(functools.partial(run, f), ([*in_axes], 0)))([*arrays, given], dout)[1]
        CLOSE(each[3].sum(0), wanted[3] if dim is None else numpy.asarray(gradients[3]).sum(dim))


def test_vmap_of_vmap_and_of_layouts(normal):
    x = jnp.asarray(normal(3, 2, 2, 9, 4, 16))  # of (batch, seqlen, heads, head_dim)
    f = functools.partial(attend, layout="bshd", causal=True)
    found = jax.jit(jax.vmap(jax.vmap(f, (1, 1, 1))))(x, x, x)
    CLOSE(found, numpy.stack([[f(*[x[i, :, j]] * 3) for j in range(2)] for i in range(3)]))


def test_varlen(normal):
    tokens, starts = 14, jnp.array([0, 5, 11])  # the last three tokens belong to no sequence
    q, k, v, dout = (normal(tokens, 2, 16) for _ in range(4))
    q[11:] = numpy.nan
    options = dict(cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=6, max_seqlen_kv=6, causal=True)
    f = functools.partial(attend, **options)
    out, lse = f(q, k, v, return_lse=True)
    found = compiled(f, (q, k, v), dout)
    starts = numpy.asarray(starts)  # one array for q and for k and v, as above
    wanted = octavos((q, k, v), dout, **{**options, "cu_seqlens_q": starts, "cu_seqlens_kv": starts})
    EQUAL(out, found[0])
    EQUAL(out[:11], wanted[0][:11])
    assert not out[11:].any() and jnp.isneginf(lse[:, 11:]).all() and jnp.isfinite(lse[:, :11]).all()
    jax.tree.map(EQUAL, found[1], wanted[1])
    both = jnp.stack([q, q + 1])
    EQUAL(jax.jit(jax.vmap(f, (0, None, None)))(both, k, v), numpy.stack([f(x, k, v) for x in both]))
    with pytest.raises(ValueError, match="max_seqlen_kv is None; supported: a number in octavo.jax"):
        attend(q, k, v, cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=6)


def test_paged_cache(normal):
    k, v = (jnp.asarray(normal(5, 2, 16, 8)) for _ in range(2))
    q, table, lengths = jnp.asarray(normal(3, 2, 4, 1, 8)), jnp.array([[4, 1], [0, 2]]), jnp.array([20, 7])
    options = dict(page_table=table, seqlens_kv=lengths, causal="bottom_right")
    found = jax.jit(jax.vmap(lambda q: attend(q, k, v, **options)))(q)
    dense = {name: numpy.asarray(x) if isinstance(x, jax.Array) else x for name, x in options.items()}
    CLOSE(found, numpy.stack([octavo.attention(*map(numpy.asarray, (x, k, v)), **dense) for x in q]))
    with pytest.raises(NotImplementedError, match="page_table is given to a call that is differentiated; supp"):
        jax.grad(lambda q: attend(q, k, v, **options).sum())(q[0])


@pytest.mark.parametrize("shape", [(0, 2, 4, 8), (2, 2, 0, 8)])
def test_without_elements(shape):
    q, k = jnp.zeros(shape), jnp.zeros((shape[0], 2, 4, 8))
    out, gradients = compiled(lambda q, k: attend(q, k, k), (q, k), q)
    assert [x.shape for x in (out, *gradients)] == [q.shape, q.shape, k.shape] and not gradients[1].any()


# ----------------------------------------------------------------------------------- the same errors

REFUSED = {
    "head_dim": lambda x: ((x(1, 2, 4, 8), x(1, 2, 4, 6), x(1, 2, 4, 6)), {}),
    "heads": lambda x: ((x(1, 3, 4, 8), x(1, 2, 4, 8), x(1, 2, 4, 8)), {}),
    "batch in bshd": lambda x: ((x(1, 4, 2, 8), x(2, 4, 2, 8), x(2, 4, 2, 8)), {"layout": "bshd"}),
    "dimensions": lambda x: ((x(4, 8), x(4, 8), x(4, 8)), {}),
    "dtype": lambda x: ((x(1, 2, 4, 8).astype("int32"), x(1, 2, 4, 8), x(1, 2, 4, 8)), {}),
    "mask dtype": lambda x: ((x(1, 2, 4, 8),) * 3, {"mask": x(4, 4)}),
    "bias shape": lambda x: ((x(1, 2, 4, 8),) * 3, {"bias": x(4, 3)}),
    "sinks": lambda x: ((x(1, 2, 4, 8),) * 3, {"sinks": x(3)}),
    "slopes": lambda x: ((x(1, 2, 4, 8),) * 3, {"alibi_slopes": x(5)}),
    "causal": lambda x: ((x(1, 2, 4, 8), x(1, 2, 6, 8), x(1, 2, 6, 8)), {"causal": True}),
    "causal padding": lambda x: ((x(1, 2, 4, 8),) * 3, {
        "causal": True, "seqlens_q": x(1).astype("int32"), "seqlens_kv": x(1).astype("int32")}),
    "causal name": lambda x: ((x(1, 2, 4, 8),) * 3, {"causal": "left"}),
    "window": lambda x: ((x(1, 2, 4, 8),) * 3, {"window": (1, -3)}),
    "window kind": lambda x: ((x(1, 2, 4, 8),) * 3, {"window": 3}),
    "layout": lambda x: ((x(1, 2, 4, 8),) * 3, {"layout": "sbhd"}),
    "precision": lambda x: ((x(1, 2, 4, 8),) * 3, {"precision": "fp7"}),
    "scale": lambda x: ((x(1, 2, 4, 8),) * 3, {"scale": float("nan")}),
    "softcap": lambda x: ((x(1, 2, 4, 8),) * 3, {"softcap": -1.0}),
    "lengths": lambda x: ((x(1, 2, 4, 8),) * 3, {"seqlens_kv": x(2).astype("int32")}),
    "starts": lambda x: ((x(4, 2, 8),) * 3, {"cu_seqlens_q": x(2).astype("int32")}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_octavo_attention(name):
    arrays, options = REFUSED[name](lambda *shape: numpy.ones(shape, "float32"))
    with pytest.raises((ValueError, TypeError)) as theirs:
        octavo.attention(*arrays, **options)
    arrays = [jnp.asarray(x) for x in arrays]
    options = {name: jnp.asarray(x) if isinstance(x, numpy.ndarray) else x for name, x in options.items()}
    for transform in (jax.jit, lambda f: jax.grad(lambda q: f(q).sum(), allow_int=True)):
        with pytest.raises(type(theirs.value)) as ours:
            transform(lambda q: attend(q, *arrays[1:], **options))(arrays[0])
        assert str(ours.value).split("\n")[0] == str(theirs.value)


def test_other_errors(normal, monkeypatch):
    q, k, v = inputs(normal)
    with pytest.raises(TypeError, match="k is of type list; supported: arrays of JAX and NumPy."):
        attend(q, [1.0], v)
    with pytest.raises(TypeError, match="v is of type Quantized; supported"):
        attend(q, k, octavo.quantize(numpy.asarray(v)))
    with pytest.raises(ValueError, match="out_dtype is 'int8'; supported: float32"):
        attend(q, k, v, out_dtype="int8")
    with pytest.raises(NotImplementedError, match="precision is int8 .*in the backward pass"):
        jax.grad(lambda q: attend(q, k, v, precision="int8").sum())(q)
    # Numbers in an array are known only when the program runs.
    with pytest.raises(Exception, match=r"seqlens_kv\[1\] is 14; supported: 0 to 13"):
        jax.block_until_ready(attend(q, k, v, seqlens_kv=jnp.array([2, 14])))
    monkeypatch.setattr(octavo.jax, "_TRACE", {})
    with pytest.raises(RuntimeError, match="octavo.jax was built without XLA's headers; supported: "):
        attend(q, k, v)


# --------------------------------------------------------------------------------- other derivatives


def test_other_derivatives_are_refused(normal):
    q, k, v = inputs(normal)
    slopes = jnp.asarray(abs(normal(4)))
    first = jax.grad(lambda q: attend(q, k, v).sum())
    with pytest.raises(NotImplementedError, match="A second derivative of octavo's attention is needed"):
        jax.grad(lambda q: jnp.sum(first(q)**2))(q)
    with pytest.raises(TypeError, match="can't apply forward-mode .* to a custom_vjp function"):
        jax.jvp(lambda q: attend(q, k, v), (q,), (q,))
    with pytest.raises(NotImplementedError, match="A gradient of lse is needed; supported: gradients of out"):
        jax.grad(lambda q: attend(q, k, v, return_lse=True)[1].sum())(q)
    with pytest.raises(NotImplementedError, match="alibi_slopes is given to a call that is differentiated with"):
        jax.grad(lambda x: attend(q, k, v, alibi_slopes=x).sum())(slopes)
    # A gradient that is used as a constant has no derivative, and neither has an lse that is not used.
    wanted = jax.jit(first)(q)
    EQUAL(jax.jit(jax.grad(lambda q: jnp.sum(jax.lax.stop_gradient(first(q)) * q)))(q), wanted)
    EQUAL(jax.jit(jax.grad(lambda q: attend(q, k, v, return_lse=True)[0].sum()))(q), wanted)


def test_in_programs(normal):
    q, k, v = inputs(normal, rows=13)
    f = functools.partial(attend, causal=True)

    def layers(f, x):
        return jax.lax.scan(lambda x, _: (x + f(x, k, v), None), x, None, length=2)[0]

    def unrolled(x):
        x = x + f(x, k, v)
        return x + f(x, k, v)

    wanted = compiled(unrolled, (q,), q)
    jax.tree.map(CLOSE, compiled(functools.partial(layers, f), (q,), q), wanted)
    jax.tree.map(CLOSE, compiled(functools.partial(layers, jax.checkpoint(f)), (q,), q), wanted)
    with jax.disable_jit():
        EQUAL(f(q, k, v), octavo.attention(*map(numpy.asarray, (q, k, v)), causal=True))


def test_programs_for_another_machine(normal):
    """What XLA is given for a GPU, where there is none."""
    q, k, v = inputs(normal)
    f = functools.partial(attend, scale=0.5, causal="bottom_right", window=(7, None), softcap=3.0)
    traced = jax.jit(lambda *x: run(f, x[:3], x[3])).trace(q, k, v, q)
    for platform in ("cpu", "cuda"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "@octavo_attention(" in text and "@octavo_attention_backward(" in text
        for attribute in ('operands = "dout out lse q k v"', 'causal = "bottom_right"', "window_left = 7 : i64",
                          "window_right = -1 : i64", "scale = 5.000000e-01 : f64", 'layout = "bhsd"'):
            assert attribute in text, attribute


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_shard_map(normal, kind):
    arrays = [*inputs(normal, batch=4), jnp.asarray(normal(4))]
    dout = jnp.asarray(normal(*arrays[0].shape))
    mesh = jax.make_mesh((2,), ("x",), axis_types=(getattr(jax.sharding.AxisType, kind),))
    shard, whole = (jax.sharding.PartitionSpec(*names) for names in (("x",), ()))
    specs = (shard, shard, shard, whole)  # every device has all sinks
    placed = [jax.device_put(x, jax.NamedSharding(mesh, spec)) for x, spec in zip((*arrays, dout), (*specs, shard))]
    f = jax.shard_map(lambda q, k, v, sinks: attend(q, k, v, sinks=sinks), mesh=mesh, in_specs=specs, out_specs=shard)
    wanted = octavos(arrays[:3], dout, ["sinks"], sinks=arrays[3])
    jax.tree.map(CLOSE, compiled(f, placed[:-1], placed[-1]), wanted)
