#include "evolve/gates/emulated_judge.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "evidence/cases/inputs.h"
#include "evidence/gates/check.h"
#include "evidence/ladder/ladder_cases.h"
#include "evolve/gates/host_kernel.h"

namespace octavo::evolve {
namespace {

// The kernel's library, which a gate before may have built.
HostBuild build_once(const Subject& subject, const Limits& limits) {
  const std::string library = limits.directory + "/host/candidate.so";
  struct stat info {};
  if (stat(library.c_str(), &info) == 0)
    return {HostBuild::End::built, "The kernel was compiled for the emulator before.", library};
  return build_host_kernel(subject.config, subject.patched.overlay(), limits);
}

// What a child says about a failure: the first line, and where the emulator saw a hazard.
std::string short_failure(const std::string& failure) {
  constexpr std::size_t kMost = 500;
  std::string text = failure.substr(0, failure.find('\n'));
  constexpr std::string_view kWhere = "\n  where ";
  if (const std::size_t at = failure.find(kWhere); at != std::string::npos) {
    std::size_t begin = failure.find_first_not_of(' ', at + kWhere.size());
    begin = std::min(begin, failure.size());
    text += ", " + failure.substr(begin, failure.find('\n', begin) - begin);
  }
  return text.substr(0, kMost);
}

using JudgeKernel = std::function<GateOutcome(const EmulatedKernel&)>;

GateOutcome judge_emulated(const Subject& subject, const Context& context, std::string_view gate,
                           const JudgeKernel& judge) {
  Limits limits = limits_of(context);
  std::optional<EmulatedKernel> kernel;
  if (subject.patched.sources.empty()) kernel = built_in_kernel(subject.config);
  HostBuild build;
  if (!kernel) {
    build = build_once(subject, limits);
    if (build.end == HostBuild::End::no_compiler) return not_done(build.reason);
    if (build.end == HostBuild::End::refused) return rejected(build.reason);
  }
  limits.directory.clear();
  limits.untrusted_code = !subject.patched.sources.empty();
  const ChildResult child = run_isolated(limits, [&] {
    if (!kernel) {
      Result<EmulatedKernel> loaded = load_host_kernel(subject.config, build.library);
      if (!loaded.ok()) return to_answer(rejected(loaded.status().message()));
      kernel = *loaded;
    }
    return to_answer(judge(*kernel));
  });
  return outcome_of(child, gate);
}

GateOutcome check_emulated(const EmulatedKernel& kernel, const std::vector<evidence::Case>& cases,
                           const std::vector<std::optional<std::uint64_t>>& schedules) {
  CheckOptions options;
  options.device = {Device::Kind::emulator, 90};
  options.repeat = 1;
  std::int64_t ran = 0;
  double worst = 0;
  for (const std::optional<std::uint64_t>& schedule : schedules) {
    const Result<CheckReport> report =
        evidence::check_cases(options, cases, emulated_runner(kernel, schedule));
    if (!report.ok()) return rejected(report.status().message());
    if (!report->failures.empty()) {
      GateOutcome outcome = rejected(
          fmt::format("{} failures in {} cases{}: {}", report->failures.size(), report->cases,
                      schedule ? fmt::format(" under schedule {}", *schedule) : "",
                      short_failure(report->failures.front())));
      outcome.figures["failures"] = report->failures.size();
      outcome.figures["report"] = report->failures.front().substr(0, 4000);
      return outcome;
    }
    if (2 * report->cases < static_cast<std::int64_t>(cases.size()))
      return rejected(
          fmt::format("The kernel serves only {} of {} cases: {}", report->cases, cases.size(),
                      report->not_run_reasons.empty() ? "" : report->not_run_reasons[0]));
    ran += report->cases;
    for (const CheckRow& row : report->rows) worst = std::max(worst, row.worst_bound_ratio);
  }
  GateOutcome outcome = passed(fmt::format(
      "{} runs under {} schedules have no hazard and are within {:.2f} of their bounds.", ran,
      schedules.size(), worst));
  outcome.figures = {{"cases", ran}, {"schedules", schedules.size()}, {"worst_bound_ratio", worst}};
  return outcome;
}

// Two problems whose products are easily counted: full, and causal with as many queries as keys.
std::vector<evidence::Case> counted_cases(const KernelConfig& config) {
  evidence::Case c = edge_cases(config).front();
  c.options.causal = Causal::none;
  c.options.window_left = -1;
  c.scale = {};
  c.layout = evidence::Layout::bhsd;
  c.seqlen_q = 130;
  c.seqlen_kv = 260;
  std::vector<evidence::Case> cases{c};
  c.options.causal = Causal::top_left;
  c.seqlen_q = c.seqlen_kv = 200;
  cases.push_back(c);
  return cases;
}

std::int64_t products_of(const evidence::Case& c) {
  std::int64_t pairs = 0;
  for (std::int64_t row = 0; row < c.seqlen_q; ++row)
    pairs += c.options.causal == Causal::none ? c.seqlen_kv : std::min(row + 1, c.seqlen_kv);
  return c.batch * c.heads_q * pairs * (c.head_dim + c.v_columns());
}

// The formats in which a kernel of this configuration multiplies; empty: not on the tensor cores.
std::set<std::string> formats_of(Element element) {
  switch (element) {
    case Element::bf16:
      return {"bf16"};
    case Element::e4m3:
      return {"e4m3"};
    case Element::e5m2:
      return {"e5m2"};
    case Element::int8:
      return {"s8", "u8"};
    default:
      return {"f16"};  // also sim8, which is converted
  }
}
std::set<std::string> formats_of(const KernelConfig& config) {
  if (const auto* ladder = std::get_if<LadderConfig>(&config))
    return ladder->rung < Rung::tensor_cores ? std::set<std::string>() : formats_of(Element::f16);
  if (const auto* sm80 = std::get_if<Sm80ForwardConfig>(&config)) return formats_of(sm80->element);
  const auto& sm90 = std::get<Sm90ForwardConfig>(config);
  std::set<std::string> formats = formats_of(sm90.element);
  formats.merge(formats_of(sm90.v_element));
  return formats;
}

using Products = std::map<std::string, std::int64_t>;  // by format

// Of a first call, whose outputs are poisoned, and of a second one, which finds the results of the
// first: a kernel may not save itself the work.
struct Counted {
  Status status;
  Products first, second;
};
Counted count_products(const EmulatedKernel& kernel, const evidence::Case& c) {
  Counted counted;
  Result<evidence::Inputs> inputs = evidence::make_inputs(c);
  counted.status = inputs.status();
  if (!inputs.ok()) return counted;
  evidence::poison_outputs(*inputs);
  emulator::Settings settings;
  settings.measure = true;
  for (Products* const products : {&counted.first, &counted.second}) {
    counted.status = run_emulated_kernel(kernel, inputs->given, c.options, settings,
                                         [products](const emulator::Machine& machine) {
                                           for (const auto& count : machine.measures().products())
                                             (*products)[count.instruction] += count.times;
                                         });
    if (!counted.status.ok()) return counted;
  }
  return counted;
}

GateOutcome count_emulated(const EmulatedKernel& kernel, const KernelConfig& config) {
  const std::set<std::string> formats = formats_of(config);
  nlohmann::json counts = nlohmann::json::array();
  double least = 1e9;
  for (const evidence::Case& c : counted_cases(config)) {
    const Counted counted = count_products(kernel, c);
    if (!counted.status.ok()) return rejected(counted.status.message());
    std::int64_t done = 0;
    for (const auto& [format, products] : counted.first) {
      done += products;
      if (formats.count(format) == 0)
        return rejected(fmt::format(
            "The kernel multiplies in {}, which its configuration does not declare.", format));
    }
    if (counted.second != counted.first)
      return rejected(
          fmt::format("The kernel does other products of {} when its output holds the "
                      "results already.",
                      c.name()));
    const double share = static_cast<double>(done) / static_cast<double>(products_of(c));
    counts.push_back({{"case", c.name()}, {"products", counted.first}, {"share", share}});
    least = std::min(least, share);
    if (!formats.empty() && share < kLeastShare)
      return rejected(
          fmt::format("The kernel does {:.0f}% of the products of {}.", share * 100, c.name()));
  }
  GateOutcome outcome = passed(
      formats.empty()
          ? "The kernel does not use the tensor cores, so the emulator has no products to count."
          : fmt::format(
                "The kernel does at least {:.2f} times the products that the problems have.",
                least));
  outcome.figures["emulated"] = counts;
  return outcome;
}

}  // namespace

GateOutcome emulate_cases(const Subject& subject, const Context& context, std::string_view gate,
                          const std::vector<evidence::Case>& cases,
                          const std::vector<std::optional<std::uint64_t>>& schedules) {
  return judge_emulated(subject, context, gate, [&](const EmulatedKernel& kernel) {
    return check_emulated(kernel, cases, schedules);
  });
}

GateOutcome emulate_products(const Subject& subject, const Context& context,
                             std::string_view gate) {
  return judge_emulated(subject, context, gate, [&](const EmulatedKernel& kernel) {
    return count_emulated(kernel, subject.config);
  });
}

std::vector<evidence::Case> edge_cases(const KernelConfig& config) {
  return std::visit([](const auto& c) { return evidence::cases_for(c); }, config);
}

}  // namespace octavo::evolve
