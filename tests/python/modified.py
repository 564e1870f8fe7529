# SPDX-License-Identifier: Apache-2.0
"""Attention with every change of the scores in float64, sequence by sequence."""

import numpy


def sliced(padding, b, rows, side):
    """The rows of batch entry b that are no padding."""
    begin = 0 if padding.get(f"leftpad_{side}") is None else int(padding[f"leftpad_{side}"][b])
    lengths = padding.get(f"seqlens_{side}")
    return slice(begin, rows if lengths is None else begin + int(lengths[b]))


def scores_of(q, k, rows, keys, causal, window, scale, softcap, bias, mask, slopes):
    """The scores of one head of one sequence, -inf for hidden keys."""
    s = q[rows] @ k[keys].T * scale
    if softcap:
        s = softcap * numpy.tanh(s / softcap)
    if bias is not None:
        s = s + bias[rows, keys]
    shift = 0 if causal == "top_left" else s.shape[1] - s.shape[0]
    beyond = numpy.arange(s.shape[1])[None, :] - numpy.arange(s.shape[0])[:, None] - shift
    if slopes is not None:
        s = s - slopes * numpy.abs(beyond)
    seen = numpy.ones(s.shape, bool) if mask is None else mask[rows, keys].copy()
    if causal:
        seen &= beyond <= 0
    if window[0] >= 0:
        seen &= beyond >= -window[0]
    if window[1] >= 0:
        seen &= beyond <= window[1]
    return numpy.where(seen, s, -numpy.inf)


def modified(q, k, v, causal=None, window=(-1, -1), scale=None, softcap=None, bias=None, mask=None,
             alibi_slopes=None, sinks=None, **padding):
    """(out, lse) for (batch, heads, seqlen, head_dim); the parameters are those of octavo.attention."""
    q, k, v = (numpy.asarray(x, numpy.float64) for x in (q, k, v))
    batch, heads, rows, dim = q.shape
    columns, group = k.shape[2], heads // k.shape[1]
    scale = dim ** -0.5 if scale is None else scale
    whole = (batch, heads, rows, columns)
    bias = None if bias is None else numpy.broadcast_to(numpy.asarray(bias, numpy.float64), whole)
    mask = None if mask is None else numpy.broadcast_to(numpy.asarray(mask), whole)
    slopes = None if alibi_slopes is None else numpy.broadcast_to(alibi_slopes, (batch, heads))
    out, lse = numpy.zeros(q.shape), numpy.full(q.shape[:3], -numpy.inf)
    for b, h in numpy.ndindex(batch, heads):
        mine, keys = sliced(padding, b, rows, "q"), sliced(padding, b, columns, "kv")
        s = scores_of(q[b, h], k[b, h // group], mine, keys, causal, window, scale, softcap,
                      None if bias is None else bias[b, h], None if mask is None else mask[b, h],
                      None if slopes is None else slopes[b, h])
        with numpy.errstate(divide="ignore", invalid="ignore"):
            most = s.max(-1, keepdims=True, initial=-numpy.inf)
            most = numpy.where(numpy.isfinite(most), most, 0)
            p = numpy.exp(s - most)
            total = p.sum(-1, keepdims=True)
            if sinks is not None:
                total = total + numpy.exp(numpy.float64(sinks[h]) - most)
            out[b, h, mine] = numpy.where(total > 0, p @ v[b, h // group, keys] / total, 0)
            lse[b, h, mine] = (numpy.log(total) + most)[:, 0]
    return out, lse
