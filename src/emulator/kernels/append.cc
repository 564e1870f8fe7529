// SPDX-License-Identifier: Apache-2.0
#include "emulator/kernels/append.h"

#include <utility>

#include "device/cache/append.cuh"
#include "numeric/fork_safe.h"

namespace octavo::emulator {
namespace {

constexpr Element kFrom[] = {Element::f32, Element::f16, Element::bf16};
constexpr Element kTo[] = {Element::f16,  Element::bf16, Element::e4m3,
                           Element::e5m2, Element::int8, Element::int4};
constexpr int kFroms = 3, kTos = 6;
// First narrow kernels with wide loads, then wide kernels that load single elements, then kernels
// for the other group size of int4.
constexpr int kNarrow = kFroms * kTos, kWide = 2 * kNarrow, kKernels = kWide + kFroms;

constexpr AppendConfig kernel_config(int index) {
  AppendConfig c;
  c.from = kFrom[index % kFroms];
  c.to = index < kWide ? kTo[index / kFroms % kTos] : Element::int4;
  if (index >= kNarrow) {
    c.columns = 256;
    c.load_bytes = element_bytes(c.from);
  }
  if (c.to == Element::int4) c.group = index >= kNarrow && index < kWide ? 64 : 32;
  return c;
}

template <int kIndex>
void run(const append::Params& p) {
  append::append_rows<append::ConfigOf<kernel_config(kIndex)>>(p);
}

template <int... i>
std::vector<EmulatedAppend> all(std::integer_sequence<int, i...>) {
  return {{kernel_config(i), &run<i>}...};
}

}  // namespace

const std::vector<EmulatedAppend>& append_kernels() {
  static constinit MadeOnce<std::vector<EmulatedAppend>> kernels;
  return kernels.get([] { return all(std::make_integer_sequence<int, kKernels>()); });
}

const EmulatedAppend* find_append(const AppendConfig& wanted, int head_dim) {
  for (const EmulatedAppend& kernel : append_kernels()) {
    const AppendConfig& c = kernel.config;
    if (c.from == wanted.from && c.to == wanted.to && c.group == wanted.group &&
        c.columns >= head_dim && c.load_bytes <= wanted.load_bytes)
      return &kernel;
  }
  return nullptr;
}

}  // namespace octavo::emulator
