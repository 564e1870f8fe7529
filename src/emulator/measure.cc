// SPDX-License-Identifier: Apache-2.0
#include "emulator/measure.h"

#include <algorithm>
#include <string_view>

namespace octavo::emulator {
namespace {

constexpr std::uint32_t kBanks = 32;

// Wavefronts of lanes [first, last) that access shared memory together: each bank serves one word
// at a time, to any number of lanes.
template <class Address>
std::int64_t wavefronts(const Address* addresses, std::uint32_t lanes, std::uint32_t bytes,
                        int first, int last) {
  std::array<std::array<std::uint64_t, 32>, kBanks> words;
  std::array<std::uint32_t, kBanks> count{};
  for (int lane = first; lane < last; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const std::uint64_t begin = addresses[lane] / 4, end = (addresses[lane] + bytes - 1) / 4;
    for (std::uint64_t word = begin; word <= end; ++word) {
      auto& in_bank = words[word % kBanks];
      std::uint32_t& n = count[word % kBanks];
      if (std::find(in_bank.begin(), in_bank.begin() + n, word) == in_bank.begin() + n)
        in_bank[n++] = word;
    }
  }
  return *std::max_element(count.begin(), count.end());
}

}  // namespace

void Measures::add(std::vector<Count>& counts, const char* name, std::int64_t times) {
  for (Count& c : counts)
    if (c.instruction == name || std::string_view(c.instruction) == name) {
      c.times += times;
      return;
    }
  counts.push_back({name, times});
}
void Measures::count(const char* instruction, std::int64_t times) {
  if (on) add(counts_, instruction, times);
}
void Measures::count_products(const char* format, std::int64_t products) {
  if (on) add(products_, format, products);
}

void Measures::access(int warp, int lane, Place place, bool shared, std::uint64_t address,
                      std::uint32_t bytes) {
  if (!on) return;
  const auto slot = static_cast<std::size_t>(warp);
  if (slot >= open_.size()) open_.resize(slot + 1);
  const std::uint32_t bit = 1u << lane;
  for (Group& group : open_[slot])
    if ((group.lanes & bit) == 0 && group.shared == shared && group.place == place) {
      group.lanes |= bit;
      group.addresses[static_cast<std::size_t>(lane)] = address;
      return;
    }
  Group group{place, shared, bytes, bit, {}};
  group.addresses[static_cast<std::size_t>(lane)] = address;
  open_[slot].push_back(group);
}

Measures::Line& Measures::line(Place place, bool shared) {
  for (Line& line : lines_)
    if (line.shared == shared && line.place == place) return line;
  lines_.push_back({place, shared, 0, 0, 0});
  return lines_.back();
}

void Measures::add(const Group& group) {
  Line& to = line(group.place, group.shared);
  ++to.requests;
  if (group.shared) {
    // Wide accesses are served a half or a quarter of the warp at a time: 128 bytes.
    const int lanes = group.bytes <= 4 ? 32 : group.bytes <= 8 ? 16 : 8;
    for (int first = 0; first < 32; first += lanes) {
      const std::int64_t taken =
          wavefronts(group.addresses.data(), group.lanes, group.bytes, first, first + lanes);
      to.taken += taken;
      to.needed += taken > 0 ? 1 : 0;
    }
    return;
  }
  constexpr std::uint64_t kSector = 32;
  std::vector<std::uint64_t> sectors;
  std::vector<std::uint64_t> pieces;
  for (std::size_t lane = 0; lane < 32; ++lane) {
    if ((group.lanes >> lane & 1) == 0) continue;
    const std::uint64_t begin = group.addresses[lane];
    pieces.push_back(begin);
    for (std::uint64_t s = begin / kSector; s <= (begin + group.bytes - 1) / kSector; ++s)
      sectors.push_back(s);
  }
  const auto distinct = [](std::vector<std::uint64_t>& v) {
    std::sort(v.begin(), v.end());
    return static_cast<std::int64_t>(std::unique(v.begin(), v.end()) - v.begin());
  };
  to.taken += distinct(sectors);
  to.needed += (distinct(pieces) * group.bytes + 31) / 32;
}

void Measures::rows(Place place, const std::uint32_t* addresses, int count) {
  if (!on) return;
  Line& to = line(place, true);
  ++to.requests;
  for (int first = 0; first < count; first += 8) {
    to.taken += wavefronts(addresses, 0xffffffffu, 16, first, first + 8);
    ++to.needed;
  }
}

void Measures::flush(int warp) {
  if (!on || static_cast<std::size_t>(warp) >= open_.size()) return;
  auto& groups = open_[static_cast<std::size_t>(warp)];
  for (const Group& group : groups) add(group);
  groups.clear();
}

std::int64_t Measures::counted(const char* instruction) const {
  for (const Count& c : counts_)
    if (std::string_view(c.instruction) == instruction) return c.times;
  return 0;
}

std::int64_t Measures::bank_conflicts() const {
  std::int64_t conflicts = 0;
  for (const Line& line : lines_)
    if (line.shared) conflicts += line.taken - line.needed;
  return conflicts;
}

}  // namespace octavo::emulator
