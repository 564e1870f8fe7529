# SPDX-License-Identifier: Apache-2.0
"""Block masks of PyTorch tensors and of FlexAttention, on the CPU; test_block_mask.py has them in NumPy."""

import numpy
import pytest

import octavo
from test_block_mask import KEYS, QUERIES, SIZES, equal, random_mask

torch = pytest.importorskip("torch")

import octavo.torch  # noqa: E402, F401


def tensors():
    torch.manual_seed(0)
    return [torch.randn(2, heads, rows, 16) for heads, rows in ((4, QUERIES), (2, KEYS), (2, KEYS))]


def test_blocks_of_masks_and_indices(normal):
    q, k, v = tensors()
    mask = torch.from_numpy(random_mask(4, QUERIES, KEYS))
    for size in SIZES:
        sparse = octavo.attention(q, k, v, return_lse=True, block_mask=octavo.BlockMask.from_mask(mask, size))
        equal(sparse, octavo.attention(q, k, v, return_lse=True, mask=mask))
        of_numpy = octavo.BlockMask.from_mask(mask.numpy(), size)
        of_torch = octavo.BlockMask.from_mask(mask, size)
        numpy.testing.assert_array_equal(of_numpy.bits, of_torch.bits.numpy())
    blocks = torch.rand(3, 6) < 0.5
    equal([octavo.attention(q, k, v, block_mask=octavo.BlockMask.from_dense_blocks(blocks, 64))],
          [octavo.attention(q, k, v, block_mask=octavo.BlockMask.from_dense_blocks(blocks.numpy(), 64))])
    picks = torch.tensor([[4, 0, 4], [-1, 2, -1], [5, 4, 3]])
    equal([octavo.attention(q, k, v, block_mask=octavo.BlockMask.from_indices(picks))],
          [octavo.attention(q, k, v, block_mask=octavo.BlockMask.from_indices(picks.numpy()))])


def test_from_ranges():
    end = torch.arange(1, QUERIES + 1)
    for_numpy = octavo.BlockMask.from_ranges(0, end.numpy(), KEYS, 64)
    for_torch = octavo.BlockMask.from_ranges(torch.zeros_like(end), end, KEYS, 64)
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "bit_indices", "bits"):
        assert isinstance(getattr(for_torch, name), torch.Tensor)
        numpy.testing.assert_array_equal(getattr(for_torch, name).numpy(), getattr(for_numpy, name))
    # Without full blocks, whose list then has no columns.
    narrow = octavo.BlockMask.from_ranges(torch.full((64,), 10), 20, 64, 64)
    assert narrow.full_kv_indices.shape == (1, 1, 1, 0)
    q = torch.randn(1, 2, 64, 16)
    keys = torch.arange(64)
    mask = ((keys >= 10) & (keys < 20)).expand(64, 64)
    torch.testing.assert_close(octavo.attention(q, q, q, block_mask=narrow), octavo.attention(q, q, q, mask=mask))


COMPILED = {
    "eager": lambda call: call,
    "aot_eager": lambda call: torch.compile(call, backend="aot_eager", fullgraph=True),
}


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("size", SIZES)
def test_gradients(compiled, size):
    torch._dynamo.reset()
    mask = torch.from_numpy(random_mask(4, QUERIES, KEYS))
    blocks = octavo.BlockMask.from_mask(mask, size)
    bias = torch.randn(4, QUERIES, KEYS)
    dout = torch.randn(2, 4, QUERIES, 16)

    def gradients(call):
        given = [x.requires_grad_() for x in (*tensors(), bias.clone())]
        return torch.autograd.grad(call(*given), given, dout)

    def sparse(q, k, v, bias):
        return octavo.attention(q, k, v, bias=bias, block_mask=blocks)

    equal(gradients(COMPILED[compiled](sparse)),
          gradients(lambda q, k, v, bias: octavo.attention(q, k, v, bias=bias, mask=mask)))


def test_the_operators():
    q, k, v = tensors()
    mask = torch.from_numpy(random_mask(QUERIES, KEYS))
    blocks = octavo.BlockMask.from_mask(mask, 64)
    fields = {"block_size": 64} | {name: getattr(blocks, name) for name in (
        "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "bit_indices", "bits")}
    out, lse = torch.ops.octavo.attention_lse(q, k, v, **fields)
    equal((out, lse), octavo.attention(q, k, v, return_lse=True, mask=mask))
    torch.library.opcheck(torch.ops.octavo.attention, [x.clone().requires_grad_() for x in (q, k, v)], fields)
    dout = torch.randn_like(out)
    torch.library.opcheck(torch.ops.octavo.attention_backward, (dout, q, k, v, out, lse), fields)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        found = octavo.attention_backward(dout, q, k, v, out, lse, block_mask=blocks)
    equal(found, octavo.attention_backward(dout, q, k, v, out, lse, mask=mask))
    fields.pop("block_size")
    with pytest.raises(ValueError, match="block_mask.block_size is 0; supported: 64, 128."):
        torch.ops.octavo.attention(q, k, v, **fields)


def test_vmap():
    q, k, v = (x.unsqueeze(0).repeat(3, 1, 1, 1, 1) for x in tensors())
    mask = torch.from_numpy(random_mask(QUERIES, KEYS))
    shared = octavo.BlockMask.from_mask(mask, 64)
    found = torch.func.vmap(lambda *x: octavo.attention(*x, block_mask=shared))(q, k, v)
    equal(found, [octavo.attention(*one, mask=mask) for one in zip(q, k, v)])
    of_entries = octavo.BlockMask.from_mask(mask.expand(2, 4, QUERIES, KEYS), 64)
    with pytest.raises(NotImplementedError, match="block_mask has entries of a batch or is mapped by vmap"):
        torch.func.vmap(lambda *x: octavo.attention(*x, block_mask=of_entries))(q, k, v)


def test_refusals():
    q, k, v = tensors()
    mask = octavo.BlockMask.from_dense_blocks(torch.ones(3, 6, dtype=torch.bool), 64)
    with pytest.raises(TypeError, match="mask is of torch.float32; supported: bool."):
        octavo.BlockMask.from_mask(torch.zeros(QUERIES, KEYS))
    small = octavo.BlockMask.from_indices(torch.tensor([[4, 0]] * 3, dtype=torch.uint8))
    assert small.full_kv_indices[0, 0].tolist() == [[0, 4]] * 3
    q.requires_grad_(True)
    with pytest.raises(TypeError, match="block_mask is .*; supported: octavo.BlockMask"):
        octavo.attention(q, k, v, block_mask=torch.ones(3, 6, dtype=torch.bool))
    with pytest.raises(NotImplementedError, match="draft_tree is given for tensors that require grad"):
        octavo.attention(q, k, v, block_mask=mask, draft_tree=torch.ones(2, QUERIES, dtype=torch.int32))
    with pytest.raises(NotImplementedError, match="block_mask is given together with cu_seqlens"):
        starts = torch.tensor([0, QUERIES], dtype=torch.int32)
        octavo.attention(q[0].transpose(0, 1), q[0].transpose(0, 1), q[0].transpose(0, 1), block_mask=mask,
                         cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=QUERIES, max_seqlen_kv=QUERIES)


@pytest.mark.parametrize("size", SIZES)
def test_from_flex(size):
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q, k, v = tensors()
    document = torch.arange(KEYS) // 90

    def visible(b, h, i, j):
        return (document[i] == document[j]) | (j < 20 * h)

    made = flex.create_block_mask(visible, None, 4, QUERIES, KEYS, device="cpu", BLOCK_SIZE=size)
    sparse = octavo.attention(q, k, v, block_mask=octavo.BlockMask.from_flex(made))
    h, i, j = torch.meshgrid(torch.arange(4), torch.arange(QUERIES), torch.arange(KEYS), indexing="ij")
    equal([sparse], [octavo.attention(q, k, v, mask=visible(0, h, i, j))])
    other = flex.create_block_mask(visible, None, 4, QUERIES, KEYS, device="cpu", BLOCK_SIZE=32)
    with pytest.raises(ValueError, match="BLOCK_SIZE is .32, 32.; supported"):
        octavo.BlockMask.from_flex(other)
