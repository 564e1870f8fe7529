// One row at a time: reading, writing, subtracting the mean, rotating.
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

void mean_rows(const ConstTensor& x, float* mean) {
  const auto [batch, heads, rows, columns] = x.shape;
  if (batch == 0 || heads == 0 || columns == 0) return;
  std::vector<float> row(static_cast<std::size_t>(columns));
  std::vector<double> sum(static_cast<std::size_t>(columns)), part(sum.size());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      sum.assign(sum.size(), 0.0);
      part.assign(sum.size(), 0.0);
      for (std::int64_t s = 0; s < rows; ++s) {
        load_row(x, b, h, s, row.data());
        const bool last = s + 1 == rows || (s + 1) % kMeanRows == 0;
        for (std::size_t c = 0; c < sum.size(); ++c) {
          part[c] += std::isfinite(row[c]) ? static_cast<double>(row[c]) : 0.0;
          if (last) sum[c] += std::exchange(part[c], 0.0);
        }
      }
      const double count = rows == 0 ? 1.0 : static_cast<double>(rows);
      for (const double total : sum) *mean++ = static_cast<float>(total / count);
    }
  }
}

}  // namespace octavo
