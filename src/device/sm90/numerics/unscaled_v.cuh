// SPDX-License-Identifier: Apache-2.0
// The members of a numerics policy that are about scales of V, for 16-bit V, which has none. They
// do nothing; those of 8-bit V are in promoted_pv.cuh.
#pragma once

#include "device/sm90/params.cuh"

namespace octavo::sm90 {

template <class G>
struct UnscaledV {
  struct VScales {};
  template <class TileOf>
  static OCTAVO_DEVICE VScales load_v_scales(const Sm90ForwardParams&, TileOf&&) {
    return {};
  }
  static OCTAVO_DEVICE void publish_v_scales(const VScales&, typename G::ThreadCoord) {}
  template <class State>
  static OCTAVO_DEVICE void scale_o(State&, const typename G::RowTile&) {}
  template <int kCount>
  struct ColumnScales {
    OCTAVO_DEVICE void load_first(const Sm90ForwardParams&, const typename G::RowTile&, i32) {}
    OCTAVO_DEVICE void load_last(const Sm90ForwardParams&, const typename G::RowTile&, i32) {}
    OCTAVO_DEVICE void multiply(float*) const {}
  };
};

}  // namespace octavo::sm90
