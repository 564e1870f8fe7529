// SPDX-License-Identifier: Apache-2.0
// Decoding tables, and element access by dtype.
#include "numeric/formats.h"

namespace octavo {
namespace {

template <class Decode>
constexpr std::array<float, 256> table_of(Decode decode) {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) table[code] = decode(static_cast<std::uint8_t>(code));
  return table;
}

constexpr auto kE4m3 = table_of(f32_from_e4m3);
constexpr auto kE5m2 = table_of(f32_from_e5m2);
constexpr auto kInt8 = table_of(f32_from_int8);
constexpr auto kSim8 = table_of(f32_from_sim8);

}  // namespace

const std::array<float, 256>& decode_table(DType format) {
  switch (format) {
    case DType::e4m3:
      return kE4m3;
    case DType::e5m2:
      return kE5m2;
    case DType::int8:
      return kInt8;
    default:
      return kSim8;
  }
}

float load_element(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[index];
    case DType::f16:
      return f32_from_f16(static_cast<const std::uint16_t*>(data)[index]);
    case DType::bf16:
      return f32_from_bf16(static_cast<const std::uint16_t*>(data)[index]);
    default:
      return decode_8bit(dtype, static_cast<const std::uint8_t*>(data)[index]);
  }
}

void store_element(DType dtype, void* data, std::int64_t index, float x) {
  switch (dtype) {
    case DType::f16:
      static_cast<std::uint16_t*>(data)[index] = f16_from_f32(x);
      return;
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[index] = bf16_from_f32(x);
      return;
    default:
      static_cast<float*>(data)[index] = x;
  }
}

}  // namespace octavo
