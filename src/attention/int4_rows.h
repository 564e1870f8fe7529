// SPDX-License-Identifier: Apache-2.0
// Reads rows of the int4 K or V of a paged cache from the arguments of a call.
#pragma once

#include <cstdint>

#include "attention/element_offsets.h"
#include "numeric/int4.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The channels of a row of K or V.
inline std::int64_t row_channels(const ConstTensor& t) {
  return t.dtype == DType::int4 ? 2 * t.shape[3] : t.shape[3];
}

// The scales and zeros of an int4 tensor; the rows of the cache are not changed through it.
inline Int4Groups groups_of(const ConstTensor& t, const GroupScales& scales) {
  auto* const data = const_cast<void*>(scales.data);
  return {static_cast<std::uint16_t*>(data), t.shape[1], t.shape[2], row_channels(t),
          scales.channels};
}

// The number of 32-bit words of the scales and zeros. They cover whole pages, which are multiples
// of sixteen rows.
inline std::int64_t groups_words(const ConstTensor& t, const GroupScales& scales) {
  return t.dtype == DType::int4 ? t.shape[0] * groups_of(t, scales).of_page() / 2 : 0;
}

// Loads one row of a head of a sequence, dequantized.
inline void load_int4(const ConstTensor& t, const Int4Groups& groups, const ElementOffsets& places,
                      const HeadOfSequence& of, std::int64_t row, float* to) {
  const PageTable::Row found = of.pages.find(of.number, row);
  load_int4_row(static_cast<const std::uint8_t*>(t.data) + places.at(row, 0), groups, found.page,
                of.head, found.row, to);
}

}  // namespace octavo
