#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `octavo check` on the GPU under the tools of compute-sanitizer.

usage: sanitize.py --command build/octavo --json FILE [--cases N]
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

SCHEMA = 1  # of docs/json.md
TOOLS = ("memcheck", "initcheck", "synccheck")


def errors_in(text):
    """The number of errors that the sanitizer counted; None if it did not reach its summary."""
    found = re.search(r"ERROR SUMMARY: (\d+) errors?", text)
    return int(found[1]) if found else None


def run_tool(sanitizer, tool, command, cases):
    ran = subprocess.run([sanitizer, "--tool", tool, "--error-exitcode", "9", command, "check",
                          "--device", "cuda", "--cases", str(cases)],
                         capture_output=True, text=True)
    errors = errors_in(ran.stdout + ran.stderr)
    row = {"tool": tool, "errors": errors, "exit_code": ran.returncode,
           "passed": errors == 0 and ran.returncode == 0}
    print(f"{tool}: {errors} errors, exit code {ran.returncode}")
    if not row["passed"]:
        told = [line for line in (ran.stdout + ran.stderr).splitlines() if line.startswith("====")]
        print("\n".join(told[:100]), ran.stdout[-4000:], sep="\n")
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--cases", type=int, default=48)
    arguments = parser.parse_args()
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer")
    if sanitizer is None:
        sys.exit("sanitize: compute-sanitizer is not here; it comes with the CUDA toolkit")
    about = subprocess.run([sanitizer, "--version"], capture_output=True, text=True).stdout
    version = subprocess.run([arguments.command, "--version"], capture_output=True,
                             text=True).stdout
    rows = [run_tool(sanitizer, t, arguments.command, arguments.cases) for t in TOOLS]
    passed = all(r["passed"] for r in rows)
    report = {"schema": SCHEMA, "kind": "sanitize", "version": version.split()[-1],
              "device": "cuda:0", "sanitizer": about.strip().splitlines()[-1],
              "cases": arguments.cases, "passed": passed, "rows": rows}
    pathlib.Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
