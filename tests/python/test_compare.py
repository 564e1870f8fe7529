# SPDX-License-Identifier: Apache-2.0
"""The calls of tools/compare_torch.py, compare_8bit.py and compare_builds.py, on the CPU: that Octavo and
every peer, or two builds, get the same problem, whatever the heads, lengths and memory order."""

import os
import pathlib
import sys
import types

import pytest

torch = pytest.importorskip("torch")
LIBRARY = os.environ.get("OCTAVO_LIBRARY")
if not LIBRARY or not pathlib.Path(LIBRARY).exists():
    pytest.skip("$OCTAVO_LIBRARY names no library", allow_module_level=True)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import compare_8bit  # noqa: E402
import compare_builds  # noqa: E402
import compare_torch  # noqa: E402
import octavo_c  # noqa: E402
from test_peers import Operators, UPSTREAM  # noqa: E402

CASE = {"name": "x", "dtype": "f16", "batch": 2, "heads": 4, "length": 32, "head_dim": 64, "causal": "none"}


@pytest.fixture
def comparison(monkeypatch):
    """On the CPU, with a fake FlashAttention-3 that computes in f16 and FP8."""
    operators = Operators()
    operators.register("fa3_fwd", UPSTREAM, (torch.float16, torch.bfloat16, torch.float8_e4m3fn))
    monkeypatch.setattr(compare_torch, "DEVICE", "cpu")
    monkeypatch.setattr(compare_torch, "MEMORY", "cpu")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=None))
    monkeypatch.setattr(compare_torch._timers, "Clock", lambda: types.SimpleNamespace(stop=lambda: None))
    builds = compare_torch._peers.Builds.__new__(compare_torch._peers.Builds)
    builds.torch, builds.missing = torch, {}
    builds.found = [compare_torch._peers.Build(torch, "fake", "fa3_fwd")]
    made = compare_torch.Comparison(torch, octavo_c.Octavo(LIBRARY), ["flash", "fa3"], {}, builds)
    yield made
    made.stop()
    for library in operators.libraries:
        library._destroy()
    if "fa3_fwd" in torch.ops.__dict__:
        delattr(torch.ops, "fa3_fwd")


@pytest.mark.parametrize("changes", [
    {}, {"causal": "top_left"}, {"heads_kv": 2, "causal": "top_left"}, {"length_kv": 77}, {"dtype": "bf16"},
    {"head_dim": 40, "length": 9, "length_kv": 9}])
def test_octavo_and_its_peers_compute_the_same(comparison, changes):
    torch.manual_seed(1)
    case = {**CASE, **changes}
    problem = compare_torch.Forward(comparison, case)
    ours, known, theirs, refused = comparison.calls_of(problem, ["flash", "fa3", "fa3_deterministic"])
    assert list(theirs) == ["flash", "fa3"] and list(refused) == ["fa3_deterministic"]
    assert known["kernel"] == "cpu_forward"
    assert comparison.used == {"fake": "fa3_fwd"}
    assert ours().shape == problem.q.shape and not ours().is_contiguous()
    for name, difference in comparison.checked(ours, theirs).items():
        assert difference <= compare_torch.MOST_DIFFERENCE[case["dtype"]], name


def test_8_bit_operands_compute_what_f16_does(comparison, monkeypatch):
    torch.manual_seed(1)
    made = types.SimpleNamespace(torch=torch, octavo=comparison.octavo, builds=comparison.builds, used={},
                                 sdpa_call=lambda name, *rest: comparison.sdpa_call("flash", *rest))
    for causal in ("none", "top_left"):
        case = {**CASE, "length": 64, "causal": causal}
        problem = compare_8bit.Problem8Bit(made, compare_8bit.Inputs8Bit(torch, case))
        ours, theirs, refused = problem.calls()
        assert set(theirs) == {"cudnn_f16", "fa3", "fa3_f16"} and not refused
        differences = compare_8bit.checked(case, problem.out, {**ours, **theirs}, theirs["cudnn_f16"]().float())
        assert set(differences) == {*ours, *theirs}
        assert differences["native"] < 1e-2 < differences["fp8"]


@pytest.mark.parametrize("changes", [{}, {"causal": "top_left", "heads_kv": 2}])
def test_gradients_are_those_of_autograd(comparison, changes):
    torch.manual_seed(1)
    problem = compare_torch.Backward(comparison, {**CASE, "mode": "backward", **changes})
    ours, known, _, refused = comparison.calls_of(problem, [])
    assert not refused and known["kernel"]
    q, k, v = (x.float().requires_grad_() for x in (problem.q, problem.k, problem.v))
    with torch.enable_grad():
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=problem.causal, enable_gqa=problem.gqa)
        out.backward(problem.dout.float())
    gradients = ours()
    assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]
    assert compare_torch.difference_of(gradients, [x.grad for x in (q, k, v)]) < 2e-2


def test_a_backward_pass_that_octavo_does_not_have_is_said(comparison, monkeypatch):
    def refuse(*words):
        raise RuntimeError("head_dim is 64; supported: others.\nmore")

    monkeypatch.setattr(octavo_c, "BackwardPlan", refuse)
    problem = compare_torch.Backward(comparison, {**CASE, "mode": "backward"})
    ours, _, _, refused = comparison.calls_of(problem, [])
    assert ours is None and refused == {"octavo": "head_dim is 64; supported: others."}


class FakeGraph:
    """Calls once; the second build takes 10% longer, or as long as the first when it is timed again."""

    made = 0

    def __init__(self, torch, call, calls):
        call()
        FakeGraph.made += 1
        self.us, self.samples = (110 if FakeGraph.made % 3 == 0 else 100), 0

    def sample_us(self):
        self.samples += 1
        return self.us if self.samples <= 1 + compare_builds.SAMPLES else 100


def test_two_builds_are_timed_in_turn_on_the_same_tensors(comparison, monkeypatch):
    monkeypatch.setattr(compare_torch._timers, "Graph", FakeGraph)
    builds = compare_builds.Builds(torch, (LIBRARY, LIBRARY))
    rows = builds.measure({**CASE, "length": 64})
    assert [r["way"] for r in rows] == list(compare_builds.WAYS)
    assert all(r["difference"] == 0 and r["ratio"] == 1 for r in rows)
    assert list(compare_builds.failures_of(rows, 0.995, 0.97)) == []
    monkeypatch.setattr(compare_builds, "TIMED_AGAIN", 0)
    slow = builds.measure({**CASE, "length": 64})
    failures = list(compare_builds.failures_of(slow, 0.995, 0.97))
    assert "geometric mean 0.9091; wanted: 0.995" in failures[0] and len(failures) == 1 + len(slow)
    wrong = [{**rows[0], "difference": float("nan")}]
    assert "differ by nan" in next(compare_builds.failures_of(wrong, 0.995, 0.97))
    assert [compare_builds.calls_for(us) for us in (5, 20, 1e4)] == [200, 50, 24]
