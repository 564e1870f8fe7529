#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the report: one self-contained HTML page, and the same in Markdown, from files of evidence.

usage: report.py --folder evidence/nvidia-h200 [--before FOLDER] --out report

Reads every Octavo report under the folder by its kind (docs/json.md) and writes report.html and
report.md. Charts are drawn by matplotlib; without it the report has the tables alone. With --before, the times of that folder's comparisons are compared with this one's.
"""

import argparse
import html
import json
import pathlib
import statistics
import sys

import report_charts as charts
import report_roofline

KINDS = ("gate", "compare", "bench", "python_bench", "check", "counters", "sanitize")
STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #fff; --soft: #667; --rule: #d6d6dc; --link: #1f5fa8;
  --good: #2a7f62; --bad: #b8402a; --a: #1f5fa8; --b: #c06a12; --c: #7a3e9d; --d: #2a7f62; --e: #a8385d;
  --f: #666; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8ea; --paper: #17181b; --soft: #9a9aa4;
  --rule: #3a3b40; --link: #6aa5ea; --good: #55b894; --bad: #e27a62; --a: #6aa5ea; --b: #e6a052; --c: #bd8ae0;
  --d: #55b894; --e: #e585a8; --f: #aaa; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
a { color: var(--link); }
p, li { overflow-wrap: anywhere; }
nav ul, .summary { padding-left: 1.2rem; }
nav ul { columns: 22rem; } nav li { break-inside: avoid; }
.summary .bad { color: var(--bad); font-weight: 600; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; width: 100%;
  margin: 1rem 0; }
th, td { padding: 0.2rem 0 0.2rem 0.7rem; border-bottom: 1px solid var(--rule); text-align: right;
  vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 600; vertical-align: bottom; overflow-wrap: normal; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.words, th.words { text-align: left; }
summary { cursor: pointer; margin: 0.7rem 0; }
svg { display: block; width: 100%; max-width: 44rem; height: auto; font-family: system-ui, sans-serif; }
@media (max-width: 40rem) {
  table, tbody, tr, td { display: block; } thead { display: none; }
  tr { padding: 0.5rem 0; border-bottom: 1px solid var(--rule); }
  td, td:first-child { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: 0.1rem 0; }
  td::before { content: attr(data-title); color: var(--soft); text-align: left; flex: none; }
  td:first-child { font-weight: 600; } td:first-child::before { content: none; }
}
@media print { :root { --ink: #000; --paper: #fff; --soft: #444; --rule: #bbb; }
  nav { display: none; } details::details-content { content-visibility: visible; height: auto; } }
"""
LONG_TABLE = 12  # rows; longer ones are folded


class Evidence:
    """The reports under a folder, by kind: a list of (name, report)."""

    def __init__(self, folder):
        self.by_kind = {kind: [] for kind in KINDS}
        for path in sorted(folder.rglob("*.json")):
            try:
                report = json.loads(path.read_text())
            except ValueError:
                sys.exit(f"report: {path} is not JSON")
            kind = report.get("kind") if isinstance(report, dict) else None
            if kind in self.by_kind:
                self.by_kind[kind].append((path.relative_to(folder).with_suffix("").as_posix(), report))

    def __getitem__(self, kind):
        return self.by_kind[kind]


# --- blocks: what a page is made of, each as HTML and as Markdown

class Paragraph:
    def __init__(self, words):
        self.words = words

    def html(self):
        return f"<p>{html.escape(self.words)}</p>"

    def markdown(self):
        return self.words


class Table:
    """Cells are text, or (shown, value): the page also contains the value, for programs that read it. On a phone a row
    is a block, whose cells have the titles of their columns beside them."""

    def __init__(self, header, rows, name):
        self.header, self.rows, self.name = header, rows, name

    def html(self):
        wordy = [any(isinstance(row[i], str) and len(row[i]) > 30 for row in self.rows) for i in range(len(self.header))]

        def cell(i, c):
            attributes = f' data-title="{html.escape(self.header[i])}"' + (' class="words"' if wordy[i] else "")
            if isinstance(c, tuple):
                attributes += f' data-value="{html.escape(repr(c[1]))}"'
            return f"<td{attributes}>{html.escape(c[0] if isinstance(c, tuple) else c)}</td>"
        head = "".join(f"<th{' class=words' if wordy[i] else ''}>{html.escape(h)}</th>" for i, h in enumerate(self.header))
        body = "".join("<tr>" + "".join(cell(i, c) for i, c in enumerate(r)) + "</tr>" for r in self.rows)
        table = (f'<table id="{html.escape(self.name)}"><thead><tr>{head}</tr></thead>'
                 f"<tbody>{body}</tbody></table>")
        if len(self.rows) <= LONG_TABLE:
            return table
        return f"<details><summary>All {len(self.rows)} rows</summary>{table}</details>"

    def markdown(self):
        def line(cells):
            words = [(c[0] if isinstance(c, tuple) else c).replace("|", "\\|") for c in cells]
            return "| " + " | ".join(words) + " |"
        rule = line(["---"] + ["---:"] * (len(self.header) - 1))
        return "\n".join([line(self.header), rule, *map(line, self.rows)])


class Heading:
    def __init__(self, words):
        self.words = words

    def html(self):
        return f"<h3>{html.escape(self.words)}</h3>"

    def markdown(self):
        return f"### {self.words}"


class Chart:
    def __init__(self, title, svg):
        self.title, self.svg = title, svg

    def html(self):
        return f"<h3>{html.escape(self.title)}</h3>{self.svg}" if self.svg else ""

    def markdown(self):
        return ""  # the tables have its numbers


# --- numbers as cells

def us(value):
    return (f"{value:.2f}" if value < 100 else f"{value:.0f}", value)


def ratio(value):
    return (f"{value:.3f}", value)


def error(value):
    return ("not measured", None) if value is None else (f"{value:.1e}", value)


def named(row):
    shape = "{batch},{heads},{length},{head_dim}".format(**row)
    what = shape if row["name"] == shape else f"{row['name']} {shape}"
    return what + (" causal" if row.get("causal", "none") != "none" else "")


def peers_of(row):
    """Microseconds of every peer of a row: those measured in the same run, then those on record."""
    measured = row.get("peers_us") or {row.get("peer", "flash"): row["peer_us"]}
    return {**measured, **{f"{k} (recorded)": v for k, v in row.get("recorded_us", {}).items()}}


# --- titles for readers, from what a report says about itself

FAMILIES = {"sm90": "Hopper kernels", "sm80": "kernels for every GPU from Ampere on", "decode": "decode kernels"}


def about(name):
    """": Hopper kernels", from the name of the file; nothing if that does not begin with a family."""
    family = next((words for family, words in FAMILIES.items() if name.startswith(family)), "")
    return f": {family}" if family else ""


def comma(name):
    return about(name).replace(":", ",")


def check_words(report):
    words = f"suite {report['suite']}" + (f", seed {report['seed']}" if "seed" in report else "")
    if report.get("streams"):
        words += f", {report['streams']} threads"
    return words + (", overlapping launches" if report.get("overlap_launch") else "")


def mode_words(report):
    """Types, precision and mask of a run."""
    attention = report.get("attention", {})
    words = report["dtype"]
    if attention.get("precision", "native") != "native":
        words += f" as {attention['precision']}"
    return words + (", causal" if attention.get("causal", "none") != "none" else "")


# --- sections: a title and blocks

def gate_section(name, report):
    rows = [[g["name"], g["state"], g["reason"]] for g in report["gates"]]
    blocks = [Paragraph(f"On {report['device']}: {report['machine']}."),
              Table(["gate", "state", "what"], rows, f"{name}-gates")]
    timed = [r for g in report["gates"] for r in g["rows"]]
    if timed:
        blocks.append(Table(["shape", "us", "on record", "ratio", "A/A", "verdict"],
                            [[named(r), us(r["median_us"]), us(r["baseline_us"]), ratio(r["ratio"]),
                              (f"{r['resolution']:.1%}", r["resolution"]), r["verdict"]]
                             for r in timed], f"{name}-timings"))
    blocks += [Paragraph(f"{g['name']}: {f}") for g in report["gates"] for f in g["failures"]]
    return f"Gates{about(name)}", blocks


def latency_series(rows, head_dim):
    """For each length the case with the most heads: Octavo's time and each peer's."""
    largest = {}
    for row in rows:
        if row["head_dim"] == head_dim and row["causal"] == "none" and row["dtype"] == "f16":
            old = largest.get(row["length"])
            if old is None or row["batch"] * row["heads"] > old["batch"] * old["heads"]:
                largest[row["length"]] = row
    series = {"Octavo": []}
    for length, row in sorted(largest.items()):
        series["Octavo"].append((length, row["octavo_us"]))
        for peer, time in peers_of(row).items():
            series.setdefault(peer.removesuffix(" (recorded)"), []).append((length, time))
    return series


def compare_section(name, report):
    rows, gpu = report["rows"], report["gpu"]
    peers = sorted({p for r in rows for p in peers_of(r)})
    means = [(f"{peer}, {len(of)} cases", statistics.geometric_mean(of)) for peer in peers
             if (of := [peers_of(r)[peer] / r["octavo_us"] for r in rows if peer in peers_of(r)])]
    blocks = [
        Paragraph(f"{gpu['name']}, driver {gpu['driver'] or 'unknown'}, PyTorch "
                  f"{report['peer']['torch']}, {report['compiler']}, commit "
                  f"{report['commit'] or 'not recorded'}. Over the cases in f16: geometric mean "
                  f"{report['geometric_mean']:.3f}, minimum {report['minimum']:.3f} (above 1: Octavo is "
                  "faster)."),
        Chart("Times as fast as each peer, geometric mean", charts.bars(means, "ratio to each peer")),
        Chart("Times as fast as the best peer, case by case",
              charts.bars([(f"{named(r)} {r['dtype']}", r["ratio"]) for r in rows], "ratio by case"))]
    for head_dim in sorted({r["head_dim"] for r in rows}):
        blocks.append(Chart(f"Microseconds against length, D={head_dim}, the largest batch of each",
                            charts.lines(latency_series(rows, head_dim), "length", "us", "latency")))
    blocks.append(Table(["case", "inputs", "Octavo, us", "best peer, us", "ratio", "TFLOP/s"],
                        [[named(r), r["dtype"], us(r["octavo_us"]), us(r["ratio"] * r["octavo_us"]),
                          ratio(r["ratio"]), (f"{r['octavo_gflops'] / 1e3:.0f}", r["octavo_gflops"] / 1e3)]
                         for r in rows], f"{name}-cases"))
    blocks += [Paragraph(f"Failed: {f}") for f in report["failures"]]
    return f"Speed beside other libraries{about(name)}", blocks


def check_blocks(name, report):
    state = "passed" if report["passed"] else "FAILED"
    rows = [[f"{r['precision']} {r['format']}", (str(r["cases"]), r["cases"]), error(r["worst_total_error"]),
             error(r["worst_kernel_error"]), (f"{r['worst_bound_ratio']:.0%}", r["worst_bound_ratio"])]
            for r in report["rows"]]
    modes = sorted({r["precision"] for r in report["rows"]} - {"native"}) or ["native"]
    return [
        Heading(f"{check_words(report).capitalize()}: {', '.join(modes)}"),
        Paragraph(f"Suite {report['suite']} on {report['device']}: {state}, {report['cases']} cases, "
                  f"{report['repeat']} runs each, {report['not_run']} not served."),
        Table(["mode, inputs", "cases", "total error", "kernel error", "of its bound"], rows,
              f"{name}-errors"),
        *[Paragraph(f"Failed: {f}") for f in report["failures"][:20]]]


def check_sections(evidence):
    """One for each family of kernels, with all of its runs."""
    by_family = {}
    for name, report in evidence["check"]:
        by_family.setdefault(about(name), []).extend(check_blocks(name, report))
    return [(f"Errors against fp64{family}", blocks) for family, blocks in by_family.items()]


def timing_words(report):
    """How a GPU was timed, if it is not the usual way."""
    words = {"stream": ", launched by the host"}.get(report.get("launch"), "")
    words += {"cold": ", L2 overwritten before each call"}.get(report.get("l2"), "")
    return words + (f", {n} copies of the inputs in turn" if (n := report.get("buffers", 1)) > 1 else "")


def bench_section(name, report):
    rows = [[named(r), us(r["median_us"]), us(r["low_us"]), us(r["high_us"]),
             (f"{r['gflops'] / 1e3:.2f}", r["gflops"] / 1e3), error(r["max_error"]), r["kernel"]]
            for r in report["rows"]]
    return f"Times{about(name)}, {mode_words(report)}{timing_words(report)}", [
        Paragraph(f"On {report['device']}, {report['dtype']}, precision "
                  f"{report['attention']['precision']}{timing_words(report)}."),
        Table(["case", "median, us", "1st quartile", "3rd quartile", "TFLOP/s", "max error", "kernel"],
              rows, f"{name}-times")]


def python_section(name, report):
    def cells(row):
        if not row["peer"]:
            return [("not available", None)] * 3
        low, high = row["ratio_interval"]
        return [us(row["peer"]["median_us"]), ratio(row["ratio"]), (f"{low:.3f} to {high:.3f}", [low, high])]
    rows = [[f"{r['name']} {','.join(map(str, r['shape']))}", r["backend"], us(r["octavo"]["median_us"]), *cells(r),
             ratio(r["again_ratio"])] for r in report["rows"]]
    return f"Speed from Python{timing_words(report)}", [
        Paragraph(f"{report.get('gpu', 'CPU')}, PyTorch {report['torch']}, {report['dtype']}{timing_words(report)}. A/A: "
                  "Octavo's second turn over its first."),
        Table(["case", "peer", "Octavo, us", "peer, us", "ratio", "95%", "A/A"], rows, f"{name}-python")]


def error_points(evidence):
    """(mode, us of the `mission` preset, worst total error of the mode)."""
    errors = {(r["precision"], r["format"]): r["worst_total_error"]
              for _, c in evidence["check"] if c["suite"] == "twelve" for r in c["rows"]}
    times = {}
    for _, report in evidence["bench"]:
        for row in report["rows"] if report_roofline.usual_timing(report) else []:
            if row["name"] == "mission":
                key = (report["attention"]["precision"], report["dtype"])
                times[key] = min(times.get(key, row["median_us"]), row["median_us"])
    for _, report in evidence["compare"]:
        for row in report["rows"]:
            if row["name"] == "mission" and row["causal"] == "none":
                key = ("native", row["dtype"])
                times[key] = min(times.get(key, row["octavo_us"]), row["octavo_us"])
    return [(f"{mode} {dtype}" if mode != "native" else dtype, time, errors[mode, dtype])
            for (mode, dtype), time in times.items() if errors.get((mode, dtype))]


def error_section(evidence):
    points = error_points(evidence)
    if not points:
        return None
    rows = [[name, us(time), error(worst)] for name, time, worst in points]
    return "Error against speed", [
        Chart("Largest total error in suite twelve, against the time of the mission's shape",
              charts.scatter(points, "us", "max error", "error against speed")),
        Table(["inputs", "mission, us", "total error"], rows, "error-speed")]


COUNTERS = (("tensor_active_pct", "tensor cores, %"), ("exp_unit_pct", "exp unit, %"),
            ("issue_active_pct", "issue, %"), ("dram_pct", "DRAM, %"), ("l2_hit_pct", "L2 hits, %"),
            ("warps_active_pct", "warps, %"), ("bank_conflicts_per_wavefront", "conflicts a wavefront"),
            ("sm_clock_hz", "clock, MHz"))


def counters_section(name, report):
    if not report.get("measured", True):
        return f"Hardware counters{about(name)}", [Paragraph(f"Not measured: {report['not_measured']}")]

    def cell(row, key):
        value = row["metrics"].get(key)
        if value is None:
            return ("not counted", None)
        value = value / 1e6 if key == "sm_clock_hz" else value
        return (f"{value:.0f}" if key == "sm_clock_hz" else f"{value:.3g}", value)
    attention = report.get("attention", {"causal": "none", "precision": "native"})
    rows = [[named({**r, "causal": attention["causal"]}), r["kernel"], *(cell(r, key) for key, _ in COUNTERS)]
            for r in report["rows"]]
    return f"Hardware counters{about(name)}, {mode_words({**report, 'attention': attention})}", [
        Paragraph(f"On {report['device']}, {report['dtype']}, precision {attention['precision']}, by CUPTI "
                  f"{report['cupti']} in {report['passes']} runs of each kernel, with a warm L2."),
        Table(["case", "kernel", *(title for _, title in COUNTERS)], rows, f"{name}-counters"),
        *[Paragraph(f"Not counted: {n}") for n in report["not_counted"]]]


def roofline_section(evidence):
    found = report_roofline.rooflines(evidence, named)
    if not found:
        return None
    chip, roofs = found
    rows = [[r.name, "counted" if r.counted else "model", (f"{r.flop / 1e9:.3g}", r.flop / 1e9),
             (f"{r.dram_bytes / 1e6:.3g}", r.dram_bytes / 1e6), us(r.seconds * 1e6), us(r.roof_seconds * 1e6),
             (f"{r.share:.0%}", r.share), r.bound] for r in roofs]
    return "Rooflines", [
        Paragraph("The least time that tensor cores, DRAM and L2 leave a case, and the share of it that was "
                  "reached. Counted: bytes, clock and bandwidths are the hardware's counters of a call with a warm "
                  "L2. Model: Q, K and V read once and O written once at the bandwidth of the data sheet, the tensor "
                  "cores at the clock recorded beside the time; L2 is not in it."),
        Chart("TFLOP/s against operations a byte of DRAM",
              charts.roofline([(r.name, r.intensity, r.flop / r.seconds / 1e12) for r in roofs],
                              chip.sms * chip.flop_per_clock[2] * chip.clock_mhz / 1e6,
                              chip.dram_bytes_per_second / 1e12, "rooflines")),
        Table(["case", "bytes", "GFLOP", "DRAM, MB", "measured, us", "roof, us", "of the roof", "bound by"], rows,
              "rooflines")]


def change_section(evidence, before):
    def times(of):
        return {(r.get("kernel", name), named(r), r["dtype"]): r["octavo_us"]
                for name, report in of["compare"] for r in report["rows"]}
    old, new = times(before), times(evidence)
    both = [key for key in new if key in old]
    if not both:
        return "Since the last one", [Paragraph("No case is in both.")]
    rows = [[f"{key[0]}: {key[1]}", key[2], us(old[key]), us(new[key]),
             (f"{new[key] / old[key] - 1:+.1%}", new[key] / old[key] - 1)] for key in both]
    gone = len([key for key in old if key not in new])
    mean = statistics.geometric_mean(new[key] / old[key] for key in both)
    return "Since the last one", [
        Paragraph(f"{len(both)} cases are in both: {mean - 1:+.1%} in time on the geometric mean; "
                  f"{len(new) - len(both)} are new, {gone} are gone."),
        Table(["case", "inputs", "before, us", "now, us", "change"], rows, "changes")]


def sanitize_section(name, report):
    rows = [[t["tool"], "clean" if t["passed"] else "FAILED"] for t in report["rows"]]
    return f"compute-sanitizer{about(name)}", [Table(["tool", "state"], rows, f"{name}-sanitize")]


SECTIONS = {"gate": gate_section, "compare": compare_section, "bench": bench_section,
            "python_bench": python_section, "counters": counters_section, "sanitize": sanitize_section}


def sections(evidence, before):
    found = [SECTIONS[kind](name, report) for kind in ("gate", "compare", "python_bench") for name, report in evidence[kind]]
    found.append(error_section(evidence))
    found.append(roofline_section(evidence))
    if before:
        found.append(change_section(evidence, before))
    found += check_sections(evidence)
    found += [SECTIONS[kind](name, report) for kind in ("counters", "bench", "sanitize") for name, report in evidence[kind]]
    return [section for section in found if section]


# --- what the page begins with

def counted(number, one, many=None):
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def summary(evidence):
    """(sentence, whether it is good) of what decides, for the whole folder."""
    told = []
    for name, report in evidence["gate"]:
        bad = [g["name"] for g in report["gates"] if g["state"] == "failed"]
        told.append((f"Gates{comma(name)}: {'failed: ' + ', '.join(bad) if bad else 'passed, as far as measured'}.", not bad))
    for name, report in evidence["compare"]:
        slower = sum(r["ratio"] is not None and r["ratio"] < 1 for r in report["rows"])
        slower_in = f"slower in {counted(slower, 'case')}"
        told.append((f"Speed{comma(name)}: {report['geometric_mean']:.2f} times that of the best other library on the "
                     f"geometric mean of the cases in f16, {report['minimum']:.2f} at least; "
                     f"{slower_in if slower else 'in no case slower'}.",
                     not slower))
    checks = [report for _, report in evidence["check"]]
    if checks:
        failed = sum(len(r["failures"]) for r in checks)
        all_passed = all(r["passed"] for r in checks)
        told.append((f"Errors against fp64: {counted(sum(r['cases'] for r in checks), 'case')} in "
                     f"{counted(len(checks), 'run')}, {counted(failed, 'failure') if failed else 'no failure'}.", all_passed))
    for name, report in evidence["sanitize"]:
        bad = [t["tool"] for t in report["rows"] if not t["passed"]]
        told.append((f"compute-sanitizer{comma(name)}: {'found something with ' + ', '.join(bad) if bad else 'clean'}.", not bad))
    return told


def title_of(evidence, folder):
    """The GPU if the reports name it, else the folder."""
    gpus = {report["gpu"]["name"] for _, report in evidence["compare"]}
    machines = {report["machine"].partition(",")[0] for kind in ("gate", "bench") for _, report in evidence[kind]
                if report.get("machine") and report["device"].startswith("cuda")}
    names = gpus or machines
    return f"Octavo on {names.pop()}" if len(names) == 1 else f"Octavo: {folder}"


def named_sections(parts):
    """(identifier, title, blocks): titles that occur twice are numbered."""
    seen = {}
    for number, (head, blocks) in enumerate(parts, 1):
        seen[head] = seen.get(head, 0) + 1
        yield f"section-{number}", head if seen[head] == 1 else f"{head} ({seen[head]})", blocks


NO_CHARTS = "There are no charts: matplotlib is not installed (pip install matplotlib)."


def as_html(title, folder, told, parts):
    named = list(named_sections(parts))
    first = "".join(f"<li{'' if good else ' class=bad'}>{html.escape(words)}</li>" for words, good in told)
    links = "".join(f'<li><a href="#{name}">{html.escape(head)}</a></li>' for name, head, _ in named)
    body = "".join(f'<section id="{name}"><h2>{html.escape(head)}</h2>' + "".join(b.html() for b in blocks) + "</section>"
                   for name, head, blocks in named)
    note = "" if charts.can_draw() else f"<p>{NO_CHARTS}</p>"
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
            f"<body><h1>{html.escape(title)}</h1><p>From the files of {html.escape(folder)}.</p>"
            f'<ul class="summary">{first}</ul>{note}<nav aria-label="Sections"><ul>{links}</ul></nav>{body}</body></html>\n')


def as_markdown(title, folder, told, parts):
    lines = [f"# {title}", f"From the files of {folder}."]
    if told:
        lines.append("\n".join(f"- {words}" if good else f"- **{words}**" for words, good in told))
    for _, head, blocks in named_sections(parts):
        lines += [f"## {head}"] + [m for b in blocks if (m := b.markdown())]
    return "\n\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--before", type=pathlib.Path, help="the folder of an earlier run")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="without .html and .md")
    arguments = parser.parse_args()
    evidence = Evidence(arguments.folder)
    parts = sections(evidence, Evidence(arguments.before) if arguments.before else None)
    if not parts:
        sys.exit(f"report: {arguments.folder} has no reports; supported: files of {', '.join(KINDS)}")
    folder = arguments.folder.resolve().name
    told = summary(evidence)
    page = title_of(evidence, folder), folder, told, parts
    arguments.out.with_name(arguments.out.name + ".html").write_text(as_html(*page))
    arguments.out.with_name(arguments.out.name + ".md").write_text(as_markdown(*page))


if __name__ == "__main__":
    main()
