// SPDX-License-Identifier: Apache-2.0
// Reads and writes the file of golden vectors.
#include <fmt/format.h>

#include <cstring>
#include <string_view>

#include "emulator/selftest/conformance.h"

namespace octavo::emulator {
namespace {

constexpr std::string_view kHeader = "Octavo conformance vectors 1, recorded on ";

void append(std::string& bytes, const void* data, std::size_t size) {
  bytes.append(static_cast<const char*>(data), size);
}

template <class T>
bool take(const std::string& bytes, std::size_t& at, T* to, std::size_t count = 1) {
  if (bytes.size() - at < count * sizeof(T)) return false;
  std::memcpy(to, bytes.data() + at, count * sizeof(T));
  at += count * sizeof(T);
  return true;
}

}  // namespace

std::uint64_t digest(const std::vector<std::uint32_t>& words) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const std::uint32_t word : words) h = (h ^ word) * 0x100000001b3u;
  return h;
}

std::string to_bytes(const std::vector<GoldenSet>& sets, const std::string& device) {
  std::string bytes = fmt::format("{}{}\n", kHeader, device);
  for (const GoldenSet& set : sets) {
    const auto name = static_cast<std::uint32_t>(set.name.size());
    const auto words = static_cast<std::uint32_t>(set.output.size());
    append(bytes, &name, 4);
    bytes += set.name;
    append(bytes, &set.input_digest, 8);
    append(bytes, &words, 4);
    append(bytes, set.output.data(), set.output.size() * 4);
  }
  return bytes;
}

std::string golden_device(const std::string& bytes) {
  const std::size_t end = bytes.find('\n');
  if (!bytes.starts_with(kHeader) || end == std::string::npos) return "";
  return bytes.substr(kHeader.size(), end - kHeader.size());
}

std::vector<GoldenSet> golden_from_bytes(const std::string& bytes) {
  std::vector<GoldenSet> sets;
  std::size_t at = bytes.find('\n');
  if (!bytes.starts_with(kHeader) || at == std::string::npos) return {};
  ++at;
  while (at < bytes.size()) {
    GoldenSet set;
    std::uint32_t name = 0, words = 0;
    if (!take(bytes, at, &name) || bytes.size() - at < name) return {};
    set.name = bytes.substr(at, name);
    at += name;
    if (!take(bytes, at, &set.input_digest) || !take(bytes, at, &words)) return {};
    if ((bytes.size() - at) / 4 < words) return {};
    set.output.resize(words);
    take(bytes, at, set.output.data(), words);
    sets.push_back(std::move(set));
  }
  return sets;
}

}  // namespace octavo::emulator
