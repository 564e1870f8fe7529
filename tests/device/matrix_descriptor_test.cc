// SPDX-License-Identifier: Apache-2.0
// Matrix descriptors: encodings that gave correct products on an H200, and swizzles that are
// permutations.
#include "device/tile/matrix_descriptor.cuh"

#include <gtest/gtest.h>

#include <set>

namespace octavo {
namespace {

u64 bits(u64 descriptor, int first, int last) {
  return descriptor >> first & ((u64{1} << (last - first + 1)) - 1);
}

TEST(MatrixDescriptor, FieldsMatchTheHardwareLayout) {
  constexpr u64 kEncoded = MatrixDescriptor{0x1fc00, 0x4000, 1024, Swizzle::b64}.encoded();
  EXPECT_EQ(bits(kEncoded, 0, 13), 0x1fc00u / 16);
  EXPECT_EQ(bits(kEncoded, 14, 15), 0u);
  EXPECT_EQ(bits(kEncoded, 16, 29), 0x4000u / 16);
  EXPECT_EQ(bits(kEncoded, 30, 31), 0u);
  EXPECT_EQ(bits(kEncoded, 32, 45), 1024u / 16);
  EXPECT_EQ(bits(kEncoded, 46, 61), 0u);
  EXPECT_EQ(bits(kEncoded, 62, 63), 2u);
}

TEST(MatrixDescriptor, RowsOfQAndK) {
  EXPECT_EQ(bits(k_major(0x400), 0, 13), 0x40u);
  EXPECT_EQ(bits(k_major(0x400), 32, 45), 1024u / 16);
  EXPECT_EQ(bits(k_major(0x400), 62, 63), 1u);
  // 8-bit rows of 64 bytes
  EXPECT_EQ(bits(k_major(0x400, Swizzle::b64), 32, 45), 512u / 16);
  EXPECT_EQ(bits(k_major(0x400, Swizzle::b64), 62, 63), 2u);
  // the next 32 bytes of every row: k16 of 16-bit elements, k32 of 8-bit ones
  EXPECT_EQ(advanced(k_major(0x400), 32), k_major(0x400) + 2);
  EXPECT_EQ(advanced(k_major(0x400), 32), k_major(0x420));
}

TEST(MatrixDescriptor, ColumnsOfV) {
  // 128 keys of 128 columns: the second 64 columns lie 128 * 128 bytes on
  constexpr u64 kV = mn_major(0x8000, 128 * 128);
  EXPECT_EQ(bits(kV, 0, 13), 0x800u);
  EXPECT_EQ(bits(kV, 16, 29), 128u * 128 / 16);
  EXPECT_EQ(bits(kV, 32, 45), 1024u / 16);
  EXPECT_EQ(bits(kV, 62, 63), 1u);
  // the next 16 keys
  EXPECT_EQ(advanced(kV, 16 * 128), kV + 128);
}

// The next block of columns stays in place while the rows advance.
TEST(MatrixDescriptor, NextColumnsMayStayInPlace) {
  constexpr u64 kV = mn_major(0x8000, 0x5000);
  for (const u32 bytes : {0u, 2048u, 8192u})
    EXPECT_EQ(advanced_from_next(kV, bytes), mn_major(0x8000 + bytes, 0x5000 - bytes));
}

// The last byte of an H200's shared memory is still within the field.
TEST(MatrixDescriptor, EveryAddressFits) {
  EXPECT_EQ(bits(k_major(227 * 1024 - 16), 0, 13), (227u * 1024 - 16) / 16);
}

TEST(Swizzle, ExchangesChunksWithinAnAtom) {
  for (const Swizzle s : {Swizzle::none, Swizzle::b32, Swizzle::b64, Swizzle::b128}) {
    const u32 row = swizzle_bytes(s);
    std::set<u32> seen;
    for (u32 offset = 0; offset < 2048; ++offset) {
      const u32 at = swizzled(s, offset);
      EXPECT_EQ(at / row, offset / row) << "a byte stays in its row";
      EXPECT_EQ(at % 16, offset % 16) << "a chunk stays whole";
      EXPECT_EQ(swizzled(s, at), offset);
      seen.insert(at);
    }
    EXPECT_EQ(seen.size(), 2048u);
  }
  // 128 bytes: chunk c of row r is at c ^ (r & 7)
  for (u32 r = 0; r < 16; ++r)
    for (u32 c = 0; c < 8; ++c)
      EXPECT_EQ(swizzled(Swizzle::b128, r * 128 + c * 16), r * 128 + (c ^ (r & 7)) * 16);
}

}  // namespace
}  // namespace octavo
