# SPDX-License-Identifier: Apache-2.0
"""Block masks in NumPy, on the CPU."""

import numpy
import pytest

import octavo

SIZES = (64, 128)
QUERIES, KEYS = 150, 333


def inputs(normal):
    return normal(2, 4, QUERIES, 16), normal(2, 2, KEYS, 16), normal(2, 2, KEYS, 16)


def random_mask(*shape):
    """Random keys, but whole blocks of hidden and of visible ones too."""
    mask = numpy.random.default_rng(1).random(shape) < 0.5
    mask[..., :128, 128:256] = False
    mask[..., :128, 256:] = True
    mask[..., 140, :] = False
    return mask


def equal(found, wanted):
    """Hidden blocks do not change a bit of what the CPU sums."""
    for one, other in zip(found, wanted):
        numpy.testing.assert_array_equal(numpy.asarray(one), numpy.asarray(other))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [(2, 4, QUERIES, KEYS), (4, QUERIES, KEYS), (QUERIES, KEYS), (2, 1, QUERIES, KEYS)])
def test_from_mask(normal, size, shape):
    q, k, v = inputs(normal)
    mask = random_mask(*shape)
    for causal in (False, "bottom_right"):
        sparse = octavo.attention(q, k, v, return_lse=True, causal=causal,
                                  block_mask=octavo.BlockMask.from_mask(mask, size))
        equal(sparse, octavo.attention(q, k, v, return_lse=True, causal=causal, mask=mask))


@pytest.mark.parametrize("size", SIZES)
def test_from_dense_blocks(normal, size):
    q, k, v = inputs(normal)
    blocks = numpy.random.default_rng(2).random((4, -(-QUERIES // size), -(-KEYS // size))) < 0.5
    mask = blocks.repeat(size, 1).repeat(size, 2)[:, :QUERIES, :KEYS]
    sparse = octavo.attention(q, k, v, return_lse=True, block_mask=octavo.BlockMask.from_dense_blocks(blocks, size))
    equal(sparse, octavo.attention(q, k, v, return_lse=True, mask=mask))


@pytest.mark.parametrize("size", SIZES)
def test_from_ranges(normal, size):
    q, k, v = inputs(normal)
    random = numpy.random.default_rng(3)
    begin, end = numpy.sort(random.integers(0, KEYS + 1, (2, 4, QUERIES, 2)), -1).transpose(3, 0, 1, 2)
    begin[..., :70] = 0
    keys = numpy.arange(KEYS)
    for causal in (False, "bottom_right"):
        mask = (keys >= begin[..., None]) & (keys < end[..., None])
        sparse = octavo.BlockMask.from_ranges(begin, end, KEYS, size, causal=causal)
        equal(octavo.attention(q, k, v, return_lse=True, block_mask=sparse),
              octavo.attention(q, k, v, return_lse=True, mask=mask, causal=causal))
    # A prefix that all queries see, causal behind it; a number holds for all queries.
    queries = numpy.arange(QUERIES)
    prefix = octavo.BlockMask.from_ranges(0, numpy.maximum(queries + 1, 40), KEYS, size)
    mask = keys < numpy.maximum(queries + 1, 40)[:, None]
    equal(octavo.attention(q, k, v, return_lse=True, block_mask=prefix),
          octavo.attention(q, k, v, return_lse=True, mask=mask))
    nothing = octavo.BlockMask.from_ranges(numpy.zeros(QUERIES, int), 0, KEYS, size)
    out, lse = octavo.attention(q, k, v, return_lse=True, block_mask=nothing)
    assert (out == 0).all() and (lse == -numpy.inf).all()


def test_from_ranges_refusals():
    with pytest.raises(ValueError, match="end has 9; supported: 0 to 8, the number of keys."):
        octavo.BlockMask.from_ranges(0, [3, 9], 8)
    with pytest.raises(ValueError, match="begin has -5; supported"):
        octavo.BlockMask.from_ranges([-5, 0], 3, 8)
    with pytest.raises(TypeError, match="end is of float64; supported: integers."):
        octavo.BlockMask.from_ranges(0, [3.5, 9], 8)
    with pytest.raises(ValueError, match="causal is True with 2 queries and 8 keys; supported: 'top_left'"):
        octavo.BlockMask.from_ranges(0, [3, 4], 8, causal=True)
    with pytest.raises(ValueError, match="have 0 dimensions; supported: 1 to 3."):
        octavo.BlockMask.from_ranges(0, 3, 8)
    with pytest.raises(ValueError, match="block_size is 32; supported: 64, 128."):
        octavo.BlockMask.from_ranges(0, [3], 8, 32)
    with pytest.raises(ValueError, match=f"end has {2**62}; supported: 0 to 8"):
        octavo.BlockMask.from_ranges(0, [3, 2**62], 8)
    with pytest.raises(TypeError, match="seqlen_kv is 8.5; supported: integers."):
        octavo.BlockMask.from_ranges(0, [3], 8.5)
    with pytest.raises(ValueError, match="seqlen_kv is -1; supported: 0 to 2.30."):
        octavo.BlockMask.from_ranges(0, [3], -1)
    with pytest.raises(ValueError, match=r"end has the shape \(3,\); supported: .* begin's, \(2,\)."):
        octavo.BlockMask.from_ranges([0, 0], [1, 2, 3], 8)


def test_from_indices(normal):
    q, k, v = inputs(normal)
    mask = octavo.BlockMask.from_indices([[4, 0, 4], [-1, 2, -1], [-1, -1, -1]])
    assert mask.full_kv_num_blocks.tolist() == [[[2, 1, 0]]]
    assert mask.full_kv_indices[0, 0, 0, :2].tolist() == [0, 4]
    blocks = numpy.zeros((3, 6), bool)
    blocks[0, [0, 4]] = blocks[1, 2] = True
    equal(octavo.attention(q, k, v, return_lse=True, block_mask=mask),
          octavo.attention(q, k, v, return_lse=True, block_mask=octavo.BlockMask.from_dense_blocks(blocks, 64)))


def test_refusals(normal):
    q, k, v = inputs(normal)
    mask = octavo.BlockMask.from_mask(random_mask(QUERIES, KEYS), 64)
    with pytest.raises(TypeError, match="block_mask is .*; supported: octavo.BlockMask"):
        octavo.attention(q, k, v, block_mask=numpy.ones((3, 6), bool))
    with pytest.raises(ValueError, match="block_size is 32; supported: 64, 128."):
        octavo.BlockMask.from_mask(random_mask(QUERIES, KEYS), 32)
    with pytest.raises(ValueError, match="block_mask.q_blocks is 3; supported: 2, the blocks of 100 queries."):
        octavo.attention(q[:, :, :100], k, v, block_mask=mask)
    with pytest.raises(NotImplementedError, match="block_mask is given together with padding"):
        octavo.attention(q, k, v, block_mask=mask, seqlens_kv=numpy.array([3, 4], numpy.int32))
    # An additive mask, say, would mean the opposite.
    for wrong in (numpy.zeros((QUERIES, KEYS)), numpy.ones((QUERIES, KEYS), int)):
        with pytest.raises(TypeError, match=f"mask is of {wrong.dtype}; supported: bool."):
            octavo.BlockMask.from_mask(wrong)
    with pytest.raises(TypeError, match="blocks is of float64; supported: bool."):
        octavo.BlockMask.from_dense_blocks(numpy.ones((3, 6)))
    with pytest.raises(TypeError, match="indices is of float64; supported: integers."):
        octavo.BlockMask.from_indices(numpy.zeros((3, 2)))
    # 2^40 in 32 bits would be block 0.
    beyond = octavo.BlockMask.from_indices(numpy.array([[1, 2**40]] * 3))
    with pytest.raises(ValueError, match="an index of block_mask.full_kv_num_blocks.0. is 2147483646"):
        octavo.attention(q, k, v, block_mask=beyond)
    mask.kv_indices[0, 0, 0, 0] = 77
    with pytest.raises(ValueError, match="an index of block_mask.kv_num_blocks.0. is 77"):
        octavo.attention(q, k, v, block_mask=mask)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [(2, 4, QUERIES, KEYS), (QUERIES, KEYS)])
def test_attention_backward(normal, size, shape):
    q, k, v = inputs(normal)
    mask = random_mask(*shape)
    dout, bias = normal(2, 4, QUERIES, 16), normal(1, 4, QUERIES, KEYS)
    options = {"causal": "bottom_right", "bias": bias}
    out, lse = octavo.attention(q, k, v, return_lse=True, mask=mask, **options)
    wanted = octavo.attention_backward(dout, q, k, v, out, lse, mask=mask, return_dbias=True, **options)
    blocks = octavo.BlockMask.from_mask(mask, size)
    found = octavo.attention_backward(dout, q, k, v, out, lse, block_mask=blocks, return_dbias=True, **options)
    equal(found, wanted)
    assert (found[0][:, :, 140] == 0).all() and (found[1] != 0).any()
    with pytest.raises(TypeError, match="block_mask is .*; supported: octavo.BlockMask"):
        octavo.attention_backward(dout, q, k, v, out, lse, block_mask=mask)
