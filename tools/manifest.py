#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes manifest.yaml of a folder of evidence: how it was made, and the digest of every file and kernel.

usage: manifest.py --folder artifacts --command build/octavo [--commit HASH]
       manifest.py --folder evidence/DEVICE --check      fails if the files are not those of the manifest
       manifest.py --folder evidence/DEVICE --renew FILE... [--commit HASH]
                                                         renews the digests of files made again by hand

The values and list items of this YAML are JSON on one line, so that `octavo evidence verify` reads it
without a YAML library. Unknown values are null. In evidence/DEVICE, which tools/adopt_bundle.py fills
from bundles, a file also has the commit that it was measured at; pages made from other files have none.
"""

import argparse
import datetime
import hashlib
import importlib.util
import json
import pathlib
import subprocess
import sys

NOT_LISTED = ("manifest.yaml",)


def told(command):
    """The output of a command, or None."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else None


def gpu_fields():
    fields = {"gpu": "name", "driver": "driver_version", "clock_mhz": "clocks.sm",
              "clock_max_mhz": "clocks.max.sm", "clock_memory_mhz": "clocks.mem",
              "power_limit_w": "power.limit", "throttle": "clocks_throttle_reasons.active"}
    line = told(["nvidia-smi", f"--query-gpu={','.join(fields.values())}",
                 "--format=csv,noheader,nounits"])
    values = [v.strip() for v in line.splitlines()[0].split(",")] if line else []
    if len(values) != len(fields):
        return dict.fromkeys(fields)
    return {key: number_or_text(value) for key, value in zip(fields, values)}


def number_or_text(text):
    if text in ("[N/A]", "[Not Supported]"):
        return None
    try:
        return float(text)
    except ValueError:
        return text


def torch_version():
    if importlib.util.find_spec("torch") is None:
        return None
    from importlib import metadata
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def kernels(command):
    reported = told([command, "kernels", "--json", "-"])
    for kernel in json.loads(reported)["kernels"] if reported else []:
        if kernel.get("sha256"):
            yield {k: kernel[k] for k in ("kernel", "config", "arch", "kind", "compiler", "sha256")}


def entry_of(folder, name):
    content = (folder / name).read_bytes()
    return {"path": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def listed_files(folder):
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(folder).as_posix()
        if name in NOT_LISTED or (path.parent == folder and name.endswith(".tar.gz")):
            continue
        yield entry_of(folder, name)


def text_of(values, kernels, files):
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    for name, items in (("kernels", kernels), ("files", files)):
        lines += [f"{name}:"] + [f"  - {json.dumps(item)}" for item in items]
    return "\n".join(lines) + "\n"


def read(folder):
    """(values, kernels, files) of a folder's manifest; all empty if it has none."""
    path = folder / "manifest.yaml"
    values, lists, into = {}, {"kernels": [], "files": []}, None
    for line in path.read_text().splitlines() if path.is_file() else []:
        if line.startswith("  - "):
            lists[into].append(json.loads(line[4:]))
            continue
        key, _, value = line.partition(":")
        if value:
            values[key] = json.loads(value)
        else:
            into = key
    return values, lists["kernels"], lists["files"]


def renew_entries(folder, names, **known):
    """Renews the digests of files that were made again, such as pages. A folder without a manifest
    remains without."""
    values, built, files = read(folder)
    if values:
        kept = {f["path"]: f for f in files} | {name: entry_of(folder, name) | known for name in names}
        (folder / "manifest.yaml").write_text(
            text_of(values, built, [kept[name] for name in sorted(kept)]))


def differences(folder):
    """What the folder and its manifest disagree in, one sentence each."""
    listed = {f["path"]: f["sha256"] for f in read(folder)[2]}
    present = {f["path"]: f["sha256"] for f in listed_files(folder)}
    for name in sorted(listed.keys() | present.keys()):
        if name not in present:
            yield f"{name}: is missing."
        elif name not in listed:
            yield f"{name}: is not in the manifest."
        elif listed[name] != present[name]:
            yield f"{name}: does not have the digest that the manifest states."


def manifest(folder, command, commit):
    built = list(kernels(command))
    compilers = sorted({k["compiler"] for k in built})
    digest = hashlib.sha256("".join(sorted(k["sha256"] for k in built)).encode()).hexdigest()
    values = {
        "octavo_bundle": 1,
        "commit": None if commit == "unknown" else commit or told(["git", "rev-parse", "HEAD"]),
        "changed_since_commit": None if told(["git", "rev-parse", "HEAD"]) is None
        else told(["git", "status", "--porcelain"]) is not None,
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "version": told([command, "--version"]),
        "cuda": "; ".join(compilers) or None,
        "pytorch": torch_version(),
        "kernels_sha256": digest if built else None,
        **gpu_fields(),
    }
    return text_of(values, built, listed_files(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--command", help="the octavo that was built")
    parser.add_argument("--commit", help="of the sources; asked of git unless given")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--renew", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.renew:
        renew_entries(arguments.folder, arguments.renew, commit=arguments.commit)
        return
    if arguments.check:
        found = list(differences(arguments.folder))
        print(*found, sep="\n")
        sys.exit(1 if found else 0)
    if not arguments.command:
        parser.error("--command is not given; supported: the path of an octavo, --check or --renew.")
    text = manifest(arguments.folder, arguments.command, arguments.commit)
    (arguments.folder / "manifest.yaml").write_text(text)


if __name__ == "__main__":
    main()
