// SPDX-License-Identifier: Apache-2.0
#include "emulator/kernels/quantize.h"

#include <iterator>
#include <utility>

#include "device/quantize/operands.cuh"
#include "device/quantize/quantize.cuh"
#include "numeric/fork_safe.h"

namespace octavo::emulator {
namespace {

constexpr Element kFrom[] = {Element::f16, Element::bf16, Element::f32};
constexpr Element kTo[] = {Element::e4m3, Element::e5m2, Element::int8, Element::sim8};
constexpr ScaleGroup kGroups[] = {ScaleGroup::row, ScaleGroup::block, ScaleGroup::head,
                                  ScaleGroup::tensor, ScaleGroup::channel};
constexpr int kFroms = int{std::size(kFrom)};
constexpr int kTos = int{std::size(kTo)};
constexpr int kAllGroups = int{std::size(kGroups)};

constexpr void widen_rows(QuantizeConfig& c) {
  c.columns = 256;
  c.load_bytes = element_bytes(c.from);
}

// Transposes the caller's 8-bit V.
constexpr QuantizeConfig transposing(Element format, bool wide) {
  QuantizeConfig c{.from = format,
                   .to = format,
                   .group = ScaleGroup::none,
                   .threads = quantizer::kValueThreads,
                   .transposed = true};
  if (wide) widen_rows(c);
  return c;
}

constexpr QuantizeConfig kOthers[] = {
    {.from = Element::f32, .to = Element::f16, .group = ScaleGroup::none},
    {.from = Element::f32, .to = Element::bf16, .group = ScaleGroup::none},
    {.from = Element::f16, .to = Element::bf16, .group = ScaleGroup::none},
    {.from = Element::bf16, .to = Element::f16, .group = ScaleGroup::none},
    {.from = Element::f16, .to = Element::e4m3, .hadamard = true},
    {.from = Element::f32, .to = Element::e4m3, .hadamard = true, .columns = 256, .load_bytes = 4},
    {.from = Element::f16, .to = Element::sim8, .group = ScaleGroup::head, .hadamard = true},
    {.from = Element::f16, .group = ScaleGroup::head, .amax_pass = true, .hadamard = true},
    {.from = Element::bf16, .to = Element::int8, .group = ScaleGroup::block, .hadamard = true},
    {.from = Element::f16,
     .to = Element::e4m3,
     .group = ScaleGroup::row,
     .hadamard = true,
     .smooth = true},
    {.from = Element::f16, .to = Element::int8, .columns = 256, .load_bytes = 2},
    {.from = Element::f16,
     .to = Element::int8,
     .group = ScaleGroup::block,
     .columns = 256,
     .load_bytes = 2},
    {.from = Element::f16,
     .to = Element::int8,
     .group = ScaleGroup::channel,
     .columns = 256,
     .load_bytes = 2},
    {.from = Element::f16,
     .to = Element::int8,
     .group = ScaleGroup::channel,
     .threads = 256,
     .transposed = true},
    {.from = Element::f16,
     .to = Element::int8,
     .group = ScaleGroup::channel,
     .columns = 256,
     .load_bytes = 2,
     .threads = 256,
     .transposed = true},
    transposing(Element::e4m3, false),
    transposing(Element::e4m3, true),
    transposing(Element::int8, false),
    transposing(Element::int8, true),
};

constexpr int kRowKernels = kFroms * kTos * kAllGroups;
constexpr int kDecoded = kTos * 2;  // formats, outputs: one kernel for all columns and load widths
constexpr int kFirstPasses = kFroms * 3;  // groups head, tensor and channel
constexpr int kWide = kFroms * kAllGroups;
constexpr int kTransposed = 2 * kFirstPasses;         // the two kinds before it
constexpr int kOperands = 4 * 2 * 3;                  // formats, columns, passes
constexpr int kSmoothedOperands = 4 * 2 * 2 + 2 * 2;  // the second pass has K per head only
constexpr int kMeans =
    2 * (kFroms + 1);  // widths; the first pass for each input type, and the second
constexpr int kSmoothed =
    kFroms * (5 + 3);  // what K is converted to, and some of it again with more columns
constexpr int kKernels = kRowKernels + 2 * kFirstPasses + kWide + kTransposed + kOperands +
                         kSmoothedOperands + kDecoded + kMeans + kSmoothed +
                         int{std::size(kOthers)};

// Formats, columns and passes: `one_pass`, the first of two passes, and the second.
constexpr QuantizeConfig operands_config(int format, int width, int pass) {
  QuantizeConfig c;
  c.arch = 90;
  c.from = format % 2 == 1 ? Element::bf16 : Element::f16;
  c.to = format / 2 == 1 ? Element::int8 : Element::e4m3;
  c.group = c.to == Element::int8 ? ScaleGroup::block : ScaleGroup::head;
  c.columns = width == 0 ? 64 : 256;
  c.threads = quantizer::kOperandThreads;
  c.transposed = c.operands = true;
  c.one_pass = pass == 0;
  c.amax_pass = pass == 1;
  return c;
}

constexpr QuantizeConfig kernel_config(int index) {
  QuantizeConfig c;
  if (index < kRowKernels) {
    c.from = kFrom[index % kFroms];
    c.to = kTo[index / kFroms % kTos];
    c.group = kGroups[index / kFroms / kTos];
    return c;
  }
  index -= kRowKernels;
  if (index < 2 * kFirstPasses) {
    c.from = kFrom[index % kFroms];
    c.group = kGroups[2 + index / kFroms % 3];
    c.amax_pass = true;
    if (index >= kFirstPasses) widen_rows(c);
    return c;
  }
  index -= 2 * kFirstPasses;
  if (index < kWide) {
    c.from = kFrom[index % kFroms];
    c.group = kGroups[index / kFroms];
    c.to = Element::e4m3;
    widen_rows(c);
    return c;
  }
  index -= kWide;
  if (index < kTransposed) {
    c.from = kFrom[index % kFroms];
    c.group = kGroups[2 + index / kFroms % 3];
    c.to = Element::e4m3;
    c.transposed = true;
    c.threads = quantizer::kValueThreads;
    if (index >= kFirstPasses) widen_rows(c);
    return c;
  }
  index -= kTransposed;
  if (index < kOperands) return operands_config(index % 4, index / 4 % 2, index / 8);
  index -= kOperands;
  if (index < kSmoothedOperands) {
    c = index < 16 ? operands_config(index % 4, index / 4 % 2, index / 8)
                   : operands_config(index % 2, index / 2 % 2, 2);
    c.smooth = true;
    return c;
  }
  index -= kSmoothedOperands;
  if (index < kDecoded) {
    c.from = kTo[index % kTos];
    c.to = index < kTos ? Element::f16 : Element::bf16;
    c.group = ScaleGroup::none;
    widen_rows(c);
    return c;
  }
  index -= kDecoded;
  if (index < kMeans) {
    const int of = index % (kFroms + 1);
    c.mean_pass = of < kFroms ? 1 : 2;
    if (of < kFroms) c.from = kFrom[of];
    if (index > kFroms) c.columns = 256;
    if (index > kFroms && c.mean_pass == 1) c.load_bytes = element_bytes(c.from);
    return c;
  }
  index -= kMeans;
  if (index < kSmoothed) {
    c.from = kFrom[index % kFroms];
    c.smooth = true;
    const int of =
        index / kFroms % 5;  // the first maxima, and e4m3 per head or row, in both widths
    c.amax_pass = of == 0;
    c.to = of == 0 || of == 3 ? Element::int8 : of == 4 ? Element::sim8 : Element::e4m3;
    c.group = of == 2 ? ScaleGroup::row : of == 3 ? ScaleGroup::block : ScaleGroup::head;
    if (index >= 5 * kFroms) widen_rows(c);
    return c;
  }
  return kOthers[index - kSmoothed];
}

template <int kIndex>
void run(const OperandsParams& p) {
  using Config = quantizer::ConfigOf<kernel_config(kIndex)>;
  if constexpr (Config::value.operands)
    quantizer::quantize_operands<Config>(p);
  else
    quantizer::quantize_rows<Config>(p.q);
}

template <int... i>
std::vector<EmulatedQuantize> instantiate(std::integer_sequence<int, i...>) {
  return {{kernel_config(i), &run<i>}...};
}

}  // namespace

const std::vector<EmulatedQuantize>& quantize_kernels() {
  static constinit MadeOnce<std::vector<EmulatedQuantize>> kernels;
  return kernels.get([] { return instantiate(std::make_integer_sequence<int, kKernels>()); });
}

const EmulatedQuantize* find_quantize(const QuantizeConfig& wanted, int head_dim) {
  const EmulatedQuantize* best = nullptr;
  for (const EmulatedQuantize& kernel : quantize_kernels()) {
    QuantizeConfig c = kernel.config;
    if (c.columns < head_dim || c.load_bytes > wanted.load_bytes) continue;
    if (best != nullptr && best->config.columns < c.columns) continue;
    c.arch = wanted.arch;
    c.columns = wanted.columns;
    c.load_bytes = wanted.load_bytes;
    if (c == wanted) best = &kernel;
  }
  return best;
}

}  // namespace octavo::emulator
