// SPDX-License-Identifier: Apache-2.0
// Outputs must not share memory with inputs: no true overlap is accepted, and the layouts that are
// in use, parts of one array, are not refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attention/backward_call.h"
#include "attention/call.h"
#include "attention/validate.h"
#include "numeric/random.h"

namespace octavo {
namespace {

using Shape = std::array<std::int64_t, 4>;

bool accepted(const Tensor& written, const ConstTensor& other) {
  return validate_apart("out", written, "q", other).ok();
}

// Offsets of every byte of a view, by brute force.
std::set<std::int64_t> bytes_of(const ConstTensor& t, const void* base) {
  std::set<std::int64_t> bytes;
  const auto size = static_cast<std::int64_t>(size_bytes(t.dtype));
  const std::int64_t first = static_cast<const char*>(t.data) - static_cast<const char*>(base);
  const Shape& n = t.shape;
  for (std::int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; ++i) {
    const std::int64_t at = i / (n[1] * n[2] * n[3]) * t.stride[0] +
                            i / (n[2] * n[3]) % n[1] * t.stride[1] + i / n[3] % n[2] * t.stride[2] +
                            i % n[3] * t.stride[3];
    for (std::int64_t byte = 0; byte < size; ++byte) bytes.insert(first + at * size + byte);
  }
  return bytes;
}

bool disjoint(const ConstTensor& a, const ConstTensor& b, const void* base) {
  const std::set<std::int64_t> of_a = bytes_of(a, base), of_b = bytes_of(b, base);
  return std::none_of(of_a.begin(), of_a.end(),
                      [&of_b](std::int64_t byte) { return of_b.contains(byte); });
}

// Indices of the first dimension are apart, but the output's columns run over the end of a row.
TEST(Overlap, ColumnsThatLeaveTheirRowAreSeen) {
  std::vector<float> memory(400);
  const Shape shape{2, 1, 5, 10}, stride{100, 100, 10, 1};
  const Tensor q{memory.data(), DType::f32, shape, stride};
  const Tensor out{memory.data() + 55, DType::f32, shape, stride};
  ASSERT_FALSE(disjoint(out, q, memory.data()));
  const Status status = validate_apart("out", out, "q", q);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
  EXPECT_NE(status.message().find("out is in memory that q also covers"), std::string::npos)
      << status.message();
}

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    const auto n = static_cast<std::uint64_t>(high - low + 1);
    return low + static_cast<std::int64_t>(random_below(seed_, 77, index_++, n));
  }

 private:
  std::uint64_t seed_, index_ = 0;
};

// Two small views into one array, mostly with the same strides, which nest or nearly do.
struct Pair {
  Tensor a;
  Tensor b;
};
Pair draw_pair(std::uint64_t seed, std::vector<float>& memory) {
  Draws draw(seed);
  constexpr std::array kTypes = {DType::f32, DType::f16, DType::e4m3};
  Pair pair;
  for (Tensor* t : {&pair.a, &pair.b}) {
    t->dtype = kTypes[static_cast<std::size_t>(draw.between(0, 5)) % 3];
    for (std::int64_t& n : t->shape) n = draw.between(1, 4);
    t->stride[3] = 1;
  }
  if (draw.between(0, 2) > 0) pair.b.dtype = pair.a.dtype;
  std::array<std::size_t, 3> order = {0, 1, 2};
  std::swap(order[0], order[static_cast<std::size_t>(draw.between(0, 2))]);
  std::int64_t stride = draw.between(1, 9);
  for (const std::size_t i : order) {
    pair.a.stride[i] = pair.b.stride[i] = draw.between(0, 12) == 0 ? 0 : stride;
    stride = draw.between(0, 3) == 0 ? draw.between(1, 40) : stride * draw.between(1, 5);
    if (draw.between(0, 9) == 0) pair.b.stride[i] += draw.between(1, 3);
  }
  auto* bytes = reinterpret_cast<char*>(memory.data());
  for (Tensor* t : {&pair.a, &pair.b})
    t->data = bytes + draw.between(0, 60) * static_cast<std::int64_t>(size_bytes(t->dtype));
  return pair;
}

TEST(Overlap, NoPairOfSmallViewsThatShareMemoryIsAccepted) {
  std::vector<float> memory(4096);
  int overlapping = 0, apart = 0, refused_apart = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    const Pair pair = draw_pair(seed, memory);
    const bool is_apart = disjoint(pair.a, pair.b, memory.data());
    const bool is_accepted = accepted(pair.a, pair.b);
    EXPECT_EQ(is_accepted, accepted(pair.b, pair.a)) << seed;
    (is_apart ? apart : overlapping) += 1;
    if (is_apart && !is_accepted) ++refused_apart;
    ASSERT_TRUE(is_apart || !is_accepted) << "seed " << seed << " overlaps and is accepted";
  }
  EXPECT_GE(overlapping, 4000);
  EXPECT_GE(apart, 4000);
  // What cannot be shown to be apart is refused: not more than this part of what is.
  EXPECT_LE(refused_apart, apart / 2) << refused_apart << " of " << apart;
  RecordProperty("refused_apart", refused_apart);
  RecordProperty("apart", apart);
}

// Tensors of one allocation as programs make them: all are apart, and none is refused.
TEST(Overlap, PartsOfOneArrayInUseAreAccepted) {
  constexpr std::int64_t kB = 2, kS = 3, kHq = 4, kHkv = 2, kD = 8;
  std::vector<float> memory(4096);
  // (batch, row, all heads of Q, K, V and O, column).
  constexpr std::int64_t kHeads = 2 * kHq + 2 * kHkv;
  const auto by_heads = [&](std::int64_t first, std::int64_t heads) {
    return Tensor{memory.data() + first * kD,
                  DType::f32,
                  {kB, heads, kS, kD},
                  {kS * kHeads * kD, kD, kHeads * kD, 1}};
  };
  const Tensor out = by_heads(kHq + 2 * kHkv, kHq);
  EXPECT_TRUE(accepted(out, by_heads(0, kHq)));
  EXPECT_TRUE(accepted(out, by_heads(kHq, kHkv)));
  EXPECT_TRUE(accepted(out, by_heads(kHq + kHkv, kHkv)));
  EXPECT_FALSE(accepted(out, by_heads(kHq + kHkv, kHkv + 1)));
  // One key head, whose stride along heads says nothing.
  Tensor one = by_heads(kHq, 1);
  one.stride[1] = 5;
  EXPECT_TRUE(accepted(out, one));
  // Keys that all of the batch share.
  Tensor shared = by_heads(kHq, kHkv);
  shared.stride[0] = 0;
  EXPECT_TRUE(accepted(out, shared));
  // Columns beside each other: (batch, head, row, Q and O).
  const auto by_columns = [&](std::int64_t first) {
    return Tensor{memory.data() + first,
                  DType::f32,
                  {kB, kHq, kS, kD},
                  {kHq * kS * 2 * kD, kS * 2 * kD, 2 * kD, 1}};
  };
  EXPECT_TRUE(accepted(by_columns(kD), by_columns(0)));
  EXPECT_TRUE(accepted(by_columns(0), by_columns(kD)));
  EXPECT_FALSE(accepted(by_columns(kD - 1), by_columns(0)));
  EXPECT_FALSE(accepted(by_columns(kD + 1), by_columns(0)));
  // Rows of new tokens behind those of a cache.
  const auto rows = [&](std::int64_t first, std::int64_t count) {
    return Tensor{memory.data() + first * kD,
                  DType::f32,
                  {kB, kHq, count, kD},
                  {kHq * 10 * kD, 10 * kD, kD, 1}};
  };
  EXPECT_TRUE(accepted(rows(7, 3), rows(0, 7)));
  EXPECT_FALSE(accepted(rows(6, 3), rows(0, 7)));
  EXPECT_FALSE(accepted(rows(7, 4), rows(0, 7)));  // its last row is the next head's first
}

// The small arrays of a call: lengths that change while they are read would lead anywhere.
TEST(Overlap, OutputsOverTheArraysOfACallAreRefused) {
  static std::array<std::int32_t, 4096> memory{};  // zeros are valid entries of every array
  auto* const words = memory.data() + 7;
  const auto floats = [words] { return reinterpret_cast<float*>(words); };
  const auto as_pages = [words](Arguments& a) {
    a.page_table = words;
    a.page_table_stride = a.pages_per_sequence = 1;
    static constexpr std::int32_t kLengths[] = {3, 16};
    a.seqlens_kv = kLengths;
  };
  const auto with_blocks = [words](Arguments& a) {
    static constexpr std::int32_t kNone[] = {0};
    a.block_mask = {.block_size = 64, .batch = 1, .heads = 1, .q_blocks = 1};
    a.block_mask.full_kv_num_blocks = kNone;
    a.block_mask.full_kv_indices = words;
    a.block_mask.full_kv_capacity = 1;
  };
  using Plant = std::function<void(Arguments&)>;
  const std::vector<std::pair<std::string, Plant>> plants = {
      {"seqlens_q", [&](Arguments& a) { a.seqlens_q = words; }},
      {"seqlens_kv", [&](Arguments& a) { a.seqlens_kv = words; }},
      {"leftpad_q", [&](Arguments& a) { a.leftpad_q = words; }},
      {"leftpad_kv", [&](Arguments& a) { a.leftpad_kv = words; }},
      {"draft_tree", [&](Arguments& a) { a.draft_tree = words; }},
      {"alibi_slopes", [&](Arguments& a) { a.alibi_slopes = floats(); }},
      {"sinks", [&](Arguments& a) { a.sinks = floats(); }},
      {"page_table", as_pages},
      {"block_mask.full_kv_indices", with_blocks},
      {"k_scales",
       [&](Arguments& a) {
         a.k.dtype = DType::int8;
         a.k_scales = {floats(), Granularity::head};
       }},
  };
  for (const auto& [what, plant] : plants)
    for (const bool of_lse : {false, true}) {
      test::Call call(2, 4, 2, 5, 16, 16);
      plant(call.arguments);
      ASSERT_EQ(problem_of(call.arguments).status().message(), "") << what;
      (of_lse ? call.arguments.lse : call.arguments.out).data = memory.data();
      EXPECT_EQ(attention(call.arguments).message(),
                std::string(of_lse ? "lse" : "out") + " is in memory that " + what +
                    " also covers; supported: memory apart from " + what + ".");
    }
  test::BackwardCall backward(2, 4, 2, 5, 16, 16);
  backward.arguments.alibi_slopes = floats();
  ASSERT_EQ(problem_of(backward.arguments).status().message(), "");
  backward.arguments.dq.data = memory.data();
  EXPECT_EQ(attention_backward(backward.arguments).message(),
            "dq is in memory that alibi_slopes also covers; supported: memory apart from "
            "alibi_slopes.");
  EXPECT_EQ(std::count(memory.begin(), memory.end(), 0), std::ssize(memory));
}

}  // namespace
}  // namespace octavo
