#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The evidence tools with a fake octavo and a fake ncu: the arguments they are called with, the handling
of their output, and of one that does not end.

usage: tools_test.py ROOT
"""

import json
import lzma
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()

COUNTERS = {"kind": "counters", "measured": True,
            "names": [{"key": "a", "metric": "sm__a.sum"}, {"key": "b", "metric": None},
                      {"key": "c", "metric": "dram__c.avg"}]}
# Writes its arguments into calls, and a counters report if one is requested.
OCTAVO = f"""#!/bin/sh
echo octavo "$@" >>"$CALLS"
case "$1" in
  counters) while [ "$1" != --json ]; do shift; done; echo '{json.dumps(COUNTERS)}' >"$2" ;;
  check) sleep "${{SLOW:-0}}" ;;
  evidence)
    [ "${{VERIFY:-0}}" = 0 ] || exit "$VERIFY"
    [ "$4" = --unpack ] || exit 0
    mkdir "$5" && tar -xzf "$3" --strip-components=1 -C "$5" &&
      sed -nE 's/^(gpu|commit): (.*)/"\\1": \\2/p' "$5/manifest.yaml" | paste -sd, | sed 's/.*/{{&}}/' >"$7" ;;
esac
"""
NCU = """#!/bin/sh
echo ncu "$@" >>"$CALLS"
case "$1" in
  --import) echo '"ID","sm__a.sum"' ;;
  *) while [ "$1" != --export ]; do shift; done; [ -n "$NCU_FAILS" ] || echo report >"$2.ncu-rep"; exit 9 ;;
esac
"""


def twelve(repeat):
    return {"passed": True, "cases": 12, "kernels": 1, "repeat": repeat, "rows": [], "failures": []}


class ToolsTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for name, text in (("octavo", OCTAVO), ("ncu", NCU)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}",
                            "CALLS": str(self.folder / "calls"), "OCTAVO": str(self.folder / "octavo"),
                            "PYTHON": sys.executable}

    def run_tool(self, *words, **more):
        return subprocess.run([str(ROOT / words[0]), *words[1:]], capture_output=True, text=True,
                              env={**self.environment, **more}, cwd=self.folder)

    def calls(self):
        return (self.folder / "calls").read_text().splitlines()

    def test_ncu_is_asked_for_the_metrics_that_octavo_counts(self):
        out = self.folder / "out"
        done = self.run_tool("tools/profile_ncu.sh", "1,8,512,64", "3", "--config", "stages=2", "--causal",
                             "top_left", "--out", str(out))
        self.assertEqual(done.returncode, 0, done.stderr)
        count, profile, read = self.calls()
        self.assertIn("counters --device cuda --shape 1,8,512,64 --config stages=2 --causal top_left", count)
        self.assertIn("--metrics sm__a.sum,dram__c.avg ", profile)
        self.assertIn("--launch-count 3 ", profile)
        self.assertIn("bench --device cuda", profile)
        self.assertIn("--config stages=2 --causal top_left", profile)
        self.assertIn("--import", read)
        for end in ("ncu-rep", "csv", "counters.json"):
            self.assertTrue((out / f"1x8x512x64_top_left.{end}").stat().st_size > 0, end)

    def test_a_profile_that_was_not_made_is_a_failure(self):
        done = self.run_tool("tools/profile_ncu.sh", "mission", "3", "--out", str(self.folder), NCU_FAILS="1")
        self.assertEqual(done.returncode, 1)

    def test_bad_words_are_two(self):
        for words in (["mission"], ["mission", "0"], ["mission", "x"], ["mission", "1", "--speed", "2"]):
            self.assertEqual(self.run_tool("tools/profile_ncu.sh", *words).returncode, 2, words)

    def test_a_step_that_does_not_end_has_failed(self):
        out, begin = self.folder / "artifacts", time.monotonic()
        done = self.run_tool("repro.sh", "--build", str(self.folder), "--tests", "none", "--device", "emulator",
                             "--limit", "1", "--out", str(out), SLOW="60")
        self.assertEqual(done.returncode, 1)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertIn("\ncheck,failed,", (out / "repro/steps.csv").read_text())
        self.assertIn("\nkernels,done,", (out / "repro/steps.csv").read_text())

    def live(self, *words, **more):
        """evidence.sh live with a fake Python, which notes its arguments and writes the report."""
        fake = self.folder / "python"
        fake.write_text(f"""#!/bin/sh
echo "python ${{OCTAVO_KERNELS:-any}} $@" >>"$CALLS"
case "$1" in tools/compare*) ;; *) exec {sys.executable} "$@" ;; esac
[ -z "$FAILS" ] || exit 1
while [ "$1" != --json ]; do shift; done; echo '{{}}' >"$2"
""")
        fake.chmod(0o755)
        (self.folder / "CMakeCache.txt").write_text("")
        peers = self.folder / "peers"
        peers.mkdir(exist_ok=True)
        (peers / "a.so.xz").write_bytes(lzma.compress(b"library"))
        return self.run_tool("tools/evidence.sh", "live", "--build", str(self.folder), "--peers", str(peers), "--commit",
                             "a" * 40, *words, **{"PYTHON": str(fake), **more})

    def test_the_live_comparison_has_a_budget_for_each_part(self):
        out = self.folder / "bundles"
        done = self.live("--bundle", str(out), "--seconds", "285", "--parts", "forward,fp8")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        forward, fp8 = (c for c in self.calls() if "tools/compare" in c)
        # 50 and 110, 40 and 85 of 285.
        self.assertIn("--burst-budget 50 --sustained-budget 110 --json", forward)
        self.assertIn("--burst-budget 40 --sustained-budget 85 --json", fp8)
        self.assertTrue(forward.startswith("python sm90 tools/compare_torch.py"), forward)
        self.assertIn("--regimes burst,sustained", forward)
        self.assertIn("--peers fa3,cudnn,flash", forward)
        (bundle,) = out.iterdir()
        self.assertTrue(bundle.name.startswith("evidence_live_aaaaaaa_"))
        with tarfile.open(bundle) as packed:
            names = sorted(name.partition("/")[2] for name in packed.getnames())
        self.assertEqual(names, ["", "manifest.yaml", "sm90_8bit.json", "sm90_compare.json"])
        if shutil.which("xz"):
            self.assertEqual((self.folder / "peers/a.so").read_bytes(), b"library")

    def test_models_run_on_any_kernel_and_backward_when_asked(self):
        done = self.live("--out", str(self.folder / "out"), "--parts", "models,backward")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        models, backward = (c for c in self.calls() if "tools/compare" in c)
        self.assertTrue(models.startswith("python any tools/compare_torch.py"), models)
        self.assertIn("--models bench/models.csv", models)
        self.assertIn("--mode backward --peers fa3,fa3_deterministic,cudnn,flash", backward)

    def test_reports_written_into_the_evidence_renew_its_manifest(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "manifest.yaml").write_text("octavo_bundle: 1\nkernels:\nfiles:\n")
        done = self.live("--out", str(out), "--parts", "models")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f'"commit": "{"a" * 40}"', (out / "manifest.yaml").read_text())
        self.assertEqual(self.run_tool("tools/manifest.py", "--folder", str(out), "--check").stdout, "\n")

    def test_a_part_that_fails_does_not_stop_the_others(self):
        done = self.live("--bundle", str(self.folder / "bundles"), FAILS="1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("failed: live, forward live, models live, fp8", done.stdout)

    def test_all_is_one_build_and_every_bundle_adopted(self):
        root = self.folder / "copy"
        for name in ("tools", "build-repro"):
            (root / name).mkdir(parents=True)
        for name in ("evidence.sh", "manifest.py"):
            shutil.copy(ROOT / "tools" / name, root / "tools")
        scripts = {"repro.sh": 'echo repro "$@" >>"$CALLS"; mkdir -p "$2"; echo x >"$2/repro_bundle_x.tar.gz"',
                   "build-repro/octavo": "exit 0",
                   "python": 'echo python "$@" >>"$CALLS"; case "$1" in tools/manifest.py) exec '
                             f'{sys.executable} "$@" ;; esac; while [ $# -gt 1 ]; do [ "$1" != --json ] || '
                             'echo "{}" >"$2"; shift; done'}
        for name, text in scripts.items():
            (root / name).write_text(f"#!/bin/sh\n{text}\n")
            (root / name).chmod(0o755)
        (root / "build-repro/CMakeCache.txt").write_text("")
        done = subprocess.run([root / "tools/evidence.sh", "all", "--commit", "a" * 40], capture_output=True, text=True,
                              env={**self.environment, "PYTHON": str(root / "python")}, cwd=self.folder, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        calls = self.calls()
        self.assertIn("repro --out", calls[0])
        self.assertIn(f"--commit {'a' * 40}", calls[0])
        adopted = calls[-1].split()
        self.assertEqual(adopted[:2], ["python", "tools/adopt_bundle.py"])
        names = [pathlib.Path(word).name.rpartition("_")[0] for word in adopted if word.endswith(".tar.gz")]
        self.assertEqual(names, ["evidence_sm80_aaaaaaa", "evidence_sm90_aaaaaaa", "repro_bundle"])
        self.assertEqual(len(list((root / "artifacts").glob("*.tar.gz"))), 3)
        for part in ("compare", "models", "8bit"):
            self.assertEqual(sum(f"/sm90_{part}.json" in call for call in calls), 1, part)

    def test_bad_words_of_the_live_comparison_are_two(self):
        for words in (("--parts", "sideways"), ("--seconds", "0"), ("--seconds", "x")):
            self.assertEqual(self.live(*words).returncode, 2, words)

    def bundle(self, gpu, commit="c1", name="bundle", files=None, kernels=()):
        """One of repro.sh, or with other files than its own one of evidence.sh."""
        made = self.folder / name
        made.mkdir()
        lines = ["octavo_bundle: 1", f"gpu: {json.dumps(gpu)}", f"commit: {json.dumps(commit)}", "kernels:",
                 *(f"  - {json.dumps(kernel)}" for kernel in kernels), "files:"]
        compare = json.loads((ROOT / "evidence/nvidia-h200/sm90_compare.json").read_text())
        for file, content in (files or {"bench/compare.json": compare, "ncu/counters.json": COUNTERS,
                                        "bench/twelve.json": twelve(2), "repro/gate.log": ""}).items():
            (made / file).parent.mkdir(parents=True, exist_ok=True)
            (made / file).write_text(json.dumps(content))
        (made / "manifest.yaml").write_text("\n".join(lines) + "\n")
        path = self.folder / f"{name}.tar.gz"
        with tarfile.open(path, "w:gz") as packed:
            packed.add(made, "repro_bundle_x")
        return path

    def adopt(self, *paths, **more):
        return self.run_tool("tools/adopt_bundle.py", *map(str, paths), "--command", str(self.folder / "octavo"),
                             "--root", str(self.folder), **more)

    def test_a_bundle_becomes_the_evidence_of_its_gpu(self):
        done = self.adopt(self.bundle("Fake GPU 9"))
        self.assertEqual(done.returncode, 0, done.stderr)
        into = self.folder / "evidence/fake-gpu-9"
        self.assertEqual(sorted(p.name for p in into.iterdir()),
                         ["manifest.yaml", "sm90.md", "sm90_compare.json", "sm90_counters.json", "sm90_twelve.json"])
        self.assertEqual(json.loads((into / "sm90_counters.json").read_text()), COUNTERS)
        self.assertEqual(self.run_tool("tools/manifest.py", "--folder", str(into), "--check").returncode, 0)
        self.assertIn(f"octavo evidence verify {into}", self.calls()[-1])

    def test_bundles_of_one_commit_become_one_evidence(self):
        kernel = {"kernel": "k", "config": "c", "arch": 90, "kind": "cubin", "compiler": "n", "sha256": "d1"}
        repro = self.bundle("Fake GPU 9", kernels=[kernel])
        reports = {"sm90_models.json": {"kind": "x", "rows": [], "failures": []}, "sm90_twelve.json": twelve(1000),
                   "sm90_8bit_checks/fp8_7.json": {"passed": True}}
        other = self.bundle("Fake GPU 9", name="other", files=reports, kernels=[kernel])
        into = self.folder / "evidence/fake-gpu-9"
        into.mkdir(parents=True)
        (into / "sm90_search.csv").write_text("older")
        done = self.adopt(other, repro)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads((into / "sm90_twelve.json").read_text()), twelve(1000))
        self.assertTrue((into / "sm90_8bit_checks/fp8_7.json").is_file())
        manifest = (into / "manifest.yaml").read_text()
        self.assertEqual(manifest.count(json.dumps(kernel)), 1)
        for bundle in (repro, other):
            self.assertIn(f'"name": "{bundle.name}"', manifest)
        self.assertIn("of other commits:\n  sm90_search.csv (commit not recorded)\n", done.stdout)
        # A later bundle of another commit leaves these; they keep their commit.
        self.assertEqual(self.adopt(self.bundle("Fake GPU 9", "c2", "later", {"sm90_models.json": {"rows": [], "failures": []}})
                                    ).returncode, 0)
        entries = {e["path"]: e.get("commit") for line in (into / "manifest.yaml").read_text().splitlines()
                   if line.startswith('  - {"path"') for e in [json.loads(line[4:])]}
        self.assertEqual((entries["sm90_models.json"], entries["sm90_twelve.json"], entries["sm90_search.csv"]),
                         ("c2", "c1", None))

    def test_bundles_that_differ_are_not_adopted(self):
        kernel = {"kernel": "k", "config": "c", "arch": 90, "kind": "cubin", "compiler": "n", "sha256": "d1"}
        first = self.bundle("Fake GPU 9", kernels=[kernel])
        for i, (gpu, commit, digest, said) in enumerate((
                ("Fake GPU 8", "c1", "d1", "the GPU is Fake GPU 9 and Fake GPU 8; supported"),
                ("Fake GPU 9", "c2", "d1", "the commit is c1 and c2; supported"),
                ("Fake GPU 9", "c1", "d2", "the kernel c has two digests; supported"))):
            done = self.adopt(first, self.bundle(gpu, commit, f"other{i}", kernels=[{**kernel, "sha256": digest}]))
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr)
        self.assertFalse((self.folder / "evidence").exists())

    def test_a_bundle_that_does_not_verify_is_not_adopted(self):
        self.assertNotEqual(self.adopt(self.bundle("Fake GPU 9"), VERIFY="1").returncode, 0)
        self.assertNotEqual(self.adopt(self.bundle(None, name="cpu")).returncode, 0)
        self.assertFalse((self.folder / "evidence").exists())


def archive_of(*kernels):
    """A kernel archive of (name, lines of PTX)."""
    data = b"octavo kernels 1\n"
    for name, lines in kernels:
        meta = json.dumps({"name_expression": name, "kind": "ptx"}).encode()
        image = f".visible .entry {name}octavo()\n{lines}\n".encode()
        data += b"key %d %d\n" % (len(meta), len(image)) + meta + image
    return data


class SourceToolsTest(unittest.TestCase):
    def compare(self, old, new):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / name for name in ("old", "new")]
            for path, data in zip(paths, (old, new)):
                path.write_bytes(data)
            done = subprocess.run([sys.executable, ROOT / "tools/compare_sass.py", *paths],
                                  capture_output=True, text=True, timeout=60)
            return done.returncode, done.stdout + done.stderr

    def test_compare_sass_ignores_names_and_nothing_else(self):
        before = archive_of(("f", "add;"), ("g", "mul;"))
        self.assertEqual(self.compare(before, archive_of(("h", "add;"), ("i", "mul;")))[0], 0)
        code, said = self.compare(before, archive_of(("f", "add;"), ("g", "sub;")))
        self.assertEqual(code, 1)
        self.assertIn("2 kernels, 1 with the same code, 1 different", said)
        self.assertEqual(self.compare(before, archive_of(("f", "add;")))[0], 1)
        self.assertIn("is not a kernel archive", self.compare(before, b"other")[1])

    def test_tables_of_kernel_pages_are_those_of_the_evidence(self):
        def check(root):
            return subprocess.run([sys.executable, root / "tools/kernel_tables.py", "--check"], capture_output=True,
                                  text=True, timeout=60)

        said = check(ROOT)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        with tempfile.TemporaryDirectory() as made:
            copy = pathlib.Path(made)
            for folder in ("tools", "docs", "evidence/nvidia-h200"):
                shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
            page = copy / "docs/kernels/wide_heads.md"
            page.write_text(page.read_text().replace("| 1109, ", "| 1108, "))
            self.assertIn("docs/kernels/wide_heads.md is not what", check(copy).stderr)

    def test_readability_is_within_its_limits(self):
        ran = subprocess.run([sys.executable, ROOT / "tools/readability.py"], capture_output=True,
                             text=True, timeout=60)
        counts = [int(line.split()[0]) for line in ran.stdout.splitlines()]
        self.assertEqual(len(counts), 5)
        self.assertTrue(all(count > 0 for count in counts))
        self.assertNotIn("too many", ran.stdout)
        self.assertEqual(ran.returncode, 0, ran.stdout)


if __name__ == "__main__":
    unittest.main()
