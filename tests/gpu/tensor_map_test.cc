// SPDX-License-Identifier: Apache-2.0
// The tensor map of a tensor, and tensors that TMA cannot access.
#include "gpu/driver/tensor_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace octavo {
namespace {

const void* const kAligned = reinterpret_cast<const void*>(0x10000);

ConstTensor bhsd(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) {
  return ConstTensor::bhsd(kAligned, DType::f16, b, h, s, d);
}

TEST(TensorMap, NeedsRowsAt16Bytes) {
  EXPECT_TRUE(tma_can_address(bhsd(2, 3, 5, 64)));
  EXPECT_TRUE(tma_can_address(ConstTensor::bshd(kAligned, DType::bf16, 2, 3, 5, 8)));
  EXPECT_FALSE(tma_can_address(bhsd(2, 3, 5, 60)));
  ConstTensor t = bhsd(2, 3, 5, 64);
  t.data = reinterpret_cast<const void*>(0x10008);
  EXPECT_FALSE(tma_can_address(t));
  t = bhsd(2, 3, 5, 64);
  t.stride[1] = 0;  // one head for all
  EXPECT_FALSE(tma_can_address(t));
  t.stride[1] = std::int64_t{1} << 39;  // 2^40 bytes
  EXPECT_FALSE(tma_can_address(t));
  t.stride[1] -= 8;
  EXPECT_TRUE(tma_can_address(t));
}

// The stride of a dimension of size one does not matter.
TEST(TensorMap, StridesOfSizeOneDimensionsAreIgnored) {
  ConstTensor t = bhsd(1, 1, 5, 64);
  t.stride[0] = 3;
  t.stride[1] = 0;
  EXPECT_TRUE(tma_can_address(t));
  const TensorMapFields f = row_boxes(t, 64, 64);
  EXPECT_EQ(f.stride_bytes[0], 128u);
  for (const std::uint64_t bytes : f.stride_bytes) {
    EXPECT_GT(bytes, 0u);
    EXPECT_EQ(bytes % 16, 0u);
  }
}

TEST(TensorMap, DimensionsAreInnermostFirst) {
  ConstTensor t = ConstTensor::bshd(kAligned, DType::bf16, 2, 3, 5, 96);
  const TensorMapFields f = row_boxes(t, 80, 32);
  EXPECT_EQ(f.address, kAligned);
  EXPECT_EQ(f.type, cuda::TensorMapType::bf16);
  EXPECT_EQ(f.shape, (std::array<std::uint64_t, 4>{96, 5, 3, 2}));
  EXPECT_EQ(f.stride_bytes, (std::array<std::uint64_t, 3>{576, 192, 2880}));
  EXPECT_EQ(f.box, (std::array<std::uint32_t, 4>{32, 80, 1, 1}));
  EXPECT_EQ(f.swizzle, cuda::TensorMapSwizzle::bytes_64);
  EXPECT_EQ(row_boxes(t, 64, 64).swizzle, cuda::TensorMapSwizzle::bytes_128);
  t.dtype = DType::f16;
  EXPECT_EQ(row_boxes(t, 64, 64).type, cuda::TensorMapType::f16);
}

// A fake driver that writes the address first, and the other arguments behind it.
int encoded = 0;
cuda::Error encode_fields(cuda::TensorMap* map, cuda::TensorMapType type, std::uint32_t rank,
                          void* address, const std::uint64_t* shape, const std::uint64_t* strides,
                          const std::uint32_t* box, const std::uint32_t*, cuda::TensorMapInterleave,
                          cuda::TensorMapSwizzle swizzle, cuda::TensorMapL2Promotion,
                          cuda::TensorMapFill) {
  ++encoded;
  std::uint64_t* to = map->opaque;
  *to++ = reinterpret_cast<std::uintptr_t>(address);
  *to++ = static_cast<std::uint64_t>(type);
  *to++ = static_cast<std::uint64_t>(swizzle);
  for (std::uint32_t i = 0; i < rank; ++i) *to++ = shape[i];
  for (std::uint32_t i = 0; i + 1 < rank; ++i) *to++ = strides[i];
  for (std::uint32_t i = 0; i < rank; ++i) *to++ = box[i];
  return cuda::kSuccess;
}
cuda::Error replace_address(cuda::TensorMap* map, void* address) {
  map->opaque[0] = reinterpret_cast<std::uintptr_t>(address);
  return cuda::kSuccess;
}
Driver driver_with(bool replaces) {
  SymbolLoader loader([replaces](const char* symbol) -> void* {
    const std::string_view name = symbol;
    if (name == "cuTensorMapEncodeTiled") return reinterpret_cast<void*>(&encode_fields);
    if (name == "cuTensorMapReplaceAddress" && replaces)
      return reinterpret_cast<void*>(&replace_address);
    return nullptr;
  });
  return Driver(loader);
}

// Whatever was encoded before, and in whichever thread.
TEST(TensorMap, ReencodedMapEqualsANewMap) {
  const Driver driver = driver_with(true), another = driver_with(true), plain = driver_with(false);
  std::vector<TensorMapFields> all;
  for (const std::int64_t rows : {1, 64, 100})
    for (const std::uintptr_t address : {0x10000, 0x20000})
      for (const int box_rows : {64, 128}) {
        ConstTensor t = bhsd(2, 3, rows, 64);
        t.data = reinterpret_cast<const void*>(address);
        all.push_back(row_boxes(t, box_rows, 64));
        all.push_back(
            row_boxes(ConstTensor::bshd(t.data, DType::bf16, 2, 3, rows, 64), box_rows, 32));
      }
  for (int round = 0; round < 3; ++round)
    for (const Driver* d : {&driver, &plain, &another})
      for (const TensorMapFields& fields : all) {
        ptx::TensorMap anew{}, again{};
        ASSERT_TRUE(encode(*d, fields, anew).ok());
        ASSERT_TRUE(encode_again(*d, fields, again).ok());
        EXPECT_TRUE(std::equal(std::begin(anew.opaque), std::end(anew.opaque), again.opaque));
      }
}

TEST(TensorMap, ReplacesAnAddressWithoutEncoding) {
  const Driver driver = driver_with(true), plain = driver_with(false);
  TensorMapFields fields = row_boxes(bhsd(4, 3, 77, 64), 64, 64);
  ptx::TensorMap map{};
  const auto encodings = [&](const Driver& d) {
    const int before = encoded;
    EXPECT_TRUE(encode_again(d, fields, map).ok());
    return encoded - before;
  };
  EXPECT_EQ(encodings(driver), 1);
  EXPECT_EQ(encodings(driver), 0);
  fields.address = reinterpret_cast<const void*>(0x30000);
  EXPECT_EQ(encodings(driver), 0);
  fields.shape[1] = 78;
  EXPECT_EQ(encodings(driver), 1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(encodings(plain), 1);
}

}  // namespace
}  // namespace octavo
