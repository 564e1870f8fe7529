// SPDX-License-Identifier: Apache-2.0
// Which configurations may replace which: the same formats, and no coarser numerics.
#include <fmt/format.h>

#include "base/error.h"
#include "evolve/gates/kernel_family.h"
#include "evolve/gates/policy.h"
#include "gpu/jit/config_text.h"

namespace octavo::evolve {
namespace {

using ConfigFinding = std::optional<PolicyFinding>;

PolicyFinding finding(std::string_view field, std::string_view value, std::string_view base) {
  return {
      "formats",
      fmt::format("The configuration's {} is {}, and that of the kernel it would replace is {}. "
                  "A candidate computes what it replaces: the same types, and no less "
                  "precisely.",
                  field, value, base)};
}

// The fields that every family declares its operands with, as one text.
template <class Config>
std::string operands(const Config& c) {
  Config only;
  only.element = c.element;
  only.head_dim = c.head_dim;
  only.head_dim_v = c.head_dim_v;
  only.output = c.output;
  only.modifiers = c.modifiers;
  return brief_text(only);
}

ConfigFinding coarser(const Sm80ForwardConfig& base, const Sm80ForwardConfig& c) {
  if (c.arch != base.arch)
    return finding("arch", fmt::format("{}", c.arch), fmt::format("{}", base.arch));
  if (c.k_row_scales != base.k_row_scales)
    return finding("k_row_scales", fmt::format("{}", c.k_row_scales),
                   fmt::format("{}", base.k_row_scales));
  if (c.p_terms < base.p_terms)
    return finding("p_terms", fmt::format("{}", c.p_terms), fmt::format("{}", base.p_terms));
  if (c.f16_scores && !base.f16_scores) return finding("f16_scores", "true", "false");
  if (c.exp != base.exp && c.exp != ExpForm::f32)
    return finding("exp", "a coarser form", "another one");
  if (c.rescale_log2 > base.rescale_log2)
    return finding("rescale_log2", fmt::format("{}", c.rescale_log2),
                   fmt::format("{}", base.rescale_log2));
  return {};
}

ConfigFinding coarser(const Sm90ForwardConfig& base, const Sm90ForwardConfig& c) {
  if (c.v_element != base.v_element || c.k_scales != base.k_scales)
    return finding("v_element or k_scales", brief_text(c), brief_text(base));
  if (c.scores != base.scores && c.scores != ScoreType::f32)
    return finding("scores", "a narrower type", "another one");
  if (c.sum_rounded_p && !base.sum_rounded_p) return finding("sum_rounded_p", "true", "false");
  return {};
}

template <class Config>
ConfigFinding compare(const Result<Config>& base, const Result<Config>& c) {
  for (const Result<Config>* read : {&base, &c})
    if (!read->ok()) return PolicyFinding{"formats", read->status().message()};
  if (operands(*base) != operands(*c)) return finding("operands", operands(*c), operands(*base));
  return coarser(*base, *c);
}

}  // namespace

ConfigFinding judge_config(std::string_view kernel, std::string_view base,
                           std::string_view config) {
  const Result<Family> family = parse_family(kernel);
  if (!family.ok()) return PolicyFinding{"formats", family.status().message()};
  switch (*family) {
    case Family::sm80_forward:
      return compare(parse_sm80_forward(base), parse_sm80_forward(config));
    case Family::sm90_forward:
      return compare(parse_sm90_forward(base), parse_sm90_forward(config));
    case Family::ladder:
      break;
  }
  const Result<LadderConfig> from = parse_ladder(base), to = parse_ladder(config);
  for (const Result<LadderConfig>* read : {&from, &to})
    if (!read->ok()) return PolicyFinding{"formats", read->status().message()};
  if (from->head_dim != to->head_dim)
    return finding("head_dim", fmt::format("{}", to->head_dim), fmt::format("{}", from->head_dim));
  return {};
}

}  // namespace octavo::evolve
