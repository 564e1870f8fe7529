// SPDX-License-Identifier: Apache-2.0
// 8-bit K and V with a 16-bit Q: they are dequantized to Q's type before the forward kernel, on
// chips of both families, and the result agrees with the CPU's, which uses the quantized values
// directly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "numeric/formats.h"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

struct DecodedCall {
  static constexpr std::int64_t kTokens = 150, kQueryHeads = 4, kKeyHeads = 2, kWidth = 64;
  DType q_type;
  std::vector<std::uint16_t> q, out;
  std::vector<std::uint8_t> k, v;
  std::vector<float> k_scales, v_scales;
  std::vector<std::int32_t> starts;
  Arguments arguments;

  // One batch entry, or a varlen batch whose sequences begin at `cu`.
  DecodedCall(DType type, DType format, std::vector<std::int32_t> cu)
      : q_type(type),
        q(static_cast<std::size_t>(kQueryHeads * kTokens * kWidth)),
        out(q.size()),
        k(static_cast<std::size_t>(kKeyHeads * kTokens * kWidth)),
        v(k.size()),
        k_scales(static_cast<std::size_t>(kKeyHeads * kTokens)),
        v_scales(static_cast<std::size_t>(kKeyHeads * kWidth)),
        starts(std::move(cu)) {
    Arguments& a = arguments;
    const Tensor queries = Tensor::bhsd(q.data(), type, 1, kQueryHeads, kTokens, kWidth);
    EXPECT_TRUE(random_normal(queries, 4, 0).ok());
    a.q = queries;
    a.k = quantized(format, 1, Granularity::row, k, k_scales);
    a.v = quantized(format, 2, Granularity::channel, v, v_scales);
    a.out = Tensor::bhsd(out.data(), type, 1, kQueryHeads, kTokens, kWidth);
    a.k_scales = {k_scales.data(), Granularity::row, 64, {}};
    // All sequences share the one scale of a channel.
    a.v_scales = {v_scales.data(), Granularity::channel, 64, std::array<std::int64_t, 3>{0, 64, 1}};
    if (starts.empty()) return;
    a.cu_seqlens_q = a.cu_seqlens_kv = starts.data();
    a.sequences = static_cast<std::int64_t>(starts.size()) - 1;
    a.max_seqlen_q = a.max_seqlen_kv = kTokens;
  }

  std::vector<float> run(Device device, const Options& options) {
    std::fill(out.begin(), out.end(), 0x7FFF);  // NaN
    EXPECT_EQ(attention_from_host(arguments, options, device).message(), "");
    std::vector<float> values(out.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = load_element(q_type, out.data(), static_cast<std::int64_t>(i));
    return values;
  }

 private:
  static ConstTensor quantized(DType format, std::uint64_t stream, Granularity granularity,
                               std::vector<std::uint8_t>& codes, std::vector<float>& scales) {
    std::vector<float> values(codes.size());
    const Tensor from = Tensor::bhsd(values.data(), DType::f32, 1, kKeyHeads, kTokens, kWidth);
    EXPECT_TRUE(random_normal(from, 4, stream).ok());
    QuantizeOptions options;
    options.granularity = granularity;
    const Tensor to = Tensor::bhsd(codes.data(), format, 1, kKeyHeads, kTokens, kWidth);
    EXPECT_EQ(quantize(from, options, to, scales.data()).message(), "");
    return to;
  }
};

TEST(EmulatorDecodedKv, AgreesWithTheCpu) {
  for (const DType type : {DType::f16, DType::bf16})
    for (const DType format : {DType::e4m3, DType::e5m2, DType::int8, DType::sim8})
      for (const std::vector<std::int32_t>& starts :
           {std::vector<std::int32_t>{}, std::vector<std::int32_t>{0, 20, 20, 57, 150}}) {
        SCOPED_TRACE(testing::Message()
                     << name(type) << ' ' << name(format) << ' ' << starts.size());
        if (type == DType::bf16 && format != DType::e4m3) continue;
        DecodedCall call(type, format, starts);
        Options options;
        options.causal = Causal::top_left;
        const std::vector<float> wanted = call.run({Device::Kind::cpu, 0}, options);
        // Rounding K, V, P and the output: 2^-11 each in f16, 2^-8 in bf16, of values up to four.
        const float allowed = type == DType::f16 ? 4e-3f : 4e-2f;
        for (const int chip : {0, 90}) {
          const std::vector<float> found = call.run({Device::Kind::emulator, chip}, options);
          float most = 0;
          for (std::size_t i = 0; i < found.size(); ++i)
            most =
                std::isnan(found[i]) ? HUGE_VALF : std::max(most, std::abs(found[i] - wanted[i]));
          EXPECT_LT(most, allowed) << chip;
          EXPECT_GT(most, 0) << "the CPU rounds neither K nor P";
        }
      }
}

TEST(EmulatorDecodedKv, PlanExplainsTheConversion) {
  DecodedCall call(DType::f16, DType::e4m3, {});
  const Explanation e =
      explain(problem_of(call.arguments).value(), {Device::Kind::emulator, 90}).value();
  EXPECT_EQ(e.kernel, "sm90_forward");
  EXPECT_NE(e.reason.find("K becomes f16, V becomes f16 first"), std::string::npos) << e.reason;
  EXPECT_GE(e.workspace_bytes, 2 * call.k.size() * 2);
}

TEST(EmulatorDecodedKv, RefusesATransposedV) {
  DecodedCall call(DType::f16, DType::e4m3, {});
  call.arguments.v = ConstTensor::bhsd(call.v.data(), DType::e4m3, 1, DecodedCall::kKeyHeads, 64,
                                       transposed_columns(128));
  call.arguments.k.shape[2] = 128;
  call.arguments.v_layout = VLayout::transposed;
  const Status status = attention_from_host(call.arguments, {}, {Device::Kind::emulator, 90});
  EXPECT_EQ(status.code(), ErrorCode::unsupported);
  EXPECT_NE(status.message().find("v_layout is transposed"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("rows with a 16-bit q on a GPU"), std::string::npos);
}

}  // namespace
}  // namespace octavo
