// SPDX-License-Identifier: Apache-2.0
// cu_seqlens on a GPU are never trusted: whatever they hold, sequences lie inside their tensors and
// share no token, and a decreasing entry makes an empty one.
#include <gtest/gtest.h>

#include <algorithm>

#include "emulator/long.h"
#include "evidence/cases/emulated_cases.h"

namespace octavo::evidence {
namespace {

std::vector<std::byte> outputs_of(const EmulatedSubject& subject, const Case& c) {
  const Result<EmulatedCase> made = subject.make_case(c);
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (!made.ok()) return {};
  const Status status = made->run({}, [&](const emulator::Machine& machine) {
    EXPECT_TRUE(machine.report().clean()) << subject.brief << " " << c.name() << "\n"
                                          << machine.report().text();
  });
  EXPECT_TRUE(status.ok()) << subject.brief << ": " << status.message();
  return made->outputs();
}

// The kernels of a family, or every `step`-th; how many had such a case.
int expect_clamped(const std::string& family, std::size_t step,
                   const std::string& brief_part = "") {
  const auto subjects = subjects_by_name(family);
  EXPECT_TRUE(subjects.ok());
  int looked_at = 0;
  for (std::size_t i = 0; i < subjects->size(); i += test_long() ? 1 : step) {
    const EmulatedSubject& subject = (*subjects)[i];
    if (subject.brief.find(brief_part) == std::string::npos) continue;
    const auto hostile = std::find_if(subject.cases.begin(), subject.cases.end(),
                                      [](const Case& c) { return c.seqlens == Seqlens::hostile; });
    if (hostile == subject.cases.end()) continue;
    const bool is_short = hostile->seqlen_kv <= 200 || !brief_part.empty();
    if (!is_short && !test_long()) continue;  // minutes
    ++looked_at;
    Case clamped = *hostile;
    clamped.seqlens = Seqlens::clamped;
    const std::vector<std::byte> expected = outputs_of(subject, clamped);
    EXPECT_FALSE(expected.empty());
    EXPECT_TRUE(outputs_of(subject, *hostile) == expected)
        << subject.brief << ": " << hostile->name();
  }
  return looked_at;
}

TEST(EmulatorHostileSeqlens, Sm80KernelsClampThem) {
  EXPECT_GE(expect_clamped("sm80_forward", 5), 3);
}
TEST(EmulatorHostileSeqlens, HopperKernelsClampThem) {
  EXPECT_GE(expect_clamped("sm90_forward", 7), 3);
}
// Counts and indices of the lists of a block mask.
TEST(EmulatorHostileSeqlens, KernelsClampBlockMasks) {
  EXPECT_EQ(expect_clamped("sm80_forward", 1, "block_mask"), 3);
  EXPECT_EQ(expect_clamped("sm90_forward", 1, "block_mask"), 7);
}
// Lengths and page tables of a paged cache.
TEST(EmulatorHostileSeqlens, DecodeKernelsClampThem) { EXPECT_GE(expect_clamped("decode", 2), 3); }
TEST(EmulatorHostileSeqlens, QuantizersClampThem) { EXPECT_GE(expect_clamped("quantize", 3), 4); }

}  // namespace
}  // namespace octavo::evidence
