#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The report matches the JSON files: parses its page and compares every number with them.

usage: report_test.py ROOT
"""

import html.parser
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tools"))

import report  # noqa: E402

needs_charts = unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not installed")


class Page(html.parser.HTMLParser):
    """The tables of a page by name, as rows of (shown, value); bars; points; and links."""

    VOID = ("meta", "link", "img", "br", "rect", "line", "polyline")

    def __init__(self, text):
        super().__init__()
        self.tables, self.bars, self.points, self.references, self.open = {}, [], [], [], []
        self.identifiers, self.links = [], []
        self.cell = self.bar = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        aims = [v for k, v in attrs.items() if k in ("src", "href")]
        self.links += [aim[1:] for aim in aims if aim.startswith("#")]
        self.references += [aim for aim in aims if not aim.startswith("#")]
        if "id" in attrs:
            self.identifiers.append(attrs["id"])
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = self.tables[attrs["id"]] = []
        elif tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.cell = ["", attrs.get("data-value")]
        elif tag == "g" and "data-value" in attrs:
            self.bar = float(attrs["data-value"])
        elif tag == "path" and self.bar is not None:
            across = [float(x) for x in re.findall(r"[ML] ([-\d.]+)", attrs["d"])]
            self.bars.append((self.bar, max(across) - min(across)))
            self.bar = None
        elif tag == "g" and "data-x" in attrs:
            self.points.append((float(attrs["data-x"]), float(attrs["data-y"])))

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        if not self.open or self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes nothing")
        if tag == "td":
            self.rows[-1].append(tuple(self.cell))
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell[0] += data


def compare_report():
    rows = [{"name": name, "batch": 1, "heads": 8, "length": length, "head_dim": 64, "dtype": "f16",
             "causal": "none", "octavo_us": us, "peer_us": us * 1.5, "octavo_gflops": 1e5 + length,
             "peer": "flash", "peers_us": {"flash": us * 2, "cudnn": us * 1.5},
             "recorded_us": {"fa3": us * 1.25}, "ratio": 1.25}
            for name, length, us in (("mission", 512, 4.9584), ("1,8,1024,64", 1024, 123.456))]
    rows[1]["ratio"] = 0.875
    return {"schema": 1, "kind": "compare", "gpu": {"name": "A <GPU>", "driver": None},
            "peer": {"torch": "2"}, "compiler": "NVRTC 1", "commit": None, "geometric_mean": 1.0458,
            "minimum": 0.875, "failures": ["1,8,1024,64: slow & sad"], "rows": rows}


def check_report():
    return {"schema": 1, "kind": "check", "suite": "twelve", "device": "cuda:0", "passed": True,
            "cases": 3, "repeat": 2, "not_run": 0, "failures": [],
            "rows": [{"precision": "native", "format": "f16", "cases": 3, "worst_total_error": 1.24e-3,
                      "worst_kernel_error": None, "worst_bound_ratio": 0.5}]}


def counters_report():
    metrics = {"time_ns": 6000, "sm_clock_hz": 1.5e9, "tensor_active_pct": 9.3, "dram_read_bytes": 3e6,
               "dram_write_bytes": 1e6, "dram_peak_bytes_per_second": 4e12, "l2_bytes": 20e6,
               "l2_peak_bytes_per_second": 10e12, "dram_pct": None}
    row = {"name": "mission", "batch": 1, "heads": 8, "length": 512, "head_dim": 64, "kernel": "sm90_forward",
           "gflop": 0.54, "metrics": metrics}
    return {"schema": 1, "kind": "counters", "device": "cuda:0", "machine": "NVIDIA H200", "dtype": "f16",
            "attention": {"causal": "none", "precision": "native"}, "cupti": "130001", "passes": 12,
            "measured": True, "not_counted": ["dram_pct: CUPTI has no value."],
            "rows": [row, {**row, "kernel": "preparation"}]}


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.evidence = self.folder / "evidence"
        self.evidence.mkdir()

    def write(self, name, report, folder=None):
        folder = folder or self.evidence
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(report))

    def page(self, *more, folder=None):
        """Runs tools/report.py in this process, because to import matplotlib takes longer than a report."""
        words = ["report.py", "--folder", str(folder or self.evidence), "--out", str(self.folder / "page"), *more]
        with unittest.mock.patch.object(sys, "argv", words):
            report.main()
        return Page((self.folder / "page.html").read_text())

    def test_the_numbers_are_those_of_the_json(self):
        self.write("sm90_compare", compare_report())
        self.write("sm90_twelve", check_report())
        page = self.page()
        rows = page.tables["sm90_compare-cases"][1:]
        for shown, row in zip(rows, compare_report()["rows"], strict=True):
            self.assertEqual(float(shown[2][1]), row["octavo_us"])
            self.assertAlmostEqual(float(shown[2][0]), row["octavo_us"], delta=0.5)
            self.assertEqual(float(shown[4][1]), row["ratio"])
            self.assertEqual(shown[4][0], f"{row['ratio']:.3f}")
        self.assertEqual(rows[0][2][0], "4.96")
        errors = page.tables["sm90_twelve-errors"][1]
        self.assertEqual(errors[2], ("1.2e-03", "0.00124"))
        self.assertEqual(errors[3], ("not measured", "None"))

    def test_rooflines_are_counted_where_they_can_be(self):
        compare = compare_report()
        compare["gpu"]["name"] = "NVIDIA H200"
        self.write("sm90_compare", compare)
        self.write("counters", counters_report())
        page = self.page()
        counted, modelled = page.tables["rooflines"][1:]
        flop = 4 * 8 * 512 * 512 * 64
        self.assertEqual(counted[1][0], "counted")
        self.assertAlmostEqual(float(counted[3][1]), 4)  # MB of DRAM
        # L2 is the slowest: 20 MB at 10 TB/s; DRAM takes 1 us, the tensor cores 0.66 at that clock.
        self.assertAlmostEqual(float(counted[5][1]), 2)
        self.assertEqual(counted[7][0], "L2")
        self.assertAlmostEqual(float(counted[6][1]), 2 / 4.9584)
        self.assertEqual(modelled[1][0], "model")
        self.assertAlmostEqual(float(modelled[3][1]), 4 * 8 * 1024 * 64 * 2 / 1e6)
        self.assertAlmostEqual(float(modelled[5][1]), 4 * flop / (132 * 4096 * 1.98e9) * 1e6)
        self.assertEqual(modelled[7][0], "tensor cores")

    def test_counters_are_shown_and_what_is_missing_is_said(self):
        self.write("counters", counters_report())
        page = self.page()
        first, second = page.tables["counters-counters"][1:]
        self.assertEqual(first[2], ("9.3", "9.3"))
        self.assertEqual(first[5], ("not counted", "None"))
        self.assertEqual(first[9], ("1500", "1500.0"))
        self.assertEqual(second[1][0], "preparation")
        self.assertIn("Not counted: dram_pct", (self.folder / "page.md").read_text())
        self.assertEqual(len(page.tables["rooflines"]), 2, "one kernel of the call is attention")
        self.write("counters", {**counters_report(), "measured": False, "not_measured": "no CUPTI.", "rows": []})
        self.page()
        self.assertIn("Not measured: no CUPTI.", (self.folder / "page.md").read_text())

    def test_times_from_python(self):
        times = {"median_us": 5.25, "samples_us": [5.25]}
        row = {"name": "mission", "shape": [1, 8, 512, 64], "backend": "flash", "octavo": times,
               "peer": {"median_us": 10.5}, "ratio": 2.0, "ratio_interval": [1.9, 2.1], "again_ratio": 0.99}
        missing = {**row, "backend": "xformers", "peer": None, "not_available": "no module"}
        self.write("python", {"kind": "python_bench", "torch": "2", "dtype": "float16", "gpu": "A GPU", "l2": "cold",
                              "rows": [row, missing]})
        there, not_there = self.page().tables["python-python"][1:]
        self.assertEqual([c[0] for c in there], ["mission 1,8,512,64", "flash", "5.25", "10.50", "2.000",
                                                 "1.900 to 2.100", "0.990"])
        self.assertEqual(not_there[3][0], "not available")
        self.assertIn("L2 overwritten before each call", (self.folder / "page.md").read_text())

    def test_no_roofline_of_a_gpu_that_is_not_known(self):
        self.write("sm90_compare", compare_report())
        self.assertNotIn("rooflines", self.page().tables)

    @needs_charts
    def test_points_are_those_of_the_json(self):
        compare = compare_report()
        compare["gpu"]["name"] = "NVIDIA H200"
        self.write("sm90_compare", compare)
        self.write("sm90_twelve", check_report())
        self.write("counters", counters_report())
        points = self.page().points
        self.assertIn((4.9584, 1.24e-3), points, "error against speed")
        self.assertIn((1024.0, 123.456), points, "latency against length")
        flop = 4 * 8 * 512 * 512 * 64
        self.assertTrue(any(abs(y - flop / 4.9584e-6 / 1e12) < 1e-9 for _, y in points), "rooflines")

    def test_it_begins_with_a_summary_and_links_to_every_section(self):
        self.write("sm90_compare", compare_report())
        self.write("sm90_twelve", check_report())
        page = self.page()
        sections = [name for name in page.identifiers if name.startswith("section-")]
        self.assertGreaterEqual(len(sections), 3)
        self.assertEqual([link for link in page.links if link.startswith("section-")], sections)
        self.assertLess(set(page.links), set(page.identifiers))
        text = (self.folder / "page.md").read_text()
        self.assertTrue(text.startswith("# Octavo on A <GPU>\n"))
        self.assertIn("- **Speed, Hopper kernels: 1.05 times that of the best other library", text)
        self.assertIn("- Errors against fp64: 3 cases in 1 run, no failure.", text)
        self.assertIn("## Speed beside other libraries: Hopper kernels", text)

    def test_without_matplotlib_the_tables_remain(self):
        self.write("sm90_compare", compare_report())
        (self.folder / "matplotlib.py").write_text("raise ImportError\n")
        done = subprocess.run([sys.executable, str(ROOT / "tools/report.py"), "--folder", str(self.evidence), "--out",
                               str(self.folder / "page")], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(self.folder)})
        self.assertEqual(done.returncode, 0, done.stderr)
        text = (self.folder / "page.html").read_text()
        self.assertIn("matplotlib is not installed", text)
        self.assertNotIn("<svg", text)
        self.assertEqual(len(Page(text).tables["sm90_compare-cases"]), 3)

    @needs_charts
    def test_bars_are_as_long_as_they_say(self):
        self.write("sm90_compare", compare_report())
        page = self.page()
        means, cases = page.bars[:3], page.bars[3:]
        for (value, _), wanted in zip(means, (1.5, 1.25, 2.0), strict=True):  # cudnn, fa3, flash
            self.assertAlmostEqual(value, wanted)
        self.assertEqual([value for value, _ in cases], [1.25, 0.875])
        for bars in (means, cases):
            for value, width in bars:
                self.assertAlmostEqual(width / value, bars[0][1] / bars[0][0], places=1)

    def test_one_file_that_needs_nothing_else(self):
        self.write("sm90_compare", compare_report())
        page = self.page()
        self.assertEqual(page.references, [])
        self.assertEqual(page.open, [], "every element is closed")
        text = (self.folder / "page.html").read_text()
        for wanted in ('name="viewport"', "prefers-color-scheme: dark", "@media print",
                       "A &lt;GPU&gt;", "slow &amp; sad"):
            self.assertIn(wanted, text)

    def test_what_changed_since(self):
        self.write("sm90_compare", compare_report())
        old = compare_report()
        old["rows"][0]["octavo_us"] *= 2
        old["rows"][1]["name"] = "gone"
        self.write("sm90_compare", old, self.folder / "before")
        changes = self.page("--before", str(self.folder / "before")).tables["changes"][1:]
        self.assertEqual(len(changes), 1)
        self.assertEqual(changes[0][4][0], "-50.0%")
        self.assertIn("1 are new, 1 are gone", (self.folder / "page.md").read_text())

    def test_markdown_has_the_tables(self):
        self.write("sm90_compare", compare_report())
        self.page()
        text = (self.folder / "page.md").read_text()
        self.assertIn("| mission 1,8,512,64 | f16 | 4.96 | 6.20 | 1.250 | 101 |", text)
        self.assertNotIn("<svg", text)

    def test_the_evidence_of_this_repository(self):
        folders = [p for p in (ROOT / "evidence").glob("*") if list(p.glob("*_compare.json"))]
        for folder in folders:
            page = self.page(folder=folder)
            for path in folder.glob("*_compare.json"):
                rows = json.loads(path.read_text())["rows"]
                shown = page.tables[f"{path.stem}-cases"][1:]
                self.assertEqual([float(s[2][1]) for s in shown], [r["octavo_us"] for r in rows])

    def test_a_folder_without_reports_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "has no reports"):
            self.page()


if __name__ == "__main__":
    unittest.main()
