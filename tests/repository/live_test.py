#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The comparison with live peers: everything but the times themselves, with fakes of PyTorch, of the
library and of the peers.

usage: live_test.py REPOSITORY
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True

import compare_8bit  # noqa: E402
import compare_torch  # noqa: E402
import evidence_tables  # noqa: E402

CASE = {"name": "1,8,16384,128", "dtype": "f16", "batch": 1, "heads": 8, "length": 16384,
        "head_dim": 128, "causal": "none"}


class Tensor:
    """A tensor of one value."""

    def __init__(self, value):
        self.value = value

    def float(self):
        return self

    abs = max = float

    def __sub__(self, other):
        return Tensor(abs(self.value - other.value))

    def item(self):
        return self.value

    def fill_(self, value):
        self.value = value


class Call:
    """A call that takes some microseconds and returns a value; or cannot be made."""

    def __init__(self, us, value=1.0, refused=None):
        self.us, self.value, self.refused = us, value, refused

    def __call__(self):
        if self.refused:
            raise RuntimeError(self.refused)
        return Tensor(self.value)


class Graph:
    """Stands in for _timers.Graph: takes what its call takes."""

    def __init__(self, torch, call, calls):
        self.call, self.calls = call, calls

    def sample_us(self):
        return self.call.us


class Load(Graph):
    """Under a load, every call takes 1.5 times as long."""

    def __init__(self, torch, call, call_us):
        super().__init__(torch, call, 3)
        assert call_us == call.us

    def sample(self):
        return 1.5 * self.call.us, 10.0, 11.0


class Problem:
    """Calls of one case by the name of the library."""

    calls = {}

    def __init__(self, comparison, case):
        self.case = case

    def ours(self):
        if isinstance(self.calls["octavo"], Exception):
            raise self.calls["octavo"]
        return self.calls["octavo"], {"kernel": "sm90_forward", "config": "c", "reason": ""}

    def peer(self, name):
        return self.calls[name]


class Clock:
    seen = ()

    def since(self, start):
        return {"clock_mhz": 1500.0, "power_w": 300.0, "throttle": ["power cap"]}


def comparison(calls, recorded=None):
    made = compare_torch.Comparison.__new__(compare_torch.Comparison)
    made.torch, made.octavo, made.recorded, made.used = None, None, recorded or {}, {}
    made.peers = [name for name in calls if name != "octavo"]
    made.problem = type("Case", (Problem,), {"calls": calls})
    made.clock, made.meter = Clock(), types.SimpleNamespace(watts=lambda begin, end: 700.0)
    return made


class Measuring(unittest.TestCase):
    def setUp(self):
        for name, fake in (("Graph", Graph), ("Load", Load)):
            patch = unittest.mock.patch.object(compare_torch._timers, name, fake)
            patch.start()
            self.addCleanup(patch.stop)

    def test_bursts_have_every_peer_that_runs_and_why_the_others_do_not(self):
        made = comparison({"octavo": Call(100), "fa3": Call(90), "cudnn": Call(120),
                           "flash": Call(1, refused="no kernel\nframes")})
        row = made.measure(CASE)
        self.assertEqual(row["peers_us"], {"fa3": 90, "cudnn": 120})
        self.assertEqual((row["peer"], row["ratio"], row["ratio_live"]), ("fa3", 0.9, 0.9))
        self.assertEqual(row["not_available"], {"flash": "no kernel"})
        self.assertEqual((row["regime"], row["clock_mhz"]), ("burst", 1500.0))
        self.assertNotIn("joules", row)
        self.assertEqual(len(row["octavo_samples_us"]), compare_torch.SAMPLES)
        self.assertEqual(list(compare_torch.failures_of([row], "sm90", 0.9)), [])
        self.assertIn("0.900 times as fast", next(compare_torch.failures_of([row], "sm90", 0.99)))

    def test_a_sustained_load_has_joules(self):
        made = comparison({"octavo": Call(1000), "fa3": Call(900)})
        row = made.measure(CASE, "sustained")
        self.assertEqual((row["octavo_us"], row["peers_us"]), (1500, {"fa3": 1350}))
        self.assertAlmostEqual(row["joules"]["octavo"], 700 * 1500e-6)
        self.assertAlmostEqual(row["joules"]["fa3"], 700 * 1350e-6)
        self.assertEqual(row["watts"], {"octavo": 700.0, "fa3": 700.0})
        self.assertEqual(row["calls"], 3)
        self.assertIn("sustained", next(compare_torch.failures_of([row], "sm90", 0.99)))

    def test_a_peer_that_computes_something_else_is_a_failure(self):
        row = comparison({"octavo": Call(10), "fa3": Call(5, value=1.5), "cudnn": Call(20)}).measure(CASE)
        self.assertEqual(row["differences"], {"fa3": 0.5, "cudnn": 0.0})
        self.assertIn("differs from the peer by 0.5", next(compare_torch.failures_of([row], "sm90", 0)))

    def test_without_octavo_the_peers_are_timed_and_it_is_said(self):
        refusal = RuntimeError("head_dim is 7; supported: multiples of 8.")
        row = comparison({"octavo": refusal, "fa3": Call(5), "cudnn": Call(20)}).measure(CASE)
        self.assertEqual((row["octavo_us"], row["ratio"], row["peers_us"]["fa3"]), (None, None, 5))
        self.assertIn("Octavo cannot run it: head_dim is 7", next(compare_torch.failures_of([row], "sm90")))
        # The backward pass may be missing; that is no failure.
        backward = {**row, "mode": "backward"}
        self.assertEqual(list(compare_torch.failures_of([backward], "")), [])
        self.assertEqual(compare_torch.summary_of([row]),
                         {"geometric_mean": None, "minimum": None, "resolution": None})
        self.assertIsNone(comparison({"octavo": refusal}).measure(CASE))

    def test_peers_on_record_remain_only_for_libraries_that_did_not_run(self):
        recorded = {("1", "8", "16384", "128", "none"):
                    {"cudnn": 100.0, "cudnn_graph": 95.0, "fa3": 80.0, "fa3_nomemset": 79.0}}
        row = comparison({"octavo": Call(100), "cudnn": Call(110)}, recorded).measure(CASE)
        self.assertEqual({n: round(us, 6) for n, us in row["recorded_us"].items()},
                         {"fa3": 88.0, "fa3_nomemset": 86.9})
        self.assertAlmostEqual(row["ratio"], 0.869)
        self.assertAlmostEqual(row["ratio_live"], 1.1)
        row = comparison({"octavo": Call(100), "cudnn": Call(110), "fa3": Call(99)}, recorded).measure(CASE)
        self.assertEqual((row["recorded_us"], row["ratio"]), ({}, 0.99))

    def test_both_regimes_largest_first_within_their_budgets(self):
        cases = [{**CASE, "name": str(length), "length": length} for length in (512, 4096, 2048)]
        cases.append({**cases[1], "dtype": "bf16"})
        made = comparison({"octavo": Call(100), "fa3": Call(90), "cudnn": Call(120)})
        now = iter(range(0, 1000, 10))
        taken, measure = [], made.measure

        def noted(case, regime, peers):
            taken.append((regime, case["name"], case["dtype"], peers))
            return measure(case, regime, peers)

        made.measure, left = noted, compare_torch.Left()
        burst = compare_torch.within_budget(cases, None, lambda i: noted(cases[i], "burst", None),
                                            left, "burst")
        sustained = compare_torch.within_budget(
            cases, 25, lambda i: noted(cases[i], "sustained", ["fa3"]), left, "sustained",
            clock=lambda: next(now))
        self.assertEqual([t[1:3] for t in taken if t[0] == "burst"],
                         [("4096", "f16"), ("2048", "f16"), ("512", "f16"), ("4096", "bf16")])
        self.assertEqual(list(burst), [0, 1, 2, 3])
        self.assertEqual(list(sustained), [1, 2])
        self.assertEqual(left.failures, [])
        self.assertEqual(left.not_measured, ["sustained 512 f16 none: the budget of 25 s was spent",
                                             "sustained 4096 bf16 none: the budget of 25 s was spent"])

    def test_a_case_that_fails_is_a_failure_and_does_not_end_the_run(self):
        def measure(i):
            if i == 0:
                raise RuntimeError("an illegal address\nframes")
            return comparison({"octavo": Call(100), "fa3": Call(90)}).measure(CASE) if i == 1 else None

        left = compare_torch.Left()
        rows = compare_torch.within_budget([CASE, {**CASE, "name": "b"}, {**CASE, "name": "c"}], None, measure, left, "burst")
        self.assertEqual(list(rows), [1])
        self.assertEqual(left.failures, ["burst 1,8,16384,128 f16 none: an illegal address"])
        self.assertEqual(left.not_measured, ["burst c f16 none: nothing can run it"])

    def test_slow_peers_are_left_out_of_the_sustained_load(self):
        made = comparison({"octavo": Call(100), "fa3": Call(90), "cudnn": Call(100), "flash": Call(150)})
        rows, sustained = compare_torch.run_regimes(made, [CASE], ["burst", "sustained"], {}, compare_torch.Left())
        self.assertEqual(list(rows[0]["peers_us"]), ["fa3", "cudnn", "flash"])
        self.assertEqual(list(sustained[0]["peers_us"]), ["fa3", "cudnn"])
        rows, sustained = compare_torch.run_regimes(made, [CASE], ["sustained"], {}, compare_torch.Left())
        self.assertEqual((rows, list(sustained[0]["peers_us"])), ([], ["fa3", "cudnn", "flash"]))


class Cases(unittest.TestCase):
    def test_the_models_have_attention_that_can_be_run(self):
        models = compare_torch.read_models(ROOT / "bench/models.csv")
        names = " ".join(m["name"] for m in models)
        for family in ("Llama-3 8B", "Llama-3 70B", "Qwen", "Gemma", "Mistral", "BERT", "ViT", "SigLIP", "Whisper",
                       "SD 1.5", "SDXL", "Flux", "CogVideoX"):
            self.assertIn(family, names)
        self.assertEqual(len({m["name"] for m in models}), len(models))
        for m in models:
            self.assertEqual(m["heads"] % m["heads_kv"], 0, m)
            self.assertIn(m["dtype"], ("f16", "bf16"))
            # Libraries align the mask differently where the lengths differ.
            self.assertTrue(m["causal"] == "none" or m["length"] == m["length_kv"], m)
        cross = next(m for m in models if m["length"] != m["length_kv"])
        self.assertEqual(compare_torch.flops(cross), 4 * cross["batch"] * cross["heads"] * cross["length"]
                         * cross["length_kv"] * cross["head_dim"])

    def test_backward_is_in_bf16_and_two_and_a_half_times_the_work(self):
        words = ["--library", "l", "--command", "c", "--json", "j", "--grid", str(ROOT / "bench/grid_sm90.csv"),
                 "--mode", "backward"]
        cases = compare_torch.cases_of(compare_torch.parse(words), "sm90")
        self.assertEqual({c["dtype"] for c in cases}, {"bf16"})
        self.assertEqual(len(cases), 46)
        forward = {k: v for k, v in cases[0].items() if k != "mode"}
        self.assertEqual(compare_torch.flops(cases[0]), 2.5 * compare_torch.flops(forward))

    def test_names_that_are_not_known_are_refused(self):
        for words in (["--peers", "fa9"], ["--regimes", "lasting"]):
            with self.assertRaises(SystemExit), unittest.mock.patch("sys.stderr") as said:
                compare_torch.parse(["--library", "l", "--command", "c", "--json", "j", *words])
            self.assertIn(f"is '{words[1]}'; supported: ", "".join(c.args[0] for c in said.write.call_args_list))


class Digests(unittest.TestCase):
    def test_a_configuration_that_the_command_does_not_know_has_none(self):
        with tempfile.TemporaryDirectory() as folder:
            command = pathlib.Path(folder) / "octavo"
            known = {"compiler": "NVRTC 13.0", "sources_sha256": "s", "kernel": {"sha256": "d"}}
            command.write_text(f"#!/bin/sh\n[ \"$3\" = known ] || exit 2\necho '{json.dumps(known)}'\n")
            command.chmod(0o755)
            rows = [{"config": "known"}, {"config": "other"}, {}]
            self.assertEqual(compare_torch.add_digests(rows, command), "NVRTC 13.0")
        self.assertEqual([r["kernel_sha256"] for r in rows], ["d", None, None])
        self.assertEqual([r["sources_sha256"] for r in rows], ["s", None, None])


WAYS = {"fp8": 100.0, "fp8_rows": 110.0, "fp8_fast": 80.0, "int8": 125.0, "fp8_from_f16": 150.0, "native": 160.0}


def row_8bit(medians, recorded=None, regime="burst"):
    row = {**{k: CASE[k] for k in ("name", "batch", "heads", "length", "head_dim", "causal")}, "regime": regime}
    return compare_8bit.with_peers(row, medians, recorded or {})


class EightBits(unittest.TestCase):
    RECORDED = {("1", "8", "16384", "128", "none"):
                {"torch_cudnn_f16": 200.0, "best_f16": 180.0, "cudnn": 90.0, "fa3": 95.0}}

    def test_live_fa3_takes_the_place_of_its_record(self):
        row = row_8bit({**WAYS, "cudnn_f16": 220.0, "fa3": 96.0, "fa3_f16": 170.0}, self.RECORDED)
        self.assertEqual(row["peers_us"], {"fa3": 96.0})
        self.assertAlmostEqual(row["recorded_us"]["cudnn"], 99.0)
        self.assertNotIn("fa3", row["recorded_us"])
        self.assertAlmostEqual(row["ratio"]["fp8"], 0.96)
        self.assertAlmostEqual(row["ratio_live"]["fp8_fast"], 1.2)
        self.assertEqual(row["best_f16_peer_us"], 170.0)
        self.assertAlmostEqual(row["ratio_to_native"], 160 / 150)

    def test_without_a_build_the_record_remains(self):
        row = row_8bit({**WAYS, "cudnn_f16": 220.0}, self.RECORDED)
        self.assertEqual((row["peers_us"], row["ratio_live"]["fp8"]), ({}, None))
        self.assertEqual({n: round(us, 6) for n, us in row["recorded_us"].items()}, {"cudnn": 99.0, "fa3": 104.5})
        self.assertAlmostEqual(row["best_f16_peer_us"], 198.0)
        self.assertEqual(compare_8bit.summary_of([row])["cases"], 0)

    def test_under_load_only_what_competes_is_timed(self):
        made = types.SimpleNamespace(torch=None, comparison=types.SimpleNamespace(
            clock=Clock(), meter=types.SimpleNamespace(watts=lambda begin, end: 600.0)))
        calls = {name: Call(us) for name, us in {**WAYS, "cudnn_f16": 9.0, "fa3": 90.0}.items()}
        with unittest.mock.patch.multiple(compare_torch._timers, Graph=Graph, Load=Load):
            known = compare_8bit.load_times(made, calls)
        self.assertEqual(known["us"], {"fp8": 150.0, "fp8_fast": 120.0, "fa3": 135.0})
        self.assertAlmostEqual(known["joules"]["fa3"], 600 * 135e-6)
        row = row_8bit(known.pop("us"), self.RECORDED, "sustained")
        self.assertAlmostEqual(row["ratio"]["fp8"], 0.9)
        self.assertEqual((row["recorded_us"], row["ratio_to_f16"], row["ratio_to_native"]), ({}, None, None))

    def test_a_way_that_is_another_function_is_a_failure(self):
        out = Tensor(0)
        self.assertEqual(compare_8bit.checked(CASE, out, {"fp8": Call(1, value=1.25)}, Tensor(1.0)), {"fp8": 0.25})
        for wrong in (1.5, math.nan):
            with self.assertRaisesRegex(RuntimeError, "fp8 differs from f16 by"):
                compare_8bit.checked(CASE, out, {"fp8": Call(1, value=wrong)}, Tensor(1.0))


class Tables(unittest.TestCase):
    """The pages show every peer and the ratio to the best, so that a reader can compute it."""

    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.root = pathlib.Path(made.name)
        self.folder = self.root / "evidence/chip"
        self.folder.mkdir(parents=True)
        (self.root / "README.md").write_text(f"{evidence_tables.BEGIN}\n{evidence_tables.END}\n")

    def report(self, kind, rows, sustained=(), **more):
        known = {"clock_mhz": 1500.0, "kernel": "sm90_forward", "config": "c", "kernel_sha256": "d"}
        return {"schema": 1, "kind": kind, "version": "0", "device": "cuda:0", "family": "sm90",
                "gpu": {"name": "Chip", "driver": "1"}, "commit": "a" * 40, "compiler": "NVRTC 13.0",
                "peer": {"name": "fa3", "torch": "2", "cuda": "13", "fa3": {"xf_fa3_C.so": "flash_attn_3"}},
                "samples": 11, "failures": [], "passed": True, "not_measured": [],
                **compare_torch.summary_of(rows), "rows": [{**r, **known} for r in rows],
                "sustained": [{**r, **known} for r in sustained], **more}

    def row(self, ours, theirs, joules=None, regime="burst", **changes):
        made = compare_torch.row_of({**CASE, **changes}, 5, [ours] * 3, [ours] * 3,
                                    {name: [us] * 3 for name, us in theirs.items()}, {}, 0.0)
        return {**made, "regime": regime, **({"joules": joules, "watts": {}} if joules else {})}

    def write(self, name, report):
        (self.folder / f"sm90_{name}.json").write_text(json.dumps(report))

    def pages(self):
        subprocess.run([sys.executable, ROOT / "tools/evidence_tables.py", "--root", self.root], check=True,
                       capture_output=True)
        return (self.folder / "sm90.md").read_text(), (self.root / "README.md").read_text()

    def test_both_regimes_models_and_where_octavo_is_slower(self):
        mission = {"name": "mission", "batch": 1, "length": 512, "head_dim": 64}
        self.write("compare", self.report(
            "compare", [self.row(100, {"fa3": 97, "cudnn": 120}), self.row(5, {"fa3": 10, "cudnn": 9}, **mission)],
            [self.row(150, {"fa3": 141}, {"octavo": 0.105, "fa3": 0.1}, "sustained")],
            not_measured=["sustained x f16 none: the budget of 25 s was spent"]))
        self.write("models", self.report("compare_models", [
            self.row(80, {"fa3": 88}, name="Llama-3 8B", dtype="bf16", heads=32, heads_kv=8, causal="top_left"),
            self.row(20, {"fa3": 30}, name="SD cross", length=4096, length_kv=77)], failures=["a model failed"]))
        page, readme = self.pages()
        self.assertIn("| 1,8,16384,128 |  | f16 | 100.0 | 97.00 | 120.0 | 0.970 |", page)
        self.assertIn("run here\nfrom xf_fa3_C.so.", page)
        self.assertNotIn("on record", page)
        self.assertIn("| 150.0 | 141.0 | 0.940 | 0.105 | 0.1 |", page)
        self.assertIn("| Octavo, J | fa3, J |", page)
        self.assertIn("Llama-3 8B (1, 32/8, 16384, 128) | yes | bf16 | 80.00 | 88.00 | 1.100 |", page)
        self.assertIn("SD cross (1, 8, 4096/77, 128)", page)
        self.assertIn("Failed:\n- a model failed\n", page)
        self.assertIn("the budget of 25 s was spent", page)
        slower = page.split("## Where Octavo is slower\n\n")[1].split("\n\n")[0].splitlines()
        self.assertEqual(slower, [
            "- 1,8,16384,128, full, f16, under a sustained load: 0.940 times as fast as fa3",
            "- 1,8,16384,128, full, f16, in bursts: 0.970 times as fast as fa3"])
        self.assertIn("| mission (1, 8, 512, 64), f16 | 5.00 | 10.00 | 9.00 | 1.80 |", readme)
        self.assertIn("Under a sustained load, at the power limit: geometric mean 0.940, minimum 0.940, below 1 in 1 of 1",
                      readme)
        self.assertIn("On the attention of real models ([bench/models.csv](bench/models.csv)), in bursts", readme)

    def test_a_table_of_peers_without_octavo(self):
        self.write("compare", self.report("compare", [self.row(100, {"fa3": 120})]))
        peers = compare_torch.row_of({**CASE, "dtype": "bf16", "mode": "backward"}, 5, None, None,
                                     {"fa3": [300.0] * 3, "cudnn": [320.0] * 3}, {}, 0.0)
        self.write("backward", self.report("compare_backward", [peers]))
        page, _ = self.pages()
        self.assertIn("## Backward: in bursts\n\nNo ratio was measured.", page)
        self.assertIn("| 1,8,16384,128 |  | bf16 |  | 300.0 | 320.0 |  |", page)

    def test_the_8_bit_page_has_live_and_recorded_peers(self):
        self.write("compare", self.report("compare", [self.row(100, {"fa3": 120})]))
        burst = row_8bit({**WAYS, "cudnn_f16": 220.0, "fa3": 96.0, "fa3_f16": 170.0}, EightBits.RECORDED)
        load = row_8bit({"fp8": 150.0, "fp8_fast": 120.0, "fa3": 165.0}, regime="sustained")
        report = self.report("compare_8bit", [], peer={"name": "", "torch": "2", "cuda": "13",
                                                       "fa3": {"fa3_fwd_C.so": "fa3_fwd"}})
        self.write("8bit", {**report, "rows": [burst],
                            "sustained": [{**load, "joules": {"fp8": 0.09, "fp8_fast": 0.07, "fa3": 0.1}}]})
        _, readme = self.pages()
        page = (self.folder / "sm90_8bit.md").read_text()
        self.assertIn("| fa3, us | cudnn (recorded), us | ratio |", page)
        self.assertIn("| 96 | 99 | 0.960 |", page)
        self.assertIn("beside FlashAttention-3 run here geometric mean 0.960", page)
        self.assertIn("| 150 |", page.split("## Under a sustained load")[1])
        self.assertIn("| 0.09 | 0.1 |", page)
        self.assertIn("under a sustained load: beside FlashAttention-3 run here geometric mean 1.100", readme)


if __name__ == "__main__":
    unittest.main()
