// SPDX-License-Identifier: Apache-2.0
// A V that the caller transposed: Hopper's 8-bit kernels read it directly, and produce the same
// result as from V by rows, which they transpose first.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

constexpr Device kSm89{Device::Kind::emulator, 0};
constexpr Device kSm90{Device::Kind::emulator, 90};
constexpr std::int64_t kHeads = 2, kColumns = 64;

// Q, K and V of one call in 8 bits, V by rows and transposed.
struct Call {
  std::vector<float> values;
  std::vector<std::uint8_t> q, k, rows, transposed;
  std::vector<float> q_scales, k_scales, v_scales;
  std::vector<std::uint16_t> out;
  std::vector<std::int32_t> starts;
  Arguments by_rows, by_columns;

  // One batch entry, or a varlen batch whose sequences begin at `cu`.
  Call(DType format, std::int64_t tokens, std::vector<std::int32_t> cu)
      : values(static_cast<std::size_t>(kHeads * tokens * kColumns)),
        q(values.size()),
        k(values.size()),
        rows(values.size()),
        q_scales(kHeads),
        k_scales(kHeads),
        v_scales(kHeads * kColumns),
        out(values.size()),
        starts(std::move(cu)) {
    const bool varlen = !starts.empty();
    const auto sequences = varlen ? static_cast<std::int64_t>(starts.size()) - 1 : 0;
    const std::int64_t columns = transposed_columns(tokens, sequences);
    transposed.assign(static_cast<std::size_t>(kHeads * kColumns * columns), 0);
    Arguments& a = by_rows;
    a.q = quantized(format, tokens, 0, Granularity::head, q, q_scales);
    a.k = quantized(format, tokens, 1, Granularity::head, k, k_scales);
    a.v = quantized(format, tokens, 2, Granularity::channel, rows, v_scales);
    a.out = Tensor::bhsd(out.data(), DType::f16, 1, kHeads, tokens, kColumns);
    // All sequences share the one scale of a head and channel.
    const std::array<std::int64_t, 3> same_for_all = {0, 1, 0};
    a.q_scales = {q_scales.data(), Granularity::head, 64, same_for_all};
    a.k_scales = {k_scales.data(), Granularity::head, 64, same_for_all};
    a.v_scales = {v_scales.data(), Granularity::channel, 64, std::array{0L, kColumns, 1L}};
    if (varlen) {
      a.cu_seqlens_q = a.cu_seqlens_kv = starts.data();
      a.sequences = sequences;
      a.max_seqlen_q = a.max_seqlen_kv = tokens;
    }
    by_columns = a;
    by_columns.v = ConstTensor::bhsd(transposed.data(), format, 1, kHeads, kColumns, columns);
    by_columns.v_layout = VLayout::transposed;
    if (!varlen) transpose(format, tokens, columns, 0, tokens, 0);
    for (std::int64_t b = 0; b < sequences; ++b) {
      const auto at = static_cast<std::size_t>(b);
      transpose(format, tokens, columns, starts[at], starts[at + 1] - starts[at],
                transposed_begin(starts[at], b));
    }
  }

  std::vector<std::uint16_t> run(const Arguments& a) {
    std::fill(out.begin(), out.end(), 0x7E00);
    const Status status = attention_from_host(a, {}, kSm90);
    EXPECT_EQ(status.message(), "");
    return out;
  }

 private:
  Tensor fill(std::int64_t tokens, std::uint64_t stream) {
    const Tensor x = Tensor::bhsd(values.data(), DType::f32, 1, kHeads, tokens, kColumns);
    EXPECT_TRUE(random_normal(x, 3, stream).ok());
    return x;
  }
  ConstTensor quantized(DType format, std::int64_t tokens, std::uint64_t stream,
                        Granularity granularity, std::vector<std::uint8_t>& codes,
                        std::vector<float>& scales) {
    QuantizeOptions options;
    options.granularity = granularity;
    const Tensor to = Tensor::bhsd(codes.data(), format, 1, kHeads, tokens, kColumns);
    EXPECT_EQ(quantize(fill(tokens, stream), options, to, scales.data()).message(), "");
    return to;
  }
  // Transposes keys [begin, begin + keys) of V: dequantizes and quantizes them with the same
  // scales, which gives the same 8-bit values.
  void transpose(DType format, std::int64_t tokens, std::int64_t columns, std::int64_t begin,
                 std::int64_t keys, std::int64_t at) {
    QuantizeOptions options;
    options.granularity = Granularity::channel;
    options.scales_given = true;
    options.layout = VLayout::transposed;
    Tensor from = Tensor::bhsd(values.data(), DType::f32, 1, kHeads, tokens, kColumns);
    EXPECT_EQ(
        dequantize(by_rows.v, {v_scales.data(), Granularity::channel, 64, {}}, from).message(), "");
    from.data = values.data() + begin * kColumns;
    from.shape[2] = keys;
    const Tensor to{transposed.data() + at,
                    format,
                    {1, kHeads, kColumns, transposed_columns(keys)},
                    {kHeads * kColumns * columns, kColumns * columns, columns, 1}};
    EXPECT_EQ(quantize(from, options, to, v_scales.data()).message(), "");
  }
};

TEST(EmulatorTransposedV, GivesTheSameBitsAsRows) {
  for (const DType format : {DType::e4m3, DType::int8})
    for (const std::vector<std::int32_t>& starts :
         {std::vector<std::int32_t>{}, std::vector<std::int32_t>{0, 20, 20, 57, 150}}) {
      SCOPED_TRACE(testing::Message() << name(format) << ' ' << starts.size());
      Call call(format, 150, starts);
      const std::vector<std::uint16_t> from_rows = call.run(call.by_rows);
      EXPECT_EQ(call.run(call.by_columns), from_rows);
    }
}

TEST(EmulatorTransposedV, NeedsNoPassBeforeTheKernel) {
  Call call(DType::e4m3, 150, {});
  const Explanation rows = explain(problem_of(call.by_rows).value(), kSm90).value();
  const Explanation columns = explain(problem_of(call.by_columns).value(), kSm90).value();
  EXPECT_NE(rows.reason.find("; V is transposed first"), std::string::npos) << rows.reason;
  EXPECT_GT(rows.workspace_bytes, 0U);
  EXPECT_EQ(columns.reason.find("transposed"), std::string::npos) << columns.reason;
  EXPECT_EQ(columns.workspace_bytes, 0U);
  EXPECT_EQ(columns.config, rows.config);
}

TEST(EmulatorTransposedV, IsRefusedWithoutAHopperKernel) {
  Call call(DType::e4m3, 150, {});
  const Problem problem = problem_of(call.by_columns).value();
  const Status sm89 = plan(problem, kSm89).status();
  EXPECT_EQ(sm89.code(), ErrorCode::unsupported);
  EXPECT_EQ(sm89.message().find("v_layout is transposed for B=1"), 0U) << sm89.message();
  // TMA needs rows of Q at a multiple of 16 bytes.
  call.by_columns.q.data = static_cast<const std::uint8_t*>(call.by_columns.q.data) + 1;
  const Plan made = plan(problem, kSm90).value();
  const Status unaligned = made.run(call.by_columns);
  EXPECT_EQ(unaligned.code(), ErrorCode::unsupported);
  EXPECT_EQ(unaligned.message().find("v_layout is transposed for B=1"), 0U) << unaligned.message();
}

}  // namespace
}  // namespace octavo
