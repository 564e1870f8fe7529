// SPDX-License-Identifier: Apache-2.0
#include "numeric/transposed.h"

namespace octavo {
namespace {

// The first byte of a group of kKeyGroup keys, or nothing if it overflows.
std::optional<std::int64_t> group_begin(std::int64_t group) {
  std::int64_t byte = 0;
  if (__builtin_mul_overflow(group, std::int64_t{kKeyGroup}, &byte)) return std::nullopt;
  return byte;
}

}  // namespace

std::optional<std::int64_t> checked_transposed_begin(std::int64_t begin, std::int64_t number) {
  std::int64_t group = 0;
  if (begin < 0 || number < 0 || __builtin_add_overflow(begin / kKeyGroup, number, &group))
    return std::nullopt;
  return group_begin(group);
}

std::optional<std::int64_t> checked_transposed_columns(std::int64_t keys, std::int64_t sequences) {
  // The end of the last sequence is the start of the next.
  if (sequences != 0) return checked_transposed_begin(keys, sequences);
  if (keys < 0) return std::nullopt;
  return group_begin(keys / kKeyGroup + (keys % kKeyGroup == 0 ? 0 : 1));
}

std::int64_t transposed_columns(std::int64_t keys, std::int64_t sequences) {
  return checked_transposed_columns(keys, sequences).value_or(0);
}

std::int64_t transposed_begin(std::int64_t begin, std::int64_t number) {
  return checked_transposed_begin(begin, number).value_or(0);
}

}  // namespace octavo
