// SPDX-License-Identifier: Apache-2.0
// Block masks from ranges of keys: every query sees the keys of its range, lists and bits are no
// longer than they must be, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/block_mask.h"
#include "attention/mask.h"
#include "numeric/random.h"
#include "octavo/block_mask.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

struct Ranges {
  std::vector<std::int32_t> begin, end;
  KeyRanges view{};

  Ranges(std::int64_t batch, std::int64_t heads, std::int64_t seqlen_q, std::int64_t seqlen_kv)
      : begin(static_cast<std::size_t>(batch * heads * seqlen_q)),
        end(begin.size(), static_cast<std::int32_t>(seqlen_kv)) {
    view = {.begin = begin.data(),
            .end = end.data(),
            .batch = batch,
            .heads = heads,
            .seqlen_q = seqlen_q,
            .seqlen_kv = seqlen_kv};
  }
};

// Whether query i of a head sees key j by its range.
bool is_in_range(const KeyRanges& r, std::int64_t head, std::int64_t i, std::int64_t j) {
  const std::int64_t row = head * r.seqlen_q + i;
  const KeyRange visible = visible_keys({.causal = r.causal}, i, r.seqlen_q, r.seqlen_kv);
  return j >= r.begin[row] && j < r.end[row] && j < visible.end;
}

void expect_same_keys(const KeyRanges& ranges, std::int64_t size) {
  const Result<OwnedBlockMask> made = block_mask_from_ranges(ranges, size);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const BlockMask mask = made->view();
  const std::int64_t kv_blocks = (ranges.seqlen_kv + size - 1) / size;
  std::int64_t partial = 0;
  for (std::int64_t head = 0; head < ranges.batch * ranges.heads; ++head)
    for (std::int64_t q_block = 0; q_block < mask.q_blocks; ++q_block) {
      const BlockMaskRow row(mask, head / ranges.heads, head % ranges.heads, q_block);
      for (std::int64_t block = 0; block < kv_blocks; ++block) {
        const SeenBlock seen = row.block(block);
        bool any = false, all = true;
        for (std::int64_t i = q_block * size; i < std::min((q_block + 1) * size, ranges.seqlen_q);
             ++i)
          for (std::int64_t j = block * size; j < std::min((block + 1) * size, ranges.seqlen_kv);
               ++j) {
            const bool wanted = is_in_range(ranges, head, i, j);
            any = any || wanted;
            all = all && wanted;
            ASSERT_EQ(sees(mask, seen, i % size, j % size), wanted) << head << " " << i << " " << j;
          }
        EXPECT_EQ(seen.is_seen, any);
        EXPECT_EQ(seen.is_seen && seen.bits == nullptr, all) << q_block << " " << block;
        partial += seen.bits != nullptr ? 1 : 0;
      }
    }
  EXPECT_LE(mask.bit_blocks, partial);
}

TEST(BlockRanges, QueriesSeeTheKeysOfTheirRanges) {
  for (const std::int64_t size : {64, 128})
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      Ranges ranges(seed % 2 + 1, 2, 150, seed == 3 ? 256 : 333);
      for (std::size_t i = 0; i < ranges.begin.size(); ++i) {
        const auto most = static_cast<std::uint64_t>(ranges.view.seqlen_kv) + 1;
        const auto end = [&](std::uint64_t which) {
          // Some blocks of queries see whole blocks of keys, some rows nothing.
          const std::uint64_t at = i / 64 % 2 == 0 ? i / 64 : i;
          return static_cast<std::int32_t>(random_below(seed, which, at, most));
        };
        ranges.begin[i] = std::min(end(1), end(2));
        ranges.end[i] = i % 7 == 3
                            ? ranges.begin[i] - (i % 2 == 0 ? 0 : std::min(ranges.begin[i], 1))
                            : std::max(end(1), end(2));
      }
      if (seed == 2) ranges.view.causal = Causal::bottom_right;
      expect_same_keys(ranges.view, size);
    }
}

// Documents one after the other, causal inside: the blocks on the diagonal share their bits.
TEST(BlockRanges, DocumentsShareTheBitsOfTheDiagonal) {
  constexpr std::int64_t kTokens = 1024, kDocument = 256, kSize = 64;
  Ranges ranges(1, 1, kTokens, kTokens);
  for (std::int64_t i = 0; i < kTokens; ++i) {
    ranges.begin[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(i / kDocument * kDocument);
    ranges.end[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>((i / kDocument + 1) * kDocument);
  }
  ranges.view.causal = Causal::top_left;
  expect_same_keys(ranges.view, kSize);
  const BlockMask mask = block_mask_from_ranges(ranges.view, kSize)->view();
  EXPECT_EQ(mask.bit_blocks, 1);
  EXPECT_EQ(mask.kv_capacity, 1);
  EXPECT_EQ(mask.full_kv_capacity, 3);
}

TEST(BlockRanges, NoKeysAndNoQueries) {
  Ranges hidden(1, 2, 100, 90);
  std::fill(hidden.end.begin(), hidden.end.end(), 0);
  expect_same_keys(hidden.view, 64);
  EXPECT_EQ(block_mask_from_ranges(hidden.view, 64)->view().kv_num_blocks, nullptr);
  expect_same_keys(Ranges(1, 1, 70, 0).view, 64);
  expect_same_keys(Ranges(1, 1, 0, 70).view, 128);
}

TEST(BlockRanges, RefusesWhatIsNoRange) {
  const auto refusal = [](const auto& change, std::int64_t size = 64) {
    Ranges ranges(1, 2, 100, 90);
    change(ranges);
    return std::string(block_mask_from_ranges(ranges.view, size).status().message());
  };
  EXPECT_EQ(refusal([](Ranges&) {}), "");
  EXPECT_EQ(refusal([](Ranges&) {}, 32), "block_size is 32; supported: 64, 128.");
  EXPECT_EQ(refusal([](Ranges& r) { r.begin[3] = -1; }),
            "ranges.begin[3] is -1; supported: 0 to 90, the number of keys.");
  EXPECT_EQ(refusal([](Ranges& r) { r.end[199] = 91; }),
            "ranges.end[199] is 91; supported: 0 to 90, the number of keys.");
  EXPECT_EQ(refusal([](Ranges& r) { r.view.end = nullptr; }),
            "ranges.end is null; supported: a pointer.");
  EXPECT_EQ(refusal([](Ranges& r) { r.view.heads = 0; }),
            "ranges.heads is 0; supported: 1 to 2^30.");
  EXPECT_EQ(refusal([](Ranges& r) { r.view.seqlen_q = -1; }),
            "ranges.seqlen_q is -1; supported: 0 to 2^30.");
  EXPECT_EQ(refusal([](Ranges& r) { r.view.batch = r.view.heads = std::int64_t{1} << 30; }),
            "ranges.heads is 1073741824; supported: at most 2^30 heads in all.");
}

}  // namespace
}  // namespace octavo
