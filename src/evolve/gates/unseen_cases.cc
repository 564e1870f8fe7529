// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/unseen_cases.h"

#include <algorithm>
#include <array>

#include "evidence/cases/draw.h"
#include "evidence/cases/planned_case.h"

namespace octavo::evolve {
namespace {

using evidence::Case;
using evidence::Draw;
using evidence::InputValues;
using evidence::Layout;

bool is_ladder(const KernelConfig& config) { return std::holds_alternative<LadderConfig>(config); }
// Split-KV kernels take no packed batches.
bool takes_varlen(const KernelConfig& config) {
  const auto* const sm90 = std::get_if<Sm90ForwardConfig>(&config);
  return !is_ladder(config) && (sm90 == nullptr || !sm90::is_split_kv(*sm90));
}

// Half of the lengths are near a multiple of 64.
std::int64_t length(Draw& draw, std::int64_t longest) {
  if (longest < 80 || draw.one_in(2)) return draw.between(1, longest);
  const std::int64_t edge = 64 * draw.between(1, longest / 64);
  return std::clamp<std::int64_t>(edge + draw.between(-2, 2), 1, longest);
}

Case unseen_case(const Case& template_case, const KernelConfig& config, Draw& draw,
                 std::int64_t longest) {
  constexpr std::int64_t kMostSeed = std::int64_t{1} << 62;
  const bool ladder = is_ladder(config);
  Case c = template_case;
  c.seed = static_cast<std::uint64_t>(draw.between(0, kMostSeed));
  c.options.causal =
      ladder ? draw.of(std::array{Causal::none, Causal::top_left})
             : draw.of(std::array{Causal::none, Causal::top_left, Causal::bottom_right});
  c.batch = draw.between(1, 2);
  c.seqlen_q = length(draw, longest);
  c.seqlen_kv = length(draw, 2 * longest);
  if (draw.one_in(4)) c.seqlen_kv = c.seqlen_q;
  if (!ladder && c.block_mask == 0)
    c.layout = takes_varlen(config)
                   ? draw.of(std::array{Layout::bhsd, Layout::bshd, Layout::varlen})
                   : draw.of(std::array{Layout::bhsd, Layout::bshd});
  c.values = draw.of(std::array{InputValues::normal, InputValues::normal, InputValues::positive,
                                InputValues::equal_keys});
  c.scale = draw.of(std::array<std::optional<float>, 4>{std::nullopt, std::nullopt, 0.01f, 1.0f});
  return c;
}

// Gives each of many keys little weight, but much to all of them together: a kernel that skips them
// is wrong.
void set_low_tail(Case& c, Draw& draw, std::int64_t longest) {
  c.values = InputValues::low_tail;
  c.options.causal = Causal::none;
  c.scale = {};
  c.seqlen_kv = draw.between(longest, 2 * longest);
}

}  // namespace

std::vector<Case> unseen_cases(const KernelConfig& config, std::uint64_t seed, int count,
                               std::int64_t longest) {
  Draw draw(seed);
  Case first = edge_cases(config).front();
  first.scale = {};
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    cases.push_back(unseen_case(first, config, draw, longest));
    if (i % 4 == 1) set_low_tail(cases.back(), draw, longest);
  }
  return cases;
}

std::vector<Case> public_cases(const Task& task, const KernelConfig& config) {
  constexpr std::int64_t kSampledRows = 64;
  const Case first = edge_cases(config).front();
  std::vector<Case> cases;
  for (const BenchCase& shape : task.shapes) {
    Case c = first;
    c.scale = {};
    c.input = task.dtype;
    c.options = task.attention;
    evidence::set_shape(c, shape);
    c.sampled_rows = std::min(kSampledRows, c.seqlen_q);
    cases.push_back(c);
  }
  return cases;
}

}  // namespace octavo::evolve
