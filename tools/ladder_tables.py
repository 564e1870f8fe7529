#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/ladder/: measured times, and what the emulator reports of each missing barrier.

usage: ladder_tables.py                          writes the times, of evidence/nvidia-h200/ladder.json
       ladder_tables.py --command build/octavo   also runs the emulator's mutants and writes their tables
       ladder_tables.py --check [--command ...]  fails if a page says something else

evidence/nvidia-h200/ladder.json is the output of `octavo ladder --json`.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "evidence/nvidia-h200/ladder.json"
PAGES = ROOT / "docs/ladder"
SOURCES = ROOT / "src"
RUNGS = ("scalar", "tiled", "tensor_cores", "async_copies", "specialised_warps")
TIMES = "<!-- ladder times: made by tools/ladder_tables.py -->", "<!-- ladder times: end -->"
HAZARDS = "<!-- ladder hazards: made by tools/ladder_tables.py -->", "<!-- ladder hazards: end -->"
NOT_MEASURED = ("This table is made from `evidence/nvidia-h200/ladder.json`, the output of `octavo ladder --json`, which has "
                "not been measured yet.")


def table(header, rows):
    def line(cells):
        return "| " + " | ".join(cells) + " |"
    return "\n".join([line(header), line(["---"] + ["---:"] * (len(header) - 1)), *map(line, rows)])


def us(value):
    return f"{value:.2f}" if value < 100 else f"{value:.1f}"


def shape(row):
    return f"{row['name']} ({row['batch']}, {row['heads']}, {row['length']}, {row['head_dim']})"


def made_by(report):
    return f"Medians of `octavo ladder` on an {report['machine'].split(',')[0]}, in FP16, without a mask."


def index_table(report):
    """Each case in a line: the times of the rungs and of Octavo's own kernel."""
    cases = {}
    for row in report["rows"]:
        cases.setdefault(shape(row), []).append(us(row["median_us"]))
    return (f"{made_by(report)} Microseconds of a call:\n\n"
            + table(["preset (B, H, S, D)", *RUNGS, "Octavo"], [[name, *times] for name, times in cases.items()]))


def page_table(report, rung):
    rows = [row for row in report["rows"] if row["kernel"] == rung]
    previous = RUNGS[RUNGS.index(rung) - 1] if rung != RUNGS[0] else None
    header = ["preset (B, H, S, D)", "us", "TFLOP/s"] + [f"times as fast as {previous}"] * bool(previous) + ["of Octavo's speed"]
    lines = [[shape(row), us(row["median_us"]), f"{row['gflops'] / 1e3:.3g}",
              *([f"{row['vs_previous']:.2f}"] if previous else []), f"{row['vs_octavo']:.0%}"] for row in rows]
    return made_by(report) + "\n\n" + table(header, lines)


def times_of(page, report):
    if report is None:
        return NOT_MEASURED
    return index_table(report) if page == "index" else page_table(report, page)


def hazards_of(command, rung):
    """What is reported when a call of a kernel is switched off, in the order of the source."""
    done = subprocess.run([command, "emulator", "mutants", "--kernel", f"rung={rung},head_dim=64", "--json", "-"],
                          capture_output=True, text=True, check=True, timeout=300)
    lines = []
    for mutant in json.loads(done.stdout)["kernels"][0]["mutants"]:
        instruction, _, place = mutant["call"].partition(" at ")
        file, _, line = place.rpartition(":")
        code = (SOURCES / file).read_text().splitlines()[int(line) - 1].strip()
        file = pathlib.Path(file)
        lines.append(((file.stem != rung, file.name, int(line)),
                      [f"`{file.name}:{line}`", f"`{code}`".replace("|", "\\|"), instruction, mutant["caught_by"]]))
    text = table(["line", "code", "switched off", "what shows"], [cells for _, cells in sorted(lines)])
    return text.replace("---:", "---")


def between(text, marks, content):
    begin, end = marks
    return text.split(begin)[0] + "\n".join([begin, content, end]) + text.split(end)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--command", help="octavo, built with the emulator")
    given = parser.parse_args()
    report = json.loads(EVIDENCE.read_text()) if EVIDENCE.is_file() else None
    for page in ("index", *RUNGS):
        path = PAGES / f"{page}.md"
        text = whole = path.read_text()
        whole = between(whole, TIMES, times_of(page, report))
        if page != "index" and given.command:
            whole = between(whole, HAZARDS, hazards_of(given.command, page))
        if not given.check:
            path.write_text(whole)
        elif text != whole:
            sys.exit(f"docs/ladder/{page}.md is not what tools/ladder_tables.py makes of it: run it.")


if __name__ == "__main__":
    main()
