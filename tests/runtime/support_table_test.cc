// SPDX-License-Identifier: Apache-2.0
// The README's table of what is supported, held against what the library says of every GPU it knows
// and of the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "octavo/emulator.hpp"
#include "octavo/kernels.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

// A column of the table. A GPU whose name is empty is the CPU.
using Columns = std::array<std::vector<KnownGpu>, 3>;

Columns columns() {
  Columns all;
  for (const KnownGpu& gpu : known_gpus()) all[gpu.arch == 90 ? 0 : 1].push_back(gpu);
  all[2].push_back({"", "the CPU", 0, 0});
  return all;
}

bool has_fp8(const KnownGpu& gpu) { return gpu.arch == 0 || gpu.arch >= 89; }
bool is_cpu(const KnownGpu& gpu) { return gpu.arch == 0; }

Problem problem_of(DType qkv) {
  Problem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seqlen_q = problem.seqlen_kv = 512;
  problem.head_dim = problem.head_dim_v = 64;
  problem.q = problem.k = problem.v = qkv;
  problem.out = is_8bit(qkv) ? DType::f16 : qkv;
  return problem;
}

Problem paged(DType cache) {
  Problem problem = problem_of(DType::f16);
  problem.seqlen_q = 1;
  problem.k = problem.v = cache;
  problem.paged = true;
  problem.page_size = 64;
  if (cache == DType::int4) problem.kv_group = 32;
  return problem;
}

Problem changed(const std::function<void(Problem&)>& change) {
  Problem problem = problem_of(DType::f16);
  change(problem);
  return problem;
}

Problem with_head_dim(std::int64_t head_dim) {
  return changed([=](Problem& p) { p.head_dim = p.head_dim_v = head_dim; });
}

Problem in_int8(Problem problem) {
  problem.options.precision = Precision::int8;
  return problem;
}

Status answer(const Problem& problem, const KnownGpu& gpu) {
  return is_cpu(gpu) ? explain(problem).status() : explain_on_known_gpu(problem, gpu.name).status();
}

using Served = std::function<bool(const KnownGpu&)>;
bool everywhere(const KnownGpu&) { return true; }

struct Claim {
  std::string what;
  Problem problem;
  Served served = everywhere;
};

// A row of the table, word for word, and the problems that hold it to its words.
struct Row {
  std::string name;
  std::array<std::string, 3> cells;
  std::vector<Claim> claims;
};

std::vector<Claim> forward_claims() {
  return {{"float16", problem_of(DType::f16)},
          {"bfloat16", problem_of(DType::bf16)},
          {"FP8 tensors", problem_of(DType::e4m3), has_fp8},
          {"FP8", changed([](Problem& p) { p.options.precision = Precision::fp8; }), has_fp8},
          {"INT8", changed([](Problem& p) { p.options.precision = Precision::int8; })},
          {"float32", problem_of(DType::f32), is_cpu}};
}

std::vector<Claim> paged_claims() {
  return {{"float16", paged(DType::f16)},
          {"bfloat16", changed([](Problem& p) {
             p = paged(DType::bf16);
             p.q = p.out = DType::bf16;
           })},
          {"FP8", paged(DType::e4m3), has_fp8},
          {"INT8", paged(DType::int8)},
          {"INT4", paged(DType::int4)}};
}

std::vector<Claim> mask_claims() {
  return {{"top_left", changed([](Problem& p) { p.options.causal = Causal::top_left; })},
          {"bottom_right", changed([](Problem& p) { p.options.causal = Causal::bottom_right; })},
          {"window", changed([](Problem& p) { p.options.window_left = 100; })},
          {"tensor", changed([](Problem& p) { p.mask = true; })},
          {"blocks of 64", changed([](Problem& p) { p.block_mask = 64; })},
          {"blocks of 128", changed([](Problem& p) { p.block_mask = 128; })}};
}

std::vector<Claim> score_claims() {
  return {{"bias", changed([](Problem& p) { p.bias = DType::f16; })},
          {"ALiBi", changed([](Problem& p) { p.alibi = true; })},
          {"softcap", changed([](Problem& p) { p.options.softcap = 30; })},
          {"sinks", changed([](Problem& p) { p.sinks = true; })}};
}

std::vector<Claim> batch_claims() {
  return {{"grouped-query heads", changed([](Problem& p) { p.heads_kv = 2; })},
          {"padded", changed([](Problem& p) { p.padded = true; })},
          {"sequences of different length", changed([](Problem& p) { p.varlen = true; })}};
}

std::vector<Row> table() {
  const std::string same = "the same";
  return {
      {"forward",
       {"float16, bfloat16, FP8, INT8", "float16, bfloat16, INT8; FP8 from Ada (L4, RTX 40) on",
        "these and float32"},
       forward_claims()},
      {"backward",
       {"float16, bfloat16", "float16, bfloat16", "float32, float16, bfloat16"},
       {}},  // SupportTable.BackwardServesTheNamedTypes
      {"decoding over paged KV caches",
       {"float16, bfloat16, FP8, INT8, INT4", "the same; FP8 from Ada on", same},
       paged_claims()},
      {"masks", {"causal, window, tensor, block mask", same, same}, mask_claims()},
      {"changes of the scores",
       {"bias, ALiBi, softcap, attention sinks", same, same},
       score_claims()},
      {"batches",
       {"grouped-query heads, padded, sequences of different length", same, same},
       batch_claims()},
      {"head dimension",
       {"up to 256; forward in 16 bits up to 512", same, "any"},
       {{"256 in INT8", in_int8(with_head_dim(256))},
        {"264 in INT8", in_int8(with_head_dim(264)), is_cpu},
        {"512", with_head_dim(512)},
        {"520", with_head_dim(520), is_cpu}}},
  };
}

std::string line_of(const Row& row) {
  std::string line = "| " + row.name + " |";
  for (const std::string& cell : row.cells) line += " " + cell + " |";
  return line;
}

TEST(SupportTable, ReadmeHasTheRowsThatAreCheckedHere) {
  std::ifstream readme(OCTAVO_README);
  ASSERT_TRUE(readme) << OCTAVO_README;
  std::vector<std::string> found;
  bool inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (line == "| | H100, H200 | A100, L4, RTX 30 to 50, B200 | CPU |") inside = true;
    if (inside && line.empty()) break;
    if (inside) found.push_back(line);
  }
  std::vector<std::string> wanted{"| | H100, H200 | A100, L4, RTX 30 to 50, B200 | CPU |",
                                  "|---|---|---|---|"};
  for (const Row& row : table()) wanted.push_back(line_of(row));
  ASSERT_GE(found.size(), wanted.size());
  found.resize(wanted.size());  // the row after these says what was measured
  EXPECT_EQ(found, wanted);
}

TEST(SupportTable, EveryGpuAndTheCpuServeWhatTheTableSays) {
  for (const auto& column : columns()) {
    ASSERT_FALSE(column.empty());
    for (const KnownGpu& gpu : column)
      for (const Row& row : table())
        for (const Claim& claim : row.claims) {
          const Status status = answer(claim.problem, gpu);
          EXPECT_EQ(status.ok(), claim.served(gpu))
              << gpu.product << ", " << row.name << ", " << claim.what << ": " << status.message();
        }
  }
}

TEST(SupportTable, BackwardServesTheNamedTypes) {
  std::vector<Device> devices{{}};
  if (has_emulator())
    devices.insert(devices.end(), {{Device::Kind::emulator, 0}, {Device::Kind::emulator, 90}});
  for (const Device device : devices)
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      const bool served = dtype != DType::f32 || device.kind == Device::Kind::cpu;
      Problem problem = problem_of(dtype);
      problem.lse = true;
      const Status status = explain_backward(problem, device).status();
      EXPECT_EQ(status.ok(), served)
          << name(device) << ", " << name(dtype) << ": " << status.message();
      problem.block_mask = dtype == DType::f16 ? 64 : 128;  // the emulator has these
      EXPECT_EQ(explain_backward(problem, device).ok(), served)
          << name(device) << ", " << name(dtype);
    }
}

}  // namespace
}  // namespace octavo
