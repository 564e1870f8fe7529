// SPDX-License-Identifier: Apache-2.0
// The decode kernel on the emulator: few queries over many keys, against the fp64 reference.
#include "emulator/kernels/decode.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "emulator/long.h"
#include "emulator/modified_call.h"
#include "evidence/cases/decode_cases.h"
#include "evidence/gates/check.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

using namespace modified;

constexpr Device kHopper{Device::Kind::emulator, 90};
constexpr Device kAda{Device::Kind::emulator, 0};

std::string kernel_of(const Arguments& arguments, const Options& options, Device device) {
  return explain(problem_of(arguments, options).value(), device).value().kernel;
}

// The decode kernel runs these calls although they have few keys.
class EmulatorDecode : public testing::Test {
 protected:
  void SetUp() override { setenv("OCTAVO_KERNELS", "decode", 1); }
  void TearDown() override { unsetenv("OCTAVO_KERNELS"); }

  static void check(DType dtype, const Shape& shape, unsigned features, std::uint64_t number,
                    Device device = kHopper) {
    Call call(dtype, shape, features, number);
    EXPECT_EQ(kernel_of(call.arguments(), call.options(), device), "decode") << call.name();
    call.check(device, tolerance_of(dtype));
  }
};

// The features that decoding needs, in pairs; `number` rotates causal masks and windows.
TEST_F(EmulatorDecode, EveryPairOfFeatures) {
  constexpr unsigned kFeatures[] = {0, kSoftcap, kAlibi, kSinks, kPadded};
  std::uint64_t number = 0;
  for (const unsigned first : kFeatures)
    for (const unsigned second : kFeatures)
      if (first <= second) check(DType::f16, {3, 4, 2, 2, 200, 64}, first | second, number++);
}

// Groups of query heads that fill a tile of rows, exceed one, and divide nothing; one key head for
// all; head dimensions that are padded; a sequence in one CTA, and one that all CTAs share.
TEST_F(EmulatorDecode, EveryShape) {
  const Shape shapes[] = {{3, 8, 1, 2, 100, 64}, {3, 6, 2, 3, 57, 72},  {3, 20, 1, 1, 200, 64},
                          {3, 10, 2, 5, 65, 64}, {3, 4, 4, 1, 500, 64}, {3, 4, 4, 16, 64, 64},
                          {3, 2, 1, 4, 1, 88}};
  std::uint64_t number = 0;
  for (const Shape& shape : shapes)
    for (const unsigned features : {0u, unsigned{kSinks}})
      check(DType::f16, shape, features, number++);
  for (const Shape& shape :
       {Shape{3, 8, 2, 1, 150, 128}, Shape{3, 4, 2, 4, 129, 64}, Shape{3, 16, 1, 2, 100, 128}})
    for (const unsigned features : {0u, unsigned{kPadded | kSoftcap}})
      check(DType::bf16, shape, features, number++);
}

// A cluster of two to eight CTAs computes each work tile: more CTAs than KV tiles and fewer, one
// sequence with padding, and several of equal length.
TEST_F(EmulatorDecode, ClustersOfEveryShape) {
  std::uint64_t number = 0;
  for (const Shape& shape :
       {Shape{1, 16, 8, 1, 100, 64}, Shape{1, 16, 8, 2, 700, 64}, Shape{1, 8, 8, 1, 9, 56},
        Shape{2, 32, 8, 2, 300, 64}, Shape{1, 24, 8, 2, 130, 64}, Shape{4, 8, 8, 1, 150, 64}})
    for (const unsigned features : {0u, unsigned{kSinks}, unsigned{kPadded | kAlibi}}) {
      if (features & kPadded && shape.batch > 1) continue;
      Call call(DType::f16, shape, features, number++);
      const Problem problem = problem_of(call.arguments(), call.options()).value();
      EXPECT_NE(explain(problem, kHopper)->config.find("clusters=true"), std::string::npos)
          << call.name();
      call.check(kHopper, tolerance_of(DType::f16));
    }
}

TEST_F(EmulatorDecode, RunsOnAda) {
  for (std::uint64_t number = 0; number < 6; ++number)
    check(DType::f16, {3, 4, 2, 2, 150, 64}, number % 2 ? kPadded | kAlibi : 0, number, kAda);
}

// A scale of 0 leaves equal weights, a negative one changes the signs of scores.
TEST_F(EmulatorDecode, ScalesOfEitherSign) {
  for (const float scale : {-0.3f, 0.0f, 2.0f}) {
    Call call(DType::f16, {3, 4, 2, 2, 150, 64}, kPadded | kAlibi, 5);
    call.arguments().scale = scale;
    call.check(kHopper, tolerance_of(DType::f16));
  }
}

// Rows that are not aligned to 16 bytes go to the sm80 family, or are refused if the decode kernel
// is forced.
TEST_F(EmulatorDecode, UnalignedRows) {
  Call call(DType::f16, {3, 4, 2, 2, 260, 64}, 0, 0);
  Values k(DType::f16, {3, 2, 260, 64}, 1);
  k.fill_normal_values(0, 2);
  call.arguments().k = k.view();
  const Status status = attention(call.arguments(), call.options(), kAda);
  EXPECT_EQ(status.code(), ErrorCode::unsupported);
  EXPECT_NE(status.message().find("aligned to 16 bytes, in the decode kernel"), std::string::npos)
      << status.message();
  unsetenv("OCTAVO_KERNELS");
  EXPECT_EQ(kernel_of(call.arguments(), call.options(), kAda), "decode");
  call.check(kAda, tolerance_of(DType::f16));
}

// A plan for many keys also runs without any.
TEST(EmulatorDecodeChoice, RunsWithoutKeys) {
  Call call(DType::f16, {3, 4, 2, 2, 260, 64}, 0, 0);
  const Plan planned = plan(problem_of(call.arguments(), call.options()).value(), kAda).value();
  EXPECT_EQ(planned.explain().kernel, "decode");
  Arguments& a = call.arguments();
  a.k.shape[2] = a.v.shape[2] = 0;
  std::vector<std::byte> workspace(planned.workspace_bytes());
  const Status status = planned.run(a, {workspace.data(), workspace.size()});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(call.out().get(2, 3, 1, 63), 0);
  EXPECT_EQ(call.lse().get(2, 3, 1, 0), -kInf);
}

// A forced decode kernel refuses calls that it does not support.
TEST_F(EmulatorDecode, ForcedKernelRefusesWhatItCannotRun) {
  for (const unsigned features : {unsigned{kBias}, unsigned{kMask}}) {
    Call call(DType::f16, {3, 4, 2, 2, 100, 64}, features, 0);
    const Status status = attention(call.arguments(), call.options(), kHopper);
    EXPECT_EQ(status.code(), ErrorCode::unsupported);
    EXPECT_EQ(status.message().find("OCTAVO_KERNELS is 'decode'; supported here: sm80, sm90, or "
                                    "nothing for B=3"),
              0U)
        << status.message();
  }
}

// Without a forced family: few queries over many keys of few heads, and 8-bit caches.
TEST(EmulatorDecodeChoice, FewQueriesOverManyKeys) {
  Problem p;
  p.batch = 1;
  p.heads_q = 32;
  p.heads_kv = 8;
  p.seqlen_q = 1;
  p.seqlen_kv = 4096;
  p.head_dim = p.head_dim_v = 64;
  const auto kernel = [](const Problem& problem, Device device) {
    return explain(problem, device).value().kernel;
  };
  EXPECT_EQ(kernel(p, kHopper), "decode");
  EXPECT_EQ(kernel(p, kAda), "decode");
  Problem other = p;
  other.seqlen_q = 32;
  EXPECT_NE(kernel(other, kHopper), "decode");
  other = p;
  other.seqlen_kv = 1024;
  EXPECT_EQ(kernel(other, kHopper), "sm90_forward");
  EXPECT_EQ(kernel(other, kAda), "decode");
  other.k = other.v = DType::int8;
  EXPECT_EQ(kernel(other, kHopper), "decode");
  other = p;
  other.batch = 64;  // enough heads for every SM
  EXPECT_EQ(kernel(other, kHopper), "sm90_forward");
  other = p;
  other.options.batch_invariant = true;
  EXPECT_NE(kernel(other, kHopper), "decode");
}

void expect_all_pass(const std::vector<evidence::Case>& cases) {
  CheckOptions options;
  options.device = kHopper;
  options.repeat = 1;
  const Result<CheckReport> report =
      evidence::check_cases(options, cases, evidence::library_runner(kHopper));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->cases, static_cast<std::int64_t>(cases.size()));
  EXPECT_EQ(report->not_run, 0);
  for (const std::string& failure : report->failures) ADD_FAILURE() << failure;
}

// Cases of the suite `decode` that are small and that one of the emulator's kernels runs: paged
// caches in 16, 8 and 4 bits.
TEST(EmulatorDecodeSuite, PagedCaches) {
  const std::size_t most = test_long() ? 400 : 40;
  std::vector<evidence::Case> cases;
  for (const evidence::Case& c : evidence::decode_cases(3, test_long() ? 6000 : 1000)) {
    const std::int64_t work = c.batch * c.heads_q * c.seqlen_q * c.seqlen_kv;
    const auto has_kernel = [&c] {
      for (const auto& kernel : emulator::decode_kernels())
        if (kernel.config.arch == 90 && kernel.config.head_dim >= c.head_dim &&
            static_cast<int>(kernel.config.element) == static_cast<int>(c.input) &&
            static_cast<int>(kernel.config.out) == static_cast<int>(c.out) &&
            static_cast<int>(kernel.config.kv) == static_cast<int>(c.k_type()) &&
            kernel.config.group == c.kv_group && kernel.config.draft_tree == c.draft_tree &&
            kernel.config.batch_invariant == c.options.batch_invariant)
          return true;
      return false;
    };
    if (work > 40'000 || c.layout == evidence::Layout::gaps || !has_kernel()) continue;
    cases.push_back(c);
    if (cases.size() == most) break;
  }
  ASSERT_EQ(cases.size(), most);
  std::set<DType> formats, of_eight_rows;
  for (const evidence::Case& c : cases) {
    formats.insert(c.k_type());
    if (c.seqlen_q * c.heads_q <= 8 * c.heads_kv) of_eight_rows.insert(c.k_type());
  }
  EXPECT_GE(formats.size(), 5U);
  EXPECT_GE(of_eight_rows.size(), 5U);
  expect_all_pass(cases);
}

// One SM has so many KV tiles of a sequence that it reads the page table several times. Pages of 16
// keys need an entry for each sixteen keys, larger ones one for a warp's whole block.
TEST(EmulatorDecodeSuite, LongSequencesOnOneSm) {
  std::vector<evidence::Case> cases;
  for (const std::int64_t page_size : {16, 64}) {
    evidence::Case c;
    c.heads_q = 4;
    c.seqlen_kv = 8192;
    c.page_size = page_size;
    c.key_lengths = evidence::KeyLengths::longest;
    c.options.sm_margin = 131;  // of 132
    c.seed = static_cast<std::uint64_t>(page_size);
    cases.push_back(c);
  }
  expect_all_pass(cases);
}

// A cache whose rows the kernel cannot copy in 16 bytes, and types that it does not convert.
TEST(EmulatorDecodeSuite, RefusesOtherCaches) {
  Problem p;
  p.batch = p.heads_q = p.heads_kv = p.seqlen_q = 1;
  p.paged = true;
  p.page_size = 16;
  p.seqlen_kv = 64;
  p.head_dim = p.head_dim_v = 64;
  EXPECT_TRUE(plan(p, kHopper).ok());
  p.head_dim = p.head_dim_v = 60;
  const Status status = plan(p, kHopper).status();
  EXPECT_EQ(status.code(), ErrorCode::unsupported);
  EXPECT_NE(status.message().find("with a paged cache on a GPU"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace octavo
