# SPDX-License-Identifier: Apache-2.0
"""Paged KV caches, octavo.KvCache and octavo.merge_states: NumPy and PyTorch on the CPU."""

import dataclasses
import inspect

import numpy
import pytest

import octavo

PAGE, HEADS, DIM = 16, 2, 16
LENGTHS = [20, 0, 35]


def paged(normal, layout="bhsd"):
    """(q, k, v dense, cache of k, cache of v, page_table, seqlens): three sequences in shuffled pages."""
    q, k, v = normal(3, 4, 2, DIM), normal(3, HEADS, 48, DIM), normal(3, HEADS, 48, DIM)
    table = numpy.array([[5, 1, -1], [-7, 99, 99], [0, 6, 3]], numpy.int32)
    pages = [numpy.full((7, HEADS, PAGE, DIM), numpy.nan, numpy.float32) for _ in range(2)]
    for b, length in enumerate(LENGTHS):
        for j in range(length):
            for cache, rows in zip(pages, (k, v)):
                cache[table[b, j // PAGE], :, j % PAGE] = rows[b, :, j]
    if layout == "bshd":
        q, *pages = (numpy.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, *pages))
    return q, k, v, *pages, table, numpy.array(LENGTHS, numpy.int32)


def expected(q, k, v, **options):
    return octavo.attention(q, k, v, seqlens_kv=numpy.array(LENGTHS, numpy.int32), return_lse=True, **options)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_the_keys_of_a_dense_call(normal, layout):
    q, k, v, k_cache, v_cache, table, lengths = paged(normal, layout)
    options = {"causal": "bottom_right", "window": (30, None), "softcap": 3.0}
    dense = (x.swapaxes(1, 2) for x in (k, v)) if layout == "bshd" else (k, v)
    wanted = expected(q, *dense, layout=layout, **options)
    found = octavo.attention(q, k_cache, v_cache, page_table=table, seqlens_kv=lengths, layout=layout,
                             return_lse=True, **options)
    for one, other in zip(found, wanted):
        numpy.testing.assert_array_equal(one, other)
    # A table that is part of a larger one.
    larger = numpy.full((3, 5), 77, numpy.int32)
    larger[:, :3] = table
    again = octavo.attention(q, k_cache, v_cache, page_table=larger[:, :3], seqlens_kv=lengths, layout=layout,
                             **options)
    numpy.testing.assert_array_equal(again, wanted[0])


@pytest.mark.parametrize("granularity, shape", [("tensor", (1,)), ("head", (1, HEADS)), ("row", (7, HEADS, PAGE)),
                                                ("block", (7, HEADS, 1))])
def test_scales_of_8_bit_caches(normal, granularity, shape):
    q, k, v, k_cache, v_cache, table, lengths = paged(normal)
    scales = numpy.abs(normal(*shape)) + 0.5
    codes = [numpy.clip(numpy.rint(numpy.nan_to_num(x) * 20), -127, 127).astype(numpy.int8)
             for x in (k_cache, v_cache)]
    whole = {"tensor": (1, 1, 1, 1), "head": (1, HEADS, 1, 1), "row": (7, HEADS, PAGE, 1),
             "block": (7, HEADS, 1, 1)}[granularity]
    values = [x.astype(numpy.float32) * (scales.reshape(whole) / 20) for x in codes]
    given = [octavo.Quantized(x, (scales / 20).astype(numpy.float32), "int8", granularity, PAGE) for x in codes]
    found = octavo.attention(q, *given, page_table=table, seqlens_kv=lengths)
    wanted = octavo.attention(q, *values, page_table=table, seqlens_kv=lengths)
    numpy.testing.assert_allclose(found, wanted, atol=2e-6)
    with pytest.raises(ValueError, match="k.scales is .* numbers; supported: "):
        wrong = octavo.Quantized(codes[0], numpy.ones(5, numpy.float32), "int8", granularity, PAGE)
        octavo.attention(q, wrong, given[1], page_table=table, seqlens_kv=lengths)


def test_explain(normal):
    q, _, _, k_cache, v_cache, table, lengths = paged(normal)
    assert octavo.explain(q, k_cache, v_cache, page_table=table, seqlens_kv=lengths).kernel == "cpu_forward"


@pytest.mark.parametrize("change, exception, sentence", [
    ({"page_table": lambda t: t.astype(numpy.int64)}, TypeError, "page_table is of int64; supported: int32."),
    ({"page_table": lambda t: t[0]}, ValueError,
     "page_table is of 1 dimensions; supported: (3, pages of a sequence), with contiguous rows."),
    ({"page_table": lambda t: t[:2]}, ValueError,
     "page_table is of 2 sequences; supported: (3, pages of a sequence), with contiguous rows."),
    ({"page_table": lambda t: t[:, ::2]}, ValueError,
     "page_table is not contiguous; supported: (3, pages of a sequence), with contiguous rows."),
    ({"page_table": lambda t: numpy.where(t == 6, 7, t).astype(numpy.int32)}, ValueError,
     "page_table[2][1] is 7; supported: 0 to 6, the pages of the cache."),
    ({"page_table": lambda t: [[1]]}, TypeError, "page_table is"),
    ({"seqlens_kv": lambda n: None}, ValueError,
     "seqlens_kv is null; supported: an array of lengths, with a page_table."),
    ({"seqlens_kv": lambda n: n + 20}, ValueError, "seqlens_kv[2] is 55; supported: 0 to 48"),
    ({"causal": lambda _: True}, ValueError, "causal is True with a page_table; supported: 'bottom_right', False."),
    ({"causal": lambda _: "top_left"}, NotImplementedError, "causal is top_left with a paged cache"),
    ({"leftpad_kv": lambda _: numpy.zeros(3, numpy.int32)}, NotImplementedError,
     "leftpad_kv is given together with page_table"),
    ({"mask": lambda _: numpy.ones((1, 48), bool)}, NotImplementedError, "mask is given together with page_table"),
    ({"precision": lambda _: "fp8"}, NotImplementedError, "precision is fp8 with a paged cache"),
])
def test_errors(normal, change, exception, sentence):
    q, _, _, k_cache, v_cache, table, lengths = paged(normal)
    options = {"page_table": table, "seqlens_kv": lengths}
    for name, make in change.items():
        options[name] = make(options.get(name))
    out = numpy.full_like(q, -7)
    with pytest.raises(exception) as error:
        octavo.attention(q, k_cache, v_cache, out=out, **options)
    assert str(error.value).startswith(sentence), error.value
    assert (out == -7).all()


def test_names_of_other_libraries(normal):
    q, _, _, k_cache, v_cache, table, lengths = paged(normal)
    with pytest.raises(TypeError, match="did you mean 'page_table'"):
        octavo.attention(q, k_cache, v_cache, block_table=table, seqlens_kv=lengths)


# ------------------------------------------------------------------------------------------ KvCache


def cached(cache, sequence, k, v):
    """The rows of a sequence, and what they should be."""
    for found, wanted in zip(cache.read(sequence), (k, v)):
        numpy.testing.assert_allclose(found[0], wanted, atol=5e-2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_decoding(normal, dtype, layout):
    cache = octavo.KvCache(8, HEADS, DIM, page_size=PAGE, dtype=dtype, layout=layout, max_batch=3)
    assert cache.pages_per_sequence == 8
    a, b = cache.add_sequence(), cache.add_sequence()
    prompts = {a: (normal(HEADS, 20, DIM), normal(HEADS, 20, DIM)), b: (normal(HEADS, 3, DIM), normal(HEADS, 3, DIM))}
    for sequence, (k, v) in prompts.items():
        cache.select([sequence])
        cache.append(k[None], v[None])
    cache.select([b, a])
    k, v = normal(2, 1, HEADS, DIM), normal(2, 1, HEADS, DIM)
    cache.append(k, v, layout="bshd")
    assert [cache.length(x) for x in (a, b)] == [21, 4]
    q = normal(2, 4, 1, DIM)
    given = q if layout == "bhsd" else numpy.ascontiguousarray(q.swapaxes(1, 2))
    out, lse = cache.attention(given, causal="bottom_right", return_lse=True)
    out = out if layout == "bhsd" else out.swapaxes(1, 2)
    for slot, sequence in enumerate((b, a)):
        rows = [x[:, :, :] for x in cache.read(sequence)]
        wanted = octavo.attention(q[slot:slot + 1], *rows, return_lse=True)
        numpy.testing.assert_allclose(out[slot:slot + 1], wanted[0], atol=2e-6)
        numpy.testing.assert_allclose(lse[slot:slot + 1], wanted[1], atol=2e-6)
        if dtype == "float32":
            for found, prompt, token in zip(rows, prompts[sequence], (k, v)):
                numpy.testing.assert_array_equal(found[0, :, :-1], prompt)
                numpy.testing.assert_array_equal(found[0, :, -1], token[slot, 0])


def int4_cache(normal, group):
    cache = octavo.KvCache(8, HEADS, 64, page_size=PAGE, dtype="int4", group=group)
    cache.select([cache.add_sequence()])
    cache.append(normal(1, HEADS, 20, 64), normal(1, HEADS, 20, 64))
    return cache


@pytest.mark.parametrize("change, exception, sentence", [
    (lambda x: {"data": x.data[..., :0]}, ValueError, "k.scales is of another shape or not contiguous"),
    (lambda x: {"data": x.data[..., :24]}, ValueError, "k.shape[3] is 24; supported: half the head dimension"),
    (lambda x: {"data": x.data[:, :, 0]}, ValueError, "k.scales is of another shape"),
    (lambda x: {"scales": x.scales[:, :, :3]}, ValueError, "k.scales is of another shape or not contiguous"),
    (lambda x: {"scales": x.scales[:, :, ::2]}, ValueError, "k.scales is of another shape or not contiguous"),
    (lambda x: {"scales": x.scales.astype(numpy.float32)}, TypeError, "k.scales is of float32"),
    (lambda x: {"scales": x.scales[:7].copy()}, ValueError, "k.scales is of shape (7, 2, 4, 16); supported: (8, 2, 4, 16)"),
    (lambda x: {"scales": x.scales.reshape(2, 8, 4, 16)}, ValueError, "k.scales is of shape (2, 8, 4, 16)"),
    (lambda x: {"scales": x.scales.reshape(8, 4, 2, 16)}, ValueError, "k.scales is of shape (8, 4, 2, 16)"),
    (lambda x: {"scales": x.scales.reshape(8, 2, 16, 4)}, ValueError, "k.scales is of shape (8, 2, 16, 4)"),
    (lambda x: {"format": "int8", "granularity": "row"}, TypeError, "k.scales is of float16; supported: float32"),
])
def test_int4_errors(normal, change, exception, sentence):
    cache, q = int4_cache(normal, 32), normal(1, 4, 2, 64)
    given = cache.arguments()
    given["k"] = dataclasses.replace(given["k"], **change(given["k"]))
    out = numpy.full_like(q, -7)
    with pytest.raises(exception) as error:
        octavo.attention(q, out=out, **given)
    assert str(error.value).startswith(sentence), error.value
    assert (out == -7).all()


def test_int4_is_of_pages_only(normal):
    given = int4_cache(normal, 32).arguments()
    with pytest.raises(ValueError, match="q is int4; supported: int4 for k and v of a paged cache"):
        octavo.attention(given["k"], given["k"], given["v"])
    with pytest.raises(NotImplementedError, match="k dtype is int4 without page_table"):
        octavo.attention(normal(8, 4, 2, 64), given["k"], given["v"])
    with pytest.raises((ValueError, NotImplementedError), match="int4"):
        given["k"].dequantize()


def test_rows_of_the_cache_itself_are_refused(normal):
    cache = octavo.KvCache(8, HEADS, DIM, page_size=PAGE, dtype="float32")
    cache.select([cache.add_sequence()])
    cache.append(normal(1, HEADS, 20, DIM), normal(1, HEADS, 20, DIM))
    own = cache.arguments()["k"][:1, :, :1]
    with pytest.raises(ValueError, match="k is in memory that the cache also covers"):
        cache.append(own, normal(1, HEADS, 1, DIM))
    assert cache.length(0) == 20


def test_draft_tree_of_a_call(normal):
    """A tree: 0 is the root of 1 and 2, 1 of 3, 2 of 4."""
    q, k, v = normal(2, 4, 5, DIM), normal(2, HEADS, 40, DIM), normal(2, HEADS, 40, DIM)
    tree = numpy.array([[1, 3, 5, 11, 21], [1, 3, 7, 15, 31]], numpy.int32)
    mask = numpy.ones((2, 1, 5, 40), bool)
    mask[:, 0, :, 35:] = (tree[:, :, None] >> numpy.arange(5)) & 1
    numpy.testing.assert_array_equal(octavo.attention(q, k, v, draft_tree=tree),
                                     octavo.attention(q, k, v, mask=mask))
    for wrong, exception, sentence in [
            (tree.astype(numpy.int64), TypeError, "draft_tree is of int64; supported: int32."),
            (tree[:, :4], ValueError, "draft_tree is of another shape or not contiguous; supported: (2, 5)"),
            (tree[0], ValueError, "draft_tree is of another shape"),
            (numpy.asfortranarray(tree), ValueError, "draft_tree is of another shape or not contiguous"),
            ([[1]], TypeError, "draft_tree is")]:
        with pytest.raises(exception) as error:
            octavo.attention(q, k, v, draft_tree=wrong)
        assert str(error.value).startswith(sentence), error.value


def test_forks_and_what_does_not_fit(normal):
    cache = octavo.KvCache(4, HEADS, DIM, page_size=PAGE, dtype="float32")
    parent = cache.add_sequence()
    k, v = normal(1, HEADS, 20, DIM), normal(1, HEADS, 20, DIM)
    cache.select([parent])
    cache.append(k, v)
    child = cache.fork(parent)
    assert cache.free_pages == 2
    cache.select([child])
    cache.append(k[:, :, :1], v[:, :, :1])
    assert (cache.free_pages, cache.length(parent), cache.length(child)) == (1, 20, 21)
    cached(cache, parent, k[0], v[0])
    cache.select([parent, child])
    two = normal(2, HEADS, 30, DIM)
    with pytest.raises(MemoryError, match="tokens is 30, which needs 4 pages; supported: what fits into the 1 free"):
        cache.append(two, two)
    with pytest.raises(MemoryError, match="tokens is 30"):
        cache.reserve(30)
    assert (cache.free_pages, cache.length(parent), cache.length(child)) == (1, 20, 21)
    cache.free_sequence(parent)
    assert cache.free_pages == 2
    assert len(cache.arguments()["seqlens_kv"]) == 0  # nothing is selected now
    with pytest.raises(ValueError, match="sequence is 0; supported: sequences of this cache."):
        cache.length(parent)


def test_rotary_embedding(normal):
    cache = octavo.KvCache(4, HEADS, DIM, page_size=PAGE, dtype="float32")
    sequence = cache.add_sequence()
    cache.select([sequence])
    k, v = normal(1, HEADS, 20, DIM), normal(1, HEADS, 20, DIM)
    angles = numpy.arange(20 * 8, dtype=numpy.float32).reshape(20, 8) / 10
    cos, sin = numpy.cos(angles), numpy.sin(angles)
    cache.append(k, v, rotary=(cos, sin))
    x, y = k[..., :8], k[..., 8:]
    wanted = numpy.concatenate([x * cos - y * sin, y * cos + x * sin], -1)
    numpy.testing.assert_allclose(cache.read(sequence)[0], wanted, atol=1e-6)
    numpy.testing.assert_array_equal(cache.read(sequence)[1], v)
    for rotary, exception, sentence in (
            (cos, TypeError, "rotary is "), ((cos, sin[:19]), ValueError, "sin is of another shape than cos"),
            ((cos.astype("float64"), sin), TypeError, "cos is of float64; supported: float32."),
            ((cos[:, ::2], sin), ValueError, "cos is of another shape or not contiguous"),
            ((cos, sin), ValueError, "rotary.positions is 20; supported: 40 or more")):
        with pytest.raises(exception) as error:
            cache.append(k, v, rotary=rotary)
        assert str(error.value).startswith(sentence), error.value
    assert cache.length(sequence) == 20


@pytest.mark.parametrize("options, sentence", [
    ({"pages": 0}, "pages is 0; supported: 1 to 2147483647."),
    ({"page_size": 20}, "page_size is 20, the page size; supported: multiples of 16 up to 256."),
    ({"layout": "hbsd"}, "layout is 'hbsd'"),
    ({"dtype": "float64"}, "dtype is "),
    ({"pages_per_sequence": 9}, "pages_per_sequence is 9; supported: 0 (as many as possible) to 4."),
])
def test_options(options, sentence):
    with pytest.raises((ValueError, TypeError)) as error:
        octavo.KvCache(**{"pages": 4, "heads": HEADS, "head_dim": DIM, "dtype": "float32", **options})
    assert str(error.value).startswith(sentence), error.value


def test_emulated_gpu(normal):
    """The kernel that GPUs append with gives the bits of the CPU."""
    caches = [octavo.KvCache(4, HEADS, DIM, page_size=PAGE, dtype="int8", device=x) for x in ("cpu", "emulator:90")]
    assert [x.device for x in caches] == ["cpu", "emulator:90"]
    k, v = normal(1, HEADS, 20, DIM), normal(1, HEADS, 20, DIM)
    for cache in caches:
        cache.select([cache.add_sequence()])
        cache.append(k, v)
    for found, wanted in zip(*(x.read(0) for x in caches)):
        numpy.testing.assert_array_equal(found, wanted)
    with pytest.raises(NotImplementedError, match="dtype is f32 on sm_90; supported here: f16, bf16, int8"):
        octavo.KvCache(4, HEADS, DIM, dtype="float32", device="emulator:90")
    with pytest.raises(NotImplementedError, match="device is cpu; supported here: cuda in advance"):
        caches[0].advance(1)


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_int4(normal, group, layout):
    """A value differs from what was appended by at most half a step of its group, and attention is that over
    the values that read() returns."""
    cache = octavo.KvCache(4, HEADS, 64, page_size=PAGE, dtype="int4", group=group, layout=layout)
    sequence = cache.add_sequence()
    cache.select([sequence])
    given = normal(1, HEADS, 20, 64), normal(1, HEADS, 20, 64)
    cache.append(*given)
    rows = cache.read(sequence)
    for found, values in zip(rows, given):
        grouped = values.reshape(1, HEADS, 20, -1, group)
        step = (grouped.max(-1, keepdims=True) - grouped.min(-1, keepdims=True)) / 15
        assert (numpy.abs(found.reshape(grouped.shape) - grouped) < 0.51 * step + 4e-3).all()
        assert numpy.abs(found - values).max() > 0.05  # four bits do not hold the values
    q = normal(1, 4, 2, 64)
    out = cache.attention(q if layout == "bhsd" else q.swapaxes(1, 2).copy(), causal="bottom_right")
    out = out if layout == "bhsd" else out.swapaxes(1, 2)
    numpy.testing.assert_allclose(out, octavo.attention(q, *rows, causal="bottom_right"), atol=2e-6)
    arguments = cache.arguments()
    assert arguments["k"].format == "int4" and arguments["k"].granularity == "group"
    assert arguments["k"].data.dtype == numpy.uint8 and arguments["k"].data.shape[-1] == 32
    assert arguments["k"].scales.shape == (4, HEADS, 2 * 64 // group, PAGE)


@pytest.mark.parametrize("options, sentence", [
    ({"group": 48}, "group is 48"), ({"head_dim": 48, "group": 64}, "group is 64; supported: 32 or 64, a divisor of the head dimension, here 48.")])
def test_int4_options(options, sentence):
    with pytest.raises((ValueError, NotImplementedError)) as error:
        octavo.KvCache(**{"pages": 4, "heads": HEADS, "head_dim": 64, "dtype": "int4", **options})
    assert str(error.value).startswith(sentence), error.value


def drafts(batch, tokens):
    """A chain of two tokens, and for each further token its parent's keys and itself."""
    words = [1, 3] + [0] * (tokens - 2)
    for i in range(2, tokens):
        words[i] = words[i // 2] | 1 << i
    return numpy.tile(numpy.array(words, numpy.int32), (batch, 1))


def test_draft_tree(normal):
    """The bits hide what a mask of the same keys hides, over dense tensors and over a paged cache."""
    tree = drafts(2, 6)
    q = normal(2, 4, 6, DIM)
    cache = octavo.KvCache(8, HEADS, DIM, page_size=PAGE, dtype="float32")
    sequences = [cache.add_sequence() for _ in range(2)]
    for sequence, length in zip(sequences, (30, 9)):
        cache.select([sequence])
        cache.append(normal(1, HEADS, length, DIM), normal(1, HEADS, length, DIM))
    cache.select(sequences)
    out = cache.attention(q, draft_tree=tree)
    for b, sequence in enumerate(sequences):
        k, v = cache.read(sequence)
        mask = numpy.ones((1, 1, 6, k.shape[2]), bool)
        mask[..., -6:] = tree[b, :, None] >> numpy.arange(6) & 1
        wanted = octavo.attention(q[b:b + 1], k, v, mask=mask)
        numpy.testing.assert_allclose(out[b:b + 1], wanted, atol=2e-6)
        dense = octavo.attention(q[b:b + 1], k, v, draft_tree=tree[b:b + 1])
        numpy.testing.assert_allclose(dense, wanted, atol=2e-6)
    assert not numpy.allclose(out, cache.attention(q, causal="bottom_right"))
    for wrong, exception, sentence in (
            (tree.astype(numpy.int64), TypeError, "draft_tree is of int64; supported: int32."),
            (tree[:, :5], ValueError, "draft_tree is of another shape or not contiguous")):
        with pytest.raises(exception) as error:
            cache.attention(q, draft_tree=wrong)
        assert str(error.value).startswith(sentence), error.value


@pytest.mark.parametrize("device", ["cpu", "emulator:90"])
def test_batch_invariant_bits(normal, device):
    """A sequence has the same bits alone and among others, although other CTAs compute it then."""
    cache = octavo.KvCache(64, HEADS, 64, page_size=PAGE, dtype="float16", device=device)
    for length in (400, 3, 130, 270):
        sequence = cache.add_sequence()
        cache.select([sequence])
        cache.append(normal(1, HEADS, length, 64), normal(1, HEADS, length, 64))
    q = normal(4, 4, 1, 64, dtype=numpy.float16)
    options = {"causal": "bottom_right", "batch_invariant": True, "return_lse": True}
    cache.select([2, 0, 3, 1])
    together = cache.attention(q, **options)
    for slot, sequence in enumerate([2, 0, 3, 1]):
        cache.select([sequence])
        alone = cache.attention(q[slot:slot + 1], **options)
        for one, all_of_them in zip(alone, together):
            numpy.testing.assert_array_equal(one[0], all_of_them[slot])
        k, v = cache.read(sequence)
        wanted = octavo.attention(q[slot:slot + 1].astype(numpy.float32), k, v)
        numpy.testing.assert_allclose(alone[0], wanted, atol=2e-3)


def test_the_arrays_outlive_the_name(normal):
    cache = octavo.KvCache(4, HEADS, DIM, page_size=PAGE, dtype="float16")
    sequence = cache.add_sequence()
    cache.select([sequence])
    rows = normal(1, HEADS, 5, DIM)
    cache.append(rows, rows)
    arguments = cache.arguments()
    del cache
    assert arguments["seqlens_kv"].tolist() == [5]
    page = arguments["page_table"][0, 0]
    numpy.testing.assert_allclose(arguments["k"][page, :, :5], rows[0], atol=2e-3)


# ------------------------------------------------------------------------------------- merge_states


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_merge_states(normal, layout):
    q, k, v = normal(2, 4, 3, DIM), normal(2, 2, 30, DIM), normal(2, 2, 30, DIM)
    if layout == "bshd":
        q, k, v = (numpy.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    keys = 1 if layout == "bshd" else 2
    parts = [octavo.attention(q, *(numpy.take(x, range(*span), keys) for x in (k, v)), return_lse=True,
                              layout=layout) for span in ((0, 11), (11, 30))]
    wanted = octavo.attention(q, k, v, return_lse=True, layout=layout)
    outs, lses = zip(*parts)
    for found in (octavo.merge_states(outs, lses, layout=layout),
                  octavo.merge_states(numpy.stack(outs), numpy.stack(lses), layout=layout)):
        for one, other in zip(found, wanted):
            numpy.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.parametrize("out, lse, exception, sentence", [
    ([], [], ValueError, "out is 0 parts with 0 of lse; supported: the same number, from 1 on."),
    (3, [], TypeError, "out is "),
    ([numpy.zeros((1, 1, 2, 4), "f")], [numpy.zeros((1, 2), "f")], ValueError,
     "lse[0] is of 2 dimensions; supported: (batch, heads, seqlen)."),
    ([numpy.zeros((1, 1, 2, 4), "f")], [numpy.zeros((1, 1, 3), "f")], ValueError, "lses[0].shape is"),
])
def test_merge_states_errors(out, lse, exception, sentence):
    with pytest.raises(exception) as error:
        octavo.merge_states(out, lse)
    assert str(error.value).startswith(sentence), error.value


def test_the_documented_parameters():
    assert "page_table" in inspect.signature(octavo.attention).parameters
    assert "page_table" in inspect.signature(octavo.explain).parameters
    assert list(inspect.signature(octavo.KvCache).parameters)[:3] == ["pages", "heads", "head_dim"]
