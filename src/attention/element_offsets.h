// SPDX-License-Identifier: Apache-2.0
// Offsets of the elements of one head of one sequence in their tensor: for both layouts of V, and
// for paged caches.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/pages.h"
#include "numeric/transposed.h"
#include "octavo/octavo.hpp"

namespace octavo {

// One head of one sequence.
struct HeadOfSequence {
  std::int64_t number = 0;  // index of the sequence
  std::int64_t batch = 0;   // index into the tensor's batch dimension
  std::int64_t begin = 0;   // first row; nonzero only in a varlen batch
  std::int64_t head = 0;
  PageTable pages{};  // of K and V in a paged cache
};

class ElementOffsets {
 public:
  ElementOffsets(const ConstTensor& t, VLayout layout, bool varlen, const HeadOfSequence& of)
      : transposed_(layout == VLayout::transposed),
        stride_(t.stride[2]),
        page_stride_(t.stride[0]),
        first_(of.head * t.stride[1]),
        number_(of.number),
        pages_(of.pages) {
    if (pages_.present()) return;
    first_ += of.batch * t.stride[0];
    if (!transposed_) first_ += of.begin * stride_;
    if (transposed_ && varlen) first_ += transposed_begin(of.begin, of.number);
  }

  // `row` counts from the sequence's first row.
  std::int64_t at(std::int64_t row, std::int64_t column) const {
    if (pages_.present()) {
      const PageTable::Row found = pages_.find(number_, row);
      return first_ + found.page * page_stride_ + found.row * stride_ + column;
    }
    return transposed_ ? first_ + column * stride_ + place_of_key(row)
                       : first_ + row * stride_ + column;
  }
  // How many of the `rows` rows that begin at `row` are one stride apart: in a paged cache, those
  // on the same page.
  std::int64_t rows_together(std::int64_t row, std::int64_t rows) const {
    return pages_.present() ? std::min(rows, pages_.page_size() - row % pages_.page_size()) : rows;
  }
  std::int64_t column_stride() const { return transposed_ ? stride_ : 1; }

 private:
  bool transposed_;
  std::int64_t stride_;
  std::int64_t page_stride_;
  std::int64_t first_;
  std::int64_t number_;
  PageTable pages_;
};

}  // namespace octavo
