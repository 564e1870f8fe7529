# SPDX-License-Identifier: Apache-2.0
"""KV caches of PyTorch tensors, on the CPU; test_kv_cache.py has them in NumPy."""

import numpy
import pytest

import octavo
from test_kv_cache import DIM, HEADS, PAGE, expected, paged

torch = pytest.importorskip("torch")

import octavo.torch  # noqa: E402
from octavo.distributed import merge_states  # noqa: E402


def test_paged(normal):
    q, k, v, *cache, table, lengths = paged(normal)
    wanted = expected(q, k, v, causal="bottom_right")[0]
    tensors = [torch.from_numpy(x) for x in (q, *cache, table, lengths)]

    def run(q, k, v, table, lengths):
        return octavo.attention(q, k, v, page_table=table, seqlens_kv=lengths, causal="bottom_right")

    numpy.testing.assert_array_equal(run(*tensors), wanted)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    numpy.testing.assert_array_equal(compiled(*tensors), wanted)
    q = tensors[0].clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="page_table is given for tensors that require grad|seqlens_kv is"):
        run(q, *tensors[1:])
    with pytest.raises(NotImplementedError, match="page_table is given under vmap"):
        torch.vmap(run, in_dims=(0, None, None, None, None))(tensors[0][None], *tensors[1:])
    with pytest.raises(Exception, match="causal is True with a page_table"):  # Dynamo wraps the ValueError
        torch.compile(lambda *a: octavo.attention(a[0], a[1], a[2], page_table=a[3], seqlens_kv=a[4], causal=True),
                      backend="aot_eager")(*tensors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_cache(dtype):
    torch.manual_seed(3)
    cache = octavo.KvCache(8, HEADS, DIM, page_size=PAGE, dtype=getattr(torch, dtype))
    sequence = cache.add_sequence()
    cache.select([sequence])
    k, v = torch.randn(1, 20, HEADS, DIM).transpose(1, 2), torch.randn(1, HEADS, 20, DIM)
    cache.append(k, v)
    q = torch.randn(1, 4, 1, DIM)
    out = cache.attention(q)
    assert isinstance(out, torch.Tensor)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(out, wanted, atol=2e-6 if dtype == "float32" else 3e-2, rtol=1e-5)


def test_merge_states():
    out, lse = torch.randn(3, 2, 4, 5, 8), torch.randn(3, 2, 4, 5)
    for found, wanted in zip(octavo.merge_states(out, lse), merge_states(out, lse)):
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found, wanted)
    for layout in ("bhsd", "bshd"):  # what tensors on a GPU are merged with
        x = out if layout == "bhsd" else out.transpose(2, 3).contiguous()
        for found, wanted in zip(octavo._merge_states.merge_tensors(x, lse, layout),
                                 octavo.merge_states(x, lse, layout=layout)):
            torch.testing.assert_close(found, wanted)
