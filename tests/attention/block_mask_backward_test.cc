// SPDX-License-Identifier: Apache-2.0
// Gradients of attention with a block mask: in the oracle and on the CPU they are those of a mask
// tensor that hides the same keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "attention/block_mask_call.h"
#include "attention/reference.h"
#include "numeric/formats.h"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

using Shape = std::array<std::int64_t, 4>;

std::int64_t elements(const Shape& s) { return s[0] * s[1] * s[2] * s[3]; }

// A contiguous tensor with its memory.
struct OwnedTensor {
  Shape shape{};
  DType dtype = DType::f32;
  std::vector<std::byte> bytes;

  OwnedTensor(const Shape& of, DType type) : shape(of), dtype(type) {
    bytes.resize(static_cast<std::size_t>(elements(of)) * size_bytes(type));
  }
  Tensor view() {
    return Tensor::bhsd(bytes.data(), dtype, shape[0], shape[1], shape[2], shape[3]);
  }
  double at(std::int64_t i) const { return load_element(dtype, bytes.data(), i); }
  void set(std::int64_t i, float x) { store_element(dtype, bytes.data(), i, x); }
};

// The forward call with its gradients.
struct GradientCall : test::BlockMaskCall {
  OwnedTensor dout, dq, dk, dv, bias, dbias;
  bool has_bias = false;

  explicit GradientCall(std::uint64_t seed, std::int64_t block_size, DType dtype = DType::f32)
      : BlockMaskCall(seed, block_size, dtype),
        dout(arguments.q.shape, dtype),
        dq(arguments.q.shape, dtype),
        dk(arguments.k.shape, dtype),
        dv(arguments.k.shape, dtype),
        bias({1, c.heads_q, c.seqlen_q, c.seqlen_kv}, DType::f32),
        dbias(bias.shape, DType::f32) {
    EXPECT_TRUE(random_normal(dout.view(), seed, 70).ok());
    EXPECT_TRUE(random_normal(bias.view(), seed, 71).ok());
  }
  void add_bias() {
    has_bias = true;
    arguments.bias = bias.view();
  }
  BackwardArguments backward(const Arguments& forward) {
    BackwardArguments b;
    b.q = forward.q, b.k = forward.k, b.v = forward.v;
    b.out = forward.out, b.lse = forward.lse, b.dout = dout.view();
    b.dq = dq.view(), b.dk = dk.view(), b.dv = dv.view();
    b.scale = forward.scale;
    b.bias = forward.bias, b.mask = forward.mask;
    b.block_mask = forward.block_mask;
    if (has_bias) b.dbias = dbias.view();
    return b;
  }
  // Everything that a backward pass wrote.
  std::vector<std::byte> written() const {
    std::vector<std::byte> all = dq.bytes;
    for (const OwnedTensor* t : {&dk, &dv, &dbias})
      all.insert(all.end(), t->bytes.begin(), t->bytes.end());
    return all;
  }
  struct Expected {
    std::vector<double> dq, dk, dv, dbias;
    bool operator==(const Expected&) const = default;
  };
  Expected expected(const Arguments& forward) {
    const auto zeros = [](const OwnedTensor& t) {
      return std::vector<double>(static_cast<std::size_t>(elements(t.shape)));
    };
    Expected e{zeros(dq), zeros(dk), zeros(dv), zeros(dbias)};
    const Status status = reference_backward(
        backward(forward), c.options,
        {e.dq.data(), e.dk.data(), e.dv.data(), has_bias ? e.dbias.data() : nullptr, nullptr});
    EXPECT_EQ(status.message(), std::string());
    return e;
  }
};

// Compares relative to the largest magnitude, as elements are sums of terms of both signs.
void expect_near(const OwnedTensor& found, const std::vector<double>& expected, double tolerance) {
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_LE(std::abs(found.at(static_cast<std::int64_t>(i)) - expected[i]), tolerance * largest)
        << i;
}

void expect_near(const GradientCall& call, const GradientCall::Expected& e, double tolerance) {
  expect_near(call.dq, e.dq, tolerance);
  expect_near(call.dk, e.dk, tolerance);
  expect_near(call.dv, e.dv, tolerance);
  if (call.has_bias) expect_near(call.dbias, e.dbias, tolerance);
}

// Lists that all heads share and lists of each head, with bits and without, beside causal masks and
// a bias, with two query heads for each KV head and 130 queries of 300 keys.
TEST(BlockMaskBackward, EqualsAMaskTensor) {
  for (const std::int64_t size : {64, 128})
    for (std::uint64_t of_size = 1; of_size < 5; ++of_size) {
      const std::uint64_t seed = size == 64 ? of_size : of_size + 4;
      GradientCall call(seed, size);
      if (seed % 3 == 0) call.c.options.causal = Causal::bottom_right;
      if (seed % 4 == 0) call.c.options.softcap = 1.5f;
      if (seed % 4 < 2) call.add_bias();
      SCOPED_TRACE(call.c.name());
      std::vector<std::uint8_t> bytes;
      const Arguments masked = call.with_mask_tensor(bytes);
      ASSERT_EQ(attention(call.arguments, call.c.options).message(), std::string());
      const GradientCall::Expected expected = call.expected(call.arguments);
      EXPECT_TRUE(expected == call.expected(masked));

      // Blocks that are skipped leave every bit of the CPU's sums as they are.
      ASSERT_EQ(attention_backward(call.backward(call.arguments), call.c.options).message(),
                std::string());
      const std::vector<std::byte> sparse = call.written();
      expect_near(call, expected, 4e-6);
      ASSERT_TRUE(attention_backward(call.backward(masked), call.c.options).ok());
      EXPECT_TRUE(sparse == call.written());
    }
}

TEST(BlockMaskBackward, In16Bits) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::f16, 1.5e-3}, {DType::bf16, 1.2e-2}}) {
    GradientCall call(5, 64, dtype);
    ASSERT_TRUE(attention(call.arguments, call.c.options).ok());
    ASSERT_TRUE(attention_backward(call.backward(call.arguments), call.c.options).ok());
    expect_near(call, call.expected(call.arguments), tolerance);
  }
}

// The first block of queries has empty lists, and no block of queries lists the last block of keys.
TEST(BlockMaskBackward, RowsWithoutKeysAndKeysWithoutRowsGetZero) {
  GradientCall call(2, 64);
  evidence::BlockMaskArrays& lists = call.inputs.block_mask;
  const BlockMask& m = call.arguments.block_mask;
  const std::int64_t rows = m.batch * m.heads * m.q_blocks, last = 4;
  for (std::int64_t row = 0; row < rows; ++row)
    for (const auto& [counts, indices] : {std::pair{&lists.num_blocks, &lists.indices},
                                          {&lists.full_num_blocks, &lists.full_indices}}) {
      std::int32_t& count = (*counts)[static_cast<std::size_t>(row)];
      if (row % m.q_blocks == 0) count = 0;
      if (count > 0 &&
          (*indices)[static_cast<std::size_t>(row * m.kv_capacity + count - 1)] == last)
        --count;
    }
  // Rows of dO without keys and keys that no query sees may be NaN.
  const std::int64_t columns = call.c.head_dim, keys = call.c.seqlen_kv;
  call.dout.set(3 * columns, std::numeric_limits<float>::quiet_NaN());
  auto* const k = static_cast<float*>(const_cast<void*>(call.arguments.k.data));
  k[270 * columns + 1] = std::numeric_limits<float>::quiet_NaN();

  ASSERT_TRUE(attention(call.arguments, call.c.options).ok());
  ASSERT_TRUE(attention_backward(call.backward(call.arguments), call.c.options).ok());
  for (std::int64_t i = 0; i < elements(call.dq.shape); ++i) {
    const bool is_hidden = i / columns % call.c.seqlen_q < 64;
    ASSERT_TRUE(is_hidden ? call.dq.at(i) == 0 : std::isfinite(call.dq.at(i))) << i;
  }
  bool any = false;
  for (std::int64_t i = 0; i < elements(call.dk.shape); ++i)
    for (const OwnedTensor* t : {&call.dk, &call.dv}) {
      const bool is_hidden = i / columns % keys >= last * 64;
      ASSERT_TRUE(is_hidden ? t->at(i) == 0 : std::isfinite(t->at(i))) << i;
      any = any || t->at(i) != 0;
    }
  EXPECT_TRUE(any);
}

TEST(BlockMaskBackward, RefusesListsThatDoNotFit) {
  GradientCall call(1, 64);
  ASSERT_TRUE(attention(call.arguments, call.c.options).ok());
  call.dq.set(0, -7);
  const auto refusal = [&call](const BackwardArguments& b) {
    return attention_backward(b, call.c.options).message();
  };
  BackwardArguments b = call.backward(call.arguments);
  b.block_mask.block_size = 32;
  EXPECT_EQ(refusal(b), "block_mask.block_size is 32; supported: 64, 128.");
  b = call.backward(call.arguments);
  b.block_mask.q_blocks = 2;
  EXPECT_EQ(refusal(b), "block_mask.q_blocks is 2; supported: 3, the blocks of 130 queries.");
  b = call.backward(call.arguments);
  call.inputs.block_mask.num_blocks[0] = 6;
  EXPECT_EQ(refusal(b),
            "block_mask.kv_num_blocks[0] is 6; supported: 0 to 5, the capacity of its list.");
  const std::vector<std::int32_t> lengths = {100, 130};
  b.seqlens_q = lengths.data();
  EXPECT_EQ(refusal(b),
            "block_mask is given together with padding; supported here: batches of sequences of "
            "one length.");
  b = call.backward(call.arguments);
  b.dq.data = const_cast<std::int32_t*>(b.block_mask.kv_indices);
  EXPECT_NE(refusal(b), "");
  EXPECT_EQ(call.dq.at(0), -7);
}

}  // namespace
}  // namespace octavo
