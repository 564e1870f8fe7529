#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what the formats of a KV cache cost attention, on the CPU: the table of docs/precision.md.

usage: cache_accuracy.py [--keys 2048]      (PYTHONPATH=build/python)

Each row is a distribution of K and V, each column a format. A number is the root mean square of the
error of the output over that of the output, for 64 queries of each of 8 heads, D = 128, in float64
over what an octavo.KvCache of that format holds. The last columns are simulated: int4 whose K has a
scale and a zero for each channel of 32 tokens ("per channel"), or less its mean key ("smoothed").
"""

import argparse

import numpy

import octavo

HEADS, DIM, QUERIES = 8, 128, 64


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(numpy.float32)


def with_outliers(rng, x):
    return x + 10 * normal(rng, *x.shape) * (rng.random(x.shape) < 0.001)


def distributions(keys, rng):
    """(name, q, k, v)"""
    def shapes():
        return normal(rng, HEADS, QUERIES, DIM), normal(rng, HEADS, keys, DIM), normal(rng, HEADS, keys, DIM)

    yield ("normal", *shapes())
    q, k, v = shapes()
    yield "outliers", *(with_outliers(rng, x) for x in (q, k, v))
    q, k, v = shapes()
    yield "biased_keys", q, k + 4 * normal(rng, HEADS, 1, DIM), v
    q, k, v = shapes()
    k[:, :, rng.choice(DIM, 4, replace=False)] *= 8
    yield "wide channels", q, k, v
    q, k, v = shapes()
    # A key whose scores are 12 above the others, with small values.
    q[:] = q - q.mean(1, keepdims=True) + 1
    k[:, 0] = 12 / DIM**0.5
    v[:, 0] *= 0.05
    yield "sink", q, k, v


def attention(q, k, v):
    s = q.astype(numpy.float64) @ k.astype(numpy.float64).swapaxes(1, 2) / DIM**0.5
    p = numpy.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v.astype(numpy.float64)


def cached(k, v, **options):
    """K and V as a cache returns them."""
    keys = k.shape[1]
    cache = octavo.KvCache(-(-keys // 64), HEADS, DIM, **options)
    cache.select([cache.add_sequence()])
    cache.append(k[None], v[None])
    return [x[0] for x in cache.read(0)]


def per_channel(k, tokens=32):
    groups = k.reshape(HEADS, -1, tokens, DIM)
    low = groups.min(2, keepdims=True).astype(numpy.float16).astype(numpy.float32)
    step = ((groups.max(2, keepdims=True) - low) / 15).astype(numpy.float16).astype(numpy.float32)
    return (numpy.clip(numpy.rint((groups - low) / step), 0, 15) * step + low).reshape(k.shape)


def columns(k, v):
    """(name, K, V) of every format."""
    yield "f16", *cached(k, v, dtype="float16")
    yield "e4m3", *cached(k, v, dtype="float8_e4m3fn")
    yield "int8", *cached(k, v, dtype="int8")
    yield "int4/64", *cached(k, v, dtype="int4", group=64)
    k32, v32 = cached(k, v, dtype="int4", group=32)
    yield "int4/32", k32, v32
    yield "per channel", per_channel(k), v32
    mean = k.mean(1, keepdims=True)
    yield "smoothed", cached(k - mean, v, dtype="int4", group=32)[0] + mean, v32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=2048, help="a multiple of 32")
    keys = parser.parse_args().keys
    rng = numpy.random.default_rng(1)
    printed = False
    for name, q, k, v in distributions(keys, rng):
        exact = attention(q, k, v)
        found = [(column, attention(q, *kv)) for column, *kv in columns(k, v)]
        if not printed:
            print("| K and V | " + " | ".join(column for column, _ in found) + " |")
            print("|---" * (len(found) + 1) + "|")
            printed = True
        errors = [((out - exact) ** 2).mean() ** 0.5 / (exact**2).mean() ** 0.5 for _, out in found]
        print(f"| {name} | " + " | ".join(f"{error:.2g}" for error in errors) + " |")


if __name__ == "__main__":
    main()
