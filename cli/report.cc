// SPDX-License-Identifier: Apache-2.0
// The library's reports as readable text, one function for each: a table, what it means, and what
// failed.
#include "report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "table.h"

namespace octavo::cli {
namespace {

constexpr std::size_t kFailuresShown = 20;

std::string or_dash(const std::optional<double>& value, std::string (*format)(double)) {
  return value ? format(*value) : "-";
}

std::string oracle_line(const CheckReport& report) {
  if (report.oracle_compared == 0) return "";
  return fmt::format(
      "\nfp64 attention on {}; compared with the CPU's on {} cases: {} of the bound for reordered "
      "sums\n",
      report.oracle, report.oracle_compared,
      fmt::format("{:.1f}%", 100 * report.oracle_difference));
}

std::string emulated_line(const CheckReport& report) {
  if (report.emulated == 0) return "";
  return fmt::format("\n{} cases compared with the same kernels in the emulator: {:.1e} apart\n",
                     report.emulated, report.emulated_difference);
}

std::string not_run_lines(const CheckReport& report) {
  if (report.not_run == 0) return "";
  std::string text = fmt::format("\n{} cases not run:\n", report.not_run);
  for (const std::string& reason : report.not_run_reasons) text += "  " + wrapped(reason, 4) + "\n";
  return text;
}

std::string failure_lines(const std::vector<std::string>& failures) {
  if (failures.empty()) return "";
  std::string text = fmt::format("\n{} failed:\n", failures.size());
  for (std::size_t i = 0; i < failures.size() && i < kFailuresShown; ++i) {
    text += "  " + wrapped(failures[i], 4) + "\n";
  }
  if (failures.size() > kFailuresShown) {
    text +=
        fmt::format("  and {} more; --json FILE has them all\n", failures.size() - kFailuresShown);
  }
  return text;
}

std::string percent(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }
std::string times(double ratio) { return fmt::format("{:.1f}x", ratio); }

// The distance of the quartiles from the median, as one number.
std::string spread(const BenchRow& row) {
  if (row.median_us <= 0) return "-";
  return fmt::format("{:.1f}%", 100 * (row.high_us - row.low_us) / row.median_us);
}

std::string timing_lines(const GateResult& gate) {
  if (gate.timings.empty()) return "";
  using enum Table::Align;
  Table table(
      {{"shape", left}, {"median us"}, {"on record"}, {"ratio"}, {"95%"}, {"A/A"}, {"", left}});
  for (const GateTiming& t : gate.timings)
    table.add_row({t.shape.name, short_number(t.median_us), short_number(t.baseline_us),
                   fmt::format("{:.3f}", t.ratio),
                   fmt::format("{:.3f} to {:.3f}", t.ratio_low, t.ratio_high),
                   percent(t.resolution), t.verdict});
  return "\n" + table.text();
}

// The GPU timing options that are not the default.
std::string timing_text(const BenchReport& report) {
  std::string text;
  if (report.prequantized)
    text += fmt::format(", on prequantized operands, V {}",
                        report.prequantized_v == VLayout::rows ? "by rows" : "transposed");
  if (report.stream) text += ", launched from the host";
  if (report.cold_l2) text += ", L2 cold";
  if (report.buffers > 1) text += fmt::format(", {} buffers in turn", report.buffers);
  return text;
}

std::string clock_lines(const BenchReport& report) {
  std::string text;
  for (const BenchRow& row : report.rows) {
    if (!row.clock_mhz || !row.power_w || !row.throttle) continue;
    text += fmt::format("{}: {:.0f} MHz, {:.0f} W", row.shape.name, *row.clock_mhz, *row.power_w);
    if (!row.throttle->empty())
      text += fmt::format(", throttled by {}", fmt::join(*row.throttle, ", "));
    if (row.empty_us) text += fmt::format("; a sample without a call: {:.2f} us", *row.empty_us);
    text += "\n";
  }
  return text;
}

std::string options_text(const Options& options) {
  std::string text = fmt::format("precision {}", name(options.precision));
  if (options.causal != Causal::none) text += fmt::format(", causal {}", name(options.causal));
  if (options.window_left >= 0 || options.window_right >= 0) {
    text += fmt::format(", window {},{}", options.window_left, options.window_right);
  }
  return text;
}

}  // namespace

std::string render(const CheckReport& report) {
  using enum Table::Align;
  Table table({{"precision", left},
               {"inputs", left},
               {"cases"},
               {"failed"},
               {"total error"},
               {"kernel error"},
               {"rmse"},
               {"of bound"}});
  std::string bounds;
  for (const CheckRow& row : report.rows) {
    table.add_row({row.precision, row.format, fmt::format("{}", row.cases),
                   fmt::format("{}", row.failed), error_number(row.worst_total_error),
                   error_number(row.worst_kernel_error), error_number(row.worst_total_rmse),
                   percent(row.worst_bound_ratio)});
    bounds += "  " +
              wrapped(fmt::format("{} {}: {}; closest: {}", row.precision, row.format, row.bound,
                                  row.worst_case),
                      4) +
              "\n";
  }
  return fmt::format(
             "check on {}, suite {}, seed {}: the worst of each precision and input type\n\n",
             report.device, report.suite, report.seed) +
         table.text() + "\nbounds and the case that came closest:\n" + bounds +
         oracle_line(report) + emulated_line(report) + failure_lines(report.failures) +
         not_run_lines(report) +
         fmt::format("\n{}: {} cases ({} distinct), {} runs each{}{}, {} failed\n",
                     report.passed() ? "passed" : "FAILED", report.cases, report.distinct,
                     report.repeat,
                     report.streams > 0 ? fmt::format(" by {} threads", report.streams) : "",
                     report.overlap_launch ? ", launches overlapping" : "", report.failures.size());
}

// A line for each case whose host's part was timed.
std::string host_lines(const BenchReport& report) {
  std::string text;
  for (const BenchRow& row : report.rows) {
    if (!row.host) continue;
    text += fmt::format("host, {}: {:.0f} ns a run of a plan, {:.0f} ns a call", row.shape.name,
                        row.host->run_ns, row.host->call_ns);
    if (row.host->bare_launch_ns)
      text += fmt::format(", {:.0f} ns the launch alone", *row.host->bare_launch_ns);
    text += "\n";
  }
  return text;
}

std::string render(const LadderReport& report) {
  using enum Table::Align;
  std::string text = fmt::format("ladder on {} ({}), f16{}, seed {}\n", report.device,
                                 report.machine, report.causal ? ", causal" : "", report.seed);
  std::string shape, not_run;
  std::optional<Table> table;
  for (const LadderRow& row : report.rows) {
    if (row.shape.name != shape) {
      if (table) text += table->text();
      table.emplace(std::vector<Table::Column>{{"rung", left},
                                               {"us"},
                                               {"TFLOP/s"},
                                               {"of the rung before"},
                                               {"of Octavo"},
                                               {"max error"},
                                               {"of bound"}});
      text += fmt::format("\n{}: batch {}, heads {}, seqlen {}, head_dim {}\n", row.shape.name,
                          row.shape.batch, row.shape.heads, row.shape.length, row.shape.head_dim);
      shape = row.shape.name;
    }
    const auto tflops = [](double gflops) { return short_number(gflops * 1e-3); };
    const auto ratio = [](double x) { return fmt::format("{:.2f}x", x); };
    const auto shown = [](const std::optional<double>& x, const auto& format) {
      return x ? format(*x) : std::string("-");
    };
    table->add_row({row.rung > 0 ? fmt::format("{} {}", row.rung, row.kernel)
                                 : fmt::format("Octavo: {}", row.kernel),
                    shown(row.median_us, short_number), shown(row.gflops, tflops),
                    shown(row.vs_previous, ratio), shown(row.vs_octavo, ratio),
                    shown(row.max_error, error_number), shown(row.bound_ratio, percent)});
    if (!row.not_run.empty())
      not_run += "  " +
                 wrapped(fmt::format("{} {}: {}", row.shape.name, row.kernel, row.not_run), 4) +
                 "\n";
  }
  if (table) text += table->text();
  if (!not_run.empty()) text += "\nnot run:\n" + not_run;
  text += failure_lines(report.failures);
  if (report.turns == 0) text += "\nchecked in the emulator, which has no times\n";
  return text + fmt::format("\n{}\n", report.passed() ? "passed" : "FAILED");
}

Table error_table() {
  using enum Table::Align;
  return Table({{"precision", left},
                {"max"},
                {"rmse"},
                {"rel. rmse"},
                {"1 - cosine"},
                {"bias"},
                {"kernel max"},
                {"kernel rmse"},
                {"kernel bias"}});
}

std::string render(const AccuracyReport& report) {
  using enum Table::Align;
  std::string text = fmt::format(
      "accuracy on {} ({}), the worst of {} seeds{}\n", report.device, report.machine, report.seeds,
      report.oracle == "cpu" ? "" : ", fp64 attention on " + report.oracle);
  std::string last;
  std::optional<Table> errors, times;
  bool timed = false, any_time = false;
  const auto finish = [&] {
    if (errors) text += errors->text();
    if (errors && timed) text += "\n" + times->text();
    errors.reset();
    timed = false;
  };
  std::vector<std::string> missing;
  for (const AccuracyRow& row : report.rows) {
    const std::string title = fmt::format("{} (1, {}, {}, {}), {} keys", row.data, row.heads,
                                          row.seqlen_q, row.head_dim, row.seqlen_kv);
    if (title != last) {
      finish();
      text += "\n" + title + "\n";
      errors.emplace(error_table());
      times.emplace(std::vector<Table::Column>{{"precision", left}, {"us"}, {"prequantized us"}});
      last = title;
    }
    const std::string mode(name(row.precision));
    if (!row.not_available.empty()) {
      errors->add_row({mode, "not available"});
      const std::string line = mode + ": " + row.not_available;
      if (std::find(missing.begin(), missing.end(), line) == missing.end()) missing.push_back(line);
      continue;
    }
    errors->add_row({mode, error_number(row.total.max_abs), error_number(row.total.rmse),
                     error_number(row.total.relative_rmse), error_number(1 - row.total.cosine),
                     error_number(row.total_bias), error_number(row.kernel.max_abs),
                     error_number(row.kernel.rmse), error_number(row.kernel_bias)});
    times->add_row(
        {mode, or_dash(row.us, short_number), or_dash(row.prequantized_us, short_number)});
    timed = timed || row.us || row.prequantized_us;
    any_time = any_time || timed;
  }
  finish();
  if (!any_time) text += "\ntimes: not measured\n";
  if (!missing.empty()) text += "\nnot available:\n";
  for (const std::string& line : missing) text += "  " + wrapped(line, 4) + "\n";
  return text;
}

std::string render(const BenchReport& report) {
  using enum Table::Align;
  Table table({{"case", left},
               {"B,H,S,D", left},
               {"median us"},
               {"spread"},
               {"GFLOP/s"},
               {"of FMA peak"},
               {"three-loop"},
               {"max error"},
               {"kernel", left}});
  for (const BenchRow& row : report.rows) {
    const BenchCase& c = row.shape;
    table.add_row({c.name, fmt::format("{},{},{},{}", c.batch, c.heads, c.length, c.head_dim),
                   short_number(row.median_us), spread(row), short_number(row.gflops),
                   or_dash(row.fma_peak_fraction, percent), or_dash(row.three_loop_ratio, times),
                   or_dash(row.max_error, error_number), row.kernel.kernel});
  }
  std::string text =
      fmt::format("bench on {}, {} inputs, {}, {} threads, {} runs after {}{}\n\n", report.device,
                  report.dtype, options_text(report.attention), report.threads, report.iters,
                  report.warmup, timing_text(report)) +
      table.text() +
      "\nspread: between the quartiles, of the median; three-loop: times faster than "
      "plain loops\n";
  if (report.fma_peak_gflops) {
    text += fmt::format("fp32 FMA peak, measured in this run: {} GFLOP/s\n",
                        short_number(*report.fma_peak_gflops));
  }
  return text + clock_lines(report) + host_lines(report) + failure_lines(report.failures);
}

std::string render(const CountersReport& report) {
  std::string text = fmt::format("counters on {}, {}, {} inputs, {}", report.device, report.machine,
                                 report.dtype, options_text(report.attention));
  if (!report.measured()) return text + fmt::format("\n\nnot measured: {}\n", report.not_measured);
  text += fmt::format("; {}, CUPTI {}, {} passes\n", report.chip, report.cupti, report.passes);
  using enum Table::Align;
  for (const CounterRow& row : report.rows) {
    const BenchCase& c = row.shape;
    text += fmt::format("\n{} {},{},{},{}: {}, launch {} of {}\n", c.name, c.batch, c.heads,
                        c.length, c.head_dim, row.main ? row.kernel.kernel : "preparation",
                        row.launch + 1, row.launches);
    Table table({{"counter", left}, {"value"}, {"unit", left}, {"metric", left}});
    for (std::size_t i = 0; i < report.names.size(); ++i)
      table.add_row({report.names[i].key, or_dash(row.values[i], short_number),
                     report.names[i].unit, report.names[i].metric});
    text += table.text();
  }
  if (!report.not_counted.empty()) text += "\nnot counted:\n";
  for (const std::string& part : report.not_counted) text += "  " + wrapped(part, 4) + "\n";
  return text;
}

std::string render(const EvolveReport& report) {
  using enum Table::Align;
  const auto percent = [](double speedup) { return fmt::format("{:+.2f}%", (speedup - 1) * 100); };
  std::string text = fmt::format(
      "{} in {}: {}, {} candidates judged, {:.0f} s, seed {}\n\n", report.kernel, report.directory,
      report.finished ? "complete" : "not complete; `octavo evolve resume`", report.judged,
      report.seconds, report.seed);
  Table elites({{"arm", left},
                {"kernel", left},
                {"speed-up"},
                {"interval"},
                {"levers", left},
                {"audit", left}});
  for (const EvolveElite& e : report.elites)
    elites.add_row({e.arm, e.id, percent(e.speedup),
                    fmt::format("{} to {}", percent(e.low), percent(e.high)),
                    fmt::format("{}", fmt::join(e.levers, ", ")), e.audit});
  Table gates({{"gate", left}, {"rejected"}, {"not done"}});
  for (const EvolveRejections& each : report.rejections)
    gates.add_row({each.gate, fmt::format("{}", each.rejected), fmt::format("{}", each.not_done)});
  text += elites.text() + "\n" + gates.text();
  if (!report.effects.empty()) {
    Table effects({{"kernel", left}, {"lever", left}, {"effect"}, {"interval", left}});
    for (const EvolveEffect& e : report.effects)
      effects.add_row(
          {e.candidate, e.change, e.not_measured.empty() ? percent(e.speedup) : "not measured",
           e.not_measured.empty() ? fmt::format("{} to {}", percent(e.low), percent(e.high))
                                  : e.not_measured});
    text += "\n" + effects.text();
  }
  for (const std::string& difference : report.differences)
    text += "  " + wrapped("replayed otherwise: " + difference, 4) + "\n";
  return text;
}

std::string render(const GateReport& report) {
  using enum Table::Align;
  Table states({{"gate", left}, {"state", left}, {"what", left}});
  Table findings(
      {{"gate", left}, {"threshold", left}, {"value"}, {"limit", left}, {"", left}, {"of", left}});
  std::string more;
  for (const GateResult& gate : report.gates) {
    states.add_row({gate.name, std::string(name(gate.state)), gate.reason});
    for (const GateFinding& f : gate.findings)
      findings.add_row({gate.name, f.threshold, short_number(f.value), f.limit,
                        f.held       ? "held"
                        : f.enforced ? "NOT HELD"
                                     : "not held, not enforced",
                        f.subject});
    more += timing_lines(gate);
    for (const std::string& part : gate.left_out)
      more += "  " + wrapped(fmt::format("{}: not measured: {}", gate.name, part), 4) + "\n";
    more += failure_lines(gate.failures);
  }
  return fmt::format("gates on {}, {}, seed {}, draw seed {}\n\n", report.device, report.machine,
                     report.seed, report.draw_seed) +
         states.text() + "\n" + findings.text() + more +
         fmt::format("\n{}\n", report.passed() ? "passed, as far as it was measured" : "FAILED");
}

std::string render(const BundleReport& report) {
  std::string text =
      field_lines({{"commit", report.commit.empty() ? "not recorded" : report.commit},
                   {"GPU", report.gpu.empty() ? "none" : report.gpu},
                   {"files", fmt::format("{}", report.files)},
                   {"kernels", fmt::format("{}, of which {} are also built here", report.kernels,
                                           report.kernels_compared)}});
  for (const std::string& part : report.not_compared)
    text += "  " + wrapped("not compared: " + part, 4) + "\n";
  return text + failure_lines(report.failures) +
         fmt::format("\n{}\n", report.passed() ? "the bundle matches its manifest" : "FAILED");
}

std::string render(const Explanation& e, const std::string& problem) {
  return field_lines({{"problem", problem},
                      {"device", e.device},
                      {"kernel", e.kernel},
                      {"config", e.config},
                      {"why", e.reason},
                      {"workspace", byte_count(e.workspace_bytes)},
                      {"time", e.measured_us ? duration(*e.measured_us) : "not measured"},
                      {"max error", e.max_error ? error_number(*e.max_error) : "not measured"}});
}

std::string render(const std::vector<DeviceInfo>& devices) {
  using enum Table::Align;
  Table table({{"device", left}, {"available", left}, {"description", left}});
  for (const DeviceInfo& info : devices) {
    table.add_row(
        {name(info.device), info.available ? "yes" : "no",
         info.available ? info.description : fmt::format("{}: {}", info.description, info.reason)});
  }
  return table.text();
}

}  // namespace octavo::cli
