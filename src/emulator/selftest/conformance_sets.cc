// SPDX-License-Identifier: Apache-2.0
// The table of conformance sets.
#include <fmt/format.h>

#include <bit>

#include "device/conformance/arithmetic.cuh"
#include "device/conformance/hopper.cuh"
#include "device/conformance/matrices.cuh"
#include "emulator/ptx/tensor_cores.h"
#include "emulator/selftest/conformance.h"

namespace octavo::emulator {
namespace {

using conformance::Function;
using conformance::Matrix;
using conformance::Mma;
using conformance::Params;
using conformance::Wgmma;

// Random numbers that follow from a name.
class Draw {
 public:
  explicit Draw(const std::string& name) {
    for (const char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  std::uint32_t word() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<std::uint32_t>(state_ * 0x2545f4914f6cdd1du >> 32);
  }
  std::uint32_t below(std::uint32_t n) { return word() % n; }
  // A float with an exponent in [low, high].
  std::uint32_t f32(int low, int high) {
    const auto exponent = static_cast<std::uint32_t>(
        127 + low + static_cast<int>(below(static_cast<std::uint32_t>(high - low + 1))));
    return (word() & 0x807fffff) | exponent << 23;
  }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

// Four bytes of a format. spread 0: near 1; 1: any finite number; 2: any bits, including NaN and
// infinities.
std::uint32_t packed(Draw& draw, Number format, int spread) {
  if (format == Number::s8 || format == Number::u8) return draw.word();
  const int bytes = number_bytes(format), bits = bytes * 8;
  std::uint32_t word = 0;
  for (int i = 0; i < 4 / bytes; ++i) {
    std::uint32_t x = draw.word() & ((1u << bits) - 1);
    const std::uint32_t sign = x & 1u << (bits - 1), magnitude = x ^ sign;
    if (spread == 0) {  // exponents -3 to 0
      const std::uint32_t bias = format == Number::bf16 ? 127 : format == Number::e4m3 ? 7 : 15;
      const auto fraction = static_cast<std::uint32_t>(fraction_bits(format));
      x = sign | (bias - draw.below(4)) << fraction | (magnitude & ((1u << fraction) - 1));
    } else if (spread == 1 && take_apart(format, x).exponent == Parts::kSpecial) {
      x = sign;
    }
    word |= x << i * bits;
  }
  return word;
}

// The recorder runs the kernels on a GPU and is built without the emulator.
#if defined(OCTAVO_RECORDER)
#define OCTAVO_KERNEL_OF(...) fmt::format("conformance::{}", #__VA_ARGS__), nullptr
#else
#define OCTAVO_KERNEL_OF(...) \
  fmt::format("conformance::{}", #__VA_ARGS__), [](const Params& p) { conformance::__VA_ARGS__(p); }
#endif

struct Kernel {
  std::string expression;
  void (*entry)(const Params&);
};

ConformanceSet make(const std::string& name, const char* header, Kernel kernel, int threads,
                    std::uint32_t smem_bytes) {
  ConformanceSet set;
  set.name = name;
  set.include = fmt::format("device/conformance/{}.cuh", header);
  set.expression = std::move(kernel.expression);
  set.entry = kernel.entry;
  set.threads = threads;
  set.smem_bytes = smem_bytes;
  return set;
}

void add_arithmetic(std::vector<ConformanceSet>& sets) {
  constexpr int kCount = 2048;
  const auto add = [&](const char* name, Kernel kernel, int ulps, auto fill) {
    ConformanceSet set = make(name, "arithmetic", std::move(kernel), 128, 512);
    Draw draw(name);
    for (int i = 0; i < kCount * 3; ++i) set.input.push_back(fill(draw, i / 3));
    set.params.count = kCount;
    set.output_words = kCount;
    set.ulps = ulps;
    sets.push_back(std::move(set));
  };
  // Floats around a format's range, and the ties between its neighbouring values.
  const auto floats = [](int fraction, int low, int high) {
    return [=](Draw& draw, int i) {
      if (i % 8 == 0) return draw.word();
      const std::uint32_t x = draw.f32(low, high);
      const int drop = 23 - fraction;
      if (i % 2 == 0) return (x >> drop << drop) | 1u << (drop - 1);  // a tie, if normal
      return i % 5 == 0 ? (x >> drop << drop) | ((1u << (drop - 1)) - 1) : x;
    };
  };
  const auto any = [](Draw& draw, int) { return draw.word(); };
  add("ex2.approx.ftz.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::exp2>)}, 2,
      [](Draw& draw, int i) { return i % 8 == 0 ? draw.word() : draw.f32(-24, 7); });
  add("lg2.approx.ftz.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::log2>)}, kLog2,
      [](Draw& draw, int) { return draw.f32(-60, 60) & 0x7fffffff; });
  add("rcp.approx.ftz.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::reciprocal>)}, 1,
      [](Draw& draw, int i) { return i % 8 == 0 ? draw.word() : draw.f32(-100, 100); });
  add("cvt.rn.f16x2.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::f16x2>)}, 0,
      floats(10, -26, 17));
  add("cvt.rn.bf16x2.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::bf16x2>)}, 0,
      floats(7, -126, 127));
  add("cvt.rn.satfinite.e4m3x2.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::e4m3x2>)},
      0, floats(3, -12, 10));
  add("cvt.rn.satfinite.e5m2x2.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::e5m2x2>)},
      0, floats(2, -18, 17));
  add("sub.f16x2", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::sub_f16x2>)}, 0, any);
  add("prmt.b32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::permute>)}, 0, any);
  add("fma.rn.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::fma>)}, 0,
      [](Draw& draw, int i) { return i % 16 == 0 ? draw.word() : draw.f32(-20, 20); });
  add("fma.rn.sat.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::fma_sat>)}, 0,
      [](Draw& draw, int i) { return i % 16 == 0 ? draw.word() : draw.f32(-3, 1); });
  const auto with_nans = [](Draw& draw, int i) {
    return i % 4 == 0 ? draw.word() | 0x7f800000 : draw.word();
  };
  add("shl.b32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::shift_left>)}, 0,
      [](Draw& draw, int i) { return i % 2 == 0 ? draw.word() : draw.word() % 40; });
  add("dp4a.u32.u32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::add_bytes>)}, 0,
      [](Draw& draw, int) { return draw.word(); });
  add("max.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::max>)}, 0, with_nans);
  add("cvt.rn.f32.s32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::int_to_float>)}, 0,
      any);
  add("ex2.approx.f16x2", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::exp2_f16x2>)}, 0,
      any);
  add("cvt.f32.f16 low", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::f32_low_of_f16x2>)}, 0,
      any);
  add("cvt.f32.f16 high", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::f32_high_of_f16x2>)},
      0, any);
  add("cvt.rn.f16x2.e4m3x2", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::f16x2_of_e4m3x2>)},
      0, any);
  add("cvt.rn.satfinite.e4m3x2.f16x2",
      {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::e4m3x2_of_f16x2>)}, 0, any);
  // FP16 values near 1 mixed with values of any size: some sums cancel, others are rounded.
  const auto halves = [](Draw& draw, int i) {
    return i % 4 == 0 ? draw.word() : packed(draw, Number::f16, 0);
  };
  add("fma.rn.f16x2", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::fma_f16x2>)}, 0, halves);
  add("fma.rn.f16x2 of -a", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::fnma_f16x2>)}, 0,
      halves);
  add("fma.rn.sat.f16x2", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::fma_sat_f16x2>)}, 0,
      halves);
  add("max.f16x2", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::max_f16x2>)}, 0, any);
  // Some inputs are equal in one half.
  add("setp.ge.f16x2", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::any_ge_f16x2>)}, 0,
      [](Draw& draw, int i) { return i % 4 == 0 ? 0xfc003c00u | draw.word() % 4 : draw.word(); });
  add("min.f32", {OCTAVO_KERNEL_OF(arithmetic<conformance::Function::min>)}, 0, with_nans);
}

void add_matrices(std::vector<ConformanceSet>& sets) {
  const auto add = [&](const char* name, Kernel kernel, std::size_t outputs) {
    ConformanceSet set = make(name, "matrices", std::move(kernel), 32, 2048);
    Draw draw(name);
    for (int i = 0; i < 512; ++i) set.input.push_back(draw.word());
    // Rows in any order, none twice: two stores to one address would race.
    for (std::uint32_t i = 0; i < 32; ++i) set.input.push_back(i * 37 + 5);
    for (int i = 0; i < 128; ++i) set.input.push_back(draw.word());
    set.output_words = outputs;
    sets.push_back(std::move(set));
  };
  add("ldmatrix.x4", {OCTAVO_KERNEL_OF(matrix<conformance::Matrix::ld_x4>)}, 128);
  add("ldmatrix.x4.trans", {OCTAVO_KERNEL_OF(matrix<conformance::Matrix::ld_x4_trans>)}, 128);
  add("ldmatrix.x2", {OCTAVO_KERNEL_OF(matrix<conformance::Matrix::ld_x2>)}, 128);
  add("ldmatrix.x2.trans", {OCTAVO_KERNEL_OF(matrix<conformance::Matrix::ld_x2_trans>)}, 128);
  add("stmatrix.x4", {OCTAVO_KERNEL_OF(matrix<conformance::Matrix::st_x4>)}, 512);
  add("stmatrix.x4.trans", {OCTAVO_KERNEL_OF(matrix<conformance::Matrix::st_x4_trans>)}, 512);
  add("stmatrix.x2", {OCTAVO_KERNEL_OF(matrix<conformance::Matrix::st_x2>)}, 512);
  add("cp.async", {OCTAVO_KERNEL_OF(cp_async<32>)}, 512);
  add("shfl, vote, elect", {OCTAVO_KERNEL_OF(lanes<32>)}, 256);
  add("cp.async.L2::cache_hint", {OCTAVO_KERNEL_OF(cp_async_hinted<32>)}, 512);
}

void add_mma(std::vector<ConformanceSet>& sets) {
  constexpr int kCount = 40;
  const auto add = [&](const char* name, Kernel kernel, Number a, Number b) {
    ConformanceSet set = make(name, "matrices", std::move(kernel), 32, 0);
    Draw draw(name);
    for (int n = 0; n < kCount; ++n) {
      const int spread = n % 4 == 3 ? (n < kCount / 2 ? 1 : 2) : n % 4 == 2 ? 1 : 0;
      for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) set.input.push_back(packed(draw, a, spread));
        for (int i = 0; i < 2; ++i) set.input.push_back(packed(draw, b, spread));
        for (int i = 0; i < 4; ++i)
          set.input.push_back(a >= Number::s8 ? draw.word() >> n % 32
                              : n % 4 == 0    ? 0
                              : spread == 0   ? draw.f32(-8, 8)
                                              : draw.f32(-30, 30));
      }
    }
    set.params.count = kCount;
    set.output_words = kCount * 128;
    sets.push_back(std::move(set));
  };
  using N = Number;
  add("mma.m16n8k16.f16", {OCTAVO_KERNEL_OF(mma<conformance::Mma::f16>)}, N::f16, N::f16);
  add("mma.m16n8k16.bf16", {OCTAVO_KERNEL_OF(mma<conformance::Mma::bf16>)}, N::bf16, N::bf16);
  add("mma.m16n8k32.e4m3", {OCTAVO_KERNEL_OF(mma<conformance::Mma::e4m3>)}, N::e4m3, N::e4m3);
  add("mma.m16n8k32.e5m2", {OCTAVO_KERNEL_OF(mma<conformance::Mma::e5m2>)}, N::e5m2, N::e5m2);
  add("mma.m16n8k32.e4m3.e5m2", {OCTAVO_KERNEL_OF(mma<conformance::Mma::e4m3_e5m2>)}, N::e4m3,
      N::e5m2);
  add("mma.m16n8k32.s8", {OCTAVO_KERNEL_OF(mma<conformance::Mma::s8>)}, N::s8, N::s8);
  add("mma.m16n8k32.u8.s8", {OCTAVO_KERNEL_OF(mma<conformance::Mma::u8_s8>)}, N::u8, N::s8);
  add("mma.m16n8k16.f16.f16", {OCTAVO_KERNEL_OF(mma_in_f16<32>)}, N::f16, N::f16);
}

struct Boxed {
  const char* name;
  MapType type;
  std::vector<std::uint32_t> shape, box;
  std::uint16_t swizzle;
  std::vector<int> at;
};

ConformanceSet boxed(const Boxed& b, const std::string& name, Kernel kernel) {
  ConformanceSet set = make(name, "hopper", std::move(kernel), 128, 0);
  const std::uint32_t element = map_type_bytes(b.type);
  set.map.type = b.type;
  set.map.rank = static_cast<std::uint32_t>(b.shape.size());
  set.map.swizzle_bytes = b.swizzle;
  set.params.bytes = element;
  std::uint64_t stride = element;
  for (std::size_t i = 0; i < b.shape.size(); ++i) {
    set.map.shape[i] = b.shape[i];
    set.map.box[i] = static_cast<std::uint16_t>(b.box[i]);
    set.params.at[i] = b.at[i];
    set.params.bytes *= b.box[i];
    stride = (stride * b.shape[i] + 15) / 16 * 16;
    if (i + 1 < b.shape.size()) set.map.stride_bytes[i] = stride;
  }
  set.smem_bytes = conformance::kTile + set.params.bytes;
  Draw draw(name);
  const std::size_t tensor_words = (stride + 3) / 4;
  set.input.resize(std::max<std::size_t>(tensor_words, set.params.bytes / 4));
  for (std::uint32_t& word : set.input)
    word = packed(draw, b.type == MapType::bf16 ? Number::bf16 : Number::f16, 0);
  if (b.type == MapType::f32)
    for (std::uint32_t& word : set.input) word = draw.f32(-4, 4);
  set.output_words = std::max<std::size_t>(tensor_words, set.params.bytes / 4);
  return set;
}

void add_tma(std::vector<ConformanceSet>& sets) {
  using T = MapType;
  const Boxed loads[] = {
      {"1d", T::f32, {1000}, {256}, 0, {896}},
      {"1d.negative", T::f16, {500}, {128}, 0, {-40}},
      {"2d.sw128", T::f16, {64, 100}, {64, 64}, 128, {0, 60}},
      {"2d.sw128.columns", T::bf16, {40, 100}, {64, 48}, 128, {0, 60}},
      {"2d.sw64", T::f16, {96, 50}, {32, 40}, 64, {32, 20}},
      {"2d.sw32", T::f16, {64, 50}, {16, 40}, 32, {48, -7}},
      {"2d", T::f16, {72, 33}, {24, 20}, 0, {56, 20}},
      {"2d.bytes", T::u8, {128, 40}, {128, 32}, 128, {0, 16}},
      {"2d.bytes.sw64", T::u8, {64, 40}, {64, 32}, 64, {0, 16}},
      {"3d", T::f16, {64, 37, 3}, {64, 16, 2}, 128, {0, 30, 2}},
      {"4d", T::f32, {8, 5, 4, 3}, {8, 3, 2, 2}, 0, {4, 3, 3, 2}},
      {"5d", T::f32, {8, 3, 4, 2, 3}, {4, 2, 3, 2, 2}, 0, {4, 2, 2, 1, 2}},
  };
  for (const Boxed& b : loads) {
    const Kernel kernels[] = {{OCTAVO_KERNEL_OF(tma_load<1>)},
                              {OCTAVO_KERNEL_OF(tma_load<2>)},
                              {OCTAVO_KERNEL_OF(tma_load<3>)},
                              {OCTAVO_KERNEL_OF(tma_load<4>)},
                              {OCTAVO_KERNEL_OF(tma_load<5>)}};
    ConformanceSet set =
        boxed(b, fmt::format("cp.async.bulk.tensor.{}", b.name), kernels[b.shape.size() - 1]);
    set.map_of = ConformanceSet::MapOf::input;
    set.output_words = set.params.bytes / 4;
    sets.push_back(std::move(set));
  }
  const auto store = [&](const Boxed& b, const char* prefix, Kernel kernel) {
    ConformanceSet set = boxed(b, fmt::format("{}.{}", prefix, b.name), std::move(kernel));
    set.map_of = ConformanceSet::MapOf::output;
    sets.push_back(std::move(set));
  };
  const char* const plain = "cp.async.bulk.tensor.global";
  const char* const add = "cp.reduce.async.bulk.tensor";
  using conformance::Store;
  store(loads[0], plain, {OCTAVO_KERNEL_OF(tma_store<1, conformance::Store::plain>)});
  store(loads[2], plain, {OCTAVO_KERNEL_OF(tma_store<2, conformance::Store::plain>)});
  store(loads[4], plain, {OCTAVO_KERNEL_OF(tma_store<2, conformance::Store::plain>)});
  store(loads[9], plain, {OCTAVO_KERNEL_OF(tma_store<3, conformance::Store::plain>)});
  store(loads[10], plain, {OCTAVO_KERNEL_OF(tma_store<4, conformance::Store::plain>)});
  store(loads[0], add, {OCTAVO_KERNEL_OF(tma_store<1, conformance::Store::add>)});
  store(loads[2], add, {OCTAVO_KERNEL_OF(tma_store<2, conformance::Store::add>)});
  store(loads[3], add, {OCTAVO_KERNEL_OF(tma_store<2, conformance::Store::add>)});

  ConformanceSet pair =
      boxed({"", T::f32, {32, 40}, {32, 16}, 128, {0, 30}},
            "multicast, st.async, ld.shared::cluster", {OCTAVO_KERNEL_OF(cluster<128>)});
  pair.map_of = ConformanceSet::MapOf::input;
  pair.cluster = 2;
  pair.output_words = 2 * (pair.params.bytes / 4 + 2);
  sets.push_back(std::move(pair));
}

// Bulk reductions, and flags between CTAs.
void add_global(std::vector<ConformanceSet>& sets) {
  constexpr std::uint32_t kWords = 1024;
  // Subnormal sums have a set of their own: the ISA does not say whether they are flushed.
  const auto reduce = [&](const char* name, auto fill) {
    ConformanceSet set = make(name, "hopper", {OCTAVO_KERNEL_OF(bulk_reduce<128>)}, 128,
                              conformance::kTile + 2 * kWords * 4);
    Draw draw(name);
    for (std::uint32_t i = 0; i < 2 * kWords; ++i) set.input.push_back(fill(draw, i % kWords));
    set.params.bytes = kWords * 4;
    set.output_words = kWords;
    sets.push_back(std::move(set));
  };
  reduce("cp.reduce.async.bulk.add.f32", [](Draw& draw, std::uint32_t i) {
    if (i % 32 == 0) return draw.word() | 0x7f800000;                 // a NaN
    if (i % 32 == 1) return (draw.word() & 0x80000000) | 0x7f800000;  // an infinity
    return i % 4 == 0 ? draw.f32(-60, 127) : draw.f32(-12, 12);
  });
  reduce("cp.reduce.async.bulk.add.f32.subnormal", [](Draw& draw, std::uint32_t i) {
    return i % 2 == 0 ? draw.word() & 0x80ffffff : draw.f32(-126, -124);
  });
  ConformanceSet pair =
      make("red.release, ld.acquire", "hopper", {OCTAVO_KERNEL_OF(flags<128>)}, 128, 0);
  Draw draw(pair.name);
  for (std::uint32_t i = 0; i < kWords; ++i) pair.input.push_back(draw.word());
  pair.cluster = 2;  // the recorder launches one cluster
  pair.params.bytes = kWords * 4;
  pair.params.count = 5;
  pair.params.at[0] = static_cast<int>(kUntouched);
  pair.output_words = 2 * kWords + 1;
  sets.push_back(std::move(pair));
}

struct Layout {
  const char* name;
  std::uint32_t swizzle_code;                 // 0 none, 1: 128, 2: 64, 3: 32 bytes
  std::uint32_t a_leading, a_stride, a_step;  // bytes
  std::uint32_t b_leading, b_stride, b_step;
  int count;
};

void add_wgmma(std::vector<ConformanceSet>& sets) {
  constexpr std::uint32_t kOperandBytes = 16384;  // A, then B
  const auto add = [&](const char* type, const Layout& l, Kernel kernel, std::size_t registers,
                       Number a, Number b, int spread) {
    const std::string name = fmt::format("wgmma.{}.{}{}", type, l.name, spread == 0 ? "" : ".wide");
    ConformanceSet set =
        make(name, "hopper", std::move(kernel), 128, conformance::kTile + 2 * kOperandBytes);
    Draw draw(name);
    for (std::uint32_t i = 0; i < kOperandBytes / 4; ++i)
      set.input.push_back(packed(draw, a, spread));
    for (std::uint32_t i = 0; i < kOperandBytes / 4; ++i)
      set.input.push_back(packed(draw, b, spread));
    for (int i = 0; i < 512; ++i) set.input.push_back(packed(draw, a, spread));
    const auto descriptor = [&](std::uint32_t start, std::uint32_t leading, std::uint32_t stride) {
      return std::uint64_t{start >> 4} | std::uint64_t{leading >> 4} << 16 |
             std::uint64_t{stride >> 4} << 32 | std::uint64_t{l.swizzle_code} << 62;
    };
    set.params.bytes = 2 * kOperandBytes;
    set.params.count = l.count;
    set.params.descriptors[0] = descriptor(0, l.a_leading, l.a_stride);
    set.params.descriptors[1] = descriptor(kOperandBytes, l.b_leading, l.b_stride);
    set.params.at[0] = static_cast<int>(l.a_step);
    set.params.at[1] = static_cast<int>(l.b_step);
    set.output_words = 128 * registers;
    sets.push_back(std::move(set));
  };
  const Layout k128{"sw128", 1, 16, 1024, 32, 16, 1024, 32, 4};
  const Layout k64{"sw64", 2, 16, 512, 32, 16, 512, 32, 2};
  const Layout k32{"sw32", 3, 16, 256, 32, 16, 256, 32, 1};
  const Layout none{"none", 0, 128, 256, 0, 128, 256, 0, 1};
  using N = Number;
#define OCTAVO_WGMMA_SET(type, layout, registers, a, b)                                            \
  for (const int spread : {0, 1})                                                                  \
  add(#type, layout, {OCTAVO_KERNEL_OF(wgmma<conformance::Wgmma::type, registers>)}, registers, a, \
      b, spread)
  OCTAVO_WGMMA_SET(f16, k128, 32, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16, k64, 32, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16, k32, 4, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16, none, 32, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16_a, k128, 36, N::f16, N::f16);
  OCTAVO_WGMMA_SET(bf16, k128, 32, N::bf16, N::bf16);
  OCTAVO_WGMMA_SET(e4m3, k128, 32, N::e4m3, N::e4m3);
  OCTAVO_WGMMA_SET(e4m3, k64, 32, N::e4m3, N::e4m3);
  OCTAVO_WGMMA_SET(e4m3_a, k128, 32, N::e4m3, N::e4m3);
  OCTAVO_WGMMA_SET(e5m2, k128, 32, N::e5m2, N::e5m2);
  OCTAVO_WGMMA_SET(e4m3_e5m2, k128, 32, N::e4m3, N::e5m2);
  OCTAVO_WGMMA_SET(e4m3_in_f16, k128, 16, N::e4m3, N::e4m3);
  OCTAVO_WGMMA_SET(s8, k128, 32, N::s8, N::s8);
  OCTAVO_WGMMA_SET(u8_s8, k128, 32, N::u8, N::s8);
  // V as it is in memory: 64 columns of 128 bytes; 128 columns are two blocks of 32 keys.
  const Layout v64{"v.sw128", 1, 16, 1024, 32, 16, 1024, 2048, 4};
  const Layout v128{"v.sw128.n128", 1, 16, 1024, 32, 4096, 1024, 2048, 2};
  const Layout v_sw64{"v.sw64", 2, 16, 512, 32, 2048, 512, 1024, 2};
  const Layout v_sw32{"v.sw32", 3, 16, 256, 32, 1024, 256, 512, 1};
  const Layout v_none{"v.none", 0, 128, 256, 0, 128, 256, 0, 1};
  OCTAVO_WGMMA_SET(f16_trans_b, v64, 32, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16_trans_b, v128, 64, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16_trans_b, v_sw64, 32, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16_trans_b, v_sw32, 32, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16_trans_b, v_none, 32, N::f16, N::f16);
  const Layout both{"both.sw128", 1, 16, 1024, 2048, 16, 1024, 2048, 4};
  OCTAVO_WGMMA_SET(f16_trans_both, both, 32, N::f16, N::f16);
  // A by columns: 64 rows of A are one block of 128 bytes, or two or four of fewer.
  const Layout a64{"a.sw128", 1, 16, 1024, 2048, 16, 1024, 32, 4};
  const Layout a_sw64{"a.sw64", 2, 2048, 512, 1024, 16, 512, 32, 2};
  const Layout a_sw32{"a.sw32", 3, 1024, 256, 512, 16, 256, 32, 1};
  const Layout a_none{"a.none", 0, 128, 256, 0, 128, 256, 0, 1};
  OCTAVO_WGMMA_SET(f16_trans_a, a64, 32, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16_trans_a, a_sw64, 32, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16_trans_a, a_sw32, 32, N::f16, N::f16);
  OCTAVO_WGMMA_SET(f16_trans_a, a_none, 32, N::f16, N::f16);
  OCTAVO_WGMMA_SET(bf16_trans_a, a64, 32, N::bf16, N::bf16);
  OCTAVO_WGMMA_SET(bf16_trans_b, v64, 32, N::bf16, N::bf16);
  OCTAVO_WGMMA_SET(bf16_trans_both, both, 32, N::bf16, N::bf16);
#undef OCTAVO_WGMMA_SET
}

}  // namespace

std::vector<ConformanceSet> conformance_sets() {
  std::vector<ConformanceSet> sets;
  add_arithmetic(sets);
  add_matrices(sets);
  add_mma(sets);
  add_tma(sets);
  add_global(sets);
  add_wgmma(sets);
  return sets;
}

}  // namespace octavo::emulator
