#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of evidence/ and of the README from the last run on each device.

usage: evidence_tables.py                      writes evidence/<device>/<family>.md, that of the
                                               8-bit kernels beside it, and the README
       evidence_tables.py --check              fails if any of them says something else
       evidence_tables.py --folder FOLDER      only the tables of that folder
       evidence_tables.py --command build/octavo
           also compares the measured kernels with those built here: if one has changed since,
           the tables say that they are stale
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import manifest

BEGIN = "<!-- evidence: made by tools/evidence_tables.py -->"
END = "<!-- evidence: end -->"
STALE = " **Stale**: the kernels have changed since."
# Limits of the 8-bit modes on suite `twelve`: total error, kernel error. 8-bit inputs have none:
# E4M3 with one scale per head has an error of 7.8e-2 before a kernel runs.
BARS = {"fp8": (6e-2, 1.5e-2), "sim8": (6e-2, 1.5e-2)}
PRESETS = ("mission", "small", "long", "wide", "stress")


class Run:
    """The results of one run on a device for one family of kernels."""

    def __init__(self, folder, family):
        self.folder, self.family = folder, family
        self.compare = self.read("compare")
        self.stale = False

    def read(self, kind):
        path = self.folder / f"{self.family}_{kind}.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def commit_of(self, kind):
        """The commits of a report, or of a folder of them, if the comparison is of another commit."""
        name = f"{self.family}_{kind}"
        commits = sorted({f["commit"] for f in manifest.read(self.folder)[2] if f.get("commit")
                          and (f["path"] == f"{name}.json" or f["path"].startswith(f"{name}/"))})
        if commits in ([], [self.compare["commit"]]):
            return ""
        return f", commit{'s' if len(commits) > 1 else ''} " + " and ".join(c[:12] for c in commits)

    def rows(self, dtype="f16"):
        return [r for r in self.compare["rows"] if r["dtype"] == dtype]

    def peers(self):
        """The names of the peers, those that ran and those on record."""
        return names_in(self.compare["rows"])

    def compare_with(self, built):
        """`built`: (config, compiler) -> digest. A kernel that is not in it may be one that is not shipped; if no
        kernel of a run is, the configurations themselves have changed."""
        rows = [(built.get((r["config"], self.compare["compiler"])), r["kernel_sha256"])
                for r in self.compare["rows"]]
        known = [(here, then) for here, then in rows if here is not None]
        compiled_so = any(compiler == self.compare["compiler"] for _, compiler in built)
        self.stale = any(here != then for here, then in known) or (compiled_so and not known)


def peers_of(row):
    """The time of each peer; recorded peers are marked in the name."""
    if "peers_us" not in row:
        return {"flash": row["peer_us"]}
    return {**row["peers_us"], **{f"{n} (recorded)": t for n, t in row["recorded_us"].items()}}


def best_of(row):
    """The name of the fastest peer."""
    theirs = peers_of(row)
    return min(theirs, key=theirs.get, default="")


def names_in(rows):
    """The peers of all rows, in the order of their first appearance; those on record come last."""
    names = list(dict.fromkeys(name for r in rows for name in peers_of(r)))
    return sorted(names, key=lambda name: name.endswith("(recorded)"))


def runs_in(folder):
    return [Run(folder, path.name.removesuffix("_compare.json"))
            for path in sorted(folder.glob("*_compare.json"))]


def table(header, rows):
    def line(cells):
        return "| " + " | ".join(cells) + " |"
    # The first column is text, the others are numbers.
    return "\n".join([line(header), line(["---"] + ["---:"] * (len(header) - 1))] +
                     [line(r) for r in rows])


def us(value):
    return f"{value:.2f}" if value < 100 else f"{value:.1f}"


def named(row):
    text = "{name} ({batch}, {heads}, {length}, {head_dim})" if row["name"] in PRESETS else "{name}"
    return text.format(**row)


def times(row, peers, digits=2):
    """Octavo's time, each peer's, and the ratio of the least of theirs to Octavo's."""
    theirs = peers_of(row)
    return ["" if row["octavo_us"] is None else us(row["octavo_us"]),
            *(us(theirs[p]) if p in theirs else "" for p in peers),
            "" if row["ratio"] is None else f"{row['ratio']:.{digits}f}"]


def shape_of(row):
    """B, H, S, D; heads and lengths of K and V after a slash where they differ."""
    heads, length = str(row["heads"]), str(row["length"])
    if row.get("heads_kv", row["heads"]) != row["heads"]:
        heads += f"/{row['heads_kv']}"
    if row.get("length_kv", row["length"]) != row["length"]:
        length += f"/{row['length_kv']}"
    return f"{row['batch']}, {heads}, {length}, {row['head_dim']}"


def told_case(row):
    """The case in one cell."""
    return f"{row['name']} ({shape_of(row)})" if not row["name"][0].isdigit() else row["name"]


def joules(value):
    return "" if value is None else f"{value:.3g}"


def regime_table(rows):
    """Every peer's time and the ratio to the best; under a sustained load also the energy of a call."""
    peers = names_in(rows)
    loaded = any("joules" in r for r in rows)

    def rate(row):
        fastest = row["octavo_gflops"] if row["octavo_us"] is not None else row["peer_gflops"]
        return "" if fastest is None else f"{fastest / 1e3:.0f}"

    def cells(row):
        energy = [joules(row["joules"].get(name)) for name in ("octavo", *peers)] if loaded else []
        clock = "" if row["clock_mhz"] is None else f"{row['clock_mhz']:.0f}"
        return [told_case(row), "yes" if row["causal"] != "none" else "", row["dtype"], *times(row, peers, 3),
                *energy, rate(row), clock]

    header = ["B, H, S, D", "causal", "inputs", "Octavo, us", *(f"{p}, us" for p in peers), "ratio"]
    header += ["Octavo, J", *(f"{p}, J" for p in peers)] if loaded else []
    return table([*header, "TFLOP/s", "MHz"], [cells(r) for r in rows])


def told_ratios(rows):
    ratios = [r["ratio"] for r in rows if r["ratio"] is not None]
    if not ratios:
        return "no ratio was measured"
    slower = sum(ratio < 1 for ratio in ratios)
    return (f"geometric mean {statistics.geometric_mean(ratios):.3f}, minimum {min(ratios):.3f}, "
            f"below 1 in {slower} of {len(ratios)} cases")


REGIME_WORDS = {
    "rows": ("In bursts", "A sample is the mean of a few calls in a CUDA graph."),
    "sustained": ("Under a sustained load", "A sample is the mean over 0.4 s of calls without a pause, after 0.2 s that "
                  "are not timed; J is board power times the time of a call. Peers that were more than 15% slower than the "
                  "best one in bursts are not timed so."),
}


def words_of(key, rows):
    """How the rows of a regime were timed: (heading, sentence)."""
    if "regime" not in rows[0] and "us" in rows[0]:  # 8-bit reports of before the regimes
        return "Each timed by itself", "A sample is the mean of 20 calls in a CUDA graph."
    return REGIME_WORDS[key]


def comparison_sections(report, title):
    """The tables of a comparison in both regimes."""
    parts = []
    for key, (words, how) in REGIME_WORDS.items():
        if rows := report.get(key):
            parts.append(f"## {title}: {words.lower()}\n\n{told_ratios(rows).capitalize()}. {how}\n\n"
                         f"{regime_table(rows)}\n")
    if left := report.get("not_measured"):
        parts.append("Not measured:\n\n" + "".join(f"- {one}\n" for one in left))
    return parts


def slower_cases(reports):
    """Every case of any regime in which a peer is faster than Octavo, the worst first."""
    found = [(row["ratio"], words.lower(), row) for report in reports if report
             for key, (words, _) in REGIME_WORDS.items() for row in report.get(key, [])
             if row["ratio"] is not None and row["ratio"] < 1]
    return [f"- {told_case(row)}, {'causal' if row['causal'] != 'none' else 'full'}, {row['dtype']}, {words}: "
            f"{ratio:.3f} times as fast as {best_of(row)}"
            for ratio, words, row in sorted(found, key=lambda one: one[0])]


def where(run):
    c, gpu = run.compare, run.compare["gpu"]
    commit = f"commit {c['commit'][:12]}" if c["commit"] else "commit not recorded"
    return (f"{gpu['name']}, driver {gpu['driver'] or 'unknown'}, PyTorch {c['peer']['torch']} "
            f"(CUDA {c['peer']['cuda']}), {c['compiler']}, {commit}.{STALE if run.stale else ''}")


def summary(run):
    rows = run.rows()
    parts = [f"Over the {len(rows)} cases in f16: geometric mean "
             f"{run.compare['geometric_mean']:.3f}, minimum {run.compare['minimum']:.3f}"]
    for dim in sorted({r["head_dim"] for r in rows}):
        ratios = [r["ratio"] for r in rows if r["head_dim"] == dim]
        parts.append(f"D={dim} {statistics.geometric_mean(ratios):.3f} "
                     f"({min(ratios):.3f} to {max(ratios):.3f})")
    for dtype in sorted({r["dtype"] for r in run.compare["rows"]} & {"bf16"}):
        of_f16 = {(r["name"], r["causal"]): r["octavo_us"] for r in rows}
        slower = [r["octavo_us"] / of_f16[r["name"], r["causal"]] for r in run.rows(dtype)]
        parts.append(f"{dtype} takes {min(slower):.3f} to {max(slower):.3f} times as long as f16")
    if "resolution" in run.compare:
        parts.append(f"two turns of the same kernel were at most "
                     f"{run.compare['resolution']:.1%} apart")
    return "; ".join(parts) + "."


def checked(report):
    if report is None:
        return "not measured"
    if not report["passed"]:
        return f"FAILED, {len(report['failures'])} of {report['cases']} cases"
    return (f"passed, {report['cases']} cases on {report['kernels']} kernels, "
            f"{report['repeat']} runs each, all bitwise equal")


def sanitized(report):
    if report is None:
        return "not measured"
    tools = ", ".join(f"{t['tool']} {'clean' if t['passed'] else 'FAILED'}" for t in report["rows"])
    return f"{tools}, on {report['cases']} cases"


def makers(run):
    """The gates' verdict, which comes with a bundle (tools/adopt_bundle.py)."""
    single = f"`tools/evidence.sh {run.family}`"
    return f"`./repro.sh` and the commands of {single}" if run.read("gate") else single


def checks(run):
    def told(kind):
        return checked(run.read(kind)) + run.commit_of(kind)

    more = [f"- And of another seed: {told(kind)}." for kind in ("check_1", "check_2") if run.read(kind)]
    if run.read("check_overlap"):
        more.append(f"- And with launches that overlap: {told('check_overlap')}.")
    if streams := run.read("check_streams"):
        more.append(f"- And by {streams['streams']} threads, each with a stream of its own: {told('check_streams')}.")
    if run.read("check_configs"):
        more.append(f"- Every configuration of the table in f16 and bf16, and every division of keys: {told('check_configs')}.")
    if emulated := run.read("check_emulated"):
        more.append(f"- Beside the same kernels in the emulator, {emulated['emulated']['cases']} outputs within "
                    f"{emulated['emulated']['difference']:.1e}: {told('check_emulated')}.")
    return "\n".join([f"- Random problems against fp64: {told('check')}.", *more,
                      f"- Suite `twelve`: {told('twelve')}.",
                      f"- compute-sanitizer: {sanitized(run.read('sanitize'))}{run.commit_of('sanitize')}."])


def against_bar(row):
    bar = BARS.get(row["precision"])
    if bar is None:
        return ""
    held = row["worst_total_error"] <= bar[0] and row["worst_kernel_error"] <= bar[1]
    return f"{bar[0]:.1e}, {bar[1]:.1e}: {'held' if held else 'NOT HELD'}"


def twelve_table(run):
    report = run.read("twelve")
    if report is None:
        return ""
    rows = [[f"{r['precision']} {r['format']}", str(r["cases"]), f"{r['worst_total_error']:.1e}",
             f"{r['worst_kernel_error']:.1e}", f"{r['worst_bound_ratio']:.0%}", against_bar(r)]
            for r in report["rows"]]
    header = ["suite `twelve`", "cases", "worst total error", "worst kernel error", "of its bound",
              "bar of both"]
    return "\n" + table(header, rows) + "\n"


def beside(run):
    return "PyTorch's flash backend" if run.peers() == ["flash"] else "their peers"


def inputs(run):
    if run.rows("sim8"):
        return ("`sim8` inputs are 8-bit values,\ncompared with flash on the f16 inputs that they "
                "were quantized from.")
    told = "The ratio is the least time\nof a peer over Octavo's, so that it can be computed from the row."
    builds = run.compare["peer"].get("fa3")
    if builds:
        told += f" fa3 is FlashAttention-3, run here\nfrom {' and '.join(builds)}."
    if any(p.endswith("(recorded)") for p in run.peers()):
        told += ("\nPeers on record did not run here: their times (bench/peers_h200.csv) are scaled by PyTorch's\n"
                 "cuDNN backend in this run and in that one; cudnn_graph is cuDNN's own interface, fa3 is\n"
                 "FlashAttention-3.")
    return told


def page(run):
    """evidence/<device>/<family>.md"""
    models, backward = run.read("models"), run.read("backward")
    failures = "".join(f"- {f}\n" for report in (run.compare, models, backward) if report
                       for f in report["failures"])
    slower = slower_cases([run.compare, models])
    sections = comparison_sections({**run.compare, "rows": []}, "The grid")
    sections += comparison_sections(models, "Real models") if models else []
    sections += comparison_sections(backward, "Backward") if backward else []
    return f"""# {run.family} kernels on {run.compare['gpu']['name']}

Made by `tools/evidence_tables.py` from the JSON files beside it
([what they hold](../../docs/json.md)), which {makers(run)} made. {where(run)}

{checks(run)}
{twelve_table(run)}
## Where Octavo is slower

{chr(10).join(slower) if slower else 'In no case of these tables.'}

## Beside {beside(run)}

{summary(run)}
Times are per call, by CUDA-graph replay, the median of {run.compare['samples']} samples, ours and
theirs taking turns in one process; MHz is the SM clock meanwhile. {inputs(run)}

{regime_table(run.compare['rows'])}
{chr(10).join(['', *sections]) if sections else ''}{chr(10) + 'Failed:' + chr(10) + failures if failures else ''}"""


def readme_regimes(run):
    """One sentence for each further table of the page."""
    told = []
    if rows := run.compare.get("sustained"):
        told.append(f"Under a sustained load, at the power limit: {told_ratios(rows)}.")
    if models := run.read("models"):
        told += [f"On the attention of real models ([bench/models.csv](bench/models.csv)), {words.lower()}: {told_ratios(rows)}."
                 for key, (words, _) in REGIME_WORDS.items() if (rows := models.get(key))]
    return ["\n".join(told)] if told else []


def readme_part(run):
    by_name = {(r["name"], r["dtype"]): r for r in run.compare["rows"] if r["causal"] == "none"}
    shown = [r for key in [(p, "f16") for p in PRESETS] + [("mission", "sim8")] if (r := by_name.get(key))]
    peers = names_in(shown)
    rows = [[f"{named(r)}, {r['dtype']}", *times(r, peers)] for r in shown]
    path = f"evidence/{run.folder.name}/{run.family}.md"
    return "\n\n".join([
        f"**{run.family} kernels** beside {beside(run)}, microseconds per call; the ratio is the least time of a peer "
        f"over Octavo's. {where(run)}",
        table(["preset (B, H, S, D)", "Octavo", *peers, "ratio"], rows),
        f"{summary(run)} All of it: [{path}]({path}).", *readme_regimes(run), *readme_8bit(run)])


FULL_BATCH = 16384  # tokens of a case of the grid; the others are the presets' sizes


def grid_8bit(rows):
    return [r for r in rows if r["batch"] * r["length"] == FULL_BATCH]


def peers_8bit(row):
    """The FP8 peers' times; those that did not run are marked. Reports without `recorded_us` have only
    such peers."""
    recorded = row.get("recorded_us", row["peers_us"])
    ran = row["peers_us"] if "recorded_us" in row else {}
    return {**ran, **{f"{name} (recorded)": us for name, us in recorded.items()}}


def summary_8bit(rows):
    """`fp8` beside the FP8 peers that ran, and beside all."""
    def told(ratios):
        slower = sum(ratio < 1 for ratio in ratios)
        return (f"geometric mean {statistics.geometric_mean(ratios):.3f}, minimum {min(ratios):.3f}, below 1 in "
                f"{slower} of {len(ratios)} cases")

    live = [ratio for r in rows if (ratio := r.get("ratio_live", {}).get("fp8"))]
    every = [ratio for r in rows if (ratio := r["ratio"]["fp8"])]
    parts = [f"beside FlashAttention-3 run here {told(live)}"] if live else []
    if every and every != live:
        parts.append(f"beside all peers, those on record included, {told(every)}")
    if every and not live:
        parts.append("at times on record as they are, without the pace of the run, "
                     + told([r["ratio"]["fp8"] / r["pace"] for r in rows]))
    return "; ".join(parts) or "no FP8 peer is known"


def readme_8bit(run):
    report = run.read("8bit")
    if not report:
        return []
    path = f"evidence/{run.folder.name}/{run.family}_8bit.md"
    told = [f"In 8 bits, `fp8` on quantized operands over {len(rows)} full batches, "
            f"{words_of(key, rows)[0].lower()}: {summary_8bit(rows)}."
            for key in REGIME_WORDS if (rows := grid_8bit(report.get(key, [])))]
    return [f"{' '.join(told)} All modes: [{path}]({path})."]


def readme_section(runs):
    if not runs:
        return "No GPU's measurements are on record here."
    return "\n\n".join(readme_part(run) for run in runs)


def with_section(text, section):
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{section}\n{END}{after}"


def built_kernels(command):
    """(config, compiler) -> digest of the kernels compiled ahead of time."""
    told = json.loads(subprocess.run([command, "kernels", "--json", "-"], capture_output=True,
                                     text=True).stdout)
    return {(k["config"], k["compiler"]): k["sha256"] for k in told["kernels"]
            if k["available"] and k["kind"] == "cubin"}


def checks_8bit(run):
    """Random problems of the 8-bit modes, one report for each mode and seed."""
    folder = run.folder / f"{run.family}_8bit_checks"
    reports = [json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))]
    if not reports:
        return "not measured"
    modes = sorted({row["precision"] for r in reports for row in r["rows"]} - {"native"})
    failed = sum(len(r["failures"]) for r in reports)
    return (f"{'passed' if all(r['passed'] for r in reports) else 'FAILED'}, "
            f"{sum(r['cases'] for r in reports)} cases in {len(reports)} runs ({', '.join(modes)}; "
            f"and inputs as they are), {failed} failed, {reports[0]['repeat']} runs each"
            f"{run.commit_of('8bit_checks')}")


def counters_8bit(run):
    """Hardware counters of the forward kernels of fp8 from f16 tensors; and the clock under a sustained
    load, from their cycles and the comparison's times of prequantized operands."""
    report = run.read("counters_8bit")
    if not report:
        return ""
    prequantized_us = {r["name"]: r["us"]["fp8"] for r in run.read("8bit")["rows"] if r["causal"] == "none"}

    sms = int(report["machine"].split(" SMs")[0].split()[-1])

    def blocks(r):  # of 64 queries and 64 keys, per SM
        return r["batch"] * r["heads"] * (r["length"] / 64) ** 2 / sms

    shown = [("tensor_active_pct", "tensor cores, %"), ("tensor_busy_pct", "while busy, %"),
             ("exp_unit_pct", "exp unit, %"), ("issue_active_pct", "issue, %"), ("dram_pct", "DRAM, %")]
    rows = [[r["name"], f"{r['metrics']['tensor_ops_fp8'] / r['gflop'] / 1e9:.3f}",
             f"{r['metrics']['tensor_ops_f16'] + r['metrics']['tensor_ops_bf16']:.0f}",
             *(f"{r['metrics'][name]:.0f}" for name, _ in shown),
             f"{r['metrics']['sm_clock_hz'] / 1e6:.0f}",
             *((f"{r['metrics']['sm_cycles'] / blocks(r):.0f}",
                f"{r['metrics']['sm_cycles'] / prequantized_us[r['name']]:.0f}") if r["length"] >= 8192 else ("", ""))]
            for r in report["rows"] if r["kernel"] == "sm90_forward"]
    header = ["case", "FP8 operations / 4 B H S S D", "16-bit operations", *(t for _, t in shown), "MHz",
              "cycles for 64 queries and 64 keys", "MHz in the comparison"]
    return f"\nCounted by `octavo counters --precision fp8`{run.commit_of('counters_8bit')}:\n\n{table(header, rows)}\n"


def told(value, form):
    return "" if value is None else format(value, form)


def table_8bit(rows):
    """Octavo's ways in FP8 and INT8, every FP8 peer, and the ratio to the best of them."""
    peers = list(dict.fromkeys(name for r in rows for name in peers_8bit(r)))
    loaded = any("joules" in r for r in rows)

    def cells(r):
        us, theirs = r["us"], peers_8bit(r)
        work = 4 * r["batch"] * r["heads"] * r["length"] ** 2 * r["head_dim"]
        work /= 1 if r["causal"] == "none" else 2
        energy = [joules(r["joules"].get(name)) for name in ("fp8", "fa3")] if loaded else []
        return [r["name"], r["causal"], told(us["fp8"], ".4g"), told(work / us["fp8"] / 1e6, ".0f"),
                *(told(theirs.get(p), ".4g") for p in peers), told(r["ratio"]["fp8"], ".3f"),
                told(us.get("fp8_fast"), ".4g"), told(r["ratio"].get("fp8_fast"), ".3f"),
                told(us.get("fp8_rows"), ".4g"), told(us.get("int8"), ".4g"),
                told(us["fp8"] / us["int8"] if "int8" in us else None, ".2f"),
                told(us.get("fp8_from_f16"), ".4g"), told(r.get("best_f16_peer_us"), ".4g"),
                told(r.get("ratio_to_f16"), ".3f"), told(us.get("native"), ".4g"),
                told(r.get("ratio_to_native"), ".3f"), told(r.get("pace"), ".3f"), *energy]

    header = ["B,H,S,D", "causal", "fp8 prequantized, us", "TFLOP/s", *(f"{p}, us" for p in peers), "ratio",
              "fp8_fast, us", "ratio", "V by rows, us", "int8, us", "of fp8's speed", "from f16, us",
              "best f16 peer, us", "ratio", "Octavo f16, us", "ratio", "pace"]
    filled = [cells(r) for r in rows]
    header += ["fp8, J", "fa3, J"] if loaded else []
    kept = [i for i in range(len(header)) if any(row[i] for row in filled)]
    return table([header[i] for i in kept], [[row[i] for i in kept] for row in filled])


def page_8bit(run, report):
    """The 8-bit modes next to FP8 peers."""
    builds = report["peer"].get("fa3")
    ran = f" fa3 is FlashAttention-3 on E4M3 inputs, run here\nfrom {' and '.join(builds)}." if builds else ""
    text = f"""# 8-bit kernels on {report["gpu"]["name"]}

Made by `tools/evidence_tables.py` from [sm90_8bit.json]({run.family}_8bit.json), which
`tools/compare_8bit.py` made. *prequantized*: operands quantized before, V
transposed; *V by rows*: it is transposed in the call; *from f16*: with the quantizers, beside the best
peer in f16 and beside Octavo's own kernel in f16. A ratio is the least time of a peer over Octavo's.{ran}
Peers on record ([bench/peers_h200_fp8.csv](../../bench/peers_h200_fp8.csv)) did not run here; their times
are scaled by the *pace* of PyTorch's cuDNN backend in f16, its time in this run over that on record.
Commit {report["commit"]}.

Random problems against fp64: {checks_8bit(run)}.
"""
    for key in REGIME_WORDS:
        if rows := report.get(key):
            grid, (words, how) = grid_8bit(rows), words_of(key, rows)
            text += (f"\n## {words}\n\n`fp8` over the {len(grid)} cases of full batches, {FULL_BATCH} tokens: "
                     f"{summary_8bit(grid)}. {how}\n\n{table_8bit(rows)}\n")
    if failed := report.get("failures"):
        text += "\nFailed:\n\n" + "".join(f"- {one}\n" for one in failed)
    if left := report.get("not_measured"):
        text += "\nNot measured:\n\n" + "".join(f"- {one}\n" for one in left)
    return text + counters_8bit(run)


def write_or_check(path, text, check):
    """Whether the file was up to date. Only a build can tell that kernels have changed since, so a file
    is not wrong for saying so or not."""
    old = path.read_text() if path.is_file() else ""
    right = old.replace(STALE, "") == text.replace(STALE, "")
    if not check and old != text:
        path.write_text(text)
        print(f"wrote {path}")
        manifest.renew_entries(path.parent, [path.name])
    if check and not right:
        print(f"{path} does not say what evidence/ holds: run tools/evidence_tables.py")
    return right or not check


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=root, help="the repository")
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--command", help="the octavo that was built here")
    arguments = parser.parse_args()
    folders = sorted(p for p in (arguments.root / "evidence").glob("*") if p.is_dir())
    runs = [r for f in ([arguments.folder] if arguments.folder else folders) for r in runs_in(f)]
    if arguments.command:
        built = built_kernels(arguments.command)
        for run in runs:
            run.compare_with(built)
    right = [write_or_check(r.folder / f"{r.family}.md", page(r), arguments.check) for r in runs]
    for r in runs:
        report = r.read("8bit")
        if report:
            right.append(write_or_check(r.folder / f"{r.family}_8bit.md", page_8bit(r, report),
                                        arguments.check))
    if not arguments.folder:
        readme = arguments.root / "README.md"
        text = with_section(readme.read_text(), readme_section(runs))
        right.append(write_or_check(readme, text, arguments.check))
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
