// SPDX-License-Identifier: Apache-2.0
// Configuration of the mma.sync backward kernels (device/sm80/backward.cuh), as a value.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "config/shared_parts.h"

namespace octavo {

// The gradients that one launch computes. Each launch owns the rows of its gradients, so no two
// CTAs add to the same element and the result does not depend on timing.
enum class BackwardPass : int {
  dkv,  // dK and dV: a CTA owns block_n keys and loops over blocks of queries
  dq,   // dQ: a CTA owns block_m queries and loops over blocks of keys
  // The gradient of a bias: a CTA owns block_m queries by block_n keys of it and loops over the
  // sequences and heads for which they hold (device/sm80/bias_gradient.cuh).
  dbias,
};

struct Sm80BackwardConfig {
  int arch = 80;                   // 80, 89 or 90, the chip it is compiled for
  Element element = Element::f16;  // of every tensor: f16 or bf16
  BackwardPass pass = BackwardPass::dkv;
  int head_dim = 64;              // columns of the tiles: the problem's, rounded up
  int block_m = 32;               // queries of a block
  int block_n = 128;              // keys of a block
  int warps = 4;                  // warps along the owned rows
  int warps_d = 1;                // warps along the columns of the gradients
  int stages = 2;                 // buffers of streamed rows in flight
  int load_bytes = 16;            // widest load that every row's address allows
  bool own_in_registers = false;  // else the owned rows are read from shared memory each step
  ModifierConfig modifiers = {};

  bool operator==(const Sm80BackwardConfig&) const = default;
};

namespace sm80 {

OCTAVO_HD constexpr int threads(const Sm80BackwardConfig& c) { return 32 * c.warps * c.warps_d; }
OCTAVO_HD constexpr int row_bytes(const Sm80BackwardConfig& c) {
  return c.head_dim * element_bytes(c.element);
}
OCTAVO_HD constexpr bool owns_keys(const Sm80BackwardConfig& c) {
  return c.pass == BackwardPass::dkv;
}
// Rows that a CTA owns, and rows that it reads in one step.
OCTAVO_HD constexpr int own_rows(const Sm80BackwardConfig& c) {
  return owns_keys(c) ? c.block_n : c.block_m;
}
OCTAVO_HD constexpr int streamed_rows(const Sm80BackwardConfig& c) {
  return owns_keys(c) ? c.block_m : c.block_n;
}

// The shared-memory plan; device/sm80/backward.cuh has the table.
OCTAVO_HD constexpr int own_bytes(const Sm80BackwardConfig& c) {
  return 2 * own_rows(c) * row_bytes(c);
}
OCTAVO_HD constexpr int stage_bytes(const Sm80BackwardConfig& c) {
  return 2 * streamed_rows(c) * row_bytes(c);
}
OCTAVO_HD constexpr int exchange_bytes(const Sm80BackwardConfig& c) {
  return c.warps_d > 1 ? 2 * own_rows(c) * streamed_rows(c) * element_bytes(c.element) : 0;
}
OCTAVO_HD constexpr int stats_bytes(const Sm80BackwardConfig& c) {
  return owns_keys(c) ? 2 * c.block_m * 4 : 0;
}
OCTAVO_HD constexpr int smem_bytes(const Sm80BackwardConfig& c) {
  return own_bytes(c) + c.stages * (stage_bytes(c) + stats_bytes(c)) + exchange_bytes(c);
}

}  // namespace sm80

}  // namespace octavo
