// SPDX-License-Identifier: Apache-2.0
#include "cpu/panel_modifiers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "attention/mask.h"
#include "attention/score_modifiers.h"
#include "numeric/formats.h"

namespace octavo::cpu {
namespace {

constexpr auto kLog2e = std::numbers::log2e_v<float>;

// The stride of a dimension; 0 if its one entry applies to all indices.
std::int64_t step(const ConstTensor& t, std::size_t dimension) {
  return t.shape[dimension] == 1 ? 0 : t.stride[dimension];
}

// The offset of a query row's first key in a tensor that broadcasts to (B, Hq, Sq, Skv).
std::int64_t offset(const ConstTensor& t, const Sequence& at, const QueryRow& query,
                    std::int64_t key) {
  return at.batch * step(t, 0) + query.head * step(t, 1) + (at.q_begin + query.row) * step(t, 2) +
         (at.kv_begin + key) * step(t, 3);
}

// A bias in log2 units. A finite bias stays finite: some callers hide keys with the lowest float,
// and such a key is hidden only if the row has others with a greater bias.
float bias_log2(float bias) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  return std::isinf(bias) ? bias : std::clamp(bias * kLog2e, -kLargest, kLargest);
}

}  // namespace

bool PanelModifiers::load(std::int64_t first_query, std::int64_t rows, std::int64_t width,
                          std::int64_t begin, std::int64_t count, TileModifiers& tile) const {
  // A softcap that overflows in base 2 is replaced by the largest finite number, which changes no
  // score.
  if (const float softcap = problem_.options.softcap; softcap != 0)
    tile.softcap = std::min(softcap * kLog2e, std::numeric_limits<float>::max());
  if (problem_.alibi) load_alibi(first_query, rows, width, begin, tile);
  if (!problem_.bias && !problem_.mask && problem_.block_mask == 0 && !problem_.draft_tree)
    return true;
  tile.addition = s_.addition;
  return load_additions(first_query, rows, width, begin, count);
}

// Diagonals are counted from the first key of the block. That distance does not depend on the
// panel, so all panels round it alike.
void PanelModifiers::load_alibi(std::int64_t first_query, std::int64_t rows, std::int64_t width,
                                std::int64_t begin, TileModifiers& tile) const {
  const Sequence& at = task_.sequence;
  const std::int64_t block = begin / kKeyRows * kKeyRows;
  const std::int64_t to_diagonal =
      diagonal_offset(problem_.options.causal, at.seqlen_q, at.seqlen_kv) - block;
  std::fill_n(s_.slope, width, 0.0f);
  std::fill_n(s_.diagonal, width, 0.0f);
  for (std::int64_t i = 0; i < rows; ++i) {
    const QueryRow query = task_.query(first_query + i);
    s_.slope[i] = a_.alibi_slopes[task_.number * a_.alibi_batch_stride + query.head] * kLog2e;
    s_.diagonal[i] = static_cast<float>(query.row + to_diagonal);
  }
  tile.slope = s_.slope;
  tile.diagonal = s_.diagonal;
  tile.first_key = static_cast<float>(begin - block);
}

bool PanelModifiers::load_additions(std::int64_t first_query, std::int64_t rows, std::int64_t width,
                                    std::int64_t begin, std::int64_t count) const {
  std::int64_t bias_at = -1, mask_at = -1;  // of the row that s_.row holds
  bool row_has_visible = false, has_visible = false;
  for (std::int64_t i = 0; i < width; ++i) {
    if (i >= rows) {
      for (std::int64_t k = 0; k < count; ++k) s_.addition[k * width + i] = 0;
      continue;
    }
    const QueryRow query = task_.query(first_query + i);
    const std::int64_t bias = problem_.bias ? offset(a_.bias, task_.sequence, query, begin) : 0;
    const std::int64_t mask = problem_.mask ? offset(a_.mask, task_.sequence, query, begin) : 0;
    const bool blocks = problem_.block_mask != 0, drafts = problem_.draft_tree;
    if (blocks || drafts || bias != bias_at || mask != mask_at)
      row_has_visible = load_row(bias, mask, count);
    if (blocks && row_has_visible) row_has_visible = hide_blocks(query, begin, count);
    if (drafts && row_has_visible) row_has_visible = hide_drafts(query, begin, count);
    bias_at = bias;
    mask_at = mask;
    has_visible |= row_has_visible;
    for (std::int64_t k = 0; k < count; ++k) s_.addition[k * width + i] = s_.row[k];
  }
  return has_visible;
}

// Fills s_.row, and returns whether a key is visible.
bool PanelModifiers::load_row(std::int64_t bias_at, std::int64_t mask_at,
                              std::int64_t count) const {
  const ConstTensor& bias = a_.bias;
  float* const row = s_.row;
  if (!problem_.bias) {
    std::fill_n(row, count, 0.0f);
  } else if (step(bias, 3) == 1) {
    const auto size = static_cast<std::int64_t>(size_bytes(bias.dtype));
    kernels_.to_f32(bias.dtype, static_cast<const std::byte*>(bias.data) + bias_at * size, 0, 1,
                    count, row, 0);
    for (std::int64_t k = 0; k < count; ++k) row[k] = bias_log2(row[k]);
  } else {
    for (std::int64_t k = 0; k < count; ++k)
      row[k] = bias_log2(load_element(bias.dtype, bias.data, bias_at + k * step(bias, 3)));
  }
  if (problem_.mask) {
    const auto* bytes = static_cast<const std::uint8_t*>(a_.mask.data) + mask_at;
    const std::int64_t stride = step(a_.mask, 3);
    for (std::int64_t k = 0; k < count; ++k)
      if (bytes[k * stride] == 0) row[k] = -kInfinity;
  }
  return !std::all_of(row, row + count, [](float x) { return x == -kInfinity; });
}

// Blocks of keys start at multiples of kKeyRows, which divides the size of a mask's blocks.
SeenBlock PanelModifiers::seen_block(const QueryRow& query, std::int64_t key) const {
  static_assert(64 % kKeyRows == 0);
  const std::int64_t size = problem_.block_mask;
  return BlockMaskRow(a_.block_mask, task_.sequence.batch, query.head, query.row / size)
      .block(key / size);
}

// Hides what the block mask hides from s_.row, and returns whether a key is visible.
bool PanelModifiers::hide_blocks(const QueryRow& query, std::int64_t begin,
                                 std::int64_t count) const {
  const std::int64_t size = problem_.block_mask;
  const SeenBlock block = seen_block(query, begin);
  for (std::int64_t k = 0; k < count; ++k)
    if (!sees(a_.block_mask, block, query.row % size, begin % size + k)) s_.row[k] = -kInfinity;
  return !std::all_of(s_.row, s_.row + count, [](float x) { return x == -kInfinity; });
}

// Hides what the draft tree hides from s_.row, and returns whether a key is visible.
bool PanelModifiers::hide_drafts(const QueryRow& query, std::int64_t begin,
                                 std::int64_t count) const {
  const DraftRow drafts(a_, task_.sequence, query.row);
  for (std::int64_t k = 0; k < count; ++k)
    if (!drafts.sees(begin + k)) s_.row[k] = -kInfinity;
  return !std::all_of(s_.row, s_.row + count, [](float x) { return x == -kInfinity; });
}

bool PanelModifiers::sees_block(std::int64_t first_query, std::int64_t rows,
                                std::int64_t key) const {
  if (problem_.block_mask == 0) return true;
  // The first query of each block of queries of each head.
  for (std::int64_t i = first_query; i < first_query + rows;) {
    const QueryRow query = task_.query(i);
    if (seen_block(query, key).is_seen) return true;
    i += std::min(problem_.block_mask - query.row % problem_.block_mask,
                  task_.sequence.seqlen_q - query.row);
  }
  return false;
}

}  // namespace octavo::cpu
