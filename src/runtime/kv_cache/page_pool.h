// SPDX-License-Identifier: Apache-2.0
// Keeps track of the pages of a KV cache: which pages are free, and how many sequences use each of
// the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

class PagePool {
 public:
  explicit PagePool(std::int64_t pages) : users_(static_cast<std::size_t>(pages), 0) {
    free_.reserve(users_.size());
    for (std::int64_t page = pages; page > 0; --page)
      free_.push_back(static_cast<std::int32_t>(page - 1));
  }

  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t users(std::int32_t page) const { return users_[static_cast<std::size_t>(page)]; }
  bool is_shared(std::int32_t page) const { return users(page) > 1; }

  // Requires a free page, which then has one user.
  std::int32_t take() {
    const std::int32_t page = free_.back();
    free_.pop_back();
    users_[static_cast<std::size_t>(page)] = 1;
    return page;
  }
  void add_user(std::int32_t page) { ++users_[static_cast<std::size_t>(page)]; }
  void remove_user(std::int32_t page) {
    if (--users_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);  // within capacity
  }

 private:
  std::vector<std::int32_t> users_;
  std::vector<std::int32_t> free_;  // the last is taken first
};

}  // namespace octavo
