// SPDX-License-Identifier: Apache-2.0
// Finds rows that cover all pairs of axis values. With the axes of the case table about 300 rows
// replace 214,272 combinations.
#include <algorithm>
#include <cstddef>

#include "evidence/cases/cases.h"
#include "evidence/cases/decode_cases.h"

namespace octavo::evidence {
namespace {

// The pairs of (axis, value) that are not covered yet.
template <std::size_t axes>
class Uncovered {
 public:
  using Values = std::array<int, axes>;
  static constexpr int kCount = static_cast<int>(axes);

  explicit Uncovered(const Values& sizes) {
    for (int axis = 0; axis < kCount; ++axis) {
      first_[axis] = values_;
      values_ += sizes[axis];
    }
    open_.assign(static_cast<std::size_t>(values_) * values_, false);
    for (int a = 0; a < kCount; ++a)
      for (int b = a + 1; b < kCount; ++b)
        for (int i = 0; i < sizes[a]; ++i)
          for (int j = 0; j < sizes[b]; ++j) at(a, i, b, j) = true;
  }

  bool is_open(int a, int i, int b, int j) {
    return a < b ? bool{at(a, i, b, j)} : bool{at(b, j, a, i)};
  }

  void close(const Values& row) {
    for (int a = 0; a < kCount; ++a)
      for (int b = a + 1; b < kCount; ++b) at(a, row[a], b, row[b]) = false;
  }

  // The first open pair as a row with two values set and -1 elsewhere; false when all are covered.
  bool next(const Values& sizes, Values& row) {
    for (int a = 0; a < kCount; ++a)
      for (int b = a + 1; b < kCount; ++b)
        for (int i = 0; i < sizes[a]; ++i)
          for (int j = 0; j < sizes[b]; ++j)
            if (at(a, i, b, j)) {
              row.fill(-1);
              row[a] = i;
              row[b] = j;
              return true;
            }
    return false;
  }

 private:
  std::vector<bool>::reference at(int a, int i, int b, int j) {
    return open_[static_cast<std::size_t>(first_[a] + i) * values_ + first_[b] + j];
  }

  Values first_{};
  int values_ = 0;
  std::vector<bool> open_;
};

// The value of `axis` that covers most open pairs with the values already set. Ties go to the first
// from `start` on; a start that changes from row to row spreads the values that do not matter.
template <std::size_t axes>
int best_value(Uncovered<axes>& uncovered, const std::array<int, axes>& row, int axis, int size,
               int start) {
  int best = -1;
  int best_gain = -1;
  for (int n = 0; n < size; ++n) {
    const int value = (start + n) % size;
    int gain = 0;
    for (int other = 0; other < static_cast<int>(axes); ++other)
      if (other != axis && row[other] >= 0)
        gain += uncovered.is_open(axis, value, other, row[other]) ? 1 : 0;
    if (gain > best_gain) {
      best = value;
      best_gain = gain;
    }
  }
  return best;
}

}  // namespace

template <std::size_t axes>
std::vector<std::array<int, axes>> covering_rows(const std::array<int, axes>& sizes) {
  std::vector<std::array<int, axes>> rows;
  Uncovered<axes> uncovered(sizes);
  std::array<int, axes> row;
  while (uncovered.next(sizes, row)) {
    const int start = static_cast<int>(rows.size());
    for (int axis = 0; axis < static_cast<int>(axes); ++axis)
      if (row[axis] < 0) row[axis] = best_value(uncovered, row, axis, sizes[axis], start);
    uncovered.close(row);
    rows.push_back(row);
  }
  return rows;
}

template std::vector<AxisValues> covering_rows(const AxisValues& sizes);
template std::vector<DecodeValues> covering_rows(const DecodeValues& sizes);

}  // namespace octavo::evidence
