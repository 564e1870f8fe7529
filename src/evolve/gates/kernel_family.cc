// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/kernel_family.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "evidence/ladder/ladder_cases.h"
#include "gpu/jit/config_text.h"
#include "gpu/ladder/ladder.h"
#if defined(OCTAVO_HAS_EMULATOR)
#include "evidence/cases/emulated_cases.h"
#endif

namespace octavo::evolve {
#if !defined(OCTAVO_HAS_EMULATOR)
namespace {

DType dtype_of(Element element) { return static_cast<DType>(element); }

// Fewer than the emulator's cases, which are part of it.
template <class Config>
std::vector<evidence::Case> cases_for(const Config& config, std::int64_t keys) {
  evidence::Case c;
  c.input = dtype_of(config.element);
  c.out = dtype_of(config.output.element);
  c.head_dim = config.head_dim;
  c.head_dim_v = config.head_dim_v;
  c.heads_q = c.heads_kv = 2;
  // Rows and keys that end inside a tile, and more blocks than there are stages.
  c.seqlen_q = 200;
  c.seqlen_kv = (config.stages + 1) * keys + 7;
  c.lse = false;
  std::vector<evidence::Case> cases{c};
  c.options.causal = Causal::top_left;
  c.seqlen_q = c.seqlen_kv = 3 * keys - 5;
  cases.push_back(c);
  c.options = {};
  c.seqlen_q = 1;
  c.seqlen_kv = 3;
  cases.push_back(c);
  return cases;
}
std::vector<evidence::Case> cases_for(const Sm80ForwardConfig& config) {
  std::vector<evidence::Case> cases = cases_for(config, sm80::step_keys(config));
  for (evidence::Case& c : cases)
    if (config.k_row_scales) c.qk_scales = Granularity::row;
  return cases;
}
std::vector<evidence::Case> cases_for(const Sm90ForwardConfig& config) {
  std::vector<evidence::Case> cases =
      cases_for(config, std::int64_t{config.block_n} * sm90::kv_splits(config));
  for (evidence::Case& c : cases) {
    if (config.v_element != config.element) c.v = dtype_of(config.v_element);
    if (sm90::is_8bit_pv(config)) c.v_scales = Granularity::channel;
    if (config.k_scales == KScales::block) c.qk_scales = Granularity::block;
    if (config.k_scales == KScales::row) c.qk_scales = Granularity::row;
  }
  return cases;
}
std::vector<evidence::Case> cases_for(const LadderConfig& config) {
  return evidence::cases_for(config);
}

}  // namespace
#endif

Result<Family> parse_family(std::string_view name) {
  if (name == "sm80_forward") return Family::sm80_forward;
  if (name == "sm90_forward") return Family::sm90_forward;
  if (name == "ladder") return Family::ladder;
  return invalid("kernel", fmt::format("'{}'", name), "sm80_forward, sm90_forward, ladder");
}

Result<LadderConfig> parse_ladder(std::string_view text) {
  for (const LadderConfig& config : kLadder)
    if (text == to_text(config) ||
        (config.head_dim == 64 && text == fmt::format("rung={}", name(config.rung))))
      return config;
  return invalid("config", fmt::format("'{}'", text),
                 "rung=scalar, tiled, tensor_cores, async_copies or specialised_warps, with "
                 ",head_dim=64 or 128");
}

Result<KernelConfig> parse_config(std::string_view family, std::string_view text) {
  const Result<Family> named = parse_family(family);
  if (!named.ok()) return named.status();
  const auto made = [](const auto& config) -> Result<KernelConfig> {
    if (!config.ok()) return config.status();
    return KernelConfig(*config);
  };
  switch (*named) {
    case Family::sm80_forward:
      return made(parse_sm80_forward(text));
    case Family::sm90_forward:
      return made(parse_sm90_forward(text));
    case Family::ladder:
      break;
  }
  return made(parse_ladder(text));
}

KernelSource source_of(const KernelConfig& config) {
  if (const auto* ladder = std::get_if<LadderConfig>(&config))
    return kernel_source(*ladder, ladder->rung == Rung::specialised_warps ? 90 : 80);
  if (const auto* sm80 = std::get_if<Sm80ForwardConfig>(&config)) return kernel_source(*sm80);
  return kernel_source(std::get<Sm90ForwardConfig>(config));
}

std::vector<evidence::Case> edge_cases(const KernelConfig& config) {
#if defined(OCTAVO_HAS_EMULATOR)
  using evidence::cases_for;
#endif
  std::vector<evidence::Case> cases =
      std::visit([](const auto& c) { return cases_for(c); }, config);
  // fp64 attention refuses lengths that kernels must clamp.
  std::erase_if(cases,
                [](const evidence::Case& c) { return c.seqlens == evidence::Seqlens::hostile; });
  return cases;
}

std::string text_of(const KernelConfig& config) {
  return std::visit([](const auto& c) { return to_text(c); }, config);
}

}  // namespace octavo::evolve
