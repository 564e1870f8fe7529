// SPDX-License-Identifier: Apache-2.0
// Block masks from ranges of keys: one range for each query.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "attention/mask.h"
#include "base/error.h"
#include "octavo/block_mask.hpp"

namespace octavo {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 30;

std::int64_t blocks_of(std::int64_t rows, std::int64_t block_size) {
  return rows / block_size + (rows % block_size != 0 ? 1 : 0);
}

Status check_sizes(const KeyRanges& ranges, std::int64_t block_size) {
  if (block_size != 64 && block_size != 128)
    return invalid("block_size", fmt::format("{}", block_size), "64, 128");
  if (ranges.causal > Causal::bottom_right)
    return invalid("ranges.causal", fmt::format("{}", static_cast<int>(ranges.causal)),
                   "none, top_left, bottom_right");
  for (const auto& [what, is, least] : {std::tuple{"ranges.batch", ranges.batch, 1},
                                        {"ranges.heads", ranges.heads, 1},
                                        {"ranges.seqlen_q", ranges.seqlen_q, 0},
                                        {"ranges.seqlen_kv", ranges.seqlen_kv, 0}})
    if (is < least || is > kLongest)
      return invalid(what, fmt::format("{}", is), fmt::format("{} to 2^30", least));
  if (ranges.heads > kLongest / ranges.batch ||
      ranges.seqlen_q > std::numeric_limits<std::int64_t>::max() / 4 / ranges.batch / ranges.heads)
    return invalid("ranges.heads", fmt::format("{}", ranges.heads), "at most 2^30 heads in all");
  if (ranges.seqlen_q > 0 && (ranges.begin == nullptr || ranges.end == nullptr))
    return invalid(ranges.begin == nullptr ? "ranges.begin" : "ranges.end", "null", "a pointer");
  return {};
}

Status check_ends(const KeyRanges& ranges) {
  const std::int64_t rows = ranges.batch * ranges.heads * ranges.seqlen_q;
  for (const auto& [what, ends] :
       {std::pair{"ranges.begin", ranges.begin}, {"ranges.end", ranges.end}})
    for (std::int64_t row = 0; row < rows; ++row)
      if (ends[row] < 0 || ends[row] > ranges.seqlen_kv)
        return invalid(fmt::format("{}[{}]", what, row), fmt::format("{}", ends[row]),
                       fmt::format("0 to {}, the number of keys", ranges.seqlen_kv));
  return {};
}

// The lists of block after block of queries, each as long as it is.
struct Lists {
  std::vector<std::int32_t> counts, indices, bit_indices;

  void end_row() {
    counts.push_back(static_cast<std::int32_t>(indices.size() - listed_));
    listed_ = indices.size();
  }
  std::int64_t capacity() const {
    return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  }
  // `of` with as many places for each row as the longest list has entries.
  std::vector<std::int32_t> padded(const std::vector<std::int32_t>& of) const {
    const auto places = static_cast<std::size_t>(capacity());
    std::vector<std::int32_t> padded(counts.size() * places);
    auto from = of.begin();
    for (std::size_t row = 0; row < counts.size(); ++row) {
      std::copy_n(from, counts[row], padded.begin() + static_cast<std::ptrdiff_t>(row * places));
      from += counts[row];
    }
    return padded;
  }

 private:
  std::size_t listed_ = 0;
};

class RangesToBlocks {
 public:
  RangesToBlocks(const KeyRanges& ranges, std::int64_t block_size)
      : ranges_(ranges),
        size_(block_size),
        kv_blocks_(blocks_of(ranges.seqlen_kv, block_size)),
        seen_(static_cast<std::size_t>(kv_blocks_) + 1),
        whole_(static_cast<std::size_t>(kv_blocks_) + 1) {}

  Status run() {
    const std::int64_t q_blocks = blocks_of(ranges_.seqlen_q, size_);
    for (std::int64_t head = 0; head < ranges_.batch * ranges_.heads; ++head)
      for (std::int64_t block = 0; block < q_blocks; ++block) {
        read_rows(head, block * size_);
        OCTAVO_RETURN_IF_ERROR(list_blocks());
        partial_.end_row();
        full_.end_row();
      }
    return {};
  }
  OwnedBlockMask made() const {
    OwnedBlockMask m;
    m.block_size = size_;
    m.batch = ranges_.batch;
    m.heads = ranges_.heads;
    m.q_blocks = blocks_of(ranges_.seqlen_q, size_);
    m.full_kv_num_blocks = full_.counts;
    m.full_kv_capacity = full_.capacity();
    m.full_kv_indices = full_.padded(full_.indices);
    if (partial_.indices.empty()) return m;
    m.kv_num_blocks = partial_.counts;
    m.kv_capacity = partial_.capacity();
    m.kv_indices = partial_.padded(partial_.indices);
    m.bit_indices = partial_.padded(partial_.bit_indices);
    m.bits = bits_;
    return m;
  }

 private:
  struct Keys {
    std::int64_t begin = 0, end = 0;
  };

  // The keys that each row of a block of queries sees.
  void read_rows(std::int64_t head, std::int64_t first) {
    rows_.clear();
    for (std::int64_t i = first; i < std::min(first + size_, ranges_.seqlen_q); ++i) {
      const std::int64_t at = head * ranges_.seqlen_q + i;
      const KeyRange visible =
          visible_keys({.causal = ranges_.causal}, i, ranges_.seqlen_q, ranges_.seqlen_kv);
      const Keys keys{ranges_.begin[at], std::min<std::int64_t>(ranges_.end[at], visible.end)};
      rows_.push_back(keys.begin < keys.end ? keys : Keys{});
    }
  }
  // Counts for each block of keys the rows that see some key of it, and those that see all: first
  // where the count changes, then summed up.
  Status list_blocks() {
    std::int64_t begin = kv_blocks_, end = 0;
    for (const Keys& keys : rows_) {
      if (keys.begin == keys.end) continue;
      const std::int64_t first = keys.begin / size_, last = (keys.end - 1) / size_;
      begin = std::min(begin, first);
      end = std::max(end, last + 1);
      add(seen_, first, last + 1);
      const std::int64_t whole_end = keys.end == ranges_.seqlen_kv ? kv_blocks_ : keys.end / size_;
      if (blocks_of(keys.begin, size_) < whole_end)
        add(whole_, blocks_of(keys.begin, size_), whole_end);
    }
    std::int64_t seen = 0, whole = 0;
    for (std::int64_t block = begin; block < end; ++block) {
      seen += take(seen_, block);
      whole += take(whole_, block);
      if (seen == 0) continue;
      const bool is_full = whole == static_cast<std::int64_t>(rows_.size());
      (is_full ? full_ : partial_).indices.push_back(static_cast<std::int32_t>(block));
      if (!is_full) OCTAVO_RETURN_IF_ERROR(add_bits(block * size_));
    }
    take(seen_, end);
    take(whole_, end);
    return {};
  }
  static void add(std::vector<std::int64_t>& changes, std::int64_t from, std::int64_t to) {
    ++changes[static_cast<std::size_t>(from)];
    --changes[static_cast<std::size_t>(to)];
  }
  static std::int64_t take(std::vector<std::int64_t>& changes, std::int64_t at) {
    return std::exchange(changes[static_cast<std::size_t>(at)], 0);
  }

  // The bits of the block of keys from `first` on. Blocks with the same bits share an entry: most
  // of a causal mask's do.
  Status add_bits(std::int64_t first) {
    const std::int64_t words = size_ / 32;
    std::vector<std::uint32_t> table(static_cast<std::size_t>(size_ * words));
    std::uint64_t hash = 0;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const std::int64_t begin = std::clamp<std::int64_t>(rows_[row].begin - first, 0, size_);
      const std::int64_t end = std::clamp<std::int64_t>(rows_[row].end - first, 0, size_);
      for (std::int64_t key = begin; key < end; ++key)
        table[row * static_cast<std::size_t>(words) + static_cast<std::size_t>(key / 32)] |=
            std::uint32_t{1} << (key % 32);
      constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;
      hash = (hash ^ static_cast<std::uint64_t>(begin << 8 | end)) * kFactor;
      hash ^= hash >> 29;
    }
    const auto [same, last] = entries_.equal_range(hash);
    for (auto entry = same; entry != last; ++entry) {
      const auto at = bits_.begin() + entry->second * static_cast<std::ptrdiff_t>(table.size());
      if (!std::equal(table.begin(), table.end(), at)) continue;
      partial_.bit_indices.push_back(entry->second);
      return {};
    }
    const std::size_t entry = bits_.size() / table.size();
    if (entry > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
      return unsupported("ranges", "with more than 2^31 different partial blocks", "fewer");
    bits_.insert(bits_.end(), table.begin(), table.end());
    entries_.emplace(hash, static_cast<std::int32_t>(entry));
    partial_.bit_indices.push_back(static_cast<std::int32_t>(entry));
    return {};
  }

  const KeyRanges& ranges_;
  std::int64_t size_, kv_blocks_;
  std::vector<Keys> rows_;  // of the current block of queries
  std::vector<std::int64_t> seen_, whole_;
  Lists partial_, full_;
  std::vector<std::uint32_t> bits_;
  std::unordered_multimap<std::uint64_t, std::int32_t> entries_;
};

}  // namespace

BlockMask OwnedBlockMask::view() const {
  // A list without entries is given, too.
  static constexpr std::int32_t kNothing = 0;
  const auto words = [](const std::vector<std::int32_t>& of) {
    return of.empty() ? &kNothing : of.data();
  };
  BlockMask m{.block_size = block_size, .batch = batch, .heads = heads, .q_blocks = q_blocks};
  m.full_kv_num_blocks = words(full_kv_num_blocks);
  m.full_kv_indices = words(full_kv_indices);
  m.full_kv_capacity = full_kv_capacity;
  if (kv_capacity == 0) return m;
  m.kv_num_blocks = kv_num_blocks.data();
  m.kv_indices = kv_indices.data();
  m.kv_capacity = kv_capacity;
  m.bit_indices = bit_indices.data();
  m.bits = bits.data();
  m.bit_blocks = static_cast<std::int64_t>(bits.size()) * 32 / (block_size * block_size);
  return m;
}

Result<OwnedBlockMask> block_mask_from_ranges(const KeyRanges& ranges, std::int64_t block_size) {
  return without_exceptions([&]() -> Result<OwnedBlockMask> {
    OCTAVO_RETURN_IF_ERROR(check_sizes(ranges, block_size));
    OCTAVO_RETURN_IF_ERROR(check_ends(ranges));
    RangesToBlocks blocks(ranges, block_size);
    OCTAVO_RETURN_IF_ERROR(blocks.run());
    return blocks.made();
  });
}

}  // namespace octavo
