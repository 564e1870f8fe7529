// SPDX-License-Identifier: Apache-2.0
// A paged KV cache: K and V of many sequences in pages of equal size, for decoding with
// attention(). Sequences share the pages of a common prefix, and a page is copied when one of them
// appends to it (copy on write).
//
//   KvCache cache = KvCache::create({.pages = 512, .heads = 8, .head_dim = 128}).value();
//   const std::int64_t sequence = cache.add_sequence().value();
//   cache.select({{sequence}});              // the batch of the next calls
//   cache.append(k, v);                      // (1, heads, tokens, head_dim): a prompt, then tokens
//   cache.set_arguments(arguments);          // k, v, scales, page table and lengths
//   attention(arguments, {.causal = Causal::bottom_right});
//
// The arrays that set_arguments() provides keep their addresses for the lifetime of the cache. A
// failed call leaves batch, lengths and rows unchanged; an append() that fails late keeps the pages
// that it took, as if reserve() had taken them. Only one thread may use a cache at a time.
//
// On a GPU, pages, page table and lengths are in device memory, and so are the tensors given to
// append(). All calls must use the same stream, which orders them; only read() waits for it.
// append() and attention() can be captured in a CUDA graph that serves growing sequences. The first
// append() of each type must come before the capture:
//
//   cache.append(k, v, {}, stream);                   // a first token
//   cache.reserve(1, stream);
//   ... begin capture, cache.append(k, v, {}, stream), attention(), end capture ...
//   cache.advance(1, stream);                         // before every launch of the graph
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "octavo/octavo.hpp"

namespace octavo {

// The memory order of a cache.
enum class PageLayout : std::uint8_t {
  bhsd,  // (pages, heads, page_size, head_dim)
  bshd,  // (pages, page_size, heads, head_dim)
};

struct KvCacheOptions {
  std::int64_t pages = 0;
  std::int64_t page_size = 64;  // rows of a page: a multiple of 16 from 16 to 256
  std::int64_t heads = 0;       // of K and V
  std::int64_t head_dim = 0;
  // f32, f16, bf16, or quantized: to e4m3, e5m2 or int8 with a scale for each row of each head, or
  // to int4 with a scale and a zero for each group of channels of a row (GroupScales). Not f32 on a
  // GPU, which also needs rows of whole 16 bytes and head_dim up to 256.
  DType dtype = DType::f16;
  PageLayout layout = PageLayout::bhsd;
  std::int64_t max_batch = 64;          // sequences that can be selected together
  std::int64_t pages_per_sequence = 0;  // the most that a sequence can have; 0: all pages
  std::int64_t group = 64;  // of int4: channels that share a scale, 32 or 64, a divisor of head_dim
};

// A rotary position embedding that append() applies to K, before it is quantized. Row p of cos and
// sin holds `pairs` floats, for the pairs of channels of a key at position p of its sequence:
//   (x, y) -> (x cos - y sin, y cos + x sin)
struct Rotary {
  const float* cos = nullptr;  // null: no embedding
  const float* sin = nullptr;
  std::int64_t positions = 0;  // rows of cos and sin
  std::int64_t pairs = 0;      // at most head_dim / 2; channels beyond 2 * pairs stay as they are
  bool interleaved = false;    // pair i is channels 2i and 2i + 1, instead of i and pairs + i
};

class OCTAVO_API KvCache {
 public:
  class Impl;

  static Result<KvCache> create(const KvCacheOptions& options, Device device = {});
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();

  const KvCacheOptions& options() const;
  Device device() const;
  std::int64_t free_pages() const;

  // Both return the number of the new sequence. Numbers are reused after free_sequence(). An added
  // sequence is empty; a fork has the keys of `sequence` and shares its pages.
  Result<std::int64_t> add_sequence();
  Result<std::int64_t> fork(std::int64_t sequence);
  Status free_sequence(std::int64_t sequence, Stream stream = nullptr);
  Result<std::int64_t> length(std::int64_t sequence) const;

  // Makes these sequences the batch of the following calls, in this order. When one of them is
  // freed, the batch is empty until the next call of select(), and the lengths that set_arguments()
  // gave are 0.
  Status select(std::span<const std::int64_t> sequences, Stream stream = nullptr);
  std::int64_t selected() const;  // how many

  // Takes the pages that `tokens` more tokens of each selected sequence need, so that append() of
  // that many tokens changes neither the page table nor the pages of other sequences. Otherwise
  // append() takes pages itself. If there are not enough pages, the status is out_of_memory.
  Status reserve(std::int64_t tokens, Stream stream = nullptr);

  // Call before launching a graph that has captured append() of `tokens` tokens: takes pages for
  // them as reserve() does, and counts the tokens. If it fails, do not launch the graph. A graph
  // that is launched without this call appends nothing to a sequence that lacks pages.
  Status advance(std::int64_t tokens, Stream stream = nullptr);

  // Appends the same number of tokens to each selected sequence, and adds it to the lengths that
  // set_arguments() provides. k and v are (selected, heads, tokens, head_dim) with any strides,
  // f32, f16 or bf16; on a GPU both have the same type. On a GPU this is one kernel, and cos and
  // sin are in device memory.
  Status append(const ConstTensor& k, const ConstTensor& v, const Rotary& rotary = {},
                Stream stream = nullptr);

  // Sets k, v, their scales or groups, page_table and seqlens_kv for a call whose queries are
  // (selected, Hq, Sq, D).
  void set_arguments(Arguments& arguments) const;

  // Copies the keys and values of a sequence to (1, heads, length, head_dim), f32, f16 or bf16, in
  // host memory; 8- and 4-bit values are dequantized.
  Status read(std::int64_t sequence, const Tensor& k, const Tensor& v,
              Stream stream = nullptr) const;

 private:
  explicit KvCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace octavo
