// SPDX-License-Identifier: Apache-2.0
// The memory of a KV cache on a device, and what changes it there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/cache_memory.h"
#include "octavo/kv_cache.hpp"
#include "octavo/octavo.hpp"

namespace octavo {

// Copies of pages in host memory, in the order in which they were requested.
struct HostPages {
  std::vector<std::byte> k, v;
  std::vector<std::byte> k_scales, v_scales;  // or groups
  CacheMemory memory{};
};

// On a GPU every operation is ordered by its stream, and only download() waits for it.
class CacheStore {
 public:
  static Result<std::unique_ptr<CacheStore>> make(const KvCacheOptions& options, Device device);
  CacheStore() = default;
  virtual ~CacheStore() = default;
  CacheStore(const CacheStore&) = delete;
  CacheStore& operator=(const CacheStore&) = delete;

  const CacheMemory& memory() const { return memory_; }
  const CacheBatch& batch() const { return batch_; }

  // Whether work in the stream is recorded into a CUDA graph instead of running.
  virtual Result<bool> is_captured(Stream stream) const = 0;

  // Writes the page table's row of batch entry `slot`, from its entry `first` on.
  Status write_pages(std::size_t slot, std::int64_t first, std::span<const std::int32_t> pages,
                     Stream stream) const;
  // Write the lengths of the first batch entries, and the numbers of rows that their pages can
  // hold.
  Status write_lengths(std::span<const std::int32_t> lengths, Stream stream) const;
  Status write_capacities(std::span<const std::int32_t> capacities, Stream stream) const;
  Status copy_page(std::int32_t from, std::int32_t to, Stream stream) const;
  // Copies pages to the host. `options` are those of make().
  Status download(const KvCacheOptions& options, std::span<const std::int32_t> pages, HostPages& to,
                  Stream stream) const;

  // Writes new rows after the last rows of each sequence of the batch, and adds their number to the
  // lengths. The page table must have pages for them.
  virtual Status append(const ConstTensor& k, const ConstTensor& v, const Rotary& rotary,
                        Stream stream) = 0;

 protected:
  virtual Status upload(void* to, const void* from, std::size_t bytes, Stream stream) const = 0;
  virtual Status fetch(void* to, const void* from, std::size_t bytes, Stream stream) const = 0;
  virtual Status copy(void* to, const void* from, std::size_t bytes, Stream stream) const = 0;
  virtual Status wait(Stream stream) const = 0;

 private:
  Status allocate(const KvCacheOptions& options, Device device);

  CacheMemory memory_{};
  CacheBatch batch_{};
  std::size_t page_scale_bytes_ = 0;  // of the scales or groups of a page
  Buffer k_, v_, k_scales_, v_scales_, table_, counters_;
};

}  // namespace octavo
