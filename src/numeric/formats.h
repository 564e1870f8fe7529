// The number formats: encode and decode, one value at a time.
//
// Encoding rounds to nearest, ties to even. f16 and bf16 follow IEEE 754 (overflow gives
// infinity); the 8-bit formats saturate. Decoding is exact. 8-bit codes carry no scale here:
// encode_8bit(format, x) takes x already divided by its step (see scale.h).
#pragma once

#include <cstdint>

#include "octavo/octavo.hpp"

namespace octavo {

std::uint16_t f16_from_f32(float x);
float f32_from_f16(std::uint16_t bits);
std::uint16_t bf16_from_f32(float x);
float f32_from_bf16(std::uint16_t bits);

std::uint8_t e4m3_from_f32(float x);  // NaN: 0x7F with the sign kept
float f32_from_e4m3(std::uint8_t code);
std::uint8_t e5m2_from_f32(float x);  // Inf saturates to 57344; NaN: 0x7F with the sign kept
float f32_from_e5m2(std::uint8_t code);
std::uint8_t int8_from_f32(float x);  // two's complement, -127 to 127; NaN: 0
float f32_from_int8(std::uint8_t code);
std::uint8_t sim8_from_f32(float x);  // x in steps: round(x) + 128, 1 to 255; NaN: 128
float f32_from_sim8(std::uint8_t code);  // code - 128

// By format. `unit` values: x in steps of the scale.
std::uint8_t encode_8bit(DType format, float x);
float decode_8bit(DType format, std::uint8_t code);

// Largest magnitude of a code in steps: 448, 57344, 127, 127.
float largest(DType format);

// One element of any dtype, without a scale. `store_element` takes f32, f16 and bf16 only.
float load_element(DType dtype, const void* data, std::int64_t index);
void store_element(DType dtype, void* data, std::int64_t index, float x);

}  // namespace octavo
