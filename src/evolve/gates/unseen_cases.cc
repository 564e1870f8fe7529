// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/unseen_cases.h"

#include <algorithm>

namespace octavo::evolve {
namespace {

using evidence::Case;
using evidence::InputValues;
using evidence::Layout;

class Draw {  // splitmix64
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(most - least + 1));
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[next() % values.size()];
  }

 private:
  std::uint64_t state_;
};

bool is_ladder(const KernelConfig& config) { return std::holds_alternative<LadderConfig>(config); }
// Split-KV kernels take no packed batches.
bool takes_varlen(const KernelConfig& config) {
  const auto* const sm90 = std::get_if<Sm90ForwardConfig>(&config);
  return !is_ladder(config) && (sm90 == nullptr || !sm90::is_split_kv(*sm90));
}

// Half of the lengths are near a multiple of 64.
std::int64_t length(Draw& draw, std::int64_t longest) {
  if (draw.next() % 2 == 0 || longest < 80) return draw.between(1, longest);
  return std::clamp<std::int64_t>(draw.between(1, longest / 64) * 64 + draw.between(-2, 2), 1,
                                  longest);
}

Case unseen_case(const Case& template_case, const KernelConfig& config, Draw& draw,
                 std::int64_t longest) {
  const bool ladder = is_ladder(config);
  Case c = template_case;
  c.seed = draw.next();
  c.options.causal = ladder ? draw.one_of({Causal::none, Causal::top_left})
                            : draw.one_of({Causal::none, Causal::top_left, Causal::bottom_right});
  c.batch = draw.between(1, 2);
  c.seqlen_q = length(draw, longest);
  c.seqlen_kv = length(draw, 2 * longest);
  if (draw.next() % 4 == 0) c.seqlen_kv = c.seqlen_q;
  if (!ladder && c.block_mask == 0)
    c.layout = takes_varlen(config) ? draw.one_of({Layout::bhsd, Layout::bshd, Layout::varlen})
                                    : draw.one_of({Layout::bhsd, Layout::bshd});
  c.values = draw.one_of(
      {InputValues::normal, InputValues::normal, InputValues::positive, InputValues::equal_keys});
  c.scale = draw.one_of<std::optional<float>>({std::nullopt, std::nullopt, 0.01f, 1.0f});
  return c;
}

// Keys of little weight, which together have much: a kernel may not skip them.
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
    c.batch = shape.batch;
    c.heads_q = shape.heads;
    c.heads_kv = shape.heads_kv.value_or(shape.heads);
    c.seqlen_q = shape.length;
    c.seqlen_kv = shape.length_kv.value_or(shape.length);
    c.head_dim = shape.head_dim;
    c.head_dim_v = shape.head_dim_v.value_or(0);
    c.sampled_rows = std::min(kSampledRows, c.seqlen_q);
    cases.push_back(c);
  }
  return cases;
}

}  // namespace octavo::evolve
