"""python -m octavo.bench on the CPU."""

import json

import pytest

import octavo.bench as bench

pytest.importorskip("torch")


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """bench.main for a shape of milliseconds; the report it wrote."""
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


def test_the_defaults():
    asked = bench.parse([])
    assert (asked.warmup, asked.iters, asked.seed, asked.json) == (20, 100, 42, "runs/summary.json")
    assert asked.shapes == ["mission", "small", "long", "wide", "stress"]
    assert bench.SHAPES["mission"] == (1, 8, 512, 64)


def test_errors_are_sentences(capsys):
    with pytest.raises(SystemExit):
        bench.parse(["--shapes", "mission,tiny"])
    assert "a shape is 'tiny'; supported: mission, small" in capsys.readouterr().err
