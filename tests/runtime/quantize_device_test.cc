// SPDX-License-Identifier: Apache-2.0
// quantize() on a device: its results have the bits of quantize() in host memory, and it writes
// nothing else.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

constexpr Device kOnCpu{Device::Kind::cpu, 0}, kOnHopper{Device::Kind::emulator, 90};
constexpr std::uint8_t kPoison = 0xa5;

std::vector<Device> devices_here() {
  std::vector<Device> here = {kOnCpu};
  for (const DeviceInfo& info : devices())
    if (info.available && info.device == kOnHopper) here.push_back(kOnHopper);
  return here;
}

struct TensorShape {
  std::int64_t batch, heads, rows, columns;
  std::int64_t count() const { return batch * heads * rows * columns; }
};

// Random 16-bit values, rows of all heads side by side: (batch, rows, heads, columns).
struct RandomValues {
  std::vector<std::uint16_t> data;
  Tensor view;
  explicit RandomValues(const TensorShape& s) : data(static_cast<std::size_t>(s.count())) {
    std::vector<float> wide(data.size());
    const Tensor from = Tensor::bshd(wide.data(), DType::f32, s.batch, s.heads, s.rows, s.columns);
    view = Tensor::bshd(data.data(), DType::f16, s.batch, s.heads, s.rows, s.columns);
    if (!random_normal(from, 7, 1).ok() || !convert(from, view).ok()) std::abort();
  }
};

// A quantized tensor and its scales between guard bytes.
struct QuantizedResults {
  std::vector<std::uint8_t> bytes;
  std::vector<float> scales, mean;
  Tensor view;

  QuantizedResults(const TensorShape& s, DType format, const QuantizeOptions& o,
                   std::int64_t scale_count, std::int64_t sequences = 0)
      : scales(static_cast<std::size_t>(scale_count) + 2, 7.0f),
        mean(static_cast<std::size_t>(std::max(s.batch, sequences) * s.heads * s.columns)) {
    const bool transposed = o.layout == VLayout::transposed;
    const std::int64_t keys = transposed_columns(s.rows, sequences);
    const std::int64_t count = transposed ? s.batch * s.heads * s.columns * keys : s.count();
    bytes.assign(static_cast<std::size_t>(count) + 64, kPoison);
    std::uint8_t* const first =
        bytes.data() + (32 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 16);
    view = transposed ? Tensor::bhsd(first, format, s.batch, s.heads, s.columns, keys)
                      : Tensor::bshd(first, format, s.batch, s.heads, s.rows, s.columns);
  }
  float* first_scale() { return scales.data() + 1; }
};

std::string text_of(DType format, const QuantizeOptions& o) {
  return std::string(name(format)) + " " + std::string(name(o.granularity)) + " " +
         std::string(name(o.layout)) + (o.smooth ? " smooth" : "") +
         (o.hadamard ? " hadamard" : "");
}

struct QuantizeWay {
  DType format;
  QuantizeOptions options;
};

std::vector<QuantizeWay> quantize_ways() {
  using enum Granularity;
  std::vector<QuantizeWay> all;
  for (const Granularity granularity : {tensor, head, block, row, channel})
    all.push_back({DType::e4m3, {.granularity = granularity}});
  all.push_back({DType::e5m2, {.granularity = head}});
  all.push_back({DType::int8, {.granularity = block, .block_rows = 16}});
  all.push_back({DType::sim8, {.granularity = head}});
  all.push_back({DType::e4m3, {.granularity = row, .hadamard = true}});
  all.push_back({DType::e4m3, {.granularity = head, .smooth = true}});
  all.push_back({DType::e4m3, {.granularity = channel, .layout = VLayout::transposed}});
  all.push_back({DType::int8, {.granularity = channel, .layout = VLayout::transposed}});
  all.push_back({DType::e4m3, {.granularity = row, .max_quantized = 30}});
  return all;
}

void expect_bits_of_the_host(const TensorShape& shape, const QuantizeWay& way, Device device) {
  SCOPED_TRACE(name(device) + " " + text_of(way.format, way.options));
  RandomValues x(shape);
  const QuantizeArguments sizes{.x = x.view};
  const std::int64_t count = scale_count(sizes, way.options);
  QuantizedResults wanted(shape, way.format, way.options, count);
  QuantizedResults found(shape, way.format, way.options, count);
  ASSERT_TRUE(
      quantize(x.view, way.options, wanted.view, wanted.first_scale(), wanted.mean.data()).ok());
  const Status status = quantize({.x = x.view,
                                  .quantized = found.view,
                                  .scales = found.first_scale(),
                                  .mean = found.mean.data()},
                                 way.options, device);
  ASSERT_TRUE(status.ok()) << status.what();
  EXPECT_EQ(found.bytes.size(), wanted.bytes.size());
  EXPECT_EQ(found.scales, wanted.scales);
  EXPECT_EQ(found.mean, wanted.mean);
  // The guard bytes on both sides among them; both vectors may be aligned differently.
  const auto* const from = static_cast<const std::uint8_t*>(found.view.data);
  const auto* const to = static_cast<const std::uint8_t*>(wanted.view.data);
  const auto inner = found.bytes.size() - 64;
  EXPECT_EQ(std::memcmp(from, to, inner), 0);
  for (int i = 1; i <= 16; ++i) EXPECT_EQ(from[-i], kPoison);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(from[inner + i], kPoison);
}

TEST(QuantizeOnDevice, BitsEqualTheHosts) {
  for (const Device device : devices_here())
    for (const QuantizeWay& way : quantize_ways())
      expect_bits_of_the_host({2, 3, 70, 64}, way, device);
}

// Lanes beyond head_dim must not write the next head's columns.
TEST(QuantizeOnDevice, NarrowHeadsSideBySide) {
  for (const Device device : devices_here())
    for (const Granularity granularity : {Granularity::head, Granularity::row})
      expect_bits_of_the_host({1, 2, 20, 40}, {DType::e4m3, {.granularity = granularity}}, device);
}

// Sequence by sequence, a varlen batch has the bits of tensors of their own.
TEST(QuantizeOnDevice, VarlenBatchIsQuantizedBySequence) {
  const std::vector<std::int32_t> starts = {0, 33, 33, 70};
  const TensorShape shape{1, 2, 75, 64};  // five tokens are of no sequence
  for (const Device device : devices_here())
    for (const QuantizeWay& way : quantize_ways()) {
      if (way.options.granularity == Granularity::tensor) continue;
      SCOPED_TRACE(name(device) + " " + text_of(way.format, way.options));
      RandomValues x(shape);
      QuantizeArguments a{
          .x = x.view, .cu_seqlens = starts.data(), .sequences = 3, .max_seqlen = 40};
      const std::int64_t count = scale_count(a, way.options);
      QuantizedResults found(shape, way.format, way.options, count, 3);
      a.quantized = found.view;
      a.scales = found.first_scale();
      a.mean = found.mean.data();
      const Status status = quantize(a, way.options, device);
      ASSERT_TRUE(status.ok()) << status.what();
      const bool transposed = way.options.layout == VLayout::transposed;
      const bool by_row = way.options.granularity == Granularity::row;
      const std::int64_t of_head = count / (by_row ? shape.heads : 3 * shape.heads);
      for (std::size_t n = 0; n < 3; ++n) {
        const std::int64_t begin = starts[n], rows = starts[n + 1] - begin;
        if (rows == 0) continue;
        const TensorShape one{1, shape.heads, rows, shape.columns};
        ConstTensor part = x.view;
        part.shape[2] = rows;
        part.data = x.data.data() + begin * part.stride[2];
        QuantizedResults wanted(
            one, way.format, way.options,
            scale_count(part.shape, way.options.granularity, way.options.block_rows));
        ASSERT_TRUE(
            quantize(part, way.options, wanted.view, wanted.first_scale(), wanted.mean.data())
                .ok());
        const std::int64_t scales =
            (static_cast<std::int64_t>(wanted.scales.size()) - 2) / shape.heads;
        for (std::int64_t h = 0; h < shape.heads; ++h) {
          const std::int64_t at = by_row
                                      ? h * of_head + begin
                                      : (static_cast<std::int64_t>(n) * shape.heads + h) * of_head;
          for (std::int64_t i = 0; i < scales; ++i)
            EXPECT_EQ(found.first_scale()[at + i], wanted.first_scale()[h * scales + i]);
          const std::int64_t lines = transposed ? shape.columns : rows;
          const std::int64_t bytes = transposed ? transposed_columns(rows) : shape.columns;
          for (std::int64_t line = 0; line < lines; ++line) {
            const auto* const ours =
                static_cast<const std::uint8_t*>(found.view.data) + h * found.view.stride[1] +
                (transposed ? line : begin + line) * found.view.stride[2] +
                (transposed ? transposed_begin(begin, static_cast<std::int64_t>(n)) : 0);
            const auto* const theirs = static_cast<const std::uint8_t*>(wanted.view.data) +
                                       h * wanted.view.stride[1] + line * wanted.view.stride[2];
            ASSERT_EQ(std::memcmp(ours, theirs, static_cast<std::size_t>(bytes)), 0)
                << "sequence " << n << " head " << h << " line " << line;
          }
        }
      }
    }
}

// The columns of a transposed varlen batch are more than those of a tensor of as many tokens: rows
// and other tensors must be apart by all of them.
TEST(QuantizeOnDevice, TransposedSequencesKeepApart) {
  constexpr std::int64_t kTokens = 40, kWide = 16, kSequences = 5;
  const std::int64_t columns = transposed_columns(kTokens, kSequences);
  ASSERT_GT(columns, transposed_columns(kTokens));
  RandomValues x({1, 1, kTokens, kWide});
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kWide * columns), kPoison);
  std::vector<float> scales(kSequences * kWide);
  const std::vector<std::int32_t> starts = {0, 3, 9, 20, 31, 40};
  const QuantizeOptions options{.granularity = Granularity::channel, .layout = VLayout::transposed};
  QuantizeArguments a{.x = x.view,
                      .quantized = Tensor::bhsd(bytes.data(), DType::e4m3, 1, 1, kWide, columns),
                      .scales = scales.data(),
                      .cu_seqlens = starts.data(),
                      .sequences = kSequences,
                      .max_seqlen = 11};
  for (const Device device : devices_here()) ASSERT_EQ(quantize(a, options, device).message(), "");
  std::fill(bytes.begin(), bytes.end(), kPoison);
  const auto is = [&](const QuantizeArguments& given, const std::string& sentence) {
    for (const Device device : devices_here())
      EXPECT_EQ(quantize(given, options, device).message(), sentence);
    for (const std::uint8_t byte : bytes) ASSERT_EQ(byte, kPoison);
  };
  QuantizeArguments close = a;
  close.quantized.stride[2] = transposed_columns(kTokens);
  is(close, "quantized.stride[2] is 48; supported: more than " + std::to_string(columns - 1) +
                ", so that no two elements share memory.");
  QuantizeArguments over = a;
  over.scales = reinterpret_cast<float*>(bytes.data() + bytes.size() - 64);
  is(over, "quantized is in memory that scales also covers; supported: memory apart from scales.");
  QuantizeArguments narrow = a;
  narrow.quantized.shape[3] = transposed_columns(kTokens);
  is(narrow, "quantized.shape is (1, 1, 16, 48); supported: (1, 1, 16, " + std::to_string(columns) +
                 "), those of x transposed.");
}

TEST(QuantizeOnDevice, OperandsNeedNoPassBeforeTheKernel) {
  const auto v = operand_quantization(Operand::v, Precision::fp8, 64, kOnCpu);
  ASSERT_TRUE(v.ok());
  EXPECT_EQ(v->format, DType::e4m3);
  EXPECT_EQ(v->options.granularity, Granularity::channel);
  EXPECT_EQ(v->options.layout, VLayout::rows);
  const auto q = operand_quantization(Operand::q, Precision::fp8, 64, kOnCpu);
  ASSERT_TRUE(q.ok());
  EXPECT_EQ(q->options.granularity, Granularity::row);
  EXPECT_EQ(q->options.max_quantized, 30.0f);
  const auto refused = operand_quantization(Operand::v, Precision::int8_mixed, 64, kOnCpu);
  EXPECT_EQ(refused.status().message(),
            "precision is int8_mixed; supported: fp8, fp8_fast, int8, sim8 for v.");
  if (devices_here().size() == 1) GTEST_SKIP() << "there is no emulator";
  EXPECT_EQ(operand_quantization(Operand::v, Precision::fp8, 64, kOnHopper)->options.layout,
            VLayout::transposed);
}

// attention() on operands that were quantized once has the bits of attention() that quantizes them.
TEST(QuantizeOnDevice, AttentionHasTheBitsOfQuantizingInTheCall) {
  if (devices_here().size() == 1) GTEST_SKIP() << "there is no emulator";
  const TensorShape shape{1, 2, 70, 64};
  const std::array<RandomValues, 3> x = {RandomValues(shape), RandomValues(shape),
                                         RandomValues(shape)};
  std::vector<std::uint16_t> out(x[0].data.size()), again(out.size());
  const auto view = [&shape](std::vector<std::uint16_t>& to) {
    return Tensor::bshd(to.data(), DType::f16, shape.batch, shape.heads, shape.rows, shape.columns);
  };
  Arguments a{.q = x[0].view, .k = x[1].view, .v = x[2].view, .out = view(out)};
  const Options options{.precision = Precision::fp8};
  Status status = attention(a, options, kOnHopper);
  ASSERT_TRUE(status.ok()) << status.what();
  std::vector<QuantizedResults> made;
  for (const Operand operand : {Operand::q, Operand::k, Operand::v}) {
    const auto how = operand_quantization(operand, Precision::fp8, shape.columns, kOnHopper);
    ASSERT_TRUE(how.ok());
    QuantizeArguments one{.x = x[static_cast<std::size_t>(operand)].view};
    QuantizedResults& to =
        made.emplace_back(shape, how->format, how->options, scale_count(one, how->options));
    one.quantized = to.view;
    one.scales = to.first_scale();
    status = quantize(one, how->options, kOnHopper);
    ASSERT_TRUE(status.ok()) << status.what();
    const Scales scales{to.first_scale(),
                        how->options.granularity,
                        how->options.block_rows,
                        {},
                        how->options.max_quantized};
    (operand == Operand::q ? a.q : operand == Operand::k ? a.k : a.v) = to.view;
    (operand == Operand::q ? a.q_scales : operand == Operand::k ? a.k_scales : a.v_scales) = scales;
    if (operand == Operand::v) a.v_layout = how->options.layout;
  }
  a.out = view(again);
  status = attention(a, options, kOnHopper);
  ASSERT_TRUE(status.ok()) << status.what();
  EXPECT_EQ(out, again);
}

TEST(QuantizeOnDevice, RefusalsSayWhatIsSupported) {
  const TensorShape shape{1, 2, 20, 64};
  RandomValues x(shape);
  const QuantizeOptions rows;
  QuantizedResults to(shape, DType::e4m3, rows, 2);
  const QuantizeArguments good{.x = x.view, .quantized = to.view, .scales = to.first_scale()};
  const std::vector<std::int32_t> starts = {0, 12, 9, 20};
  const auto refused = [](const QuantizeArguments& a, const QuantizeOptions& o, Device device,
                          const char* sentence) {
    EXPECT_EQ(quantize(a, o, device).message(), sentence);
  };
  QuantizeArguments varlen = good;
  varlen.cu_seqlens = starts.data();
  varlen.sequences = 3;
  varlen.max_seqlen = 20;
  QuantizeOptions by_tensor{.granularity = Granularity::tensor};
  refused(varlen, by_tensor, kOnCpu,
          "granularity is tensor; supported here: head, block, row, channel in a varlen batch.");
  std::vector<float> six(6);
  varlen.scales = six.data();
  refused(varlen, rows, kOnCpu,
          "cu_seqlens[2] is 9 after 12; supported: ascending numbers up to 20, at most 20 apart.");
  varlen.max_seqlen = 21;
  refused(varlen, rows, kOnCpu, "max_seqlen is 21; supported: 0 to 20, the tokens of x.");
  QuantizeArguments lost = good;
  lost.sequences = 2;
  refused(lost, rows, kOnCpu,
          "cu_seqlens is null; supported: the starts of the sequences of a varlen batch.");
  if (devices_here().size() == 1) return;
  refused(good, {.scales_given = true}, kOnHopper,
          "scales_given is true; supported here: false on a GPU.");
  refused(good, {.rule = ScaleRule::least_squares}, kOnHopper,
          "rule is least_squares; supported here: amax on a GPU.");
  TensorShape odd = shape;
  odd.columns = 60;
  RandomValues narrow(odd);
  QuantizedResults narrow_to(odd, DType::e4m3, rows, 2);
  refused({.x = narrow.view, .quantized = narrow_to.view, .scales = narrow_to.first_scale()}, rows,
          kOnHopper, "head_dim is 60; supported here: multiples of 8 up to 256 on a GPU.");
}

}  // namespace
}  // namespace octavo
