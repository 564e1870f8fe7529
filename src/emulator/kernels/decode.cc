// SPDX-License-Identifier: Apache-2.0
#include "emulator/kernels/decode.h"

#include <array>
#include <utility>

#include "device/decode/combine.cuh"
#include "device/decode/decode.cuh"
#include "numeric/fork_safe.h"

namespace octavo::emulator {
namespace {

constexpr DecodeConfig small(int arch, Element element, Element kv, int head_dim) {
  DecodeConfig c{.arch = arch, .element = element, .kv = kv, .out = element, .head_dim = head_dim};
  c.block_n = element_bytes(kv) == 1 ? 32 : 16;
  c.stages = 3;
  return c;
}

constexpr DecodeConfig int4(int arch, Element element, int head_dim, int group) {
  DecodeConfig c = small(arch, element, Element::int4, head_dim);
  c.block_n = 64;
  c.warps = 2;
  c.stages = 2;
  c.group = group;
  return c;
}

constexpr DecodeConfig with_8_rows(DecodeConfig c) {
  c.block_m = 8;
  c.block_n = c.kv == Element::int4 ? 32 : 16;
  return c;
}

constexpr DecodeConfig with_32_rows(DecodeConfig c) {
  c.block_m = 32;
  c.block_n *= 2;
  c.warps = 2;
  c.stages = 2;
  return c;
}

constexpr DecodeConfig with_draft_tree(DecodeConfig c) {
  c.draft_tree = true;
  return c;
}

constexpr DecodeConfig with_batch_invariant(DecodeConfig c) {
  c.batch_invariant = true;
  return c;
}

constexpr DecodeConfig with_clusters(DecodeConfig c) {
  c.clusters = true;
  return c;
}

constexpr DecodeConfig with_f32_out(DecodeConfig c) {
  c.out = Element::f32;
  return c;
}

constexpr std::array kConfigs = {
    small(89, Element::f16, Element::f16, 64),
    small(89, Element::bf16, Element::int8, 64),
    small(90, Element::f16, Element::f16, 64),
    small(90, Element::bf16, Element::bf16, 128),
    with_8_rows(small(90, Element::f16, Element::f16, 96)),
    with_8_rows(small(90, Element::f16, Element::f16, 64)),
    with_8_rows(small(90, Element::bf16, Element::bf16, 128)),
    with_32_rows(small(90, Element::bf16, Element::bf16, 128)),
    with_f32_out(with_8_rows(small(90, Element::f16, Element::f16, 64))),
    small(90, Element::f16, Element::e4m3, 64),
    small(90, Element::bf16, Element::e4m3, 128),
    with_8_rows(small(90, Element::bf16, Element::e4m3, 128)),
    with_8_rows(small(90, Element::f16, Element::e5m2, 64)),
    small(90, Element::bf16, Element::e5m2, 64),
    small(90, Element::f16, Element::int8, 64),
    with_8_rows(small(90, Element::bf16, Element::int8, 64)),
    with_32_rows(small(90, Element::bf16, Element::int8, 64)),
    with_8_rows(int4(90, Element::f16, 64, 32)),
    int4(90, Element::bf16, 128, 64),
    with_8_rows(int4(90, Element::bf16, 128, 64)),
    int4(90, Element::f16, 128, 32),
    int4(89, Element::bf16, 64, 64),
    with_draft_tree(with_8_rows(small(90, Element::f16, Element::f16, 64))),
    with_draft_tree(small(90, Element::bf16, Element::int8, 64)),
    with_draft_tree(int4(90, Element::bf16, 128, 64)),
    with_batch_invariant(with_8_rows(small(90, Element::f16, Element::f16, 64))),
    with_batch_invariant(small(90, Element::bf16, Element::int8, 64)),
    with_clusters(with_8_rows(small(90, Element::f16, Element::f16, 64))),
    with_clusters(small(90, Element::bf16, Element::int8, 64)),
};

template <int kIndex>
void run(const decode::Params& p) {
  decode::decode_attention<decode::ConfigOf<kConfigs[kIndex]>>(p);
}
template <int kIndex>
void run_combine(const decode::Params& p) {
  decode::decode_combine<decode::ConfigOf<kConfigs[kIndex]>>(p);
}

template <int... i>
std::vector<EmulatedDecode> all(std::integer_sequence<int, i...>) {
  return {{kConfigs[i], &run<i>, &run_combine<i>}...};
}

}  // namespace

const std::vector<EmulatedDecode>& decode_kernels() {
  static constinit MadeOnce<std::vector<EmulatedDecode>> kernels;
  return kernels.get([] { return all(std::make_integer_sequence<int, kConfigs.size()>()); });
}

}  // namespace octavo::emulator
