# SPDX-License-Identifier: Apache-2.0
"""Padding, softcap, bias, ALiBi, mask tensors and sinks: NumPy on the CPU."""

import numpy
import pytest

import octavo
from modified import modified

CASES = {
    "softcap": {"softcap": 1.5},
    "bias": {"bias": (2, 4, 9, 13)},
    "bias that broadcasts": {"bias": (4, 1, 13), "causal": "bottom_right"},
    "mask": {"mask": (2, 1, 9, 13)},
    "mask of keys": {"mask": (13,), "window": (5, 2)},
    "alibi": {"alibi_slopes": (4,)},
    "alibi of sequences": {"alibi_slopes": (2, 4), "causal": "top_left"},
    "sinks": {"sinks": (4,), "causal": "bottom_right", "window": (3, -1)},
    "right padding": {"seqlens_q": [7, 9], "seqlens_kv": [4, 12], "causal": "bottom_right"},
    "left padding": {"leftpad_q": [0, 5], "leftpad_kv": [3, 9]},
    "both sides": {"leftpad_q": [1, 0], "leftpad_kv": [2, 3], "seqlens_q": [4, 0], "seqlens_kv": [8, 5],
                   "causal": "top_left", "window": (4, -1)},
    "all": {"softcap": 2.0, "bias": (1, 4, 9, 1), "mask": (2, 4, 9, 13), "alibi_slopes": (4,), "sinks": (4,),
            "seqlens_kv": [13, 6], "leftpad_q": [2, 0], "scale": 0.7},
}


def arguments(normal, name):
    """(q, k, v, options) of a case; shapes become arrays."""
    q, k, v = normal(2, 4, 9, 16), normal(2, 2, 13, 16), normal(2, 2, 13, 16)
    options = dict(CASES[name])
    for one, value in options.items():
        if one in ("bias", "alibi_slopes", "sinks"):
            options[one] = normal(*value)
        elif one == "mask":
            options[one] = normal(*value) > -0.5
        elif one.startswith(("seqlens", "leftpad")):
            options[one] = numpy.array(value, numpy.int32)
    return q, k, v, options


def close(found, wanted, atol=2e-6):
    numpy.testing.assert_allclose(numpy.asarray(found, numpy.float64), wanted, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_numpy(normal, name):
    q, k, v, options = arguments(normal, name)
    for (out, lse), wanted in ((octavo.attention(q, k, v, return_lse=True, **options),
                                modified(q, k, v, **options)),):
        close(out, wanted[0])
        close(lse, wanted[1])


@pytest.mark.parametrize("dtype, atol", [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_16_bits(normal, dtype, atol):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v, options = arguments(normal, "all")
    q, k, v, options["bias"] = (x.astype(dtype) for x in (q, k, v, options["bias"]))
    close(octavo.attention(q, k, v, **options), modified(q, k, v, **options)[0], atol)


def test_bshd_and_strides(normal):
    q, k, v, options = arguments(normal, "all")
    wanted = modified(q, k, v, **options)[0]
    options["mask"] = numpy.ascontiguousarray(options["mask"][:, :, :, ::-1])[..., ::-1].copy()
    options["bias"] = numpy.broadcast_to(options["bias"], (2, 4, 9, 13))  # strides of 0
    q, k, v = (numpy.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    close(octavo.attention(q, k, v, layout="bshd", **options).swapaxes(1, 2), wanted)


def test_what_is_hidden_does_not_matter(normal):
    q, k, v, options = arguments(normal, "both sides")
    wanted = octavo.attention(q, k, v, **options)
    for b, (begin, length) in enumerate(zip(options["leftpad_kv"], options["seqlens_kv"])):
        for x in (k, v):
            x[b, :, :begin] = numpy.nan
            x[b, :, begin + length:] = numpy.inf
    assert (octavo.attention(q, k, v, **options) == wanted).all()


def test_a_row_without_keys(normal):
    q, k, v, _ = arguments(normal, "mask")
    seen = numpy.ones((9, 13), bool)
    seen[4] = False
    out, lse = octavo.attention(q, k, v, mask=seen, return_lse=True)
    assert (out[:, :, 4] == 0).all() and (lse[:, :, 4] == -numpy.inf).all()
    sinks = normal(4)
    out, lse = octavo.attention(q, k, v, mask=seen, sinks=sinks, return_lse=True)
    assert (out[:, :, 4] == 0).all()
    numpy.testing.assert_allclose(lse[:, :, 4], numpy.broadcast_to(sinks, (2, 4)), rtol=1e-6)
    hidden = numpy.where(seen, numpy.float32(0), numpy.float32(-numpy.inf))
    assert (octavo.attention(q, k, v, bias=hidden)[:, :, 4] == 0).all()


# A cached plan must not serve a call with other features: each of these gives another result.
def test_calls_in_a_row(normal):
    q, k, v, _ = arguments(normal, "all")
    some = [{}] + [arguments(normal, name)[3] for name in CASES] + [{"softcap": 3.0}, {}]
    for options in some + some[::-1]:
        close(octavo.attention(q, k, v, **options), modified(q, k, v, **options)[0])


def test_explain(normal):
    q, k, v, options = arguments(normal, "all")
    assert octavo.explain(q, k, v, **options).device == "cpu"


X = numpy.zeros((2, 4, 9, 16), numpy.float32)
K = numpy.zeros((2, 2, 13, 16), numpy.float32)
LENGTHS = numpy.array([3, 4], numpy.int32)
FLAT = numpy.zeros((5, 4, 16), numpy.float32)
STARTS = numpy.array([0, 5], numpy.int32)


@pytest.mark.parametrize("given, exception, part", [
    ({"softcap": -1.0}, ValueError, "softcap is -1; supported: 0 (none) or positive finite numbers."),
    ({"softcap": float("nan")}, ValueError, "softcap is nan"),
    ({"softcap": "x"}, TypeError, ""),
    ({"bias": numpy.zeros((3, 13), numpy.float32)}, ValueError,
     "bias.shape is (1, 1, 3, 13); supported: (2, 4, 9, 13), each dimension that or 1."),
    ({"bias": numpy.zeros((13, 9), numpy.float32).T}, ValueError, "bias.stride[3] is 9"),
    ({"bias": numpy.broadcast_to(numpy.float32(0), (3, 13))}, ValueError,
     "bias.shape[2] is 3; supported: 9 or 1."),
    ({"bias": numpy.zeros(13, bool)}, TypeError, "bias is of bool; supported: float32"),
    ({"bias": numpy.zeros(13)}, TypeError, "float64"),
    ({"bias": numpy.zeros((1, 2, 4, 9, 13), numpy.float32)}, ValueError, "bias is of 5 dimensions"),
    ({"mask": numpy.zeros(13, numpy.float32)}, TypeError, "mask is of float32; supported: bool; bias"),
    ({"mask": 3}, TypeError, "mask is 3 (int)"),
    ({"alibi_slopes": numpy.zeros(3, numpy.float32)}, ValueError, "supported: (4) or (2, 4), contiguous"),
    ({"alibi_slopes": numpy.zeros(4)}, TypeError, "alibi_slopes is of float64; supported: float32."),
    ({"sinks": numpy.zeros((2, 4), numpy.float32)}, ValueError, "sinks is of 2 dimensions; supported: (4)"),
    ({"sinks": numpy.zeros(8, numpy.float32)[::2]}, ValueError, "sinks is not contiguous"),
    ({"seqlens_q": LENGTHS[:1]}, ValueError, "seqlens_q is of 1 entries; supported: (2), contiguous"),
    ({"seqlens_q": LENGTHS.astype("int64")}, TypeError, "seqlens_q is of int64; supported: int32."),
    ({"seqlens_kv": LENGTHS * 4}, ValueError, "seqlens_kv[1] is 16; supported: 0 to 13"),
    ({"leftpad_kv": -LENGTHS}, ValueError, "leftpad_kv[0] is -3"),
    ({"leftpad_kv": LENGTHS, "seqlens_kv": LENGTHS * 3}, ValueError, "seqlens_kv[1] is 12"),
    ({"q": X, "k": X, "v": X, "causal": True, "seqlens_kv": LENGTHS}, ValueError,
     "causal is True with different padding of q and of k and v"),
    ({"q": FLAT, "k": FLAT, "v": FLAT, "cu_seqlens_q": STARTS, "cu_seqlens_kv": STARTS,
      "seqlens_q": LENGTHS}, ValueError, "seqlens_q is given together with cu_seqlens"),
    ({"q": FLAT, "k": FLAT, "v": FLAT, "cu_seqlens_q": STARTS, "cu_seqlens_kv": STARTS,
      "mask": numpy.ones(5, bool)}, NotImplementedError, "mask is given together with cu_seqlens"),
    ({"attn_mask": X}, TypeError, "did you mean 'mask' (boolean) or 'bias'"),
    ({"seqused_k": LENGTHS}, TypeError, "did you mean 'seqlens_kv'?"),
])
def test_errors(given, exception, part):
    with pytest.raises(exception) as refused:
        octavo.attention(**{"q": X, "k": K, "v": K, **given})
    assert part in str(refused.value) and "\n" not in str(refused.value)


def test_nothing_is_written_on_failure():
    out = numpy.full_like(X, 7)
    with pytest.raises(ValueError, match=r"seqlens_kv\[1\]"):
        octavo.attention(X, K, K, seqlens_kv=LENGTHS * 4, out=out)
    assert (out == 7).all()


def test_the_backward_pass_by_central_differences():
    draw = numpy.random.default_rng(3)
    arrays = {"q": draw.normal(size=(2, 2, 5, 8)), "k": draw.normal(size=(2, 1, 7, 8)),
              "v": draw.normal(size=(2, 1, 7, 8)), "bias": draw.normal(size=(2, 5, 7)),
              "sinks": draw.normal(size=2)}
    fixed = {"mask": draw.random((5, 7)) < 0.8, "alibi_slopes": numpy.float32([0.5, 0.1]), "softcap": 1.5,
             "seqlens_kv": numpy.int32([7, 4]), "leftpad_q": numpy.int32([1, 0])}
    dout = draw.normal(size=(2, 2, 5, 8)).astype(numpy.float32)
    given = {name: x.astype(numpy.float32) for name, x in arrays.items()}
    out, lse = octavo.attention(**given, **fixed, return_lse=True)
    made = octavo.attention_backward(dout, given["q"], given["k"], given["v"], out, lse, bias=given["bias"],
                                     sinks=given["sinks"], **fixed, return_dbias=True, return_dsinks=True)
    assert [x.shape for x in made] == [x.shape for x in arrays.values()]
    for (name, array), gradient in zip(arrays.items(), made):
        for at in list(numpy.ndindex(array.shape))[::7]:
            losses = []
            for step in (1e-5, -1e-5):
                moved = {key: x.copy() for key, x in arrays.items()}
                moved[name][at] += step
                losses.append((modified(**moved, **fixed)[0] * dout).sum())
            assert abs(gradient[at] - (losses[0] - losses[1]) / 2e-5) < 2e-4, (name, at)
