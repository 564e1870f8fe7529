// SPDX-License-Identifier: Apache-2.0
#include "attention/mask.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace octavo {
namespace {

// The mask as the API's comments define it, key by key.
bool sees(const Options& o, std::int64_t i, std::int64_t j, std::int64_t seqlen_q,
          std::int64_t seqlen_kv) {
  const std::int64_t shift = o.causal == Causal::top_left ? 0 : seqlen_kv - seqlen_q;
  if (o.causal != Causal::none && j > i + shift) return false;
  if (o.window_left >= 0 && j < i + shift - o.window_left) return false;
  if (o.window_right >= 0 && j > i + shift + o.window_right) return false;
  return true;
}

TEST(Mask, IntervalEqualsTheDefinition) {
  for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right})
    for (const std::int64_t left : {-1, 0, 1, 3, 100})
      for (const std::int64_t right : {-1, 0, 2, 100})
        for (const auto& [seqlen_q, seqlen_kv] :
             {std::pair<std::int64_t, std::int64_t>{5, 5}, {3, 9}, {9, 3}, {1, 4}, {4, 0}}) {
          Options o;
          o.causal = causal;
          o.window_left = left;
          o.window_right = right;
          for (std::int64_t i = 0; i < seqlen_q; ++i) {
            const KeyRange keys = visible_keys(o, i, seqlen_q, seqlen_kv);
            EXPECT_LE(keys.begin, keys.end);
            for (std::int64_t j = 0; j < seqlen_kv; ++j)
              EXPECT_EQ(keys.begin <= j && j < keys.end, sees(o, i, j, seqlen_q, seqlen_kv))
                  << name(causal) << " window " << left << "," << right << " row " << i << " key "
                  << j << " of " << seqlen_q << "x" << seqlen_kv;
          }
        }
}

TEST(Mask, RowsBeforeTheFirstKeyAreEmpty) {
  Options o;
  o.causal = Causal::bottom_right;
  const KeyRange keys = visible_keys(o, 0, 8, 3);
  EXPECT_EQ(keys.begin, keys.end);
}

TEST(Mask, LargestWindowsDoNotOverflow) {
  Options o;
  o.window_left = INT64_MAX;
  o.window_right = INT64_MAX;
  const KeyRange keys = visible_keys(o, 2, 4, 10);
  EXPECT_EQ(keys.begin, 0);
  EXPECT_EQ(keys.end, 10);
}

}  // namespace
}  // namespace octavo
