// Offsets of the elements of one head of one sequence in their tensor, for both layouts of V.
#pragma once

#include <cstdint>

#include "numeric/transposed.h"
#include "octavo/octavo.hpp"

namespace octavo {

// One head of one sequence.
struct HeadOfSequence {
  std::int64_t number = 0;  // index of the sequence
  std::int64_t batch = 0;   // index into the tensor's batch dimension
  std::int64_t begin = 0;   // first row; nonzero only in a varlen batch
  std::int64_t head = 0;
};

class ElementPlaces {
 public:
  ElementPlaces(const ConstTensor& t, VLayout layout, bool varlen, const HeadOfSequence& of)
      : transposed_(layout == VLayout::transposed),
        stride_(t.stride[2]),
        first_(of.batch * t.stride[0] + of.head * t.stride[1]) {
    if (!transposed_) first_ += of.begin * stride_;
    if (transposed_ && varlen) first_ += transposed_begin(of.begin, of.number);
  }

  // `row` counts from the sequence's first row.
  std::int64_t at(std::int64_t row, std::int64_t column) const {
    return transposed_ ? first_ + column * stride_ + place_of_key(row)
                       : first_ + row * stride_ + column;
  }
  std::int64_t column_stride() const { return transposed_ ? stride_ : 1; }

 private:
  bool transposed_;
  std::int64_t stride_;
  std::int64_t first_;
};

}  // namespace octavo
