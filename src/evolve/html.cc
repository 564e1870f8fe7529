// SPDX-License-Identifier: Apache-2.0
// The page of a run: plain HTML and SVG, without scripts and without references to other files.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "evolve/selection.h"
#include "evolve/summary.h"

namespace octavo::evolve {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --line: #8888; --a: #3558c8; --b: #b8860b; --c: #888; }
@media (prefers-color-scheme: dark) { :root { --a: #8fa8ff; --b: #e0b040; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .7rem; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code, pre { font: 13px/1.4 ui-monospace, monospace; } pre { overflow-x: auto; }
code { overflow-wrap: anywhere; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
)css";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out;
}

std::string head(const EvolveReport& r) {
  std::string shapes;
  for (const BenchCase& c : r.cases)
    shapes += fmt::format("{}{} ({}, {}, {}, {})", shapes.empty() ? "" : "; ", c.name, c.batch,
                          c.heads, c.length, c.head_dim);
  return fmt::format(
      "<h1>octavo evolve: {}</h1>\n<p>{} after {:.0f} s: {} candidates of the generator {} "
      "(information {}), {} judged, {} of them the machine code of an earlier one. Seed {}.</p>\n"
      "<p>Cases (batch, heads, length, head_dim): {}. A speed-up is the base's time over the "
      "kernel's, timed in turn, as a geometric mean over the cases, with its 95% interval.</p>\n"
      "<p>Base: <code>{}</code></p>\n",
      escaped(r.kernel), r.finished ? "Complete" : "Not complete", r.seconds, r.candidates,
      escaped(r.generator), escaped(r.information), r.judged, r.duplicates, r.seed, escaped(shapes),
      escaped(r.base.empty() ? "what the library chooses for each case" : r.base));
}

std::string elites_table(const EvolveReport& r) {
  std::string rows;
  for (const EvolveElite& e : r.elites)
    rows += fmt::format(
        "<tr><td>{}</td><td>{}</td><td class=n>{}</td><td class=n>{} to {}</td><td>{}</td>"
        "<td>{}</td></tr>\n",
        e.arm, e.id, percent_text(e.speedup), percent_text(e.low), percent_text(e.high),
        escaped(fmt::format("{}", fmt::join(e.levers, ", "))), escaped(e.audit));
  return "<h2>Elites and their audit</h2>\n<table><tr><th>arm<th>kernel<th class=n>speed-up"
         "<th class=n>interval<th>levers<th>audit</tr>\n" +
         rows + "</table>\n";
}

std::string shapes_table(const EvolveReport& r) {
  std::string rows;
  for (const EvolveElite& e : r.elites)
    for (std::size_t i = 0; i < e.shape_us.size(); ++i)
      rows += fmt::format(
          "<tr><td>{}</td><td>{}</td><td>{}</td><td class=n>{:.2f}</td><td class=n>{}</td>"
          "<td class=n>{:.1f}%</td></tr>\n",
          e.arm, e.id, escaped(r.cases[i].name), e.shape_us[i], percent_text(e.shape_speedups[i]),
          e.peak_fractions[i] * 100);
  if (rows.empty()) return "";
  return "<h2>Each case</h2>\n<table><tr><th>arm<th>kernel<th>case<th class=n>us"
         "<th class=n>speed-up<th class=n>of the tensor cores' peak</tr>\n" +
         rows + "</table>\n";
}

std::string effects_table(const EvolveReport& r) {
  if (r.effects.empty()) return "";
  std::string rows;
  for (const EvolveEffect& e : r.effects)
    rows +=
        e.not_measured.empty()
            ? fmt::format(
                  "<tr><td>{}</td><td>{}</td><td class=n>{}</td><td class=n>{} to {}</td></tr>\n",
                  e.candidate, escaped(e.change), percent_text(e.speedup), percent_text(e.low),
                  percent_text(e.high))
            : fmt::format("<tr><td>{}</td><td>{}</td><td colspan=2>{}</td></tr>\n", e.candidate,
                          escaped(e.change), escaped(e.not_measured));
  return "<h2>Effect of each lever</h2>\n<p>Each change of an admitted kernel was reverted alone; "
         "the effect is its speed with the change over its speed without.</p>\n"
         "<table><tr><th>kernel<th>change<th class=n>effect<th class=n>interval</tr>\n" +
         rows + "</table>\n";
}

std::string rejections_table(const EvolveReport& r) {
  std::string rows;
  for (const EvolveRejections& each : r.rejections)
    rows += fmt::format("<tr><td>{}</td><td class=n>{}</td><td class=n>{}</td></tr>\n", each.gate,
                        each.rejected, each.not_done);
  return "<h2>Gates</h2>\n<table><tr><th>gate<th class=n>rejected<th class=n>not done</tr>\n" +
         rows + "</table>\n";
}

// The best admitted speed-up of each arm after so many of its candidates.
std::map<std::string, std::vector<double>> curves(const Run& run) {
  std::map<std::string, std::vector<double>> all;
  for (const std::string& arm : arms_of(run.settings)) {
    double best = 1;
    for (const Record& record : run.contents.records) {
      const bool is_seed = record.arm == kSeedArm;
      if (!is_seed && record.arm != arm) continue;
      if (record.is_admitted()) best = std::max(best, admitted_speedup(record));
      if (!is_seed) all[arm].push_back(best);
    }
  }
  return all;
}

std::string curve(const Run& run) {
  constexpr double kWidth = 760, kHeight = 240, kLeft = 60, kBottom = 30;
  const auto all = curves(run);
  std::size_t longest = 1;
  double most = 1.01;
  for (const auto& [arm, values] : all) {
    longest = std::max(longest, values.size());
    for (const double value : values) most = std::max(most, value);
  }
  const auto x = [&](std::size_t i) {
    return kLeft + (kWidth - kLeft) * static_cast<double>(i) / static_cast<double>(longest);
  };
  const auto y = [&](double speedup) {
    return (kHeight - kBottom) * (1 - std::log(speedup) / std::log(most)) + 10;
  };
  std::string lines;
  int number = 0;
  for (const auto& [arm, values] : all) {
    std::string points = fmt::format("{:.1f},{:.1f}", x(0), y(1));
    double before = 1;
    for (std::size_t i = 0; i < values.size(); ++i) {
      points +=
          fmt::format(" {:.1f},{:.1f} {:.1f},{:.1f}", x(i + 1), y(before), x(i + 1), y(values[i]));
      before = values[i];
    }
    const char* const colour = arm == kMainArm   ? "var(--a)"
                               : arm == "random" ? "var(--c)"
                                                 : "var(--b)";
    lines += fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n"
        "<text x=\"{:.0f}\" y=\"{}\" style=\"fill:{}\">{} {}</text>\n",
        points, colour, kLeft + 10, 24 + 16 * number++, colour, escaped(arm), percent_text(before));
  }
  return fmt::format(
      "<h2>Speed by candidates judged</h2>\n<svg viewBox=\"0 0 {0} {1}\" width=\"100%\" "
      "role=\"img\" "
      "aria-label=\"Best admitted speed-up by number of candidates\">\n"
      "<line x1=\"{2}\" y1=\"{3:.0f}\" x2=\"{0}\" y2=\"{3:.0f}\" stroke=\"var(--line)\"/>\n"
      "<text x=\"0\" y=\"{3:.0f}\">base</text><text x=\"0\" y=\"14\">{4}</text>\n"
      "<text x=\"{5}\" y=\"{6}\">{7} candidates</text>\n{8}</svg>\n",
      kWidth, kHeight, kLeft, y(1), percent_text(most), kWidth - 110, kHeight - 2, longest, lines);
}

// Nested lists: a kernel below its first parent. Rejected candidates without children are counted.
std::string branch(const Run& run, const std::string& id, int depth) {
  constexpr int kDeepest = 60;
  std::string items;
  int rejected = 0;
  for (const Record& record : run.contents.records) {
    const Candidate& c = record.candidate;
    if (c.parents.empty() || c.parents[0] != id || depth > kDeepest) continue;
    if (record.verdict != Verdict::passed) {
      ++rejected;
      continue;
    }
    std::string levers;
    for (const Lever& lever : c.levers)
      levers += (levers.empty() ? "" : ", ") + (lever.config.empty() ? lever.tag : lever.config);
    const std::string measured =
        record.is_admitted()
            ? fmt::format(", <b>admitted {}</b>", percent_text(admitted_speedup(record)))
        : record.admission.empty() ? ", not fast enough to be considered"
                                   : ", " + escaped(record.admission);
    items +=
        fmt::format("<li>{} ({}, {}): {}{}{}</li>\n", c.id, escaped(record.arm), escaped(c.author),
                    escaped(levers), measured, branch(run, c.id, depth + 1));
  }
  if (rejected > 0) items += fmt::format("<li>{} rejected or not done</li>\n", rejected);
  return items.empty() ? "" : "<ul>\n" + items + "</ul>\n";
}

std::string reasons_table(const Run& run) {
  std::string rows;
  for (const Record& record : run.contents.records) {
    if (record.verdict == Verdict::passed || !record.verdict) continue;
    rows +=
        fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", record.candidate.id,
                    escaped(record.arm), escaped(record.gate), escaped(record.reason));
  }
  return "<details><summary>Every candidate that did not pass, with its reason</summary>\n"
         "<table><tr><th>candidate<th>arm<th>gate<th>reason</tr>\n" +
         rows + "</table></details>\n";
}

std::string sources(const EvolveReport& r) {
  std::string text;
  for (const EvolveElite& e : r.elites) {
    if (e.arm != kMainArm || e.id == kBaseId) continue;
    text += fmt::format("<h2>{}</h2>\n<pre>{}</pre>\n", e.id,
                        escaped(e.config + (e.patch.empty() ? "" : "\n\n" + e.patch)));
  }
  return text;
}

}  // namespace

std::string html_of(const EvolveReport& report, const Run& run) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>octavo evolve</title>\n"
      "<style>{}</style>\n<body>\n{}{}{}{}{}{}<h2>Lineage</h2>\n<p>{}</p>\n{}{}{}</body>\n</"
      "html>\n",
      kStyle, head(report), curve(run), elites_table(report), shapes_table(report),
      effects_table(report), rejections_table(report), kBaseId, branch(run, kBaseId, 0),
      reasons_table(run), sources(report));
}

}  // namespace octavo::evolve
