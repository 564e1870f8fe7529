# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the Python package."""

import numpy
import pytest


def reference(q, k, v, causal=None, window=(-1, -1), scale=None):
    """(out, lse) in float64, for (batch, heads, seqlen, head_dim); the masks are those of docs/users.md."""
    q, k, v = (numpy.asarray(x, numpy.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (numpy.repeat(x, group, axis=1) for x in (k, v))
    s = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    rows, keys = q.shape[2], k.shape[2]
    shift = 0 if causal == "top_left" else keys - rows
    beyond = numpy.arange(keys)[None, :] - numpy.arange(rows)[:, None] - shift
    seen = numpy.ones((rows, keys), bool)
    if causal:
        seen &= beyond <= 0
    if window[0] >= 0:
        seen &= beyond >= -window[0]
    if window[1] >= 0:
        seen &= beyond <= window[1]
    s = numpy.where(seen, s, -numpy.inf)
    with numpy.errstate(invalid="ignore", divide="ignore"):
        most = s.max(-1, keepdims=True, initial=-numpy.inf)
        p = numpy.where(seen, numpy.exp(s - most), 0)
        total = p.sum(-1, keepdims=True)
        out = numpy.where(total > 0, p @ v / numpy.where(total > 0, total, 1), 0)
        lse = numpy.where(total > 0, numpy.log(total) + most, -numpy.inf)
    return out, lse[..., 0]


@pytest.fixture
def normal():
    """normal(*shape, dtype=...): standard normal numbers, different at every call."""
    draw = numpy.random.default_rng(42)
    return lambda *shape, dtype=numpy.float32: draw.standard_normal(shape).astype(dtype)
