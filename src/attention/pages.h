// SPDX-License-Identifier: Apache-2.0
// The page table of a paged KV cache: which page holds a key of a sequence, and in which row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "octavo/octavo.hpp"

namespace octavo {

inline bool is_paged(const Arguments& a) { return a.page_table != nullptr; }

// The number of entries from the first of the table to the last, inclusive.
inline std::int64_t page_table_extent(const Arguments& a) {
  const std::int64_t sequences = a.q.shape[0];
  if (!is_paged(a) || sequences == 0 || a.pages_per_sequence == 0) return 0;
  return (sequences - 1) * a.page_table_stride + a.pages_per_sequence;
}

class PageTable {
 public:
  struct Row {
    std::int64_t page, row;
  };

  PageTable() = default;  // of a cache without pages
  explicit PageTable(const Arguments& a)
      : entries_(a.page_table),
        stride_(a.page_table_stride),
        page_size_(a.k.shape[2]),
        last_page_(std::max<std::int64_t>(a.k.shape[0] - 1, 0)) {}

  bool present() const { return entries_ != nullptr; }
  std::int64_t page_size() const { return page_size_; }
  // Finds the page and row of a key. Entries are clamped, never trusted, so the page is always one
  // of the cache.
  Row find(std::int64_t sequence, std::int64_t key) const {
    const std::int64_t entry = entries_[sequence * stride_ + key / page_size_];
    return {std::clamp<std::int64_t>(entry, 0, last_page_), key % page_size_};
  }

 private:
  const std::int32_t* entries_ = nullptr;
  std::int64_t stride_ = 0, page_size_ = 0, last_page_ = 0;
};

}  // namespace octavo
