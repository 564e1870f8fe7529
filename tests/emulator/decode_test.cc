// The decode kernel on the emulator: few queries over many keys, against the fp64 reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "emulator/long.h"
#include "emulator/modified_call.h"
#include "octavo/emulator.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

using namespace modified;

constexpr Device kHopper{Device::Kind::emulator, 90};
constexpr Device kAda{Device::Kind::emulator, 0};
constexpr unsigned kDecodeFeatures[] = {0, kSoftcap, kAlibi, kSinks, kPadded};

std::string kernel_of(Call& call, Device device) {
  const Problem problem = problem_of(call.arguments(), call.options()).value();
  return explain(problem, device).value().kernel;
}

void check(DType dtype, const Shape& shape, unsigned features, std::uint64_t number,
           Device device = kHopper) {
  Call call(dtype, shape, features, number);
  EXPECT_EQ(kernel_of(call, device), "decode") << call.name();
  call.check(device, tolerance_of(dtype));
}

// The features that decoding needs, in pairs; `number` rotates causal masks and windows.
TEST(EmulatorDecode, EveryPairOfFeatures) {
  std::uint64_t number = 0;
  for (const unsigned first : kDecodeFeatures)
    for (const unsigned second : kDecodeFeatures)
      if (first <= second) check(DType::f16, {3, 4, 2, 2, 260, 64}, first | second, number++);
}

// Groups of query heads that fill a tile of rows, exceed one, and divide nothing; one key head for
// all; head dimensions that are padded; a sequence in one CTA, and one that all CTAs share.
TEST(EmulatorDecode, EveryShape) {
  const Shape shapes[] = {{3, 8, 1, 2, 300, 64},  {3, 6, 2, 3, 257, 72}, {3, 20, 1, 1, 400, 64},
                          {3, 10, 2, 5, 256, 64}, {3, 4, 4, 1, 700, 64}, {3, 4, 4, 16, 256, 64},
                          {3, 2, 1, 4, 300, 88}};
  std::uint64_t number = 0;
  for (const Shape& shape : shapes)
    for (const unsigned features : {0u, unsigned{kPadded | kSinks}})
      check(DType::f16, shape, features, number++);
  for (const Shape& shape :
       {Shape{3, 8, 2, 1, 300, 128}, Shape{3, 4, 2, 4, 256, 64}, Shape{3, 16, 1, 2, 280, 64}})
    for (const unsigned features : {0u, unsigned{kPadded | kSoftcap}})
      check(DType::bf16, shape, features, number++);
}

TEST(EmulatorDecode, AdaRunsItToo) {
  for (std::uint64_t number = 0; number < 6; ++number)
    check(DType::f16, {3, 4, 2, 2, 300, 64}, number % 2 ? kPadded | kAlibi : 0, number, kAda);
}

// Forward kernels serve what the decode kernel does not.
TEST(EmulatorDecode, OtherKernelsServeTheRest) {
  const Shape decoding{3, 4, 2, 2, 260, 64};
  for (const unsigned features : {unsigned{kBias}, unsigned{kMask}}) {
    Call call(DType::f16, decoding, features, 0);
    EXPECT_NE(kernel_of(call, kHopper), "decode");
    call.check(kHopper, tolerance_of(DType::f16));
  }
  Call long_query(DType::f16, {3, 4, 2, 40, 260, 64}, 0, 0);
  EXPECT_NE(kernel_of(long_query, kHopper), "decode");
  Call short_keys(DType::f16, {3, 4, 2, 2, 100, 64}, 0, 0);
  EXPECT_NE(kernel_of(short_keys, kHopper), "decode");
}

// Rows that are not aligned to 16 bytes go to the sm80 family.
TEST(EmulatorDecode, UnalignedRows) {
  Call call(DType::f16, {3, 4, 2, 2, 260, 64}, 0, 0);
  Values k(DType::f16, {3, 2, 260, 64}, 1);
  k.fill_normal_values(0, 2);
  call.arguments().k = k.view();
  call.check(kHopper, tolerance_of(DType::f16));
}

}  // namespace
}  // namespace octavo
