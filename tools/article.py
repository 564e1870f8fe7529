#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the numbers and draws the figures of docs/article.md from the evidence and the experiments pages.

usage: article.py            writes both
       article.py --check    fails if a number or a figure is not that of the evidence, or a measured number stands
                             in the text by hand

A number of the page stands between <!--=key--> and <!--/-->, and FACTS has its key. Drawing needs matplotlib
(tools/docs_requirements.txt); --check does not.
"""

import argparse
import html
import json
import pathlib
import re
import sys

import performance_chart as chart

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "evidence/nvidia-h200"
KERNELS = ROOT / "docs/kernels"
PAGE = ROOT / "docs/article.md"
ASSETS = ROOT / "docs/assets"
MISSION = "mission"
FACT = re.compile(r"<!--=([\w.]+)-->(.*?)<!--/-->", re.DOTALL)
MEASURED = re.compile(r"\d\s*(?:us|ns|%|TFLOP/s|clocks|cycles)(?![\w/])")
PEERS = {"fa3": "FlashAttention-3", "cudnn": "cuDNN", "flash": "FlashAttention-2"}
RUNGS = ("scalar", "tiled", "tensor_cores", "async_copies", "specialised_warps")


# --- the sources ----------------------------------------------------------------------------------

def report(name):
    return json.loads((EVIDENCE / f"{name}.json").read_text())


def row_of(data, **wanted):
    found = [row for row in data["rows"] if all(row.get(key) == value for key, value in wanted.items())]
    if not found:
        raise KeyError(f"no row with {wanted}")
    return found[0]


def experiment(page, *words):
    """The cells of the one line of a page's tables that has all these words in its first cells."""
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")]
             for line in (KERNELS / f"{page}.md").read_text().splitlines() if line.startswith("|")]
    found = [cells for cells in lines if all(word in " | ".join(cells[:3]) for word in words)]
    if len(found) != 1:
        raise KeyError(f"{len(found)} lines of {page}.md have {words}")
    return found[0]


def numbers(cell):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", cell)]


# The kernel that the story begins with. It is gone and cannot be measured again.
FIRST_KERNEL = {"first.us": "2,617", "first.wrong": "99.5", "first.slower": "61"}

# Steps of the split-KV kernel at the mission shape: what was done, and words of its line.
STEPS = (
    ("no division before the first load", "no integer division before the first load"),
    ("approximate reciprocal of the row sum", "approximate reciprocal of the row sum"),
    ("barriers before parameters", "barriers initialised before parameters are read"),
    ("exchange in the CTA first", "exchange in the CTA first, 16-byte stores"),
    ("one path of code for all peers", "one path of code for all peers"),
    ("O stored by whole sectors", "O stored by four columns a lane"),
)


def steps():
    """(what, us before, us after) of each step."""
    lines = [(what, experiment("sm90_experiments", "split-KV", words)) for what, words in STEPS]
    return [(what, numbers(cells[3])[0], numbers(cells[4])[0]) for what, cells in lines]


# The cases of the counters: what they are called, and their names.
COUNTED = (("512 tokens", "mission"), ("512, D = 128", "wide"), ("2k tokens", "stress"), ("16k, D = 64", "1,32,16384,64"),
           ("16k, D = 128", "1,16,16384,128"), ("16k, D = 256", "1,8,16384,256"))
COUNTERS = (("tensor cores", "tensor_busy_pct"), ("exp unit", "exp_unit_pct"), ("instruction issue", "issue_active_pct"))


def counters():
    """{case: percentages of COUNTERS}"""
    data = report("sm90_counters")
    return {what: [row_of(data, name=name)["metrics"][key] for _, key in COUNTERS] for what, name in COUNTED}


def mission_times():
    """(who, us, whether it is Octavo's) at the mission shape, slowest first."""
    hopper = row_of(report("sm90_compare"), name=MISSION, dtype="f16", causal="none")
    ampere = row_of(report("sm80_compare"), name=MISSION, dtype="f16", causal="none")
    times = [("FlashAttention-3", hopper["peers_us"]["fa3"], False), ("FlashAttention-2", hopper["peers_us"]["flash"], False),
             ("cuDNN", hopper["peers_us"]["cudnn"], False), ("Octavo, mma.sync", ampere["octavo_us"], True),
             ("Octavo, wgmma", hopper["octavo_us"], True)]
    ladder = report("ladder")
    times += [(f"rung {i + 1}: {rung}", row_of(ladder, name=MISSION, kernel=rung)["median_us"], True)
              for i, rung in enumerate(RUNGS)]
    return sorted(times, key=lambda entry: -entry[1])


# --- the facts ------------------------------------------------------------------------------------

def in_bursts(data):
    """The rows in float16 whose means the evidence tells."""
    return [row for row in data["rows"] if row["dtype"] == "f16" and row.get("regime", "burst") == "burst"]


def facts():
    """{key: text} of every number that the page may quote."""
    us = "{:.2f}".format
    hopper, ampere, counted = report("sm90_compare"), report("sm80_compare"), report("sm90_counters")
    mission = row_of(hopper, name=MISSION, dtype="f16", causal="none")
    known = {
        "mission": us(mission["octavo_us"]), "mission.fa3": us(mission["peers_us"]["fa3"]),
        "mission.cudnn": us(mission["peers_us"]["cudnn"]), "mission.fa2": us(mission["peers_us"]["flash"]),
        "mission.ratio": us(mission["ratio"]), "mission.clock": f"{mission['clock_mhz']:.0f}",
        "mission.sm80": us(row_of(ampere, name=MISSION, dtype="f16", causal="none")["octavo_us"]),
        "hopper.mean": f"{hopper['geometric_mean']:.3f}", "hopper.least": f"{hopper['minimum']:.3f}",
        "hopper.cases": str(len(in_bursts(hopper))), "sm80.cases": str(len(in_bursts(ampere))),
        "sm80.mean": f"{ampere['geometric_mean']:.3f}", "sm80.least": f"{ampere['minimum']:.3f}",
    }
    for name, key in (("1,32,16384,64", "16k.64"), ("1,16,16384,128", "16k.128"), ("1,8,16384,256", "16k.256")):
        known[f"{key}.tflops"] = f"{row_of(hopper, name=name, dtype='f16', causal='none')['octavo_gflops'] / 1e3:.0f}"
    for name, key in ((MISSION, "mission"), ("1,16,16384,128", "16k.128"), ("1,32,16384,64", "16k.64")):
        metrics = row_of(counted, name=name)["metrics"]
        for counter in ("tensor_busy_pct", "exp_unit_pct", "issue_active_pct", "l2_hit_pct"):
            known[f"{key}.{counter}"] = f"{metrics[counter]:.0f}"
        known[f"{key}.clock_ghz"] = f"{metrics['sm_clock_hz'] / 1e9:.2f}"
        known[f"{key}.active_share"] = f"{100 * metrics['sm_active_cycles'] / metrics['sm_cycles']:.0f}"
    for i, (_, before, after) in enumerate(steps()):
        known[f"step{i + 1}.before"], known[f"step{i + 1}.after"] = us(before), us(after)
    least = min(in_bursts(hopper), key=lambda row: row["ratio"])
    mask = "" if least["causal"] == "none" else " causal"
    known["hopper.least.case"] = f"({least['batch']},{least['heads']},{least['length']},{least['head_dim']}){mask}"
    known["hopper.least.peer"] = PEERS[min(least["peers_us"], key=least["peers_us"].get)]
    ladder = report("ladder")
    known["ladder.long"] = us(row_of(ladder, name="long", kernel=RUNGS[-1])["median_us"])
    known["long.cudnn"] = us(row_of(hopper, name="long", dtype="f16", causal="none")["peers_us"]["cudnn"])
    for row in ladder["rows"]:
        if row["name"] == MISSION and row["rung"] > 0:
            known[f"ladder.{row['kernel']}"] = us(row["median_us"]) if row["median_us"] < 100 else f"{row['median_us']:.0f}"
    known |= sm80_facts() | main_loop_facts() | lost_facts() | proof_facts() | FIRST_KERNEL
    return known


def sm80_facts():
    page = "sm80_experiments"
    first = experiment(page, "a thread keeps its column of the tile")
    last = experiment(page, "`cp.async` with a predicate instead of a size")
    kept = experiment(page, "all of these, 32 rows a warp")
    known = {"sm80.instructions.before": first[1], "sm80.instructions.after": last[2],
             "sm80.before": kept[2], "sm80.after": kept[3]}
    for key, field in (("producer", "`producer_warps=1`"), ("polynomial", "`exp=polynomial`"), ("stages", "`stages=3`")):
        values = [float(cell) for cell in experiment(page, field)[1:] if cell]
        known[f"sm80.{key}.least"], known[f"sm80.{key}.most"] = f"{min(values):.2f}", f"{max(values):.2f}"
    return known


def main_loop_facts():
    """Lines with one time before and one after."""
    page, known = "sm90_experiments", {}
    for key, words in {
            "persistent": ("blocks of one tile follow those of the tile before",), "threshold": ("threshold test by integer",),
            "pv_first": ("`pv_first` in 16 bits",), "queued": ("`pv_first_queued` and integer comparison",),
            "rotation": ("CTAs shift by `rotation` a round",)}.items():
        cells = experiment(page, *words)
        known[f"{key}.before"], known[f"{key}.after"] = (f"{numbers(cell)[0]:g}" for cell in cells[3:5])
    known["ones"] = experiment(page, "row sums by ones instead of FADD in 16 bits")[4].lstrip("+").rstrip("%")
    cells = experiment(page, "FP8 promotion of more keys")
    known["promotion.keys"], losses = cells[2].split(";")[0], cells[4].split("; ")
    known["promotion.loss"], known["promotion.unpromoted"] = losses
    return known


def lost_facts():
    """What did not work, as the pages' tables have it: before and after."""
    known = {}
    for key, words in {
            "clusters4": ("split-KV", "clusters of four"), "loader": ("split-KV", "a loading thread for each warpgroup"),
            "refill": ("the last warp that reads a stage refills it",), "turns": ("turns: a warpgroup issues products",),
            "apart": ("warpgroups that start 250 or 600 cycles apart",), "overlap": ("next Q K^T started under the exps",),
            "lone": ("rows with a lone maximum",), "fp16": ("FP16 partial results between CTAs",)}.items():
        cells = experiment("sm90_experiments", *words)
        known[f"{key}.before"], known[f"{key}.after"] = cells[3], cells[4]
    cells = experiment("sm90_experiments", "only the loading thread waits for the quantizers")
    known["bits.problems"], known["bits.changed"] = cells[2], cells[4].split(" gave")[0]
    verdict = experiment("sm90_experiments", "exponents of a whole block before its exps")[5]
    known["one_way"] = re.search(r"differed by up to (\d+)%", verdict)[1]
    return known


def proof_facts():
    checks = [report(name) for name in ("sm90_check", "sm90_check_1", "sm90_check_2")]
    emulated, sanitized, twelve = report("sm90_check_emulated"), report("sm90_sanitize"), report("sm90_twelve")
    if not all(check["passed"] for check in (*checks, emulated, sanitized, twelve)):
        raise ValueError("a check of the evidence failed: the article says that they passed")
    faults = (EVIDENCE / "gate_faults.txt").read_text()
    native = row_of(twelve, precision="native", format="f16")
    return {
        "checks.cases": f"{sum(check['cases'] for check in checks):,}", "checks.kernels": str(checks[0]["kernels"]),
        "checks.seeds": str(len(checks)), "emulated.cases": str(emulated["emulated"]["cases"]),
        "emulated.difference": f"{emulated['emulated']['difference']:.1e}", "sanitized.cases": str(sanitized["cases"]),
        "twelve.repeat": f"{twelve['repeat']:,}", "twelve.error": f"{native['worst_total_error']:.1e}",
        "twelve.bound": f"{100 * native['worst_bound_ratio']:.0f}",
        "faults": str(len(re.findall(r"^\[       OK \] GateOnGpu\.Rejects", faults, re.MULTILINE))),
    }


# --- the figures ----------------------------------------------------------------------------------

def descriptions():
    """{figure: what it shows, in words and numbers}: the text that --check compares."""
    return {
        "article_mission": "Microseconds of a call of (1, 8, 512, 64) in float16 on an H200: "
                           + "; ".join(f"{who} {us:.2f}" for who, us, _ in mission_times()) + ".",
        "article_steps": "Microseconds of (1, 8, 512, 64) before and after each step of the split-KV kernel: "
                         + "; ".join(f"{what} {before:.2f} {after:.2f}" for what, before, after in steps())
                         + f"; today {facts()['mission']}.",
        "article_counters": f"Percent of their peak in active cycles for {', '.join(name for name, _ in COUNTERS)}: "
                            + "; ".join(f"{what} " + " ".join(f"{value:.1f}" for value in values)
                                        for what, values in counters().items()) + ".",
    }


def draw_mission(axis, colours):
    times = mission_times()
    for i, (_, us, own) in enumerate(times):
        axis.barh(-i, us, 0.66, color=colours["bars"][0 if own else 2])
        axis.annotate(f"{us:.2f}" if us < 100 else f"{us:.0f}", (us, -i), (4, 0), textcoords="offset points", va="center")
    axis.set_yticks([-i for i in range(len(times))], [who for who, _, _ in times])
    axis.set_xscale("log")
    axis.set_xlim(1, times[0][1] * 1.5)
    axis.set_xticks([1, 3, 10, 30, 100, 300], ["1", "3", "10", "30", "100", "300"])
    axis.set_xlabel("microseconds of a call, on a logarithmic scale")


def draw_steps(axis, colours):
    done = steps()
    for i, (_, before, after) in enumerate(done):
        axis.plot([before, after], [-i, -i], color=colours["grid"], linewidth=3, zorder=1)
        axis.scatter(before, -i, 46, color=colours["bars"][2], zorder=2, label="before" if i == 0 else None)
        axis.scatter(after, -i, 46, color=colours["bars"][0], zorder=2, label="after" if i == 0 else None)
    today = float(facts()["mission"])
    axis.scatter(today, -len(done), 46, color=colours["bars"][0], marker="D")
    axis.set_yticks([-i for i in range(len(done) + 1)], [what for what, _, _ in done] + ["today"])
    axis.set_xlabel("microseconds of a call")
    axis.legend(frameon=False, loc="lower right")


def draw_counters(axis, colours):
    data = counters()
    for i, ((name, _), colour) in enumerate(zip(COUNTERS, colours["bars"])):
        axis.bar([x + (i - 1) * 0.28 for x in range(len(data))], [values[i] for values in data.values()], 0.26,
                 color=colour, label=name)
    axis.set_xticks(range(len(data)), list(data))
    axis.set_ylabel("% of peak, SMs that are active")
    axis.legend(frameon=False, loc="upper left")


DRAWN = {"article_mission": (draw_mission, 4.0, "x"), "article_steps": (draw_steps, 3.0, "x"),
         "article_counters": (draw_counters, 3.4, "y")}


def draw(figure, theme, path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    colours = chart.THEMES[theme]
    plt.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "octavo", "font.size": 11, "text.color": colours["ink"],
        "axes.labelcolor": colours["soft"], "xtick.color": colours["soft"], "ytick.color": colours["ink"],
        "axes.edgecolor": colours["grid"], "legend.labelcolor": colours["ink"]})
    draws, height, grid = DRAWN[figure]
    canvas, axis = plt.subplots(figsize=(9.2, height))
    draws(axis, colours)
    axis.tick_params(length=0)
    axis.grid(axis=grid, color=colours["grid"], linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    canvas.tight_layout()
    canvas.savefig(path, transparent=True, metadata={"Date": None, "Creator": None, "Title": figure})
    plt.close(canvas)
    text = path.read_text().replace("'DejaVu Sans'", "system-ui, 'Helvetica Neue', Arial, 'DejaVu Sans'")
    words = html.escape(descriptions()[figure])
    path.write_text(re.sub(r"(<svg [^>]*>)", rf"\1\n <desc>{words}</desc>", text, count=1))


# --- the page -------------------------------------------------------------------------------------

def written(text, known):
    def value(match):
        if match[1] not in known:
            sys.exit(f"article: docs/article.md quotes {match[1]}, which is no fact of tools/article.py.")
        return f"<!--={match[1]}-->{known[match[1]]}<!--/-->"
    return FACT.sub(value, text)


def by_hand(text):
    """Measured numbers that stand in the text by hand."""
    plain = re.sub(r"^```.*?^```$", "", FACT.sub("FACT", text), flags=re.MULTILINE | re.DOTALL)
    return [plain[max(match.start() - 20, 0):match.end() + 5] for match in MEASURED.finditer(plain)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    text = PAGE.read_text()
    whole = written(text, facts())
    for found in by_hand(whole):
        sys.exit(f"article: docs/article.md has a measured number by hand: {found!r}.")
    if not given.check:
        PAGE.write_text(whole)
    elif text != whole:
        sys.exit("article: docs/article.md has other numbers than the evidence; tools/article.py writes them again.")
    for figure, words in descriptions().items():
        for theme in chart.THEMES:
            path = ASSETS / f"{figure}_{theme}.svg"
            if not given.check:
                draw(figure, theme, path)
            elif chart.described(path) != words:
                sys.exit(f"article: {path.name} shows other numbers than the evidence; tools/article.py draws it again.")


if __name__ == "__main__":
    main()
