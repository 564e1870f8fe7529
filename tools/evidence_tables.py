#!/usr/bin/env python3
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
        """Reports from separate files, if other runs than the comparison wrote them."""
        commits = (self.read("commits") or {}).get(kind)
        if isinstance(commits, list):
            return ", commits " + " and ".join(c[:12] for c in commits)
        return f", commit {commits[:12]}" if commits else ""

    def rows(self, dtype="f16"):
        return [r for r in self.compare["rows"] if r["dtype"] == dtype]

    def peers(self):
        """The names of the peers, those that ran and those on record."""
        names = {}
        for r in self.compare["rows"]:
            names.update(peers_of(r))
        return list(names)

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
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def named(row):
    text = "{name} ({batch}, {heads}, {length}, {head_dim})" if row["name"] in PRESETS else "{name}"
    return text.format(**row)


def times(row, peers):
    theirs = peers_of(row)
    return [us(row["octavo_us"]), *(us(theirs[p]) if p in theirs else "" for p in peers),
            f"{row['ratio']:.2f}"]


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
    """The gates' verdict, which comes with a bundle (tools/adopt_bundle.sh)."""
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
        return ("`sim8` inputs are 8-bit codes,\nheld against flash on the f16 inputs they were "
                "made of.")
    return ("The ratio is to the\nfastest of them. Peers that did not run here are recorded times "
            "(bench/peers_h200.csv), scaled by\nPyTorch's cuDNN backend in this run and in that "
            "one: cudnn_graph is cuDNN's own interface, fa3 is\nFlashAttention-3.")


def page(run):
    """evidence/<device>/<family>.md"""
    peers = run.peers()
    rows = [[named(r), "yes" if r["causal"] != "none" else "", r["dtype"], *times(r, peers),
             f"{r['octavo_gflops'] / 1e3:.0f}",
             "" if r["clock_mhz"] is None else f"{r['clock_mhz']:.0f}"]
            for r in run.compare["rows"]]
    header = ["B, H, S, D", "causal", "inputs", "Octavo, us", *(f"{p}, us" for p in peers),
              "ratio", "TFLOP/s", "MHz"]
    failures = "".join(f"- {f}\n" for f in run.compare["failures"])
    return f"""# {run.family} kernels on {run.compare['gpu']['name']}

Made by `tools/evidence_tables.py` from the JSON files beside it
([what they hold](../../docs/json.md)), which {makers(run)} made. {where(run)}

{checks(run)}
{twelve_table(run)}
## Beside {beside(run)}

{summary(run)}
Times are per call, by CUDA-graph replay, the median of {run.compare['samples']} samples, ours and
theirs taking turns in one process; MHz is the SM clock meanwhile. {inputs(run)}

{table(header, rows)}
{chr(10) + 'Failed:' + chr(10) + failures if failures else ''}"""


def readme_part(run):
    by_name = {(r["name"], r["dtype"]): r for r in run.compare["rows"] if r["causal"] == "none"}
    peers = [p for p in run.peers() if not p.endswith("(recorded)")]
    rows = [[f"{named(r)}, {r['dtype']}", *times(r, peers)]
            for key in [(p, "f16") for p in PRESETS] + [("mission", "sim8")]
            if (r := by_name.get(key))]
    path = f"evidence/{run.folder.name}/{run.family}.md"
    return "\n\n".join([
        f"**{run.family} kernels** beside {beside(run)}, microseconds per call. "
        f"{where(run)}",
        table(["preset (B, H, S, D)", "Octavo", *peers, "ratio"], rows),
        f"{summary(run)} All of it: [{path}]({path}).", *readme_8bit(run)])


FULL_BATCH = 16384  # tokens of a case of the grid; the others are the presets' sizes


def grid_8bit(report):
    return [r for r in report["rows"] if r["batch"] * r["length"] == FULL_BATCH]


def summary_8bit(rows):
    """Times with and without scaling to this run."""
    def told(ratios):
        return f"geometric mean {statistics.geometric_mean(ratios):.3f}, minimum {min(ratios):.3f}"

    return (f"{told([r['ratio']['fp8'] for r in rows])}; at times on record as they are, without the pace of "
            f"the run, {told([r['ratio']['fp8'] / r['pace'] for r in rows])}")


def readme_8bit(run):
    report = run.read("8bit")
    if not report:
        return []
    rows = grid_8bit(report)
    path = f"evidence/{run.folder.name}/{run.family}_8bit.md"
    return [f"In 8 bits, `fp8` on quantized operands beside the best FP8 peer on record, over {len(rows)} full "
            f"batches: {summary_8bit(rows)}. All modes: [{path}]({path})."]


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


def page_8bit(run, report):
    """The 8-bit modes next to FP8 peers."""
    rows = report["rows"]
    grid = grid_8bit(report)
    lines = [f"""# 8-bit kernels on {report["gpu"]["name"]}

Made by `tools/evidence_tables.py` from [sm90_8bit.json]({run.family}_8bit.json), which
`tools/compare_8bit.py` made. *prequantized*: operands quantized before, V
transposed; *V by rows*: it is transposed in the call. The best FP8 peer
is cuDNN or FlashAttention-3 as on record ([bench/peers_h200_fp8.csv](../../bench/peers_h200_fp8.csv)), at
the *pace* of PyTorch's cuDNN backend in f16 in this run, its time over that on record. Each was timed
by itself there, from graphs of 20 calls, and is here. *from f16*: with the quantizers, against the
best peer in f16. Commit {report["commit"]}.

Random problems against fp64: {checks_8bit(run)}.

`fp8` over the {len(grid)} cases of full batches, {FULL_BATCH} tokens: {summary_8bit(grid)}.

| B,H,S,D | causal | pace | fp8 prequantized, us | TFLOP/s | ratio | V by rows, us | fp8_fast, us | ratio | int8, us | of fp8's speed | from f16, us | to f16 peer |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""]
    for r in rows:
        us = r["us"]
        work = 4 * r["batch"] * r["heads"] * r["length"] ** 2 * r["head_dim"]
        work /= 1 if r["causal"] == "none" else 2

        def told(value, form):
            return "" if value is None else format(value, form)

        of_int8 = us["fp8"] / us["int8"] if "int8" in us else None
        cells = [r["name"], r["causal"], told(r["pace"], ".3f"), told(us["fp8"], ".4g"),
                 told(work / us["fp8"] / 1e6, ".0f"),
                 told(r["ratio"]["fp8"], ".3f"), told(us.get("fp8_rows"), ".4g"),
                 told(us.get("fp8_fast"), ".4g"), told(r["ratio"].get("fp8_fast"), ".3f"),
                 told(us.get("int8"), ".4g"), told(of_int8, ".2f"),
                 told(us["fp8_from_f16"], ".4g"), told(r["ratio_to_f16"], ".3f")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" + counters_8bit(run)


def write_or_check(path, text, check):
    """Whether the file was up to date. Only a build can tell that kernels have changed since, so a file
    is not wrong for saying so or not."""
    old = path.read_text() if path.is_file() else ""
    right = old.replace(STALE, "") == text.replace(STALE, "")
    if not check and old != text:
        path.write_text(text)
        print(f"wrote {path}")
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
