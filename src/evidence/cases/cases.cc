// SPDX-License-Identifier: Apache-2.0
// Builds cases from axis values, and suites from cases.
#include "evidence/cases/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "evidence/cases/block_mask_cases.h"
#include "evidence/cases/decode_cases.h"
#include "evidence/cases/draw.h"
#include "numeric/formats.h"
#include "numeric/random.h"
#include "octavo/evidence.hpp"

namespace octavo::evidence {
namespace {

constexpr std::array kWide = {DType::f32, DType::f16, DType::bf16};
constexpr int kWideFormats = 3 * static_cast<int>(kAllPrecisions.size());

void set_format(Case& c, int value, Draw& draw) {
  constexpr std::array kNarrow = {DType::e4m3, DType::e5m2, DType::int8, DType::sim8};
  const bool wide = value < kWideFormats;
  if (wide) {
    c.input = kWide[static_cast<std::size_t>(value) / kAllPrecisions.size()];
    c.options.precision = kAllPrecisions[static_cast<std::size_t>(value) % kAllPrecisions.size()];
  } else {
    c.input = kNarrow[static_cast<std::size_t>(value - kWideFormats)];
  }
  c.out = wide && !draw.one_in(3) ? c.input : draw.of(kWide);
  if (!wide) {
    c.qk_scales = draw.of(kAllGranularities);
    c.v_scales = draw.of(kAllGranularities);
  }
}

bool is_8bit_mode(Precision precision) { return precision >= Precision::fp8; }

// Octavo's own quantization: the defaults half of the time, so that they stay the best tested.
void set_quantization(Case& c, Draw& draw) {
  constexpr std::array<std::int64_t, 4> kBlockRows = {16, 33, 64, 128};
  Quantization& quantization = c.options.quantization;
  quantization.block_rows = 64;
  if (is_8bit(c.input)) quantization.block_rows = draw.of(kBlockRows);
  if (!is_8bit_mode(c.options.precision) || draw.one_in(2)) return;
  if (!draw.one_in(3)) quantization.qk = draw.of(kAllGranularities);
  if (!draw.one_in(3)) quantization.v = draw.of(kAllGranularities);
  quantization.block_rows = draw.of(kBlockRows);
  if (draw.one_in(4)) quantization.rule = ScaleRule::least_squares;
  // One call of quantize() cannot produce one scale for a varlen batch if it subtracts a mean from
  // each sequence. The judge would need a quantizer of its own for this corner case.
  const bool one_scale = quantization.qk == Granularity::tensor;
  quantization.smooth_k = draw.one_in(3) && !(c.layout == Layout::varlen && one_scale);
  quantization.hadamard = draw.one_in(3);
}

void set_heads(Case& c, int ratio, Draw& draw) {
  constexpr std::array<std::int64_t, 3> kRatios = {1, 2, 4};
  c.heads_kv = ratio == 3 ? 1 : ratio == 0 ? draw.between(1, 3) : draw.between(2, 2);
  c.heads_q =
      ratio == 3 ? draw.between(2, 6) : c.heads_kv * kRatios[static_cast<std::size_t>(ratio)];
}

constexpr std::array<std::int64_t, 5> kAligned = {16, 32, 64, 96, 128};

void set_lengths(Case& c, int length, Draw& draw) {
  const auto ragged = [&draw] {
    const std::int64_t n = draw.of(kAligned);
    return n + (draw.one_in(2) ? 1 : draw.between(1, 15));
  };
  c.batch = length == 7 ? 1 : draw.between(1, 3);
  switch (length) {
    case 0:
      c.seqlen_q = c.seqlen_kv = 1;
      break;
    case 1:
      c.seqlen_q = c.seqlen_kv = draw.between(2, 15);
      break;
    case 2:
      c.seqlen_q = c.seqlen_kv = draw.of(kAligned);
      break;
    case 3:
      c.seqlen_q = c.seqlen_kv = ragged();
      break;
    case 4:
      c.seqlen_q = draw.one_in(4) ? 1 : draw.between(2, 70);
      c.seqlen_kv = c.seqlen_q + draw.between(1, 130);
      break;
    case 5:
      c.seqlen_kv = draw.between(1, 70);
      c.seqlen_q = c.seqlen_kv + draw.between(1, 130);
      break;
    case 6:
      c.seqlen_q = draw.between(1, 40);
      c.seqlen_kv = 0;
      break;
    default:
      c.seqlen_q = c.seqlen_kv = draw.between(300, 340);
      break;
  }
}

void set_mask(Case& c, int mask, Draw& draw) {
  constexpr std::array kCausal = {Causal::none, Causal::top_left, Causal::bottom_right,
                                  Causal::none, Causal::top_left, Causal::bottom_right};
  c.options.causal = kCausal[static_cast<std::size_t>(mask)];
  if (mask < 3) return;
  const std::int64_t widest = std::max<std::int64_t>(c.seqlen_kv, 2);
  c.options.window_left = draw.between(0, widest);
  if (mask != 3) return;  // causal already ends at the diagonal
  c.options.window_right = draw.between(0, widest);
  if (draw.one_in(3)) (draw.one_in(2) ? c.options.window_left : c.options.window_right) = -1;
}

enum Modifier : int {
  kSoftcap = 1,
  kBias = 2,
  kMaskTensor = 4,
  kAlibi = 8,
  kSinks = 16,
  kPadding = 32,
  kAllModifiers = 63
};

// The modifiers of an axis value. Every pair of modifiers occurs in one of the triples.
int modifiers_of(int value, Draw& draw) {
  constexpr std::array kTriples = {kSoftcap | kBias | kMaskTensor, kSoftcap | kBias | kAlibi,
                                   kSoftcap | kSinks | kPadding,   kBias | kSinks | kPadding,
                                   kMaskTensor | kAlibi | kSinks,  kMaskTensor | kAlibi | kPadding};
  if (value == 0) return 0;
  if (value <= static_cast<int>(kTriples.size()))
    return kTriples[static_cast<std::size_t>(value) - 1];
  return value == 8 ? int{kAllModifiers} : 1 << draw.between(0, 5);
}

// Call last: leaves out the modifiers that the case does not allow.
void set_modifiers(Case& c, int value, Draw& draw) {
  int chosen = modifiers_of(value, draw);
  const bool in_8_bits = is_8bit(c.input) || is_8bit(c.k_type()) || is_8bit(c.v_type()) ||
                         c.options.precision > Precision::bf16;
  if (c.layout == Layout::varlen) chosen &= ~(kBias | kMaskTensor | kPadding);
  if (in_8_bits || c.sampled_rows > 0) chosen &= ~kPadding;
  // Smoothing shifts the scores of a row, which changes the result with a softcap, and which the
  // judge does not take into account for sinks.
  if (c.options.quantization.smooth_k) chosen &= ~(kSoftcap | kSinks);
  if ((chosen & kSoftcap) != 0) c.options.softcap = draw.of(std::array{0.75F, 4.0F, 30.0F});
  if ((chosen & kBias) != 0) c.bias = draw.of(kWide);
  c.mask = (chosen & kMaskTensor) != 0;
  c.alibi = (chosen & kAlibi) != 0;
  c.sinks = (chosen & kSinks) != 0;
  c.padded = (chosen & kPadding) != 0;
}

// One case in kSomeV has another number of columns of V. Backends that support this only in 16 bits
// drop the other cases.
constexpr int kSomeV = 8;
void set_head_dim_v(Case& c, Draw& draw) {
  const std::int64_t columns = draw.of(kHeadDims);
  if (columns != c.head_dim) c.head_dim_v = columns;
}

std::string_view layout_name(Layout layout) {
  constexpr std::array<std::string_view, 5> kNames = {"bhsd", "bshd", "gaps", "varlen",
                                                      "aligned_gaps"};
  return kNames[static_cast<std::size_t>(layout)];
}

std::string_view key_lengths_name(KeyLengths lengths) {
  constexpr std::array<std::string_view, kKeyLengths> kNames = {
      "none", "one", "page-1", "page", "page+1", "longest", "mixed"};
  return kNames[static_cast<std::size_t>(lengths)];
}

std::string quantization_name(const Case& c) {
  const Quantization& q = c.options.quantization;
  if (is_8bit(c.k_type()))
    return fmt::format(" scales={},{} rows={}", name(c.qk_scales), name(c.v_scales), q.block_rows);
  if (q == Quantization{}) return "";
  return fmt::format(" scales={},{} rows={} {}{}{}", q.qk ? name(*q.qk) : "default",
                     q.v ? name(*q.v) : "default", q.block_rows, name(q.rule),
                     q.smooth_k ? " smooth" : "", q.hadamard ? " hadamard" : "");
}

Case square_case(std::int64_t batch, std::int64_t heads, std::int64_t length,
                 std::int64_t head_dim) {
  Case c;
  c.batch = batch;
  c.heads_q = c.heads_kv = heads;
  c.seqlen_q = c.seqlen_kv = length;
  c.head_dim = head_dim;
  return c;
}

}  // namespace

std::string Case::name() const {
  std::string beside = v ? fmt::format(" beside {}", octavo::name(*v)) : "";
  if (kv) beside = fmt::format(" over {}", octavo::name(*kv));
  if (kv_group != 0) beside += fmt::format("/{}", kv_group);
  std::string text =
      fmt::format("B={} Hq={} Hkv={} Sq={} Skv={} D={} {}{}->{} precision={} causal={}", batch,
                  heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim, octavo::name(input), beside,
                  octavo::name(out), octavo::name(options.precision), octavo::name(options.causal));
  if (head_dim_v > 0) text += fmt::format(" Dv={}", head_dim_v);
  if (options.window_left >= 0 || options.window_right >= 0)
    text += fmt::format(" window={},{}", options.window_left, options.window_right);
  text += quantization_name(*this);
  text += fmt::format(" {}", layout_name(layout));
  if (seqlens != Seqlens::plain)
    text += seqlens == Seqlens::hostile ? " seqlens=hostile" : " seqlens=clamped";
  if (page_size > 0)
    text += fmt::format(" page_size={} lengths={}{}", page_size, key_lengths_name(key_lengths),
                        shared_prefix ? " shared_prefix" : "");
  if (padded) text += " padded";
  if (options.softcap != 0) text += fmt::format(" softcap={}", options.softcap);
  if (bias) text += fmt::format(" bias={}", octavo::name(*bias));
  if (mask) text += " mask";
  if (alibi) text += " alibi";
  if (sinks) text += " sinks";
  if (block_mask != 0) text += fmt::format(" block_mask={}", block_mask);
  if (draft_tree) text += " draft_tree";
  if (scale) text += fmt::format(" scale={:.9g}", *scale);
  if (lse) text += " lse";
  if (options.overlap_launch) text += " overlap";
  if (options.sm_margin != 0) text += fmt::format(" sm_margin={}", options.sm_margin);
  if (options.batch_invariant) text += " batch_invariant";
  if (amax) text += " amax";
  if (values == InputValues::positive) text += " positive";
  if (values == InputValues::equal_keys) text += " equal_keys";
  if (values == InputValues::low_tail) text += " low_tail";
  if (outliers) text += " outliers";
  if (sampled_rows > 0) text += fmt::format(" rows={}", sampled_rows);
  text += fmt::format(" seed={}", seed);
  return config.empty() ? text : text + " " + config;
}

namespace {

// `resize` changes the sizes before the rest, which depends on them, is drawn.
using Resize = std::function<void(Case&)>;
Case make_sized_case(const AxisValues& values, std::uint64_t seed, const Resize& resize) {
  Draw draw(seed);
  Case c;
  c.seed = seed;
  c.layout = static_cast<Layout>(values[kLayout]);
  c.head_dim = kHeadDims[static_cast<std::size_t>(values[kHeadDim])];
  set_heads(c, values[kRatio], draw);
  set_lengths(c, values[kLength], draw);
  resize(c);
  set_mask(c, values[kMask], draw);
  set_format(c, values[kFormat], draw);
  set_quantization(c, draw);
  if (draw.one_in(5)) c.scale = 0.03125F * static_cast<float>(draw.between(1, 12));
  c.lse = !draw.one_in(4);
  c.outliers = draw.one_in(12);
  // Drawn last, so that the draw does not change cases with other inputs.
  if (is_8bit(c.input) && draw.one_in(4)) c.v = draw.one_in(2) ? DType::f16 : DType::bf16;
  const bool in_16_bits = c.input == DType::f16 || c.input == DType::bf16;
  if (in_16_bits && c.options.precision == Precision::native && draw.one_in(3)) {
    c.kv = draw.of(std::array{DType::e4m3, DType::e5m2, DType::int8});
    c.qk_scales = draw.of(kAllGranularities);
    c.v_scales = draw.of(kAllGranularities);
  }
  if (is_fp8(c.input) && !c.v && draw.one_in(4))
    c.v = c.input == DType::e4m3 ? DType::e5m2 : DType::e4m3;
  set_modifiers(c, values[kModifiers], draw);
  if (draw.one_in(kSomeV)) set_head_dim_v(c, draw);
  return c;
}

// Gives one random case in kSomeWide more than 256 columns of Q and K, of V, or of both. GPUs
// serve such cases in 16 bits alone. Only cases with few keys are changed, as the oracle takes
// long.
Case with_wide_heads(Case c) {
  constexpr int kSomeWide = 24;
  constexpr std::int64_t kMostKeys = 260;
  constexpr std::array<std::int64_t, 5> kColumns = {264, 320, 384, 456, 512};
  Draw draw(c.seed + 2'000'000'000);
  if (c.seqlen_kv > kMostKeys || !draw.one_in(kSomeWide)) return c;
  enum Kind : int { kAll, kOfQ, kOfV, kBoth };
  const auto kind = static_cast<Kind>(draw.between(kAll, kBoth));
  if (kind != kOfV) c.head_dim = draw.of(kColumns);
  c.head_dim_v = kind == kAll ? 0 : kind == kOfQ ? draw.of(kHeadDims) : draw.of(kColumns);
  if (c.head_dim_v == c.head_dim) c.head_dim_v = 0;
  return c;
}

// Random axis values. Half of the cases have no modifiers, so that these stay well tested.
AxisValues random_values(Draw& draw, const AxisValues& sizes) {
  AxisValues values;
  for (int axis = 0; axis < kAxes; ++axis)
    values[axis] = static_cast<int>(draw.between(0, sizes[axis] - 1));
  if (draw.one_in(2)) values[kModifiers] = 0;
  return values;
}

}  // namespace

Case make_case(const AxisValues& values, std::uint64_t seed) {
  return make_sized_case(values, seed, [](Case&) {});
}

Case without_modifiers(const Case& c) {
  Case plain = c;
  plain.options.softcap = 0;
  plain.padded = plain.mask = plain.alibi = plain.sinks = false;
  plain.bias = {};
  plain.block_mask = 0;
  plain.draft_tree = false;
  plain.head_dim_v = 0;
  return plain;
}

Case random_case(std::uint64_t seed) {
  Draw draw(seed + 1'000'000'000);
  return with_wide_heads(make_case(random_values(draw, kAxisSizes), seed));
}

Case small_random_case(std::uint64_t seed) {
  Draw draw(seed + 1'000'000'000);
  AxisValues values = random_values(draw, kAxisSizes);
  if (values[kLength] == 7) values[kLength] = static_cast<int>(draw.between(2, 5));
  if (values[kHeadDim] >= 6 && !draw.one_in(8))
    values[kHeadDim] = static_cast<int>(draw.between(0, 5));
  return with_wide_heads(make_sized_case(values, seed, [&draw](Case& c) {
    if (draw.one_in(4)) return;
    c.batch = std::min<std::int64_t>(c.batch, 2);
    c.heads_q /= std::exchange(c.heads_kv, 1);
    if (c.batch > 1) c.heads_q = std::min<std::int64_t>(c.heads_q, 2);
    c.seqlen_q = std::min<std::int64_t>(c.seqlen_q, 70);
  }));
}

std::vector<Case> covering_cases(std::uint64_t seed) {
  std::vector<Case> cases;
  std::uint64_t case_seed = seed * 1'000'000;
  for (const AxisValues& row : covering_rows(kAxisSizes))
    cases.push_back(make_case(row, case_seed++));
  return cases;
}

std::vector<Case> many_keys_cases(std::uint64_t seed) {
  std::vector<Case> cases;
  const auto add = [&](std::int64_t keys, DType input, Precision precision, InputValues values) {
    Case c;
    const bool long_one = keys > 10000;
    c.heads_q = c.heads_kv = long_one ? 1 : 2;
    c.seqlen_q = long_one ? 1 : 3;
    c.seqlen_kv = keys;
    c.head_dim = long_one ? 8 : 64;
    c.input = input;
    c.out = DType::f32;
    c.options.precision = precision;
    c.values = values;
    c.seed = seed;
    cases.push_back(c);
  };
  // Numbers of keys around a block of the CPU backend (64) and a group of blocks (2,048), and far
  // beyond both.
  for (const std::int64_t keys : {63, 200, 2047, 2113, 6001, 200'001}) {
    add(keys, DType::f32, Precision::native, InputValues::equal_keys);
    for (const DType input : kWide) add(keys, input, Precision::native, InputValues::positive);
  }
  // Not with equal_keys, as the quantization errors of equal rows of V would not average out.
  for (const Precision precision : kAllPrecisions)
    if (is_8bit_mode(precision)) add(6001, DType::f16, precision, InputValues::positive);
  return cases;
}

std::vector<Case> all_cases(std::uint64_t seed, std::size_t count) {
  std::vector<Case> cases = covering_cases(seed);
  for (Case& c : many_keys_cases(seed)) cases.push_back(std::move(c));
  std::set<std::string> names;
  for (const Case& c : cases) names.insert(c.name());
  for (std::uint64_t n = 0; names.size() < count; ++n) {
    const std::uint64_t case_seed = seed * 1'000'000 + 500'000 + n;
    Draw draw(case_seed + 1'000'000'000);
    AxisValues values = random_values(draw, kAxisSizes);
    // The fp64 oracle takes time quadratic in the length, so long cases and wide heads are rare.
    if (values[kLength] == 7 && !draw.one_in(6))
      values[kLength] = static_cast<int>(draw.between(3, 5));
    if (values[kHeadDim] >= 7 && draw.one_in(2))
      values[kHeadDim] = static_cast<int>(draw.between(0, 4));
    Case c = with_wide_heads(make_case(values, case_seed));
    if (names.insert(c.name()).second) cases.push_back(std::move(c));
  }
  return cases;
}

namespace {

// Draws the cases of size_cases(): one size of each is chosen by the caller, the others are small.
class SizeCases {
 public:
  SizeCases(std::uint64_t seed, const SizeRange& range)
      : draw_(seed), seed_(seed << 20), range_(range) {}

  void add(const Resize& resize) {
    AxisValues values = random_values(draw_, kAxisSizes);
    // Leaves out single keys, which hide every error of the softmax, no keys, and long cases.
    values[kLength] = static_cast<int>(draw_.between(1, 5));
    Case c = make_sized_case(values, ++seed_, [&](Case& sized) {
      sized.head_dim = std::max(range_.head_dim_step,
                                draw_.between(1, 64) / range_.head_dim_step * range_.head_dim_step);
      resize(sized);
      fit(sized);
    });
    if (products(c, c.seqlen_q) > range_.most_products) c.head_dim_v = 0;
    cases_.push_back(c);
  }
  // A random number from 2^octave to 2^(octave + 1) - 1.
  std::int64_t in_octave(int octave) {
    const std::int64_t low = std::int64_t{1} << octave;
    return draw_.between(low, 2 * low - 1);
  }
  // Any number of KV heads that divides the query heads.
  std::int64_t heads_kv_of(std::int64_t heads_q) {
    std::int64_t heads_kv = draw_.between(1, heads_q);
    while (heads_q % heads_kv != 0) --heads_kv;
    return heads_kv;
  }
  std::vector<Case> take() { return std::move(cases_); }

 private:
  static double products(const Case& c, std::int64_t rows) {
    return static_cast<double>(c.batch * c.heads_q * rows) *
           static_cast<double>(c.seqlen_kv * std::max(c.head_dim, c.head_dim_v));
  }
  // If a case would take too long, judges only some of its rows; if it still takes too long,
  // shrinks its smaller sizes.
  void fit(Case& c) const {
    constexpr std::int64_t kRows = 16, kMostDim = 32;
    if (products(c, c.seqlen_q) <= range_.most_products) return;
    c.batch = 1;
    c.heads_q = c.heads_kv = std::min<std::int64_t>(c.heads_kv, 2);
    if (c.seqlen_q > kRows) {
      c.sampled_rows = kRows;
      // The oracle samples the rows of a dense batch.
      if (c.layout == Layout::varlen) c.layout = Layout::bshd;
    }
    if (products(c, std::min(c.seqlen_q, kRows)) > range_.most_products)
      c.head_dim = std::min(c.head_dim, kMostDim);
  }

  Draw draw_;
  std::uint64_t seed_;
  SizeRange range_;
  std::vector<Case> cases_;
};

}  // namespace

std::vector<Case> size_cases(std::uint64_t seed, const SizeRange& range) {
  constexpr std::int64_t kMostDim = 256, kMostHeads = 32, kMostBatch = 32;
  constexpr int kOctavesQ = 14, kOctavesKv = 16, kOfEach = 2;
  SizeCases sizes(seed, range);
  // Many heads or sequences are affordable if they are short.
  const auto shorten = [](Case& c) {
    constexpr std::int64_t kShort = 40;
    c.seqlen_q = std::min(c.seqlen_q, kShort);
    c.seqlen_kv = std::min(c.seqlen_kv, kShort);
  };
  for (std::int64_t dim = range.head_dim_step; dim <= kMostDim; dim += range.head_dim_step)
    sizes.add([&](Case& c) { c.head_dim = dim; });
  for (std::int64_t heads = 1; heads <= kMostHeads; ++heads)
    sizes.add([&](Case& c) {
      c.heads_q = heads;
      c.heads_kv = sizes.heads_kv_of(heads);
      shorten(c);
    });
  for (std::int64_t batch = 1; batch <= kMostBatch; ++batch)
    sizes.add([&](Case& c) {
      c.batch = batch;
      shorten(c);
    });
  for (int i = 0; i < kOfEach * kOctavesQ; ++i)
    sizes.add([&](Case& c) { c.seqlen_q = sizes.in_octave(i / kOfEach); });
  for (int i = 0; i < kOfEach * kOctavesKv; ++i)
    sizes.add([&](Case& c) {
      c.seqlen_kv = sizes.in_octave(i / kOfEach);
      // Every other case has as many queries as keys, as in training, while that is affordable.
      if (i % kOfEach == 1 && i / kOfEach < 11) c.seqlen_q = c.seqlen_kv;
    });
  return sizes.take();
}

namespace {

// Head dimensions between the axis values, and grids with more tiles than any GPU has SMs: the
// dispatch of kernels depends on both.
void enlarge(Case& c, bool fill_the_gpu, Draw& draw) {
  constexpr std::int64_t kTiles = 200, kTileRows = 64, kMostHeads = 48;
  if (draw.one_in(2) && c.head_dim <= 256) c.head_dim = 8 * draw.between(1, 32);
  if (c.head_dim_v == c.head_dim) c.head_dim_v = 0;
  if (c.seqlen_kv == 0 || !fill_the_gpu) return;
  c.seqlen_q += kTileRows;
  c.seqlen_kv += kTileRows;
  while (c.batch * c.heads_q * (c.seqlen_q / kTileRows) < kTiles && c.heads_q < kMostHeads) {
    c.heads_q *= 2;
    if (c.heads_kv > 1) c.heads_kv *= 2;
  }
}

// Collects distinct cases that a device serves, until they need too many kernels.
class ServedCases {
 public:
  ServedCases(const KernelsOf& kernels_of, std::size_t most_kernels)
      : kernels_of_(kernels_of), most_kernels_(most_kernels) {}

  bool add(const Case& c) {
    const std::vector<std::string> needed = kernels_of_(c);
    if (needed.empty()) return false;
    std::set<std::string> kernels = kernels_;
    kernels.insert(needed.begin(), needed.end());
    if (kernels.size() > std::max(most_kernels_, kernels_.size())) return false;
    if (!names_.insert(c.name()).second) return false;
    kernels_ = std::move(kernels);
    cases_.push_back(c);
    return true;
  }
  bool serves(const Case& c) const { return !kernels_of_(c).empty(); }
  std::vector<Case>& cases() { return cases_; }

 private:
  const KernelsOf& kernels_of_;
  std::size_t most_kernels_;
  std::set<std::string> kernels_, names_;
  std::vector<Case> cases_;
};

// The scales of 8-bit inputs follow from the seed, and a device may serve only some granularities.
constexpr int kSeedsTried = 40;

std::vector<int> served_formats(const ServedCases& served) {
  std::vector<int> formats;
  for (int format = 0; format < kAxisSizes[kFormat]; ++format) {
    bool found = false;
    for (std::uint64_t seed = 0; seed < kSeedsTried && !found; ++seed) {
      AxisValues plain{};
      plain[kFormat] = format;
      plain[kLength] = 2;
      plain[kHeadDim] = 3;
      found = served.serves(make_case(plain, seed));
    }
    if (found) formats.push_back(format);
  }
  return formats;
}

// The values of the axis of modifiers that a device serves in some of the formats.
std::vector<int> served_modifiers(const ServedCases& served, const std::vector<int>& formats) {
  std::vector<int> modifiers;
  const auto is_served = [&](int value) {
    for (const int format : formats)
      for (std::uint64_t seed = 0; seed < kSeedsTried; ++seed) {
        AxisValues plain{};
        plain[kFormat] = format;
        plain[kLength] = 2;
        plain[kHeadDim] = 3;
        plain[kModifiers] = value;
        const Case c = make_case(plain, seed);
        const bool modified = value == 0 || c.options.softcap != 0 || c.padded || c.bias ||
                              c.mask || c.alibi || c.sinks;
        if (modified && served.serves(c)) return true;
      }
    return false;
  };
  for (int value = 0; value < kAxisSizes[kModifiers]; ++value)
    if (is_served(value)) modifiers.push_back(value);
  return modifiers;
}

}  // namespace

std::vector<Case> served_cases(std::uint64_t seed, std::size_t count, const KernelsOf& kernels_of,
                               std::size_t most_kernels) {
  ServedCases served(kernels_of, most_kernels);
  const std::vector<int> formats = served_formats(served);
  if (formats.empty()) return {};
  const std::vector<int> modifiers = served_modifiers(served, formats);
  AxisValues sizes = kAxisSizes;
  sizes[kFormat] = static_cast<int>(formats.size());
  sizes[kModifiers] = static_cast<int>(modifiers.size());
  std::uint64_t case_seed = seed * 1'000'000;
  const auto add_row = [&](const AxisValues& row) {
    for (int tried = 0; tried < kSeedsTried; ++tried)
      if (served.add(make_case(row, case_seed++))) return true;
    return false;
  };
  for (AxisValues row : covering_rows(sizes)) {
    row[kFormat] = formats[static_cast<std::size_t>(row[kFormat])];
    row[kModifiers] = modifiers[static_cast<std::size_t>(row[kModifiers])];
    if (add_row(row)) continue;
    // A format may be served only without modifiers; the row's other pairs still count.
    row[kModifiers] = 0;
    add_row(row);
  }
  // Formats alternate, and every fourth case of each fills a GPU. A dropped draw is replaced by one
  // of the same kind, so that kinds that need many kernels are not underrepresented.
  const std::uint64_t last = case_seed + 100 * count;
  for (std::size_t n = 0; served.cases().size() < count && case_seed < last; ++n) {
    for (int tried = 0; tried < kSeedsTried; ++tried, ++case_seed) {
      Draw draw(case_seed + 1'000'000'000);
      AxisValues values = random_values(draw, sizes);
      values[kFormat] = formats[n % formats.size()];
      values[kModifiers] = modifiers[static_cast<std::size_t>(values[kModifiers])];
      Case c = with_wide_heads(make_case(values, case_seed));
      enlarge(c, n / formats.size() % 4 == 0, draw);
      if (served.add(c)) break;
    }
    ++case_seed;
  }
  return std::move(served.cases());
}

std::vector<Case> only_served(const std::vector<Case>& cases, const KernelsOf& kernels_of,
                              std::size_t most_kernels) {
  ServedCases served(kernels_of, most_kernels);
  for (const Case& c : cases)
    if (!served.add(c)) served.add(without_modifiers(c));
  return std::move(served.cases());
}

std::vector<Case> twelve_cases() {
  std::vector<Case> cases;
  const auto add = [&cases](DType input, Precision precision) {
    for (const Case& shape : {square_case(1, 2, 64, 64), square_case(1, 4, 128, 64),
                              square_case(1, 8, 512, 64), square_case(2, 2, 64, 64)})
      for (std::uint64_t seed = 0; seed < 3; ++seed) {
        Case c = shape;
        c.input = input;
        c.out = is_8bit(input) ? DType::f16 : input;
        c.options.precision = precision;
        c.seed = seed;
        cases.push_back(c);
      }
  };
  for (DType input : kWide) add(input, Precision::native);
  for (Precision precision : {Precision::fp16, Precision::bf16}) add(DType::f32, precision);
  for (Precision precision : kAllPrecisions)
    if (is_8bit_mode(precision)) add(DType::f16, precision);
  for (DType input : kAllDTypes)
    if (is_8bit(input)) add(input, Precision::native);
  return cases;
}

std::vector<Case> preset_cases(std::uint64_t seed) {
  // Sixteen rows per head: the oracle on every row of `stress` would take minutes and exercise the
  // same code. Rows that are not sampled are still checked to be written, finite and repeatable.
  constexpr std::int64_t kSampledRows = 16;
  std::vector<Case> cases;
  for (const Preset& preset : presets())
    for (Precision precision : {Precision::native, Precision::fp8, Precision::int8}) {
      Case c = square_case(preset.batch, preset.heads, preset.length, preset.head_dim);
      c.options.precision = precision;
      c.sampled_rows = kSampledRows;
      c.seed = seed;
      cases.push_back(c);
    }
  return cases;
}

Result<std::vector<Case>> suite_cases(const std::string& suite, std::uint64_t seed) {
  if (suite == "all") return all_cases(seed);
  if (suite == "twelve") return twelve_cases();
  if (suite == "presets") return preset_cases(seed);
  if (suite == "decode") return decode_cases(seed);
  if (suite == "block_mask") return block_mask_cases(seed);
  return invalid("suite", fmt::format("\"{}\"", suite),
                 "all, twelve, presets, decode, block_mask, and configs on a GPU");
}

}  // namespace octavo::evidence
