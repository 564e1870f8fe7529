// SPDX-License-Identifier: Apache-2.0
// 8-bit outputs and amax on every available device: the quantized values equal those of quantize()
// on the same device's f32 output, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "numeric/formats.h"
#include "octavo/emulator.hpp"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

constexpr std::int64_t kColumns = 64;
constexpr std::size_t kGuard = 64;  // bytes around what is written

struct Shape {
  std::int64_t batch = 1, heads_q = 2, heads_kv = 2, seqlen_q = 1, seqlen_kv = 1;
  std::vector<std::int32_t> cu_q{}, cu_kv{};  // of a varlen batch
  std::int64_t columns = kColumns;            // of rows that may have space for more
  std::int64_t sequences() const {
    return cu_q.empty() ? batch : static_cast<std::int64_t>(cu_q.size()) - 1;
  }
};

// A tensor between two guards.
struct Memory {
  std::vector<std::uint8_t> bytes;
  void* data = nullptr;
  void make(std::size_t size, std::uint8_t poison, std::size_t offset = 0) {
    bytes.assign(size + offset + 2 * kGuard, poison);
    data = bytes.data() + kGuard + offset;
  }
  std::size_t touched(std::uint8_t poison, std::size_t begin, std::size_t end) const {
    std::size_t touched = 0;
    for (std::size_t i = begin; i < end; ++i) touched += bytes[i] != poison ? 1 : 0;
    return touched;
  }
};

// 16-bit Q, K and V of a shape.
struct Inputs {
  std::vector<std::uint16_t> q, k, v;
  Arguments arguments;

  explicit Inputs(const Shape& s, DType dtype = DType::f16)
      : q(size(s.batch * s.heads_q * s.seqlen_q)),
        k(size(s.batch * s.heads_kv * s.seqlen_kv)),
        v(size(s.batch * s.heads_kv * s.seqlen_kv)) {
    const Tensor tq = Tensor::bshd(q.data(), dtype, s.batch, s.heads_q, s.seqlen_q, kColumns);
    const Tensor tk = Tensor::bshd(k.data(), dtype, s.batch, s.heads_kv, s.seqlen_kv, kColumns);
    const Tensor tv = Tensor::bshd(v.data(), dtype, s.batch, s.heads_kv, s.seqlen_kv, kColumns);
    EXPECT_TRUE(random_normal(tq, 5, 0).ok() && random_normal(tk, 5, 1).ok() &&
                random_normal(tv, 5, 2).ok());
    arguments.q = tq;
    arguments.k = tk;
    arguments.v = tv;
    for (ConstTensor* const t : {&arguments.q, &arguments.k, &arguments.v}) t->shape[3] = s.columns;
    if (s.cu_q.empty()) return;
    arguments.cu_seqlens_q = s.cu_q.data();
    arguments.cu_seqlens_kv = s.cu_kv.data();
    arguments.sequences = s.sequences();
    arguments.max_seqlen_q = s.seqlen_q;
    arguments.max_seqlen_kv = s.seqlen_kv;
  }
  static std::size_t size(std::int64_t rows) { return static_cast<std::size_t>(rows * kColumns); }
};

// The result of a run.
struct Result8 {
  Memory out, amax;
  Tensor view;
  std::vector<float> maxima() const {
    const auto* const first = static_cast<const float*>(amax.data);
    return {first, first + (amax.bytes.size() - 2 * kGuard) / sizeof(float)};
  }
};

// `scales`: empty for outputs that are not quantized, one for the tensor, or one per head.
Result8 run(const Inputs& in, const Shape& s, const Options& options, Device device, DType out,
            const std::vector<float>& scales, bool wants_amax, std::uint8_t poison = 0xFF,
            std::size_t offset = 0) {
  Result8 r;
  const std::size_t elements = Inputs::size(s.batch * s.heads_q * s.seqlen_q);
  r.out.make(elements * size_bytes(out), poison, offset);
  r.view = Tensor::bshd(r.out.data, out, s.batch, s.heads_q, s.seqlen_q, kColumns);
  r.view.shape[3] = s.columns;
  Arguments a = in.arguments;
  a.out = r.view;
  a.out_scales.data = scales.data();
  const bool of_heads = scales.size() > 1;
  a.out_scales.granularity = of_heads ? Granularity::head : Granularity::tensor;
  const std::size_t maxima = is_8bit(out) && of_heads ? scales.size() : 1;
  r.amax.make(maxima * sizeof(float), poison);
  if (wants_amax) a.out_amax = static_cast<float*>(r.amax.data);
  const Status status = attention_from_host(a, options, device);
  EXPECT_EQ(status.message(), "");
  const std::size_t written = kGuard + offset, end = written + elements * size_bytes(out);
  EXPECT_EQ(r.out.touched(poison, 0, written) + r.out.touched(poison, end, r.out.bytes.size()), 0U);
  EXPECT_EQ(r.amax.touched(poison, 0, kGuard), 0U);
  EXPECT_EQ(r.amax.touched(poison, kGuard + maxima * sizeof(float), r.amax.bytes.size()), 0U);
  if (!wants_amax) {
    EXPECT_EQ(r.amax.touched(poison, 0, r.amax.bytes.size()), 0U);
  }
  return r;
}

// The rows of one sequence.
Tensor rows_of(Tensor t, const Shape& s, std::int64_t sequence) {
  std::int64_t offset = sequence * t.stride[0];
  std::int64_t rows = t.shape[2];
  if (!s.cu_q.empty()) {
    const auto at = static_cast<std::size_t>(sequence);
    offset = s.cu_q[at] * t.stride[2];
    rows = s.cu_q[at + 1] - s.cu_q[at];
  }
  t.data = static_cast<std::uint8_t*>(t.data) + offset * static_cast<int>(size_bytes(t.dtype));
  t.shape[0] = 1;
  t.shape[2] = rows;
  return t;
}

// quantize() of f32 outputs, into memory with the same poison.
std::vector<std::uint8_t> quantized(const Result8& wide, const Shape& s, DType out,
                                    const std::vector<float>& scales, std::uint8_t poison = 0xFF) {
  Memory codes;
  codes.make(Inputs::size(s.batch * s.heads_q * s.seqlen_q), poison);
  Tensor view = wide.view;
  view.data = codes.data;
  view.dtype = out;
  for (std::int64_t b = 0; b < s.sequences(); ++b) {
    QuantizeOptions options;
    options.scales_given = true;
    options.granularity = scales.size() > 1 ? Granularity::head : Granularity::tensor;
    std::vector<float> given = scales;
    if (scales.size() > 1) given.assign(scales.begin() + b * s.heads_q, scales.end());
    EXPECT_TRUE(
        quantize(rows_of(wide.view, s, b), options, rows_of(view, s, b), given.data()).ok());
  }
  return codes.bytes;
}

// The largest finite magnitude of all, or of each head.
std::vector<float> largest_of(const Result8& wide, const Shape& s, bool of_heads) {
  std::vector<float> maxima(of_heads ? static_cast<std::size_t>(s.sequences() * s.heads_q) : 1);
  for (std::int64_t b = 0; b < s.sequences(); ++b) {
    const Tensor rows = rows_of(wide.view, s, b);
    for (std::int64_t h = 0; h < s.heads_q; ++h)
      for (std::int64_t i = 0; i < rows.shape[2]; ++i)
        for (std::int64_t c = 0; c < s.columns; ++c) {
          const float x = std::abs(
              static_cast<const float*>(rows.data)[h * rows.stride[1] + i * rows.stride[2] + c]);
          float& most = maxima[of_heads ? static_cast<std::size_t>(b * s.heads_q + h) : 0];
          if (std::isfinite(x)) most = std::max(most, x);
        }
  }
  return maxima;
}

// Some of these saturate the largest values.
std::vector<float> scales_for(DType out, std::int64_t count) {
  std::vector<float> scales(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] = (0.3f + 0.45f * static_cast<float>(i % 3)) / largest(out);
  return scales;
}

struct Where {
  Device device;
  const char* name;
};
class Outputs : public testing::TestWithParam<Where> {
 protected:
  void SetUp() override {
    if (GetParam().device.kind == Device::Kind::emulator && !has_emulator())
      GTEST_SKIP() << "built without the emulator";
  }
  Device device() const { return GetParam().device; }

  // Compares quantized values and amax with the f32 output of the same inputs, whatever the memory
  // held before.
  void expect_codes(const Inputs& in, const Shape& s, const Options& options, DType out,
                    bool of_heads, bool wants_amax = true) {
    SCOPED_TRACE(std::string(name(out)) + (of_heads ? " heads" : " tensor"));
    const std::vector<float> scales = scales_for(out, of_heads ? s.sequences() * s.heads_q : 1);
    const Result8 wide = run(in, s, options, device(), DType::f32, {}, false);
    for (const std::uint8_t poison : {std::uint8_t{0xFF}, std::uint8_t{0x35}}) {
      const Result8 made = run(in, s, options, device(), out, scales, wants_amax, poison);
      EXPECT_TRUE(made.out.bytes == quantized(wide, s, out, scales, poison));
      if (wants_amax) {
        EXPECT_EQ(made.maxima(), largest_of(wide, s, of_heads));
      }
    }
  }
};

TEST_P(Outputs, EqualQuantizeOfTheF32Output) {
  const Shape s{2, 2, 2, 70, 150};
  const Inputs in(s);
  for (const bool of_heads : {false, true}) expect_codes(in, s, {}, DType::e4m3, of_heads);
  if (device().kind == Device::Kind::cpu)
    for (const DType out : {DType::e5m2, DType::int8}) expect_codes(in, s, {}, out, true);
}

TEST_P(Outputs, ManyRowsAndFew) {
  Options causal;
  causal.causal = Causal::bottom_right;
  for (const Shape& s : {Shape{1, 4, 2, 5, 300}, Shape{1, 2, 1, 260, 130}})
    expect_codes(Inputs(s), s, causal, DType::e4m3, true);  // some of the rows see no key
}

// In the first sequence's first tile, some rows belong to the last sequence, whose scores are so
// peaked that its outputs are larger.
TEST_P(Outputs, VarlenSequencesHaveTheirOwnAmax) {
  Shape s{1, 2, 2, 150, 90};
  s.cu_q = {0, 70, 70, 100, 150};
  s.cu_kv = {0, 20, 40, 40, 90};  // one without queries, one without keys
  Inputs in(s);
  constexpr float kSharp = 8;
  for (std::size_t i = Inputs::size(70 * 2); i < in.q.size(); ++i)
    in.q[i] = f16_from_f32(kSharp * f32_from_f16(in.q[i]));
  expect_codes(in, s, {}, DType::e4m3, true);
  expect_codes(in, s, {}, DType::e4m3, false);
}

// A tile has more rows than the problem; those would see a key that no row sees.
TEST_P(Outputs, PaddingRowsDoNotCount) {
  const Shape s{1, 2, 2, 5, 40};
  Inputs in(s);
  constexpr std::uint16_t kLarge = 0x5640;  // 100
  std::fill_n(in.v.begin() + 30 * 2 * kColumns, 2 * kColumns, kLarge);
  Options causal;
  causal.causal = Causal::top_left;
  expect_codes(in, s, causal, DType::e4m3, true);
}

// Non-finite outputs have no magnitude, and do not affect amax.
TEST_P(Outputs, NonFiniteValuesDoNotCount) {
  const Shape s{1, 2, 2, 40, 60};
  Inputs in(s);
  constexpr std::uint16_t kNan = 0x7E00, kMinusInfinity = 0xFC00;
  in.q[3 * 2 * kColumns] = kNan;                           // row 3 of the first head
  in.v[7 * 2 * kColumns + kColumns + 5] = kMinusInfinity;  // a column of the second
  const Result8 wide = run(in, s, {}, device(), DType::f32, {}, false);
  const auto* const x = static_cast<const float*>(wide.view.data);
  ASSERT_TRUE(std::isnan(x[3 * 2 * kColumns]));
  ASSERT_FALSE(std::isfinite(x[kColumns + 5]));
  expect_codes(in, s, {}, DType::e4m3, true);
  expect_codes(in, s, {}, DType::e4m3, false);
}

TEST_P(Outputs, AmaxOfWideOutputs) {
  const Shape s{2, 2, 2, 70, 150};
  const Inputs in(s);
  const Result8 wide = run(in, s, {}, device(), DType::f32, {}, false);
  const Result8 made = run(in, s, {}, device(), DType::f16, {}, true);
  EXPECT_EQ(made.maxima(), largest_of(wide, s, false));
}

TEST_P(Outputs, WithoutKeysOrRows) {
  for (const Shape& s : {Shape{1, 2, 2, 9, 0}, Shape{1, 2, 2, 0, 9}, Shape{0, 2, 2, 9, 9}}) {
    const Inputs in(s);
    const std::vector<float> one = {0.5f};
    const Result8 made = run(in, s, {}, device(), DType::e4m3, one, true);
    EXPECT_EQ(made.maxima(), std::vector<float>{0.0f});
    EXPECT_EQ(made.out.touched(0x00, kGuard, made.out.bytes.size() - kGuard), 0U);
  }
}

// The alignment allows no wide store, and no Hopper kernel.
TEST_P(Outputs, AnOddAddressGivesTheSameOutput) {
  const Shape s{1, 2, 2, 33, 40};
  const Inputs in(s);
  const std::vector<float> scales = scales_for(DType::e4m3, 2);
  const Result8 straight = run(in, s, {}, device(), DType::e4m3, scales, true);
  const Result8 odd = run(in, s, {}, device(), DType::e4m3, scales, true, 0xFF, 1);
  const auto* const a = static_cast<const std::uint8_t*>(straight.view.data);
  const auto* const b = static_cast<const std::uint8_t*>(odd.view.data);
  std::size_t far = 0;
  // Another kernel may round differently, by one quantized value.
  for (std::size_t i = 0; i < Inputs::size(s.heads_q * s.seqlen_q); ++i)
    far += std::abs((a[i] & 0x7F) - (b[i] & 0x7F)) > 1 ? 1 : 0;
  EXPECT_EQ(far, 0U);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(straight.maxima()[i], odd.maxima()[i], 1e-3);
}

// 8-bit inputs and outputs: the kernel's columns alternate there. Hopper's f32 kernel sums in
// another order, and its quantized values may differ by one.
TEST_P(Outputs, EightBitInputs) {
  Shape s{2, 2, 2, 70, 150};
  const bool hopper = device().index == 90;
  for (const auto& [format, out] :
       {std::pair{DType::e4m3, hopper ? DType::e4m3 : DType::int8}, {DType::sim8, DType::e5m2}}) {
    if (hopper && format == DType::sim8) continue;
    // A kernel computes padding columns, which are not 0 in sim8.
    if (format == DType::sim8) s.columns = 48;
    std::vector<std::uint8_t> codes[3];
    std::vector<float> scales_in[3];
    Inputs in(s);
    Arguments& a = in.arguments;
    ConstTensor* const tensors[] = {&a.q, &a.k, &a.v};
    Scales* const views[] = {&a.q_scales, &a.k_scales, &a.v_scales};
    for (std::size_t i = 0; i < 3; ++i) {
      codes[i].resize(Inputs::size(s.batch * 2 * tensors[i]->shape[2]));
      scales_in[i].resize(4);
      Tensor coded{codes[i].data(), format, tensors[i]->shape, tensors[i]->stride};
      ASSERT_TRUE(quantize(*tensors[i], {}, coded, scales_in[i].data()).ok());
      *tensors[i] = coded;
      *views[i] = {scales_in[i].data(), Granularity::head};
    }
    if (!hopper) {
      expect_codes(in, s, {}, out, true);
      continue;
    }
    const std::vector<float> scales(4, 0.01f);
    const Result8 wide = run(in, s, {}, device(), DType::f32, {}, false);
    const Result8 made = run(in, s, {}, device(), out, scales, true);
    const std::vector<std::uint8_t> wanted = quantized(wide, s, out, scales);
    std::size_t other = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LE(std::abs((wanted[i] & 0x7F) - (made.out.bytes[i] & 0x7F)), 1);
      other += wanted[i] != made.out.bytes[i] ? 1 : 0;
    }
    EXPECT_LT(other, wanted.size() / 20);
    // The largest output becomes the largest quantized value of its head.
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 2; ++h) {
        int most = 0;
        for (std::int64_t i = 0; i < s.seqlen_q * kColumns; ++i)
          most = std::max(most,
                          static_cast<const std::uint8_t*>(
                              made.view.data)[b * made.view.stride[0] + h * made.view.stride[1] +
                                              i / kColumns * made.view.stride[2] + i % kColumns] &
                              0x7F);
        EXPECT_EQ(e4m3_from_f32(made.maxima()[static_cast<std::size_t>(b * 2 + h)] * (1 / 0.01f)),
                  most);
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Outputs,
                         testing::Values(Where{{Device::Kind::cpu, 0}, "cpu"},
                                         Where{{Device::Kind::emulator, 0}, "sm89"},
                                         Where{{Device::Kind::emulator, 90}, "sm90"}),
                         [](const auto& where) { return where.param.name; });

// Kernels that the emulator has only with other outputs.
TEST(OutputsOnHopper, OtherFormatsEqualTheQuantizedFp32Output) {
  if (!has_emulator()) GTEST_SKIP() << "built without the emulator";
  constexpr Device kSm90{Device::Kind::emulator, 90};
  const Shape shape{1, 2, 2, 60, 500};
  for (const DType out : {DType::e5m2, DType::int8}) {
    const Inputs in(shape);
    const std::vector<float> scales = scales_for(out, shape.heads_q);
    const Result8 wide = run(in, shape, {}, kSm90, DType::f32, {}, false);
    const Result8 made = run(in, shape, {}, kSm90, out, scales, false);
    EXPECT_TRUE(made.out.bytes == quantized(wide, shape, out, scales)) << name(out);
  }
}

// Scales may have any strides: every other float, heads before sequences.
TEST(OutputScales, MayHaveStrides) {
  const Shape s{2, 3, 3, 7, 9};
  const Inputs in(s);
  const std::vector<float> scales = scales_for(DType::int8, 6);
  const Result8 contiguous = run(in, s, {}, {}, DType::int8, scales, false);
  std::vector<float> spread(12, std::numeric_limits<float>::max());
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t h = 0; h < 3; ++h) spread[h * 4 + b * 2] = scales[b * 3 + h];
  Memory out;
  out.make(Inputs::size(2 * 3 * 7), 0xFF);
  Arguments a = in.arguments;
  a.out = contiguous.view;
  a.out.data = out.data;
  a.out_scales = {spread.data(), Granularity::head, 64, std::array<std::int64_t, 3>{2, 4, 0}};
  ASSERT_EQ(attention(a).message(), "");
  EXPECT_TRUE(out.bytes == contiguous.out.bytes);
}

TEST(OutputScales, InvalidScalesAreRefused) {
  const Shape s{1, 2, 2, 7, 9};
  const Inputs in(s);
  std::vector<float> scales = {1.0f, 0.0f};
  Memory out;
  out.make(Inputs::size(2 * 7), 0xFF);
  Arguments a = in.arguments;
  a.out = Tensor::bshd(out.data, DType::int8, 1, 2, 7, kColumns);
  a.out_scales = {scales.data(), Granularity::head};
  EXPECT_EQ(attention(a).message(), "out_scales.data[1] is 0; supported: positive finite numbers.");
  EXPECT_EQ(out.touched(0xFF, 0, out.bytes.size()), 0U);
}

TEST(OutputScales, ArePartOfAPlan) {
  const Shape s{1, 2, 2, 7, 9};
  const Inputs in(s);
  const std::vector<float> scales = {1.0f, 2.0f};
  std::vector<float> amax(2);
  Memory out;
  out.make(Inputs::size(2 * 7), 0xFF);
  Arguments a = in.arguments;
  a.out = Tensor::bshd(out.data, DType::int8, 1, 2, 7, kColumns);
  a.out_scales = {scales.data(), Granularity::tensor};
  const Problem problem = *problem_of(a);
  EXPECT_EQ(describe(problem), "B=1 Hq=2 Hkv=2 Sq=7 Skv=9 D=64 f16->int8");
  const Plan made = *plan(problem);
  Arguments other = a;
  other.out_scales.granularity = Granularity::head;
  EXPECT_EQ(made.run(other).message(),
            "out_scales is head; supported: tensor, for which the plan was made.");
  other = a;
  other.out_amax = amax.data();
  EXPECT_EQ(made.run(other).message(),
            "out_amax is given; supported: absent, for which the plan was made.");
  other.out_scales.granularity = Granularity::head;
  EXPECT_EQ(describe(*problem_of(other)),
            "B=1 Hq=2 Hkv=2 Sq=7 Skv=9 D=64 f16->int8 out_scales=head out_amax");
  EXPECT_EQ(out.touched(0xFF, 0, out.bytes.size()), 0U);
}

}  // namespace
}  // namespace octavo
