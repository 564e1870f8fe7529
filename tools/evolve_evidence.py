#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collects what runs of `octavo evolve` on a GPU showed, for the tables of docs/evolve.md.

usage: evolve_evidence.py PATCHES SHAPES.log AA.log OUT.json [COMEBACK.json SHIPPED]...

PATCHES is the directory of a run of the script examples/evolve_ladder.json. SHAPES.log has what
`search_sm90 shape` printed, and AA.log what evolve_gpu_test did. COMEBACK.json is the --json of a
run of `config` from a configuration that was made slower, and SHIPPED the directory of a run with its
best kernel as the only candidate (c2) beside the shipped one. Every comeback that OUT.json shall have
must be given again; a control without an elite has no entry. OUT.json keeps the commits that it names.
"""

import json
import pathlib
import re
import sqlite3
import sys

SAME = r"A/A: faster in (\d+) of (\d+), slower in (\d+); resolution ([\d.]+)% at worst"
SHAPE = r"\((\d+,\d+,\d+,\d+)\): (\d+) configurations; the table's takes ([\d.]+) us, the best ([\d.]+)"


def rows(run, columns, where):
    with sqlite3.connect(f"file:{pathlib.Path(run) / 'ledger.sqlite'}?mode=ro", uri=True) as ledger:
        return ledger.execute(f"SELECT {columns} FROM candidates WHERE {where} ORDER BY number").fetchall()


def fields(config):
    """The numbers and names of a configuration, without those of its output and modifiers."""
    return dict(re.findall(r"\.(\w+)=(?:\w+::)?(\w+)", re.sub(r",?\.(output|modifiers)=\{[^}]*\}", "", config)))


def comeback(report, shipped):
    best = max(report["elites"], key=lambda elite: elite["speedup"])
    before, after = fields(report["base"]), fields(best["config"])
    us = best["case_us"][0]
    ratio, low, high = rows(shipped, "speedup, speedup_low, speedup_high", "id = 'c2'")[0]
    controls = {}
    for elite in report["elites"]:
        if elite["arm"] != "evolve":
            controls[elite["arm"]] = max(elite["speedup"], controls.get(elite["arm"], 1.0))
    return {"case": report["cases"][0]["name"], "seed": report["seed"], "seconds": round(report["seconds"]),
            "judged": report["judged"], "base_us": round(us * best["speedup"], 3), "best_us": round(us, 3),
            "speedup": best["speedup"], "low": best["low"], "high": best["high"],
            "changes": ", ".join(f"{key} {before[key]} -> {after[key]}" for key in after
                                 if before.get(key) != after[key]),
            "audit": best["audit"], "controls": controls,
            "beside_shipped": {"ratio": ratio, "low": low, "high": high}}


def patch(levers, verdict, gate, admission, again, reason):
    passed = verdict == "passed"
    outcome = f"rejected by {gate}" if not passed else "admitted" if admission == "admitted" else "not admitted"
    return {"change": " + ".join(lever["tag"] for lever in json.loads(levers)), "outcome": outcome,
            "speedup": again if passed else None, "reason": reason[:160] if not passed else ""}


def main():
    patches, log, same, out, *comebacks = sys.argv[1:] if len(sys.argv) > 4 else sys.exit(__doc__.split("\n\n")[1])
    faster, trials, slower, resolution = re.search(SAME, pathlib.Path(same).read_text()).groups()
    made = {"same_kernel": {"trials": int(trials), "faster": int(faster), "slower": int(slower),
                            "resolution_percent": float(resolution)},
            "comebacks": [comeback(json.loads(pathlib.Path(report).read_text()), shipped)
                          for report, shipped in zip(comebacks[::2], comebacks[1::2], strict=True)],
            "exhaustive": [{"shape": [int(n) for n in shape.split(",")], "configurations": int(count),
                            "choice_us": float(choice), "best_us": float(best)}
                           for shape, count, choice, best in re.findall(SHAPE, pathlib.Path(log).read_text())],
            "patches": [patch(*row) for row in rows(patches, "levers, verdict, gate, admission, again, reason",
                                                    "id <> 'base'")]}
    if pathlib.Path(out).exists():
        made["commits"] = json.loads(pathlib.Path(out).read_text()).get("commits", {})
    pathlib.Path(out).write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
