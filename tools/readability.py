#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what a reader of the code has to open, and fails above the agreed limits.

usage: readability.py

  16-bit kernel     lines of the files that explain the 16-bit Hopper forward kernel
  if constexpr      compile-time switches in src/device/sm90
  config fields     of Sm90ForwardConfig and its OutputConfig: the choices that a kernel is made of
  modifiers         fields of ModifierConfig, and head_dim_v: what a problem asks for beyond plain
                    attention, and how a kernel reads it
  short files       files of fewer than 50 lines in src/gpu
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SM90 = ROOT / "src/device/sm90"
KERNEL_16BIT = ("forward", "mainloop", "softmax", "numerics/bits16", "epilogue",
                "scheduler", "geometry", "../core/score_rows")


def lines(path):
    """The file's lines, without the one that names its licence."""
    return sum("SPDX-License-Identifier" not in line for line in path.read_text().splitlines())


def fields(file, struct):
    """The fields of a struct that are no structs themselves."""
    text = (ROOT / "src/config" / file).read_text()
    body = re.search(rf"struct {struct} \{{(.*?)\n\s*bool operator==", text, re.S).group(1)
    return len(re.findall(r"^\s*\w+ \w+ = [^;{]+;", body, re.M))


def counts():
    """(what, count, limit)"""
    device = sorted(SM90.rglob("*.cuh"))
    short = [f for f in (ROOT / "src/gpu").rglob("*.*")
             if f.suffix in (".h", ".cc") and lines(f) < 50]
    return [
        ("lines to read for the 16-bit kernel",
         sum(lines(SM90 / f"{name}.cuh") for name in KERNEL_16BIT), 1700),
        ("if constexpr in src/device/sm90",
         sum(len(re.findall(r"\bif constexpr\b", f.read_text())) for f in device), 60),
        ("fields of Sm90ForwardConfig and OutputConfig",
         fields("sm90_forward.h", "Sm90ForwardConfig") - 1 + fields("shared_parts.h", "OutputConfig"), 18),
        ("fields of ModifierConfig, and head_dim_v", fields("shared_parts.h", "ModifierConfig") + 1, 10),
        ("files of fewer than 50 lines in src/gpu", len(short), 10),
    ]


def main():
    failed = False
    for what, count, most in counts():
        failed = failed or count > most
        print(f"{count:6} {what} (at most {most}{', too many' if count > most else ''})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
