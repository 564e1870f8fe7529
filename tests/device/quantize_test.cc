// SPDX-License-Identifier: Apache-2.0
// The quantizers produce the same bits as the CPU's quantize(): their source in the emulator, and
// their kernels on a GPU if there is one.
#include "numeric/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <vector>

#include "attention/operand.h"
#include "attention/sequence.h"
#include "config/v_layout.h"
#include "device/quantize_run.h"
#include "emulator/long.h"
#include "gpu/driver/context.h"
#include "numeric/formats.h"
#include "numeric/random.h"
#include "numeric/scale.h"

namespace octavo {
namespace {

using Given = test::QuantizeGiven;
using Left = test::QuantizeLeft;

struct Where {
  const char* name;
  Left (*run)(const Given&);
  bool needs_gpu;
  friend void PrintTo(const Where& where, std::ostream* out) { *out << where.name; }
};

class QuantizeBits : public testing::TestWithParam<Where> {
 protected:
  void SetUp() override {
    if (!GetParam().needs_gpu) return;
    const Result<const Gpu*> gpu = open_gpu(0);
    if (!gpu.ok()) GTEST_SKIP() << gpu.status().message();
    if ((*gpu)->info.arch < 89) GTEST_SKIP() << "FP8 needs sm_89";
  }
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

enum class Values { normal, zeros, constant, tiny, huge, not_finite };

float value_at(Values values, std::uint64_t stream, std::uint64_t i) {
  const float x = random_normal_value(7, stream, i);
  switch (values) {
    case Values::zeros:
      return i % 2 == 0 ? 0.0f : -0.0f;
    case Values::constant:
      return -2.5f;
    case Values::tiny:
      return x * 1e-39f;
    case Values::huge:
      return x * 8e37f;
    case Values::not_finite:
      return i % 37 == 0 ? kNan : i % 41 == 1 ? -kNan : i % 29 == 2 ? kInf : i % 31 ? x : -kInf;
    default:
      return i % 101 == 0 ? 30 * x : x;
  }
}

// A tensor in memory whose gaps hold NaN.
struct Source {
  std::vector<std::byte> memory;
  ConstTensor view;
};

Source make_source(DType dtype, std::array<std::int64_t, 4> shape,
                   std::array<std::int64_t, 4> stride, Values values, std::uint64_t stream) {
  Source s;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < 4; ++i) last += std::max<std::int64_t>(shape[i] - 1, 0) * stride[i];
  const auto count = static_cast<std::size_t>(last + 1);
  s.memory.resize(count * size_bytes(dtype) + 16);
  void* data = s.memory.data();
  data = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(data) + 15) / 16 * 16);
  for (std::size_t i = 0; i < count; ++i)
    store_element(dtype, data, static_cast<std::int64_t>(i), kNan);
  s.view = {data, dtype, shape, stride};
  std::uint64_t n = 0;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t r = 0; r < shape[2]; ++r)
        for (std::int64_t c = 0; c < shape[3]; ++c)
          store_element(dtype, data, b * stride[0] + h * stride[1] + r * stride[2] + c,
                        value_at(values, stream, n++));
  return s;
}

// An operand, or one sequence of it in a varlen batch.
struct Part {
  ConstTensor x;
  float max_quantized = 0;
  std::int64_t longest = 0;  // rows of the longest sequence
  bool varlen = false;
  std::int64_t sequence = 0, first_row = 0;
  std::optional<float> scale{};  // of the whole tensor
};

// The position of key `r` of a part in a column of the transposed V.
std::int64_t place_in_column(const Part& part, std::int64_t r) {
  int byte = 0;
  while (key_of_byte(byte / 4, byte % 4) != r % kKeyGroup) ++byte;
  const std::int64_t begin = part.varlen ? varlen_v_begin(static_cast<i32>(part.first_row),
                                                          static_cast<i32>(part.sequence))
                                         : 0;
  return begin + r / kKeyGroup * kKeyGroup + byte;
}

// Transposed INT8 values have their sign bit flipped.
std::uint8_t code_at(const Part& part, VLayout layout, const ConstTensor& codes, std::int64_t b,
                     std::int64_t h, std::int64_t r, std::int64_t c) {
  const auto* const bytes = static_cast<const std::uint8_t*>(codes.data);
  const std::int64_t head = b * codes.stride[0] + h * codes.stride[1];
  if (layout == VLayout::rows) return bytes[head + (part.first_row + r) * codes.stride[2] + c];
  const std::uint8_t byte = bytes[head + c * codes.stride[2] + place_in_column(part, r)];
  return codes.dtype == DType::int8 ? byte ^ 0x80 : byte;
}

// The last group of sixteen keys of a sequence is filled up with zeros.
void expect_filled_up(const Part& part, const ConstTensor& codes) {
  const auto [batch, heads, rows, columns] = part.x.shape;
  int wrong = 0;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t c = 0; c < columns; ++c)
        for (std::int64_t r = rows; r % kKeyGroup != 0; ++r)
          wrong += code_at(part, VLayout::transposed, codes, b, h, r, c) != 0;
  EXPECT_EQ(wrong, 0);
}

// Quantizes with a scale that was found over more than x.
void encode_rows(const ConstTensor& x, bool hadamard, DType format, float scale,
                 std::vector<std::uint8_t>& codes) {
  const auto [batch, heads, rows, columns] = x.shape;
  const float inverse = inverse_of_found(format, step_of(format, scale));
  std::vector<float> row(static_cast<std::size_t>(columns));
  auto code = codes.begin();
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t s = 0; s < rows; ++s) {
        load_row(x, b, h, s, row.data());
        RowTransform{nullptr, hadamard}.apply(row.data(), columns);
        for (const float value : row) *code++ = encode_8bit(format, value * inverse);
      }
}

// Compares with quantize(): every quantized value, and the scale of every element.
void compare(const Part& part, bool hadamard, const ConstTensor& codes, const Scales& scales,
             VLayout layout = VLayout::rows, bool smooth = false) {
  const ConstTensor& x = part.x;
  QuantizeOptions options;
  options.granularity = scales.granularity;
  options.block_rows = scales.block_rows;
  options.hadamard = hadamard;
  options.smooth = smooth;
  const auto [batch, heads, rows, columns] = x.shape;
  std::vector<float> mean(static_cast<std::size_t>(batch * heads * columns));
  std::vector<std::uint8_t> expected(static_cast<std::size_t>(batch * heads * rows * columns));
  std::vector<float> expected_scales(
      static_cast<std::size_t>(scale_count(x.shape, scales.granularity, scales.block_rows)),
      part.scale.value_or(0));
  if (part.scale) {
    encode_rows(x, hadamard, codes.dtype, *part.scale, expected);
  } else {
    const Status status =
        quantize_to(part.max_quantized, x, options,
                    Tensor::bhsd(expected.data(), codes.dtype, batch, heads, rows, columns),
                    expected_scales.data(), smooth ? mean.data() : nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  const bool by_token = part.varlen && scales.granularity == Granularity::row;
  const Scales contiguous{nullptr, scales.granularity, scales.block_rows, {}};
  const ScaleIndex cpu_at = scale_index(contiguous, x.shape);
  const ScaleIndex gpu_at =
      scale_index(contiguous, {1, heads, by_token ? codes.shape[2] : part.longest, columns});
  int wrong_codes = 0, wrong_scales = 0;
  std::size_t n = 0;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          wrong_codes += code_at(part, layout, codes, b, h, r, c) != expected[n++];
          const float scale = scales.data[by_token ? gpu_at.at(0, h, part.first_row + r, c)
                                                   : gpu_at.at(b + part.sequence, h, r, c)];
          wrong_scales += std::bit_cast<std::uint32_t>(scale) !=
                          std::bit_cast<std::uint32_t>(
                              expected_scales[static_cast<std::size_t>(cpu_at.at(b, h, r, c))]);
        }
  EXPECT_EQ(wrong_codes, 0);
  EXPECT_EQ(wrong_scales, 0);
}

struct Case {
  DType from = DType::f16;
  Precision precision = Precision::fp8;
  DType format = DType::e4m3;
  std::optional<Granularity> qk = Granularity::row;
  Granularity v = Granularity::channel;
  std::int64_t head_dim = 64;
  std::int64_t seqlen_q = 37, seqlen_kv = 70;
  Values values = Values::normal;
  bool hadamard = false, smooth = false;
  std::int64_t row_gap = 0;  // elements between rows
  bool broadcast = false;    // one head of K and V for all
  VLayout layout = VLayout::rows;
};

void check(const Where& where, const Case& c) {
  SCOPED_TRACE(testing::Message() << name(c.from) << " to " << name(c.format) << " by "
                                  << (c.qk ? name(*c.qk) : "default") << ", " << name(c.v) << " D="
                                  << c.head_dim << " Sq=" << c.seqlen_q << " Skv=" << c.seqlen_kv
                                  << " values=" << static_cast<int>(c.values)
                                  << " gap=" << c.row_gap);
  const auto source = [&](std::int64_t heads, std::int64_t len, std::uint64_t stream) {
    // (batch, rows, heads, columns) in memory
    const std::int64_t row = c.head_dim + c.row_gap;
    const bool shared = c.broadcast && stream > 0;
    return make_source(c.from, {2, heads, len, c.head_dim},
                       {len * heads * row, shared ? 0 : row, heads * row, 1}, c.values, stream);
  };
  const Source q = source(2, c.seqlen_q, 0), k = source(2, c.seqlen_kv, 1),
               v = source(2, c.seqlen_kv, 2);
  Given given;
  given.format = c.format;
  given.layout = c.layout;
  given.out.resize(static_cast<std::size_t>(4 * c.seqlen_q * c.head_dim * 2));
  given.arguments.q = q.view;
  given.arguments.k = k.view;
  given.arguments.v = v.view;
  given.arguments.out = Tensor::bhsd(given.out.data(), DType::f16, 2, 2, c.seqlen_q, c.head_dim);
  given.options.precision = c.precision;
  given.options.quantization.qk = c.qk;
  given.options.quantization.v = c.v;
  if (c.qk) given.options.quantization.block_rows = 33;
  given.options.quantization.hadamard = c.hadamard;
  given.options.quantization.smooth_k = c.smooth;
  const Left left = where.run(given);
  const Arguments& made = left.call.arguments;
  const OperandFormats formats =
      operand_formats(problem_of(given.arguments, given.options).value());
  compare({q.view, formats.q.max_quantized, c.seqlen_q}, c.hadamard, made.q, made.q_scales);
  compare({k.view, formats.k.max_quantized, c.seqlen_kv}, c.hadamard, made.k, made.k_scales,
          VLayout::rows, c.smooth);
  const Part values{v.view, formats.v.max_quantized, c.seqlen_kv};
  compare(values, false, made.v, made.v_scales, c.layout);
  if (c.layout == VLayout::transposed) expect_filled_up(values, made.v);
}

constexpr std::array kSources = {DType::f16, DType::bf16, DType::f32};
struct Mode {
  Precision precision;
  DType format;
};
constexpr std::array kModes = {Mode{Precision::fp8, DType::e4m3}, Mode{Precision::fp8, DType::e5m2},
                               Mode{Precision::int8, DType::int8},
                               Mode{Precision::sim8, DType::sim8}};
constexpr std::array kQk = {Granularity::row, Granularity::block, Granularity::head,
                            Granularity::tensor};
constexpr std::array kV = {Granularity::channel, Granularity::head, Granularity::tensor,
                           Granularity::channel};

TEST_P(QuantizeBits, EverySourceFormatAndGroup) {
  for (const DType from : kSources)
    for (const Mode& mode : kModes)
      for (std::size_t i = 0; i < kQk.size(); ++i)
        check(GetParam(), {.from = from,
                           .precision = mode.precision,
                           .format = mode.format,
                           .qk = kQk[i],
                           .v = kV[i]});
}

TEST_P(QuantizeBits, EveryKindOfValue) {
  for (const Values values :
       {Values::zeros, Values::constant, Values::tiny, Values::huge, Values::not_finite})
    for (const Mode& mode : kModes)
      for (std::size_t i = 0; i < kQk.size(); ++i)
        check(GetParam(), {.from = i % 2 == 0 ? DType::f32 : DType::bf16,
                           .precision = mode.precision,
                           .format = mode.format,
                           .qk = kQk[i],
                           .v = kV[i],
                           .seqlen_q = 5,
                           .seqlen_kv = 34,
                           .values = values});
}

// Rows at any alignment, with a number of columns that no vector divides: the emulator checks that
// nothing outside them is read.
TEST_P(QuantizeBits, OddColumnsAndGaps) {
  for (const DType from : kSources)
    for (const std::int64_t head_dim : {1, 5, 8, 40, 72, 100, 256})
      for (std::size_t i = 0; i < kQk.size(); ++i)
        check(GetParam(), {.from = from,
                           .qk = kQk[i],
                           .v = kV[i],
                           .head_dim = head_dim,
                           .seqlen_q = 6,
                           .seqlen_kv = 9,
                           .row_gap = 3});
}

TEST_P(QuantizeBits, BroadcastHead) {
  for (const DType from : kSources)
    check(GetParam(), {.from = from, .seqlen_q = 3, .seqlen_kv = 20, .broadcast = true});
}

// The forward kernel multiplies by the scales even if there are no keys.
TEST_P(QuantizeBits, ScalesAreWrittenWithoutKeys) {
  const Source q = make_source(DType::f16, {1, 2, 3, 64}, {384, 192, 64, 1}, Values::normal, 0);
  const Source k = make_source(DType::f16, {1, 2, 0, 64}, {0, 0, 64, 1}, Values::normal, 1);
  Given given;
  given.out.resize(2 * 3 * 64 * 2);
  given.arguments.q = q.view;
  given.arguments.k = given.arguments.v = k.view;
  given.arguments.out = Tensor::bhsd(given.out.data(), DType::f16, 1, 2, 3, 64);
  given.options.precision = Precision::int8;
  given.options.quantization.qk = Granularity::head;
  const Left left = GetParam().run(given);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(left.call.arguments.k_scales.data[i], 1.0f);
  for (int i = 0; i < 2 * 64; ++i) EXPECT_EQ(left.call.arguments.v_scales.data[i], 1.0f);
  // Without keys there are no blocks, so there is no scale of a block.
  given.options.quantization.qk.reset();
  const Left by_default = GetParam().run(given);
  for (int i = 0; i < 2 * 64; ++i) EXPECT_EQ(by_default.call.arguments.v_scales.data[i], 1.0f);
}

// More rows than a tile of the first pass has.
TEST_P(QuantizeBits, ManyTiles) {
  for (std::size_t i = 0; i < kQk.size(); ++i)
    check(GetParam(), {.precision = Precision::sim8,
                       .format = DType::sim8,
                       .qk = kQk[i],
                       .v = kV[i],
                       .seqlen_q = 700,
                       .seqlen_kv = 1100});
}

TEST_P(QuantizeBits, Rotated) {
  check(GetParam(), {.hadamard = true});
  check(GetParam(), {.head_dim = 40, .hadamard = true});
  check(GetParam(),
        {.from = DType::f32, .head_dim = 12, .seqlen_q = 4, .seqlen_kv = 5, .hadamard = true});
  check(GetParam(), {.precision = Precision::sim8,
                     .format = DType::sim8,
                     .qk = Granularity::head,
                     .v = Granularity::head,
                     .hadamard = true});
  check(GetParam(), {.from = DType::bf16,
                     .precision = Precision::int8,
                     .format = DType::int8,
                     .qk = Granularity::block,
                     .hadamard = true});
  check(GetParam(),
        {.from = DType::f32, .head_dim = 96, .seqlen_q = 9, .seqlen_kv = 5, .hadamard = true});
  check(GetParam(),
        {.from = DType::f32, .head_dim = 256, .seqlen_q = 9, .seqlen_kv = 5, .hadamard = true});
}

// Smoothed K: per row, block and head; with fewer rows than one group of the mean pass, and with
// many more than a CTA adds up.
TEST_P(QuantizeBits, Smoothed) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  for (const DType from : kSources)
    for (const std::int64_t head_dim : {64, 100})
      for (const std::int64_t seqlen_kv : {1, 64, 70, 1100}) {
        const auto with = [&](const Mode& mode, Granularity qk) {
          check(GetParam(), {.from = from,
                             .precision = mode.precision,
                             .format = mode.format,
                             .qk = qk,
                             .head_dim = head_dim,
                             .seqlen_q = 3,
                             .seqlen_kv = seqlen_kv,
                             .smooth = true,
                             .row_gap = head_dim == 100 ? 3 : 0});
        };
        with(kModes[0], Granularity::row);
        with(kModes[0], Granularity::head);
        if (head_dim != 64) continue;
        with(kModes[2], Granularity::block);
        with(kModes[3], Granularity::head);
      }
  for (const Values values :
       {Values::zeros, Values::constant, Values::tiny, Values::huge, Values::not_finite})
    check(GetParam(), {.from = DType::f32,
                       .qk = Granularity::head,
                       .seqlen_q = 3,
                       .seqlen_kv = 150,
                       .values = values,
                       .smooth = true});
  check(GetParam(), {.hadamard = true, .smooth = true});
}

TEST_P(QuantizeBits, Transposed) {
  constexpr auto kLayout = VLayout::transposed;
  for (const DType from : kSources)
    for (const Granularity v : {Granularity::channel, Granularity::head, Granularity::tensor})
      for (const std::int64_t head_dim : {8, 64, 100, 256})
        check(GetParam(), {.from = from,
                           .v = v,
                           .head_dim = head_dim,
                           .seqlen_q = 3,
                           .seqlen_kv = head_dim == 64 ? 300 : 41,
                           .row_gap = head_dim == 100 ? 3 : 0,
                           .layout = kLayout});
  check(GetParam(), {.seqlen_q = 3, .seqlen_kv = 20, .broadcast = true, .layout = kLayout});
  check(GetParam(), {.from = DType::f32,
                     .seqlen_q = 3,
                     .seqlen_kv = 16,
                     .values = Values::not_finite,
                     .layout = kLayout});
}

// The default scales: one launch for Q, K and V, and a second for V if no cluster holds it.
TEST_P(QuantizeBits, OneLaunchForAll) {
  struct Sizes {
    std::int64_t head_dim, seqlen_q, seqlen_kv;
  };
  for (const auto& [from, mode] :
       {std::pair{DType::f16, kModes[0]}, {DType::bf16, kModes[0]}, {DType::f16, kModes[2]}})
    for (const Sizes& sizes : {Sizes{64, 37, 300},
                               {64, 130, 1},
                               {40, 1, 1024},
                               {64, 7, 1100},
                               {128, 70, 129},
                               {256, 65, 140},
                               {200, 3, 1030}}) {
      // BF16 differs from FP16 in its loads only.
      if (from == DType::bf16 && sizes.seqlen_kv > 1000 && !test_long()) continue;
      check(GetParam(), {.from = from,
                         .precision = mode.precision,
                         .format = mode.format,
                         .qk = {},
                         .head_dim = sizes.head_dim,
                         .seqlen_q = sizes.seqlen_q,
                         .seqlen_kv = sizes.seqlen_kv,
                         .layout = VLayout::transposed});
    }
  for (const std::int64_t seqlen_kv : {130, 1100})
    for (const Values values :
         {Values::zeros, Values::constant, Values::tiny, Values::huge, Values::not_finite}) {
      if (seqlen_kv > 1000 && values != Values::not_finite && !test_long()) continue;
      check(GetParam(), {.from = DType::bf16,
                         .qk = {},
                         .seqlen_q = 70,
                         .seqlen_kv = seqlen_kv,
                         .values = values,
                         .row_gap = 8,
                         .broadcast = values == Values::constant,
                         .layout = VLayout::transposed});
    }
}

// The same with smoothed K, whose means are computed first: per head and per block, with and
// without `one_pass`.
TEST_P(QuantizeBits, OneLaunchForAllWithSmoothedK) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  for (const auto& [from, mode] :
       {std::pair{DType::f16, kModes[0]}, {DType::bf16, kModes[0]}, {DType::bf16, kModes[2]}})
    for (const auto& [head_dim, seqlen_kv] : {std::pair<std::int64_t, std::int64_t>{64, 300},
                                              {64, 1},
                                              {40, 1024},
                                              {64, 1100},
                                              {128, 129},
                                              {256, 140},
                                              {200, 1030}})
      for (const Values values : {Values::normal, Values::constant, Values::not_finite}) {
        if (values != Values::normal && (head_dim != 64 || from != DType::bf16)) continue;
        check(GetParam(), {.from = from,
                           .precision = mode.precision,
                           .format = mode.format,
                           .qk = {},
                           .head_dim = head_dim,
                           .seqlen_q = 37,
                           .seqlen_kv = seqlen_kv,
                           .values = values,
                           .smooth = true,
                           .layout = VLayout::transposed});
      }
}

// The caller's quantized values are transposed and not changed.
void codes_are_transposed(const Where& where, DType format) {
  SCOPED_TRACE(name(format));
  for (const std::int64_t head_dim : {16, 64, 72, 100, 128, 256})
    for (const std::int64_t gap : {0, 5}) {
      constexpr std::int64_t kBatch = 2, kHeads = 3, kRows = 150;
      const std::int64_t row = head_dim + gap;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(kBatch * kHeads * kRows * row) + 16);
      for (std::size_t i = 0; i < codes.size(); ++i)
        codes[i] = static_cast<std::uint8_t>(random_below(9, 1, i, 256));
      const auto begin = (reinterpret_cast<std::uintptr_t>(codes.data()) + 15) / 16 * 16;
      const ConstTensor v{reinterpret_cast<const void*>(begin),
                          format,
                          {kBatch, kHeads, kRows, head_dim},
                          {kHeads * kRows * row, kRows * row, row, 1}};
      const float one = 1;
      Given given;
      given.layout = VLayout::transposed;
      given.out.resize(static_cast<std::size_t>(kBatch * kHeads * kRows * head_dim * 2));
      Arguments& a = given.arguments;
      a.q = a.k = a.v = v;
      a.q_scales = a.k_scales = a.v_scales = {&one, Granularity::tensor, 64, {}};
      a.out = Tensor::bhsd(given.out.data(), DType::f16, kBatch, kHeads, kRows, head_dim);
      const Left left = where.run(given);
      const ConstTensor& made = left.call.arguments.v;
      ASSERT_NE(made.data, v.data);
      const Part part{v, 0, kRows};
      int wrong = 0;
      for (std::int64_t b = 0; b < kBatch; ++b)
        for (std::int64_t h = 0; h < kHeads; ++h)
          for (std::int64_t r = 0; r < kRows; ++r)
            for (std::int64_t c = 0; c < head_dim; ++c)
              wrong += code_at(part, VLayout::transposed, made, b, h, r, c) !=
                       code_at(part, VLayout::rows, v, b, h, r, c);
      EXPECT_EQ(wrong, 0) << head_dim << ", " << gap;
      expect_filled_up(part, made);
    }
}
TEST_P(QuantizeBits, TransposesQuantizedV) {
  for (const DType format : {DType::e4m3, DType::e5m2, DType::int8})
    codes_are_transposed(GetParam(), format);
}

// The caller's quantized K and V with a 16-bit Q: quantized value times step, rounded to Q's type.
void decoded_values(const Where& where, DType to, DType format, Granularity of_k, Granularity of_v,
                    std::int64_t head_dim, std::int64_t gap) {
  SCOPED_TRACE(testing::Message() << name(format) << " to " << name(to) << " by " << name(of_k)
                                  << ", " << name(of_v) << " D=" << head_dim << " gap=" << gap);
  constexpr std::int64_t kBatch = 2, kHeads = 3, kRows = 70, kBlockRows = 33;
  const std::int64_t row = head_dim + gap;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(kBatch * kHeads * kRows * row));
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<std::uint8_t>(random_below(9, 1, i, 256));
  const ConstTensor kv{codes.data(),
                       format,
                       {kBatch, kHeads, kRows, head_dim},
                       {kHeads * kRows * row, kRows * row, row, 1}};
  const Source q = make_source(to, kv.shape, kv.stride, Values::normal, 0);
  std::vector<float> steps(static_cast<std::size_t>(kBatch * kHeads * std::max(kRows, head_dim)));
  for (std::size_t i = 0; i < steps.size(); ++i)
    steps[i] = 0.01f + 0.001f * static_cast<float>(random_below(9, 2, i, 1000));
  Given given;
  given.out.resize(static_cast<std::size_t>(kBatch * kHeads * kRows * head_dim * 2));
  Arguments& a = given.arguments;
  a.q = q.view;
  a.k = a.v = kv;
  a.k_scales = {steps.data(), of_k, kBlockRows, {}};
  a.v_scales = {steps.data(), of_v, kBlockRows, {}};
  a.out = Tensor::bhsd(given.out.data(), to, kBatch, kHeads, kRows, head_dim);
  const Left left = where.run(given);
  EXPECT_EQ(left.call.count, 2U);
  EXPECT_EQ(left.call.arguments.q.data, a.q.data);
  const auto compare_values = [&](const ConstTensor& made, const Scales& scales) {
    EXPECT_EQ(made.dtype, to);
    const ScaleIndex at = scale_index(scales, kv.shape);
    int wrong = 0;
    for (std::int64_t b = 0; b < kBatch; ++b)
      for (std::int64_t h = 0; h < kHeads; ++h)
        for (std::int64_t r = 0; r < kRows; ++r)
          for (std::int64_t c = 0; c < head_dim; ++c) {
            const std::int64_t from = b * kv.stride[0] + h * kv.stride[1] + r * kv.stride[2] + c;
            std::uint16_t rounded = 0;
            store_element(to, &rounded, 0,
                          decode_8bit(format, codes[static_cast<std::size_t>(from)]) *
                              step_of(format, steps[static_cast<std::size_t>(at.at(b, h, r, c))]));
            const float wanted = load_element(to, &rounded, 0);
            const float found = load_element(
                to, made.data, b * made.stride[0] + h * made.stride[1] + r * made.stride[2] + c);
            wrong += std::isnan(wanted) ? !std::isnan(found)
                                        : std::bit_cast<std::uint32_t>(wanted) !=
                                              std::bit_cast<std::uint32_t>(found);
          }
    EXPECT_EQ(wrong, 0);
  };
  compare_values(left.call.arguments.k, a.k_scales);
  compare_values(left.call.arguments.v, a.v_scales);
}

TEST_P(QuantizeBits, DequantizesKAndVFor16BitQ) {
  for (const DType to : {DType::f16, DType::bf16})
    for (const DType format : {DType::e4m3, DType::e5m2, DType::int8, DType::sim8})
      for (std::size_t i = 0; i < kQk.size(); ++i)
        decoded_values(GetParam(), to, format, kQk[i], kV[i], i % 2 == 0 ? 64 : 100,
                       i % 2 == 0 ? 0 : 5);
  // V is not read along a row, so it may have a scale per row too.
  decoded_values(GetParam(), DType::f16, DType::e4m3, Granularity::channel, Granularity::row, 256,
                 0);
}

// Spans that are empty, run backwards, end outside or are longer than the maximum. Tokens of no
// sequence are far larger than the rest, and must not affect any scale.
void varlen_batches(const Where& where, VLayout layout) {
  constexpr std::int64_t kTokens = 90, kHeads = 2, kColumns = 64, kLongest = 40;
  const std::vector<std::int32_t> cu = {3, 10, 10, 75, 400, 70};
  for (const std::optional<Granularity> qk :
       {std::optional<Granularity>{}, {kQk[0]}, {kQk[1]}, {kQk[2]}, {kQk[3]}}) {
    SCOPED_TRACE(qk ? name(*qk) : "default");
    Source source = make_source(DType::bf16, {1, kHeads, kTokens, kColumns},
                                {0, kColumns, kHeads * kColumns, 1}, Values::normal, 4);
    Given given;
    given.out.resize(kTokens * kHeads * kColumns * 2);
    Arguments& a = given.arguments;
    a.q = a.k = a.v = source.view;
    a.out = Tensor::varlen(given.out.data(), DType::bf16, kTokens, kHeads, kColumns);
    a.cu_seqlens_q = a.cu_seqlens_kv = cu.data();
    a.sequences = static_cast<std::int64_t>(cu.size()) - 1;
    a.max_seqlen_q = a.max_seqlen_kv = kLongest;
    given.options.precision = Precision::fp8;
    given.options.quantization.qk = qk;
    if (qk) given.options.quantization.block_rows = 16;
    given.layout = layout;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      bool used = false;
      for (std::int64_t n = 0; n < a.sequences; ++n) {
        const Sequence s = sequence(a, n);
        used |= t >= s.q_begin && t < s.q_begin + s.seqlen_q;
      }
      for (std::int64_t i = 0; i < kHeads * kColumns && !used; ++i)
        store_element(DType::bf16, const_cast<void*>(source.view.data), t * kHeads * kColumns + i,
                      1e6f);
    }
    const Left left = where.run(given);
    const Arguments& made = left.call.arguments;
    const OperandFormats formats = operand_formats(problem_of(a, given.options).value());
    std::vector<Part> parts;
    for (std::int64_t n = 0; n < a.sequences; ++n) {
      const Sequence s = sequence(a, n);
      ConstTensor view = source.view;
      view.data = static_cast<const std::uint16_t*>(view.data) + s.q_begin * view.stride[2];
      view.shape[2] = s.seqlen_q;
      parts.push_back({view, formats.q.max_quantized, kLongest, true, n, s.q_begin, {}});
    }
    if (qk == Granularity::tensor) {
      // The largest of the sequences' own scales; an empty sequence would count as 1.
      float scale = 0;
      for (const Part& part : parts) {
        if (part.x.shape[2] == 0) continue;
        std::vector<std::uint8_t> codes(
            static_cast<std::size_t>(part.x.shape[2] * kHeads * kColumns));
        float own = 0;
        QuantizeOptions by_tensor;
        by_tensor.granularity = Granularity::tensor;
        ASSERT_TRUE(
            quantize_to(
                part.max_quantized, part.x, by_tensor,
                Tensor::bhsd(codes.data(), DType::e4m3, 1, kHeads, part.x.shape[2], kColumns), &own)
                .ok());
        scale = std::max(scale, own);
      }
      for (Part& part : parts) part.scale = scale;
    }
    for (Part& part : parts) {
      compare(part, false, made.q, made.q_scales);
      compare(part, false, made.k, made.k_scales);
      part.scale.reset();
      part.max_quantized = formats.v.max_quantized;
      compare(part, false, made.v, made.v_scales, layout);
      if (layout == VLayout::transposed) expect_filled_up(part, made.v);
    }
  }
}
TEST_P(QuantizeBits, VarlenBatches) { varlen_batches(GetParam(), VLayout::rows); }
TEST_P(QuantizeBits, VarlenBatchesTransposed) { varlen_batches(GetParam(), VLayout::transposed); }

TEST_P(QuantizeBits, PlainConversions) {
  constexpr std::int64_t kRows = 21, kColumns = 56;
  for (const DType from : kSources)
    for (const auto& [precision, to] :
         {std::pair{Precision::fp16, DType::f16}, {Precision::bf16, DType::bf16}}) {
      if (from == to) continue;
      SCOPED_TRACE(testing::Message() << name(from) << " to " << name(to));
      const Source x =
          make_source(from, {1, 1, kRows, kColumns}, {0, 0, kColumns + 8, 1}, Values::normal, 5);
      Given given;
      given.out.resize(kRows * kColumns * 2);
      Arguments& a = given.arguments;
      a.q = a.k = a.v = x.view;
      a.out = Tensor::bhsd(given.out.data(), to, 1, 1, kRows, kColumns);
      given.options.precision = precision;
      const Left left = GetParam().run(given);
      for (const ConstTensor* made :
           {&left.call.arguments.q, &left.call.arguments.k, &left.call.arguments.v}) {
        ASSERT_EQ(made->dtype, to);
        for (std::int64_t r = 0; r < kRows; ++r)
          for (std::int64_t c = 0; c < kColumns; ++c) {
            std::uint16_t expected = 0;
            store_element(to, &expected, 0,
                          load_element(from, x.view.data, r * x.view.stride[2] + c));
            ASSERT_EQ(static_cast<const std::uint16_t*>(made->data)[r * made->stride[2] + c],
                      expected);
          }
      }
    }
}

std::string name_of(const testing::TestParamInfo<Where>& info) { return info.param.name; }

#if defined(OCTAVO_HAS_EMULATOR)
INSTANTIATE_TEST_SUITE_P(Emulator, QuantizeBits,
                         testing::Values(Where{"emulator", &test::quantize_in_emulator, false}),
                         name_of);
#endif
INSTANTIATE_TEST_SUITE_P(Gpu, QuantizeBits,
                         testing::Values(Where{"gpu", &test::quantize_on_gpu, true}), name_of);

}  // namespace
}  // namespace octavo
