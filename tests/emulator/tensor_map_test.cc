// SPDX-License-Identifier: Apache-2.0
// The emulated driver honours every parameter of cuTensorMapEncodeTiled, or refuses it.
#include "emulator/memory/tensor_map.h"

#include <gtest/gtest.h>

#include <array>

#include "runtime/emulated/emulated_driver.h"

namespace octavo {
namespace {

// A call that is accepted, to bend one parameter of.
struct Encode {
  alignas(128) std::array<std::uint16_t, 64 * 32> tensor{};
  cuda::TensorMapType type = cuda::TensorMapType::f16;
  std::uint32_t rank = 2;
  std::array<std::uint64_t, 2> shape{64, 32};
  std::array<std::uint64_t, 1> stride_bytes{128};
  std::array<std::uint32_t, 2> box{64, 8}, element_strides{1, 1};
  cuda::TensorMapInterleave interleave = cuda::TensorMapInterleave::none;
  cuda::TensorMapSwizzle swizzle = cuda::TensorMapSwizzle::bytes_128;
  cuda::TensorMapL2Promotion promotion = cuda::TensorMapL2Promotion::bytes_128;
  cuda::TensorMapFill fill = cuda::TensorMapFill::zeros;
  cuda::TensorMap map{};

  bool accepted() {
    return emulated_driver().tensor_map_encode_tiled(
               &map, type, rank, tensor.data(), shape.data(), stride_bytes.data(), box.data(),
               element_strides.data(), interleave, swizzle, promotion, fill) == cuda::kSuccess;
  }
  emulator::TensorMapFields fields() {
    emulator::TensorMapFields decoded;
    EXPECT_TRUE(emulator::decode(*reinterpret_cast<const ptx::TensorMap*>(&map), decoded));
    return decoded;
  }
};

TEST(EmulatedTensorMap, FieldsAreEncodedAsRequested) {
  Encode call;
  ASSERT_TRUE(call.accepted());
  const emulator::TensorMapFields fields = call.fields();
  EXPECT_EQ(fields.data, call.tensor.data());
  EXPECT_EQ(fields.type, emulator::MapType::f16);
  EXPECT_EQ(fields.rank, 2u);
  EXPECT_EQ(fields.shape[0], 64u);
  EXPECT_EQ(fields.shape[1], 32u);
  EXPECT_EQ(fields.stride_bytes[0], 128u);
  EXPECT_EQ(fields.box[1], 8u);
  EXPECT_EQ(fields.swizzle_bytes, 128u);
  EXPECT_FALSE(fields.nan_fill);
}

// A copy then writes NaN where it would write zeros, as on a GPU: a kernel that counts on zeros
// shows it.
TEST(EmulatedTensorMap, NanFillIsHonoured) {
  for (const auto type :
       {cuda::TensorMapType::f16, cuda::TensorMapType::bf16, cuda::TensorMapType::f32}) {
    Encode call;
    call.type = type;
    call.box = {16, 8};
    call.fill = cuda::TensorMapFill::nan;
    ASSERT_TRUE(call.accepted());
    EXPECT_TRUE(call.fields().nan_fill);
  }
}

template <class Bend>
bool refused(Bend bend) {
  Encode call;
  bend(call);
  return !call.accepted();
}

TEST(EmulatedTensorMap, UnsupportedParametersAreRefused) {
  const auto in = [](auto code) { return [code](Encode& e) { e.interleave = code; }; };
  EXPECT_TRUE(refused(in(cuda::TensorMapInterleave::bytes_16)));
  EXPECT_TRUE(refused(in(cuda::TensorMapInterleave::bytes_32)));
  EXPECT_TRUE(refused(in(static_cast<cuda::TensorMapInterleave>(7))));
  EXPECT_TRUE(refused([](Encode& e) { e.fill = static_cast<cuda::TensorMapFill>(2); }));
  EXPECT_TRUE(refused([](Encode& e) { e.swizzle = static_cast<cuda::TensorMapSwizzle>(4); }));
  EXPECT_TRUE(refused([](Encode& e) { e.swizzle = static_cast<cuda::TensorMapSwizzle>(-1); }));
  EXPECT_TRUE(refused([](Encode& e) { e.promotion = static_cast<cuda::TensorMapL2Promotion>(4); }));
  EXPECT_TRUE(refused([](Encode& e) { e.type = static_cast<cuda::TensorMapType>(40); }));
  EXPECT_TRUE(refused([](Encode& e) { e.rank = 0; }));
  EXPECT_TRUE(refused([](Encode& e) { e.rank = 6; }));
  EXPECT_TRUE(refused([](Encode& e) { e.shape[1] = 0; }));
  EXPECT_TRUE(refused([](Encode& e) { e.shape[1] = std::uint64_t{1} << 33; }));
  EXPECT_TRUE(refused([](Encode& e) { e.stride_bytes[0] = 120; }));
  EXPECT_TRUE(refused([](Encode& e) { e.stride_bytes[0] = std::uint64_t{1} << 40; }));
  EXPECT_TRUE(refused([](Encode& e) { e.box[1] = 257; }));
  EXPECT_TRUE(refused([](Encode& e) { e.box[0] = 0; }));
  EXPECT_TRUE(refused([](Encode& e) { e.element_strides[1] = 2; }));
  // Integers have no NaN.
  EXPECT_TRUE(refused([](Encode& e) {
    e.type = cuda::TensorMapType::u16;
    e.fill = cuda::TensorMapFill::nan;
  }));
}

}  // namespace
}  // namespace octavo
