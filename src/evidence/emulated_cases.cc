#include "evidence/emulated_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "attention/error.h"
#include "gpu/config_text.h"
#include "runtime/emulated_launch.h"

namespace octavo::evidence {

Result<std::vector<const emulator::EmulatedSm80Forward*>> kernels_by_name(const std::string& name) {
  const auto& kernels = emulator::sm80_forward_kernels();
  std::vector<const emulator::EmulatedSm80Forward*> chosen;
  std::size_t number = kernels.size();
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data(), end, number);
  const bool numbered = error == std::errc() && rest == end;
  for (std::size_t i = 0; i < kernels.size(); ++i)
    if (name == "all" || (numbered && number == i) || name == to_text(kernels[i].config) ||
        name == brief_text(kernels[i].config))
      chosen.push_back(&kernels[i]);
  if (chosen.empty())
    return invalid("kernel", fmt::format("\"{}\"", name),
                   fmt::format("all, 0 to {}, or a config that `octavo emulator kernels` lists",
                               kernels.size() - 1));
  return chosen;
}

std::vector<Case> cases_for(const Sm80Forward& config) {
  Case c;
  c.input = static_cast<DType>(config.element);
  c.out = static_cast<DType>(config.out);
  c.head_dim = config.head_dim;
  if (config.k_row_scales) c.qk_scales = Granularity::row;
  const std::int64_t rows = config.block_m, keys = sm80::step_keys(config);
  std::vector<Case> cases;
  // No mask but the last keys'; every buffer is filled again.
  c.len_q = rows + 5;
  c.len_kv = (config.stages + 1) * keys + 7;
  cases.push_back(c);
  // Both ends of a window, each inside a block that other rows see whole.
  c.len_kv = 2 * keys + rows;
  c.options.causal = Causal::bottom_right;
  c.options.window_left = keys + 3;
  cases.push_back(c);
  // Fewer columns than the kernel's tiles; two sequences, the second shorter, strangers around.
  c.options = {};
  c.head_dim = config.head_dim - 16 / element_bytes(config.element);
  c.batch = 2;
  c.layout = Layout::packed;
  c.len_q = 9;
  c.len_kv = keys / 2 + 3;
  cases.push_back(c);
  return cases;
}

Result<EmulatedCase> make_emulated_case(const Case& c) {
  Result<Inputs> inputs = make_inputs(c);
  if (!inputs.ok()) return inputs.status();
  EmulatedCase made{c, std::move(inputs).value(), {}};
  const Result<Problem> problem = problem_of(made.inputs.given, c.options);
  if (!problem.ok()) return problem.status();
  made.problem = *problem;
  return made;
}

void run_emulated_case(const emulator::EmulatedSm80Forward& kernel, EmulatedCase& c,
                       const emulator::Settings& settings,
                       const std::function<void(const emulator::Machine&)>& then) {
  poison_outputs(c.inputs);
  run_emulated(kernel, c.problem, c.inputs.given, settings, then);
}

}  // namespace octavo::evidence
