#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes bundles of one commit the evidence of their GPU: JSON, pages, manifest and the README's tables.

usage: adopt_bundle.py BUNDLE... [--command build/octavo] [--root FOLDER]

A bundle is one of ./repro.sh or of tools/evidence.sh --bundle. Each is verified first; all must be of
the same GPU, the same commit and the same kernels. Where two bundles have the same report, such as
suite `twelve`, that of tools/evidence.sh is taken, which repeats more. Nothing is written unless all
bundles can be adopted. The folder is verified at the end. Reports that no bundle has remain, and the
manifest keeps the commit that they were measured at; their names are printed.
"""

import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import manifest

# The files of a bundle of repro.sh, and their names in evidence/.
REPORTS = {
    "bench/compare.json": "{family}_compare.json", "bench/bench.json": "{family}_bench.json",
    "bench/stream.json": "{family}_bench_stream.json", "bench/cold.json": "{family}_bench_cold.json",
    "bench/rotating.json": "{family}_bench_rotating.json", "bench/python.json": "{family}_python.json",
    "bench/twelve.json": "{family}_twelve.json", "ncu/counters.json": "{family}_counters.json",
    "ncu/counters_causal.json": "{family}_counters_causal.json",
    "ncu/mission.csv": "{family}_ncu_mission.csv", "repro/gate.json": "{family}_gate.json",
    "repro/steps.csv": "repro_steps.csv",
}


def stop(sentence):
    sys.exit(f"adopt_bundle.py: {sentence}")


FAMILIES = (None, "sm80", "sm90")


class Bundle:
    """A verified and unpacked bundle. Its archive is read once, into `folder`, which is private."""

    def __init__(self, path, folder, command):
        self.path = path
        folder.mkdir()
        copy, self.folder, report = folder / "bundle.tar.gz", folder / "files", folder / "verified.json"
        shutil.copyfile(path, copy)
        self.digest = hashlib.sha256(copy.read_bytes()).hexdigest()
        verify = [command, "evidence", "verify", copy, "--unpack", self.folder, "--json", report]
        if subprocess.run(verify).returncode != 0:
            stop(f"a bundle is '{path}', which does not verify; supported: intact bundles of these kernels.")
        self.values, self.kernels, _ = manifest.read(self.folder)
        # As they were verified: both become parts of paths or of pages.
        verified = json.loads(report.read_text())
        self.values.update({key: verified[key] for key in ("gpu", "commit")})
        if not self.values["gpu"]:
            stop(f"a bundle is '{path}', of a machine without a GPU; supported: those of a GPU.")
        self.from_repro = (self.folder / "repro").is_dir()
        compare = self.folder / "bench/compare.json"
        self.family = json.loads(compare.read_text())["family"] if compare.is_file() else None
        if self.family not in FAMILIES:
            stop(f"the family of '{path}' is {ascii(self.family)}; supported: sm80, sm90, none.")

    def reports(self):
        """name in evidence/ -> file"""
        if not self.from_repro:
            return {f["path"]: self.folder / f["path"] for f in manifest.listed_files(self.folder)}
        return {name.format(family=self.family or "all"): self.folder / file
                for file, name in REPORTS.items() if (self.folder / file).is_file()}


def one_value(bundles, key, what):
    values = list(dict.fromkeys(b.values.get(key) for b in bundles))
    if len(values) > 1:
        stop(f"the {what} is {' and '.join(map(str, values))}; supported: one for all bundles.")
    return values[0]


def all_kernels(bundles):
    """The kernels of all bundles, each once; two digests of one kernel are refused."""
    found = {}
    for kernel in (k for bundle in bundles for k in bundle.kernels):
        key = tuple(kernel[k] for k in ("config", "arch", "kind", "compiler"))
        if found.setdefault(key, kernel)["sha256"] != kernel["sha256"]:
            stop(f"the kernel {kernel['config']} has two digests; supported: one for all bundles.")
    return list(found.values())


def adopt(bundles, into):
    """Copies the reports and writes the manifest. Returns the names of files of other commits."""
    commit = one_value(bundles, "commit", "commit")
    kernels = all_kernels(bundles)
    into.mkdir(parents=True, exist_ok=True)
    old = {f["path"]: f for f in manifest.read(into)[2]}
    taken = {}
    for bundle in sorted(bundles, key=lambda b: not b.from_repro):
        taken.update(bundle.reports())
    for name, file in taken.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, into / name)
    files = []
    for entry in manifest.listed_files(into):
        before = old.get(entry["path"], {})
        if entry["path"] in taken:
            entry["commit"] = commit
        elif before.get("sha256") == entry["sha256"] and "commit" in before:
            entry["commit"] = before["commit"]
        elif not entry["path"].endswith(".md"):
            entry["commit"] = None
        files.append(entry)
    first = max(bundles, key=lambda b: len(b.kernels))
    values = {**first.values, "bundles": [
        {"name": b.path.name, "sha256": b.digest} for b in bundles]}
    (into / "manifest.yaml").write_text(manifest.text_of(values, kernels, files))
    return [f"{f['path']} ({f['commit'] or 'commit not recorded'})" for f in files
            if "commit" in f and f["commit"] != commit]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="+", type=pathlib.Path)
    parser.add_argument("--command", default="build/octavo", help="the octavo that was built here")
    parser.add_argument("--root", type=pathlib.Path, default=root, help="the repository")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folders = [pathlib.Path(temporary) / str(i) for i in range(len(arguments.bundles))]
        bundles = [Bundle(path, folder, arguments.command)
                   for path, folder in zip(arguments.bundles, folders)]
        gpu = one_value(bundles, "gpu", "GPU")
        into = arguments.root / "evidence" / gpu.lower().replace(" ", "-")
        others = adopt(bundles, into)
    tables = [sys.executable, root / "tools/evidence_tables.py", "--root", arguments.root]
    if not (arguments.root / "README.md").is_file():
        tables += ["--folder", into]
    subprocess.run(tables, check=True)
    if others:
        print("of other commits:", *others, sep="\n  ")
    print(into)
    sys.exit(subprocess.run([arguments.command, "evidence", "verify", into]).returncode)


if __name__ == "__main__":
    main()
