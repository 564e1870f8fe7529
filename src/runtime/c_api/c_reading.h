// SPDX-License-Identifier: Apache-2.0
// Reads the structs of the C interface.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "octavo/octavo.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Keeps the message for octavo_last_error().
octavo_status c_report(const Status& status) noexcept;

// Runs a body that returns Status and turns exceptions into a Status.
template <class Body>
octavo_status guarded(const Body& body) noexcept {
  return c_report(without_exceptions(body));
}

inline Status require(const void* pointer, std::string_view what) {
  return pointer == nullptr ? invalid(what, "null", "a pointer") : Status();
}

// Reads a struct that may come from an older header (shorter: the rest keeps its defaults) or a
// newer one (longer: fields unknown to this version must be zero).
template <class Struct>
Status read_sized(const Struct* given, std::string_view what, Struct& out) {
  OCTAVO_RETURN_IF_ERROR(require(given, what));
  constexpr std::size_t kLargestStruct = 4096;
  const std::size_t size = given->size;
  if (size < sizeof(size) || size > kLargestStruct)
    return invalid(fmt::format("{}.size", what), fmt::format("{}", size),
                   fmt::format("{}, as its _init function sets it", sizeof(Struct)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(Struct); i < size; ++i)
    if (bytes[i] != 0)
      return invalid(what, fmt::format("{} bytes with fields this version does not know", size),
                     fmt::format("{} bytes", sizeof(Struct)));
  std::memcpy(&out, given, size < sizeof(Struct) ? size : sizeof(Struct));
  return {};
}

// Writes the defaults into a struct of the caller's size; fields unknown to this version are
// zeroed.
template <class Struct>
void write_sized(Struct defaults, Struct* out, std::size_t size) {
  if (out == nullptr) return;
  defaults.size = size;
  auto* const bytes = reinterpret_cast<unsigned char*>(out);
  const std::size_t known = std::min(size, sizeof(Struct));
  std::memcpy(bytes, &defaults, known);
  if (size > known) std::memset(bytes + known, 0, size - known);
}

// Reads an enumeration from its C value. Values that do not fit a byte are rejected here, other
// unknown ones by validation.
template <class Enum>
Status read_enum(std::int32_t code, std::string_view what, std::string_view supported, Enum& out) {
  constexpr int kLargestCode = 254;
  if (code < 0 || code > kLargestCode)
    return invalid(what, fmt::format("code {}", code), supported);
  out = static_cast<Enum>(code);
  return {};
}

inline constexpr std::string_view kDTypes = "f32, f16, bf16, e4m3, e5m2, int8, sim8";
inline constexpr std::string_view kGranularities = "tensor, head, block, row, channel";
inline constexpr std::string_view kPrecisions =
    "native, fp16, bf16, fp8, fp8_mixed, fp8_fast, int8, int8_mixed, sim8, auto";

template <class Void>
Status read_tensor(const octavo_tensor& given, std::string_view what, BasicTensor<Void>& out) {
  out.data = given.data;
  std::memcpy(out.shape.data(), given.shape, sizeof(given.shape));
  std::memcpy(out.stride.data(), given.stride, sizeof(given.stride));
  return read_enum(given.dtype, fmt::format("{}.dtype", what), kDTypes, out.dtype);
}

inline Status read_device(const char* given, Device& out) {
  if (given == nullptr) return {};
  const Result<Device> parsed = parse_device(given);
  if (parsed.ok()) out = *parsed;
  return parsed.status();
}

inline Status read_scales(const octavo_scales& given, std::string_view what, Scales& out) {
  out.data = given.data;
  out.block_rows = given.block_rows;
  if (given.stride[0] != 0 || given.stride[1] != 0 || given.stride[2] != 0)
    out.stride = {given.stride[0], given.stride[1], given.stride[2]};
  return read_enum(given.granularity, fmt::format("{}.granularity", what), kGranularities,
                   out.granularity);
}

}  // namespace octavo
