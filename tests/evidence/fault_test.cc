// SPDX-License-Identifier: Apache-2.0
// Plants plausible kernel faults one by one: the judge must reject each on the same cases on which
// it accepts the library.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/reference.h"
#include "evidence/cases/decode_cases.h"
#include "evidence/cases/inputs.h"
#include "evidence/gates/check.h"
#include "numeric/formats.h"
#include "octavo/evidence.hpp"

namespace octavo::evidence {
namespace {

// Calls the library once.
Status library(const Arguments& arguments, const Options& options) {
  const Result<Call> call = library_runner({})(arguments, options);
  return call.ok() ? (*call)() : call.status();
}

Case base_case() {
  Case c;
  c.batch = 2;
  c.heads_q = c.heads_kv = 2;
  c.seqlen_q = c.seqlen_kv = 80;
  c.head_dim = 64;
  c.seed = 5;
  return c;
}

Case dead_rows_case() {
  Case c = base_case();
  c.seqlen_kv = 50;
  c.options.causal = Causal::bottom_right;  // the first 30 rows see no key
  return c;
}

// Expects a failure whose line contains `gate`.
void expect_rejected(const std::vector<Case>& cases, const Runner& faulty, const char* gate) {
  const auto truth = check_cases({}, cases, library_runner({}));
  ASSERT_TRUE(truth.ok()) << truth.status().message();
  ASSERT_TRUE(truth->passed()) << truth->failures[0];
  const auto report = check_cases({}, cases, faulty);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_FALSE(report->passed());
  bool named = false;
  for (const std::string& line : report->failures) {
    named = named || line.find(gate) != std::string::npos;
    EXPECT_NE(line.find("seed="), std::string::npos) << "not self-contained: " << line;
  }
  EXPECT_TRUE(named) << "no failure by: " << gate;
}

// Runs the library on changed options or arguments.
using Change = std::function<void(Arguments&, Options&)>;
Runner with_change(const Change& change) {
  return plain_runner([change](const Arguments& arguments, const Options& options) {
    Arguments a = arguments;
    Options o = options;
    change(a, o);
    return library(a, o);
  });
}

// Runs the library, then changes its output.
using Damage = std::function<void(const Arguments&)>;
Runner with_damage(const Damage& damage) {
  return plain_runner([damage](const Arguments& arguments, const Options& options) {
    Status status = library(arguments, options);
    if (status.ok()) damage(arguments);
    return status;
  });
}

void store_all(const Tensor& out, const std::vector<double>& values) {
  std::size_t at = 0;
  for (std::int64_t b = 0; b < out.shape[0]; ++b)
    for (std::int64_t h = 0; h < out.shape[1]; ++h)
      for (std::int64_t s = 0; s < out.shape[2]; ++s)
        for (std::int64_t d = 0; d < out.shape[3]; ++d)
          store_element(out.dtype, out.data,
                        b * out.stride[0] + h * out.stride[1] + s * out.stride[2] + d,
                        static_cast<float>(values[at++]));
}

TEST(PlantedFault, WrongCausalAlignment) {
  Case c = base_case();
  c.seqlen_q = 40;
  c.options.causal = Causal::bottom_right;
  expect_rejected({c}, with_change([](Arguments&, Options& o) { o.causal = Causal::top_left; }),
                  "kernel error");
}

TEST(PlantedFault, WindowOffByOne) {
  for (const DType input : {DType::f16, DType::bf16, DType::f32}) {
    Case c = base_case();
    c.input = c.out = input;
    c.options.window_left = 30;
    c.options.window_right = 20;
    expect_rejected({c}, with_change([](Arguments&, Options& o) { ++o.window_left; }),
                    "kernel error");
    expect_rejected({c}, with_change([](Arguments&, Options& o) { --o.window_right; }),
                    "kernel error");
  }
}

TEST(PlantedFault, LastKeysSkipped) {
  for (const std::int64_t skipped : {1, 16})
    expect_rejected({base_case()}, with_change([skipped](Arguments& a, Options&) {
                      a.k.shape[2] -= skipped;
                      a.v.shape[2] -= skipped;
                    }),
                    "kernel error");
}

// The sum of 64 equal rows of V, divided by 64, is that row without a rounding: that is no sign of
// a result compared with itself.
TEST(PlantedFault, AverageOfEqualRowsMayBeExact) {
  Case c = base_case();
  c.seqlen_kv = 64;
  c.values = InputValues::equal_keys;
  expect_rejected(
      {c}, with_damage([](const Arguments& a) { store_element(a.out.dtype, a.out.data, 3, 9.0f); }),
      "kernel error");
}

// Cases of mixed lengths with every format of the cache.
std::vector<Case> paged_cases() {
  std::vector<Case> cases;
  for (int format = 0; format < kDecodeSizes[kCacheFormat]; ++format) {
    DecodeValues values{};
    values[kCacheFormat] = format;
    values[kCacheScales] = 2;  // per row
    values[kLengths] = static_cast<int>(KeyLengths::longest);
    values[kQueries] = 1;
    cases.push_back(make_decode_case(values, 3));
  }
  return cases;
}

TEST(PlantedFault, APageReadTwice) {
  std::vector<std::int32_t> table;
  expect_rejected(paged_cases(), with_change([&table](Arguments& a, Options&) {
                    table.assign(a.page_table, a.page_table +
                                                   (a.q.shape[0] - 1) * a.page_table_stride +
                                                   a.pages_per_sequence);
                    table[0] = table[1];
                    a.page_table = table.data();
                  }),
                  "kernel error");
}

// The rows behind a sequence hold NaN, and so do the scales of int8.
TEST(PlantedFault, AKeyTooMany) {
  for (const Case& c : paged_cases()) {
    std::vector<std::int32_t> lengths;
    Case shorter = c;
    shorter.key_lengths = KeyLengths::page_less_one;
    const Inputs in = make_inputs(shorter).value();
    lengths.assign(in.given.seqlens_kv, in.given.seqlens_kv + c.batch);
    for (std::int32_t& n : lengths) ++n;
    const auto report = check_cases({}, {shorter}, with_change([&lengths](Arguments& a, Options&) {
                                      a.seqlens_kv = lengths.data();
                                    }));
    ASSERT_TRUE(report.ok());
    EXPECT_FALSE(report->passed()) << c.name();
  }
}

TEST(PlantedFault, ScalesOfAnotherRow) {
  std::vector<float> scales;
  expect_rejected({paged_cases()[3]}, with_change([&scales](Arguments& a, Options&) {
                    const auto count = a.v.shape[0] * a.v.shape[1] * a.v.shape[2];
                    scales.assign(a.v_scales.data, a.v_scales.data + count);
                    std::reverse(scales.begin(), scales.end());
                    for (float& scale : scales) scale = scale > 0 ? scale : 1;  // no refusal
                    a.v_scales.data = scales.data();
                  }),
                  "kernel error");
}

TEST(PlantedFault, WrongScale) {
  expect_rejected({base_case()}, with_change([](Arguments& a, Options&) { a.scale = 1.01F / 8; }),
                  "lse");
}

TEST(PlantedFault, PreviousOutputReturned) {
  Case first = base_case(), second = base_case();
  second.seed = 6;
  std::vector<std::byte> kept;
  const Runner stale = with_damage([&kept](const Arguments& a) {
    const std::size_t bytes = static_cast<std::size_t>(a.out.shape[0] * a.out.stride[0]) * 2;
    if (kept.empty()) {
      kept.resize(bytes);
      std::memcpy(kept.data(), a.out.data, bytes);
    } else {
      std::memcpy(a.out.data, kept.data(), bytes);
    }
  });
  expect_rejected({first, second}, stale, "kernel error");
}

TEST(PlantedFault, NothingWrittenTheSecondTime) {
  int calls = 0;
  const Runner lazy = plain_runner([&calls](const Arguments& a, const Options& o) {
    return calls++ == 0 ? library(a, o) : Status();
  });
  expect_rejected({base_case()}, lazy, "not written");
}

TEST(PlantedFault, OneRowUnwritten) {
  expect_rejected({base_case()}, with_damage([](const Arguments& a) {
                    const std::int64_t row = a.out.stride[0] + 79 * a.out.stride[2];
                    std::memset(static_cast<std::byte*>(a.out.data) + 2 * row, 0xFF, 2 * 64);
                  }),
                  "not written");
}

TEST(PlantedFault, GuardByteOverwritten) {
  expect_rejected({base_case()}, with_damage([](const Arguments& a) {
                    static_cast<std::byte*>(a.out.data)[-1] = std::byte{0};
                  }),
                  "outside its rows");
}

TEST(PlantedFault, GapOverwritten) {
  Case c = base_case();
  c.layout = Layout::gaps;
  expect_rejected({c}, with_damage([](const Arguments& a) {
                    static_cast<std::byte*>(a.out.data)[2 * a.out.shape[3]] = std::byte{0};
                  }),
                  "outside its rows");
}

TEST(PlantedFault, TokensOutsideTheSequencesWritten) {
  Case c = base_case();
  c.layout = Layout::varlen;
  expect_rejected({c}, with_damage([](const Arguments& a) {
                    static_cast<float*>(a.lse.data)[0] = 0;  // token 0 belongs to no sequence
                  }),
                  "outside its rows");
}

TEST(PlantedFault, LseInLog2) {
  expect_rejected({base_case()}, with_damage([](const Arguments& a) {
                    auto* lse = static_cast<float*>(a.lse.data);
                    const std::int64_t rows = a.lse.shape[0] * a.lse.stride[0];
                    for (std::int64_t i = 0; i < rows; ++i) lse[i] *= 1.44269504F;
                  }),
                  "lse kernel error");
}

TEST(PlantedFault, NanInADeadRow) {
  expect_rejected({dead_rows_case()}, with_damage([](const Arguments& a) {
                    store_element(a.out.dtype, a.out.data, 3,
                                  std::numeric_limits<float>::quiet_NaN());
                  }),
                  "rows without keys");
}

TEST(PlantedFault, DeadRowIsTheMeanOfV) {
  expect_rejected({dead_rows_case()}, with_damage([](const Arguments& a) {
                    store_element(a.out.dtype, a.out.data, 3, 1e-3F);
                  }),
                  "rows without keys");
  expect_rejected({dead_rows_case()}, with_damage([](const Arguments& a) {
                    static_cast<float*>(a.lse.data)[2] = -1e30F;
                  }),
                  "not -inf");
}

// Every other modifier is present, so that none hides behind the absence of the others.
Case modified_case() {
  Case c = base_case();
  c.input = c.out = DType::f32;
  c.options.softcap = 4;
  c.bias = DType::f16;
  c.mask = c.alibi = c.sinks = c.padded = true;
  return c;
}

TEST(PlantedFault, ScoreModifierLeftOut) {
  const std::vector<Case> cases = {modified_case()};
  for (const Change& change :
       std::vector<Change>{[](Arguments&, Options&o) { o.softcap = 0; },
                           [](Arguments&, Options&o) { o.softcap *= 1.01F; },
                           [](Arguments&a, Options&) { a.mask = {}; },
                           [](Arguments&a, Options&) { a.alibi_slopes = nullptr; },
                           [](Arguments&a, Options&) { a.sinks = nullptr; }})
    expect_rejected(cases, with_change(change), "kernel error");
  Case biased = base_case();
  biased.bias = DType::f16;
  expect_rejected({biased}, with_change([](Arguments& a, Options&) { a.bias = {}; }),
                  "kernel error");
}

TEST(PlantedFault, PaddingIsNotWrittenOrNotMasked) {
  std::int64_t found = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Case c = base_case();
    c.padded = true;
    c.seed = seed;
    const auto inputs = make_inputs(c);
    ASSERT_TRUE(inputs.ok());
    const Span& q = inputs->spans_q[0];
    if (q.length == c.seqlen_q || q.length == 0) continue;
    ++found;
    const std::int64_t padding = q.begin > 0 ? 0 : q.begin + q.length;
    expect_rejected({c}, with_damage([padding](const Arguments& a) {
                      store_element(a.out.dtype, a.out.data, padding * a.out.stride[2], 1e-3F);
                    }),
                    "rows without keys");
    expect_rejected({c}, with_damage([padding](const Arguments& a) {
                      static_cast<float*>(a.lse.data)[padding * a.lse.stride[2]] = -1e30F;
                    }),
                    "not -inf");
    expect_rejected(
        {c}, with_change([](Arguments& a, Options&) { a.seqlens_kv = a.leftpad_kv = nullptr; }),
        "not finite");
  }
  EXPECT_GT(found, 3);
}

TEST(PlantedFault, LseOfADeadRowIsNotItsSink) {
  Case c = dead_rows_case();
  c.sinks = true;
  expect_rejected(
      {c}, with_damage([](const Arguments& a) { static_cast<float*>(a.lse.data)[2] += 1e-3F; }),
      "not the sink");
}

// E4M3 weights where 16-bit ones were declared: the 16-bit gate must reject it.
TEST(PlantedFault, LowerPrecisionThanDeclared) {
  const Runner coarse = with_damage([](const Arguments& a) {
    std::vector<double> out(static_cast<std::size_t>(a.out.shape[0] * a.out.shape[1] *
                                                     a.out.shape[2] * a.out.shape[3]));
    TiledRounding rounding;
    rounding.p_format = DType::e4m3;
    rounding.p_scale = 256;
    ASSERT_TRUE(reference_tiled(a, {}, rounding, out.data()).ok());
    store_all(a.out, out);
  });
  expect_rejected({base_case()}, coarse, "16-bit gate, max");
  expect_rejected({base_case()}, coarse, "16-bit gate, rms");
}

// A kernel that keeps P in `p_format` and all else in fp32, as GPUs do, judged as a GPU's.
Result<CheckReport> check_as_gpu(const Case& c, DType p_format) {
  CheckOptions options;
  options.device.kind = Device::Kind::cuda;
  return check_cases(
      options, {c}, plain_runner([p_format](const Arguments& a, const Options& o) -> Status {
        if (Status status = library(a, o); !status.ok()) return status;
        std::vector<double> out(static_cast<std::size_t>(a.out.shape[0] * a.out.shape[1] *
                                                         a.out.shape[2] * a.out.shape[3]));
        TiledRounding rounding;
        rounding.p_format = p_format;
        if (p_format == DType::e4m3) rounding.p_scale = 256;
        const Status status = reference_tiled(a, o, rounding, out.data());
        if (status.ok()) store_all(a.out, out);
        return status;
      }));
}

TEST(PlantedFault, PIsRoundedOnAGpuButNotCoarserThanItsInputs) {
  for (const DType input : {DType::f16, DType::bf16})
    for (const DType out : {DType::f32, DType::f16, DType::bf16})
      for (const std::int64_t keys : {1, 3, 80}) {
        Case c = base_case();
        c.input = input;
        c.out = out;
        c.seqlen_kv = keys;
        const auto right = check_as_gpu(c, input);
        ASSERT_TRUE(right.ok()) << right.status().message();
        EXPECT_TRUE(right->passed()) << right->failures[0];
        if (keys == 1) continue;  // one key has all the weight, in any type
        const auto coarse = check_as_gpu(c, DType::e4m3);
        ASSERT_TRUE(coarse.ok()) << coarse.status().message();
        EXPECT_FALSE(coarse->passed()) << c.name();
      }
  // An output in f32 shows the rounding of P: f16 inputs with weights in bf16 are wrong.
  Case c = base_case();
  c.out = DType::f32;
  const auto report = check_as_gpu(c, DType::bf16);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_FALSE(report->passed());
}

TEST(PlantedFault, OracleThatDiffersFromTheCpu) {
  const auto with_error = [](double error) {
    const Oracle other = [error](const Arguments& a, const Options& mask,
                                 std::optional<DType> rounding,
                                 const std::vector<std::int64_t>* rows, double* out, double* lse) {
      Status status = cpu_oracle(a, mask, rounding, rows, out, lse);
      if (!rounding) out[17] += error;
      return status;
    };
    return check_cases({}, {base_case()}, library_runner({}), {other, "other"}).value();
  };
  const CheckReport good = with_error(1e-16);
  EXPECT_TRUE(good.passed()) << good.failures[0];
  EXPECT_EQ(good.oracle, "other");
  EXPECT_EQ(good.oracle_compared, 1);
  EXPECT_GT(good.oracle_difference, 0);
  const CheckReport bad = with_error(1e-9);
  ASSERT_FALSE(bad.passed());
  EXPECT_NE(bad.failures[0].find("oracle"), std::string::npos) << bad.failures[0];
}

TEST(PlantedFault, PrecisionIgnored) {
  for (const Precision precision : {Precision::fp8, Precision::int8_mixed, Precision::sim8}) {
    Case c = base_case();
    c.options.precision = precision;
    expect_rejected({c},
                    with_change([](Arguments&, Options& o) { o.precision = Precision::native; }),
                    "quantization alone");
  }
}

TEST(PlantedFault, CoarserScalesThanRequested) {
  Case c = base_case();
  c.options.precision = Precision::int8;
  expect_rejected(
      {c}, with_change([](Arguments&, Options& o) { o.quantization.qk = Granularity::tensor; }),
      "kernel error");
}

// 8-bit K and V with a 16-bit Q.
TEST(PlantedFault, DequantizedWithWrongScales) {
  for (const DType kv : {DType::e4m3, DType::e5m2, DType::int8})
    for (const bool of_k : {true, false}) {
      Case c = base_case();
      c.kv = kv;
      std::vector<float> others(static_cast<std::size_t>(c.batch * c.heads_kv));
      expect_rejected({c}, with_change([&](Arguments& a, Options&) {
                        Scales& scales = of_k ? a.k_scales : a.v_scales;
                        for (std::size_t i = 0; i < others.size(); ++i)
                          others[i] = 1.05f * scales.data[i];
                        scales.data = others.data();
                      }),
                      "kernel error");
    }
}

TEST(PlantedFault, WrongHeadMapping) {
  Case c = base_case();
  c.heads_q = 4;
  const Runner mixed_up = plain_runner([](const Arguments& arguments, const Options& options) {
    for (std::int64_t h = 0; h < arguments.q.shape[1]; ++h) {
      Arguments a = arguments;
      const auto one_head = [](auto& t, std::int64_t head) {
        using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(t.data)>>,
                                        const std::byte, std::byte>;
        t.data = static_cast<Byte*>(t.data) +
                 head * t.stride[1] * static_cast<std::int64_t>(size_bytes(t.dtype));
        t.shape[1] = 1;
      };
      one_head(a.q, h);
      one_head(a.out, h);
      one_head(a.lse, h);
      one_head(a.k, h % 2);  // interleaved; right is h / 2
      one_head(a.v, h % 2);
      if (Status status = library(a, options); !status.ok()) return status;
    }
    return Status();
  });
  expect_rejected({c}, mixed_up, "kernel error");
}

TEST(PlantedFault, ResultsThatDoNotRepeat) {
  int calls = 0;
  const Runner shaky = with_damage([&calls](const Arguments& a) {
    if (++calls % 2 == 0) static_cast<std::uint16_t*>(a.out.data)[7] ^= 1;
  });
  expect_rejected({base_case()}, shaky, "differ in their bits");
}

TEST(PlantedFault, BitThatChangesOnceInAHundredRuns) {
  int calls = 0;
  const Runner shaky = with_damage([&calls](const Arguments& a) {
    if (++calls == 90) static_cast<std::uint16_t*>(a.out.data)[7] ^= 1;
  });
  CheckOptions options;
  options.repeat = 100;
  const auto report = check_cases(options, {base_case()}, shaky);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->repeat, 100);
  ASSERT_EQ(report->failures.size(), 1U);
  EXPECT_NE(report->failures[0].find("run 90 "), std::string::npos) << report->failures[0];
}

}  // namespace
}  // namespace octavo::evidence
