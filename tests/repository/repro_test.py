#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""repro.sh on an existing build: the files it writes, the steps it reports as skipped, and that the
bundle verifies; then the same bundle with a changed file.

usage: repro_test.py ROOT OCTAVO
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
OCTAVO = pathlib.Path(sys.argv.pop(1)).resolve()


def repro(*arguments):
    return subprocess.run([str(ROOT / "repro.sh"), *arguments], capture_output=True, text=True)


class ReproTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out = pathlib.Path(tempfile.mkdtemp())
        cls.done = repro("--build", str(OCTAVO.parent), "--tests", "none", "--device", "cpu", "--cases",
                         "2", "--iters", "1", "--out", str(cls.out))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.out)

    def test_it_says_what_it_did_not_do(self):
        self.assertEqual(self.done.returncode, 0, self.done.stdout + self.done.stderr)
        for line in ("tests: --tests none", "gate: performance: no --baseline", "compare: no GPU",
                     "GPU kernels: no GPU: they were not run"):
            self.assertIn(line, self.done.stdout)

    def test_the_artifacts(self):
        for name in ("bench/bench.json", "bench/twelve.json", "repro/gate.json", "repro/kernels.json",
                     "repro/steps.csv", "report.html", "report.md", "manifest.yaml", "ncu"):
            self.assertTrue((self.out / name).exists(), name)
        gates = json.loads((self.out / "repro/gate.json").read_text())["gates"]
        self.assertEqual([g["state"] for g in gates[1:]], ["passed", "not measured", "not measured"])

    def test_the_manifest(self):
        lines = (self.out / "manifest.yaml").read_text().splitlines()
        values = dict(line.split(": ", 1) for line in lines if not line.startswith(" ") and ": " in line)
        for key in ("commit", "driver", "cuda", "pytorch", "gpu", "clock_mhz", "kernels_sha256"):
            json.loads(values[key])  # a value, or null
        self.assertEqual(values["octavo_bundle"], "1")

    def test_the_bundle_verifies_until_a_file_changes(self):
        (bundle,) = self.out.glob("repro_bundle_*.tar.gz")
        verify = [str(OCTAVO), "evidence", "verify"]
        self.assertEqual(subprocess.run([*verify, str(bundle)], capture_output=True).returncode, 0)
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(bundle) as packed:
                packed.extractall(folder, filter="data")
            (unpacked,) = pathlib.Path(folder).iterdir()
            bench = unpacked / "bench/bench.json"
            bench.write_text(bench.read_text().replace('"median_us": ', '"median_us": 0'))
            told = subprocess.run([*verify, str(unpacked)], capture_output=True, text=True)
            self.assertEqual(told.returncode, 1)
            self.assertIn("bench/bench.json: does not have the digest", told.stdout)

    def test_an_adopted_bundle_verifies_in_the_repository_too(self):
        (bundle,) = self.out.glob("repro_bundle_*.tar.gz")
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            with tarfile.open(bundle) as packed:
                packed.extractall(folder / "packed", filter="data")
            (unpacked,) = (folder / "packed").iterdir()
            manifest = unpacked / "manifest.yaml"  # its own digest is in no list
            lines = ['gpu: "Fake GPU 9"' if line.startswith("gpu:") else line
                     for line in manifest.read_text().splitlines()]
            manifest.write_text("\n".join(lines) + "\n")
            with tarfile.open(folder / "made.tar.gz", "w:gz") as packed:
                packed.add(unpacked, unpacked.name)
            (folder / "README.md").write_text("<!-- evidence: made by tools/evidence_tables.py -->\n"
                                              "<!-- evidence: end -->\n")
            done = subprocess.run([sys.executable, ROOT / "tools/adopt_bundle.py", folder / "made.tar.gz",
                                   "--command", OCTAVO, "--root", folder], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            evidence = folder / "evidence/fake-gpu-9"
            self.assertTrue((evidence / "all_bench.json").is_file())
            verify = [str(OCTAVO), "evidence", "verify", str(evidence)]
            self.assertEqual(subprocess.run(verify, capture_output=True).returncode, 0)
            (evidence / "all_bench.json").write_text("{}")
            self.assertEqual(subprocess.run(verify, capture_output=True).returncode, 1)

    def test_bad_options_are_two(self):
        for bad in (["--tests", "some"], ["--speed"], ["--out"]):
            done = repro(*bad)
            self.assertEqual(done.returncode, 2, bad)
            self.assertIn("repro.sh: ", done.stderr)


if __name__ == "__main__":
    unittest.main()
