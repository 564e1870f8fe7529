// SPDX-License-Identifier: Apache-2.0
#include "cpu/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cpu/attention.h"
#include "cpu/thread_pool.h"
#include "numeric/formats.h"
#include "numeric/int4.h"
#include "numeric/quantize.h"
#include "numeric/scale.h"

namespace octavo::cpu {
namespace {

void rotate(const Rotary& rotary, std::int64_t position, float* row) {
  const float* const cos = rotary.cos + position * rotary.pairs;
  const float* const sin = rotary.sin + position * rotary.pairs;
  for (std::int64_t i = 0; i < rotary.pairs; ++i) {
    float& x = row[rotary.interleaved ? 2 * i : i];
    float& y = row[rotary.interleaved ? 2 * i + 1 : rotary.pairs + i];
    const float rotated = x * cos[i] - y * sin[i];
    y = y * cos[i] + x * sin[i];
    x = rotated;
  }
}

// Quantizes a row as quantize() does with a scale per row, and returns the scale.
float quantize_row(DType format, const float* row, std::int64_t columns, std::uint8_t* to) {
  float amax = 0;
  for (std::int64_t c = 0; c < columns; ++c)
    if (std::isfinite(row[c])) amax = std::max(amax, std::abs(row[c]));
  const float scale = scale_from_amax(format, amax);
  const float inverse = inverse_of_found(format, step_of(format, scale));
  for (std::int64_t c = 0; c < columns; ++c) to[c] = encode_8bit(format, row[c] * inverse);
  return scale;
}

void store_cache_row(const Tensor& cache, float* scales, const Int4Groups& groups,
                     std::int64_t page, std::int64_t head, std::int64_t row_of_page,
                     const float* row) {
  if (cache.dtype <= DType::bf16) return store_row(cache, page, head, row_of_page, row);
  auto* const to = static_cast<std::uint8_t*>(cache.data) + page * cache.stride[0] +
                   head * cache.stride[1] + row_of_page * cache.stride[2];
  if (cache.dtype == DType::int4) return store_int4_row(row, groups, page, head, row_of_page, to);
  scales[(page * cache.shape[1] + head) * cache.shape[2] + row_of_page] =
      quantize_row(cache.dtype, row, cache.shape[3], to);
}

}  // namespace

void append_rows(const CacheMemory& cache, const CacheBatch& batch, const ConstTensor& k,
                 const ConstTensor& v, const Rotary& rotary) {
  const std::int64_t heads = k.shape[1], tokens = k.shape[2], columns = k.shape[3];
  const std::int64_t page_size = cache.k.shape[2];
  parallel_for(k.shape[0] * heads, thread_count(), [&](std::int64_t task, int) {
    const std::int64_t b = task / heads, head = task % heads;
    std::vector<float> row(static_cast<std::size_t>(columns));
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t position = batch.lengths[b] + i;
      const std::int64_t page =
          batch.page_table[b * batch.page_table_stride + position / page_size];
      load_row(k, b, head, i, row.data());
      if (rotary.cos != nullptr) rotate(rotary, position, row.data());
      store_cache_row(cache.k, cache.k_scales, cache.k_groups, page, head, position % page_size,
                      row.data());
      load_row(v, b, head, i, row.data());
      store_cache_row(cache.v, cache.v_scales, cache.v_groups, page, head, position % page_size,
                      row.data());
    }
  });
  for (std::int64_t b = 0; b < k.shape[0]; ++b)
    batch.lengths[b] += static_cast<std::int32_t>(tokens);
}

}  // namespace octavo::cpu
