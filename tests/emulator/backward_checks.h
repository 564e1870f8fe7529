// SPDX-License-Identifier: Apache-2.0
// Checks that the emulator tests of both backward families share: gradients against fp64, and that
// every wait, barrier and mask term is needed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "emulator/backward_case.h"
#include "runtime/emulated/emulated_driver.h"

namespace octavo {

// Every element is within `tolerance` of the largest reference value, and elements of no sequence
// are untouched.
inline void expect_near(HostTensor& found, const std::vector<double>& expected,
                        const BackwardCase& c, std::int64_t heads, std::int64_t rows,
                        const char* what) {
  const double tolerance = c.shape.dtype == DType::f16 ? 2e-3 : 1.5e-2;
  double largest = 1e-3, worst = 0;
  for (const double x : expected)
    if (!std::isnan(x)) largest = std::max(largest, std::abs(x));
  int touched = 0, missing = 0;
  for (std::int64_t b = 0; b < c.shape.batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t d = 0; d < c.shape.head_dim; ++d) {
          const double wanted = expected[c.index(b, heads, h, rows, i, d)];
          if (std::isnan(wanted)) {
            touched += found.bits(b, h, i, d) != HostTensor::kNan ? 1 : 0;
            continue;
          }
          const double error = std::abs(found.at(b, h, i, d) - wanted);
          if (!(error <= tolerance * largest)) ++missing;
          worst = std::max(worst, error);
        }
  EXPECT_EQ(missing, 0) << what << ": largest error " << worst << " of " << largest;
  EXPECT_EQ(touched, 0) << what;
}

inline void expect_gradients(BackwardCase& c) {
  const BackwardCase::Gradients expected = c.reference();
  expect_near(c.dq, expected.dq, c, c.shape.heads_q, c.shape.seqlen_q, "dq");
  expect_near(c.dk, expected.dk, c, c.shape.heads_kv, c.shape.seqlen_kv, "dk");
  expect_near(c.dv, expected.dv, c, c.shape.heads_kv, c.shape.seqlen_kv, "dv");
}

using Calls = std::vector<emulator::Machine::CallUse>;

inline void merge(Calls& all, const Calls& more) {
  for (const auto& use : more) {
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const auto& u) { return u.place == use.place; });
    if (known == all.end())
      all.push_back(use);
    else
      known->useful += use.useful;
  }
}

// Whether a case comes to this call; if not, a run of it with the call disabled is the same.
inline bool comes_to(const Calls& calls, const emulator::Place& place) {
  return std::any_of(calls.begin(), calls.end(),
                     [&](const auto& use) { return use.place == place; });
}

inline std::vector<std::uint16_t> outputs(const BackwardCase& c) {
  std::vector<std::uint16_t> all = c.dq.data();
  for (const HostTensor* t : {&c.dk, &c.dv})
    all.insert(all.end(), t->data().begin(), t->data().end());
  return all;
}

// Runs every launch of a case, and calls the function after each.
using BackwardLaunch =
    std::function<Status(BackwardCase&, const emulator::Settings&, const EmulatorThen&)>;

// Whether a case fails with this call disabled: a hazard, or other bits.
inline bool detects(const BackwardLaunch& launch, const BackwardCase& original,
                    const std::vector<std::uint16_t>& expected,
                    const emulator::Settings& settings) {
  BackwardCase c = original;
  bool found = false;
  const Status status = launch(c, settings, [&found](const emulator::Machine& machine) {
    found = found || !machine.report().clean();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return found || outputs(c) != expected;
}

// Every wait, barrier and mask term is needed by one of these cases, or marked as not needed.
inline void expect_every_call_needed(const BackwardLaunch& launch,
                                     const std::vector<BackwardShape>& shapes) {
  std::vector<BackwardCase> cases;
  std::vector<std::vector<std::uint16_t>> expected;
  std::vector<Calls> calls_of;  // each case
  Calls calls;
  for (const BackwardShape& shape : shapes) {
    const BackwardCase& made = cases.emplace_back(shape);
    BackwardCase c = made;
    Calls& of_case = calls_of.emplace_back();
    const auto note = [&of_case](const emulator::Machine& machine) {
      EXPECT_TRUE(machine.report().clean()) << machine.report().text();
      merge(of_case, machine.calls());
    };
    ASSERT_TRUE(launch(c, {}, note).ok());
    merge(calls, of_case);
    expected.push_back(outputs(c));
  }
  EXPECT_GE(calls.size(), 10U);
  for (const auto& use : calls) {
    bool detected = use.useful == 0 || use.spare != nullptr;
    // If the default schedule finds nothing in any case, a few others run.
    for (std::uint64_t schedule = 0; schedule < 3 && !detected; ++schedule) {
      emulator::Settings settings;
      settings.mutant = use.place;
      if (schedule > 0) settings.seed = schedule;
      for (std::size_t i = 0; i < cases.size() && !detected; ++i)
        if (schedule > 0 || comes_to(calls_of[i], use.place))
          detected = detects(launch, cases[i], expected[i], settings);
    }
    EXPECT_TRUE(detected) << describe(use.place) << " survives";
  }
}

}  // namespace octavo
