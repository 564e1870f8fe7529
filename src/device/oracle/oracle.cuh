// SPDX-License-Identifier: Apache-2.0
// Attention in FP64 and plain loops: the reference that the other kernels are compared with.
//
//   s_j = scale * q . k_j          for the keys j the row may see, with the modifiers
//   p_j = exp(s_j - max s) / sum   o = sum_j p_j v_j      lse = max s + log(sum exp(s_j - max s))
//
// The modifiers: s = softcap tanh(s / softcap), then s += bias, then s -= slope |diagonal - j|; a
// mask tensor hides keys, and so does a block mask. A sink is one more term of the sum, and of max
// s.
//
// No tiles, no tensor cores, no shared memory. A warp owns a row: its lanes divide the keys while
// scores are computed, and the columns while the output is. The oracle shares no code with the
// kernels it checks: masks are implemented again, and 16-bit and 8-bit formats are decoded bit by
// bit. attention/reference.cc has the same formula on the CPU, and `octavo check` compares the two.
#pragma once

#include "device/oracle/params.cuh"
#include "device/ptx/f64.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/ptx/warpgroup.cuh"

namespace octavo::oracle {

inline constexpr u32 kLanes = 32;
inline constexpr u64 kInfinityBits = 0x7ff0000000000000;

// ---------------------------------------------------------------------------------------------
// Numbers

OCTAVO_DEVICE double power_of_two(int exponent) {
  return __builtin_bit_cast(double, static_cast<u64>(exponent + 1023) << 52);
}

// Decodes an IEEE-like format. `has_infinity`: the largest exponent is reserved for infinity and
// NaN; E4M3 reserves only the all-ones bit pattern, for NaN.
OCTAVO_DEVICE double decode_float(u32 bits, int exponent_bits, int mantissa_bits,
                                  bool has_infinity) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const u32 largest = (1u << exponent_bits) - 1;
  const u32 exponent = (bits >> mantissa_bits) & largest;
  const u32 mantissa = bits & ((1u << mantissa_bits) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits)) & 1 ? -1.0 : 1.0;
  if (exponent == largest && (has_infinity || mantissa + 1 == 1u << mantissa_bits))
    return __builtin_bit_cast(double, kInfinityBits | (mantissa != 0 ? 1 : 0)) * sign;
  if (exponent == 0) return sign * mantissa * power_of_two(1 - bias - mantissa_bits);
  return sign * ((1u << mantissa_bits) + mantissa) *
         power_of_two(static_cast<int>(exponent) - bias - mantissa_bits);
}

OCTAVO_DEVICE double load_element(const Operand& x, i64 index) {
  const u8* at = static_cast<const u8*>(x.data) + index * element_bytes(x.element);
  switch (x.element) {
    case Element::f32:
      return ptx::load_global_f32(static_cast<const float*>(static_cast<const void*>(at)));
    case Element::f16:
      return decode_float(ptx::load_global_b16(at), 5, 10, true);
    case Element::bf16:
      return decode_float(ptx::load_global_b16(at), 8, 7, true);
    case Element::e4m3:
      return decode_float(ptx::load_global_b8(at), 4, 3, false);
    case Element::e5m2:
      return decode_float(ptx::load_global_b8(at), 5, 2, true);
    case Element::int8:
      return static_cast<i8>(ptx::load_global_b8(at));
    case Element::sim8:
      return ptx::load_global_b8(at) - 128;
    case Element::int4:  // the oracle gets what an int4 cache holds
      break;
  }
  return 0;
}

// Rounds as a 16-bit library stores: through FP32, to nearest even.
OCTAVO_DEVICE double rounded(Element format, double x) {
  const float single = static_cast<float>(x);
  if (format == Element::f16)
    return decode_float(ptx::f16x2_from_f32(single, 0) & 0xffff, 5, 10, true);
  if (format == Element::bf16)
    return decode_float(ptx::bf16x2_from_f32(single, 0) & 0xffff, 8, 7, true);
  return x;
}

// ---------------------------------------------------------------------------------------------
// Rows

struct Span {
  i64 begin = 0, length = 0;
};

// The rows of a batch entry that are no padding.
OCTAVO_DEVICE Span used_rows(const Padding& padding, i64 sequence, i64 rows) {
  const auto clamped = [&](const i32* values, i64 most) {
    return max_of<i64>(min_of<i64>(ptx::load_global_i32(values + sequence), most), 0);
  };
  const i64 begin = padding.leftpad == nullptr ? 0 : clamped(padding.leftpad, rows);
  if (padding.seqlens == nullptr) return {begin, rows - begin};
  return {begin, clamped(padding.seqlens, rows - begin)};
}

// A sequence that begins before an earlier entry of cu_seqlens is empty.
OCTAVO_DEVICE Span span_of(const i32* cu, const Padding& padding, i64 sequence, i64 tokens,
                           i64 longest) {
  if (cu == nullptr) return used_rows(padding, sequence, longest);
  const auto token = [&](i64 i) {
    return max_of<i64>(min_of<i64>(ptx::load_global_i32(cu + i), tokens), 0);
  };
  const i64 begin = token(sequence);
  i64 end = max_of(token(sequence + 1), begin);
  OCTAVO_UNROLL_BY(1)
  for (i64 i = 0; i < sequence; ++i)
    if (token(i) > begin) end = begin;
  return {begin, min_of(end - begin, longest)};
}

// One head of one operand of one sequence.
struct Head {
  const Operand* x = nullptr;
  i64 first = 0;  // index of the element at the sequence's row 0
  i64 first_scale = 0;

  OCTAVO_DEVICE Head(const Operand& operand, i64 batch, i64 sequence, i64 head, i64 begin)
      : x(&operand),
        first(batch * operand.batch + head * operand.head + begin * operand.row),
        first_scale(sequence * operand.scale_batch + head * operand.scale_head +
                    (operand.scale_by_token ? begin * operand.scale_row : 0)) {}

  OCTAVO_DEVICE double at(i64 row, i64 column) const {
    const double value = load_element(*x, first + row * x->row + column);
    if (x->scales == nullptr) return value;
    const float scale = ptx::load_global_f32(
        x->scales + first_scale + row / x->block_rows * x->scale_row + column * x->scale_column);
    return value * (x->element == Element::sim8 ? scale / 127.0f : scale);
  }
};

OCTAVO_DEVICE Span visible_keys(const Params& p, i64 row, i64 seqlen_q, i64 seqlen_kv) {
  const i64 diagonal = row + (p.bottom_right ? seqlen_kv - seqlen_q : 0);
  i64 begin = 0, end = seqlen_kv;
  if (p.causal) end = min_of(end, diagonal + 1);
  if (p.window_left >= 0 && p.window_left < diagonal) begin = diagonal - p.window_left;
  if (p.window_right >= 0 && p.window_right < seqlen_kv - diagonal)
    end = min_of(end, diagonal + p.window_right + 1);
  return {begin, max_of<i64>(end - begin, 0)};
}

// The modifiers of one query row of one head. Rows and keys count from the first of the sequence.
struct RowModifiers {
  const Params* p = nullptr;
  i64 diagonal = 0;  // the key at the row's diagonal
  i64 bias = 0;      // indices of key 0
  i64 mask = 0;
  i64 query = 0;
  i64 q_row = 0;  // of a block mask's lists
  double slope = 0;
  double sink = -__builtin_bit_cast(double, kInfinityBits);

  OCTAVO_DEVICE RowModifiers(const Params& params, i64 batch, i64 sequence, i64 head, i64 row,
                             const Span& queries, const Span& keys)
      : p(&params),
        diagonal(row + (params.bottom_right ? keys.length - queries.length : 0)),
        bias(first_of(params.bias, batch, head, queries.begin + row, keys.begin)),
        mask(first_of(params.mask, batch, head, queries.begin + row, keys.begin)),
        query(row) {
    if (p->alibi_slopes != nullptr)
      slope = ptx::load_global_f32(p->alibi_slopes + sequence * p->alibi_batch_stride + head);
    if (p->sinks != nullptr) sink = ptx::load_global_f32(p->sinks + head);
    const BlockMask& m = p->block_mask;
    if (m.size != 0) q_row = batch * m.batch + head * m.head + row / m.size;
  }

  // Where a list has a block of keys; -1: nowhere.
  OCTAVO_DEVICE i64 find_block(const BlockList& list, i64 block) const {
    const i64 count =
        list.num_blocks == nullptr ? 0 : ptx::load_global_i32(list.num_blocks + q_row);
    OCTAVO_UNROLL_BY(1)
    for (i64 i = q_row * list.capacity; i < q_row * list.capacity + count; ++i)
      if (ptx::load_global_i32(list.indices + i) == block) return i;
    return -1;
  }
  // Whether a list has the key's block, and its bits, if there are any, the key.
  OCTAVO_DEVICE bool is_in_block_mask(i64 key) const {
    const BlockMask& m = p->block_mask;
    if (find_block(m.full, key / m.size) >= 0) return true;
    const i64 place = find_block(m.partial, key / m.size);
    if (place < 0 || m.bits == nullptr) return place >= 0;
    const i64 row = ptx::load_global_i32(m.bit_indices + place) * m.size + query % m.size;
    const i64 word = (row * m.size + key % m.size) / 32;
    return (ptx::load_global_b32(m.bits + word) >> (key % 32) & 1) != 0;
  }

  static OCTAVO_DEVICE i64 first_of(const ScoreTensor& t, i64 batch, i64 head, i64 row, i64 key) {
    return batch * t.batch + head * t.head + row * t.row + key * t.column;
  }

  OCTAVO_DEVICE double apply(double score, i64 key) const {
    if (p->mask.data != nullptr && ptx::load_global_b8(static_cast<const u8*>(p->mask.data) + mask +
                                                       key * p->mask.column) == 0)
      return -__builtin_bit_cast(double, kInfinityBits);
    if (p->block_mask.size != 0 && !is_in_block_mask(key))
      return -__builtin_bit_cast(double, kInfinityBits);
    if (p->softcap != 0) score = p->softcap * (1 - 2 / (1 + ptx::exp_f64(2 * score / p->softcap)));
    if (p->bias.data != nullptr)
      score += load_element({.data = p->bias.data, .element = p->bias.element},
                            bias + key * p->bias.column);
    if (p->alibi_slopes == nullptr) return score;
    const double distance = static_cast<double>(diagonal - key);
    return score - slope * (distance < 0 ? -distance : distance);
  }
};

OCTAVO_DEVICE double warp_max(double x) {
  for (int mask = 16; mask > 0; mask /= 2) x = max_of(x, ptx::shuffle_xor_f64(x, mask));
  return x;
}
OCTAVO_DEVICE double warp_sum(double x) {
  for (int mask = 16; mask > 0; mask /= 2) x += ptx::shuffle_xor_f64(x, mask);
  return x;
}

// Writes the scores of the keys to scores[0..keys.length) and returns their maximum.
OCTAVO_DEVICE double score_row(const Params& p, const Head& q, const Head& k,
                               const RowModifiers& modifiers, i64 row, Span keys, double* scores) {
  double largest = modifiers.sink;
  for (i64 j = ptx::lane_index(); j < keys.length; j += kLanes) {
    double dot = 0;
    for (i64 c = 0; c < p.head_dim; ++c) dot += q.at(row, c) * k.at(keys.begin + j, c);
    const double score = modifiers.apply(p.scale * dot, keys.begin + j);
    ptx::store_global_f64(scores + j, score);
    largest = max_of(largest, score);
  }
  return warp_max(largest);
}

// Replaces the scores by exp(s - largest) and returns their sum. A key whose score is -infinity is
// hidden, and -1 says so: it must not count even if V is not finite there.
OCTAVO_DEVICE double exponentiate(Span keys, double largest, double* scores) {
  double part = 0;
  for (i64 j = ptx::lane_index(); j < keys.length; j += kLanes) {
    const double score = ptx::load_global_f64(scores + j);
    const bool hidden = score == -__builtin_bit_cast(double, kInfinityBits);
    const double e = hidden ? -1 : ptx::exp_f64(score - largest);
    ptx::store_global_f64(scores + j, e);
    if (!hidden) part += e;
  }
  return warp_sum(part);
}

// Computes one row: `out`, of head_dim_v values, and its log-sum-exp. A row without a visible key
// and without a sink is not written.
OCTAVO_DEVICE void compute_row(const Params& p, const Head& q, const Head& k, const Head& v,
                               const RowModifiers& modifiers, i64 row, Span keys, double* scores,
                               double* out, double* lse) {
  const double largest = score_row(p, q, k, modifiers, row, keys, scores);
  double sum = exponentiate(keys, largest, scores);
  if (p.sinks != nullptr && !(modifiers.sink == -__builtin_bit_cast(double, kInfinityBits)))
    sum += ptx::exp_f64(modifiers.sink - largest);
  if (sum == 0) return;
  for (i64 j = ptx::lane_index(); j < keys.length; j += kLanes) {
    const double e = ptx::load_global_f64(scores + j);
    if (!(e < 0)) ptx::store_global_f64(scores + j, rounded(p.rounding, e / sum));
  }
  ptx::warp_sync();  // every lane reads the weights of all lanes
  for (i64 c = ptx::lane_index(); c < p.head_dim_v; c += kLanes) {
    double o = 0;
    for (i64 j = 0; j < keys.length; ++j) {
      const double weight = ptx::load_global_f64(scores + j);
      if (!(weight < 0)) o += weight * v.at(keys.begin + j, c);
    }
    ptx::store_global_f64(out + c, rounded(p.rounding, o));
  }
  if (ptx::lane_index() == 0) ptx::store_global_f64(lse, largest + ptx::log_f64(sum));
  ptx::warp_sync();  // the next row overwrites the scores
}

// `index` counts the rows to compute over all heads of all sequences.
OCTAVO_DEVICE void find_and_compute_row(const Params& p, i64 index, double* scores) {
  const i64 per_head = p.rows == nullptr ? p.seqlen_q : p.row_count;
  const i64 n = index % per_head;
  const i64 head = index / per_head % p.heads_q;
  const i64 sequence = index / per_head / p.heads_q;
  const i64 batch = p.cu_seqlens_q == nullptr ? sequence : 0;
  const Span queries = span_of(p.cu_seqlens_q, p.padding_q, sequence, p.tokens_q, p.seqlen_q);
  const Span all_keys = span_of(p.cu_seqlens_kv, p.padding_kv, sequence, p.tokens_kv, p.seqlen_kv);
  const i64 row = p.rows == nullptr ? n : ptx::load_global_i32(p.rows + n);
  if (row >= queries.length) return;
  const Span keys = visible_keys(p, row, queries.length, all_keys.length);
  if (keys.length == 0 && p.sinks == nullptr) return;
  const i64 head_kv = head / p.heads_per_kv;
  const Head q(p.q, batch, sequence, head, queries.begin);
  const Head k(p.k, batch, sequence, head_kv, all_keys.begin);
  const Head v(p.v, batch, sequence, head_kv, all_keys.begin);
  const i64 rows_of_head = p.rows == nullptr ? p.tokens_q : p.row_count;
  const i64 place = (batch * p.heads_q + head) * rows_of_head + queries.begin + n;
  const RowModifiers modifiers(p, batch, sequence, head, row, queries, all_keys);
  compute_row(p, q, k, v, modifiers, row, keys, scores, p.out + place * p.head_dim_v,
              p.lse + place);
}

// Padding and rows without keys are not written: the host has initialised them to 0 and -infinity.
OCTAVO_KERNEL(kThreads, 1) oracle_forward(const OCTAVO_GRID_CONSTANT Params p) {
  const i64 warps_of_cta = kThreads / kLanes;
  const i64 warp = ptx::block_index_x() * warps_of_cta + ptx::warp_index();
  const i64 per_head = p.rows == nullptr ? p.seqlen_q : p.row_count;
  for (i64 row = warp; row < p.sequences * p.heads_q * per_head; row += p.warps)
    find_and_compute_row(p, row, p.scores + warp * p.seqlen_kv);
}

}  // namespace octavo::oracle
