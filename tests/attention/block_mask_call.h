// SPDX-License-Identifier: Apache-2.0
// A call with a block mask, and the same call with a mask tensor that hides the same keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "evidence/cases/block_mask_cases.h"
#include "evidence/cases/inputs.h"
#include "octavo/octavo.hpp"

namespace octavo::test {

// A call of 130 queries and 300 keys in blocks of 64: three blocks of queries, five of keys.
struct BlockMaskCall {
  evidence::Case c;
  evidence::Inputs inputs;
  Arguments arguments;

  explicit BlockMaskCall(std::uint64_t seed = 1, std::int64_t block_size = 64,
                         DType dtype = DType::f32) {
    c.batch = 2;
    c.heads_q = 4;
    c.heads_kv = 2;
    c.seqlen_q = 130;
    c.seqlen_kv = 300;
    c.head_dim = 24;
    c.input = c.out = dtype;
    c.block_mask = block_size;
    c.seed = seed;
    inputs = evidence::make_inputs(c).value();
    arguments = inputs.given;
  }
  Status status() {
    const Result<Problem> problem = problem_of(arguments, c.options);
    if (!problem.ok()) return problem.status();
    return validate_lengths(arguments);
  }
  std::string refusal() { return status().message(); }
  // The same visible keys as a mask tensor, from the lists themselves.
  std::vector<std::uint8_t> mask_bytes() const {
    const BlockMask& m = arguments.block_mask;
    std::vector<std::uint8_t> seen(
        static_cast<std::size_t>(c.batch * c.heads_q * c.seqlen_q * c.seqlen_kv));
    const auto show = [&](std::int64_t b, std::int64_t h, std::int64_t row,
                          const std::int32_t* counts, const std::int32_t* indices,
                          std::int64_t capacity, bool has_bits) {
      for (std::int64_t i = 0; i < counts[row]; ++i) {
        const std::int64_t place = row * capacity + i, q0 = row % m.q_blocks * m.block_size,
                           k0 = indices[place] * m.block_size;
        for (std::int64_t q = 0; q < m.block_size && q0 + q < c.seqlen_q; ++q)
          for (std::int64_t k = 0; k < m.block_size && k0 + k < c.seqlen_kv; ++k) {
            const std::int64_t bit =
                has_bits ? (m.bit_indices[place] * m.block_size + q) * m.block_size + k : 0;
            if (has_bits && (m.bits[bit / 32] >> (bit % 32) & 1) == 0) continue;
            seen[static_cast<std::size_t>(
                ((b * c.heads_q + h) * c.seqlen_q + q0 + q) * c.seqlen_kv + k0 + k)] = 1;
          }
      }
    };
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t h = 0; h < c.heads_q; ++h)
        for (std::int64_t block = 0; block < m.q_blocks; ++block) {
          const std::int64_t row =
              ((m.batch == 1 ? 0 : b) * m.heads + (m.heads == 1 ? 0 : h)) * m.q_blocks + block;
          show(b, h, row, m.kv_num_blocks, m.kv_indices, m.kv_capacity, m.bits != nullptr);
          show(b, h, row, m.full_kv_num_blocks, m.full_kv_indices, m.full_kv_capacity, false);
        }
    return seen;
  }
  Arguments with_mask_tensor(std::vector<std::uint8_t>& bytes) const {
    bytes = mask_bytes();
    Arguments a = arguments;
    a.block_mask = {};
    a.mask =
        Tensor::bhsd(bytes.data(), DType::boolean, c.batch, c.heads_q, c.seqlen_q, c.seqlen_kv);
    return a;
  }
};

}  // namespace octavo::test
