// SPDX-License-Identifier: Apache-2.0
// docs/tolerances.md and the code have the same table; and the rule scales as documented.
#include "evidence/oracle/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "numeric/formats.h"
#include "octavo/evidence.hpp"

namespace octavo::evidence {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::stringstream stream(line);
  std::string cell;
  std::getline(stream, cell, '|');  // before the first bar
  while (std::getline(stream, cell, '|')) {
    const auto begin = cell.find_first_not_of(" `");
    const auto end = cell.find_last_not_of(" `");
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return cells;
}

// The rows under "| mode |" of the page, keyed by mode.
std::map<std::string, std::vector<std::string>> documented_rows() {
  std::ifstream page(OCTAVO_DOCS_DIR "/tolerances.md");
  EXPECT_TRUE(page.good());
  std::map<std::string, std::vector<std::string>> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("| mode | Q and K |", 0) == 0) inside = true;
    if (line.rfind("|", 0) != 0) inside = false;
    if (!inside || line.rfind("|---", 0) == 0 || line.rfind("| mode", 0) == 0) continue;
    const auto cells = cells_of(line);
    rows[cells[0]] = cells;
  }
  return rows;
}

std::string format_cell(DType format) {
  return format == DType::f32 ? "as given" : std::string(name(format));
}

TEST(Bounds, PageMatchesTheTable) {
  const auto rows = documented_rows();
  EXPECT_EQ(rows.size(), mode_bounds().size());
  for (const ModeBound& bound : mode_bounds()) {
    const auto row = rows.find(std::string(bound.mode));
    ASSERT_NE(row, rows.end()) << bound.mode;
    const auto& cells = row->second;
    ASSERT_GE(cells.size(), 8U);
    EXPECT_EQ(cells[1], format_cell(bound.qk)) << bound.mode;
    EXPECT_EQ(cells[2], format_cell(bound.v)) << bound.mode;
    EXPECT_EQ(std::stod(cells[3]), bound.p_noise) << bound.mode;
    EXPECT_EQ(std::stod(cells[4]), bound.mission_max) << bound.mode;
    EXPECT_EQ(std::stod(cells[5]), bound.mission_rmse) << bound.mode;
    EXPECT_LT(std::stod(cells[6]), bound.mission_max) << bound.mode;
    EXPECT_LT(std::stod(cells[7]), bound.mission_rmse) << bound.mode;
  }
}

TEST(Bounds, EveryModeHasARow) {
  for (const DType input : kAllDTypes)
    for (const Precision precision : kAllPrecisions) {
      if (is_8bit(input) && precision != Precision::native) continue;
      const ModeBound& bound = mode_bound(input, precision);
      EXPECT_FALSE(bound.mode.empty());
      EXPECT_GT(bound.mission_max, bound.mission_rmse);
    }
}

Magnitudes normal_inputs() {
  Magnitudes m;
  m.v_amax = 4.5;
  m.v_rms = 1;
  m.out_amax = 0.5;
  m.score_amax = 12;
  m.tau = 1.5;
  m.qk_crest = m.v_crest = 4.5;
  m.tau_peak = 1.5;
  m.head_dim = 64;
  m.kappa_max = 0.3;
  m.kappa_rms = 0.07;
  m.rows = 4096;
  return m;
}

TEST(Bounds, ScaleWithTheData) {
  const ModeBound& fp8 = mode_bound(DType::f16, Precision::fp8);
  const Bounds b = bounds(fp8, DType::f32, false, normal_inputs());
  Magnitudes larger = normal_inputs();
  larger.v_amax *= 2;
  larger.v_rms *= 2;
  EXPECT_NEAR(bounds(fp8, DType::f32, false, larger).total_max, 2 * b.total_max,
              0.01 * b.total_max);
  Magnitudes peaked = normal_inputs();
  peaked.kappa_max = 1;
  EXPECT_GT(bounds(fp8, DType::f32, false, peaked).total_max, 3 * b.total_max);
  // 8-bit P widens the kernel's bound by orders of magnitude; the CPU does not get that tolerance.
  EXPECT_GT(bounds(fp8, DType::f32, true, normal_inputs()).kernel_max, 1000 * b.kernel_max);
  // However wrong the weights are, an average of V is inside the range of V.
  peaked.tau = 1000;
  EXPECT_LT(bounds(fp8, DType::f32, false, peaked).total_max, 2.2 * peaked.v_amax);
}

// The largest of many independent row errors is larger than that of a few.
TEST(Bounds, LargestErrorGrowsWithTheNumberOfRows) {
  const ModeBound& fp8 = mode_bound(DType::f16, Precision::fp8);
  const double spread = std::sqrt(2.0) * format_noise(DType::e4m3, 1) * normal_inputs().tau_peak;
  const auto spreads = [&](std::int64_t rows) {
    Magnitudes m = normal_inputs();
    m.rows = rows;
    const Bounds b = bounds(fp8, DType::f32, false, m);
    return (b.total_lse - b.kernel_lse) / spread;
  };
  EXPECT_NEAR(spreads(0), 4, 1e-9);
  EXPECT_NEAR(spreads(90), 4, 1e-9);
  EXPECT_NEAR(spreads(4544), 1 + std::sqrt(2 * std::log(4544.0)), 1e-9);
}

// If quantized K and V are decoded to 16 bits, a kernel may have the error of their rounding and of
// P's, which is far less than that of quantizing P.
TEST(Bounds, DequantizedKAndV) {
  for (const auto& [q, of_16_bits] : {std::pair{DType::f16, 2e-3}, {DType::bf16, 1.6e-2}}) {
    const ModeBound over = mode_bound_over(q, DType::e4m3);
    const ModeBound& plain = mode_bound(q, Precision::native);
    const double kernel = bounds(over, DType::f32, true, normal_inputs()).kernel_max;
    EXPECT_GT(kernel, bounds(plain, DType::f32, true, normal_inputs()).kernel_max);
    EXPECT_LT(kernel, of_16_bits);
    const ModeBound& codes = mode_bound(DType::e4m3, Precision::native);
    EXPECT_LT(kernel, 0.25 * bounds(codes, DType::f32, true, normal_inputs()).kernel_max);
    EXPECT_LT(bounds(over, DType::f32, false, normal_inputs()).kernel_max, 2e-5);
    EXPECT_EQ(bounds(over, DType::f32, false, normal_inputs()).total_max,
              bounds(codes, DType::f32, false, normal_inputs()).total_max);
  }
}

// The relative error that the channels of a key share if its values in E5M2, times their scale, are
// rounded to f16. Each counts by its square, as in the score of a query that points the same way.
double shared_rounding(const std::vector<float>& values, float scale) {
  double difference = 0, squares = 0;
  for (const float x : values) {
    const float decoded = f32_from_e5m2(e5m2_from_f32(x / scale)) * scale;
    difference += double{decoded} * (f32_from_f16(f16_from_f32(decoded)) - decoded);
    squares += double{decoded} * decoded;
  }
  return difference / squares;
}

// E5M2 has four mantissas: with some scales all of them are rounded to one side, and the score of a
// key too, which is the LSE of a row that attends to it alone.
TEST(Bounds, LseOverKeysWhoseRoundingsShareASign) {
  constexpr double kLargestScore = 4;  // of tau
  std::vector<float> values(4096);
  const auto columns = static_cast<std::int64_t>(values.size());
  ASSERT_TRUE(random_normal(Tensor::bhsd(values.data(), DType::f32, 1, 1, 1, columns), 1, 0).ok());
  double shared = 0;
  for (int step = 0; step < 500; ++step)
    shared = std::max(
        shared, std::abs(shared_rounding(values, 0x1p-14f * (1 + static_cast<float>(step) / 500))));
  Magnitudes m = normal_inputs();
  m.tau = m.tau_peak = 6;
  const double error = kLargestScore * m.tau_peak * shared;
  const Bounds over = bounds(mode_bound_over(DType::f16, DType::e5m2), DType::f16, true, m);
  EXPECT_LT(error, over.kernel_lse);
  EXPECT_GT(error, 4 * format_noise(DType::f16, 0) * m.tau_peak);
  EXPECT_GT(error, 0.4 * over.kernel_lse);
}

TEST(Bounds, IntegerNoiseIsProportionalToTheCrestFactor) {
  EXPECT_NEAR(format_noise(DType::int8, 5), 5 * format_noise(DType::int8, 1), 1e-12);
  EXPECT_EQ(format_noise(DType::e4m3, 5), format_noise(DType::e4m3, 1));
  EXPECT_EQ(format_noise(DType::f32, 5), 0);
}

}  // namespace
}  // namespace octavo::evidence
