# SPDX-License-Identifier: Apache-2.0
"""The ladder: kernels short enough to read at once, and pages that say what was measured and what the emulator reports.

usage: ladder_test.py REPOSITORY [COMMAND]     COMMAND: octavo, built with the emulator
"""

import contextlib
import io
import json
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
COMMAND = sys.argv.pop(1) if len(sys.argv) > 1 else None
sys.path.insert(0, str(ROOT / "tools"))
import ladder_tables as tables  # noqa: E402

MOST_LINES = 200


def run(*arguments):
    with mock.patch.object(sys, "argv", ["ladder_tables.py", *arguments]), contextlib.redirect_stdout(io.StringIO()):
        tables.main()


def row(kernel, us, previous=None):
    return {"name": "mission", "batch": 1, "heads": 8, "length": 512, "head_dim": 64, "kernel": kernel, "median_us": us,
            "gflops": 537e3 / us, "vs_previous": previous, "vs_octavo": 4 / us}


REPORT = {"machine": "NVIDIA H200", "rows": [row("scalar", 100.04), row("tiled", 50, 2.0008), row("tensor_cores", 25, 2),
                                             row("async_copies", 12.5, 2), row("specialised_warps", 5, 2.5),
                                             row("sm90_forward", 4)]}


class Ladder(unittest.TestCase):
    def test_kernels_are_short(self):
        for rung in tables.RUNGS:
            lines = (ROOT / f"src/device/ladder/{rung}.cuh").read_text().count("\n")
            self.assertLessEqual(lines, MOST_LINES, rung)

    def test_every_rung_is_faster_than_the_one_before(self):
        """At the mission shape by half at least, as measured; every rung right."""
        report = json.loads(tables.EVIDENCE.read_text())
        self.assertTrue(report["passed"])
        rows = [row for row in report["rows"] if row["name"] == "mission"]
        self.assertEqual([row["kernel"] for row in rows[:-1]], list(tables.RUNGS))
        for row in rows[1:-1]:
            self.assertGreaterEqual(row["vs_previous"], 1.5, row["kernel"])

    def test_the_pages_are_those_of_the_tool(self):
        run("--check", *(["--command", COMMAND] if COMMAND else []))

    def test_every_mutant_of_the_pages_is_caught(self):
        for rung in tables.RUNGS:
            page = (tables.PAGES / f"{rung}.md").read_text()
            lines = page.split(tables.HAZARDS[0])[1].split(tables.HAZARDS[1])[0].strip().splitlines()[2:]
            self.assertGreaterEqual(len(lines), 1 if rung == "scalar" else 5)
            for line in lines:
                self.assertNotEqual(line.strip(" |").split("|")[-1].strip(), "", line)

    def test_times_come_from_the_evidence(self):
        with tempfile.TemporaryDirectory() as folder:
            pages = pathlib.Path(folder) / "ladder"
            shutil.copytree(tables.PAGES, pages)
            evidence = pathlib.Path(folder) / "ladder.json"
            with mock.patch.object(tables, "PAGES", pages), mock.patch.object(tables, "EVIDENCE", evidence):
                run()
                self.assertIn("not been measured yet", (pages / "index.md").read_text())
                evidence.write_text(json.dumps(REPORT))
                self.assertRaises(SystemExit, run, "--check")
                run()
                run("--check")
            index, tiled = (pages / "index.md").read_text(), (pages / "tiled.md").read_text()
            self.assertIn("| mission (1, 8, 512, 64) | 100.0 | 50.00 | 25.00 | 12.50 | 5.00 | 4.00 |", index)
            self.assertIn("| mission (1, 8, 512, 64) | 50.00 | 10.7 | 2.00 | 8% |", tiled)
            self.assertNotIn("not been measured yet", index + tiled)


if __name__ == "__main__":
    unittest.main()
