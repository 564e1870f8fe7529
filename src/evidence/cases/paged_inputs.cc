// SPDX-License-Identifier: Apache-2.0
#include "evidence/cases/paged_inputs.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "numeric/formats.h"
#include "numeric/int4.h"
#include "numeric/random.h"

namespace octavo::evidence {
namespace {

// Random streams of the lengths and of the order of pages.
constexpr std::uint64_t kCacheLengths = 1010, kPageOrder = 1011;
constexpr std::int64_t kUnusedPages = 3;
constexpr std::int64_t kTableGap = 2;  // entries between two sequences
constexpr float kUnusedPageScale = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint16_t kUnusedGroup = 0x7e00;  // NaN

std::int64_t pages_of(const Case& c, std::int64_t keys) {
  return (keys + c.page_size - 1) / c.page_size;
}

// The number of pages that a sequence shares with the first sequence: all pages that both fill, or
// all of its own if it is the shorter one.
std::int64_t shared_pages(const Case& c, const std::vector<Span>& spans, std::size_t b) {
  if (!c.shared_prefix || b == 0) return 0;
  const std::int64_t first = spans[0].length, own = spans[b].length;
  return own <= first ? pages_of(c, own) : first / c.page_size;
}

std::int64_t stride_of_table(const Case& c) { return pages_of(c, c.seqlen_kv) + kTableGap; }

std::vector<std::int32_t> make_table(const Case& c, const std::vector<Span>& spans) {
  const std::int64_t pages = cache_pages(c, spans);
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[random_below(c.seed, kPageOrder, i, i)]);
  if (c.seqlens != Seqlens::plain) {  // the pages to which hostile entries are clamped come first
    std::swap(*std::find(order.begin(), order.end(), 0), order[0]);
    std::swap(*std::find(order.begin(), order.end(), pages - 1), order[1]);
  }
  const std::int64_t stride = stride_of_table(c);
  std::vector<std::int32_t> table(static_cast<std::size_t>(c.batch * stride));
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = i % 2 == 0 ? -1 : static_cast<std::int32_t>(pages);
  auto next = order.begin();
  for (std::size_t b = 0; b < spans.size(); ++b) {
    const auto row = table.begin() + static_cast<std::ptrdiff_t>(b) * stride;
    const std::int64_t shared = shared_pages(c, spans, b);
    std::copy_n(table.begin(), shared, row);
    for (std::int64_t i = shared; i < pages_of(c, spans[b].length); ++i) row[i] = *next++;
  }
  return table;
}

// Replaces entries and lengths by others that kernels must clamp to those of the case: the first
// and the last page by indices outside the cache, the length of an empty sequence by a negative
// one, and of a full sequence by a longer one.
void make_hostile(const Case& c, PagedCache& cache, std::int64_t pages) {
  constexpr std::int32_t kBeyond = 1000;
  for (std::size_t b = 0; b < cache.lengths.size(); ++b) {
    const auto row = cache.table.begin() + static_cast<std::ptrdiff_t>(b) * stride_of_table(c);
    for (std::int64_t i = 0; i < pages_of(c, cache.lengths[b]); ++i) {
      if (row[i] == 0) row[i] = -kBeyond;
      if (row[i] == pages - 1) row[i] += kBeyond;
    }
    if (cache.lengths[b] == 0) cache.lengths[b] = -kBeyond;
    if (cache.lengths[b] == c.seqlen_kv) cache.lengths[b] += kBeyond;
  }
}

// Calls visit(dense place, cache place) with the offset of the first element of each used row.
template <class Visit>
void for_each_cache_row(const Case& c, const Inputs& in, const ConstTensor& dense,
                        const ConstTensor& cache, const Visit& visit) {
  for (std::size_t b = 0; b < in.spans_kv.size(); ++b)
    for (std::int64_t h = 0; h < c.heads_kv; ++h)
      for (std::int64_t j = 0; j < in.spans_kv[b].length; ++j) {
        const std::int64_t page = in.cache.table[static_cast<std::size_t>(
            static_cast<std::int64_t>(b) * stride_of_table(c) + j / c.page_size)];
        visit(static_cast<std::int64_t>(b) * dense.stride[0] + h * dense.stride[1] +
                  j * dense.stride[2],
              page * cache.stride[0] + h * cache.stride[1] + j % c.page_size * cache.stride[2]);
      }
}

// Copies rows from the dense tensor to the cache, or back. Both have one dtype.
enum class To : std::uint8_t { cache, dense };
void copy_cache_rows(const Case& c, const Inputs& in, const Tensor& dense, const Tensor& cache,
                     To to) {
  const auto size = static_cast<std::int64_t>(size_bytes(dense.dtype));
  auto* const dense_bytes = static_cast<std::byte*>(dense.data);
  auto* const cache_bytes = static_cast<std::byte*>(cache.data);
  for_each_cache_row(c, in, dense, cache, [&](std::int64_t at_dense, std::int64_t at_cache) {
    std::byte* const there = dense_bytes + at_dense * size;
    std::byte* const here = cache_bytes + at_cache * size;
    std::memcpy(to == To::cache ? here : there, to == To::cache ? there : here,
                static_cast<std::size_t>(c.head_dim * size));
  });
}

// The cache with all its pages one after another, as the sequence of one batch entry. The memory
// order is (pages, page, heads, dim), contiguous.
Tensor as_sequence(Tensor cache) {
  cache.shape = {1, cache.shape[1], cache.shape[0] * cache.shape[2], cache.shape[3]};
  return cache;
}

// Lays out `found`, the scales of as_sequence() in the order (heads, pages, rows): as contiguous
// (pages, heads, rows) or, for caches with gaps, unchanged with strides. Scales of rows and pages
// that no sequence uses become NaN.
void lay_out_page_scales(const Case& c, const std::vector<float>& found,
                         const std::vector<bool>& used, PagedCache::Operand& operand) {
  Scales& view = operand.scales_view;
  const bool of_pages =
      view.granularity == Granularity::row || view.granularity == Granularity::block;
  operand.scales = found;
  if (of_pages) {
    const std::int64_t pages = operand.memory.view.shape[0];
    const std::int64_t rows = view.granularity == Granularity::row ? c.page_size : 1;
    const std::int64_t per_scale = c.page_size / rows;
    if (c.layout >= Layout::gaps) view.stride = std::array{rows, pages * rows, std::int64_t{1}};
    const auto stride = view.stride.value_or(std::array{c.heads_kv * rows, rows, std::int64_t{1}});
    for (std::int64_t page = 0; page < pages; ++page)
      for (std::int64_t h = 0; h < c.heads_kv; ++h)
        for (std::int64_t i = 0; i < rows; ++i) {
          const auto first = used.begin() + page * c.page_size + i * per_scale;
          const bool is_used = std::find(first, first + per_scale, true) != first + per_scale;
          operand.scales[static_cast<std::size_t>(page * stride[0] + h * stride[1] + i)] =
              is_used ? found[static_cast<std::size_t>((h * pages + page) * rows + i)]
                      : kUnusedPageScale;
        }
  }
  view.data = operand.scales.data();
}

Status quantize_cache(const Case& c, const Inputs& in, DType format, Granularity granularity,
                      const Tensor& dense, const std::vector<bool>& used,
                      PagedCache::Operand& operand) {
  const std::array<std::int64_t, 4> shape = operand.memory.view.shape;
  const TensorMemory wide = make_memory(Layout::bshd, DType::f32, shape);
  copy_cache_rows(c, in, dense, wide.view, To::cache);
  const TensorMemory quantized = make_memory(Layout::bshd, format, shape);
  const Tensor from = as_sequence(wide.view), to = as_sequence(quantized.view);
  QuantizeOptions options;
  options.granularity = granularity;
  options.block_rows = c.page_size;
  std::vector<float> scales(
      static_cast<std::size_t>(scale_count(from.shape, granularity, c.page_size)));
  OCTAVO_RETURN_IF_ERROR(quantize(from, options, to, scales.data()));
  Scales found;
  found.data = scales.data();
  found.granularity = granularity;
  found.block_rows = c.page_size;
  OCTAVO_RETURN_IF_ERROR(dequantize(to, found, from));
  // The quantized values are first written to a dense tensor and then copied to their layout.
  // `dense` becomes their dequantized values.
  const TensorMemory dense_quantized = make_memory(Layout::bhsd, format, dense.shape);
  copy_cache_rows(c, in, dense_quantized.view, quantized.view, To::dense);
  copy_cache_rows(c, in, dense_quantized.view, operand.memory.view, To::cache);
  operand.values = make_memory(Layout::bhsd, DType::f32, dense.shape);
  copy_cache_rows(c, in, operand.values.view, wide.view, To::dense);
  operand.scales_view.granularity = granularity;
  operand.scales_view.block_rows = c.page_size;
  lay_out_page_scales(c, scales, used, operand);
  return {};
}

// The scales and zeros of rows that no sequence uses are NaN.
void quantize_to_int4(const Case& c, const Inputs& in, const Tensor& dense,
                      PagedCache::Operand& operand) {
  const Tensor& cache = operand.memory.view;
  Int4Groups groups{nullptr, c.heads_kv, c.page_size, c.head_dim, c.kv_group};
  operand.groups.assign(static_cast<std::size_t>(cache.shape[0] * groups.of_page()), kUnusedGroup);
  groups.data = operand.groups.data();
  operand.values = make_memory(Layout::bhsd, DType::f32, dense.shape);
  const Tensor& values = operand.values.view;
  for (std::size_t b = 0; b < in.spans_kv.size(); ++b)
    for (std::int64_t h = 0; h < c.heads_kv; ++h)
      for (std::int64_t j = 0; j < in.spans_kv[b].length; ++j) {
        const auto batch = static_cast<std::int64_t>(b);
        const std::int64_t row = j % c.page_size;
        const std::int64_t page =
            in.cache.table[static_cast<std::size_t>(batch * stride_of_table(c) + j / c.page_size)];
        const auto place = [&](const Tensor& t) {
          return static_cast<float*>(t.data) + batch * t.stride[0] + h * t.stride[1] +
                 j * t.stride[2];
        };
        auto* const bytes = static_cast<std::uint8_t*>(cache.data) + page * cache.stride[0] +
                            h * cache.stride[1] + row * cache.stride[2];
        store_int4_row(place(dense), groups, page, h, row, bytes);
        load_int4_row(bytes, groups, page, h, row, place(values));
      }
}

}  // namespace

std::array<std::int64_t, 4> cache_shape(const Case& c, std::int64_t pages) {
  return {pages, c.heads_kv, c.page_size, c.has_int4_cache() ? c.head_dim / 2 : c.head_dim};
}

std::vector<Span> cache_spans(const Case& c) {
  std::vector<Span> spans;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const auto any =
        static_cast<std::int64_t>(random_below(c.seed, kCacheLengths, static_cast<std::uint64_t>(b),
                                               static_cast<std::uint64_t>(c.seqlen_kv) + 1));
    const std::array<std::int64_t, kKeyLengths> lengths = {
        0, 1, c.page_size - 1, c.page_size, c.page_size + 1, c.seqlen_kv - any % c.page_size, any};
    spans.push_back({b, 0, lengths[static_cast<std::size_t>(c.key_lengths)]});
  }
  return spans;
}

std::int64_t cache_pages(const Case& c, const std::vector<Span>& spans) {
  std::int64_t pages = kUnusedPages;
  for (std::size_t b = 0; b < spans.size(); ++b)
    pages += pages_of(c, spans[b].length) - shared_pages(c, spans, b);
  return pages;
}

void share_prefix(const Case& c, const Tensor& dense, const std::vector<Span>& spans) {
  const auto size = static_cast<std::int64_t>(size_bytes(dense.dtype));
  auto* const bytes = static_cast<std::byte*>(dense.data);
  for (std::size_t b = 1; b < spans.size(); ++b) {
    const std::int64_t rows = std::min(shared_pages(c, spans, b) * c.page_size, spans[b].length);
    for (std::int64_t h = 0; h < dense.shape[1]; ++h)
      for (std::int64_t j = 0; j < rows; ++j) {
        const std::int64_t at = h * dense.stride[1] + j * dense.stride[2];
        std::memcpy(bytes + (static_cast<std::int64_t>(b) * dense.stride[0] + at) * size,
                    bytes + at * size, static_cast<std::size_t>(dense.shape[3] * size));
      }
  }
}

Status make_cache(const Case& c, Inputs& in) {
  PagedCache& cache = in.cache;
  cache.table = make_table(c, in.spans_kv);
  for (const Span& span : in.spans_kv)
    cache.lengths.push_back(static_cast<std::int32_t>(span.length));
  const std::int64_t pages = cache_pages(c, in.spans_kv);
  const std::array shape = cache_shape(c, pages);
  std::vector<bool> used(static_cast<std::size_t>(pages * c.page_size), false);
  const Tensor numbered = Tensor::bhsd(nullptr, DType::f32, pages, 1, c.page_size, 1);
  for_each_cache_row(
      c, in, numbered, {nullptr, DType::f32, numbered.shape, {c.page_size, 0, 1, 1}},
      [&used](std::int64_t, std::int64_t row) { used[static_cast<std::size_t>(row)] = true; });
  for (const auto& [format, granularity, dense, operand] :
       {std::tuple{c.k_type(), c.qk_scales, &in.k.wide.view, &cache.k},
        {c.v_type(), c.v_scales, &in.v.wide.view, &cache.v}}) {
    operand->memory = make_memory(c.layout, format, shape);
    if (format == DType::int4)
      quantize_to_int4(c, in, *dense, *operand);
    else if (is_8bit(format))
      OCTAVO_RETURN_IF_ERROR(quantize_cache(c, in, format, granularity, *dense, used, *operand));
    else
      copy_cache_rows(c, in, *dense, operand->memory.view, To::cache);
  }
  cache.dense_lengths = cache.lengths;
  if (c.seqlens == Seqlens::hostile) make_hostile(c, cache, pages);
  return {};
}

Arguments with_cache(const Case& c, const Inputs& in, const Arguments& dense) {
  Arguments a = dense;
  a.k = in.cache.k.memory.view;
  a.v = in.cache.v.memory.view;
  a.k_scales = in.cache.k.scales_view;
  a.v_scales = in.cache.v.scales_view;
  if (c.has_int4_cache()) {
    a.k_groups = {in.cache.k.groups.data(), c.kv_group};
    a.v_groups = {in.cache.v.groups.data(), c.kv_group};
  }
  a.page_table = in.cache.table.data();
  a.page_table_stride = stride_of_table(c);
  a.seqlens_kv = in.cache.lengths.data();
  a.pages_per_sequence = pages_of(c, c.seqlen_kv);
  return a;
}

Arguments with_cached_values(const Inputs& in, const Arguments& dense) {
  Arguments a = dense;
  if (!in.cache.k.values.bytes.empty()) a.k = in.cache.k.values.view;
  if (!in.cache.v.values.bytes.empty()) a.v = in.cache.v.values.view;
  return a;
}

}  // namespace octavo::evidence
