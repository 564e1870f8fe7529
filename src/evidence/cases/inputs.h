// SPDX-License-Identifier: Apache-2.0
// The memory of a case: inputs, scales and outputs in its layout. Every unused element is NaN, and
// outputs have guards around them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "evidence/cases/cases.h"
#include "octavo/octavo.hpp"

namespace octavo::evidence {

inline constexpr std::size_t kGuardBytes = 64;
inline constexpr std::byte kPoison{0xFF};  // NaN in f32, f16, bf16, e4m3 and e5m2

// A tensor between two guards. Moving it moves no bytes, so views stay valid; a copy would
// invalidate them, so it is disabled.
struct TensorMemory {
  TensorMemory() = default;
  TensorMemory(TensorMemory&&) = default;
  TensorMemory& operator=(TensorMemory&&) = default;

  std::vector<std::byte> bytes;
  Tensor view;
};
TensorMemory make_memory(Layout layout, DType dtype, const std::array<std::int64_t, 4>& shape);

// Rows [begin, begin + length) of one batch entry of a tensor.
struct Span {
  std::int64_t batch = 0;
  std::int64_t begin = 0;
  std::int64_t length = 0;
};
template <class Void>
BasicTensor<Void> rows_of(const BasicTensor<Void>& tensor, std::int64_t begin, std::int64_t rows) {
  BasicTensor<Void> part = tensor;
  const std::int64_t offset = begin * tensor.stride[2] * static_cast<int>(size_bytes(tensor.dtype));
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  part.data = static_cast<Byte*>(tensor.data) + offset;
  part.shape[2] = rows;
  return part;
}

struct QuantizedOperand {
  TensorMemory values;
  std::vector<float> scales;
  Scales view;
  std::vector<float> mean;  // (sequences, heads, columns), if smoothed
};
// Uses the public quantize(), per sequence in a varlen batch.
Result<QuantizedOperand> quantize_operand(const ConstTensor& x, DType format, float max_quantized,
                                          const QuantizeOptions& options, Layout layout,
                                          const std::vector<Span>& sequences, std::int64_t max_len);

// A paged KV cache.
struct PagedCache {
  struct Operand {
    TensorMemory memory;        // (pages, heads, page_size, head_dim)
    std::vector<float> scales;  // of an 8-bit cache
    Scales scales_view;
    std::vector<std::uint16_t> groups;  // of an int4 cache
    // The values that an 8-bit or int4 cache holds, dense (batch, heads, keys, head_dim).
    TensorMemory values;
  };
  Operand k, v;
  std::vector<std::int32_t> table, lengths;  // hostile in hostile cases
  std::vector<std::int32_t> dense_lengths;   // of the dense values
};

// The arrays of a block mask.
struct BlockMaskArrays {
  std::vector<std::int32_t> num_blocks, indices, full_num_blocks, full_indices, bit_indices;
  std::vector<std::uint32_t> bits;
};

struct Inputs {
  struct Operand {
    TensorMemory wide;                          // f32, f16 or bf16
    std::optional<QuantizedOperand> quantized;  // of 8-bit inputs
    ConstTensor given() const { return quantized ? quantized->values.view : wide.view; }
  };
  Operand q, k, v;
  TensorMemory out, lse, amax;
  std::vector<float> out_scales;  // of 8-bit outputs: (sequences, heads)
  std::vector<std::int32_t> cu_q, cu_kv;
  std::vector<std::int32_t> hostile_cu_q, hostile_cu_kv;  // passed instead in hostile cases
  std::vector<Span> spans_q, spans_kv;                    // one per sequence
  std::vector<Span> written_q;                            // rows that are written: also padding
  std::vector<std::int32_t> seqlens_q, seqlens_kv, leftpad_q, leftpad_kv;  // of a padded batch
  PagedCache cache;
  TensorMemory bias, mask;
  std::vector<float> slopes, sinks;
  BlockMaskArrays block_mask;
  std::vector<std::int32_t> draft_tree;  // for the oracles `mask` says the same
  Arguments original;                    // before quantization, with dense K and V
  Arguments given;                       // passed to the library
  // The same values as `given`, for the oracle, with dense K and V, so that the oracle does not
  // need the page table.
  Arguments dense;
};
Result<Inputs> make_inputs(const Case& c);

// A case without its values: the problem, and the largest power of two, up to 16 bytes, that
// divides the address of every row.
struct CaseProblem {
  Problem problem;
  int row_alignment = 16;
};
CaseProblem problem_for(const Case& c);

// Fills out, lse and amax with the poison, including guards and gaps.
void poison_outputs(Inputs& inputs);
// The number of bytes outside the rows of the sequences that no longer hold the poison.
std::int64_t stray_bytes(const TensorMemory& memory, const std::vector<Span>& live);

}  // namespace octavo::evidence
