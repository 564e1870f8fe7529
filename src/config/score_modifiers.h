// Fields that the configurations of all forward kernels have for changes to the scores: `softcap`,
// `bias`, `alibi`, `mask` (a tensor), `sinks`, and `padded` for padded batches. A field says that
// the kernel can apply the change; a neutral value in ScoreModifierParams still switches it off.
#pragma once

#include "config/portable.h"

namespace octavo {

// Whether the kernel computes scores beyond scale * q k; they are then in log2 units.
template <class Config>
OCTAVO_HD constexpr bool changes_scores(const Config& c) {
  return c.softcap || c.bias || c.alibi;
}

// Whether the kernel takes ModifierParams.
template <class Config>
OCTAVO_HD constexpr bool has_modifiers(const Config& c) {
  return changes_scores(c) || c.mask || c.sinks || c.padded;
}

}  // namespace octavo
