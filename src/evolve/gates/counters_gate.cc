// SPDX-License-Identifier: Apache-2.0
// The counters gate: proof of work. A kernel that computes attention over all visible keys has done
// the products, in the format that it declares; one that is fast because it does less has not. In
// the emulator the products are counted exactly; on a GPU the hardware's counters are compared with
// those of the kernel that the candidate would replace, on the same inputs.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "evidence/cases/inputs.h"
#include "evidence/cases/planned_case.h"
#include "evidence/counters/cupti.h"
#include "evolve/gates/emulated_judge.h"
#include "evolve/gates/gpu_child.h"
#include "evolve/gates/standard_gates.h"
#include "gpu/driver/context.h"

namespace octavo::evolve {
namespace {

// Less than this share of the products that the problem has is skipped work.
constexpr double kLeastShare = 0.95;

// --- the emulator
// ---------------------------------------------------------------------------------

#if defined(OCTAVO_HAS_EMULATOR)

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

// The products of two calls. The outputs are poisoned before the first; the second finds the
// results of the first there, and must compute them again.
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

#else

GateOutcome count_emulated(const EmulatedKernel& /*kernel*/, const KernelConfig& /*config*/) {
  return not_done("This library was built without the emulator.");
}

#endif

// --- the GPU
// --------------------------------------------------------------------------------------

constexpr const char* kOperations[] = {
    "sm__ops_path_tensor_src_fp16_dst_fp32.sum", "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp16_dst_fp16.sum", "sm__ops_path_tensor_src_fp8_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp8.sum",           "sm__ops_path_tensor_src_int8.sum",
    "sm__ops_path_tensor_src_fp16.sum",          "sm__ops_path_tensor_src_bf16.sum"};
constexpr const char* kBytes[] = {"dram__bytes_read.sum", "dram__bytes_write.sum",
                                  "lts__t_bytes.sum"};

using CounterValues = std::map<std::string, double>;

// Sums over the kernels of one call; one metric at a time, so that none excludes another.
Result<CounterValues> count_call(const evidence::Cupti& cupti, const evidence::Chip& chip,
                                 const Gpu& gpu, const evidence::PlannedCase& planned,
                                 Device device) {
  CounterValues values;
  const auto count = [&](const char* metric) -> Status {
    const auto set = evidence::MetricSet::make(cupti, chip, {metric});
    if (!set.ok()) return {};  // the chip does not have it
    const auto counted = evidence::count_kernels(cupti, gpu.context, **set, [&] {
      OCTAVO_RETURN_IF_ERROR(planned.run());
      return synchronize(device);
    });
    if (!counted.ok()) return counted.status();
    for (const std::vector<double>& kernel : *counted) values[metric] += kernel[0];
    return {};
  };
  for (const char* const metric : kOperations) OCTAVO_RETURN_IF_ERROR(count(metric));
  for (const char* const metric : kBytes) OCTAVO_RETURN_IF_ERROR(count(metric));
  return values;
}

std::optional<std::string> less_work(const CounterValues& base, const CounterValues& candidate) {
  bool any = false;
  for (const char* const metric : kOperations) {
    const auto wanted = base.find(metric), done = candidate.find(metric);
    if (wanted == base.end() || done == candidate.end()) continue;
    any = any || wanted->second > 0;
    if (wanted->second == 0 && done->second > 0)
      return fmt::format("The GPU counts {:.3g} {}, and none in the kernel to replace.",
                         done->second, metric);
    if (done->second < kLeastShare * wanted->second)
      return fmt::format("The GPU counts {:.3g} {}, and {:.3g} in the kernel to replace.",
                         done->second, metric, wanted->second);
  }
  if (!any) return "The GPU counts no tensor operations in the kernel to replace.";
  return {};
}

GateOutcome count_on_gpu(const Subject& subject, const Context& context) {
  const Task& task = context.task;
  const Result<const Gpu*> gpu = open_gpu(task.device.index);
  if (!gpu.ok()) return not_done(gpu.status().message());
  const CurrentContext current(**gpu);
  if (!current.status().ok()) return not_done(current.status().message());
  const Result<const evidence::Cupti*> cupti = evidence::open_cupti();
  if (!cupti.ok()) return not_done(cupti.status().message());
  const Result<evidence::Chip> chip =
      evidence::chip_of(**cupti, (*gpu)->info.index, (*gpu)->context);
  if (!chip.ok()) return not_done(chip.status().message());
  nlohmann::json figures = nlohmann::json::array();
  for (const BenchCase& shape : evidence::named_cases(task.shapes)) {
    CounterValues values[2];
    for (const bool candidate : {false, true}) {
      const Status used =
          use_source_overlay(candidate ? subject.patched.overlay() : SourceOverlay());
      if (!used.ok()) return rejected(used.message());
      evidence::PlannedCaseOptions options{task.device, task.dtype, task.attention, context.seed};
      options.config = candidate ? text_of(subject.config) : task.base_config;
      evidence::PlannedCase planned(options, shape);
      if (const Status prepared = planned.prepare(); !prepared.ok())
        return candidate ? rejected(prepared.message()) : not_done(prepared.message());
      Result<CounterValues> counted = count_call(**cupti, *chip, **gpu, planned, task.device);
      if (!counted.ok()) return not_done(counted.status().message());
      values[candidate] = *counted;
    }
    figures.push_back({{"shape", shape.name}, {"base", values[0]}, {"candidate", values[1]}});
    if (const auto less = less_work(values[0], values[1])) return rejected(*less);
  }
  GateOutcome outcome =
      passed("The hardware counts the operations of the kernel to replace, in the same formats.");
  outcome.figures["hardware"] = figures;
  return outcome;
}

class CountersGate : public Gate {
 public:
  std::string_view name() const override { return "counters"; }

  GateOutcome judge(const Candidate& candidate, const Context& context) override {
    const Result<Subject> subject = subject_of(candidate);
    if (!subject.ok()) return rejected(subject.status().message());
    GateOutcome emulated = judge_emulated(
        *subject, context, name(),
        [&](const EmulatedKernel& kernel) { return count_emulated(kernel, subject->config); });
    const bool ladder = std::holds_alternative<LadderConfig>(subject->config);
    if (context.task.device.kind != Device::Kind::cuda || ladder ||
        emulated.verdict == Verdict::rejected)
      return emulated;
    GateOutcome counted =
        judge_on_gpu(*subject, context, name(), [&] { return count_on_gpu(*subject, context); });
    if (emulated.figures.contains("emulated"))
      counted.figures["emulated"] = emulated.figures["emulated"];
    return counted;
  }
};

}  // namespace

std::unique_ptr<Gate> counters_gate() { return std::make_unique<CountersGate>(); }

}  // namespace octavo::evolve
