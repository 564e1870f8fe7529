// SPDX-License-Identifier: Apache-2.0
// KvCache: keeps sequences and their pages on the host. The rows are on the device (cache_store.h).
//
// A sequence holds the pages of its rows, in order, and then the pages that reserve() took in
// advance. A page with more than one user is never written: a sequence that appends to it first
// takes a copy.
#include "octavo/kv_cache.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/validate.h"
#include "base/error.h"
#include "base/tensor_checks.h"
#include "numeric/int4.h"
#include "numeric/quantize.h"
#include "runtime/kv_cache/cache_store.h"
#include "runtime/kv_cache/page_pool.h"

namespace octavo {
namespace {

std::string number_text(std::int64_t n) { return fmt::format("{}", n); }

Status check_cache_size(std::string_view what, std::int64_t n) {
  if (n >= 1 && n <= kLargestDimension) return {};
  return invalid(what, number_text(n), "1 to 2147483647");
}

Status check_options(const KvCacheOptions& o) {
  OCTAVO_RETURN_IF_ERROR(check_cache_size("pages", o.pages));
  OCTAVO_RETURN_IF_ERROR(validate_page_size("page_size", o.page_size));
  OCTAVO_RETURN_IF_ERROR(check_cache_size("heads", o.heads));
  OCTAVO_RETURN_IF_ERROR(check_cache_size("head_dim", o.head_dim));
  OCTAVO_RETURN_IF_ERROR(check_cache_size("max_batch", o.max_batch));
  if (o.dtype != DType::int4 && (!known_dtype(o.dtype) || o.dtype == DType::sim8))
    return invalid("dtype", known_dtype(o.dtype) ? name(o.dtype) : "of an unknown kind",
                   "f32, f16, bf16, e4m3, e5m2, int8, int4");
  if (o.dtype == DType::int4)
    OCTAVO_RETURN_IF_ERROR(validate_int4_group("group", o.group, o.head_dim));
  if (o.layout > PageLayout::bshd)
    return invalid("layout", fmt::format("code {}", static_cast<int>(o.layout)), "bhsd, bshd");
  const std::int64_t most = std::min(o.pages, kLargestDimension / o.page_size);
  if (o.pages_per_sequence < 0 || o.pages_per_sequence > most)
    return invalid("pages_per_sequence", number_text(o.pages_per_sequence),
                   fmt::format("0 (as many as possible) to {}", most));
  __extension__ using Wide = __int128;
  constexpr Wide kMostElements = Wide{1} << 58;
  if (Wide{o.pages} * o.page_size * o.heads > kMostElements / o.head_dim ||
      Wide{o.max_batch} * most > kMostElements)
    return invalid("pages", number_text(o.pages), "at most 2^58 elements in a cache");
  return {};
}

Status check_rotary(const Rotary& r, const KvCacheOptions& o, std::int64_t longest) {
  if (r.cos == nullptr && r.sin == nullptr) return {};
  if (r.cos == nullptr || r.sin == nullptr)
    return invalid(r.cos == nullptr ? "rotary.cos" : "rotary.sin", "null", "both, or neither");
  if (r.pairs < 1 || r.pairs > o.head_dim / 2)
    return invalid("rotary.pairs", number_text(r.pairs),
                   fmt::format("1 to {}, half of head_dim", o.head_dim / 2));
  if (r.positions < longest)
    return invalid("rotary.positions", number_text(r.positions),
                   fmt::format("{} or more, the length after this call", longest));
  return {};
}

}  // namespace

class KvCache::Impl {
 public:
  static Result<std::unique_ptr<Impl>> make(KvCacheOptions options, Device device) {
    if (options.pages_per_sequence == 0)
      options.pages_per_sequence = std::min(options.pages, kLargestDimension / options.page_size);
    // First, because it fails if the cache is too large, and takes most memory.
    Result<std::unique_ptr<CacheStore>> store = CacheStore::make(options, device);
    if (!store.ok()) return store.status();
    return std::make_unique<Impl>(options, device, *std::move(store));
  }
  Impl(const KvCacheOptions& options, Device device, std::unique_ptr<CacheStore> store)
      : options_(options), device_(device), pool_(options.pages), store_(std::move(store)) {}

  const KvCacheOptions& options() const { return options_; }
  Device device() const { return device_; }
  std::int64_t free_pages() const { return pool_.free_pages(); }

  std::int64_t add_sequence() {
    for (std::size_t i = 0; i < sequences_.size(); ++i)
      if (!sequences_[i].in_use) {
        sequences_[i].in_use = true;
        return static_cast<std::int64_t>(i);
      }
    sequences_.push_back({true, 0, {}});
    return static_cast<std::int64_t>(sequences_.size()) - 1;
  }

  Result<std::int64_t> fork(std::int64_t sequence) {
    OCTAVO_RETURN_IF_ERROR(check_sequence("sequence", sequence));
    std::vector<std::int32_t> shared = at(sequence).pages;
    shared.resize(static_cast<std::size_t>(pages_of(at(sequence).length)));
    const std::int64_t made = add_sequence();
    at(made).length = at(sequence).length;
    at(made).pages = std::move(shared);
    for (const std::int32_t page : at(made).pages) pool_.add_user(page);
    return made;
  }

  Status free_sequence(std::int64_t sequence, Stream stream) {
    OCTAVO_RETURN_IF_ERROR(check_sequence("sequence", sequence));
    if (std::find(selected_.begin(), selected_.end(), sequence) != selected_.end()) {
      OCTAVO_RETURN_IF_ERROR(check_not_captured(stream));
      const std::vector<std::int32_t> none(selected_.size(), 0);
      OCTAVO_RETURN_IF_ERROR(store_->write_lengths(none, stream));
      OCTAVO_RETURN_IF_ERROR(store_->write_capacities(none, stream));
      selected_.clear();
      unwritten_.clear();
    }
    for (const std::int32_t page : at(sequence).pages) pool_.remove_user(page);
    at(sequence) = {};
    return {};
  }

  Result<std::int64_t> length(std::int64_t sequence) const {
    OCTAVO_RETURN_IF_ERROR(check_sequence("sequence", sequence));
    return at(sequence).length;
  }

  Status select(std::span<const std::int64_t> sequences, Stream stream) {
    if (static_cast<std::int64_t>(sequences.size()) > options_.max_batch)
      return invalid("sequences", fmt::format("{} sequences", sequences.size()),
                     fmt::format("at most max_batch, here {}", options_.max_batch));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::string what = fmt::format("sequences[{}]", i);
      OCTAVO_RETURN_IF_ERROR(check_sequence(what, sequences[i]));
      const auto before = sequences.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::find(sequences.begin(), before, sequences[i]) != before)
        return invalid(what, fmt::format("{} again", sequences[i]), "each sequence once");
    }
    OCTAVO_RETURN_IF_ERROR(check_not_captured(stream));
    std::vector<std::int64_t> chosen(sequences.begin(), sequences.end());
    std::vector<std::int32_t> chosen_lengths;
    for (const std::int64_t sequence : chosen)
      chosen_lengths.push_back(static_cast<std::int32_t>(at(sequence).length));
    std::vector<std::int64_t> unwritten(chosen.size(), 0);
    capacities_.reserve(chosen.size());
    // Nothing that may throw follows the first change.
    selected_.swap(chosen);
    unwritten_.swap(unwritten);
    OCTAVO_RETURN_IF_ERROR(store_->write_lengths(chosen_lengths, stream));
    return write_tables(stream);
  }

  std::int64_t selected() const { return static_cast<std::int64_t>(selected_.size()); }

  Status reserve(std::int64_t tokens, Stream stream) {
    OCTAVO_RETURN_IF_ERROR(check_capacity(tokens));
    if (!needs_pages(tokens)) return {};
    OCTAVO_RETURN_IF_ERROR(check_not_captured(stream));
    // Nothing that may throw follows the first change.
    for (const std::int64_t sequence : selected_)
      at(sequence).pages.reserve(static_cast<std::size_t>(pages_of(at(sequence).length + tokens)));
    for (std::size_t slot = 0; slot < selected_.size(); ++slot) {
      Sequence& s = at(selected_[slot]);
      OCTAVO_RETURN_IF_ERROR(own_last_page(s, slot, stream));
      while (static_cast<std::int64_t>(s.pages.size()) < pages_of(s.length + tokens)) {
        unwritten_[slot] = std::min(unwritten_[slot], static_cast<std::int64_t>(s.pages.size()));
        s.pages.push_back(pool_.take());
      }
    }
    return write_tables(stream);
  }

  Status append(const ConstTensor& k, const ConstTensor& v, const Rotary& rotary, Stream stream) {
    OCTAVO_RETURN_IF_ERROR(check_rows("k", k, k.shape[2]));
    OCTAVO_RETURN_IF_ERROR(check_rows("v", v, k.shape[2]));
    if (device_.kind != Device::Kind::cpu && v.dtype != k.dtype)
      return invalid("v.dtype", name(v.dtype), fmt::format("{}, the type of k", name(k.dtype)));
    const std::int64_t tokens = k.shape[2];
    OCTAVO_RETURN_IF_ERROR(check_capacity(tokens));
    std::int64_t longest = 0;
    for (const std::int64_t sequence : selected_)
      longest = std::max(longest, at(sequence).length + tokens);
    OCTAVO_RETURN_IF_ERROR(check_rotary(rotary, options_, longest));
    if (tokens == 0 || selected_.empty()) return {};
    OCTAVO_RETURN_IF_ERROR(reserve(tokens, stream));
    const Result<bool> captured = store_->is_captured(stream);
    if (!captured.ok()) return captured.status();
    OCTAVO_RETURN_IF_ERROR(store_->append(k, v, rotary, stream));
    if (*captured) return {};  // nothing has been appended yet
    for (const std::int64_t sequence : selected_) at(sequence).length += tokens;
    return {};
  }

  Status advance(std::int64_t tokens, Stream stream) {
    if (device_.kind != Device::Kind::cuda)
      return unsupported("device", name(device_), "cuda in advance()");
    OCTAVO_RETURN_IF_ERROR(reserve(tokens, stream));
    for (const std::int64_t sequence : selected_) at(sequence).length += tokens;
    return {};
  }

  void set_arguments(Arguments& a) const {
    const CacheMemory& cache = store_->memory();
    a.k = cache.k;
    a.v = cache.v;
    a.k_scales = a.v_scales = {};
    if (is_8bit(options_.dtype)) {
      a.k_scales.granularity = a.v_scales.granularity = Granularity::row;
      a.k_scales.data = cache.k_scales;
      a.v_scales.data = cache.v_scales;
    }
    a.k_groups = a.v_groups = {};
    if (options_.dtype == DType::int4) {
      a.k_groups = {cache.k_groups.data, options_.group};
      a.v_groups = {cache.v_groups.data, options_.group};
    }
    a.v_layout = VLayout::rows;
    a.page_table = store_->batch().page_table;
    a.page_table_stride = a.pages_per_sequence = options_.pages_per_sequence;
    a.seqlens_kv = store_->batch().lengths;
  }

  Status read(std::int64_t sequence, const Tensor& k, const Tensor& v, Stream stream) const {
    OCTAVO_RETURN_IF_ERROR(check_sequence("sequence", sequence));
    const Sequence& s = at(sequence);
    const std::array expected = {std::int64_t{1}, options_.heads, s.length, options_.head_dim};
    for (const auto& [what, t] : {std::pair{"k", k}, {"v", v}}) {
      OCTAVO_RETURN_IF_ERROR(validate_tensor(what, t));
      OCTAVO_RETURN_IF_ERROR(validate_no_self_overlap(what, t));
      OCTAVO_RETURN_IF_ERROR(check_apart(what, t));
      if (t.dtype > DType::bf16)
        return invalid(fmt::format("{}.dtype", what), name(t.dtype), "f32, f16, bf16");
      if (t.shape != expected)
        return invalid(fmt::format("{}.shape", what), shape_of(t.shape),
                       fmt::format("{}, the rows of sequence {}", shape_of(expected), sequence));
    }
    OCTAVO_RETURN_IF_ERROR(validate_apart("v", v, "k", k));
    OCTAVO_RETURN_IF_ERROR(check_not_captured(stream));
    HostPages pages;
    const auto used = static_cast<std::size_t>(pages_of(s.length));
    OCTAVO_RETURN_IF_ERROR(store_->download(options_, {s.pages.data(), used}, pages, stream));
    const CacheMemory& m = pages.memory;
    read_rows(s.length, m.k, m.k_scales, m.k_groups, k);
    read_rows(s.length, m.v, m.v_scales, m.v_groups, v);
    return {};
  }

 private:
  struct Sequence {
    bool in_use = false;
    std::int64_t length = 0;
    std::vector<std::int32_t> pages{};
  };

  static std::string shape_of(const std::array<std::int64_t, 4>& s) {
    return fmt::format("({}, {}, {}, {})", s[0], s[1], s[2], s[3]);
  }
  Sequence& at(std::int64_t sequence) { return sequences_[static_cast<std::size_t>(sequence)]; }
  const Sequence& at(std::int64_t sequence) const {
    return sequences_[static_cast<std::size_t>(sequence)];
  }
  std::int64_t pages_of(std::int64_t rows) const {
    return (rows + options_.page_size - 1) / options_.page_size;
  }

  // Brings the page table of the batch up to date. Allocates nothing.
  Status write_tables(Stream stream) {
    capacities_.clear();
    bool changed = false;
    for (std::size_t slot = 0; slot < selected_.size(); ++slot) {
      const std::vector<std::int32_t>& pages = at(selected_[slot]).pages;
      const auto known = static_cast<std::int64_t>(pages.size());
      capacities_.push_back(static_cast<std::int32_t>(known * options_.page_size));
      if (unwritten_[slot] == kNothing) continue;
      changed = true;
      const std::int64_t first = unwritten_[slot];
      if (first < known)
        OCTAVO_RETURN_IF_ERROR(store_->write_pages(
            slot, first, std::span(pages).subspan(static_cast<std::size_t>(first)), stream));
    }
    if (!changed) return {};
    OCTAVO_RETURN_IF_ERROR(store_->write_capacities(capacities_, stream));
    std::fill(unwritten_.begin(), unwritten_.end(), kNothing);
    return {};
  }

  // Whether `tokens` more tokens of each selected sequence need pages, or pages that the table on
  // the device does not have yet.
  bool needs_pages(std::int64_t tokens) const {
    if (tokens == 0) return false;
    for (std::size_t slot = 0; slot < selected_.size(); ++slot) {
      const Sequence& s = at(selected_[slot]);
      if (unwritten_[slot] != kNothing || has_shared_last_page(s) ||
          pages_of(s.length + tokens) > static_cast<std::int64_t>(s.pages.size()))
        return true;
    }
    return false;
  }

  // Refuses streams that are being captured, as a graph would repeat the change.
  Status check_not_captured(Stream stream) const {
    const Result<bool> captured = store_->is_captured(stream);
    if (!captured.ok()) return captured.status();
    if (!*captured) return {};
    return unsupported("stream", "being captured into a graph",
                       "only append() of tokens that reserve() has taken the pages for");
  }

  Status check_sequence(std::string_view what, std::int64_t sequence) const {
    const bool known = sequence >= 0 && sequence < static_cast<std::int64_t>(sequences_.size());
    if (known && at(sequence).in_use) return {};
    return invalid(what, number_text(sequence), "sequences of this cache");
  }

  Status check_rows(std::string_view what, const ConstTensor& t, std::int64_t tokens) const {
    OCTAVO_RETURN_IF_ERROR(validate_tensor(what, t));
    if (t.dtype > DType::bf16)
      return invalid(fmt::format("{}.dtype", what), name(t.dtype), "f32, f16, bf16");
    const std::array expected = {selected(), options_.heads, tokens, options_.head_dim};
    if (t.shape == expected) return check_apart(what, t);
    return invalid(
        fmt::format("{}.shape", what), shape_of(t.shape),
        fmt::format("{}: (selected sequences, heads, tokens, head_dim)", shape_of(expected)));
  }

  // Rows in the cache itself would change while they are read.
  Status check_apart(std::string_view what, const ConstTensor& rows) const {
    const Tensor only_compared{const_cast<void*>(rows.data), rows.dtype, rows.shape, rows.stride};
    const CacheMemory& cache = store_->memory();
    for (const Tensor& of_cache : {cache.k, cache.v})
      OCTAVO_RETURN_IF_ERROR(validate_apart(what, only_compared, "the cache", of_cache));
    return {};
  }

  // Whether `tokens` more tokens of each selected sequence fit.
  Status check_capacity(std::int64_t tokens) const {
    const std::int64_t capacity = options_.pages_per_sequence * options_.page_size;
    if (tokens < 0) return invalid("tokens", number_text(tokens), "0 or more");
    std::int64_t needed = 0;
    std::map<std::int32_t, std::int64_t> appended_to;  // shared pages, and how many append to them
    for (const std::int64_t sequence : selected_) {
      const Sequence& s = at(sequence);
      if (tokens > capacity - s.length)
        return invalid("tokens", number_text(tokens),
                       fmt::format("0 to {} for sequence {}, which has {} of {}",
                                   capacity - s.length, sequence, s.length, capacity));
      needed += std::max<std::int64_t>(
          pages_of(s.length + tokens) - static_cast<std::int64_t>(s.pages.size()), 0);
      if (tokens > 0 && has_shared_last_page(s)) ++appended_to[last_page(s)];
    }
    // The last user of a page keeps it.
    for (const auto& [page, count] : appended_to) needed += std::min(count, pool_.users(page) - 1);
    if (needed <= pool_.free_pages()) return {};
    return {ErrorCode::out_of_memory,
            fmt::format("tokens is {}, which needs {} pages; supported: what fits into the {} free "
                        "pages of {}.",
                        tokens, needed, pool_.free_pages(), options_.pages)};
  }

  // The page of the last row, if it has room for another.
  bool has_shared_last_page(const Sequence& s) const {
    return s.length % options_.page_size != 0 && pool_.is_shared(last_page(s));
  }
  std::int32_t last_page(const Sequence& s) const {
    return s.pages[static_cast<std::size_t>(s.length / options_.page_size)];
  }

  // Copies the last page of a sequence if another uses it too. Requires a free page.
  Status own_last_page(Sequence& s, std::size_t slot, Stream stream) {
    if (!has_shared_last_page(s)) return {};
    const std::int32_t from = last_page(s);
    const std::int32_t to = pool_.take();
    const Status copied = store_->copy_page(from, to, stream);
    if (!copied.ok()) {
      pool_.remove_user(to);
      return copied;
    }
    pool_.remove_user(from);
    const std::int64_t index = s.length / options_.page_size;
    s.pages[static_cast<std::size_t>(index)] = to;
    unwritten_[slot] = std::min(unwritten_[slot], index);
    return {};
  }

  // `from` holds the pages of the sequence in order.
  void read_rows(std::int64_t length, const Tensor& from, const float* scales,
                 const Int4Groups& groups, const Tensor& to) const {
    std::vector<float> row(static_cast<std::size_t>(options_.head_dim));
    for (std::int64_t h = 0; h < options_.heads; ++h)
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t page = i / options_.page_size, of_page = i % options_.page_size;
        if (options_.dtype == DType::int4)
          load_int4_row(static_cast<const std::uint8_t*>(from.data) + page * from.stride[0] +
                            h * from.stride[1] + of_page * from.stride[2],
                        groups, page, h, of_page, row.data());
        else
          load_row(from, page, h, of_page, row.data());
        if (is_8bit(options_.dtype))
          for (float& x : row)
            x *= scales[(page * options_.heads + h) * options_.page_size + of_page];
        store_row(to, 0, h, i, row.data());
      }
  }

  KvCacheOptions options_;
  Device device_;
  PagePool pool_;
  std::unique_ptr<CacheStore> store_;
  std::vector<Sequence> sequences_;
  std::vector<std::int64_t> selected_;
  // For each selected sequence, the first page that the table on the device does not have.
  static constexpr std::int64_t kNothing = INT64_MAX;
  std::vector<std::int64_t> unwritten_;
  std::vector<std::int32_t> capacities_;  // of write_tables(), with room for the batch
};

KvCache::KvCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

Result<KvCache> KvCache::create(const KvCacheOptions& options, Device device) {
  return without_exceptions([&]() -> Result<KvCache> {
    OCTAVO_RETURN_IF_ERROR(check_options(options));
    Result<std::unique_ptr<Impl>> made = Impl::make(options, device);
    if (!made.ok()) return made.status();
    return KvCache(*std::move(made));
  });
}

const KvCacheOptions& KvCache::options() const { return impl_->options(); }
Device KvCache::device() const { return impl_->device(); }
std::int64_t KvCache::free_pages() const { return impl_->free_pages(); }

Result<std::int64_t> KvCache::add_sequence() {
  return without_exceptions([&]() -> Result<std::int64_t> { return impl_->add_sequence(); });
}
Result<std::int64_t> KvCache::fork(std::int64_t sequence) {
  return without_exceptions([&] { return impl_->fork(sequence); });
}
Status KvCache::free_sequence(std::int64_t sequence, Stream stream) {
  return without_exceptions([&] { return impl_->free_sequence(sequence, stream); });
}
Result<std::int64_t> KvCache::length(std::int64_t sequence) const {
  return without_exceptions([&] { return impl_->length(sequence); });
}
Status KvCache::select(std::span<const std::int64_t> sequences, Stream stream) {
  return without_exceptions([&] { return impl_->select(sequences, stream); });
}
std::int64_t KvCache::selected() const { return impl_->selected(); }
Status KvCache::reserve(std::int64_t tokens, Stream stream) {
  return without_exceptions([&] { return impl_->reserve(tokens, stream); });
}
Status KvCache::advance(std::int64_t tokens, Stream stream) {
  return without_exceptions([&] { return impl_->advance(tokens, stream); });
}
Status KvCache::append(const ConstTensor& k, const ConstTensor& v, const Rotary& rotary,
                       Stream stream) {
  return without_exceptions([&] { return impl_->append(k, v, rotary, stream); });
}
void KvCache::set_arguments(Arguments& arguments) const { impl_->set_arguments(arguments); }
Status KvCache::read(std::int64_t sequence, const Tensor& k, const Tensor& v, Stream stream) const {
  return without_exceptions([&] { return impl_->read(sequence, k, v, stream); });
}

}  // namespace octavo
