# SPDX-License-Identifier: Apache-2.0
"""octavo.attention and the other functions with NumPy arrays."""

import ast
import ctypes
import inspect
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings

import numpy
import pytest

import octavo
from conftest import reference
from pretend import OnGpu

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


def close(out, wanted, dtype="float32"):
    numpy.testing.assert_allclose(numpy.asarray(out, numpy.float64), wanted,
                                  atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("causal", [False, True, "top_left", "bottom_right"])
@pytest.mark.parametrize("sizes", [(2, 4, 4, 33, 33, 64), (1, 6, 2, 17, 40, 24), (1, 4, 1, 1, 70, 8)])
def test_agrees_with_float64(normal, dtype, causal, sizes):
    b, hq, hkv, sq, skv, d = sizes
    if causal is True:  # otherwise the alignment has to be named
        skv = sq
    q = normal(b, hq, sq, d, dtype=dtype)
    k, v = (normal(b, hkv, skv, d, dtype=dtype) for _ in range(2))
    out = octavo.attention(q, k, v, causal=causal)
    assert type(out) is numpy.ndarray and out.dtype == q.dtype and out.shape == q.shape
    alignment = {False: None, True: "top_left"}.get(causal, causal)
    close(out, reference(q, k, v, alignment)[0], dtype)


@pytest.mark.parametrize("window", [(3, 0), (0, 2), (None, 4), (5, -1)])
def test_window(normal, window):
    q, k, v = normal(1, 2, 20, 16), normal(1, 2, 26, 16), normal(1, 2, 26, 16)
    sides = tuple(-1 if side is None else side for side in window)
    close(octavo.attention(q, k, v, window=window), reference(q, k, v, window=sides)[0])


@pytest.mark.parametrize("columns", [5, 40])
def test_other_columns_of_v(normal, columns):
    q, k, v = normal(2, 4, 19, 24), normal(2, 2, 33, 24), normal(2, 2, 33, columns)
    wanted, wanted_lse = reference(q, k, v)
    out, lse = octavo.attention(q, k, v, return_lse=True)
    assert out.shape == (2, 4, 19, columns)
    close(out, wanted)
    close(lse, wanted_lse)
    swapped = octavo.attention(*(x.transpose(0, 2, 1, 3).copy() for x in (q, k, v)), layout="bshd")
    assert (swapped == out.transpose(0, 2, 1, 3)).all() and swapped.flags.c_contiguous
    room = numpy.full((2, 4, 19, columns + 3), numpy.nan, numpy.float32)
    octavo.attention(q, k, v, out=room[..., :columns])
    assert (room[..., :columns] == out).all() and numpy.isnan(room[..., columns:]).all()
    with pytest.raises(ValueError, match="out"):
        octavo.attention(q, k, v, out=numpy.empty_like(q))


def test_scale_and_lse(normal):
    q, k, v = (normal(2, 3, 19, 16) for _ in range(3))
    out, lse = octavo.attention(q, k, v, scale=0.5, return_lse=True, causal="bottom_right")
    wanted, wanted_lse = reference(q, k, v, "bottom_right", scale=0.5)
    assert lse.shape == (2, 3, 19) and lse.dtype == numpy.float32
    close(out, wanted)
    close(lse, wanted_lse)


def test_a_row_without_keys(normal):
    q, k, v = normal(1, 1, 6, 8), normal(1, 1, 2, 8), normal(1, 1, 2, 8)
    out, lse = octavo.attention(q, k, v, causal="bottom_right", return_lse=True)
    assert not out[:, :, :4].any() and numpy.isneginf(lse[:, :, :4]).all()
    close(out, reference(q, k, v, "bottom_right")[0])


def test_layouts_are_views(normal):
    q, k, v = (normal(2, 21, 3, 16) for _ in range(3))  # batch, seqlen, heads, head_dim
    swapped = [x.swapaxes(1, 2) for x in (q, k, v)]
    wanted = reference(*swapped)[0]
    out = octavo.attention(q, k, v, layout="bshd")
    assert out.shape == q.shape
    close(out.swapaxes(1, 2), wanted)
    seen = octavo.attention(*swapped)
    close(seen, wanted)
    assert seen.strides == swapped[0].strides  # the memory order of the query
    fused = normal(2, 21, 3, 3 * 16)
    parts = [fused[..., 16 * i:16 * (i + 1)] for i in range(3)]
    close(octavo.attention(*parts, layout="bshd").swapaxes(1, 2),
          reference(*(x.swapaxes(1, 2) for x in parts))[0])


def test_inputs_are_not_copied(normal):
    q = normal(1, 1, 1, 512)
    k = numpy.broadcast_to(normal(1, 1, 1, 512), (1, 1, 8000, 512))  # 16 MB, if it were copied
    tracemalloc.start()
    out = octavo.attention(q, k, k)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    close(out, k[:, :, :1], "float16")  # a sum of 8000 in float32
    assert peak < 1e6


def test_out_is_written_in_place(normal):
    q, k, v = (normal(1, 2, 12, 8) for _ in range(3))
    room = numpy.full((1, 2, 12, 16), numpy.nan, numpy.float32)
    out = room[..., :8]
    assert octavo.attention(q, k, v, out=out) is out
    close(out, reference(q, k, v)[0])
    assert numpy.isnan(room[..., 8:]).all()


def test_out_dtype(normal):
    q, k, v = (normal(1, 2, 12, 8, dtype="float16") for _ in range(3))
    for asked in ("float32", numpy.float32, numpy.dtype("float32")):
        out = octavo.attention(q, k, v, out_dtype=asked)
        assert out.dtype == numpy.float32
        close(out, reference(q, k, v)[0], "float16")


@pytest.mark.parametrize("name, format", [("float8_e4m3fn", "e4m3"), ("float8_e5m2", "e5m2"),
                                          ("int8", "int8")])
@pytest.mark.parametrize("granularity", ["tensor", "head"])
def test_outputs_of_8_bits(normal, name, format, granularity):
    q, k, v = (normal(2, 3, 20, 16) for _ in range(3))
    scale = numpy.linspace(0.001, 0.02, 6, dtype=numpy.float32).reshape(2, 3)
    if granularity == "tensor":
        scale = scale[:1, 1].copy()
    wide = octavo.attention(q, k, v)
    wanted = octavo.quantize(wide, format, granularity=granularity, scales=scale).data
    out, lse, amax = octavo.attention(q, k, v, out_dtype=name, out_scale=scale, return_lse=True,
                                      return_amax=True)
    assert out.dtype == wanted.dtype and (out == wanted).all()
    magnitudes = numpy.abs(wide).max((2, 3))
    assert amax.dtype == numpy.float32 and amax.shape == scale.shape and lse.shape == (2, 3, 20)
    assert (amax == (magnitudes if granularity == "head" else magnitudes.max())).all()
    room = numpy.full((2, 3, 20, 24), 77, out.dtype)
    assert octavo.attention(q, k, v, out=room[..., :16], out_dtype=name, out_scale=scale).base is room
    assert (room[..., :16] == wanted).all() and (room[..., 16:] == 77).all()
    explained = octavo.explain(q, k, v, out_dtype=name, out_scale=scale, return_amax=True)
    assert explained.kernel == "cpu_forward"


# Calls that differ only in these must not share a plan.
def test_the_largest_of_any_output(normal):
    q, k, v = (normal(1, 2, 9, 16, dtype="float16") for _ in range(3))
    wide = octavo.attention(q, k, v, out_dtype="float32")
    out, amax = octavo.attention(q, k, v, return_amax=True)
    assert amax.shape == (1,) and amax[0] == numpy.abs(wide).max()
    assert (out == octavo.attention(q, k, v)).all()
    for scale in (numpy.full(1, 0.01, numpy.float32), numpy.full((1, 2), 0.01, numpy.float32)):
        coded, amax = octavo.attention(q, k, v, out_dtype="int8", out_scale=scale, return_amax=True)
        assert amax.shape == scale.shape and amax.max() == numpy.abs(wide).max()
        assert (coded == octavo.attention(q, k, v, out_dtype="int8", out_scale=scale)).all()


def test_outputs_of_8_bits_in_a_varlen_batch(normal):
    q, k, v = (normal(14, 2, 16) for _ in range(3))
    starts = numpy.array([0, 5, 5, 14], numpy.int32)
    varlen = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts}
    scale = numpy.linspace(0.01, 0.03, 6, dtype=numpy.float32).reshape(3, 2)
    wide = octavo.attention(q, k, v, **varlen)
    out, amax = octavo.attention(q, k, v, out_dtype="int8", out_scale=scale, return_amax=True, **varlen)
    for i in range(3):
        rows = slice(*starts[i:i + 2])
        wanted = numpy.rint(wide[rows] * (numpy.float32(1) / scale[i])[None, :, None])
        assert (out[rows] == wanted.clip(-127, 127)).all()
        assert (amax[i] == numpy.abs(wide[rows]).max((0, 2), initial=0)).all()


def test_subclasses_are_arrays(normal):
    class Named(numpy.ndarray):
        pass

    q, k, v = (normal(1, 2, 12, 8).view(Named) for _ in range(3))
    out = octavo.attention(q, k, v)
    assert type(out) is numpy.ndarray
    close(out, reference(q, k, v)[0])


@pytest.fixture
def any_threads():
    yield
    octavo.set_cpu_threads(0)


@pytest.mark.parametrize("precision", ["native", "int8"])
def test_threads_may_change_between_calls(normal, any_threads, precision):
    q, k, v = normal(2, 4, 150, 16), normal(2, 2, 130, 16), normal(2, 2, 130, 16)
    starts = numpy.array([0, 100, 150], numpy.int32)
    varlen = [x[0].swapaxes(0, 1).copy() for x in (q, k, v)]
    out = []
    for threads in (1, 8, 2, 0):
        octavo.set_cpu_threads(threads)
        out.append((octavo.attention(q, k, v, precision=precision),
                    octavo.attention(*varlen, precision=precision, cu_seqlens_q=starts,
                                     cu_seqlens_kv=starts[[0, 1, 1]])))
    assert all((a == b).all() for other in out[1:] for a, b in zip(out[0], other))


def test_affinity_may_change_between_calls(normal):
    q, k, v = (normal(1, 4, 140, 16) for _ in range(3))
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        narrow = octavo.attention(q, k, v)
        os.sched_setaffinity(0, cores)
        wide = octavo.attention(q, k, v)
    finally:
        os.sched_setaffinity(0, cores)
    assert (narrow == wide).all()


def test_a_forked_child_computes(normal):
    q, k, v = (normal(1, 4, 140, 16) for _ in range(3))
    wanted = octavo.attention(q, k, v)
    done = threading.Event()

    def call_on():
        length = 0
        while not done.is_set():
            length = length % 500 + 1
            octavo.attention(q[:, :, :length], k, v, causal="top_left", window=(length, None))

    threads = [threading.Thread(target=call_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    failed = 0
    for _ in range(10):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads do not survive it
            child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends a child that hangs
            os._exit(0 if (octavo.attention(q, k, v) == wanted).all() else 1)
        failed += os.waitpid(child, 0)[1] != 0
    done.set()
    for thread in threads:
        thread.join()
    assert failed == 0


def test_varlen_batch(normal):
    lengths_q, lengths_kv = [5, 0, 9], [7, 3, 9]
    q, k, v = normal(14, 4, 16), normal(19, 2, 16), normal(19, 2, 16)
    starts = [numpy.cumsum([0, *lengths]).astype(numpy.int32) for lengths in (lengths_q, lengths_kv)]
    for longest in ({}, {"max_seqlen_q": 9, "max_seqlen_kv": 9}):
        out, lse = octavo.attention(q, k, v, causal="bottom_right", cu_seqlens_q=starts[0],
                                    cu_seqlens_kv=starts[1], return_lse=True, **longest)
        assert out.shape == q.shape and lse.shape == (4, 14)
        for i in range(3):
            rows = slice(*starts[0][i:i + 2])
            keys = slice(*starts[1][i:i + 2])
            wanted, wanted_lse = reference(*(x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys])),
                                           "bottom_right")
            close(out[rows].swapaxes(0, 1)[None], wanted)
            close(lse[None, :, rows], wanted_lse)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp8", "fp8_mixed", "fp8_fast", "int8",
                                       "int8_mixed", "sim8"])
def test_precision_modes(normal, precision):
    q, k, v = (normal(1, 2, 64, 32) for _ in range(3))
    out = octavo.attention(q, k, v, precision=precision)
    error = numpy.abs(out - reference(q, k, v)[0]).max()
    assert 1e-5 < error < 0.2  # rounded, and not too much


def test_quantization_options_are_read(normal):
    q, k, v = (normal(1, 2, 64, 32) for _ in range(3))
    q[..., 3] *= 30  # an outlier, which the rotation spreads
    wanted = reference(q, k, v)[0]
    error = {}
    for name, options in {"row": {}, "tensor": {"qk": "tensor", "v": "tensor"},
                          "block": {"qk": "block", "block_rows": 16},
                          "rotated": {"hadamard": True},
                          "smooth": {"smooth_k": True, "rule": "least_squares"}}.items():
        out = octavo.attention(q, k, v, precision="int8", quantization=options)
        error[name] = float(numpy.abs(out - wanted).mean())
    assert len(set(error.values())) == len(error), error
    assert error["rotated"] < error["row"] < error["tensor"], error


@pytest.mark.parametrize("format", ["e4m3", "e5m2", "int8", "sim8"])
@pytest.mark.parametrize("granularity", ["tensor", "head", "block", "row", "channel"])
def test_quantized_inputs(normal, format, granularity):
    made = [octavo.quantize(normal(2, 2, 40, 16), format, granularity=granularity, block_rows=16)
            for _ in range(3)]
    shape = {"tensor": (1,), "head": (2, 2), "block": (2, 2, 3), "row": (2, 2, 40),
             "channel": (2, 2, 16)}[granularity]
    assert all(x.scales.shape == shape and x.data.dtype.itemsize == 1 for x in made)
    out = octavo.attention(*made)
    assert out.dtype == numpy.float16 and out.shape == (2, 2, 40, 16)
    wanted = reference(*(octavo.dequantize(x) for x in made))[0]
    assert numpy.abs(out - wanted).max() < 0.1
    assert octavo.attention(*made, out_dtype="float32").dtype == numpy.float32


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_a_transposed_v_gives_the_bits_of_rows(normal, layout):
    x = [normal(2, 2, 40, 16) for _ in range(3)]
    if layout == "bshd":
        x = [one.transpose(0, 2, 1, 3) for one in x]
    q, k = (octavo.quantize(one, "int8", layout=layout) for one in x[:2])
    rows, columns = (octavo.quantize(x[2], "int8", granularity="channel", layout=layout,
                                     transposed=transposed) for transposed in (False, True))
    assert columns.transposed and not rows.transposed
    assert columns.data.shape == (2, 2, 16, 48)
    numpy.testing.assert_array_equal(columns.scales, rows.scales)
    by_rows = rows.data if layout == "bhsd" else rows.data.transpose(0, 2, 1, 3)
    order = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
    padded = numpy.zeros((2, 2, 48, 16), by_rows.dtype)
    padded[:, :, :40] = by_rows
    padded = padded.reshape(2, 2, 3, 16, 16)[:, :, :, order].reshape(2, 2, 48, 16)
    padded ^= numpy.int8(-128)  # the sign bit is flipped
    numpy.testing.assert_array_equal(columns.data, padded.swapaxes(2, 3))
    wanted = octavo.attention(q, k, rows, layout=layout)
    for _ in range(2):  # the plans of the two layouts are separate
        numpy.testing.assert_array_equal(octavo.attention(q, k, columns, layout=layout), wanted)
        numpy.testing.assert_array_equal(octavo.attention(q, k, rows, layout=layout), wanted)


def test_auto_and_its_error(normal):
    q, k, v = (normal(1, 2, 20, 16) for _ in range(3))
    with pytest.raises(ValueError, match="max_error is 0; supported: positive finite numbers"):
        octavo.attention(q, k, v, precision="auto")
    with pytest.raises(ValueError, match="max_error is 0.5 with precision fp8; supported: precision auto"):
        octavo.attention(q, k, v, precision="fp8", max_error=0.5)
    try:
        out = octavo.attention(q, k, v, precision="auto", max_error=0.01)
        numpy.testing.assert_array_equal(out, octavo.attention(q, k, v, precision="fp16"))
        assert "auto takes fp16" in octavo.explain(q, k, v, precision="auto", max_error=0.01).reason
    except NotImplementedError as nothing:
        assert "no errors are recorded" in str(nothing)


def test_the_max_quantized(normal):
    made = octavo.quantize(normal(1, 2, 8, 16), "int8", granularity="row", max_quantized=20)
    assert made.max_quantized == 20
    assert (numpy.abs(made.data.astype(int)).max(-1) == 20).all()


def test_quantize_by_operand(normal):
    x = normal(1, 2, 24, 64)
    for operand, granularity in (("q", "row"), ("k", "head"), ("v", "channel")):
        made = octavo.quantize(x, operand=operand)
        assert (made.format, made.granularity, made.transposed) == ("e4m3", granularity, False)
        assert made.max_quantized == (448 if operand == "v" else 30)  # q . k fits FP16
    assert octavo.quantize(x, operand="k", precision="int8").granularity == "block"
    assert octavo.quantize(x, operand="k", granularity="row").granularity == "row"
    assert octavo.quantize(x).max_quantized == 30 and octavo.quantize(x, "int8").max_quantized == 0


def test_quantize_of_a_varlen_batch(normal):
    x = numpy.ascontiguousarray(normal(1, 2, 24, 16)[0].swapaxes(0, 1))  # (tokens, heads, head_dim)
    starts = numpy.array((0, 9, 9, 24), numpy.int32)
    for granularity, shape in (("head", (3, 2)), ("row", (1, 2, 24)), ("channel", (3, 2, 16))):
        made = octavo.quantize(x, granularity=granularity, cu_seqlens=starts)
        assert made.scales.shape == shape and made.stats is None
        for n, rows in ((0, slice(0, 9)), (2, slice(9, 24))):
            alone = octavo.quantize(x[None, rows], granularity=granularity, layout="bshd")
            assert (made.data[rows] == alone.data[0]).all()
            scales = made.scales[:, :, rows] if granularity == "row" else made.scales[n:n + 1]
            assert (scales == alone.scales).all()
    with pytest.raises(NotImplementedError, match="granularity is tensor"):
        octavo.quantize(x, granularity="tensor", cu_seqlens=starts)


@pytest.mark.parametrize("format", ["e4m3", "e5m2", "int8", "sim8"])
def test_dequantize_of_a_transposed_tensor(normal, format):
    x = normal(2, 3, 40, 16)
    for layout in ("bhsd", "bshd"):
        array = x if layout == "bhsd" else numpy.ascontiguousarray(x.swapaxes(1, 2))
        rows, columns = (octavo.quantize(array, format, granularity="channel", layout=layout, transposed=transposed)
                         for transposed in (False, True))
        assert columns.shape == (2, 3, 16, 48) and columns.seqlen == 40 and rows.seqlen is None
        wanted = rows.dequantize(layout=layout)
        assert numpy.abs(wanted - array).max() < 0.6
        numpy.testing.assert_array_equal(columns.dequantize(layout=layout), wanted)
    unknown = octavo.Quantized(columns.data, columns.scales, format, "channel", transposed=True)
    with pytest.raises(ValueError, match="seqlen is None in a transposed Quantized; supported: the number of its keys"):
        unknown.dequantize()
    with pytest.raises(NotImplementedError, match=r"quantized is transposed; .*Quantized.dequantize\(\) reads"):
        octavo.dequantize(columns)
    with pytest.raises(TypeError, match="data is of type ndarray; supported: PyTorch's tensors."):
        rows.to("cpu")


def test_dequantize_of_a_varlen_batch(normal):
    x = numpy.ascontiguousarray(normal(1, 2, 45, 16)[0].swapaxes(0, 1))
    starts = numpy.array((3, 21, 21, 43), numpy.int32)  # tokens 0 to 2, 43 and 44 belong to no sequence
    kinds = [(g, t) for g in ("head", "channel") for t in (False, True)] + [("row", False), ("block", False)]
    for granularity, transposed in kinds:
        made = octavo.quantize(x, granularity=granularity, block_rows=16, cu_seqlens=starts, transposed=transposed)
        found = made.dequantize("float16", cu_seqlens=starts)
        assert found.shape == x.shape and found.dtype == numpy.float16
        assert not found[:3].any() and not found[43:].any()
        for begin, end in ((3, 21), (21, 43)):
            alone = octavo.quantize(x[None, begin:end], granularity=granularity, block_rows=16, layout="bshd")
            numpy.testing.assert_array_equal(found[begin:end], alone.dequantize("float16", "bshd")[0])
    nothing = made.dequantize(cu_seqlens=numpy.zeros(3, numpy.int32))
    assert nothing.shape == x.shape and not nothing.any()


def test_quantize_says_what_it_did(normal):
    x = normal(1, 2, 8, 16)
    made = octavo.quantize(x, "int8", smooth=True)
    assert made.mean.shape == (1, 2, 16)
    close(made.mean, x.mean(2))
    assert made.stats["values"] == x.size and made.stats["sqnr_db"] > 20
    again = octavo.quantize(x, "int8", scales=numpy.full((1, 2), 0.5, numpy.float32))
    numpy.testing.assert_array_equal(again.data, numpy.clip(numpy.rint(x / 0.5), -127, 127))
    assert numpy.abs(octavo.dequantize(octavo.quantize(x, "e4m3"), "float16") - x).max() < 0.3


def test_empty_sizes(normal):
    assert octavo.attention(*(normal(0, 2, 4, 8) for _ in range(3))).shape == (0, 2, 4, 8)
    out = octavo.attention(normal(1, 2, 4, 8), *(normal(1, 2, 0, 8) for _ in range(2)))
    assert not out.any()


def test_devices_and_explain(normal):
    found = octavo.devices()
    assert found[0].name == "cpu" and found[0].available and found[0].reason == ""
    assert all(d.available or d.reason for d in found)
    x = normal(1, 2, 4, 8)
    told = octavo.explain(x, x, x, causal=True)
    assert (told.device, told.kernel) == ("cpu", "cpu_forward") and told.reason
    assert octavo.explain(x, x, x, device="auto").kernel


def test_same_normal_numbers_as_the_library():
    x = numpy.empty((1, 2, 3, 4), numpy.float32)
    y = numpy.empty((1, 3, 2, 4), numpy.float32).swapaxes(1, 2)  # by index, whatever the strides
    octavo.random_normal(x, 42)
    octavo.random_normal(y, 42)
    numpy.testing.assert_array_equal(x, y)
    octavo.random_normal(y, 42, 1)
    assert (x != y).all()


def test_threads_work_side_by_side(normal):
    inputs = [[normal(1, 2, 50 + i, 16) for _ in range(3)] for i in range(4)]
    wrong = []

    def work(q, k, v):
        wanted = reference(q, k, v)[0]
        for _ in range(20):
            if numpy.abs(octavo.attention(q, k, v) - wanted).max() > 1e-5:
                wrong.append(q.shape)

    threads = [threading.Thread(target=work, args=x) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_threads_run_meanwhile(normal):
    x = normal(1, 8, 1500, 64)
    begin = time.perf_counter()
    thread = threading.Thread(target=octavo.attention, args=(x, x, x))
    thread.start()
    longest, last = 0.0, time.perf_counter()
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    took = time.perf_counter() - begin
    # If the interpreter lock were held, this loop would not run during the call.
    assert longest < 0.7 * took, (longest, took)


# ---------------------------------------------------------------------------------------- ml_dtypes


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_bfloat16_of_ml_dtypes(normal, layout):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (normal(1, 18, 18, 16).astype(ml_dtypes.bfloat16) for _ in range(3))
    out = octavo.attention(q, k, v, layout=layout, causal=True)
    assert out.dtype == ml_dtypes.bfloat16
    turned = [x.swapaxes(1, 2) if layout == "bshd" else x for x in (q, k, v, out)]
    close(turned[3], reference(*turned[:3], "top_left")[0], "bfloat16")
    out = octavo.attention(*(normal(1, 2, 4, 8) for _ in range(3)), out_dtype="bfloat16")
    assert out.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("name, format", [("float8_e4m3fn", "e4m3"), ("float8_e5m2", "e5m2")])
def test_float8_of_ml_dtypes(normal, name, format):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (normal(1, 2, 20, 16).astype(getattr(ml_dtypes, name)) for _ in range(3))
    one = numpy.ones(1, numpy.float32)
    out = octavo.attention(*(octavo.Quantized(x, one, format, "tensor") for x in (q, k, v)),
                           out_dtype="float32")
    assert numpy.abs(out - reference(q, k, v)[0]).max() < 0.15
    with pytest.raises(ValueError, match=f"q is an array of {format} without scales; supported: octavo"):
        octavo.attention(q, k, v)


# ------------------------------------------------------------------------------------------- errors

X = numpy.zeros((1, 2, 4, 8), numpy.float32)
ONES = numpy.ones(1, numpy.float32)
LOCKED = X.copy()
LOCKED.flags.writeable = False
STARTS = numpy.array([0, 2, 4], numpy.int32)
P = numpy.zeros((4, 2, 8), numpy.float32)
Y = numpy.zeros((1, 5, 2, 8), numpy.float32)


def refused(given, exception, *parts):
    arguments = {"q": X, "k": X, "v": X, **given}
    with pytest.raises(exception) as caught:
        octavo.attention(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)
    assert type(caught.value) is exception
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize("given, exception, parts", [
    ({"k": X[:, :, :, :4]}, ValueError, ["k"]),
    ({"q": X[0]}, ValueError, ["q is of 3 dimensions; supported: 4"]),
    ({"q": numpy.zeros((1, 3, 4, 8), numpy.float32)}, ValueError, ["heads_kv is 2", "heads_q, here 3"]),
    ({"q": X[:, :, :, ::2], "k": X[:, :, :, :4], "v": X[:, :, :, :4]}, ValueError, ["stride"]),
    ({"scale": float("nan")}, ValueError, ["scale is nan"]),
    ({"causal": "left"}, ValueError, ["causal", "left", "top_left"]),
    ({"precision": "fp4"}, ValueError, ["precision", "fp4", "fp8"]),
    ({"layout": "sbhd"}, ValueError, ["layout is 'sbhd'; supported: bhsd, bshd."]),
    ({"window": (1, -5)}, ValueError, ["window", "-5"]),
    ({"out": LOCKED}, ValueError, ["out is an array that may not be written"]),
    ({"out": X}, ValueError, ["out"]),  # overlaps the inputs
    ({"out_dtype": "int16"}, ValueError, ["out_dtype is 'int16'", "float8_e4m3fn"]),
    ({"out_dtype": "int8"}, ValueError,
     ["out_scale is None with out of int8; supported: float32, contiguous, of 1 number or 2, one per head."]),
    ({"out_scale": ONES}, ValueError, ["out_scale is given with out of f32; supported: None"]),
    ({"out_dtype": "int8", "out_scale": numpy.ones(3, numpy.float32)}, ValueError,
     ["out_scale is 3 numbers"]),
    ({"out_dtype": "int8", "out_scale": numpy.ones(4, numpy.float32)[::2]}, ValueError,
     ["out_scale is not contiguous"]),
    ({"out_dtype": "int8", "out_scale": ONES.astype("float64")}, TypeError,
     ["out_scale is of float64; supported: float32"]),
    ({"out_dtype": "int8", "out_scale": 1.0}, TypeError, ["out_scale is 1.0 (float)"]),
    ({"out_dtype": "int8", "out_scale": ONES * 0}, ValueError,
     ["out_scale[0] is 0; supported: positive finite numbers."]),
    ({"out": X.astype("uint8"), "out_scale": ONES}, TypeError, ["out dtype is uint8"]),
    ({"quantization": {"qkv": "row"}}, ValueError, ["quantization", "qkv"]),
    ({"quantization": {"qk": "rows"}}, ValueError, ["granularity", "rows"]),
    ({"q": P, "k": P, "v": P, "cu_seqlens_q": STARTS}, ValueError, ["cu_seqlens_kv is None"]),
    ({"q": P, "k": P, "v": P, "cu_seqlens_q": STARTS, "cu_seqlens_kv": STARTS[:2]}, ValueError,
     ["cu_seqlens_kv is of 2 entries", "here 3"]),
    ({"cu_seqlens_q": STARTS, "cu_seqlens_kv": STARTS}, ValueError, ["q is of 4 dimensions"]),
    ({"q": P, "k": P, "v": P, "cu_seqlens_q": STARTS.astype("int64"), "cu_seqlens_kv": STARTS},
     TypeError, ["cu_seqlens_q is of int64; supported: int32."]),
    ({"q": [1.0]}, TypeError, ["q is of type list; supported: arrays of NumPy, PyTorch"]),
    ({"v": None}, TypeError, ["v is of type NoneType"]),
    ({"q": X.astype("float64")}, TypeError, ["q dtype is float64; supported: float32"]),
    ({"q": X.astype("uint8")}, TypeError, ["q dtype is uint8", "octavo.Quantized"]),
    ({"q": numpy.array([["a"]], object)}, TypeError, ["q is object"]),
    ({"causal": 3}, TypeError, ["causal is 3 (int)"]),
    ({"scale": "x"}, TypeError, []),
    ({"window": 3}, TypeError, ["window is 3 (int)"]),
    ({"stream": "x"}, TypeError, ["stream is 'x' (str)"]),
    ({"quantization": 1}, TypeError, ["quantization is 1 (int)"]),
    ({"casual": True}, TypeError,
     ["attention() got an unexpected keyword argument 'casual'; did you mean 'causal'?"]),
    ({"is_causal": True}, TypeError, ["'is_causal'; did you mean 'causal'?"]),
    ({"softmax_scale": 1.0}, TypeError, ["did you mean 'scale'?"]),
    ({"sm_scale": 1.0}, TypeError, ["did you mean 'scale'?"]),
    ({"window_size": (1, 1)}, TypeError, ["did you mean 'window'?"]),
    ({"cu_seqlens_k": STARTS}, TypeError, ["did you mean 'cu_seqlens_kv'?"]),
    ({"max_seqlen_k": 3}, TypeError, ["did you mean 'max_seqlen_kv'?"]),
    ({"attn_mask": X}, TypeError, ["did you mean 'mask' (boolean) or 'bias'"]),
    ({"dropout_p": 0.0}, TypeError, ["there is no dropout"]),
    ({"precison": "fp8"}, TypeError, ["did you mean 'precision'?"]),
    ({"xyzzy": 1}, TypeError, ["got an unexpected keyword argument 'xyzzy'"]),
    ({"q": X[:, :, :1], "causal": True}, ValueError,
     ["causal is True with seqlen_q 1 and seqlen_kv 4; supported: 'top_left'", "'bottom_right'"]),
    ({"q": P, "k": P, "v": P, "causal": True, "cu_seqlens_q": STARTS, "cu_seqlens_kv": STARTS.copy()},
     ValueError, ["causal is True with cu_seqlens_q and cu_seqlens_kv that are different arrays"]),
    ({"q": P, "k": P, "v": P, "cu_seqlens_q": STARTS, "cu_seqlens_kv": STARTS, "max_seqlen_q": -4},
     ValueError, ["max_seqlen_q is -4"]),
    ({"window": (-5, 0)}, ValueError, ["window[0] is -5"]),
    # Dimensions are reported in the order they were passed: k has 5 rows and v 4.
    ({"q": Y, "k": Y, "v": Y[:, :4], "layout": "bshd"}, ValueError,
     ["v.shape is (1, 4, 2, 8); supported: (1, 5, 2, 8)"]),
    ({"q": Y, "k": Y[..., :4], "v": Y[..., :4], "layout": "bshd"}, ValueError, ["k.shape[3] is 4"]),
    ({"q": P, "k": P[..., :4], "v": P[..., :4], "cu_seqlens_q": STARTS, "cu_seqlens_kv": STARTS},
     ValueError, ["k.shape[2] is 4"]),
])
def test_errors_are_sentences(given, exception, parts):
    refused(given, exception, *parts)


# A plan fixes how many rows of k share a scale.
def test_another_number_of_rows_in_a_block_is_another_plan(normal):
    q, k, v = (normal(1, 2, 128, 16) for _ in range(3))
    for block_rows in (64, 32, 64, 16):
        made = octavo.quantize(k, "int8", granularity="block", block_rows=block_rows)
        out = octavo.attention(q, made, v)
        close(out, reference(q, octavo.dequantize(made), v)[0], "float16")


class Fleeting:
    """Numbers whose memory is valid only as long as what __dlpack__ has exported."""

    def __init__(self, *numbers):
        self.memory = (ctypes.c_int32 * len(numbers))(*numbers)

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        memory = self.memory

        class Owner:
            __array_interface__ = {"shape": (len(memory),), "typestr": "<i4", "version": 3,
                                   "data": (ctypes.addressof(memory), False)}

            def __del__(self):
                memory[:] = [-1] * len(memory)

        return numpy.asarray(Owner()).__dlpack__(**options)


def test_arrays_live_as_long_as_the_call(normal):
    x = normal(20, 2, 16)
    starts = numpy.array([0, 12, 20], numpy.int32)
    made = octavo.quantize(x, cu_seqlens=Fleeting(*starts))
    wanted = octavo.quantize(x, cu_seqlens=starts)
    numpy.testing.assert_array_equal(made.data, wanted.data)
    found = octavo.attention(x, x, x, cu_seqlens_q=Fleeting(*starts), cu_seqlens_kv=Fleeting(*starts))
    numpy.testing.assert_array_equal(found, octavo.attention(x, x, x, cu_seqlens_q=starts, cu_seqlens_kv=starts))


LAYOUTS = """
import sys, warnings
import numpy, octavo
for number, (shape, options) in enumerate(eval(sys.argv[1])):
    x = numpy.ones(shape, numpy.float32)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        octavo.attention(x, x, x, **options)
    for one in seen:
        print(number, f"{one.category.__name__}: {one.message}")
"""


def test_heads_and_rows_that_look_swapped():
    """A process warns once, so the calls without a warning come first."""
    calls = [((1, 300, 2, 8), {"layout": "bshd"}),
             ((1, 300, 2, 8), {"layout": "bhsd"}),  # the layout is explicit
             ((1, 300, 1, 8), {}),  # a batch that was flattened into heads, one row each
             ((1, 32, 1, 8), {}),
             ((1, 2, 300, 8), {}),
             ((1, 128, 64, 8), {}),
             *2 * [((1, 300, 2, 8), {})]]  # (batch, seqlen, heads, head_dim), most likely
    told, = subprocess.run([sys.executable, "-c", LAYOUTS, str(calls)], text=True, capture_output=True,
                           check=True).stdout.splitlines()
    assert told.startswith("6 LayoutWarning: q has 300 heads of 2 rows: layout='bshd' is for")


def test_modules_of_frameworks_are_imported_when_used():
    code = ("import sys, octavo; assert 'torch' not in sys.modules and 'torch' in dir(octavo)\n"
            "try: octavo.nothing\n"
            "except AttributeError as error: assert str(error) == \"module 'octavo' has no attribute 'nothing'\"\n"
            "else: raise SystemExit(3)\n"
            "octavo.bench.main")
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                          check=False).returncode == 0


def test_errors_of_the_call_itself():
    for arguments, named, part in (((X, X), {}, "needs v"), ((X, X, X, True), {}, "takes 3"),
                                   ((X, X, X), {"q": X}, "several values for q")):
        with pytest.raises(TypeError, match=part):
            octavo.attention(*arguments, **named)


def test_errors_of_quantized():
    data, one = X.astype("uint8"), numpy.ones(1, numpy.float32)
    for made, exception, part in (
            (octavo.Quantized(data, one, "e4m3", "head"), ValueError, "q.scales is 1 numbers; supported: 2, one per head"),
            (octavo.Quantized(data, one, "f16", "tensor"), ValueError, "q.format is f16"),
            (octavo.Quantized(data, one, "e4m3", "all"), ValueError, "granularity"),
            (octavo.Quantized(X, one, "e4m3", "tensor"), TypeError, "q.data is of float32"),
            (octavo.Quantized(data, one.astype("float64"), "e4m3", "tensor"), TypeError, "q.scales"),
            (octavo.Quantized(data, one * 0, "e4m3", "tensor"), ValueError, "positive finite")):
        refused({"q": made}, exception, part)
    refused({"k": octavo.Quantized(data, one, "int8", "tensor", max_quantized=128)}, ValueError,
            "k.max_quantized is 128; supported: 0 (not known) to 127, the largest of int8.")
    blocks = octavo.quantize(numpy.ones((1, 2, 80, 8), numpy.float32), "int8", granularity="block")
    blocks.scales[0, 1, 1] = numpy.nan
    refused({"k": blocks, "v": blocks}, ValueError,
            "k.scales[3] is nan; supported: positive finite numbers.")
    columns = octavo.quantize(X, transposed=True)
    refused({"q": columns}, ValueError, "q is transposed; supported: tensors that are not transposed, except for v.")
    refused({"v": octavo.Quantized(data, one, "e4m3", "tensor", transposed=True)}, ValueError,
            "v.shape is (1, 2, 4, 8); supported: (1, 2, 4, 16)")
    with pytest.raises(NotImplementedError, match="quantized is transposed; supported: tensors that are not transposed"):
        octavo.dequantize(columns)
    with pytest.raises(ValueError, match="format is 'f16'"):
        octavo.quantize(X, "f16")
    with pytest.raises(ValueError, match="format is given together with operand; supported: precision"):
        octavo.quantize(X, "int8", operand="k")
    with pytest.raises(ValueError, match="operand is 'o'; supported: q, k, v"):
        octavo.quantize(X, operand="o")
    with pytest.raises(ValueError, match="precision is int8_mixed; supported: fp8, fp8_fast, int8, sim8 for v"):
        octavo.quantize(X, operand="v", precision="int8_mixed")
    with pytest.raises(ValueError, match="scales is 3 numbers; supported: 2"):
        octavo.quantize(X, scales=numpy.ones(3, numpy.float32))
    with pytest.raises(ValueError, match="threads is -1"):
        octavo.set_cpu_threads(-1)


def test_what_a_device_does_not_serve():
    with pytest.raises(NotImplementedError, match="supported here") as caught:
        octavo.explain(X, X, X, device="cuda:0")  # float32 as it is
    assert "f32" in str(caught.value)


def test_what_is_checked_before_a_gpu_is_asked():
    x, varlen, starts = OnGpu(X), OnGpu(P), OnGpu(STARTS)
    refused({"k": x}, ValueError, "k is on cuda:0; supported: cpu, where q is.")
    refused({"q": x, "k": x, "v": OnGpu(X, 1)}, ValueError, "v is on cuda:1; supported: cuda:0")
    refused({"q": varlen, "k": varlen, "v": varlen, "cu_seqlens_q": starts,
             "cu_seqlens_kv": STARTS}, ValueError, "cu_seqlens_kv is on cpu; supported: cuda:0")
    refused({"q": varlen, "k": varlen, "v": varlen, "cu_seqlens_q": starts,
             "cu_seqlens_kv": starts, "max_seqlen_kv": 2}, ValueError,
            "max_seqlen_q is None; supported: a number where cu_seqlens are on a GPU")
    with pytest.raises(ValueError, match="cu_seqlens is on cpu; supported: cuda:0, as x"):
        octavo.quantize(varlen, cu_seqlens=STARTS)
    with pytest.raises(ValueError, match="max_seqlen is None; supported: a number where cu_seqlens are on a GPU"):
        octavo.quantize(varlen, cu_seqlens=starts)
    with pytest.raises(NotImplementedError, match="x with scales is on cuda:0"):
        octavo.quantize(x, scales=numpy.ones(2, numpy.float32))
    with pytest.raises(NotImplementedError, match="array is on cuda:0"):
        octavo.random_normal(x, 42)


def test_nothing_is_written_on_failure():
    out = numpy.full((1, 2, 4, 8), 7, numpy.float32)
    refused({"out": out, "scale": float("inf")}, ValueError)
    assert (out == 7).all()


# -------------------------------------------------------------------------------------------- stubs


def test_stubs_name_what_is_there():
    path = pathlib.Path(octavo.__file__).parent / "_octavo.pyi"
    stubs = {node.name: node.args for node in ast.parse(path.read_text()).body
             if isinstance(node, ast.FunctionDef)}
    assert set(stubs) == {name for name in dir(octavo._octavo)
                          if not name.startswith("_") and callable(getattr(octavo._octavo, name))}
    for name, stub in stubs.items():
        function = getattr(octavo._octavo, name)
        assert function.__doc__
        names = [a.arg for a in stub.args + stub.kwonlyargs]
        if hasattr(function, "__text_signature__"):
            parameters = inspect.signature(function).parameters
            assert list(parameters) == names
            defaults = [ast.literal_eval(d) for d in stub.kw_defaults]
            assert defaults == [p.default for p in parameters.values()
                                if p.kind is p.KEYWORD_ONLY]
        else:
            written = function.__nb_signature__[0][0]
            parsed = ast.parse(written.replace("\\", "") + ": ...").body[0].args
            assert [a.arg for a in parsed.args + parsed.kwonlyargs] == names


def test_every_parameter_of_attention_is_documented():
    for name in inspect.signature(octavo.attention).parameters:
        assert name in octavo.attention.__doc__.split("--", 1)[-1], name
    assert (pathlib.Path(octavo.__file__).parent / "py.typed").exists()


# ------------------------------------------------------------------------------- the backward pass


def gradients(dout, q, k, v, causal=None, scale=None):
    """(dq, dk, dv) in float64 by the formula, for (batch, heads, seqlen, head_dim)."""
    scale = q.shape[3] ** -0.5 if scale is None else scale
    out, lse = reference(q, k, v, causal, scale=scale)
    dout, q, k, v = (numpy.asarray(x, numpy.float64) for x in (dout, q, k, v))
    group = q.shape[1] // k.shape[1]
    keys, values = (numpy.repeat(x, group, axis=1) for x in (k, v))
    rows, columns = q.shape[2], k.shape[2]
    shift = 0 if causal == "top_left" else columns - rows
    beyond = numpy.arange(columns)[None, :] - numpy.arange(rows)[:, None] - shift
    seen = (beyond <= 0 if causal else beyond == beyond) & numpy.isfinite(lse)[..., None]
    with numpy.errstate(over="ignore", invalid="ignore"):
        p = numpy.where(seen, numpy.exp(q @ keys.swapaxes(2, 3) * scale - lse[..., None]), 0)
    ds = p * (dout @ values.swapaxes(2, 3) - (dout * out).sum(-1, keepdims=True)) * scale

    def over_group(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    return ds @ keys, over_group(ds.swapaxes(2, 3) @ q), over_group(p.swapaxes(2, 3) @ dout)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_backward(normal, dtype, tolerance, causal, layout):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    shapes = [(2, 4, 9, 16), (2, 2, 13, 16), (2, 2, 13, 16), (2, 4, 9, 16)]
    q, k, v, dout = (normal(*shape).astype(dtype) for shape in shapes)
    turned = (lambda x: x) if layout == "bhsd" else (lambda x: x.swapaxes(1, 2))
    given = [numpy.ascontiguousarray(turned(x)) for x in (q, k, v)]
    options = {"causal": causal, "layout": layout, "scale": 0.3}
    out, lse = octavo.attention(*given, return_lse=True, **options)
    made = octavo.attention_backward(numpy.ascontiguousarray(turned(dout)), *given, out, lse, **options)
    for found, like, wanted in zip(made, given, gradients(dout, q, k, v, causal, 0.3)):
        assert found.dtype == like.dtype and found.shape == like.shape
        numpy.testing.assert_allclose(turned(found).astype("float64"), wanted,
                                      atol=tolerance * (1 + abs(wanted).max()))


def test_backward_of_a_varlen_batch(normal):
    q, k, v, dout = (normal(12, 2, 8) for _ in range(4))
    starts = numpy.array([0, 5, 10], "int32")  # the last two tokens belong to no sequence
    options = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts, "causal": True}
    out, lse = octavo.attention(q, k, v, return_lse=True, **options)
    made = octavo.attention_backward(dout, q, k, v, out, lse, **options)
    for rows in (slice(0, 5), slice(5, 10)):
        parts = (x[rows].swapaxes(0, 1)[None] for x in (dout, q, k, v))
        for found, wanted in zip(made, gradients(*parts, "top_left")):
            numpy.testing.assert_allclose(found[rows].swapaxes(0, 1)[None], wanted, atol=1e-5)
    assert all(abs(x[10:]).max() == 0 for x in made)


def test_errors_of_the_backward_pass(normal):
    q, k, v, dout = (normal(1, 2, 9, 16) for _ in range(4))
    out, lse = octavo.attention(q, k, v, return_lse=True)
    run = octavo.attention_backward
    for arguments, exception, part in (
            ((dout[:, :, :8], q, k, v, out, lse), ValueError, r"dout.shape is \(1, 2, 8, 16\)"),
            ((dout.astype("float16"), q, k, v, out, lse), ValueError, "dout.dtype is f16; supported: the dtype of q"),
            ((dout, q, k, v, out, lse[:, :, :8]), ValueError, r"lse.shape is \(1, 2, 8\); supported: \(1, 2, 9\)"),
            ((dout, q, k.astype("float16"), v, out, lse), NotImplementedError, "k dtype is f16"),
            ((dout, q, octavo.quantize(k, "int8"), v, out, lse), NotImplementedError, "k is an octavo.Quantized"),
            ((dout, q, k, v, out, None), TypeError, "lse")):
        with pytest.raises(exception, match=part):
            run(*arguments)
    with pytest.raises(NotImplementedError, match="precision is fp8 with inputs of f32; supported"):
        run(dout, q, k, v, out, lse, precision="fp8")
    with pytest.raises(TypeError, match="unexpected keyword argument 'out_dtype'"):
        run(dout, q, k, v, out, lse, out_dtype="float16")
