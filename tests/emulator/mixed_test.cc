// SPDX-License-Identifier: Apache-2.0
// 8-bit Q and K with 16-bit V on Hopper's kernels: in the modes fp8_mixed and int8_mixed, and from
// the caller's quantized values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "attention/operand.h"
#include "attention/reference.h"
#include "emulator/long.h"
#include "evidence/cases/inputs.h"
#include "evidence/gates/check.h"
#include "numeric/formats.h"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo::evidence {
namespace {

constexpr Device kOtherChip{Device::Kind::emulator, 0};
constexpr Device kHopper{Device::Kind::emulator, 90};
constexpr Precision kMixedModes[] = {Precision::fp8_mixed, Precision::int8_mixed};

Case mixed_case(Precision precision, DType input, std::int64_t seqlen_q, std::int64_t seqlen_kv) {
  Case c;
  c.batch = 2;
  c.heads_q = 4;
  c.heads_kv = 2;
  c.seqlen_q = seqlen_q;
  c.seqlen_kv = seqlen_kv;
  c.input = c.out = input;
  c.options.precision = precision;
  c.options.causal = Causal::bottom_right;
  return c;
}

// The call of a case with Q and K quantized as in its mode.
struct CodedCall {
  QuantizedOperand q, k;
  Arguments arguments;
  Options options;

  CodedCall(const Case& c, const Inputs& in) : arguments(in.given), options(c.options) {
    const OperandFormats formats = operand_formats(problem_of(in.given, c.options).value());
    q = coded(c, formats.q, in.given.q, in.spans_q, c.seqlen_q);
    k = coded(c, formats.k, in.given.k, in.spans_kv, c.seqlen_kv);
    arguments.q = q.values.view;
    arguments.k = k.values.view;
    arguments.q_scales = q.view;
    arguments.k_scales = k.view;
    options.precision = Precision::native;
  }

 private:
  static QuantizedOperand coded(const Case& c, const OperandFormat& format,
                                const ConstTensor& tensor, const std::vector<Span>& spans,
                                std::int64_t max_len) {
    QuantizeOptions options;
    options.granularity = format.granularity;
    options.block_rows = c.options.quantization.block_rows;
    return quantize_operand(tensor, *format.rounded, format.max_quantized, options, c.layout, spans,
                            max_len)
        .value();
  }
};

std::vector<std::byte> outputs_of(Inputs& in, const Arguments& arguments, const Options& options) {
  poison_outputs(in);
  EXPECT_EQ(attention(arguments, options, kHopper).message(), "");
  std::vector<std::byte> bytes = in.out.bytes;
  bytes.insert(bytes.end(), in.lse.bytes.begin(), in.lse.bytes.end());
  return bytes;
}

TEST(EmulatorMixed, QuantizedInputsGiveTheSameBitsAsTheMode) {
  for (const Precision precision : kMixedModes)
    for (const DType input : {DType::f16, DType::bf16})
      for (const Layout layout : {Layout::bhsd, Layout::varlen}) {
        SCOPED_TRACE(testing::Message() << name(precision) << ' ' << name(input));
        Case c = mixed_case(precision, input, 70, 150);
        c.layout = layout;
        c.options.overlap_launch = true;  // as after quantizers: the same kernel for both
        Inputs in = make_inputs(c).value();
        const CodedCall coded(c, in);
        const std::vector<std::byte> of_mode = outputs_of(in, in.given, c.options);
        EXPECT_EQ(outputs_of(in, coded.arguments, coded.options), of_mode);
      }
}

// P is rounded to V's type once, before the second product; nothing else is rounded.
TEST(EmulatorMixed, AgreesWithAReferenceThatRoundsP) {
  for (const Precision precision : kMixedModes)
    for (const DType input : {DType::f16, DType::bf16}) {
      SCOPED_TRACE(testing::Message() << name(precision) << ' ' << name(input));
      const Case c = mixed_case(precision, input, 70, 300);
      Inputs in = make_inputs(c).value();
      const CodedCall coded(c, in);
      outputs_of(in, in.given, c.options);
      TiledRounding rounding;
      rounding.p_format = input;
      rounding.rescale_threshold_log2 = 8;
      std::vector<double> expected(static_cast<std::size_t>(2 * 4 * 70 * 64));
      ASSERT_TRUE(reference_tiled(coded.arguments, coded.options, rounding, expected.data()).ok());
      // Except for the output, which is rounded too.
      const double half_ulp = input == DType::f16 ? 0x1p-11 : 0x1p-9;
      double worst = 0, largest = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double error = std::abs(
            load_element(input, in.out.view.data, static_cast<std::int64_t>(i)) - expected[i]);
        largest = std::max(largest, error);
        worst = std::max(worst, error - half_ulp * std::abs(expected[i]));
      }
      EXPECT_LE(worst, half_ulp);  // of P: the weighted mean of V is less than 1
      EXPECT_GT(largest, 0);
    }
}

// Zero tensors have a scale too: every key has the same weight, and LSE counts them.
TEST(EmulatorMixed, ZeroTensorsGiveEveryKeyTheSameWeight) {
  for (const Precision precision : kMixedModes)
    for (const bool zero_v : {false, true}) {
      Case c = mixed_case(precision, DType::f16, 33, 100);
      c.options.causal = Causal::none;
      Inputs in = make_inputs(c).value();
      const auto clear = [](const ConstTensor& t) {
        const std::int64_t elements = t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3];
        std::memset(const_cast<void*>(t.data), 0, static_cast<std::size_t>(elements) * 2);
      };
      clear(in.given.q);
      clear(in.given.k);
      if (zero_v) clear(in.given.v);
      outputs_of(in, in.given, c.options);
      for (std::int64_t head = 0; head < 8; ++head) {
        const std::int64_t v = head / 2 * 100 * 64;
        double mean = 0;
        for (std::int64_t key = 0; key < 100; ++key)
          mean += load_element(DType::f16, in.given.v.data, v + key * 64) / 100;
        for (std::int64_t row = 0; row < 33; ++row) {
          const std::int64_t at = head * 33 + row;
          ASSERT_NEAR(load_element(DType::f16, in.out.view.data, at * 64), mean, 1e-4);
          ASSERT_NEAR(load_element(DType::f32, in.lse.view.data, at), std::log(100.0), 1e-6);
        }
      }
    }
}

// Masks, heads that share keys, rows without keys, padded columns, varlen batches with tokens of no
// sequence, V that is rounded first: with the quantizers, under two schedules.
TEST(EmulatorMixed, ThroughTheQuantizers) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  std::vector<Case> cases;
  const auto add = [&cases](Precision precision, DType input, std::int64_t seqlen_q,
                            std::int64_t seqlen_kv, const auto& bend) {
    Case c = mixed_case(precision, input, seqlen_q, seqlen_kv);
    c.seed = cases.size();
    bend(c);
    cases.push_back(c);
  };
  for (const Precision precision : kMixedModes) {
    add(precision, DType::f16, 200, 70, [](Case&) {});  // rows that see no key
    add(precision, DType::f16, 5, 0, [](Case&) {});
    // Without LSE the row sums add up the rounded P.
    add(precision, DType::f16, 100, 150, [](Case& c) { c.lse = false; });
    add(precision, DType::f16, 80, 200, [](Case& c) {
      c.lse = false;
      c.layout = Layout::varlen;
    });
    add(precision, DType::bf16, 100, 260, [](Case& c) { c.options.window_left = 33; });
    add(precision, DType::f16, 90, 190, [](Case& c) { c.layout = Layout::varlen; });
    add(precision, DType::bf16, 140, 70, [](Case& c) {
      c.layout = Layout::varlen;
      c.batch = 3;
      c.head_dim = 40;
    });
    add(precision, DType::f32, 66, 130, [](Case& c) {
      c.out = DType::f16;
      c.options.causal = Causal::top_left;
    });
    add(precision, DType::f16, 50, 400, [](Case& c) {
      c.scale = 4.0f;  // maxima grow along the keys
      c.options.causal = Causal::none;
    });
    add(precision, DType::f16, 60, 100, [](Case& c) {
      c.scale = -0.3f;
      c.head_dim = 128;
      c.lse = false;
    });
    add(precision, DType::f16, 40, 90,
        [](Case& c) { c.options.quantization.qk = Granularity::row; });
    add(precision, DType::f16, 40, 90,
        [](Case& c) { c.options.quantization.qk = Granularity::head; });
  }
  CheckOptions options;
  options.device = kHopper;
  options.repeat = 2;
  const Result<CheckReport> report = check_cases(options, cases, library_runner(kHopper));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->cases, static_cast<std::int64_t>(cases.size()));
  for (const std::string& reason : report->not_run_reasons) ADD_FAILURE() << reason;
  for (const std::string& failure : report->failures) ADD_FAILURE() << failure;
}

TEST(EmulatorMixed, ExplainsWhatItDoes) {
  Problem p;
  p.batch = 1;
  p.heads_q = p.heads_kv = 8;
  p.seqlen_q = p.seqlen_kv = 512;
  p.head_dim = p.head_dim_v = 64;
  p.options.precision = Precision::int8_mixed;
  const auto told = [&p] { return explain(p, kHopper).value(); };
  EXPECT_EQ(told().kernel, "sm90_forward");
  EXPECT_NE(told().config.find(".element=Element::int8,.v_element=Element::f16"), std::string::npos)
      << told().config;
  EXPECT_NE(told().reason.find("; Q becomes int8, K becomes int8 first"), std::string::npos)
      << told().reason;
  // Quantized values and scales: Q per row, K per block of 64.
  EXPECT_EQ(told().workspace_bytes, 2U * 8 * 512 * 64 + 8 * 512 * 4 + 8 * 8 * 4);
  p.q = p.k = p.v = p.out = DType::bf16;
  EXPECT_NE(told().config.find(".v_element=Element::bf16"), std::string::npos) << told().config;
  p.q = p.k = p.v = DType::f32;
  p.out = DType::f16;
  EXPECT_NE(told().reason.find("V becomes f16 first"), std::string::npos) << told().reason;
  // The caller's quantized values need no pass before the kernel.
  p.options.precision = Precision::native;
  p.q = p.k = DType::e4m3;
  p.v = DType::f16;
  p.k_scales = Granularity::block;
  p.k_block_rows = 64;
  EXPECT_NE(told().config.find(".v_element=Element::f16"), std::string::npos) << told().config;
  EXPECT_EQ(told().reason.find("first"), std::string::npos) << told().reason;
  EXPECT_EQ(told().workspace_bytes, 0U);
}

// The error says that a GPU has a kernel for the problem, and the emulator has none.
TEST(EmulatorMixed, NamesMissingEmulatorKernels) {
  Problem p;
  p.batch = p.heads_q = p.heads_kv = 1;
  p.seqlen_q = p.seqlen_kv = 64;
  p.head_dim = p.head_dim_v = 192;
  p.options.precision = Precision::fp8_mixed;
  EXPECT_EQ(plan(p, kHopper).status().message().find("problem is B=1"), 0U)
      << plan(p, kHopper).status().message();
}

TEST(EmulatorMixed, IsRefusedWithoutAHopperKernel) {
  for (const Precision precision : kMixedModes) {
    const Case c = mixed_case(precision, DType::f16, 70, 150);
    Inputs in = make_inputs(c).value();
    const CodedCall coded(c, in);
    const Problem by_mode = problem_of(in.given, c.options).value();
    const Problem by_codes = problem_of(coded.arguments, coded.options).value();
    const Status mode = plan(by_mode, kOtherChip).status();
    EXPECT_EQ(mode.code(), ErrorCode::unsupported);
    EXPECT_EQ(mode.message().find("precision is " + std::string(name(precision)) + " for B=2"), 0U)
        << mode.message();
    EXPECT_NE(mode.message().find("if an sm_90 kernel supports"), std::string::npos);
    const Status codes = plan(by_codes, kOtherChip).status();
    EXPECT_EQ(codes.code(), ErrorCode::unsupported);
    EXPECT_EQ(codes.message().find("dtypes of q, k, v is "), 0U) << codes.message();
    // TMA needs V at a multiple of 16 bytes.
    Arguments unaligned = in.given;
    unaligned.v.data = static_cast<const std::byte*>(unaligned.v.data) + 2;
    const Status status = attention(unaligned, c.options, kHopper);
    EXPECT_EQ(status.code(), ErrorCode::unsupported);
    EXPECT_EQ(status.message().find("precision is "), 0U) << status.message();
  }
}

}  // namespace
}  // namespace octavo::evidence
