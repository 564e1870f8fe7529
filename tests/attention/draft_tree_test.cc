// SPDX-License-Identifier: Apache-2.0
// The draft tree of speculative decoding: the oracle and the CPU hide what a mask tensor of the
// same bits hides, and every fault is one sentence.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attention/call.h"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

// Two sequences of up to 100 keys and 5 queries. A tree: 0 is the root of 1 and 2, 1 of 3, 2 of 4.
struct Drafts : test::Call {
  static constexpr std::int64_t kQueries = 5, kKeys = 100;
  std::vector<std::int32_t> tree = {1, 3, 5, 11, 21, 1, 3, 7, 15, 0};
  std::vector<std::int32_t> lengths = {100, 67}, queries = {5, 4}, before = {0, 1};
  std::vector<std::uint8_t> seen;  // (2, 1, queries, keys)

  Drafts() : Call(2, 4, 2, kQueries, kKeys, 16) {
    arguments.seqlens_kv = lengths.data();
    arguments.draft_tree = tree.data();
  }
  // The same call with a mask instead.
  Arguments masked() {
    seen.assign(static_cast<std::size_t>(2 * kQueries * kKeys), 1);
    for (std::int64_t b = 0; b < 2; ++b) {
      const auto at = static_cast<std::size_t>(b);
      const std::int64_t used = arguments.seqlens_q == nullptr ? kQueries : queries[at];
      const std::int64_t begin = arguments.leftpad_q == nullptr ? 0 : before[at];
      for (std::int64_t row = 0; row < kQueries; ++row)
        for (std::int64_t j = 0; j < used; ++j)
          if ((tree[static_cast<std::size_t>(b * kQueries + row)] >> j & 1) == 0 && row >= begin)
            seen[static_cast<std::size_t>((b * kQueries + row) * kKeys + lengths[at] - used + j)] =
                0;
    }
    Arguments a = arguments;
    a.draft_tree = nullptr;
    a.mask = ConstTensor::bhsd(seen.data(), DType::boolean, 2, 1, kQueries, kKeys);
    return a;
  }
};

TEST(DraftTree, EqualsAMaskTensorWithTheSameBits) {
  for (const Causal causal : {Causal::none, Causal::bottom_right})
    for (const bool padded : {false, true}) {
      Drafts call;
      if (padded) {
        call.arguments.seqlens_q = call.queries.data();
        call.arguments.leftpad_q = call.before.data();
      }
      const Options options{.causal = causal};
      const Arguments masked = call.masked();
      std::vector<double> found(call.q.size()), wanted(call.q.size());
      ASSERT_EQ(reference(call.arguments, options, found.data()).message(), "");
      ASSERT_EQ(reference(masked, options, wanted.data()).message(), "");
      EXPECT_EQ(found, wanted);
      ASSERT_EQ(attention(masked, options).message(), "");
      const std::vector<float> out = call.out, lse = call.lse;
      ASSERT_EQ(attention(call.arguments, options).message(), "");
      EXPECT_EQ(call.out, out);
      EXPECT_EQ(call.lse, lse);
    }
}

TEST(DraftTree, ChangesTheOutput) {
  Drafts call;
  ASSERT_EQ(attention(call.arguments).message(), "");
  const std::vector<float> out = call.out;
  call.arguments.draft_tree = nullptr;
  ASSERT_EQ(attention(call.arguments).message(), "");
  EXPECT_NE(call.out, out);
}

TEST(DraftTree, EveryFaultIsOneSentence) {
  const auto is = [](const std::function<void(Arguments&)>& plant, const std::string& sentence) {
    Drafts call;
    plant(call.arguments);
    EXPECT_EQ(attention(call.arguments).message(), sentence);
    EXPECT_TRUE(call.untouched());
  };
  static const std::int32_t starts[] = {0, 5};
  is(
      [](Arguments& a) {
        a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.out.shape[0] = a.lse.shape[0] = 1;
        a.seqlens_kv = nullptr;
        a.cu_seqlens_q = a.cu_seqlens_kv = starts;
        a.sequences = 1;
        a.max_seqlen_q = a.max_seqlen_kv = 5;
      },
      "draft_tree is given together with cu_seqlens; supported here: dense and padded batches and "
      "paged caches.");
  test::Call many(1, 1, 1, 33, 40, 16);
  const std::vector<std::int32_t> words(33, 1);
  many.arguments.draft_tree = words.data();
  EXPECT_EQ(attention(many.arguments).message(),
            "draft_tree is given with 33 queries of a sequence; supported: 1 to 32 queries.");
  EXPECT_TRUE(many.untouched());
}

}  // namespace
}  // namespace octavo
