#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/adopt_bundle.py with the real command: only the files that were verified become evidence, and
nothing is written outside evidence/<GPU>.

usage: adopt_test.py ROOT OCTAVO
"""

import hashlib
import io
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
COUNTERS = json.dumps({"kind": "counters", "measured": True, "names": []})
COMPARE = json.loads((ROOT / "evidence/nvidia-h200/sm90_compare.json").read_text())


def bundle_files(gpu="Fake GPU 9", family="sm90"):
    """The files of a bundle with their manifest."""
    files = {"bench/compare.json": json.dumps({**COMPARE, "family": family}), "ncu/counters.json": COUNTERS,
             "repro/steps.csv": "step\n"}
    lines = ["octavo_bundle: 1", 'commit: "1a2b3c"', f"gpu: {json.dumps(gpu)}", "kernels:", "files:"]
    for path, text in files.items():
        digest = hashlib.sha256(text.encode()).hexdigest()
        lines.append("  - " + json.dumps({"path": path, "bytes": len(text), "sha256": digest}))
    return {"manifest.yaml": "\n".join(lines) + "\n", **files}


class AdoptTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.root = self.folder / "inner/root"  # a path that leads out by two steps stays in self.folder
        self.root.mkdir(parents=True)

    def pack(self, *folders):
        """An archive of (folder, files)."""
        path = self.folder / "bundle.tar.gz"
        with tarfile.open(path, "w:gz") as packed:
            for folder, files in folders:
                for name, text in files.items():
                    member = tarfile.TarInfo(f"{folder}/{name}")
                    member.size = len(text)
                    packed.addfile(member, io.BytesIO(text.encode()))
        return path

    def adopt(self, path):
        return subprocess.run([sys.executable, ROOT / "tools/adopt_bundle.py", path, "--command", OCTAVO, "--root", self.root],
                              capture_output=True, text=True)

    def written(self):
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*")
                      if p.is_file() and p.name != "bundle.tar.gz")

    def expect_refused(self, path, part=""):
        done = self.adopt(path)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn(part, done.stdout + done.stderr)
        self.assertEqual(self.written(), [])

    def test_a_bundle_becomes_the_evidence_of_its_gpu(self):
        done = self.adopt(self.pack(("repro_bundle_x", bundle_files())))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        into = self.root / "evidence/fake-gpu-9"
        self.assertEqual(sorted(p.name for p in into.iterdir()),
                         ["manifest.yaml", "repro_steps.csv", "sm90.md", "sm90_compare.json", "sm90_counters.json"])
        self.assertEqual((into / "sm90_counters.json").read_text(), COUNTERS)

    def test_a_changed_file_is_not_adopted(self):
        files = bundle_files()
        files["bench/compare.json"] = files["bench/compare.json"].replace("1", "2", 1)
        self.expect_refused(self.pack(("x", files)), "bench/compare.json: does not have the digest")

    def test_a_second_folder_is_not_merged(self):
        forged = {"bench/compare.json": json.dumps({**COMPARE, "commit": "forged", "family": "sm90"})}
        for folders in ([("a", bundle_files()), ("b", forged)], [("b", forged), ("a", bundle_files())],
                        [("a", bundle_files()), ("b", bundle_files())]):
            self.expect_refused(self.pack(*folders), "more than one folder")

    def test_a_second_member_of_one_name_does_not_win(self):
        files = bundle_files()
        forged = {"bench/compare.json": json.dumps({**COMPARE, "commit": "forged"})}
        self.expect_refused(self.pack(("a", forged), ("a", files)), "two members")
        self.expect_refused(self.pack(("a", files), ("a/.", forged)))

    def test_a_gpu_that_is_a_path_is_refused(self):
        for gpu in ("../..", "../../out", "/tmp", "a/b", ".hidden", "x" * 200, "a\n../.."):
            self.expect_refused(self.pack(("a", bundle_files(gpu=gpu))), "gpu: is not a name")

    def test_a_family_that_is_a_path_is_refused(self):
        for family in ("../../x", "/tmp/x", "sm70", ["sm90"]):
            self.expect_refused(self.pack(("a", bundle_files(family=family))), "supported: sm80, sm90")

    def test_a_bundle_without_a_gpu_or_without_files_is_refused(self):
        self.expect_refused(self.pack(("a", bundle_files(gpu=None))), "without a GPU")
        manifest = bundle_files()["manifest.yaml"].split("files:")[0] + "files:\n"
        self.expect_refused(self.pack(("a", {"manifest.yaml": manifest})), "files: the bundle has none")


if __name__ == "__main__":
    unittest.main()
