#!/usr/bin/env python3
"""Writes manifest.yaml of a folder of evidence: how it was made, and the digest of every file and kernel.

usage: manifest.py --folder artifacts --command build/octavo

The values and list items of this YAML are JSON on one line, so that `octavo evidence verify` reads it
without a YAML library. Unknown values are null.
"""

import argparse
import datetime
import hashlib
import importlib.util
import json
import pathlib
import subprocess

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


def listed_files(folder):
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(folder).as_posix()
        if name in NOT_LISTED or (path.parent == folder and name.endswith(".tar.gz")):
            continue
        content = path.read_bytes()
        yield {"path": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


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
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    for name, items in (("kernels", built), ("files", listed_files(folder))):
        lines += [f"{name}:"] + [f"  - {json.dumps(item)}" for item in items]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--command", required=True, help="the octavo that was built")
    parser.add_argument("--commit", help="of the sources; asked of git unless given")
    arguments = parser.parse_args()
    text = manifest(arguments.folder, arguments.command, arguments.commit)
    (arguments.folder / "manifest.yaml").write_text(text)


if __name__ == "__main__":
    main()
