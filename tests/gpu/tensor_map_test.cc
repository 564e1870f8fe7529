// What TMA is told of a tensor, and which tensors it cannot be told of.
#include "gpu/tensor_map.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

const void* const kAligned = reinterpret_cast<const void*>(0x10000);

ConstTensor bhsd(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) {
  return ConstTensor::bhsd(kAligned, DType::f16, b, h, s, d);
}

TEST(TensorMap, ReachesRowsOf16Bytes) {
  EXPECT_TRUE(tma_reaches(bhsd(2, 3, 5, 64)));
  EXPECT_TRUE(tma_reaches(ConstTensor::bshd(kAligned, DType::bf16, 2, 3, 5, 8)));
  EXPECT_FALSE(tma_reaches(bhsd(2, 3, 5, 60)));
  ConstTensor t = bhsd(2, 3, 5, 64);
  t.data = reinterpret_cast<const void*>(0x10008);
  EXPECT_FALSE(tma_reaches(t));
  t = bhsd(2, 3, 5, 64);
  t.stride[1] = 0;  // one head for all
  EXPECT_FALSE(tma_reaches(t));
  t.stride[1] = std::int64_t{1} << 39;  // 2^40 bytes
  EXPECT_FALSE(tma_reaches(t));
  t.stride[1] -= 8;
  EXPECT_TRUE(tma_reaches(t));
}

// Of a dimension of one, the stride means nothing.
TEST(TensorMap, StridesThatNobodyStepsAlong) {
  ConstTensor t = bhsd(1, 1, 5, 64);
  t.stride[0] = 3;
  t.stride[1] = 0;
  EXPECT_TRUE(tma_reaches(t));
  const TensorMapFields f = row_boxes(t, 64, 64);
  EXPECT_EQ(f.stride_bytes[0], 128u);
  for (const std::uint64_t bytes : f.stride_bytes) {
    EXPECT_GT(bytes, 0u);
    EXPECT_EQ(bytes % 16, 0u);
  }
}

TEST(TensorMap, InnermostFirst) {
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

}  // namespace
}  // namespace octavo
