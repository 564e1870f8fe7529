// SPDX-License-Identifier: Apache-2.0
// The C interface of merge_states() and of the KV cache.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/error.h"
#include "octavo/kv_cache.hpp"
#include "octavo/octavo.h"
#include "runtime/c_api/c_reading.h"

struct octavo_kv_cache {
  octavo::KvCache cache;
};

namespace octavo {
namespace {

static_assert(static_cast<int>(PageLayout::bshd) == OCTAVO_PAGES_BSHD);

Status read_options(const octavo_kv_cache_options* given, KvCacheOptions& out) {
  octavo_kv_cache_options c;
  octavo_kv_cache_options_init(&c);
  OCTAVO_RETURN_IF_ERROR(read_sized(given, "options", c));
  out.pages = c.pages;
  out.page_size = c.page_size;
  out.heads = c.heads;
  out.head_dim = c.head_dim;
  out.max_batch = c.max_batch;
  out.pages_per_sequence = c.pages_per_sequence;
  out.group = c.group;
  OCTAVO_RETURN_IF_ERROR(read_enum(c.dtype, "dtype", kDTypes, out.dtype));
  return read_enum(c.layout, "layout", "bhsd, bshd", out.layout);
}

Status read_rotary(const octavo_rotary* given, Rotary& out) {
  if (given == nullptr) return {};
  octavo_rotary c;
  octavo_rotary_init(&c);
  OCTAVO_RETURN_IF_ERROR(read_sized(given, "rotary", c));
  out = {c.cos, c.sin, c.positions, c.pairs, c.interleaved != 0};
  return {};
}

template <class Void>
Status read_required(const octavo_tensor* given, std::string_view what, BasicTensor<Void>& out) {
  OCTAVO_RETURN_IF_ERROR(require(given, what));
  return read_tensor(*given, what, out);
}

Status read_parts(const octavo_tensor* given, std::string_view what, std::size_t parts,
                  std::vector<ConstTensor>& out) {
  if (parts == 0) return {};
  OCTAVO_RETURN_IF_ERROR(require(given, what));
  out.resize(parts);
  for (std::size_t i = 0; i < parts; ++i)
    OCTAVO_RETURN_IF_ERROR(read_tensor(given[i], fmt::format("{}[{}]", what, i), out[i]));
  return {};
}

octavo_tensor cache_view(const ConstTensor& t) {
  octavo_tensor c{const_cast<void*>(t.data), static_cast<std::int32_t>(t.dtype), {}, {}};
  std::copy(t.shape.begin(), t.shape.end(), c.shape);
  std::copy(t.stride.begin(), t.stride.end(), c.stride);
  return c;
}

octavo_scales cache_scales(const Scales& scales) {
  return {scales.data, static_cast<std::int32_t>(scales.granularity), scales.block_rows, {0, 0, 0}};
}

// Runs a body with the cache and writes its result.
template <class Cache, class Body>
octavo_status with_result(Cache* cache, std::int64_t* result, std::string_view what,
                          const Body& body) {
  return guarded([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(require(cache, "cache"));
    OCTAVO_RETURN_IF_ERROR(require(result, what));
    const Result<std::int64_t> found = body(cache->cache);
    if (found.ok()) *result = *found;
    return found.status();
  });
}

template <class Cache, class Body>
octavo_status with_cache(Cache* cache, const Body& body) {
  return guarded([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(require(cache, "cache"));
    return body(cache->cache);
  });
}

}  // namespace
}  // namespace octavo

using octavo::KvCache;
using octavo::Status;

extern "C" {

octavo_status octavo_merge_states(const octavo_tensor* outs, const octavo_tensor* lses,
                                  size_t parts, const octavo_tensor* out, const octavo_tensor* lse,
                                  const char* device, void* stream) {
  return octavo::guarded([&]() -> Status {
    std::vector<octavo::ConstTensor> out_parts, lse_parts;
    OCTAVO_RETURN_IF_ERROR(octavo::read_parts(outs, "outs", parts, out_parts));
    OCTAVO_RETURN_IF_ERROR(octavo::read_parts(lses, "lses", parts, lse_parts));
    octavo::Tensor merged, merged_lse;
    OCTAVO_RETURN_IF_ERROR(octavo::read_required(out, "out", merged));
    if (lse != nullptr) OCTAVO_RETURN_IF_ERROR(octavo::read_tensor(*lse, "lse", merged_lse));
    octavo::Device on;
    OCTAVO_RETURN_IF_ERROR(octavo::read_device(device, on));
    return octavo::merge_states(out_parts, lse_parts, merged, merged_lse, on, stream);
  });
}

void octavo_kv_cache_options_init_sized(octavo_kv_cache_options* options, size_t size) {
  const octavo::KvCacheOptions defaults;
  octavo_kv_cache_options o{};
  o.page_size = defaults.page_size;
  o.dtype = static_cast<int32_t>(defaults.dtype);
  o.max_batch = defaults.max_batch;
  o.group = defaults.group;
  octavo::write_sized(o, options, size);
}

void octavo_rotary_init_sized(octavo_rotary* rotary, size_t size) {
  octavo::write_sized(octavo_rotary{}, rotary, size);
}

octavo_status octavo_kv_cache_create(const octavo_kv_cache_options* options, const char* device,
                                     octavo_kv_cache** cache) {
  return octavo::guarded([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(octavo::require(cache, "cache"));
    octavo::KvCacheOptions read;
    OCTAVO_RETURN_IF_ERROR(octavo::read_options(options, read));
    octavo::Device on;
    OCTAVO_RETURN_IF_ERROR(octavo::read_device(device, on));
    octavo::Result<KvCache> made = KvCache::create(read, on);
    if (!made.ok()) return made.status();
    *cache = new octavo_kv_cache{*std::move(made)};
    return {};
  });
}

void octavo_kv_cache_destroy(octavo_kv_cache* cache) { delete cache; }

octavo_status octavo_kv_cache_add_sequence(octavo_kv_cache* cache, int64_t* sequence) {
  return octavo::with_result(cache, sequence, "sequence",
                             [](KvCache& c) { return c.add_sequence(); });
}

octavo_status octavo_kv_cache_fork(octavo_kv_cache* cache, int64_t sequence, int64_t* forked) {
  return octavo::with_result(cache, forked, "forked", [&](KvCache& c) { return c.fork(sequence); });
}

octavo_status octavo_kv_cache_free_sequence(octavo_kv_cache* cache, int64_t sequence,
                                            void* stream) {
  return octavo::with_cache(cache, [&](KvCache& c) { return c.free_sequence(sequence, stream); });
}

octavo_status octavo_kv_cache_length(const octavo_kv_cache* cache, int64_t sequence,
                                     int64_t* length) {
  return octavo::with_result(cache, length, "length",
                             [&](const KvCache& c) { return c.length(sequence); });
}

octavo_status octavo_kv_cache_free_pages(const octavo_kv_cache* cache, int64_t* pages) {
  return octavo::with_result(cache, pages, "pages", [](const KvCache& c) {
    return octavo::Result<std::int64_t>(c.free_pages());
  });
}

octavo_status octavo_kv_cache_select(octavo_kv_cache* cache, const int64_t* sequences, size_t count,
                                     void* stream) {
  return octavo::with_cache(cache, [&](KvCache& c) -> Status {
    if (count > 0) OCTAVO_RETURN_IF_ERROR(octavo::require(sequences, "sequences"));
    return c.select({sequences, count}, stream);
  });
}

octavo_status octavo_kv_cache_reserve(octavo_kv_cache* cache, int64_t tokens, void* stream) {
  return octavo::with_cache(cache, [&](KvCache& c) { return c.reserve(tokens, stream); });
}

octavo_status octavo_kv_cache_advance(octavo_kv_cache* cache, int64_t tokens, void* stream) {
  return octavo::with_cache(cache, [&](KvCache& c) { return c.advance(tokens, stream); });
}

octavo_status octavo_kv_cache_append(octavo_kv_cache* cache, const octavo_tensor* k,
                                     const octavo_tensor* v, const octavo_rotary* rotary,
                                     void* stream) {
  return octavo::with_cache(cache, [&](KvCache& c) -> Status {
    octavo::ConstTensor new_k, new_v;
    octavo::Rotary turned;
    OCTAVO_RETURN_IF_ERROR(octavo::read_required(k, "k", new_k));
    OCTAVO_RETURN_IF_ERROR(octavo::read_required(v, "v", new_v));
    OCTAVO_RETURN_IF_ERROR(octavo::read_rotary(rotary, turned));
    return c.append(new_k, new_v, turned, stream);
  });
}

octavo_status octavo_kv_cache_set_arguments(const octavo_kv_cache* cache,
                                            octavo_arguments* arguments) {
  return octavo::with_cache(cache, [&](const KvCache& c) -> Status {
    OCTAVO_RETURN_IF_ERROR(octavo::require(arguments, "arguments"));
    // Only the fields up to here are set, as the caller's header may be too old to have the later
    // ones.
    constexpr std::size_t kNeeded =
        offsetof(octavo_arguments, pages_per_sequence) + sizeof(arguments->pages_per_sequence);
    if (arguments->size < kNeeded)
      return octavo::invalid("arguments.size", fmt::format("{}", arguments->size),
                             fmt::format("{} or more", kNeeded));
    octavo::Arguments set;
    c.set_arguments(set);
    if (set.k.dtype == octavo::DType::int4) {
      constexpr std::size_t kNeededForInt4 =
          offsetof(octavo_arguments, v_groups) + sizeof(arguments->v_groups);
      if (arguments->size < kNeededForInt4)
        return octavo::invalid("arguments.size", fmt::format("{}", arguments->size),
                               fmt::format("{} or more with an int4 cache", kNeededForInt4));
      arguments->k_groups = {set.k_groups.data, set.k_groups.channels};
      arguments->v_groups = {set.v_groups.data, set.v_groups.channels};
    }
    arguments->k = octavo::cache_view(set.k);
    arguments->v = octavo::cache_view(set.v);
    arguments->k_scales = octavo::cache_scales(set.k_scales);
    arguments->v_scales = octavo::cache_scales(set.v_scales);
    arguments->v_layout = OCTAVO_V_ROWS;
    arguments->seqlens_kv = set.seqlens_kv;
    arguments->page_table = set.page_table;
    arguments->page_table_stride = set.page_table_stride;
    arguments->pages_per_sequence = set.pages_per_sequence;
    return {};
  });
}

octavo_status octavo_kv_cache_read(const octavo_kv_cache* cache, int64_t sequence,
                                   const octavo_tensor* k, const octavo_tensor* v, void* stream) {
  return octavo::with_cache(cache, [&](const KvCache& c) -> Status {
    octavo::Tensor to_k, to_v;
    OCTAVO_RETURN_IF_ERROR(octavo::read_required(k, "k", to_k));
    OCTAVO_RETURN_IF_ERROR(octavo::read_required(v, "v", to_v));
    return c.read(sequence, to_k, to_v, stream);
  });
}

}  // extern "C"
