# SPDX-License-Identifier: Apache-2.0
"""KvCache on a GPU: rows have the bits of a cache in host memory, and one CUDA graph serves growing sequences."""

import numpy
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no GPU here", allow_module_level=True)

import octavo  # noqa: E402

HEADS, DIM = 2, 64
DTYPES = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"]


def pair(dtype="float16", dim=DIM, **options):
    """The same cache on the CPU and on the GPU."""
    made = [octavo.KvCache(40, HEADS, dim, page_size=16, dtype=dtype, device=device, **options)
            for device in ("cpu", "cuda")]
    assert made[1].device == "cuda:0"
    return made


def rows(batch, tokens, dim=DIM, dtype=torch.bfloat16):
    return [torch.randn(batch, HEADS, tokens, dim).to(dtype) for _ in range(2)]


def append(caches, k, v, rotary=None, **options):
    caches[0].append(k, v, rotary=rotary, **options)
    on_gpu = None if rotary is None else tuple(x.cuda() for x in rotary)
    caches[1].append(k.cuda(), v.cuda(), rotary=on_gpu, **options)


def select(caches, sequences):
    for cache in caches:
        cache.select(sequences)


def same(caches, sequence):
    for found, wanted in zip(caches[1].read(sequence), caches[0].read(sequence)):
        numpy.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [48, 128, 240])
def test_append(dtype, given, dim):
    torch.manual_seed(1)
    caches = pair(dtype, dim, layout="bshd" if dim == 128 else "bhsd")
    for cache in caches:
        assert [cache.add_sequence() for _ in range(3)] == [0, 1, 2]
    angles = torch.arange(200 * (dim // 2), dtype=torch.float32).reshape(200, dim // 2)
    rotary = angles.cos(), angles.sin()
    select(caches, [0])
    append(caches, *rows(1, 100, dim, given), rotary=rotary)
    select(caches, [2, 0, 1])
    append(caches, *rows(3, 7, dim, given), rotary=rotary, interleaved=True)
    for _ in range(3):
        append(caches, *rows(3, 1, dim, given))
    # Rows that are not aligned to 16 bytes.
    append(caches, *(x[..., 1:] for x in rows(3, 2, dim + 1, given)), rotary=rotary)
    for sequence in range(3):
        same(caches, sequence)
    assert [caches[1].length(x) for x in range(3)] == [112, 12, 12]
    torch.testing.assert_close(caches[1].arguments()["seqlens_kv"].cpu(),
                               torch.tensor([12, 112, 12], dtype=torch.int32))


@pytest.mark.parametrize("dim, group", [(64, 32), (128, 64), (256, 64), (96, 32)])
def test_append_int4(dim, group):
    """Bytes, scales and zeros are those of the CPU, and so is attention over them."""
    torch.manual_seed(5)
    caches = pair("int4", dim, group=group)
    for cache in caches:
        cache.select([cache.add_sequence()])
    append(caches, *rows(1, 50, dim))
    append(caches, *rows(1, 1, dim))
    same(caches, 0)
    for tokens in (1, 4):
        q = torch.randn(1, 4, tokens, dim, dtype=torch.bfloat16)
        wanted = caches[0].attention(q.float(), causal="bottom_right")
        out = caches[1].attention(q.cuda(), causal="bottom_right")
        torch.testing.assert_close(out.cpu().float(), wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_batch_invariant_bits(dtype):
    """A sequence has the same bits alone and among many others."""
    torch.manual_seed(7)
    cache = octavo.KvCache(6000, HEADS, DIM, page_size=16, dtype=dtype, device="cuda")
    lengths = [40000, 3, 700, 5000] + [2000] * 20
    sequences = [cache.add_sequence() for _ in lengths]
    for sequence, length in zip(sequences, lengths):
        cache.select([sequence])
        cache.append(*(x.cuda() for x in rows(1, length)))
    q = torch.randn(len(lengths), 4, 1, DIM, dtype=torch.bfloat16, device="cuda")
    options = {"causal": "bottom_right", "batch_invariant": True, "return_lse": True}
    cache.select(sequences)
    together = cache.attention(q, **options)
    even = cache.attention(q, causal="bottom_right")
    torch.testing.assert_close(together[0], even, atol=2e-2, rtol=2e-2)
    for slot in (0, 1, 2, 3, 23):
        cache.select([sequences[slot]])
        for one, all_of_them in zip(cache.attention(q[slot:slot + 1], **options), together):
            assert torch.equal(one[0], all_of_them[slot])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_draft_tree(dtype):
    torch.manual_seed(6)
    caches = pair(dtype)
    for cache in caches:
        cache.select([cache.add_sequence()])
    append(caches, *rows(1, 90))
    tree = torch.tensor([[1, 3, 5, 0b1011, 0b10101, 0b100011, 0b1000101, 0b10000001]], dtype=torch.int32)
    q = torch.randn(1, 4, 8, DIM, dtype=torch.bfloat16)
    wanted = caches[0].attention(q.float(), draft_tree=tree)
    assert not torch.allclose(wanted, caches[0].attention(q.float(), causal="bottom_right"), atol=2e-2)
    out = caches[1].attention(q.cuda(), draft_tree=tree.cuda())
    torch.testing.assert_close(out.cpu().float(), wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [*DTYPES, "int4"])
def test_decoding_with_forks(dtype):
    torch.manual_seed(2)
    caches = pair(dtype)
    for cache in caches:
        assert cache.add_sequence() == 0
    select(caches, [0])
    append(caches, *rows(1, 90))
    for cache in caches:
        assert cache.fork(0) == 1
    for _ in range(20):
        select(caches, [1, 0])
        append(caches, *rows(2, 1))
        q = torch.randn(2, 4, 1, DIM, dtype=torch.float16 if dtype == "float16" else torch.bfloat16)
        wanted = caches[0].attention(q.float(), causal="bottom_right")
        out = caches[1].attention(q.cuda(), causal="bottom_right")
        torch.testing.assert_close(out.cpu().float(), wanted, atol=2e-2, rtol=2e-2)
    for sequence in (0, 1):
        same(caches, sequence)
    for cache in caches:
        cache.free_sequence(0)
    assert caches[0].free_pages == caches[1].free_pages == 40 - 7


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_one_graph_for_growing_sequences(dtype):
    torch.manual_seed(3)
    steps = 1000
    caches = [octavo.KvCache(400, HEADS, DIM, page_size=16, dtype=dtype, device=device) for device in ("cpu", "cuda")]
    for cache in caches:
        a, b = cache.add_sequence(), cache.add_sequence()
    for sequence, length in ((a, 5), (b, 40)):
        select(caches, [sequence])
        append(caches, *rows(1, length))
    select(caches, [a, b])
    k, v = (torch.empty(2, HEADS, 1, DIM, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    q = torch.empty(2, 4, 1, DIM, dtype=torch.bfloat16, device="cuda")

    def draw():
        for x in (k, v, q):
            x.normal_()

    draw()
    caches[0].append(k.cpu(), v.cpu())
    caches[1].append(k, v)
    caches[1].attention(q)
    caches[1].reserve(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        caches[1].append(k, v)
        out = caches[1].attention(q)
    assert caches[1].length(a) == 6  # nothing has been appended yet
    for step in range(steps):
        draw()
        caches[1].advance(1)
        graph.replay()
        caches[0].append(k.cpu(), v.cpu())
        if step % 50 == 0 or step == steps - 1:
            torch.testing.assert_close(out.cpu().float(), caches[0].attention(q.cpu().float()), atol=2e-2, rtol=2e-2)
    assert caches[1].length(b) == 41 + steps
    for sequence in (a, b):
        same(caches, sequence)


def test_a_graph_without_pages_changes_nothing():
    cache = octavo.KvCache(4, HEADS, DIM, page_size=16, device="cuda")
    sequence = cache.add_sequence()
    cache.select([sequence])
    k, v = (torch.randn(1, HEADS, 15, DIM, dtype=torch.float16, device="cuda") for _ in range(2))
    cache.append(k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache.append(k[:, :, :1], v[:, :, :1])
    graph.replay()
    graph.replay()  # the page has one free row
    assert cache.arguments()["seqlens_kv"].tolist() == [16]
    cache.advance(1)
    for found, given in zip(cache.read(sequence), (k, v)):
        wanted = torch.cat((given, given[:, :, :1]), 2)
        numpy.testing.assert_array_equal(found, wanted.float().cpu())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(NotImplementedError, match="stream is being captured into a graph; supported here: only"):
            cache.append(k[:, :, :1], v[:, :, :1])
        k.add_(0)
    assert cache.length(sequence) == 16


def test_errors():
    cache = octavo.KvCache(4, HEADS, DIM, page_size=16, device="cuda")
    cache.select([cache.add_sequence()])
    k, v = rows(1, 3)
    with pytest.raises(ValueError, match="k is on cpu; supported: cuda:0, where the cache is"):
        cache.append(k, v.cuda())
    with pytest.raises(ValueError, match="v.dtype is f32; supported: bf16, the type of k"):
        cache.append(k.cuda(), v.float().cuda())
    with pytest.raises(ValueError, match="tokens is 65; supported: 0 to 64 for sequence 0"):
        cache.append(*(x.cuda() for x in rows(1, 65)))
    assert cache.free_pages == 4 and cache.length(0) == 0
    with pytest.raises(NotImplementedError, match="dtype is f32 on sm_.*; supported here: f16, bf16"):
        octavo.KvCache(4, HEADS, DIM, dtype="float32", device="cuda")


def test_streams():
    """Every call is ordered by the current stream."""
    caches = pair()
    for cache in caches:
        cache.add_sequence()
    select(caches, [0])
    append(caches, *rows(1, 1))
    torch.cuda.synchronize()
    k, v = rows(1, 33)
    late = [torch.zeros(1, HEADS, 33, DIM, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    given = [x.cuda() for x in (k, v)]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        for to, x in zip(late, given):
            to.copy_(x)
        caches[1].append(*late)
        found = caches[1].read(0)
    caches[0].append(k, v)
    for one, wanted in zip(found, caches[0].read(0)):
        numpy.testing.assert_array_equal(one, wanted)
