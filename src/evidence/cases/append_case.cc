// SPDX-License-Identifier: Apache-2.0
#include "evidence/cases/append_case.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gpu/cache/append.h"
#include "octavo/evidence.hpp"
#include "runtime/emulated/emulated_launch.h"

namespace octavo::evidence {
namespace {

constexpr std::int64_t kPageSize = 16;
constexpr std::byte kUnwritten{0x7f};

// A cache with its batch, and new rows.
struct AppendProblem {
  AppendCall call;
  std::vector<std::byte> k_rows, v_rows, k, v;
  std::vector<float> k_scales, v_scales, cos, sin;
  std::vector<std::uint16_t> k_groups, v_groups;
  std::vector<std::int32_t> table, lengths, first_lengths, capacities;
  std::uint32_t arrivals = 0;
};

std::vector<std::byte> bytes_of(DType dtype, std::int64_t elements) {
  return std::vector<std::byte>(static_cast<std::size_t>(elements) * size_bytes(dtype), kUnwritten);
}

Status fill(AppendProblem& x, const Case& c) {
  const std::int64_t rows = c.batch * c.heads_kv * c.seqlen_q;
  x.k_rows = bytes_of(c.input, rows * c.head_dim);
  x.v_rows = x.k_rows;
  const auto new_rows = [&c](std::vector<std::byte>& bytes) {
    return Tensor::bhsd(bytes.data(), c.input, c.batch, c.heads_kv, c.seqlen_q, c.head_dim);
  };
  OCTAVO_RETURN_IF_ERROR(random_normal(new_rows(x.k_rows), c.seed, 0));
  OCTAVO_RETURN_IF_ERROR(random_normal(new_rows(x.v_rows), c.seed, 1));
  x.call.k = new_rows(x.k_rows);
  x.call.v = new_rows(x.v_rows);
  // Sequence b has seqlen_kv + 5 b rows, and pages in descending order.
  const std::int64_t per_sequence = (c.seqlen_kv + 5 * c.batch + c.seqlen_q) / kPageSize + 1;
  const std::int64_t pages = c.batch * per_sequence;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    x.first_lengths.push_back(static_cast<std::int32_t>(c.seqlen_kv + 5 * b));
    const bool has_room = b == 0 || b + 1 < c.batch;
    x.capacities.push_back(has_room ? static_cast<std::int32_t>(per_sequence * kPageSize)
                                    : x.first_lengths.back());
    for (std::int64_t i = 0; i < per_sequence; ++i)
      x.table.push_back(static_cast<std::int32_t>(pages - 1 - b * per_sequence - i));
  }
  if (c.options.causal != Causal::none) {
    const std::int64_t positions = per_sequence * kPageSize, pairs = c.head_dim / 2 - 3;
    for (std::int64_t i = 0; i < positions * pairs; ++i) {
      x.cos.push_back(std::cos(static_cast<float>(i)));
      x.sin.push_back(std::sin(static_cast<float>(i)));
    }
    x.call.rotary = {x.cos.data(), x.sin.data(), positions, pairs,
                     c.options.causal == Causal::top_left};
  }
  const std::int64_t cached = pages * c.heads_kv * kPageSize;
  for (auto [bytes, scales] : {std::pair{&x.k, &x.k_scales}, {&x.v, &x.v_scales}}) {
    *bytes = bytes_of(c.k_type(), cached * (c.has_int4_cache() ? c.head_dim / 2 : c.head_dim));
    scales->resize(is_8bit(c.k_type()) ? static_cast<std::size_t>(cached) : 0);
  }
  const auto cache = [&](std::vector<std::byte>& bytes) {
    return Tensor::bhsd(bytes.data(), c.k_type(), pages, c.heads_kv, kPageSize,
                        c.has_int4_cache() ? c.head_dim / 2 : c.head_dim);
  };
  x.call.cache = {cache(x.k), cache(x.v), x.k_scales.empty() ? nullptr : x.k_scales.data(),
                  x.v_scales.empty() ? nullptr : x.v_scales.data()};
  if (c.has_int4_cache())
    for (auto [data, groups] :
         {std::pair{&x.k_groups, &x.call.cache.k_groups}, {&x.v_groups, &x.call.cache.v_groups}}) {
      *groups = {nullptr, c.heads_kv, kPageSize, c.head_dim, c.kv_group};
      data->resize(static_cast<std::size_t>(pages * groups->of_page()));
      groups->data = data->data();
    }
  x.lengths = x.first_lengths;
  x.call.batch = {x.table.data(), per_sequence, x.lengths.data(), x.capacities.data(), &x.arrivals};
  return {};
}

}  // namespace

std::vector<Case> cases_for(const AppendConfig& config) {
  Case c;
  c.input = static_cast<DType>(config.from);
  c.kv = static_cast<DType>(config.to);
  c.kv_group = config.group;
  c.head_dim = config.columns - (config.group > 0 ? config.group : 16);
  c.heads_q = c.heads_kv = 2;
  c.batch = 3;
  std::vector<Case> cases;
  // Several CTAs, the last of which has rows that do not exist, and a page boundary inside a
  // sequence.
  c.seqlen_q = append::rows_of_cta(config) + 3;
  c.seqlen_kv = 9;
  cases.push_back(c);
  c.seqlen_q = 1;
  c.seqlen_kv = 0;
  for (const Causal pairing : {Causal::bottom_right, Causal::top_left}) {
    c.options.causal = pairing;
    cases.push_back(c);
  }
  return cases;
}

Result<EmulatedCase> append_case(const emulator::EmulatedAppend& kernel, const GpuInfo& chip,
                                 const Case& c) {
  const auto problem = std::make_shared<AppendProblem>();
  OCTAVO_RETURN_IF_ERROR(fill(*problem, c));
  EmulatedCase made;
  made.name = c.name();
  made.run = [&kernel, chip, problem](const emulator::Settings& settings,
                                      const EmulatorThen& then) {
    problem->lengths = problem->first_lengths;
    problem->arrivals = 0;
    for (auto* bytes : {&problem->k, &problem->v})
      std::fill(bytes->begin(), bytes->end(), kUnwritten);
    for (auto* scales : {&problem->k_scales, &problem->v_scales})
      std::fill(scales->begin(), scales->end(), -1.0f);
    for (auto* groups : {&problem->k_groups, &problem->v_groups})
      std::fill(groups->begin(), groups->end(), std::uint16_t{1});
    return run_emulated(kernel, chip, problem->call, settings, then);
  };
  made.outputs = [problem] {
    std::vector<std::byte> all = problem->k;
    const auto add = [&all](const void* data, std::size_t bytes) {
      const auto* const from = static_cast<const std::byte*>(data);
      all.insert(all.end(), from, from + bytes);
    };
    add(problem->v.data(), problem->v.size());
    add(problem->k_scales.data(), problem->k_scales.size() * sizeof(float));
    add(problem->v_scales.data(), problem->v_scales.size() * sizeof(float));
    for (const auto* groups : {&problem->k_groups, &problem->v_groups})
      add(groups->data(), groups->size() * sizeof(std::uint16_t));
    add(problem->lengths.data(), problem->lengths.size() * sizeof(std::int32_t));
    add(&problem->arrivals, sizeof(problem->arrivals));
    return all;
  };
  return made;
}

}  // namespace octavo::evidence
