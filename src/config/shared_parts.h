// SPDX-License-Identifier: Apache-2.0
// Parts that the configurations of several kernels share.
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo {

struct OutputConfig {
  Element element = Element::f16;  // of O: f16, bf16, f32, e4m3, e5m2 or int8
  bool amax = false;               // the largest |O| is collected, per tensor or per head

  bool operator==(const OutputConfig&) const = default;
};

// The changes of the scores that a kernel can make, and whether it takes padded batches. A
// neutral value in ScoreModifierParams still switches a modifier off.
struct ModifierConfig {
  bool softcap = false;
  bool bias = false;
  Element bias_element = Element::f32;  // sm90 forward only: f16, bf16 or f32. Other kernels read
                                        // the type from ScoreModifierParams
  bool alibi = false;
  bool mask = false;         // a mask tensor
  bool score_tiles = false;  // sm90 forward only: bias and mask come through shared memory, by TMA
  bool sinks = false;        // one more term of each row's sum; the backward pass has it in the LSE
  bool padded = false;       // padded batches
  int block_mask = 0;        // the size of a block mask's blocks, 64 or 128; 0: none

  bool operator==(const ModifierConfig&) const = default;
};

// Whether scores are more than scale * q k; they are then in log2 units.
OCTAVO_HD constexpr bool changes_scores(const ModifierConfig& m) {
  return m.softcap || m.bias || m.alibi;
}

OCTAVO_HD constexpr int count(const ModifierConfig& m) {
  return m.softcap + m.bias + m.alibi + m.mask + m.sinks + m.padded + (m.block_mask != 0 ? 1 : 0);
}

// Whether the kernel takes ModifierParams.
OCTAVO_HD constexpr bool any(const ModifierConfig& m) { return count(m) > 0; }

// Whether a kernel with modifiers `m` can apply everything that `wanted` has.
OCTAVO_HD constexpr bool includes(const ModifierConfig& m, const ModifierConfig& wanted) {
  if (wanted.bias && m.bias_element != wanted.bias_element) return false;
  if (m.score_tiles && !wanted.score_tiles) return false;
  if (m.block_mask != wanted.block_mask) return false;
  return m.softcap >= wanted.softcap && m.bias >= wanted.bias && m.alibi >= wanted.alibi &&
         m.mask >= wanted.mask && m.sinks >= wanted.sinks && m.padded >= wanted.padded;
}

}  // namespace octavo
