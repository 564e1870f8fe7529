// Fields that the configurations of all forward kernels have for changes to the scores: `softcap`,
// `bias` (sm90: of type `bias_element`), `alibi`, `mask` (a tensor), `sinks`, and `padded` for
// padded batches. A field says that
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

// Whether a kernel of configuration `c` can apply everything that `wanted` can.
template <class Config>
OCTAVO_HD constexpr bool includes_modifiers(const Config& c, const Config& wanted) {
  if constexpr (requires { c.bias_element; }) {
    if (wanted.bias && c.bias_element != wanted.bias_element) return false;
    if (c.score_tiles && !wanted.score_tiles) return false;
  }
  return c.softcap >= wanted.softcap && c.bias >= wanted.bias && c.alibi >= wanted.alibi &&
         c.mask >= wanted.mask && c.sinks >= wanted.sinks && c.padded >= wanted.padded;
}

// How many of the fields are set.
template <class Config>
OCTAVO_HD constexpr int modifier_count(const Config& c) {
  return c.softcap + c.bias + c.alibi + c.mask + c.sinks + c.padded;
}

template <class Config>
OCTAVO_HD constexpr void copy_modifiers(const Config& from, Config& to) {
  to.softcap = from.softcap;
  to.bias = from.bias;
  if constexpr (requires { to.bias_element; }) to.bias_element = from.bias_element;
  to.alibi = from.alibi;
  to.mask = from.mask;
  to.sinks = from.sinks;
  to.padded = from.padded;
}

}  // namespace octavo
