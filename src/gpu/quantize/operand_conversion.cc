// SPDX-License-Identifier: Apache-2.0
#include "gpu/quantize/operand_conversion.h"

#include <algorithm>

#include "attention/sequence.h"
#include "numeric/quantize.h"
#include "numeric/scale.h"

namespace octavo {

static_assert(quantizer::kMeanRows == kMeanRows, "means have the CPU's bits");

namespace {

constexpr std::int64_t kAlignment = 64;  // of each array in the workspace

}  // namespace

OperandFormats conversion_formats(const Problem& p) {
  OperandFormats formats = operand_formats(p);
  const DType q = formats.q.rounded.value_or(p.q);
  if (q != DType::f16 && q != DType::bf16) return formats;
  for (OperandFormat* const format : {&formats.k, &formats.v})
    if (is_8bit(format->stored)) format->rounded = q;
  return formats;
}

Conversions conversions_of(const Problem& p, const OperandFormats& formats, const Arguments* a,
                           VLayout layout, bool any_columns) {
  const auto operand = [&](const OperandFormat& format, std::int64_t heads, std::int64_t len,
                           std::int64_t tokens) -> Conversion {
    const std::int64_t block_rows = p.options.quantization.block_rows;
    if (p.varlen) return {format, p.batch, heads, len, 1, tokens, p.head_dim, block_rows, true};
    return {format, p.batch, heads, len, p.batch, len, p.head_dim, block_rows, false};
  };
  const std::int64_t tokens_q = a != nullptr ? a->q.shape[2] : p.batch * p.seqlen_q;
  const std::int64_t tokens_kv = a != nullptr ? a->k.shape[2] : p.batch * p.seqlen_kv;
  Conversions all{operand(formats.q, p.heads_q, p.seqlen_q, tokens_q),
                  operand(formats.k, p.heads_kv, p.seqlen_kv, tokens_kv),
                  operand(formats.v, p.heads_kv, p.seqlen_kv, tokens_kv)};
  for (Conversion* const x : {&all.q, &all.k, &all.v}) x->any_columns = any_columns;
  all.v.transposed = layout == VLayout::transposed && p.v_layout == VLayout::rows;
  return all;
}

ScaleGroup group_of(const OperandFormat& format) {
  if (!format.scales_of_ours()) return ScaleGroup::none;
  switch (format.granularity) {
    case Granularity::tensor:
      return ScaleGroup::tensor;
    case Granularity::head:
      return ScaleGroup::head;
    case Granularity::block:
      return ScaleGroup::block;
    case Granularity::row:
      return ScaleGroup::row;
    case Granularity::channel:
      return ScaleGroup::channel;
  }
  return ScaleGroup::none;
}

std::int64_t scale_floats(const Conversion& x, bool varlen) {
  if (!x.format.scales_of_ours()) return 0;
  const bool by_token = varlen && x.format.granularity == Granularity::row;
  return scale_count(
      {by_token ? x.batches : x.sequences, x.heads, by_token ? x.rows : x.longest, x.head_dim},
      x.format.granularity, x.block_rows);
}

std::int64_t columns_of(std::int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : kMostColumns;
}

std::int64_t partial_floats(const Conversion& x) {
  const ScaleGroup group = group_of(x.format);
  if (!quantizer::two_passes(group)) return 0;
  if (group == ScaleGroup::tensor) return kTensorBlocks;
  const std::int64_t sets = std::max(kChunks, x.sequences * x.heads);
  if (group != ScaleGroup::channel) return sets;
  return sets * (x.any_columns ? kMostColumns : columns_of(x.head_dim));
}

OperandOffsets operand_offsets(const Conversion& x, bool varlen, std::int64_t begin) {
  if (!x.needed()) return {begin, begin, begin, begin, begin, begin};
  OperandOffsets offsets{};
  offsets.result = begin;
  offsets.scales = offsets.result + round_up(x.bytes(), kAlignment);
  offsets.partials = offsets.scales + round_up(scale_floats(x, varlen) * 4, kAlignment);
  offsets.mean_sums = offsets.partials + round_up(partial_floats(x) * 4, kAlignment);
  offsets.means = offsets.mean_sums + round_up(x.mean_floats() * x.mean_groups() * 8, kAlignment);
  offsets.end = offsets.means + round_up(x.mean_floats() * 4, kAlignment);
  return offsets;
}

}  // namespace octavo
