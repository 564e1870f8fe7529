// SPDX-License-Identifier: Apache-2.0
#include "evidence/cases/block_mask_cases.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "evidence/cases/draw.h"
#include "numeric/random.h"

namespace octavo::evidence {
namespace {

constexpr std::uint64_t kKind = 1007, kBlocks = 1008, kBits = 1009;
constexpr std::int32_t kUnused = -1'000'000'000;  // in places that no list uses

void set_format(Case& c, Draw& draw) {
  constexpr std::array kInputs = {DType::f16, DType::bf16, DType::f16,  DType::bf16,
                                  DType::f32, DType::e4m3, DType::int8, DType::sim8};
  c.input = draw.of(kInputs);
  c.out = is_8bit(c.input) ? DType::f16 : c.input;
  if (c.input == DType::f16 && draw.one_in(6))
    c.options.precision = draw.of(std::array{Precision::fp8, Precision::int8, Precision::sim8});
  if (!is_8bit(c.input)) return;
  c.qk_scales = draw.of(std::array{Granularity::head, Granularity::row, Granularity::block});
  c.v_scales = draw.of(std::array{Granularity::head, Granularity::channel});
}

// Half of the 8-bit cases have no modifiers, as Hopper's 8-bit kernels do.
void keep_to_masks(Case& c, Draw& draw) {
  if ((!is_8bit(c.input) && c.options.precision == Precision::native) || draw.one_in(2)) return;
  c.options.softcap = 0;
  c.bias.reset();
  c.mask = c.alibi = c.sinks = false;
  if (c.options.precision == Precision::native) return;
  c.options.precision =
      draw.of(std::array{Precision::fp8, Precision::fp8_fast, Precision::fp8_mixed, Precision::int8,
                         Precision::int8_mixed});
}

void set_changes(Case& c, Draw& draw) {
  c.options.causal =
      draw.of(std::array{Causal::none, Causal::none, Causal::top_left, Causal::bottom_right});
  if (draw.one_in(4)) c.options.window_left = draw.between(0, c.seqlen_kv);
  if (c.options.causal == Causal::none && draw.one_in(6))
    c.options.window_right = draw.between(0, c.seqlen_kv);
  if (draw.one_in(4)) c.options.softcap = draw.of(std::array{0.75F, 4.0F, 30.0F});
  if (draw.one_in(4)) c.bias = draw.of(std::array{DType::f32, DType::f16, DType::bf16});
  c.mask = draw.one_in(5);
  c.alibi = draw.one_in(5);
  c.sinks = draw.one_in(5);
}

// Spoils lists so that kernels must clamp them: counts below 0 or beyond the list, indices beyond
// the keys.
void spoil(BlockMaskArrays& arrays, std::int64_t capacity) {
  for (auto* counts : {&arrays.num_blocks, &arrays.full_num_blocks})
    for (std::size_t row = 0; row < counts->size(); row += 2)
      (*counts)[row] = row % 4 == 0 ? static_cast<std::int32_t>(capacity) + 7 : -4;
  for (auto* list : {&arrays.indices, &arrays.full_indices, &arrays.bit_indices})
    for (std::size_t place = 0; place < list->size(); place += 3) (*list)[place] = 1'000'000'000;
}
// Clamps lists as kernels must, for the oracle.
void clamp(BlockMaskArrays& arrays, const BlockMask& mask, std::int64_t kv_blocks) {
  const auto clamp_all = [](std::vector<std::int32_t>& values, std::int64_t most) {
    for (std::int32_t& x : values)
      x = static_cast<std::int32_t>(
          std::clamp<std::int64_t>(x, 0, std::max<std::int64_t>(most, 0)));
  };
  clamp_all(arrays.num_blocks, mask.kv_capacity);
  clamp_all(arrays.full_num_blocks, mask.full_kv_capacity);
  clamp_all(arrays.indices, kv_blocks - 1);
  clamp_all(arrays.full_indices, kv_blocks - 1);
  clamp_all(arrays.bit_indices, mask.bit_blocks - 1);
}

void make_bits(const Case& c, std::int32_t entries, BlockMaskArrays& arrays, BlockMask& mask) {
  // Entries are in reverse order, so that a kernel cannot confuse an index with a position.
  for (std::int32_t& index : arrays.bit_indices)
    if (index != kUnused) index = entries - 1 - index;
  mask.bit_blocks = entries;
  arrays.bits.resize(static_cast<std::size_t>(entries * c.block_mask * c.block_mask / 32));
  for (std::size_t i = 0; i < arrays.bits.size(); ++i)
    arrays.bits[i] =
        static_cast<std::uint32_t>(random_below(c.seed, kBits, i, std::uint64_t{1} << 32));
  mask.bit_indices = arrays.bit_indices.data();
  mask.bits = arrays.bits.data();
}

}  // namespace

Case random_block_mask_case(std::uint64_t seed) {
  constexpr std::array<std::int64_t, 6> kDims = {64, 128, 64, 128, 96, 256};
  Draw draw(seed);
  Case c;
  c.seed = seed;
  c.block_mask = draw.one_in(2) ? 64 : 128;
  c.batch = draw.between(1, 2);
  c.heads_kv = draw.between(1, 2);
  c.heads_q = c.heads_kv * draw.of(std::array<std::int64_t, 4>{1, 1, 2, 4});
  c.seqlen_q = draw.between(1, draw.one_in(3) ? 600 : 200);
  c.seqlen_kv = draw.one_in(4) ? c.seqlen_q : draw.between(1, 700);
  c.head_dim = draw.one_in(3) ? 8 * draw.between(1, 32) : draw.of(kDims);
  c.layout = draw.of(std::array{Layout::bhsd, Layout::bshd, Layout::gaps});
  set_format(c, draw);
  set_changes(c, draw);
  keep_to_masks(c, draw);
  if (draw.one_in(6)) c.scale = 0.03125F * static_cast<float>(draw.between(-4, 12));
  c.lse = !draw.one_in(4);
  const bool in_16_bits = size_bytes(c.input) == 2 && c.options.precision == Precision::native;
  const std::int64_t columns_v = draw.of(kDims);
  if (in_16_bits && !c.kv && draw.one_in(4) && columns_v != c.head_dim) c.head_dim_v = columns_v;
  return c;
}

std::vector<Case> block_mask_cases(std::uint64_t seed, std::size_t count) {
  std::vector<Case> cases;
  std::set<std::string> names;
  for (std::uint64_t case_seed = seed * 1'000'000; cases.size() < count; ++case_seed) {
    Case c = random_block_mask_case(case_seed);
    if (names.insert(c.name()).second) cases.push_back(std::move(c));
  }
  return cases;
}

BlockMask make_block_mask(const Case& c, BlockMaskArrays& arrays) {
  const std::int64_t size = c.block_mask;
  const std::uint64_t kind = random_below(c.seed, kKind, 0, 16);
  const auto blocks = [size](std::int64_t rows) { return (rows + size - 1) / size; };
  const std::int64_t kv_blocks = blocks(c.seqlen_kv);
  BlockMask m;
  m.block_size = size;
  m.batch = (kind & 1) != 0 ? 1 : c.batch;
  m.heads = (kind & 2) != 0 ? 1 : c.heads_q;
  m.q_blocks = blocks(c.seqlen_q);
  m.kv_capacity = m.full_kv_capacity = kv_blocks;
  const auto rows = static_cast<std::size_t>(m.batch * m.heads * m.q_blocks);
  const auto places = rows * static_cast<std::size_t>(kv_blocks);
  arrays.num_blocks.assign(rows, 0);
  arrays.full_num_blocks.assign(rows, 0);
  for (auto* list : {&arrays.indices, &arrays.full_indices, &arrays.bit_indices})
    list->assign(places, kUnused);
  std::int32_t partial = 0;
  for (std::size_t row = 0; row < rows; ++row)
    for (std::int64_t block = 0; block < kv_blocks; ++block) {
      const std::size_t first = row * static_cast<std::size_t>(kv_blocks);
      const std::uint64_t state =
          random_below(c.seed, kBlocks, first + static_cast<std::uint64_t>(block), 3);
      if (state == 0) continue;
      auto& count = state == 1 ? arrays.num_blocks[row] : arrays.full_num_blocks[row];
      auto& list = state == 1 ? arrays.indices : arrays.full_indices;
      const std::size_t place = first + static_cast<std::size_t>(count++);
      list[place] = static_cast<std::int32_t>(block);
      if (state == 1) arrays.bit_indices[place] = partial++;
    }
  m.kv_num_blocks = arrays.num_blocks.data();
  m.kv_indices = arrays.indices.data();
  m.full_kv_num_blocks = arrays.full_num_blocks.data();
  m.full_kv_indices = arrays.full_indices.data();
  if (partial > 0 && (kind & 12) != 0) make_bits(c, partial, arrays, m);
  if (c.seqlens != Seqlens::plain) spoil(arrays, kv_blocks);
  if (c.seqlens == Seqlens::clamped) clamp(arrays, m, kv_blocks);
  return m;
}

}  // namespace octavo::evidence
