# SPDX-License-Identifier: Apache-2.0
"""octavo.distributed on GPUs: two processes over Gloo that share one, NCCL on one, and NCCL on two if there are."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or not torch.distributed.is_available():
    pytest.skip("PyTorch finds no GPU", allow_module_level=True)
import torch.distributed as dist  # noqa: E402

import octavo  # noqa: E402
import octavo.distributed  # noqa: E402
from octavo import _context_parallel as _cp  # noqa: E402
from octavo.distributed import context_parallel, merge_states, shard, unshard  # noqa: E402
from ranks import Ranks  # noqa: E402
from test_distributed import exact, visible  # noqa: E402

SEQLEN, HEADS_Q, HEADS_KV, HEAD_DIM = 512, 8, 4, 64
SETTINGS = [dict(causal=True), dict(causal=True, window=(100, None)), dict(), dict(window=(64, 32)),
            dict(causal=True, sharding="contiguous"), dict(causal=True, cu_seqlens=(0, 100, 101, 400)),
            dict(causal=True, softcap=5.0, sinks=True), dict(causal=True, alibi=True, cu_seqlens=(0, 300, 512))]


# ------------------------------------------------------------------------- functions of the ranks


def draw(heads, seed):
    torch.manual_seed(seed)
    return torch.randn(1, heads, SEQLEN, HEAD_DIM).to("cuda", torch.bfloat16)


def error_of(method, settings):
    """The largest error of out and gradients against fp64, relative to the magnitudes, here and in one process."""
    settings = dict(settings, sharding=settings.get("sharding", "zigzag"))
    inputs = [draw(heads, seed) for seed, heads in enumerate((HEADS_Q, HEADS_KV, HEADS_KV))]
    dout, modifiers = draw(HEADS_Q, 3), {}
    if settings.pop("sinks", False):
        modifiers["sinks"] = torch.linspace(-1, 2, HEADS_Q, device="cuda")
    if settings.pop("alibi", False):
        modifiers["alibi_slopes"] = torch.linspace(0.01, 0.5, HEADS_Q, device="cuda")
    documents = settings.get("cu_seqlens")
    seen = visible(SEQLEN, settings.get("causal", False), settings.get("window"), documents or (0, SEQLEN))
    on_host = {name: x.cpu() for name, x in modifiers.items()}
    wanted, _, *gradients, _ = exact([x.cpu() for x in inputs], dout.cpu(), seen, softcap=settings.get("softcap"),
                                     sinks=on_host.get("sinks"), slopes=on_host.get("alibi_slopes"))
    to_call = (lambda x: x[0].transpose(0, 1)) if documents else (lambda x: x)
    of_call = (lambda x: x.transpose(0, 1).unsqueeze(0)) if documents else (lambda x: x)
    own = [to_call(shard(x, None, 2, settings["sharding"])).contiguous().requires_grad_() for x in inputs]
    out = context_parallel(*own, method=method, sm_margin=8, **settings, **modifiers)
    found = torch.autograd.grad(out, own, to_call(shard(dout, None, 2, settings["sharding"])))
    errors = []
    for one, other in zip((out.detach(), *found), (wanted, *gradients)):
        one = unshard(of_call(one), None, 2, settings["sharding"]).cpu().double()
        errors.append(((one - other).abs().max() / (1 + other.abs().max())).item())
    return max(errors)


def decoded():
    """The largest difference between decode() on all ranks and one process."""
    q, k, v = draw(HEADS_Q, 0)[:, :, :1], draw(HEADS_KV, 1), draw(HEADS_KV, 2)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    sinks = torch.linspace(-1, 2, HEADS_Q, device="cuda")
    part = lambda x: x[:, :, rank::ranks].contiguous()
    lengths = torch.full((1,), SEQLEN // ranks, dtype=torch.int32, device="cuda")
    found = octavo.distributed.decode(q, part(k), part(v), sinks=sinks, seqlens_kv=lengths)
    wanted = octavo.attention(q, k, v, sinks=sinks)
    return (found - wanted).abs().max().item()


def merged():
    q, k, v = draw(HEADS_Q, 0), draw(HEADS_KV, 1), draw(HEADS_KV, 2)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    out, _ = merge_states(*octavo.attention(q, k[:, :, rank::ranks], v[:, :, rank::ranks], return_lse=True),
                          dist.group.WORLD)
    return (out - octavo.attention(q, k, v)).abs().max().item()


def collectives_wait_for_the_stream():
    """Collectives read what a long kernel before them writes, and finish() makes the stream wait for them."""
    group = _cp.Group(dist.group.WORLD.group_name)
    size, rank = group.size, group.rank
    x = torch.zeros(size, 1 << 20, device="cuda")
    torch.cuda._sleep(50_000_000)
    x += 1 + rank
    gathered, exchanged = group.start_gather(x), group.start_exchange(x)
    gathered, exchanged = _cp.finish(gathered) * 2, _cp.finish(exchanged) * 2
    wanted = 2 * torch.arange(1, size + 1, device="cuda", dtype=torch.float32)
    return (torch.equal(exchanged[:, 0], wanted) and torch.equal(gathered[::size, 0], wanted)
            and group.runs_on_sms(x) == (size > 1 and dist.get_backend() == "nccl")
            and group.start_gather(x).result.is_cuda == (dist.get_backend() == "nccl"))


# --------------------------------------------------------------------------------------- the tests


def backends():
    several = torch.cuda.device_count() > 1
    nccl = dist.is_nccl_available()
    return [pytest.param(("gloo", 2), id="gloo, two processes"),
            pytest.param(("nccl", 1), id="nccl, one GPU", marks=pytest.mark.skipif(not nccl, reason="no NCCL")),
            pytest.param(("nccl", 2), id="nccl, two GPUs",
                         marks=pytest.mark.skipif(not (nccl and several), reason="fewer than two GPUs"))]


@pytest.fixture(scope="module", params=backends())
def ranks(request):
    backend, world = request.param
    ranks = Ranks(world, backend, start="spawn")
    yield ranks
    ranks.close()


@pytest.mark.parametrize("method", ["all_gather", "ulysses"])
def test_results_and_gradients(ranks, method):
    for settings in SETTINGS:
        for error in ranks.run(error_of, method, settings):
            assert error < 0.02, settings


def test_decode_and_merge(ranks):
    assert max(ranks.run(decoded) + ranks.run(merged)) < 0.01


def test_collectives_wait_for_the_stream(ranks):
    assert all(ranks.run(collectives_wait_for_the_stream))


def test_sm_margin_changes_no_bits():
    q, k, v = (torch.randn(1, 16, 2048, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    cu_seqlens = torch.tensor([0, 300, 2048], dtype=torch.int32, device="cuda")
    tokens = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
    for causal in (False, True):
        varlen = dict(cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens, max_seqlen_q=1748, max_seqlen_kv=1748,
                      causal=causal)
        wanted, wanted_varlen = octavo.attention(q, k, v, causal=causal), octavo.attention(*tokens, **varlen)
        for margin in (4, 8, 100):
            assert torch.equal(octavo.attention(q, k, v, causal=causal, sm_margin=margin), wanted)
            assert torch.equal(octavo.attention(*tokens, sm_margin=margin, **varlen), wanted_varlen)
