#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the record that precision=auto uses, from the reports of `octavo accuracy --json` on a GPU.

usage: precision_record.py            writes src/runtime/plan/precision_record.h
       precision_record.py --check    fails if it says something else
"""

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = "evidence/nvidia-h200/accuracy.json"
TARGET = "src/runtime/plan/precision_record.h"
TIMED = "normal"  # the distribution whose sizes are timed


def records(report):
    """Precisions with an error and a time at every size, and those sizes."""
    rows = [r for r in report["rows"] if r["not_available"] is None]
    sizes = sorted({(r["heads"], r["seqlen_q"], r["head_dim"]) for r in rows if r["data"] == TIMED},
                   key=lambda s: s[1])
    found = {}
    for precision in dict.fromkeys(r["precision"] for r in rows):
        own = [r for r in rows if r["precision"] == precision]
        if any(r["total"]["not_finite"] for r in own):
            continue
        # A rotated distribution is for data that a user would rotate: it does not count for the
        # plain one.
        worst = max(r["total"]["max_abs"] for r in own)
        times = {(r["heads"], r["seqlen_q"], r["head_dim"]): r["us"] for r in own if r["data"] == TIMED}
        if all(times.get(s) for s in sizes):
            found[precision] = (worst, [times[s] for s in sizes])
    return sizes, found


def array(kind, name, values):
    if not values:
        return [f"inline constexpr std::array<{kind}, 0> {name} = {{}};"]
    return [f"inline constexpr std::array<{kind}, {len(values)}> {name} = {{{{",
            *[f"    {value}," for value in values], "}};"]


def header(report):
    sizes, found = records(report)
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        f"// Made by tools/precision_record.py from {SOURCE}.",
        "#pragma once",
        "",
        "#include <array>",
        "#include <string_view>",
        "",
        '#include "runtime/plan/automatic_plan.h"',
        "",
        "namespace octavo {",
        "",
        *array("RecordSize", "kRecordSizes", [f"{{{h}, {s}, {d}}}" for h, s, d in sizes]),
        f'inline constexpr std::string_view kRecordMachine = "{report["machine"].split(",")[0]}";',
        *array("PrecisionRecord", "kPrecisionRecords",
               [f"{{Precision::{p}, {worst:.3g}, {{{', '.join(f'{t:.4g}' for t in times)}}}}}"
                for p, (worst, times) in found.items()]),
        "",
        "}  // namespace octavo",
        "",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    source = ROOT / SOURCE
    made = header(json.loads(source.read_text()) if source.is_file() else {"machine": "", "rows": []})
    target = ROOT / TARGET
    if not arguments.check:
        target.write_text(made)
    elif target.read_text() != made:
        sys.exit(f"{TARGET} is not what tools/precision_record.py makes of {SOURCE}.")


if __name__ == "__main__":
    main()
