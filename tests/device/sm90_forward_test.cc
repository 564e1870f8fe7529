// SPDX-License-Identifier: Apache-2.0
// The Hopper forward kernel without a GPU: it compiles without spills, its products stay
// asynchronous, and its shared memory fits.
#include "config/sm90_forward.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>
#include <vector>

#include "emulator/long.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/nvrtc.h"

namespace octavo {
namespace {

struct Shape {
  Sm90ForwardConfig config;
  int stack_bytes = 0;
};

// Forms that the shipped kernels (gpu/shipped_test.cc) do not have: exact sums, FP32 output, other
// head dimensions, pack_gqa, other columns of V. At head_dim 256 with FP32 output, the assembler
// keeps ten descriptors of Q in local memory for the whole loop.
const Shape kShapes[] = {
    {{.element = Element::bf16,
      .v_element = Element::bf16,
      .head_dim = 256,
      .warpgroups = 2,
      .block_n = 80,
      .sum_rounded_p = false,
      .output = {.element = Element::bf16}}},
    {{.head_dim = 256,
      .warpgroups = 2,
      .block_n = 64,
      .sum_rounded_p = false,
      .output = {.element = Element::f32}},
     48},
    {{.head_dim = 128,
      .warpgroups = 2,
      .sum_rounded_p = false,
      .output = {.element = Element::f32}}},
    {{.head_dim = 128,
      .warpgroups = 1,
      .row_groups = 1,
      .cluster = 2,
      .pack_gqa = true,
      .sum_rounded_p = false}},
    {{.head_dim = 192, .head_dim_v = 128, .block_n = 80, .schedule = Schedule::pv_first_queued}},
    {{.element = Element::bf16,
      .v_element = Element::bf16,
      .head_dim = 192,
      .head_dim_v = 128,
      .warpgroups = 2,
      .sum_rounded_p = false,
      .output = {.element = Element::bf16}}},
};

// 8-bit: three and two warpgroups, P V in one slice and in several, keys divided; a scale per key,
// which is read in the loop; FP16 scores.
const Shape k8BitShapes[] = {
    {{.element = Element::e4m3,
      .v_element = Element::e4m3,
      .k_scales = KScales::row,
      .sum_rounded_p = false,
      .pv_columns = 32}},
    {{.element = Element::e5m2,
      .v_element = Element::e5m2,
      .k_scales = KScales::row,
      .head_dim = 128,
      .warpgroups = 2,
      .sum_rounded_p = false,
      .pv_columns = 128}},
    {{.element = Element::int8,
      .v_element = Element::int8,
      .head_dim = 128,
      .warpgroups = 2,
      .sum_rounded_p = false,
      .pv_columns = 128}},
    {{.element = Element::e4m3,
      .v_element = Element::e4m3,
      .head_dim = 256,
      .warpgroups = 2,
      .block_n = 64,
      .sum_rounded_p = false,
      .pv_columns = 64}},
    {{.element = Element::e4m3,
      .v_element = Element::e4m3,
      .head_dim = 128,
      .warpgroups = 1,
      .schedule = Schedule::pv_first,
      .row_groups = 1,
      .cluster = 2,
      .sum_rounded_p = false,
      .pv_columns = 128}},
    // P V in slices, one of which is computed while another is promoted, and scores queued right
    // behind.
    {{.element = Element::e4m3,
      .v_element = Element::e4m3,
      .head_dim = 256,
      .warpgroups = 2,
      .schedule = Schedule::pv_first_queued,
      .scores = ScoreType::f16,
      .pv_columns = 32,
      .pv_buffers = 2}},
    // Keys in two halves, each promoted separately.
    {{.element = Element::e4m3,
      .v_element = Element::e4m3,
      .warpgroups = 1,
      .block_n = 256,
      .stages = 1,
      .schedule = Schedule::pv_first,
      .row_groups = 1,
      .cluster = 2,
      .scores = ScoreType::f16,
      .pv_columns = 64,
      .pv_buffers = 2}},
    // P V before the next scores, as large as registers allow.
    {{.element = Element::e4m3,
      .v_element = Element::e4m3,
      .warpgroups = 4,
      .schedule = Schedule::pv_first,
      .scores = ScoreType::f16,
      .pv_columns = 32}},
    {{.element = Element::e4m3,
      .v_element = Element::e4m3,
      .head_dim = 256,
      .warpgroups = 2,
      .block_n = 160,
      .schedule = Schedule::pv_first,
      .scores = ScoreType::f16_fast,
      .pv_columns = 64}},
};

// 8-bit Q and K with 16-bit V: rows or keys divided, the elements of both products, K with a scale
// per head, block and row.
const Shape kMixedShapes[] = {
    {{.element = Element::int8, .k_scales = KScales::block, .schedule = Schedule::pv_first_queued}},
    {{.element = Element::e4m3,
      .v_element = Element::bf16,
      .k_scales = KScales::row,
      .head_dim = 128,
      .warpgroups = 2}},
    {{.element = Element::e4m3, .head_dim = 96, .warpgroups = 2}},
    {{.element = Element::int8,
      .k_scales = KScales::block,
      .warpgroups = 2,
      .stages = 1,
      .schedule = Schedule::in_turn,
      .row_groups = 1,
      .cluster = 2}},
};

// The in_turn schedule has each product once in the code: the others have them before the loop and
// in it, or in it and after it.
int copies_of_products(const Sm90ForwardConfig& c) {
  return c.schedule == Schedule::in_turn ? 1 : 2;
}

CubinKernel compiled(const Shape& shape) {
  ProgramText program;
  program.text = "#include \"device/sm90/forward.cuh\"\nusing namespace octavo;\n";
  program.name_expression = "sm90::sm90_forward<sm90::ConfigOf<" + to_text(shape.config) + ">>";
  program.options = nvrtc_options(90, false);
  const Result<CompiledKernel> kernel = compile(program);
  EXPECT_TRUE(kernel.ok()) << kernel.status().message();
  if (!kernel.ok()) return {};
  EXPECT_EQ(kernel->log.find("serialized"), std::string::npos) << kernel->log;
  const Result<CubinInfo> info = read_cubin(kernel->image);
  EXPECT_TRUE(info.ok()) << info.status().message();
  const CubinKernel* const found = info.ok() ? info->find(kernel->lowered_name) : nullptr;
  EXPECT_NE(found, nullptr);
  return found != nullptr ? *found : CubinKernel{};
}

TEST(Sm90Forward, CompilesWithoutSpillsOrSerialisedProducts) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  for (const Shape& shape : kShapes) {
    const CubinKernel kernel = compiled(shape);
    EXPECT_LE(kernel.stack_bytes, shape.stack_bytes) << brief_text(shape.config);
    EXPECT_EQ(kernel.spills(), shape.stack_bytes > 0) << brief_text(shape.config);
    const Sm90ForwardConfig& c = shape.config;
    EXPECT_EQ(kernel.instructions.wgmma_f16,
              copies_of_products(c) * (c.head_dim / 16 + c.block_n / 16))
        << brief_text(shape.config);
    EXPECT_EQ(kernel.instructions.mma(), kernel.instructions.wgmma_f16) << brief_text(shape.config);
  }
}

TEST(Sm90Forward, CompilesIn8BitsWithoutSpillsOrSerialisedProducts) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  for (const Shape& shape : k8BitShapes) {
    const CubinKernel kernel = compiled(shape);
    EXPECT_FALSE(kernel.spills()) << brief_text(shape.config);
    EXPECT_EQ(kernel.stack_bytes, 0) << brief_text(shape.config);
    // P V once for every slice, and once more for the ones if they have a product of their own.
    const Sm90ForwardConfig& c = shape.config;
    const int products = c.head_dim / c.pv_columns;
    const int in_loop = c.head_dim / 32 + products * c.block_n / 32;
    const int wgmma =
        c.element == Element::int8 ? kernel.instructions.wgmma_int8 : kernel.instructions.wgmma_fp8;
    EXPECT_EQ(wgmma, copies_of_products(c) * in_loop) << brief_text(shape.config);
    EXPECT_EQ(kernel.instructions.mma(), wgmma) << brief_text(shape.config);
  }
}

// One INT8 and one FP8 kernel; `make test-long`: all.
TEST(Sm90Forward, CompilesMixedWithoutSpillsOrSerialisedProducts) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  for (std::size_t i = 0; i < (test_long() ? std::size(kMixedShapes) : 2); ++i) {
    const Shape& shape = kMixedShapes[i];
    const CubinKernel kernel = compiled(shape);
    EXPECT_FALSE(kernel.spills()) << brief_text(shape.config);
    EXPECT_EQ(kernel.stack_bytes, 0) << brief_text(shape.config);
    const Sm90ForwardConfig& c = shape.config;
    const int times = copies_of_products(c);
    const int of_qk =
        c.element == Element::int8 ? kernel.instructions.wgmma_int8 : kernel.instructions.wgmma_fp8;
    EXPECT_EQ(of_qk, times * c.head_dim / 32) << brief_text(shape.config);
    EXPECT_EQ(kernel.instructions.wgmma_f16, times * c.block_n / 16) << brief_text(shape.config);
    EXPECT_EQ(kernel.instructions.mma(), of_qk + kernel.instructions.wgmma_f16)
        << brief_text(shape.config);
  }
}

std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.insert(shapes.end(), std::begin(k8BitShapes), std::end(k8BitShapes));
  shapes.insert(shapes.end(), std::begin(kMixedShapes), std::end(kMixedShapes));
  return shapes;
}

// What compiles without spills must not be refused before it is compiled.
TEST(Sm90Forward, EveryCompiledShapeIsFeasible) {
  for (const Shape& shape : all_shapes()) {
    const Status status = feasible(shape.config, 90);
    EXPECT_TRUE(status.ok()) << brief_text(shape.config) << ": " << status.message();
  }
}

// Areas do not overlap, those that wgmma and TMA read are aligned, and all fit an H200's CTA.
TEST(Sm90Forward, SharedMemoryPlanIsValid) {
  for (const Shape& shape : all_shapes()) {
    const Sm90ForwardConfig& c = shape.config;
    const sm90::SmemPlan s = sm90::smem_plan(c);
    EXPECT_LE(s.total, 227 * 1024) << brief_text(shape.config);
    for (const int at : {s.q, s.o, s.k, s.v, s.q_tile, s.o_tile, s.k_stage})
      EXPECT_EQ(at % 1024, 0) << brief_text(shape.config);
    // The period of the swizzle: eight rows, or eight chunks of a column's keys for transposed V.
    const int v_repeats = sm90::is_8bit_pv(c) ? 8 * sm90::chunk_keys(c) : 1024;
    EXPECT_EQ(s.v_stage % v_repeats, 0) << brief_text(shape.config);
    EXPECT_EQ(s.barriers % 8, 0) << brief_text(shape.config);
    EXPECT_EQ(s.receive_cta % 16, 0) << brief_text(shape.config);
    const int q_bytes = sm90::q_tiles(c) * s.q_tile, o_bytes = sm90::q_tiles(c) * s.o_tile;
    EXPECT_GE(s.o, s.q + q_bytes) << brief_text(shape.config);
    EXPECT_GE(s.k, s.o + (sm90::stores_o_by_tma(c) ? o_bytes : 0)) << brief_text(shape.config);
    EXPECT_GE(s.v, s.k + sm90::kv_buffers(c) * s.k_stage) << brief_text(shape.config);
    EXPECT_GE(s.ones, s.v + sm90::kv_buffers(c) * s.v_stage) << brief_text(shape.config);
    EXPECT_GE(s.barriers, s.receive_cta) << brief_text(shape.config);
  }
}

// The registers at launch cover those that the roles then request.
TEST(Sm90Forward, RegistersAddUp) {
  for (int warpgroups = 2; warpgroups <= 4; ++warpgroups) {
    const Sm90ForwardConfig c{.warpgroups = warpgroups};
    const int at_launch = 65536 / sm90::threads(c) / 8 * 8;
    EXPECT_LE(warpgroups * sm90::consumer_registers(c) + sm90::producer_registers(c),
              at_launch * (warpgroups + 1));
  }
}

}  // namespace
}  // namespace octavo
