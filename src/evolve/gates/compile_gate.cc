// SPDX-License-Identifier: Apache-2.0
// The compile gate: NVRTC takes the sources, the machine code spills nothing, and has the tensor
// core instructions of the kernel that the task starts from, and no other kind. Needs no GPU.
#include <fmt/format.h>

#include "evolve/gates/standard_gates.h"
#include "evolve/gates/subject.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/kernel_store.h"
#include "gpu/jit/nvrtc.h"
#include "gpu/jit/sha256.h"
#include "gpu/ladder/ladder.h"

namespace octavo::evolve {
namespace {

// Counts the tensor core instructions by kind.
nlohmann::json mma_of(const InstructionCounts& i) {
  nlohmann::json counts = nlohmann::json::object();
  const std::pair<const char*, int> kinds[] = {
      {"mma_f16", i.hmma},        {"mma_int8", i.imma},       {"mma_fp8", i.qmma},
      {"wgmma_f16", i.wgmma_f16}, {"wgmma_fp8", i.wgmma_fp8}, {"wgmma_int8", i.wgmma_int8}};
  for (const auto& [kind, count] : kinds)
    if (count > 0) counts[kind] = count;
  return counts;
}

std::string kinds_of(const nlohmann::json& counts) {
  std::string text;
  for (const auto& [kind, count] : counts.items()) text += (text.empty() ? "" : ", ") + kind;
  return text.empty() ? "no tensor core instructions" : text;
}

Status feasible_on_its_chip(const KernelConfig& config) {
  if (const auto* sm80 = std::get_if<Sm80ForwardConfig>(&config))
    return feasible(*sm80, sm80->arch);
  if (const auto* sm90 = std::get_if<Sm90ForwardConfig>(&config)) return feasible(*sm90, 90);
  return {};
}

int smem_of(const KernelConfig& config, int fixed) {
  if (const auto* sm80 = std::get_if<Sm80ForwardConfig>(&config)) return sm80::smem_bytes(*sm80);
  if (const auto* sm90 = std::get_if<Sm90ForwardConfig>(&config)) return sm90::smem_bytes(*sm90);
  return fixed + shape_of(std::get<LadderConfig>(config)).smem_bytes;
}

// The store returns only cubins that have the kernel.
const CubinKernel& code_of(const LoadedKernel& loaded) {
  return *loaded.info.find(loaded.kernel.lowered_name);
}

std::string code_digest(const LoadedKernel& loaded) {
  const CubinKernel& code = code_of(loaded);
  return sha256_hex(std::span(loaded.kernel.image).subspan(code.code_offset, code.code_bytes));
}

// The tensor core instructions of the kernel to replace.
GateOutcome expected_of(const KernelConfig& base) {
  const auto loaded = kernel_store().get(source_of(base), {.allow_spills = true});
  const Status status = loaded.status();
  if (!status.ok())
    return not_done(fmt::format("The kernel to compare with: {}", status.message()));
  GateOutcome outcome = passed("The kernel to replace was read.");
  outcome.figures["mma"] = mma_of(code_of(**loaded).instructions);
  return outcome;
}

GateOutcome compile_here(const Subject& subject, const nlohmann::json& expected) {
  const KernelSource source = source_of(subject.config);
  if (const Status used = use_source_overlay(subject.patched.overlay()); !used.ok())
    return rejected(used.message());
  const auto loaded = kernel_store().get(source, {.allow_spills = true});
  if (!loaded.ok()) return rejected(loaded.status().message());
  const CubinKernel& code = code_of(**loaded);

  GateOutcome outcome = passed("");
  nlohmann::json& figures = outcome.figures;
  const nlohmann::json mma = mma_of(code.instructions);
  figures = {{"sass_sha256", code_digest(**loaded)},
             {"source_sha256", sources_digest(source.include)},
             {"registers", code.registers},
             {"spill_bytes", code.stack_bytes},
             {"smem_bytes", smem_of(subject.config, code.static_smem_bytes)},
             {"code_bytes", code.code_bytes},
             {"mma", mma},
             {"compiler", (*loaded)->kernel.compiler},
             {"compile_ms", (*loaded)->kernel.compile_ms}};
  if (code.spills()) {
    outcome.verdict = Verdict::rejected;
    outcome.reason = fmt::format(
        "The kernel spills: {} bytes of local memory a thread, {} loads "
        "and {} stores.",
        code.stack_bytes, code.instructions.local_loads, code.instructions.local_stores);
  } else if (kinds_of(mma) != kinds_of(expected)) {
    outcome.verdict = Verdict::rejected;
    outcome.reason = fmt::format("The kernel has {}, and the one it would replace has {}.",
                                 kinds_of(mma), kinds_of(expected));
  } else {
    outcome.reason =
        fmt::format("It compiles without spills: {} registers, {}.", code.registers, mma.dump());
  }
  return outcome;
}

class CompileGate : public Gate {
 public:
  std::string_view name() const override { return "compile"; }

  GateOutcome judge(const Candidate& candidate, const Context& context) override {
    const Result<Subject> subject = subject_of(candidate);
    if (!subject.ok()) return rejected(subject.status().message());
    const Result<KernelConfig> base = parse_config(candidate.kernel, context.task.base_config);
    if (!base.ok()) return not_done(base.status().message());
    if (const Status fits = feasible_on_its_chip(subject->config); !fits.ok())
      return rejected(fits.message());
    if (expected_for_ != context.task.base_config) {
      const GateOutcome expected = outcome_of(run_isolated(limits_of(context),
                                                           [&] {
                                                             use_cache_of(context);
                                                             return to_answer(expected_of(*base));
                                                           }),
                                              name());
      if (expected.verdict != Verdict::passed) return not_done(expected.reason);
      expected_ = expected.figures["mma"];
      expected_for_ = context.task.base_config;
    }
    const ChildResult child = run_isolated(limits_of(context), [&] {
      use_cache_of(context);
      // The embedded kernels need no compiler, but a candidate does.
      if (const Result<std::string> version = nvrtc_version(); !version.ok())
        return to_answer(not_done(version.status().message()));
      return to_answer(compile_here(*subject, expected_));
    });
    return outcome_of(child, name());
  }

 private:
  std::string expected_for_ = "nothing";
  nlohmann::json expected_;
};

}  // namespace

std::unique_ptr<Gate> compile_gate() { return std::make_unique<CompileGate>(); }

}  // namespace octavo::evolve
