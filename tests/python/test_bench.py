# SPDX-License-Identifier: Apache-2.0
"""python -m octavo.bench on the CPU."""

import json

import pytest

import octavo.bench as bench

pytest.importorskip("torch")


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Runs bench.main for a shape that takes milliseconds; returns the report it wrote."""
    monkeypatch.setitem(bench.SHAPES, "mission", (1, 2, 32, 16))

    def run(*words):
        path = tmp_path / "runs" / "summary.json"
        assert bench.main(["--shapes", "mission", "--iters", "5", "--warmup", "1", "--device",
                           "cpu", "--json", str(path), *words]) == 0
        return json.loads(path.read_text())

    return run


def test_the_report(tiny, capsys):
    report = tiny("--backend", "auto,math,flash")
    assert [r["backend"] for r in report["rows"]] == ["auto", "math", "flash"]
    for row in report["rows"]:
        assert len(row["octavo"]["samples_us"]) == len(row["peer"]["samples_us"]) == 5
        assert row["ratio"] == row["peer"]["median_us"] / row["octavo"]["median_us"]
        low, high = row["ratio_interval"]
        assert low <= high
        assert row["again_ratio"] == row["octavo_again"]["median_us"] / row["octavo"]["median_us"]
        taken = [row[who]["samples_us"] for who in ("octavo", "peer", "octavo_again")]
        assert len({tuple(samples) for samples in taken}) == 3  # each has its own
        assert row["max_error"] < 1e-5 and row["peer_max_error"] < 1e-5
        assert row["kernel"] == "cpu_forward"
    printed = capsys.readouterr().out
    assert printed.count("mission") == 3 and "A/A" in printed


def test_what_is_not_there_says_so(tiny, capsys):
    row, = tiny("--backend", "cudnn", "--skip-correctness")["rows"]
    assert row["peer"] is None and row["not_available"] and "max_error" not in row
    assert row["octavo"]["median_us"] > 0
    assert "not available" in capsys.readouterr().out


def test_the_mask_is_in_both_and_in_the_truth(tiny):
    row, = tiny("--causal", "--backend", "math")["rows"]
    assert row["max_error"] < 1e-5 and row["peer_max_error"] < 1e-5


def test_compiled_calls(tiny, monkeypatch):
    torch = pytest.importorskip("torch")
    compiled, compile = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled.append(1) or compile(
        function, backend="aot_eager", **options))
    report = tiny("--compile", "--causal", "--backend", "auto,flash_attn")
    row, other = report["rows"]
    assert report["compile"] and row["max_error"] < 1e-5 and row["peer_max_error"] < 1e-5
    assert len(compiled) == 4 and other["not_available"] == "flash_attn is not compiled"


def test_the_defaults():
    asked = bench.parse([])
    assert (asked.warmup, asked.iters, asked.seed, asked.json) == (20, 100, 42, "runs/summary.json")
    assert asked.shapes == ["mission", "small", "long", "wide", "stress"]
    assert bench.SHAPES["mission"] == (1, 8, 512, 64)


def test_errors_are_sentences(capsys):
    with pytest.raises(SystemExit):
        bench.parse(["--shapes", "mission,tiny"])
    assert "a shape is 'tiny'; supported: mission, small" in capsys.readouterr().err


def test_packages_are_not_available_or_timed(tiny, monkeypatch):
    import sys
    import types

    import torch

    for package in bench.PACKAGES:
        monkeypatch.setitem(sys.modules, "flash_attn" if package == "flash_attn" else "xformers", None)
    report = tiny("--backend", ",".join(bench.PACKAGES))
    for row in report["rows"]:
        assert row["peer"] is None and row["not_available"], row["backend"]

    def theirs(q, k, v, causal=False, attn_bias=None, op=None):
        called.append(op)
        out = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal or attn_bias is not None)
        return out.transpose(1, 2)

    called = []
    fmha = types.SimpleNamespace(cutlass=types.SimpleNamespace(FwOp="cutlass"))
    ops = types.SimpleNamespace(memory_efficient_attention=theirs, LowerTriangularMask=object, fmha=fmha)
    monkeypatch.setitem(sys.modules, "flash_attn", types.SimpleNamespace(flash_attn_func=theirs))
    monkeypatch.setitem(sys.modules, "xformers", types.SimpleNamespace(ops=ops))
    report = tiny("--backend", ",".join(bench.PACKAGES), "--causal")
    for row in report["rows"]:
        assert row["peer_max_error"] < 1e-5, row
    assert ("cutlass", None) in called


def test_buffers_are_taken_in_turn(tiny, monkeypatch):
    seen = set()
    real = bench.octavo.attention

    def attention(q, k, v, **options):
        seen.add(q.data_ptr())
        return real(q, k, v, **options)

    monkeypatch.setattr(bench.octavo, "attention", attention)
    report = tiny("--buffers", "3")
    assert report["buffers"] == 3 and len(seen) == 3
    assert (report["launch"], report["l2"]) == ("graph", "warm")
    assert report["rows"][0]["throttle"] is None


def test_ways_of_a_gpu_are_refused_on_the_cpu(tiny):
    for words in (("--launch", "stream"), ("--l2", "cold")):
        with pytest.raises(SystemExit, match="the timing is launch .* on cpu; supported"):
            tiny(*words)
    with pytest.raises(SystemExit):
        tiny("--buffers", "0")


def test_a_sustained_load_is_timed_in_turns_with_its_energy(monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    done = []

    class Load:
        calls = 3

        def __init__(self, torch, call, us):
            self.call, self.us = call, us

        def sample(self):
            done.append(self.us)
            return self.us, 1.0, 2.0

    class Graph:
        def __init__(self, torch, call, calls):
            self.sample_us = call

    monkeypatch.setattr(bench._timers, "Load", Load)
    monkeypatch.setattr(bench._timers, "Graph", Graph)
    made = bench.Bench(torch, bench.parse(["--device", "cpu", "--regime", "sustained"]))
    made.meter.watts = lambda begin, end: 500.0
    row = made.time({"name": "mission", "shape": [1], "backend": "fa3"}, [lambda: 1000.0], [lambda: 1100.0])
    made.stop()
    assert row["ratio"] == 1.1 and row["calls"] == 3
    assert row["joules"] == pytest.approx({"octavo": 0.5, "peer": 0.55})
    assert done == [1000, 1100, 1000] * bench.TURNS
    assert bench.line_of(row).endswith("0.5      0.55")
    assert bench.heading(False, True).endswith("J a call   of peer")


def test_a_sustained_load_needs_a_gpu_and_graphs(tiny, capsys):
    with pytest.raises(SystemExit, match="the regime is sustained on cpu; supported: burst there"):
        tiny("--regime", "sustained")
    for words, said in ((("--regime", "sustained", "--l2", "cold"), "L2 cold under a sustained load; supported"),
                        (("--prequantized", "--compile"), "--prequantized is given with --compile; supported")):
        with pytest.raises(SystemExit):
            bench.parse(list(words))
        assert said in capsys.readouterr().err
