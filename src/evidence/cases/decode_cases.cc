// SPDX-License-Identifier: Apache-2.0
#include "evidence/cases/decode_cases.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "evidence/cases/draw.h"

namespace octavo::evidence {
namespace {

constexpr std::array kQueryTypes = {DType::f16, DType::bf16};

std::size_t as_index(int value) { return static_cast<std::size_t>(value); }

// The capacity of a sequence, which holds at least one key more than a page.
void set_capacity(Case& c, Draw& draw) {
  const std::int64_t pages = c.page_size >= 128 ? draw.between(2, 4) : draw.between(2, 12);
  c.seqlen_kv = pages * c.page_size;
}

// Bounds the oracle's time: long sequences have few heads, of which few rows are judged.
void fit_oracle(Case& c, Draw& draw) {
  constexpr double kMostProducts = 2e7;
  const auto products = [&c] {
    return static_cast<double>(c.batch * c.heads_q * c.seqlen_q) *
           static_cast<double>(c.seqlen_kv * c.head_dim);
  };
  if (c.key_lengths >= KeyLengths::longest && draw.one_in(6))
    c.seqlen_kv = draw.between(2000, 20000) / c.page_size * c.page_size;
  if (products() > kMostProducts) c.batch = std::min<std::int64_t>(c.batch, 2);
  if (products() > kMostProducts) c.heads_q /= std::exchange(c.heads_kv, 1);
  if (products() > kMostProducts) c.seqlen_q = std::min<std::int64_t>(c.seqlen_q, 2);
}

// Groups are 32 or 64 channels, and rows whole groups.
void set_groups(Case& c, Draw& draw) {
  c.head_dim = (c.head_dim + 31) / 32 * 32;
  c.kv_group = c.head_dim % 64 != 0 || draw.one_in(2) ? 32 : 64;
}

void set_cache_modifiers(Case& c, int value, Draw& draw) {
  const bool all = value == 5;
  if (value == 1 || all) c.options.window_left = draw.between(0, c.seqlen_kv);
  if (value == 2 || all) c.options.softcap = draw.of(std::array{0.75F, 4.0F, 30.0F});
  c.alibi = value == 3 || all;
  c.sinks = value == 4 || all;
}

}  // namespace

Case make_decode_case(const DecodeValues& values, std::uint64_t seed) {
  constexpr std::array<std::int64_t, 4> kPageSizes = {16, 64, 128, 256};
  constexpr std::array kLayouts = {Layout::bhsd, Layout::bshd, Layout::gaps, Layout::aligned_gaps};
  constexpr std::array kFormats = {DType::e4m3, DType::e5m2, DType::int8, DType::int4};
  constexpr std::array kScales = {Granularity::tensor, Granularity::head, Granularity::row,
                                  Granularity::block};
  constexpr std::array<std::int64_t, 6> kRatios = {1, 4, 8, 16, 3, 7};
  constexpr std::array<std::int64_t, 5> kDims = {64, 80, 96, 128, 256};
  constexpr std::array<std::int64_t, 5> kFewest = {1, 2, 3, 9, 17}, kMost = {1, 2, 8, 16, 40};
  Draw draw(seed);
  Case c;
  c.seed = seed;
  c.page_size = kPageSizes[as_index(values[kPageSize])];
  c.layout = kLayouts[as_index(values[kPageLayout])];
  c.input = c.out = draw.of(kQueryTypes);
  if (values[kCacheFormat] > 0) {
    c.kv = kFormats[as_index(values[kCacheFormat] - 1)];
    c.qk_scales = kScales[as_index(values[kCacheScales])];
    // K and V of an 8-bit KvCache have scales of one kind, but a caller's own scales may differ.
    c.v_scales = draw.one_in(3) ? draw.of(kScales) : c.qk_scales;
    if (is_8bit(*c.kv)) c.options.quantization.block_rows = c.page_size;
  }
  c.batch = draw.between(1, 5);
  c.heads_kv = draw.between(1, 3);
  c.heads_q = c.heads_kv * kRatios[as_index(values[kHeadRatio])];
  c.key_lengths = static_cast<KeyLengths>(values[kLengths]);
  c.seqlen_q = draw.between(kFewest[as_index(values[kQueries])], kMost[as_index(values[kQueries])]);
  c.head_dim = kDims[as_index(values[kCacheDim])];
  if (c.has_int4_cache()) set_groups(c, draw);
  set_capacity(c, draw);
  fit_oracle(c, draw);
  // Without a causal mask every query sees all keys, like drafts that are verified one by one.
  c.options.causal = draw.one_in(3) ? Causal::none : Causal::bottom_right;
  set_cache_modifiers(c, values[kCacheModifiers], draw);
  c.shared_prefix = c.batch > 1 && draw.one_in(2);
  c.padded = draw.one_in(10);
  if (draw.one_in(5)) c.scale = 0.03125F * static_cast<float>(draw.between(1, 12));
  c.lse = !draw.one_in(4);
  c.outliers = draw.one_in(12);
  c.draft_tree = c.seqlen_q > 1 && c.seqlen_q <= 16 && draw.one_in(3);
  c.options.batch_invariant = draw.one_in(4);
  return c;
}

std::vector<Case> decode_cases(std::uint64_t seed, std::size_t count) {
  std::vector<Case> cases;
  std::set<std::string> names;
  std::uint64_t case_seed = seed * 1'000'000;
  const auto add = [&](const DecodeValues& values) {
    Case c = make_decode_case(values, case_seed++);
    if (names.insert(c.name()).second) cases.push_back(std::move(c));
  };
  for (const DecodeValues& row : covering_rows(kDecodeSizes)) add(row);
  while (cases.size() < count) {
    Draw draw(case_seed + 1'000'000'000);
    DecodeValues values;
    for (std::size_t axis = 0; axis < values.size(); ++axis)
      values[axis] = static_cast<int>(draw.between(0, kDecodeSizes[axis] - 1));
    add(values);
  }
  return cases;
}

}  // namespace octavo::evidence
