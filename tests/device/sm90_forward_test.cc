// The Hopper forward kernel without a GPU: it compiles without spills, keeps its products
// asynchronous, and its shared memory fits.
#include "config/sm90_forward.h"

#include <gtest/gtest.h>

#include <iterator>
#include <vector>

#include "gpu/cubin_info.h"
#include "gpu/nvrtc.h"

namespace octavo {
namespace {

struct Shape {
  const char* text;
  Sm90Forward config;
  int stack_bytes = 0;
};

// One of each form: rows or keys divided, ones beside V or behind it, O stored from shared memory
// or registers. With 256 columns in fp32 the assembler keeps ten descriptors of Q for the whole
// loop, in local memory.
const Shape kShapes[] = {
    {"", {}},
    {".head_dim=128,.warpgroups=2", {.head_dim = 128, .warpgroups = 2}},
    {".element=Element::bf16,.out=Element::bf16,.head_dim=256,.warpgroups=2,.block_n=80,"
     ".own_o=false,.ones=false",
     {.element = Element::bf16,
      .out = Element::bf16,
      .head_dim = 256,
      .warpgroups = 2,
      .block_n = 80,
      .own_o = false,
      .ones = false}},
    {".out=Element::f32,.head_dim=256,.warpgroups=2,.block_n=64,.own_o=false,.ones=false",
     {.out = Element::f32,
      .head_dim = 256,
      .warpgroups = 2,
      .block_n = 64,
      .own_o = false,
      .ones = false},
     48},
    {".out=Element::f32,.head_dim=128,.warpgroups=2,.ones=false",
     {.out = Element::f32, .head_dim = 128, .warpgroups = 2, .ones = false}},
    {".warpgroups=2,.stages=1,.split_keys=true,.cluster=2,.persistent=false",
     {.warpgroups = 2, .stages = 1, .split_keys = true, .cluster = 2, .persistent = false}},
    {".head_dim=128,.warpgroups=1,.split_keys=true,.cluster=2,.persistent=false,.own_o=false,"
     ".ones=false,.pack_heads=true,.early_start=true",
     {.head_dim = 128,
      .warpgroups = 1,
      .split_keys = true,
      .cluster = 2,
      .persistent = false,
      .own_o = false,
      .ones = false,
      .pack_heads = true,
      .early_start = true}},
    {".early_start=true", {.early_start = true}},
    // P V before the next scores, and these right behind it.
    {".warpgroups=4,.block_n=64,.stages=4,.overlap=false,.scores_behind=true,.own_o=false",
     {.warpgroups = 4,
      .block_n = 64,
      .stages = 4,
      .overlap = false,
      .scores_behind = true,
      .own_o = false}},
};

// In 8 bits: those of three and of two warpgroups, O in one part and in several, keys divided; with
// scales of every key, which are read in the loop; with scores in FP16.
const Shape k8BitShapes[] = {
    {".element=Element::e4m3,.own_o=false,.ones=false,.fold_columns=32,.k_row_scales=true",
     {.element = Element::e4m3,
      .own_o = false,
      .ones = false,
      .fold_columns = 32,
      .k_row_scales = true}},
    {".element=Element::e5m2,.head_dim=128,.warpgroups=2,.own_o=false,.ones=false,"
     ".fold_columns=128,.k_row_scales=true",
     {.element = Element::e5m2,
      .head_dim = 128,
      .warpgroups = 2,
      .own_o = false,
      .ones = false,
      .fold_columns = 128,
      .k_row_scales = true}},
    {".element=Element::int8,.head_dim=128,.warpgroups=2,.own_o=false,.ones=false,"
     ".fold_columns=128",
     {.element = Element::int8,
      .head_dim = 128,
      .warpgroups = 2,
      .own_o = false,
      .ones = false,
      .fold_columns = 128}},
    {".element=Element::e4m3,.head_dim=256,.warpgroups=2,.block_n=64,.own_o=false,.ones=false,"
     ".fold_columns=64",
     {.element = Element::e4m3,
      .head_dim = 256,
      .warpgroups = 2,
      .block_n = 64,
      .own_o = false,
      .ones = false,
      .fold_columns = 64}},
    {".element=Element::e4m3,.head_dim=128,.warpgroups=1,.split_keys=true,.cluster=2,"
     ".overlap=false,.persistent=false,.own_o=false,.ones=false,.fold_columns=128",
     {.element = Element::e4m3,
      .head_dim = 128,
      .warpgroups = 1,
      .split_keys = true,
      .cluster = 2,
      .overlap = false,
      .persistent = false,
      .own_o = false,
      .ones = false,
      .fold_columns = 128}},
    // P V in parts, of which one is under way while one is folded, and scores right behind it.
    {".element=Element::e4m3,.head_dim=256,.warpgroups=2,.overlap=false,.scores_behind=true,"
     ".own_o=false,.fold_columns=32,.fold_buffers=2,.f16_scores=true",
     {.element = Element::e4m3,
      .head_dim = 256,
      .warpgroups = 2,
      .overlap = false,
      .scores_behind = true,
      .own_o = false,
      .fold_columns = 32,
      .fold_buffers = 2,
      .f16_scores = true}},
    // Keys in two halves, each folded by itself.
    {".element=Element::e4m3,.warpgroups=1,.block_n=256,.stages=1,.split_keys=true,.cluster=2,"
     ".overlap=false,.persistent=false,.own_o=false,.fold_columns=64,.fold_buffers=2,"
     ".f16_scores=true",
     {.element = Element::e4m3,
      .warpgroups = 1,
      .block_n = 256,
      .stages = 1,
      .split_keys = true,
      .cluster = 2,
      .overlap = false,
      .persistent = false,
      .own_o = false,
      .fold_columns = 64,
      .fold_buffers = 2,
      .f16_scores = true}},
    // P V before the next scores, as large as registers allow.
    {".element=Element::e4m3,.warpgroups=4,.overlap=false,.own_o=false,.fold_columns=32,"
     ".f16_scores=true",
     {.element = Element::e4m3,
      .warpgroups = 4,
      .overlap = false,
      .own_o = false,
      .fold_columns = 32,
      .f16_scores = true}},
    {".element=Element::e4m3,.head_dim=256,.warpgroups=2,.block_n=160,.overlap=false,"
     ".own_o=false,.fold_columns=64,.f16_scores=true,.code_exp=true",
     {.element = Element::e4m3,
      .head_dim = 256,
      .warpgroups = 2,
      .block_n = 160,
      .overlap = false,
      .own_o = false,
      .fold_columns = 64,
      .f16_scores = true,
      .code_exp = true}},
};

// 8-bit Q and K beside V of 16 bits: rows or keys divided, both products' elements, scales of
// heads, blocks and rows of K.
const Shape kMixedShapes[] = {
    {".element=Element::int8,.mixed_v=MixedV::f16,.stages=3,.own_o=false,.k_block_scales=true",
     {.element = Element::int8,
      .mixed_v = MixedV::f16,
      .stages = 3,
      .own_o = false,
      .k_block_scales = true}},
    {".element=Element::e4m3,.mixed_v=MixedV::bf16,.head_dim=128,.warpgroups=2,.own_o=false,"
     ".k_row_scales=true",
     {.element = Element::e4m3,
      .mixed_v = MixedV::bf16,
      .head_dim = 128,
      .warpgroups = 2,
      .own_o = false,
      .k_row_scales = true}},
    {".element=Element::e4m3,.mixed_v=MixedV::f16,.head_dim=96,.warpgroups=2,.own_o=false",
     {.element = Element::e4m3,
      .mixed_v = MixedV::f16,
      .head_dim = 96,
      .warpgroups = 2,
      .own_o = false}},
    {".element=Element::int8,.mixed_v=MixedV::f16,.warpgroups=2,.stages=1,.split_keys=true,"
     ".cluster=2,.overlap=false,.persistent=false,.own_o=false,.k_block_scales=true",
     {.element = Element::int8,
      .mixed_v = MixedV::f16,
      .warpgroups = 2,
      .stages = 1,
      .split_keys = true,
      .cluster = 2,
      .overlap = false,
      .persistent = false,
      .own_o = false,
      .k_block_scales = true}},
};

CubinKernel compiled(const Shape& shape) {
  ProgramText program;
  program.text = "#include \"device/sm90/forward.cuh\"\nusing namespace octavo;\n";
  program.name_expression =
      std::string("sm90::sm90_forward<sm90::ConfigOf<Sm90Forward{") + shape.text + "}>>";
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
    EXPECT_LE(kernel.stack_bytes, shape.stack_bytes) << shape.text;
    EXPECT_EQ(kernel.spills(), shape.stack_bytes > 0) << shape.text;
    // Twice q k^T and p v: before the loop and in it, in it and after it.
    const Sm90Forward& c = shape.config;
    EXPECT_EQ(kernel.instructions.wgmma_f16, 2 * (c.head_dim / 16 + c.block_n / 16)) << shape.text;
    EXPECT_EQ(kernel.instructions.mma(), kernel.instructions.wgmma_f16) << shape.text;
  }
}

TEST(Sm90Forward, CompilesIn8BitsWithoutSpillsOrSerialisedProducts) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  for (const Shape& shape : k8BitShapes) {
    const CubinKernel kernel = compiled(shape);
    EXPECT_FALSE(kernel.spills()) << shape.text;
    EXPECT_EQ(kernel.stack_bytes, 0) << shape.text;
    // p v once for every part of O, and for the sums where they are apart.
    const Sm90Forward& c = shape.config;
    const int parts = c.head_dim / c.fold_columns + (sm90::ones_apart(c) ? 1 : 0);
    const int in_loop = c.head_dim / 32 + parts * c.block_n / 32;
    const int wgmma =
        c.element == Element::int8 ? kernel.instructions.wgmma_int8 : kernel.instructions.wgmma_fp8;
    EXPECT_EQ(wgmma, (c.overlap || sm90::codes_pv(c) ? 2 : 1) * in_loop) << shape.text;
    EXPECT_EQ(kernel.instructions.mma(), wgmma) << shape.text;
  }
}

TEST(Sm90Forward, CompilesMixedWithoutSpillsOrSerialisedProducts) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  for (const Shape& shape : kMixedShapes) {
    const CubinKernel kernel = compiled(shape);
    EXPECT_FALSE(kernel.spills()) << shape.text;
    EXPECT_EQ(kernel.stack_bytes, 0) << shape.text;
    const Sm90Forward& c = shape.config;
    const int times = c.overlap ? 2 : 1;
    const int of_codes =
        c.element == Element::int8 ? kernel.instructions.wgmma_int8 : kernel.instructions.wgmma_fp8;
    EXPECT_EQ(of_codes, times * c.head_dim / 32) << shape.text;
    EXPECT_EQ(kernel.instructions.wgmma_f16, times * c.block_n / 16) << shape.text;
    EXPECT_EQ(kernel.instructions.mma(), of_codes + kernel.instructions.wgmma_f16) << shape.text;
  }
}

// Areas follow each other, those that wgmma and TMA read on their boundaries, inside an H200's CTA.
TEST(Sm90Forward, SharedMemoryIsPlanned) {
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.insert(shapes.end(), std::begin(k8BitShapes), std::end(k8BitShapes));
  shapes.insert(shapes.end(), std::begin(kMixedShapes), std::end(kMixedShapes));
  for (const Shape& shape : shapes) {
    const Sm90Forward& c = shape.config;
    const sm90::SmemPlan s = sm90::smem_plan(c);
    EXPECT_LE(s.total, 227 * 1024) << shape.text;
    for (const int at : {s.q, s.o, s.k, s.v, s.q_tile, s.k_stage})
      EXPECT_EQ(at % 1024, 0) << shape.text;
    // What a swizzle repeats after: eight rows, of V transposed eight chunks of a column's keys.
    const int v_repeats = sm90::codes_pv(c) ? 8 * sm90::chunk_keys(c) : 1024;
    EXPECT_EQ(s.v_stage % v_repeats, 0) << shape.text;
    EXPECT_EQ(s.barriers % 8, 0) << shape.text;
    EXPECT_EQ(s.receive % 16, 0) << shape.text;
    const int q_bytes = sm90::q_tiles(c) * s.q_tile;
    EXPECT_GE(s.o, s.q + q_bytes) << shape.text;
    EXPECT_GE(s.k, s.o + (sm90::stages_o(c) ? q_bytes : 0)) << shape.text;
    EXPECT_GE(s.v, s.k + sm90::kv_buffers(c) * s.k_stage) << shape.text;
    EXPECT_GE(s.ones, s.v + sm90::kv_buffers(c) * s.v_stage) << shape.text;
    EXPECT_GE(s.barriers, s.receive) << shape.text;
  }
}

// What is launched with holds what the roles then take.
TEST(Sm90Forward, RegistersAddUp) {
  for (int warpgroups = 2; warpgroups <= 4; ++warpgroups) {
    const Sm90Forward c{.warpgroups = warpgroups};
    const int at_launch = 65536 / sm90::threads(c) / 8 * 8;
    EXPECT_LE(warpgroups * sm90::math_registers(c) + sm90::load_registers(c),
              at_launch * (warpgroups + 1));
  }
}

}  // namespace
}  // namespace octavo
