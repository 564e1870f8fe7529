// The emulator's part of the gates in a library that was built without it.
#include "evolve/gates/emulated_judge.h"

namespace octavo::evolve {
namespace {

constexpr char kWhy[] = "The library was built without the emulator, which needs Boost.Context.";

template <class Config>
evidence::Case typical(const Config& config) {
  evidence::Case c;
  if constexpr (requires { config.output; }) {
    c.input = static_cast<DType>(config.element);
    c.out = static_cast<DType>(config.output.element);
    c.head_dim_v = config.head_dim_v;
  }
  c.head_dim = config.head_dim;
  c.lse = false;
  c.heads_q = c.heads_kv = 2;
  return c;
}

}  // namespace

GateOutcome emulate_cases(const Subject& /*subject*/, const Context& /*context*/,
                          std::string_view /*gate*/, const std::vector<evidence::Case>& /*cases*/,
                          const std::vector<std::optional<std::uint64_t>>& /*schedules*/) {
  return not_done(kWhy);
}

GateOutcome emulate_products(const Subject& /*subject*/, const Context& /*context*/,
                             std::string_view /*gate*/) {
  return not_done(kWhy);
}

// Lengths around the edges of tiles of 64, which all kernels have.
std::vector<evidence::Case> edge_cases(const KernelConfig& config) {
  std::vector<evidence::Case> cases;
  evidence::Case c = std::visit([](const auto& of) { return typical(of); }, config);
  for (const std::int64_t length : {1, 63, 64, 65, 129, 200, 329})
    for (const Causal causal : {Causal::none, Causal::top_left}) {
      c.seqlen_q = length;
      c.seqlen_kv = 2 * length + 1;
      c.options.causal = causal;
      cases.push_back(c);
    }
  return cases;
}

}  // namespace octavo::evolve
