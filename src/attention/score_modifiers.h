// SPDX-License-Identifier: Apache-2.0
// Applies the modifiers to the score of a query row and a key, for code on the host: softcap, bias,
// ALiBi, the mask tensor, the block mask and the draft tree, in this order. The intervals of keys
// that causal masks and windows allow are in mask.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>

#include "attention/block_mask.h"
#include "attention/mask.h"
#include "attention/sequence.h"
#include "numeric/formats.h"
#include "octavo/octavo.hpp"

namespace octavo {

// One row of a tensor that broadcasts to (B, Hq, Sq, Skv), beginning with the first key of a
// sequence.
class ScoreRow {
 public:
  ScoreRow() = default;  // absent
  ScoreRow(const ConstTensor& t, std::int64_t batch, std::int64_t head, std::int64_t row,
           std::int64_t first_key)
      : data_(t.data), dtype_(t.dtype) {
    const auto step = [&t](std::size_t i) { return t.shape[i] == 1 ? 0 : t.stride[i]; };
    stride_ = step(3);
    first_ = batch * step(0) + head * step(1) + row * step(2) + first_key * stride_;
  }
  bool present() const { return data_ != nullptr; }
  double number(std::int64_t key) const {
    return load_element(dtype_, data_, first_ + key * stride_);
  }
  bool is_set(std::int64_t key) const {
    return static_cast<const std::uint8_t*>(data_)[first_ + key * stride_] != 0;
  }

 private:
  const void* data_ = nullptr;
  DType dtype_ = DType::f32;
  std::int64_t first_ = 0, stride_ = 0;
};

// The keys that a draft tree hides from a query: the keys of queries whose bits are not set in its
// word.
class DraftRow {
 public:
  DraftRow() = default;  // absent
  // `row` counts from the first query of the sequence.
  DraftRow(const Arguments& a, const Sequence& at, std::int64_t row)
      : bits_(static_cast<std::uint32_t>(a.draft_tree[at.batch * a.q.shape[2] + at.q_begin + row])),
        first_key_(at.seqlen_kv - at.seqlen_q) {}
  bool sees(std::int64_t key) const {
    return key < first_key_ || (bits_ >> (key - first_key_) & 1) != 0;
  }

 private:
  std::uint32_t bits_ = 0;
  std::int64_t first_key_ = INT64_MAX;  // of the queries
};

// The modifiers of one query row of one head. Rows and keys count from the first of the sequence.
class RowModifiers {
 public:
  RowModifiers(const Arguments& a, const Options& options, const Sequence& at, std::int64_t b,
               std::int64_t head, std::int64_t row)
      : softcap_(options.softcap),
        diagonal_(row + diagonal_offset(options.causal, at.seqlen_q, at.seqlen_kv)) {
    if (a.bias.data != nullptr) bias_ = {a.bias, at.batch, head, at.q_begin + row, at.kv_begin};
    if (a.mask.data != nullptr) mask_ = {a.mask, at.batch, head, at.q_begin + row, at.kv_begin};
    if (a.alibi_slopes != nullptr) slope_ = a.alibi_slopes[b * a.alibi_batch_stride + head];
    if (a.draft_tree != nullptr) drafts_ = {a, at, row};
    block_mask_ = &a.block_mask;
    if (const std::int64_t size = a.block_mask.block_size; size != 0) {
      blocks_.emplace(a.block_mask, at.batch, head, row / size);
      query_in_block_ = row % size;
    }
  }

  double apply(double score, std::int64_t key) const {
    constexpr double kHidden = -std::numeric_limits<double>::infinity();
    if (mask_.present() && !mask_.is_set(key)) return kHidden;
    if (blocks_ && !sees(*block_mask_, blocks_->block(key / block_mask_->block_size),
                         query_in_block_, key % block_mask_->block_size))
      return kHidden;
    if (!drafts_.sees(key)) return kHidden;
    const double bias = bias_.present() ? bias_.number(key) : 0;
    if (bias == kHidden) return kHidden;  // even if the score is NaN
    if (softcap_ != 0) score = softcap_ * std::tanh(score / softcap_);
    score += bias;
    return score - slope_ * static_cast<double>(std::llabs(diagonal_ - key));
  }
  // The derivative of apply() with respect to the score. The key must not be hidden.
  double derivative(double score) const {
    if (softcap_ == 0) return 1;
    const double t = std::tanh(score / softcap_);
    return 1 - t * t;
  }

 private:
  double softcap_;
  std::int64_t diagonal_;
  double slope_ = 0;
  ScoreRow bias_, mask_;
  DraftRow drafts_;
  const BlockMask* block_mask_ = nullptr;
  std::optional<BlockMaskRow> blocks_;
  std::int64_t query_in_block_ = 0;
};

}  // namespace octavo
