// SPDX-License-Identifier: Apache-2.0
// One row at a time: reading, writing, subtracting the mean, rotating.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "numeric/formats.h"
#include "numeric/quantize.h"

namespace octavo {
namespace {

template <class T, class Void>
T* row_pointer(const BasicTensor<Void>& x, std::int64_t b, std::int64_t h, std::int64_t s) {
  return static_cast<T*>(x.data) + b * x.stride[0] + h * x.stride[1] + s * x.stride[2];
}

}  // namespace

void load_row(const ConstTensor& x, std::int64_t b, std::int64_t h, std::int64_t s, float* row) {
  const std::int64_t columns = x.shape[3];
  const auto decode = [&](const auto* from, auto&& decode_one) {
    for (std::int64_t c = 0; c < columns; ++c) row[c] = decode_one(from[c]);
  };
  switch (x.dtype) {
    case DType::f32:
      return decode(row_pointer<const float>(x, b, h, s), [](float value) { return value; });
    case DType::f16:
      return decode(row_pointer<const std::uint16_t>(x, b, h, s), f32_from_f16);
    case DType::bf16:
      return decode(row_pointer<const std::uint16_t>(x, b, h, s), f32_from_bf16);
    default: {
      const std::array<float, 256>& table = decode_table(x.dtype);
      return decode(row_pointer<const std::uint8_t>(x, b, h, s),
                    [&table](std::uint8_t code) { return table[code]; });
    }
  }
}

void store_row(const Tensor& x, std::int64_t b, std::int64_t h, std::int64_t s, const float* row) {
  const std::int64_t columns = x.shape[3];
  const auto encode = [&](auto* to, auto&& encode_one) {
    for (std::int64_t c = 0; c < columns; ++c) to[c] = encode_one(row[c]);
  };
  switch (x.dtype) {
    case DType::f16:
      return encode(row_pointer<std::uint16_t>(x, b, h, s), f16_from_f32);
    case DType::bf16:
      return encode(row_pointer<std::uint16_t>(x, b, h, s), bf16_from_f32);
    default:
      return encode(row_pointer<float>(x, b, h, s), [](float value) { return value; });
  }
}

void RowTransform::apply(float* row, std::int64_t columns) const {
  if (mean != nullptr)
    for (std::int64_t c = 0; c < columns; ++c) row[c] -= mean[c];
  if (hadamard) hadamard_rotate(row, columns);
}

void hadamard_rotate(float* row, std::int64_t columns) {
  if (columns == 0) return;
  const std::int64_t n = columns & -columns;
  for (std::int64_t distance = 1; distance < n; distance *= 2) {
    for (std::int64_t block = 0; block < columns; block += 2 * distance) {
      for (std::int64_t c = block; c < block + distance; ++c) {
        const float a = row[c];
        const float b = row[c + distance];
        row[c] = a + b;
        row[c + distance] = a - b;
      }
    }
  }
  const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (std::int64_t c = 0; c < columns; ++c) row[c] *= norm;
}

RowSums::RowSums(double* memory, std::int64_t columns)
    : sums_(memory), part_(memory + columns), columns_(columns) {
  std::fill_n(memory, 2 * columns, 0.0);
}

void RowSums::add(const float* row) {
  for (std::int64_t c = 0; c < columns_; ++c)
    part_[c] += std::isfinite(row[c]) ? static_cast<double>(row[c]) : 0.0;
  if (++rows_ % kMeanRows == 0) add_part();
}

void RowSums::add_part() {
  for (std::int64_t c = 0; c < columns_; ++c) sums_[c] += std::exchange(part_[c], 0.0);
}

void RowSums::mean(float* to) {
  add_part();
  const auto count = static_cast<double>(std::max<std::int64_t>(rows_, 1));
  for (std::int64_t c = 0; c < columns_; ++c) to[c] = static_cast<float>(sums_[c] / count);
}

void mean_rows(const ConstTensor& x, float* mean) {
  const auto [batch, heads, rows, columns] = x.shape;
  if (batch == 0 || heads == 0 || columns == 0) return;
  std::vector<float> row(static_cast<std::size_t>(columns));
  std::vector<double> memory(2 * row.size());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h, mean += columns) {
      RowSums sums(memory.data(), columns);
      for (std::int64_t s = 0; s < rows; ++s) {
        load_row(x, b, h, s, row.data());
        sums.add(row.data());
      }
      sums.mean(mean);
    }
  }
}

}  // namespace octavo
