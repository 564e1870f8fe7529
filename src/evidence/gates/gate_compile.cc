// SPDX-License-Identifier: Apache-2.0
// The compile gate: properties of a kernel's code, read from the cubin.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "evidence/gates/gate.h"
#include "gpu/jit/config_text.h"

namespace octavo::evidence {
namespace {

// The shared memory limit of a block (CUDA C++ Programming Guide, compute capabilities).
double smem_limit_bytes(int arch) { return (arch >= 90 ? 227 : arch == 89 ? 99 : 163) * 1024.0; }

struct TensorWork {
  int meant = 0;
  int other = 0;
};

// Counts tensor instructions of the type that the configuration's element needs, and others.
TensorWork tensor_work(const KernelInfo& info) {
  const bool hopper = names_sm90_forward(info.config);
  const Element element =
      hopper ? parse_sm90_forward(info.config)->element : parse_sm80_forward(info.config)->element;
  const KernelCode& code = *info.code;
  const int all = code.mma_f16 + code.mma_fp8 + code.mma_int8;
  const bool fp8 = element == Element::e4m3 || element == Element::e5m2;
  // mma.sync has no FP8 before sm_89, and sm_90 implements it with 16-bit ones; sim8 uses FP16.
  const bool native_fp8 = fp8 && (hopper || info.arch == 89);
  const int meant = native_fp8                 ? code.mma_fp8
                    : element == Element::int8 ? code.mma_int8
                                               : code.mma_f16;
  return {meant, all - meant};
}

void hold_kernel(GateResult& result, const std::vector<Threshold>& thresholds,
                 const KernelInfo& info) {
  const std::string subject = fmt::format("{} sm_{} {}", info.kernel, info.arch, info.brief);
  if (!info.code) {
    result.failures.push_back(fmt::format("{}: {}", subject, info.status.message()));
    return;
  }
  const KernelCode& code = *info.code;
  const TensorWork tensor = tensor_work(info);
  const auto holds = [&](std::string_view name, double value) {
    check_threshold(result, thresholds, name, subject, info.kernel, 0, value);
  };
  holds("spill_bytes", code.local_bytes);
  holds("spill_instructions", code.local_instructions);
  holds("registers_of_block", static_cast<double>(code.registers) * info.threads);
  holds("smem_of_limit",
        (code.static_smem_bytes + info.dynamic_smem_bytes) / smem_limit_bytes(info.arch));
  holds("tensor_instructions", tensor.meant);
  holds("other_tensor_instructions", tensor.other);
  holds("debug", code.debug ? 1 : 0);
}

// For each threshold, the value nearest to its limit, or furthest beyond it.
std::vector<GateFinding> extremes(const std::vector<GateFinding>& all) {
  std::vector<GateFinding> list;
  for (const GateFinding& finding : all) {
    const auto same = std::find_if(list.begin(), list.end(), [&finding](const GateFinding& f) {
      return f.threshold == finding.threshold && f.limit == finding.limit;
    });
    if (same == list.end())
      list.push_back(finding);
    else if (finding.limit.starts_with("at least") ? finding.value < same->value
                                                   : finding.value > same->value)
      *same = finding;
  }
  return list;
}

}  // namespace

GateResult compile_gate(const std::vector<Threshold>& thresholds, const GateSubject& subject) {
  GateResult result;
  result.name = "compile";
  const Result<std::vector<KernelInfo>> kernels = subject.kernels();
  if (!kernels.ok()) {
    result.reason = kernels.status().message();
    return result;
  }
  std::map<int, int> by_arch;
  int ptx = 0;
  for (const KernelInfo& info : *kernels) {
    if (info.ptx) {
      ++ptx;
      continue;
    }
    ++by_arch[info.arch];
    hold_kernel(result, thresholds, info);
  }
  if (by_arch.empty()) {
    result.reason = "there is no compiled kernel to examine.";
    return result;
  }
  result.findings = extremes(result.findings);
  for (const auto& [arch, count] : by_arch)
    result.reason +=
        fmt::format("{}{} kernels of sm_{}", result.reason.empty() ? "" : ", ", count, arch);
  if (ptx > 0)
    result.left_out.push_back(fmt::format("{} kernels in PTX: they have no code yet.", ptx));
  result.state = result.failures.empty() ? GateState::passed : GateState::failed;
  return result;
}

}  // namespace octavo::evidence
