// SPDX-License-Identifier: Apache-2.0
#include "emulator/memory/global_memory.h"

#include <fmt/format.h>

namespace octavo::emulator {

void GlobalMemory::add(const Tensor& t) {
  std::int64_t last = 0, elements = 1;
  for (std::size_t i = 0; i < 4; ++i) {
    if (t.shape[i] == 0 || t.data == nullptr) return;
    last += (t.shape[i] - 1) * t.stride[i];
    elements *= t.shape[i];
  }
  Region region;
  region.name = t.name;
  region.begin = reinterpret_cast<std::uintptr_t>(t.data);
  region.end = region.begin + static_cast<std::size_t>(last + 1) * t.element_bytes;
  region.use = t.use;
  if (elements != last + 1) {  // gaps, or rows that share bytes
    region.owned.assign(region.end - region.begin, false);
    for (std::int64_t a = 0; a < t.shape[0]; ++a)
      for (std::int64_t b = 0; b < t.shape[1]; ++b)
        for (std::int64_t c = 0; c < t.shape[2]; ++c)
          for (std::int64_t d = 0; d < t.shape[3]; ++d) {
            const auto at = static_cast<std::size_t>(a * t.stride[0] + b * t.stride[1] +
                                                     c * t.stride[2] + d * t.stride[3]);
            for (std::size_t i = 0; i < t.element_bytes; ++i)
              region.owned[at * t.element_bytes + i] = true;
          }
  }
  regions_.push_back(std::move(region));
}

void GlobalMemory::add_array(std::string name, const void* data, std::size_t bytes, Use use) {
  Tensor t;
  t.name = std::move(name);
  t.data = data;
  t.shape[3] = static_cast<std::int64_t>(bytes);
  t.stride[3] = 1;
  t.use = use;
  add(t);
}

const GlobalMemory::Region* GlobalMemory::find(std::uintptr_t address) const {
  const auto holds = [address](const Region& r) { return address >= r.begin && address < r.end; };
  if (last_ < regions_.size() && holds(regions_[last_])) return &regions_[last_];
  for (std::size_t i = 0; i < regions_.size(); ++i)
    if (holds(regions_[i])) {
      last_ = i;
      return &regions_[i];
    }
  return nullptr;
}

bool GlobalMemory::is_input(const void* data) const {
  const Region* const region = find(reinterpret_cast<std::uintptr_t>(data));
  return region != nullptr && region->use == Use::read;
}

std::string GlobalMemory::refuse(const void* data, std::size_t bytes, Use use) const {
  if (bytes == 0) return "";
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const Region* const region = find(address);
  if (region == nullptr) return fmt::format("no tensor holds {}", describe(data));
  if (address + bytes > region->end)
    return fmt::format("{} bytes at {} end after it", bytes, describe(data));
  if (use == Use::write && region->use == Use::read)
    return fmt::format("{} is an input and is written", describe(data));
  if (!region->owned.empty())
    for (std::size_t i = 0; i < bytes; ++i)
      if (!region->owned[address - region->begin + i])
        return fmt::format("{} lies between the rows",
                           describe(static_cast<const char*>(data) + i));
  return "";
}

std::string GlobalMemory::describe(const void* data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const Region* nearest = nullptr;
  std::uintptr_t distance = ~std::uintptr_t{0};
  for (const Region& r : regions_) {
    const std::uintptr_t away = address < r.begin  ? r.begin - address
                                : address >= r.end ? address - r.end + 1
                                                   : 0;
    if (away < distance) {
      distance = away;
      nearest = &r;
    }
  }
  if (nearest == nullptr) return "global memory";
  const auto offset = static_cast<std::int64_t>(address - nearest->begin);
  return fmt::format("{}{:+} bytes (of {})", nearest->name, offset, nearest->end - nearest->begin);
}

}  // namespace octavo::emulator
