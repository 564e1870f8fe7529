# SPDX-License-Identifier: Apache-2.0
"""octavo.distributed: ranks together compute what one process computes, and errors reach every rank."""

import datetime
import os
import random
import time

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("PyTorch has no Gloo", allow_module_level=True)
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import octavo  # noqa: E402
import octavo.distributed  # noqa: E402
from octavo import _context_parallel as _cp  # noqa: E402
from octavo import _sequence_shards as shards  # noqa: E402
from octavo._context_parallel import sum_in_order  # noqa: E402
from octavo.distributed import context_parallel, merge_states, positions, shard, unshard  # noqa: E402
from ranks import Ranks  # noqa: E402

LIMIT = 2e-5  # float32, relative to the largest magnitude


@pytest.fixture(scope="module")
def four():
    ranks = Ranks(4)
    ranks.run(make_groups)
    yield ranks
    ranks.close()


# ------------------------------------------------------------------------- functions of the ranks

GROUPS = {}


def make_groups():
    """Groups of 4 and of 2 ranks, and a mesh of 2 x 2; ranks 0 and 1, and ranks 2 and 3, are pairs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    GROUPS.update({"4": None, "2": mesh["inner"].get_group(), "mesh": mesh, "line": mesh["inner"]})


def visible(seqlen, causal, window, documents):
    """(seqlen, seqlen): True for the keys that a row sees."""
    row, key = torch.arange(seqlen)[:, None], torch.arange(seqlen)[None, :]
    left, right = (None if side in (None, -1) else side for side in window or (None, None))
    seen = torch.ones(seqlen, seqlen, dtype=torch.bool)
    seen &= (key <= row) if causal else True
    seen &= (key >= row - left) if left is not None else True
    seen &= (key <= row + right) if right is not None else True
    number = torch.searchsorted(torch.tensor(documents), torch.arange(seqlen), right=True)
    inside = number < len(documents)
    return seen & (number[:, None] == number[None, :]) & inside[:, None]


def exact(inputs, dout, seen, scale=None, softcap=None, sinks=None, slopes=None):
    """out, lse and the gradients in fp64, as (batch, heads, seqlen, head_dim); the last is that of the sinks."""
    q, k, v = (x.detach().double().requires_grad_() for x in inputs)
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ keys.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    s = softcap * (s / softcap).tanh() if softcap else s
    if slopes is not None:
        place = torch.arange(q.shape[2])
        s = s - slopes.double().reshape(-1, q.shape[1], 1, 1) * (place[:, None] - place[None, :]).abs()
    s = s.masked_fill(~seen, -1e30)
    # Without sinks the last column is a key that no row sees.
    ends = torch.full((q.shape[1],), -1e30) if sinks is None else sinks
    ends = ends.detach().double().requires_grad_()
    s = torch.cat((s, ends.reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)), -1)
    out = (s.softmax(-1)[..., :-1] * seen) @ values
    lse = torch.where(seen.any(-1), s.logsumexp(-1), -torch.inf)
    return [x.detach() for x in (out, lse, *torch.autograd.grad(out, (q, k, v, ends), dout.double()))]


def draw_problem(draw, name):
    """Random sizes and settings for a group of GROUPS."""
    ranks = {"4": 4, "2": 2, "mesh": 4, "line": 2}[name]
    heads_kv, group = draw.choice([(1, 1), (1, 4), (2, 2), (2, 4), (4, 1), (3, 4), (6, 2), (4, 3), (1, 8)])
    ulysses = {"mesh": 2}.get(name, ranks)
    methods = ["auto"] + ["all_gather"] * (name != "mesh")
    if heads_kv * group % ulysses:
        methods = ["all_gather"] if name != "mesh" else []
    elif name != "mesh":
        methods.append("ulysses")
    seqlen = 2 * ranks * draw.randint(1, 9)
    documents = None
    if draw.random() < 0.5:
        documents = (0, *sorted(draw.randint(0, seqlen) for _ in range(draw.randint(1, 5))))
        documents = (*documents, seqlen) if draw.random() < 0.5 else documents
    sides = [None, -1, 0, 1, 3, draw.randint(0, seqlen)]
    if not methods:
        return None
    problem = dict(
        method=draw.choice(methods), causal=draw.random() < 0.6, cu_seqlens=documents,
        window=draw.choice([None, (draw.choice(sides), draw.choice(sides))]),
        sharding=draw.choice(shards.SHARDINGS), scale=draw.choice([None, 0.3]), chunks=draw.choice([1, 2, 4]),
        layout=draw.choice(["bhsd", "bshd"]), sizes=(draw.choice([1, 2]), heads_kv * group, heads_kv, seqlen,
                                                     draw.choice([8, 16])),
        softcap=draw.choice([None, None, 0, 1.5]), sinks=draw.random() < 0.3, alibi=draw.choice([0, 0, 1, 2]))
    gathers = name == "mesh" or problem["method"] == "all_gather" or "ulysses" not in methods
    if gathers and shards.Mask.of(problem["causal"], problem["window"]).right != 0:
        problem["alibi"] = 0  # refused
    return problem


def draw_modifiers(settings, batch, heads_q):
    """Replaces what draw_problem says of the modifiers by their tensors."""
    if settings.pop("sinks"):
        settings["sinks"] = torch.randn(heads_q).requires_grad_()
    dimensions = settings.pop("alibi")
    if dimensions:
        shape = (heads_q,) if dimensions == 1 or settings["cu_seqlens"] is not None else (batch, heads_q)
        settings["alibi_slopes"] = torch.rand(shape)


def local(x, group, settings, transposed):
    """This rank's part of (batch, heads, seqlen, head_dim), in the layout of the call."""
    x = shard(x, group, 2, settings["sharding"])
    return x[0].transpose(0, 1) if settings["cu_seqlens"] is not None else x.transpose(1, 2) if transposed else x


def whole(x, group, settings, transposed):
    if settings["cu_seqlens"] is not None:
        x = x.transpose(0, 1).unsqueeze(0)
    elif transposed:
        x = x.transpose(1, 2)
    return unshard(x, group, 2, settings["sharding"])


def error_of(problem, name):
    """The largest error of out, lse and gradients, relative to the magnitudes."""
    settings, group = dict(problem), GROUPS[name]
    batch, heads_q, heads_kv, seqlen, head_dim = settings.pop("sizes")
    batch = 1 if settings["cu_seqlens"] is not None else batch
    transposed = settings["layout"] == "bshd"
    q, dout = (torch.randn(batch, heads_q, seqlen, head_dim) for _ in range(2))
    k, v = (torch.randn(batch, heads_kv, seqlen, head_dim) for _ in range(2))
    draw_modifiers(settings, batch, heads_q)
    sinks = settings.get("sinks")
    seen = visible(seqlen, settings["causal"], settings["window"], settings["cu_seqlens"] or (0, seqlen))
    *wanted, dsinks = exact((q, k, v), dout, seen, settings["scale"], settings["softcap"], sinks,
                            settings.get("alibi_slopes"))
    own = [local(x, group, settings, transposed).clone().requires_grad_() for x in (q, k, v)]
    out, lse = context_parallel(*own, group, return_lse=True, **settings)
    gradients = torch.autograd.grad(out, own + ([] if sinks is None else [sinks]),
                                    local(dout, group, settings, transposed))
    found = [whole(x, group, settings, transposed) for x in (out, *gradients[:3])]
    if sinks is not None:  # the sum over the ranks of a group, or of both dimensions of a mesh
        for one in ([group.get_group(i) for i in range(group.ndim)] if hasattr(group, "ndim") else [group]):
            dist.all_reduce(gradients[3], group=one)
        found.append(gradients[3])
        wanted.append(dsinks)
    lse = unshard(lse if settings["cu_seqlens"] is None else lse.unsqueeze(0), group, 2, settings["sharding"])
    same = lse == wanted[1]  # -inf
    errors = [torch.where(same, 0, (lse - wanted[1]).abs()).max()]
    for one, other in zip(found, (wanted[0], *wanted[2:])):
        errors.append((one - other).abs().max() / (1 + other.abs().max()))
    return max(x.item() for x in errors)


def random_problems(name, seed, count):
    draw = random.Random(f"{name} {seed}")  # the same on every rank
    results = []
    while len(results) < count:
        problem = draw_problem(draw, name)
        if problem:
            results.append((error_of(problem, name), problem))
    return max(results, key=lambda result: result[0])


def small(heads_q=4, heads_kv=2, seqlen=32, batch=2, head_dim=16, dtype=torch.float32):
    torch.manual_seed(3)
    return [torch.randn(batch, h, seqlen, head_dim).to(dtype) for h in (heads_q, heads_kv, heads_kv, heads_q)]


def results_of(call, group=None, sharding="zigzag"):
    """out and gradients of the whole sequence, from call(q, k, v) on shards."""
    *inputs, dout = small()
    own = [shard(x, group, 2, sharding).requires_grad_() for x in inputs]
    out = call(*own)
    gradients = torch.autograd.grad(out, own, shard(dout, group, 2, sharding))
    return [unshard(x, group, 2, sharding) for x in (out, *gradients)]


def one_process(**modifiers):
    *inputs, dout = small()
    own = [x.requires_grad_() for x in inputs]
    out = octavo.attention(*own, causal=True, **modifiers)
    return [out.detach(), *torch.autograd.grad(out, own, dout)]


def largest_error(found, wanted):
    return max((one - other).abs().max().item() for one, other in zip(found, wanted))


def repeated(name):
    """Bits of two calls, of which the second has one rank that comes late."""
    group, method = GROUPS[name], "auto" if name == "mesh" else "all_gather"
    call = lambda q, k, v: context_parallel(q, k, v, group, causal=True, method=method)
    first = results_of(call, group)
    sum(range(2_000_000 * (dist.get_rank() % 2)))
    second = results_of(call, group)
    return all(torch.equal(one, other) for one, other in zip(first, second))


def compiled(name, method):
    group = GROUPS[name]
    torch._dynamo.reset()
    modifiers = dict(softcap=3.0, sinks=torch.linspace(-1, 1, 4), alibi_slopes=torch.linspace(0, 1, 4))
    call = torch.compile(lambda q, k, v: context_parallel(2 * q, k, v, group, causal=True, method=method,
                                                          scale=0.125, **modifiers),
                         backend="aot_eager", fullgraph=True)
    return largest_error(results_of(call, group), one_process(**modifiers))


def transposed_in_memory():
    """q, k and v whose last dimension is not contiguous."""
    swap = lambda x: x.transpose(2, 3).contiguous().transpose(2, 3)
    call = lambda q, k, v: context_parallel(swap(q), swap(k), swap(v), causal=True, method="all_gather")
    return largest_error(results_of(call), one_process())


def alone():
    """A group of one rank."""
    group, _ = dist.new_subgroups(1)
    call = lambda q, k, v: context_parallel(q, k, v, group, causal=True)
    return largest_error(results_of(call, group), one_process())


def checkpointed():
    call = lambda q, k, v: context_parallel(q, k, v, causal=True)
    return largest_error(results_of(lambda *x: checkpoint(call, *x, use_reentrant=False)), one_process())


def dtensors(shape, names, placements):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    *inputs, dout = (distribute_tensor(x, mesh, placements) for x in small())
    own = [x.requires_grad_() for x in inputs]
    out = context_parallel(*own, causal=True, sharding="contiguous")
    out.backward(dout)
    assert out.placements == own[0].placements and out.shape == own[0].shape
    return largest_error([x.full_tensor() for x in (out, *(x.grad for x in own))], one_process())


def under_autocast():
    q, k, v, _ = small()
    with torch.autocast("cpu", torch.bfloat16):
        out = context_parallel(*(shard(x, None, 2) for x in (q, k, v)), causal=True)
    whole = unshard(out, None, 2)
    wanted = octavo.attention(q, k, v, causal=True)
    return str(out.dtype), (whole - wanted).abs().max().item()


def bfloat16_gradients():
    """The root mean square error of dq, dk and dv in bfloat16 on 4 ranks, over that in one process."""
    *inputs, dout = small(dtype=torch.bfloat16, seqlen=128)
    seen = visible(128, True, None, (0, 128))
    _, _, *wanted, _ = exact(inputs, dout, seen)
    single = [x.requires_grad_() for x in inputs]
    single = torch.autograd.grad(octavo.attention(*single, causal=True), single, dout)
    own = [shard(x.detach(), None, 2).requires_grad_() for x in inputs]
    out = context_parallel(*own, causal=True, method="all_gather")
    found = [unshard(x, None, 2) for x in torch.autograd.grad(out, own, shard(dout, None, 2))]
    rms = lambda one, other: (one - other).square().mean().sqrt().item()
    return [rms(one, exact) / rms(other, exact) for one, other, exact in zip(found, single, wanted)]


def merged_over_ranks():
    """Whether merging over ranks has the bits of merging in one process, and its error."""
    q, k, v, _ = small(heads_q=4, heads_kv=2)
    rank, size = dist.get_rank(), k.shape[2] // 4
    part = lambda i: octavo.attention(q, k[:, :, size * i:size * (i + 1)], v[:, :, size * i:size * (i + 1)],
                                      return_lse=True)
    sum(range(1_000_000 * (3 - rank)))  # ranks arrive in another order
    found = merge_states(*part(rank), dist.group.WORLD)
    alone = merge_states(*zip(*(part(i) for i in range(4))))
    wanted = octavo.attention(q, k, v, return_lse=True)
    return all(torch.equal(*x) for x in zip(found, alone)), largest_error(found, wanted)


def decode_problem(layout, paged):
    """q, the whole k and v, which keys each of four ranks has of each sequence, and sinks."""
    q, k, v, _ = small(heads_q=4, heads_kv=2, seqlen=32, batch=3)
    q = q[:, :, :2]
    owner = torch.randint(0, 4, (3, 32))
    owner[1] = 2  # one rank has all keys of this sequence, and the others none
    if paged:
        owner[0, owner[0] == 0] = 1  # rank 0, which has the sinks, has none of this one
    return q, k, v, owner, torch.randn(4)


def decoded(layout, paged, sinks):
    """The result of decode() on four ranks, and that of one process."""
    q, k, v, owner, ends = decode_problem(layout, paged)
    mine = owner == dist.get_rank()
    settings = dict(softcap=5.0, scale=0.4, sinks=ends if sinks else None)
    lengths = mine.sum(1).int()
    own = [torch.full((3, 2, 32, 16), torch.nan) for _ in range(2)]
    for b in range(3):
        for part, x in zip(own, (k, v)):
            part[b, :, :lengths[b]] = x[b][:, mine[b]]
    if paged:  # pages of 16 keys, of which each sequence has two
        own = [x.unflatten(2, (2, 16)).transpose(1, 2).flatten(0, 1).contiguous() for x in own]
        settings["page_table"] = torch.arange(6, dtype=torch.int32).reshape(3, 2)
    swap = lambda x: x.transpose(1, 2) if layout == "bshd" else x
    sum(range(500_000 * (3 - dist.get_rank())))  # ranks arrive in another order
    own = own if paged else [swap(x) for x in own]
    out, lse = octavo.distributed.decode(swap(q), *own, seqlens_kv=lengths, layout=layout, return_lse=True, **settings)
    settings.pop("page_table", None)
    wanted = octavo.attention(q, k, v, return_lse=True, **settings)
    return largest_error((swap(out), lse), wanted), unshard(out.flatten(1)[:, None], None, 1, "contiguous")


def backend_of_cuda():
    group = _cp.Group(dist.group.WORLD.group_name)
    return group._sends_cuda_by("gloo"), group._sends_cuda_by("nccl")


def decode_refused(what):
    q, k, v, _ = small(heads_q=4, heads_kv=2, seqlen=8)
    settings = {}
    if what == "gradient":
        q.requires_grad_()
    elif what == "layout":
        settings["layout"] = "sbhd"
    elif dist.get_rank() == 1:
        if what == "dtype":
            q, k, v = (x.bfloat16() for x in (q, k, v))
        elif what == "scale":
            settings["scale"] = 2.0
        elif what == "lengths":
            settings["seqlens_kv"] = torch.tensor([9, 9], dtype=torch.int32)
    octavo.distributed.decode(q, k, v, **settings)


def order_of_work(backward):
    """What one call starts: "gather", "exchange" (of dK and dV) and "attention", in order."""
    events = []

    def told(module, name, event):
        unchanged = getattr(module, name)
        undo.append(lambda: setattr(module, name, unchanged))
        setattr(module, name, lambda *given, **options: events.append(event) or unchanged(*given, **options))

    own = [shard(x, None, 2).requires_grad_() for x in small(heads_q=6, heads_kv=3)[:3]]
    undo = []
    told(dist, "all_gather_into_tensor", "gather")
    told(dist, "all_to_all_single", "exchange")
    told(octavo, "attention_backward" if backward else "attention", "attention")
    try:
        out = context_parallel(*own, sharding="contiguous", method="all_gather", check=False)
        if backward:
            events.clear()
            out.sum().backward()
    finally:
        for step in undo:
            step()
    return events


def margins():
    """sm_margin of every call of octavo.attention, if NCCL shared the SMs."""
    unchanged, seen = octavo.attention, []
    own = [shard(x, None, 2) for x in small(heads_q=6, heads_kv=3)[:3]]
    octavo.attention = lambda *x, sm_margin, **options: seen.append(sm_margin) or unchanged(*x, **options)
    real, _cp.Group.runs_on_sms = _cp.Group.runs_on_sms, lambda group, x: group.size > 1
    told = []
    try:
        for settings in (dict(), dict(sm_margin=4), dict(chunks=1), dict(method="ulysses")):
            if settings.get("method"):
                own = [x[:, :1].repeat(1, 4, 1, 1) for x in own]
            settings = dict(method="all_gather", sharding="contiguous") | settings
            context_parallel(*own, **settings)
            told.append(octavo.distributed.explain(*own, **settings).sm_margin)
    finally:
        octavo.attention, _cp.Group.runs_on_sms = unchanged, real
    return seen, told


def round_trips(name):
    group = GROUPS[name]
    x = torch.arange(48).reshape(1, 48)
    own = positions(48, group)
    for sharding in shards.SHARDINGS:
        part = shard(x, group, 1, sharding)
        assert torch.equal(unshard(part, group, 1, sharding), x)
        assert torch.equal(part[0], positions(48, group, sharding))
    return own.tolist(), positions(48, group, cu_seqlens=(0, 10, 40)).tolist()


def different(what):
    """A call with one argument that is different on rank 3."""
    q, k, v, _ = (shard(x, None, 2) for x in small())
    settings = dict(causal=True)
    if dist.get_rank() == 3:
        if what == "batch":
            q, k, v = (x[:1] for x in (q, k, v))
        elif what == "dtype":
            q, k, v = (x.bfloat16() for x in (q, k, v))
        elif what == "causal":
            settings["causal"] = False
        elif what == "odd":
            q, k, v = (x[:, :, 1:] for x in (q, k, v))
        elif what == "gradient":
            q.requires_grad_()
        elif what == "type":
            settings["chunks"] = "4"
        elif what == "documents":
            settings["cu_seqlens"] = ("0", "9")
    group = GROUPS["mesh"] if what.startswith("mesh") else None
    if what == "mesh" and dist.get_rank() == 3:
        q, k, v = (x[:1] for x in (q, k, v))
    context_parallel(q, k, v, group, **settings)


def refused(settings, shapes=None, name="4"):
    settings = {name: getattr(torch, x[0])(*x[1:]) if isinstance(x, tuple) and isinstance(x[0], str) else x
                for name, x in settings.items()}
    q, k, v, _ = small(**(shapes or {}))
    if settings.get("cu_seqlens") is not None:
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    context_parallel(q, k, v, GROUPS[name], **settings)


def outside_of_group(mesh):
    group = DeviceMesh("cpu", [0, 1]) if mesh else dist.new_group([0, 1])
    if dist.get_rank() < 2:
        return "in it"
    q, k, v, _ = small()
    context_parallel(q, k, v, group)


def stalls(call):
    """A group whose rank 1 does not take part: its error after the time-out of a second, or "stalled"."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    dist.barrier(group)
    if dist.get_rank() == 1:
        return "stalled", 0
    q, k, v, _ = small()
    began = time.monotonic()
    try:
        if call == "decode":
            octavo.distributed.decode(q, k, v, group)
        elif call == "merge_states":
            merge_states(*octavo.attention(q, k, v, return_lse=True), group)
        else:
            q, k, v = (shard(x, group, 2) for x in (q, k, v))
            context_parallel(q, k, v, group, method=call, check=False)
    except RuntimeError:  # DistBackendError is one
        return "error", time.monotonic() - began
    return "no error", 0


def sent_bytes(name, method):
    """What explain says one rank sends, and what it sends: (forward, backward) each."""
    group = GROUPS[name]
    sent = [0, 0]
    unchanged = (dist.all_gather_into_tensor, dist.all_to_all_single)

    def counted(collective, phase):
        def call(received, x, group, **options):
            ranks = dist.get_world_size(group)
            sent[phase] += x.nbytes * (ranks - 1) // (ranks if collective is unchanged[1] else 1)
            return collective(received, x, group=group, **options)
        return call

    q, k, v, dout = (shard(x, group, 2) for x in small(heads_q=8))
    own = [x.requires_grad_() for x in (q, k, v)]
    try:
        dist.all_gather_into_tensor, dist.all_to_all_single = (counted(x, 0) for x in unchanged)
        out = context_parallel(*own, group, method=method, check=False)
        dist.all_gather_into_tensor, dist.all_to_all_single = (counted(x, 1) for x in unchanged)
        out.backward(dout)
    finally:
        dist.all_gather_into_tensor, dist.all_to_all_single = unchanged
    told = octavo.distributed.explain(*own, group, method=method)
    return (told.sent_bytes_forward, told.sent_bytes_backward), tuple(sent)


def explained(heads_q, heads_kv, settings):
    q, k, v, _ = (shard(x, None, 2) for x in small(heads_q=heads_q, heads_kv=heads_kv))
    told = octavo.distributed.explain(q, k, v, **settings)
    return told.method, told.reason, max(told.work)


def end_one_rank_in_backward():
    own = [shard(x, None, 2).requires_grad_() for x in small()[:3]]
    out = context_parallel(*own, check=False)
    if dist.get_rank() == 1:
        os._exit(1)
    out.sum().backward()


def end_one_rank():
    q, k, v, _ = (shard(x, None, 2) for x in small())
    context_parallel(q, k, v, check=False)
    if dist.get_rank() == 1:
        os._exit(1)
    context_parallel(q, k, v, check=False)


# --------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("name", ["4", "2", "mesh", "line"])
def test_random_problems(four, name):
    """out, lse and gradients are those of fp64 attention: masks, GQA, documents, shardings, methods."""
    for error, problem in four.run(random_problems, name, 0, 20):
        assert error < LIMIT, problem


@pytest.mark.parametrize("name", ["4", "mesh"])
def test_bits_repeat(four, name):
    assert four.run(repeated, name) == 4 * [True]


@pytest.mark.parametrize("name, method", [("4", "all_gather"), ("line", "ulysses"), ("mesh", "auto")])
def test_compile_without_graph_break(four, name, method):
    assert max(four.run(compiled, name, method)) < LIMIT


@pytest.mark.parametrize("function", [checkpointed, transposed_in_memory, alone])
def test_same_as_one_process(four, function):
    assert max(four.run(function)) < LIMIT


@pytest.mark.parametrize("shape, names, placements", [
    ((4,), ("cp",), [Shard(2)]),
    ((2, 2), ("dp", "cp"), [Shard(0), Shard(2)]),
    ((2, 2), ("outer", "inner"), [Shard(2), Shard(2)]),
])
def test_dtensors(four, shape, names, placements):
    assert max(four.run(dtensors, shape, names, placements)) < LIMIT


def test_dtensors_that_are_replicated_are_refused(four):
    for good, told in four.outcomes(dtensors, (4,), ("cp",), [Replicate()]):
        assert not good and "supported: Shard(2) (the sequence)" in told[1]


def test_autocast(four):
    for dtype, error in four.run(under_autocast):
        assert dtype == "torch.bfloat16" and error < 0.03


def test_sums_of_bfloat16_gradients(four):
    """dk and dv are rounded thrice: the part of a call, the part of a rank and the sum. If the parts were
    independent, the squares of their magnitudes would add up to that of the sum, and the error would
    grow by sqrt(3); 1.5 to 1.9 were measured. dq is computed as in one process."""
    for dq, dk, dv in four.run(bfloat16_gradients):
        assert dq == 1 and dk < 2.5 and dv < 2.5


def test_sums_over_ranks_are_in_float32():
    """Four parts of 2^-9 are lost if each is added to 1 in bfloat16."""
    parts = torch.tensor([1.0] + 4 * [2.0 ** -9], dtype=torch.bfloat16)
    assert sum_in_order(parts).item() == 1 + 2.0 ** -7


def test_merging_over_ranks(four):
    for same, error in four.run(merged_over_ranks):
        assert same and error < LIMIT


@pytest.mark.parametrize("layout, paged, sinks", [("bhsd", False, True), ("bshd", False, False), ("bhsd", True, True)])
def test_decoding_with_keys_on_every_rank(four, layout, paged, sinks):
    """Ranks have any of the keys, some none of a sequence; all get the result of one process, the same bits."""
    for error, everywhere in four.run(decoded, layout, paged, sinks):
        assert error < LIMIT
        assert all(torch.equal(everywhere[:, 0], everywhere[:, rank]) for rank in range(4))


@pytest.mark.parametrize("what, sentence", [
    ("gradient", "a tensor requires grad in decode; supported: calls under torch.no_grad()."),
    ("layout", "layout is 'sbhd'; supported: 'bhsd', 'bshd'."),
    ("dtype", "q.dtype is different on ranks 0 and 1 of the group; supported: the same on every rank."),
    ("scale", "scale is different on ranks 0 and 1 of the group; supported: the same on every rank."),
    ("lengths", "the arguments of rank 1 of the group are wrong or differ from another rank's; supported: the same "
     "right arguments on every rank."),
])
def test_decoding_is_refused_on_every_rank(four, what, sentence):
    for rank, (good, told) in enumerate(four.outcomes(decode_refused, what)):
        assert not good and (told[1] == sentence or (what == "lengths" and rank == 1 and "seqlens_kv" in told[1]))


def test_the_next_part_arrives_while_attention_runs(four):
    """Each gather starts before the attention of the part before; each exchange before the next attention."""
    for events in four.run(order_of_work, False):
        assert events == ["gather", "gather", "attention", "gather", "attention", "attention"]
    for events in four.run(order_of_work, True):
        assert events == ["gather", "gather", "attention", "exchange", "gather", "attention", "exchange",
                          "attention", "exchange"]


def test_kernels_leave_sms_free_while_a_part_arrives(four):
    """The last part, one part, and ulysses have nothing beside them."""
    for seen, told in four.run(margins):
        assert seen == [8, 8, 0, 4, 4, 0, 0, 0] and told == [8, 4, 0, 0]


def test_gloo_needs_no_sms(four):
    assert four.run(backend_of_cuda) == 4 * [(True, False)]


def test_round_trips_of_shards(four):
    assert four.run(round_trips, "4")[1] == ([*range(6, 12), *range(36, 42)],
                                             [*range(6, 10), 0, 1, *range(26, 30), 0, 1])
    four.run(round_trips, "mesh")


@pytest.mark.parametrize("what, sentence", [
    ("batch", "q.shape[0] is 2 on rank 0 and 1 on rank 3 of the group; supported: the same on every rank."),
    ("dtype", "q.dtype is different on ranks 0 and 3 of the group; supported: the same on every rank."),
    ("causal", "causal is different on ranks 0 and 3"),
    ("gradient", "q.requires_grad is different on ranks 0 and 3"),
    ("odd", "the arguments of rank 3 of the group are wrong"),
    ("type", "the arguments of rank 3 of the group are wrong"),
    ("documents", "the arguments of rank 3 of the group are wrong"),
    ("mesh", ""),
])
def test_ranks_that_differ_all_get_an_error(four, what, sentence):
    outcomes = four.outcomes(different, what)
    assert [good for good, _ in outcomes] == 4 * [False]
    for rank, (_, told) in enumerate(outcomes):
        if what in ("type", "documents") and rank == 3:  # its own error
            continue
        assert told[0] == "ValueError"
        assert sentence in told[1] or (what == "odd" and rank == 3 and "even numbers" in told[1])
    assert four.run(checkpointed)  # the group is still usable


@pytest.mark.parametrize("settings, shapes, name, sentence", [
    (dict(method="ring"), {}, "4", "method is 'ring'; supported: 'auto', 'all_gather', 'ulysses'."),
    (dict(method="ulysses"), dict(heads_q=6), "4", "q has 6 heads; supported by ulysses: multiples of its 4 ranks."),
    (dict(method="ulysses"), {}, "mesh", "method is 'ulysses' with a mesh of two dimensions; supported: 'auto', "
     "which is all_gather on the first and ulysses on the second."),
    (dict(sharding="striped"), {}, "4", "sharding is 'striped'; supported: 'zigzag', 'contiguous'."),
    ({}, dict(seqlen=7), "4", "q has 7 tokens on this rank; supported: even numbers for zigzag sharding."),
    (dict(window=(-2, 0)), {}, "4", "window is (-2, 0); supported: two numbers from 0 on, and None or -1 for no limit."),
    (dict(window=(1,)), {}, "4", "window is (1,); supported: two numbers from 0 on, and None or -1 for no limit."),
    (dict(cu_seqlens=(0, 9, 5)), {}, "4", "cu_seqlens is [0, 9, 5]; supported: numbers that start at 0, do not "
     "decrease and end at the 128 tokens of all ranks or before."),
    (dict(cu_seqlens=(0, 9.5, 12)), {}, "4", "cu_seqlens is of torch.float32; supported: integers."),
    (dict(cu_seqlens=(0, 2**40)), {}, "4", "cu_seqlens is [0, 1099511627776]; supported: numbers that start at 0, do not "
     "decrease and end at the 128 tokens of all ranks or before."),
    (dict(causal="top_left"), {}, "4", "causal is 'top_left'; supported: True, False."),
    (dict(chunks=0), {}, "4", "chunks is 0; supported: 1 and above."),
    (dict(layout="sbhd"), {}, "4", "layout is 'sbhd'; supported: 'bhsd', 'bshd'."),
    (dict(sm_margin=-1), {}, "4", "sm_margin is -1; supported: None (8 beside NCCL), 0 and above."),
    (dict(softcap=-1.0), {}, "4", "softcap is -1.0; supported: None or 0 (none), and positive finite numbers."),
    (dict(sinks=("zeros", 3)), {}, "4", "sinks is (3,) of torch.float32 on cpu; supported: (4,) of torch.float32 on cpu."),
    (dict(alibi_slopes=("zeros", (2, 4)), cu_seqlens=(0, 9)), {}, "4", "alibi_slopes is (2, 4) of torch.float32 on cpu; "
     "supported: (4,) of torch.float32 on cpu."),
    (dict(sinks=4.0), {}, "4", "sinks is a float; supported: a Tensor that every rank has whole."),
    ({}, dict(batch=0), "4", "q.shape is (0, 4, 32, 16); supported: at least one element."),
    ({}, dict(heads_q=5), "4", "q has 5 heads; supported: multiples of the 2 of k."),
])
def test_wrong_arguments(four, settings, shapes, name, sentence):
    for good, told in four.outcomes(refused, settings, shapes, name):
        assert not good and told[:2] == ("ValueError", sentence)


@pytest.mark.parametrize("settings, shapes, name, sentence", [
    (dict(alibi_slopes=("zeros", 4), method="all_gather"), {}, "4", "alibi_slopes is given with keys behind the diagonal; "
     "supported by all_gather: causal=True."),
    (dict(alibi_slopes=("zeros", 4)), {}, "mesh", "alibi_slopes is given with keys behind the diagonal; supported by "
     "all_gather: causal=True."),
    (dict(bias=("zeros", 1, 1, 1, 1)), {}, "4", "bias is given to context_parallel; supported: causal, window, cu_seqlens, "
     "softcap, sinks and alibi_slopes."),
    (dict(seqlens_q=("zeros", 2)), {}, "4", "seqlens_q is given to context_parallel; supported: cu_seqlens, which leaves "
     "padding out."),
    (dict(precision="fp8"), {}, "4", "precision is given to context_parallel; supported: the precision of the inputs."),
    (dict(page_table=("zeros", 2)), {}, "4", "page_table is given to context_parallel; supported: "
     "octavo.distributed.decode for a KV cache."),
])
def test_what_is_not_supported(four, settings, shapes, name, sentence):
    for good, told in four.outcomes(refused, settings, shapes, name):
        assert not good and told[:2] == ("NotImplementedError", sentence)


def test_unknown_arguments_and_defaults(four):
    assert four.outcomes(refused, dict(casual=True))[0][1][:2] == (
        "TypeError", "context_parallel() got an unexpected keyword argument 'casual'")
    four.run(refused, dict(bias=None, dropout_p=0.0, return_amax=False))


@pytest.mark.parametrize("mesh, sentence", [
    (False, "supported: a ProcessGroup with this rank"),
    (True, "group is a mesh without this rank; supported: meshes with it."),
])
def test_a_group_without_this_rank(four, mesh, sentence):
    outcomes = four.outcomes(outside_of_group, mesh)
    assert outcomes[:2] == 2 * [(True, "in it")]
    for good, told in outcomes[2:]:
        assert not good and told[0] == "ValueError" and sentence in told[1]


def test_a_length_that_ranks_do_not_divide(four):
    good, told = four.outcomes(shard, torch.zeros(1, 36))[0]
    assert not good and told[1] == ("x.shape[1] is 36; supported: multiples of 8 (zigzag sharding over 4 ranks).")


@pytest.mark.parametrize("name, method", [("4", "all_gather"), ("4", "ulysses"), ("mesh", "auto")])
def test_explain_tells_the_bytes_that_are_sent(four, name, method):
    for told, sent in four.run(sent_bytes, name, method):
        assert told == sent


@pytest.mark.parametrize("heads, settings, method, reason", [
    ((6, 2), dict(causal=True), "all_gather", "4 ranks do not divide 6 heads"),
    ((8, 1), dict(causal=True), "all_gather", "it sends"),
    ((4, 4), dict(causal=True), "ulysses", "it sends"),
    ((8, 1), dict(causal=True, sharding="contiguous"), "ulysses", "all_gather would give one rank 1."),
    ((8, 1), dict(sharding="contiguous"), "all_gather", "it sends"),
])
def test_auto_says_why(four, heads, settings, method, reason):
    for found, why, work in four.run(explained, *heads, settings):
        assert found == method and reason in why and work == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("call", ["all_gather", "ulysses", "decode", "merge_states"])
def test_a_rank_that_does_not_come_ends_the_others_at_the_time_out(four, call):
    """The error comes at the time-out of the group, a second, and not earlier."""
    outcomes = four.run(stalls, call)
    assert outcomes.pop(1) == ("stalled", 0)
    for told, seconds in outcomes:
        assert told == "error" and 0.5 < seconds < 20


@pytest.mark.parametrize("function", [end_one_rank, end_one_rank_in_backward])
def test_a_dead_rank_ends_the_others_with_an_error(function):
    ranks = Ranks(2)
    try:
        alive, dead = ranks.outcomes(function)
    finally:
        ranks.close()
    assert dead is None and not alive[0] and alive[1][0] in ("RuntimeError", "DistBackendError")


# ------------------------------------------------------------------------- tests in one process


def test_merging_parts_without_keys():
    """Parts without a visible key do not count, even if they hold NaN; rows without any give 0 and -inf."""
    out, lse = torch.randn(3, 1, 2, 4, 8), torch.randn(3, 1, 2, 4)
    lse[1, :, :, 1] = -torch.inf
    out[1, :, :, 1] = torch.nan
    lse[:, :, :, 2] = -torch.inf
    out[:, :, :, 2] = torch.nan
    merged, total = merge_states(out, lse)
    weights = lse.softmax(0).nan_to_num(0)
    assert torch.allclose(merged, (weights.unsqueeze(-1) * out.nan_to_num(0)).sum(0), atol=1e-6)
    assert torch.equal(total[:, :, 2], torch.full((1, 2), -torch.inf))
    assert torch.allclose(total[:, :, [0, 1, 3]], lse.logsumexp(0)[:, :, [0, 1, 3]])
    swapped, _ = merge_states(out.transpose(2, 3), lse, layout="bshd")
    assert torch.equal(swapped.transpose(1, 2), merged)


def test_zigzag_is_balanced():
    """Under a causal mask every rank computes the same number of scores."""
    mask = shards.Mask.of(True, None)
    counts = [shards.visible_scores(shards.segments("zigzag", 64, 4, rank), mask, (0, 64)) for rank in range(4)]
    assert counts == 4 * [64 * 65 // 2 // 4]


@pytest.mark.parametrize("seed", range(20))
def test_visible_scores_counts_pairs(seed):
    draw = random.Random(seed)
    seqlen = draw.randint(1, 40)
    documents = (0, *sorted(draw.randint(0, seqlen) for _ in range(3)))
    window = tuple(draw.choice([-1, 0, 2, 50]) for _ in range(2))
    causal = draw.random() < 0.5
    begin, end = sorted(draw.randint(0, seqlen) for _ in range(2))
    seen = visible(seqlen, causal, window, documents)
    assert shards.visible_scores([(begin, end)], shards.Mask.of(causal, window), documents) == seen[begin:end].sum()
