#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The README and evidence/ match the recorded runs, and the tools that generate them work.

usage: evidence_test.py REPOSITORY LIBRARY [unittest arguments]
"""

import array
import ctypes
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
LIBRARY = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True

import compare_torch  # noqa: E402
import octavo_c  # noqa: E402
import sanitize  # noqa: E402

CASE = {"name": "mission", "dtype": "f16", "batch": 1, "heads": 8, "length": 512, "head_dim": 64,
        "causal": "none"}


def row(ours=5.0, theirs=7.5, difference=1e-3, **changes):
    made = compare_torch.row_of({**CASE, **changes}, 20, [ours] * 15, [ours * 1.01] * 15,
                                {"flash": [theirs] * 15}, {}, difference)
    return {**made, "clock_mhz": 1980.0, "power_w": None, "kernel": "sm80_forward",
            "config": "c", "reason": "", "kernel_sha256": "d1", "sources_sha256": "s"}


def compare_report(rows):
    return {"schema": 1, "kind": "compare", "version": "0", "device": "cuda:0", "family": "sm80",
            "gpu": {"name": "Chip", "driver": "1", "sms": 1, "memory_bytes": 1},
            "peer": {"name": "flash", "torch": "2", "cuda": "13"}, "commit": "a" * 40,
            "compiler": "NVRTC 13.0", "samples": 15, "failures": [], "passed": True,
            "rows": rows, **compare_torch.summary_of(rows)}


class Repository(unittest.TestCase):
    def test_the_tables_say_what_the_evidence_holds(self):
        ran = subprocess.run([sys.executable, ROOT / "tools/evidence_tables.py", "--check"],
                             capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


    def test_the_manifest_has_every_file_of_the_evidence(self):
        for folder in (ROOT / "evidence").iterdir():
            ran = subprocess.run([sys.executable, ROOT / "tools/manifest.py", "--folder", folder, "--check"],
                                 capture_output=True, text=True)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr +
                             "tools/manifest.py --renew renews the digest of a file that was made again")


class Tables(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.root = pathlib.Path(made.name)
        self.folder = self.root / "evidence/chip"
        self.folder.mkdir(parents=True)
        self.readme = self.root / "README.md"
        self.readme.write_text("before\n<!-- evidence: made by tools/evidence_tables.py -->\n"
                               "<!-- evidence: end -->\nafter\n")
        self.write([row(), row(ours=10.0, theirs=11.0, causal="top_left", name="x"),
                    row(ours=4.0, dtype="sim8")])

    def write(self, rows):
        (self.folder / "sm80_compare.json").write_text(json.dumps(compare_report(rows)))

    def tables(self, *arguments):
        return subprocess.run([sys.executable, ROOT / "tools/evidence_tables.py", "--root",
                               self.root, *arguments], capture_output=True, text=True).returncode

    def test_what_was_written_is_right_and_shows_the_numbers(self):
        self.assertEqual(self.tables("--check"), 1)
        self.assertEqual(self.tables(), 0)
        self.assertEqual(self.tables("--check"), 0)
        text = self.readme.read_text()
        self.assertTrue(text.startswith("before\n") and text.endswith("after\n"))
        self.assertIn("| mission (1, 8, 512, 64), f16 | 5.00 | 7.50 | 1.50 |", text)
        self.assertIn("| mission (1, 8, 512, 64), sim8 | 4.00 | 7.50 | 1.88 |", text)
        # sqrt(1.5 * 1.1); sim8 is not the same work and does not count.
        self.assertIn("geometric mean 1.285, minimum 1.100", text)
        self.assertIn("compute-sanitizer: not measured", (self.folder / "sm80.md").read_text())

    def test_peers_that_ran_and_those_on_record_have_their_columns(self):
        made = row()
        made.update(peer="cudnn", peers_us={"flash": 9.0, "cudnn": 7.5}, recorded_us={"fa3": 8.25})
        self.write([made, row(dtype="bf16", ours=5.25)])
        self.assertEqual(self.tables(), 0)
        text = (self.folder / "sm80.md").read_text()
        self.assertIn("| Octavo, us | flash, us | cudnn, us | fa3 (recorded), us | ratio |", text)
        self.assertIn("| f16 | 5.00 | 9.00 | 7.50 | 8.25 | 1.500 |", text)
        self.assertIn("bf16 takes 1.050 to 1.050 times as long as f16", text)
        self.assertIn("at most 1.0% apart", text)

    def test_a_page_says_which_report_is_of_another_commit(self):
        report = {"passed": True, "cases": 9, "kernels": 1, "repeat": 2, "failures": [], "rows": []}
        for kind, commit in (("check", "a" * 40), ("twelve", "b" * 40)):
            (self.folder / f"sm80_{kind}.json").write_text(json.dumps(report))
            manifest = self.folder / "manifest.yaml"
            if not manifest.exists():
                manifest.write_text("octavo_bundle: 1\nkernels:\nfiles:\n")
            subprocess.run([sys.executable, ROOT / "tools/manifest.py", "--folder", self.folder, "--renew",
                            f"sm80_{kind}.json", "--commit", commit], check=True)
        self.assertEqual(self.tables(), 0)
        text = (self.folder / "sm80.md").read_text()
        self.assertIn("Suite `twelve`: passed, 9 cases on 1 kernels, 2 runs each, all bitwise equal, commit bbbbbbbbbbbb.", text)
        self.assertIn("against fp64: passed, 9 cases on 1 kernels, 2 runs each, all bitwise equal.", text)
        # The page's digest was renewed with it; the report that no one has listed is still missing.
        said = subprocess.run([sys.executable, ROOT / "tools/manifest.py", "--folder", self.folder, "--check"],
                              capture_output=True, text=True)
        self.assertEqual((said.returncode, said.stdout), (1, "sm80_compare.json: is not in the manifest.\n"))

    def test_a_number_changed_by_hand_is_found(self):
        self.tables()
        self.readme.write_text(self.readme.read_text().replace("| 1.50 |", "| 1.60 |"))
        self.assertEqual(self.tables("--check"), 1)

    def test_new_evidence_makes_old_tables_wrong(self):
        self.tables()
        self.write([row(ours=6.0)])
        self.assertEqual(self.tables("--check"), 1)

    def test_kernels_that_changed_since_are_stale(self):
        command = self.root / "octavo"
        # None of them is built any more: their configurations have changed.
        for config, digest, stale in (("c", "d1", False), ("c", "d2", True), ("other", "d1", True)):
            built = {"kernels": [{"config": config, "compiler": "NVRTC 13.0", "sha256": digest,
                                  "available": True, "kind": "cubin"}]}
            command.write_text(f"#!/bin/sh\necho '{json.dumps(built)}'\n")
            command.chmod(0o700)
            self.assertEqual(self.tables("--command", str(command)), 0)
            self.assertEqual("Stale" in self.readme.read_text(), stale)
            self.assertEqual(self.tables("--check"), 0)

    def test_the_twelve_are_held_against_their_bars(self):
        for error, word in ((1.4e-2, "held"), (1.6e-2, "NOT HELD")):
            report = {"passed": True, "cases": 12, "kernels": 1, "repeat": 2, "rows": [
                {"precision": "fp8", "format": "f16", "cases": 12, "worst_total_error": 5e-2,
                 "worst_kernel_error": error, "worst_bound_ratio": 0.5}]}
            (self.folder / "sm80_twelve.json").write_text(json.dumps(report))
            self.tables()
            self.assertIn(f"6.0e-02, 1.5e-02: {word} |", (self.folder / "sm80.md").read_text())


class Comparison(unittest.TestCase):
    def test_the_grid_has_every_preset_and_each_case_once(self):
        cases = compare_torch.read_grid(ROOT / "bench/grid.csv")
        f16 = [tuple(c.values()) for c in cases if c["dtype"] == "f16"]
        self.assertEqual(len(f16), len(set(f16)))
        self.assertEqual({c["head_dim"] for c in cases}, {64, 128})
        shapes = {c["name"]: (c["batch"], c["heads"], c["length"], c["head_dim"])
                  for c in cases if not c["name"][0].isdigit()}
        self.assertEqual(shapes, {"mission": (1, 8, 512, 64), "small": (2, 8, 512, 64),
                                  "long": (2, 8, 2048, 64), "wide": (2, 8, 512, 128),
                                  "stress": (4, 8, 2048, 64)})
        self.assertEqual([c["name"] for c in cases if c["dtype"] == "sim8"], ["mission"])

    def test_hoppers_grid_has_more_head_dimensions_and_bf16(self):
        cases = compare_torch.read_grid(ROOT / "bench/grid_sm90.csv", "sm90")
        self.assertEqual({c["head_dim"] for c in cases}, {64, 128, 256})
        self.assertEqual({c["dtype"] for c in cases}, {"f16", "bf16"})
        bf16 = [c for c in cases if c["dtype"] == "bf16"]
        self.assertEqual(len(bf16), 5 + 6)

    def test_long_calls_are_fewer_in_a_graph(self):
        self.assertEqual([compare_torch.calls_for(us) for us in (5, 400, 1000, 1e5)],
                         [20, 20, 8, 1])

    def test_a_row_has_medians_their_ratio_and_the_rate(self):
        made = compare_torch.row_of(CASE, 20, [9, 4, 5], [6, 6, 6], {"flash": [10, 9, 30]}, {},
                                    math.nan)
        self.assertEqual((made["octavo_us"], made["peer_us"], made["ratio"]), (5, 10, 2))
        self.assertEqual(made["octavo_gflops"], 4 * 8 * 512 * 512 * 64 / 5e3)
        self.assertEqual(row(causal="top_left")["octavo_gflops"], row()["octavo_gflops"] / 2)
        self.assertIsNone(made["max_difference"])
        self.assertEqual(made["again_ratio"], 1.2)

    def test_the_ratio_is_to_the_fastest_also_of_those_on_record(self):
        recorded = {("1", "8", "512", "64", "none"): {"cudnn": 10.0, "fa3": 6.0}}
        theirs = {"flash": [9] * 3, "cudnn": [8] * 3}
        made = compare_torch.row_of(CASE, 20, [4] * 3, [4] * 3, theirs, {}, 0)
        self.assertEqual((made["peer"], made["ratio"]), ("cudnn", 2))
        made = compare_torch.row_of(CASE, 20, [4] * 3, [4] * 3, theirs, recorded, 0)
        self.assertAlmostEqual(made["ratio"], 6.0 * 8 / 10 / 4)
        self.assertAlmostEqual(made["recorded_us"]["fa3"], 4.8)
        for other in ({**CASE, "dtype": "bf16"}, {**CASE, "heads": 9}):
            made = compare_torch.row_of(other, 20, [4] * 3, [4] * 3, theirs, recorded, 0)
            self.assertEqual(made["recorded_us"], {})
        peers = compare_torch.read_recorded(ROOT / "bench/peers_h200.csv")
        self.assertEqual(set(peers["1", "8", "512", "64", "none"]),
                         {"cudnn", "cudnn_graph", "fa3"})

    def test_what_must_not_be_is_a_failure(self):
        def failures(made, family="sm80"):
            return list(compare_torch.failures_of([made], family))
        self.assertEqual(failures(row()), [])
        self.assertIn("0.667 times as fast", failures(row(theirs=10 / 3))[0])
        self.assertEqual(list(compare_torch.failures_of([row(theirs=10 / 3)], "sm80", 0.6)), [])
        self.assertIn("differs", failures(row(difference=0.02))[0])
        self.assertIn("differs", failures(row(difference=math.nan))[0])
        self.assertEqual(failures(row(difference=0.02, dtype="sim8")), [])
        self.assertIn("ran on sm80_forward", failures(row(), "sm90")[0])

    def test_a_sanitizer_without_a_summary_did_not_pass(self):
        self.assertEqual(sanitize.errors_in("x\n========= ERROR SUMMARY: 0 errors\n"), 0)
        self.assertEqual(sanitize.errors_in("========= ERROR SUMMARY: 1 error\n"), 1)
        self.assertIsNone(sanitize.errors_in("killed"))


class Binding(unittest.TestCase):
    """tools/octavo_c.py against the library itself, on the CPU."""

    def setUp(self):
        self.octavo = octavo_c.Octavo(LIBRARY)

    def test_the_structs_are_those_of_the_header(self):
        types = {"size_t": octavo_c.c_size_t, "int32_t": octavo_c.c_int32, "int64_t": octavo_c.c_int64,
                 "float": octavo_c.c_float, "octavo_tensor": octavo_c.Tensor, "octavo_scales": octavo_c.Scales,
                 "octavo_block_mask": octavo_c.BlockMask, "octavo_group_scales": octavo_c.GroupScales}
        text = re.sub(r"/\*.*?\*/", "", (ROOT / "include/octavo/octavo.h").read_text(), flags=re.DOTALL)
        for name, struct in (("tensor", octavo_c.Tensor), ("scales", octavo_c.Scales), ("options", octavo_c.Options),
                             ("block_mask", octavo_c.BlockMask), ("group_scales", octavo_c.GroupScales),
                             ("arguments", octavo_c.Arguments), ("backward_arguments", octavo_c.BackwardArguments),
                             ("quantize_options", octavo_c.QuantizeOptions)):
            body = re.search(rf"typedef struct octavo_{name} {{(.*?)}} octavo_{name};", text, re.DOTALL)[1]
            wanted = []
            for kind, pointer, members in re.findall(r"(?:const )?(\w+)(\*?) ([^;]+);", body):
                for member in members.split(","):
                    field, _, count = member.strip().rstrip("]").partition("[")
                    of = octavo_c.c_void_p if pointer else types[kind]
                    wanted.append((field, of * int(count) if count else of))
            self.assertEqual(struct._fields_, wanted, name)

    def test_a_struct_has_the_size_that_it_was_made_with(self):
        for made in (self.octavo.arguments(), self.octavo.backward_arguments(), self.octavo.options(), self.octavo.quantize_options()):
            self.assertEqual(made.size, ctypes.sizeof(made))

    def test_a_plan_runs(self):
        shape = (1, 1, 2, 2)
        q, k = array.array("f", [0] * 4), array.array("f", [1, 2, 3, 4])
        v, out = array.array("f", [1, 2, 3, 6]), array.array("f", [math.nan] * 4)
        for causal, want in (("none", [2, 4, 2, 4]), ("top_left", [1, 2, 2, 4])):
            arguments = self.octavo.arguments()
            for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
                setattr(arguments, name,
                        self.octavo.bhsd(x.buffer_info()[0], octavo_c.F32, shape))
            plan = octavo_c.Plan(self.octavo, arguments, self.octavo.options(causal), "cpu")
            self.assertTrue(plan.kernel and plan.config and plan.reason)
            # The CPU needs its workspace at a multiple of 64 bytes.
            memory = array.array("b", bytes(plan.workspace_bytes + 64))
            plan.run(-(-memory.buffer_info()[0] // 64) * 64, None)
            self.assertEqual(list(out), want)

    def test_quantizing_gives_codes_and_a_scale_per_head(self):
        x, codes = array.array("f", [0.5, -1, 2, 4]), array.array("B", [0] * 4)
        scales = array.array("f", [0, 0])
        shape = (1, 2, 1, 2)
        self.octavo.quantize_per_head(
            self.octavo.bhsd(x.buffer_info()[0], octavo_c.F32, shape),
            self.octavo.bhsd(codes.buffer_info()[0], octavo_c.SIM8, shape),
            scales.buffer_info()[0])
        self.assertEqual(list(scales), [1, 4])
        self.assertEqual(list(codes), [192, 1, 192, 255])

    def test_a_refused_call_raises_its_sentence(self):
        with self.assertRaisesRegex(RuntimeError, "supported"):
            octavo_c.Plan(self.octavo, self.octavo.arguments(), self.octavo.options(), "gpu")


if __name__ == "__main__":
    unittest.main()
