// Sizes, shared memory and register state of the Hopper forward kernel, derived from its
// configuration.
#pragma once

#include "config/sm90_forward.h"
#include "config/v_layout.h"
#include "device/core/block_range.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/params.cuh"
#include "device/tile/matrix_descriptor.cuh"

namespace octavo::sm90 {

// A configuration as a type: a class-type value as the argument of a kernel template would get a
// broken host stub from nvcc.
template <Sm90Forward kConfig>
struct ConfigOf {
  static constexpr Sm90Forward value = kConfig;
};

inline constexpr float kInfinity = __builtin_huge_valf();
inline constexpr float kLowest = -3.402823466e38f;
inline constexpr float kLn2 = 0.693147180559945f;

// The parameters of the kernel with a configuration.
template <bool kCodes, bool kOutput>
struct ParamsBySize {
  using Type = Sm90ForwardOutputParams;
};
template <>
struct ParamsBySize<false, false> {
  using Type = Sm90ForwardParams;
};
template <>
struct ParamsBySize<true, false> {
  using Type = Sm90Forward8BitParams;
};
template <class Config>
using ParamsOf =
    typename ParamsBySize<codes_qk(Config::value), has_output_params(Config::value)>::Type;

// Buffers from `first` on, used in turn: which one is next, and the parity of the phase that fills
// it. A count is one register where stage and phase are two.
template <int kStages>
struct Ring {
  u32 first = 0;
  u32 count = 0;
  OCTAVO_DEVICE u32 stage() const { return first + count % kStages; }
  OCTAVO_DEVICE u32 phase() const { return count / kStages & 1; }
  OCTAVO_DEVICE void advance() { ++count; }
  OCTAVO_DEVICE Ring next() const { return {first, count + 1}; }
};

// What products of codes are added up in.
template <bool kIntegers>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<true> {
  using Type = i32;
};

template <class Config>
struct Geometry {
  static constexpr Sm90Forward C = Config::value;
  static constexpr SmemPlan S = smem_plan(C);
  static_assert(C.element >= Element::f16 && C.element <= Element::int8,
                "elements are 16-bit, FP8 or INT8");
  static_assert(C.head_dim % qk_blocks(C).columns == 0 && C.head_dim <= 256,
                "rows are whole blocks of columns");
  // Q and K are codes, with scales.
  static constexpr bool kCodes = codes_qk(C);
  static_assert(kCodes || C.mixed_v == MixedV::none, "another V beside 8-bit Q and K");
  static constexpr int kStepKeys = codes_pv(C) ? 32 : 16;  // of a product P V
  static_assert(C.block_n % kStepKeys == 0 && C.block_n <= 256,
                "a block of keys is whole wgmma steps");
  static_assert(C.warpgroups >= 1 && C.warpgroups <= 4, "one to four warpgroups compute");
  static_assert((codes_pv(C) ? C.fold_columns : C.head_dim) + ones_columns(C) <= 256,
                "wgmma has at most 256 columns");

  // As codes a block's P V is a product of its own, that is folded into O in FP32: the tensor
  // cores keep some 14 bits of what they accumulate in FP8, and would lose mass from block to
  // block.
  static constexpr bool kFolds = codes_pv(C);
  // INT8 products add up exactly, in integers: scores, and P V where P is in bytes too.
  static constexpr bool kIntegerScores = C.element == Element::int8;
  static constexpr bool kIntegers = bytes_pv(C);
  static_assert(kFolds ? C.fold_columns > 0 && C.fold_columns % 16 == 0 &&
                             C.head_dim % C.fold_columns == 0
                       : C.fold_columns == 0,
                "8-bit P V folds whole parts of O, 16-bit nothing");
  // Parts of P V, each a product of its own: of O's columns, and of a large block's keys.
  static constexpr int kParts = kFolds ? C.head_dim / C.fold_columns : 1;
  static constexpr int kKeyParts = C.block_n / folded_keys(C);
  static constexpr int kProducts = kParts * kKeyParts;
  static_assert(
      kKeyParts == 1 ||
          (kKeyParts == 2 && folded_keys(C) % 64 == 0 && kParts == 1 && C.fold_buffers == 2),
      "keys are folded at once, or in two halves that have all columns and a buffer each");
  static_assert(C.fold_buffers == 1 || (C.fold_buffers == 2 && kFolds && kProducts % 2 == 0),
                "parts take turns in two buffers");
  static_assert(!C.scores_behind || !C.overlap, "scores come before P V, or right behind it");
  static_assert(!kCodes || !stages_o(C), "of 8-bit Q and K O is stored from registers");
  // Sums of P as it was rounded come by ones beside V; those of bytes are added up.
  static constexpr bool kOnes = ones_columns(C) > 0;
  // Products of bytes start from the bits of 1.5 * 2^23, and what they leave is the float that is
  // as much above it as the score is above 0: nothing is converted. Scores that are multiplied one
  // by one, or whose exact weights are summed, are converted.
  static constexpr bool kBiased = biased_scores(C);
  static constexpr float kBias = 12582912;
  static constexpr bool kMasksGroups = masks_groups(C);
  // Scores, and the softmax, in pairs of FP16.
  static constexpr bool kHalves = C.f16_scores;
  static constexpr bool kPolynomial = kHalves && sixteens_by_polynomial(C) > 0;
  static constexpr float kExponentUnit = C.code_exp ? 16 : 1;  // exponents are counted in
  static_assert(!kHalves || (kFolds && !kIntegers && scaled_rows(C) == 0),
                "scores are accumulated in FP16 from FP8, with one scale of K a head");
  static_assert(!C.code_exp || (kHalves && C.ones), "codes of P are summed by the tensor cores");
  // By how much, in powers of two, a score may pass a row's origin before the origin moves.
  static constexpr int kSlackLog2 = kFolds ? 2 : C.rescale_log2;
  // P is held times 2^this: e4m3 ends at 448, which leaves 2^0.8 above the slack for roundings, and
  // its smallest normal is then 2^-12. As an unsigned byte it has 255 steps, of its block's
  // largest: a row whose weight sits in another block still spends all of them on this one.
  static constexpr float kProbabilityLog2 = kIntegers ? 7.99435344f : kFolds ? 8 - kSlackLog2 : 0;
  // Steps are FP16's smallest: its subnormals are whole numbers of them, and a conversion to FP16
  // leaves a step's number in the low byte.
  static constexpr float kWeightLog2 = kProbabilityLog2 - (kIntegers ? 24 : 0);
  // What bytes add up to is never negative and below 2^24: as the bits of a float it is so many
  // times 2^-149, and nothing is converted. It enters O and the sums times 2^100, so that neither
  // is subnormal, and a step of P counts 2^-49 there. Exact weights are floats as they are.
  static_assert(!kIntegers || 255 * 255 * C.block_n < 1 << 24, "sums of bytes are floats' bits");
  static constexpr float kAdd = 0x1p100f, kWeight = 0x1p-125f;
  static constexpr float kSumLog2 = kIntegers ? -49 : 0;

  static constexpr RowBlocks kQkBlocks = qk_blocks(C), kVBlocks = v_blocks(C);
  static constexpr Swizzle kSwizzle = swizzle_of(kQkBlocks.row_bytes);
  static constexpr u32 kRowBytes = kQkBlocks.row_bytes;
  static constexpr u32 kVRowBytes = kVBlocks.row_bytes;
  static constexpr bool kOnesInside = kOnes && !kFolds && kVBlocks.count > 1;
  static constexpr int kScores = C.block_n / 2;          // registers of the scores,
  static constexpr int kColumns = C.head_dim / 2;        // of O,
  static constexpr int kO = kColumns + (kOnes ? 4 : 0);  // and with the sums by ones
  static constexpr int kPvSteps = C.block_n / kStepKeys;
  static constexpr int kFoldedSteps = folded_keys(C) / kStepKeys;
  static constexpr bool kOnesApart = ones_apart(C);
  // registers of a part of P V, of one in the other buffer, and of the sums apart
  static constexpr int kFolded = kFolds ? (C.fold_columns + (kOnes && !kOnesApart ? 8 : 0)) / 2 : 1;
  static constexpr int kFoldedFirst = kKeyParts == 2        ? kFolded
                                      : C.fold_buffers == 2 ? C.fold_columns / 2
                                                            : 1;
  static constexpr int kFoldedOnes = kOnesApart ? 4 : 1;
  static constexpr u32 kChunkKeys = chunk_keys(C);  // of V transposed,
  static constexpr u32 kChunkBytes = (C.head_dim + ones_columns(C)) * chunk_keys(C);  // with ones
  // Scales of keys in registers, where a block has several.
  static constexpr int kKeyScales = C.k_block_scales ? scaled_groups(C) : 1;
  static_assert(scaled_rows(C) == 0 || C.block_n % scaled_rows(C) == 0,
                "keys of a block have scales in whole groups");

  using KvRing = Ring<C.stages>;
  struct Scores {
    float s[kHalves ? 1 : kScores];
    i32 sums[kIntegerScores ? kScores : 1];  // as the products leave them
    // Columns 2i and 2i + 1, of one row and of the other: scores in pairs, or P on its way to
    // bytes.
    u32 pairs[kHalves || kIntegers ? kScores / 2 : 1];
    float key_scales[kKeyScales];
    // Of integers, before scales of keys: this thread's largest in each of its rows.
    float largest[kKeyScales][2];
    u32 hidden;    // where masks look at groups of keys: those that no row of the warp sees
    bool near[2];  // of biased scores: those of a row that are not, as its scale is too large
  };
  // P as the A operand of one step of keys each.
  struct Probabilities {
    u32 a[kPvSteps][4];
  };
  // Of a thread's two rows, g and g + 8: P is 2^(scale * s - origin) until a raw score reaches the
  // limit. The limit is -infinity, and the origin kLowest, until a row has seen a key. Of codes the
  // scale is the row's own.
  // P of integers counts from the block's own largest exponent, and enters O times `add`.
  struct Rows {
    float limit[2];
    float origin[2];
    float sum[2];    // this thread's part; not used where the sums come by ones
    float bytes[2];  // the same of P in bytes, where the sums are of exact weights
    float scale[2];
    // Of scores in pairs, of both rows in FP16: the limits, and what makes exponents of scores.
    u32 half_limits, half_scales, half_offsets;
    float block_origin[2], add[2];
  };
  struct State {
    float o[kO];
    // P V of the last block, some columns at a time: all of them in the second, or by turns; and
    // the sums by ones, where they are apart.
    typename SumOf<kIntegers>::Type t_first[kFoldedFirst], t[kFolded], t_ones[kFoldedOnes];
    Rows rows;
  };

  // Who a thread is, among those that compute.
  struct Lane {
    u32 group, warp, lane;
  };
  // Where warpgroups divide the keys: whose.
  static OCTAVO_DEVICE u32 key_group(const Lane& w) { return w.group / C.row_groups; }
  // And where it is, in a tile of work.
  struct Place : Lane {
    SequenceSpan at;
    i32 sequence, batch, head;
    i32 first_row;  // of the warpgroup, in the sequence
    OCTAVO_DEVICE i32 row(u32 half) const {
      return first_row + static_cast<i32>(this->warp * 16 + half * 8 + this->lane / 4);
    }
    // Where heads are packed, rows go on from one head's queries to the next one's.
    OCTAVO_DEVICE i32 query(const Sm90ForwardParams& p, u32 half) const {
      return query_of(p, row(half));
    }
  };
  static OCTAVO_DEVICE i32 query_of(const Sm90ForwardParams& p, i32 row) {
    return C.pack_heads ? row & ((1 << p.query_bits) - 1) : row;
  }
  // Heads from the first of those that are packed.
  static OCTAVO_DEVICE i32 head_of(const Sm90ForwardParams& p, i32 row) {
    return C.pack_heads ? row >> p.query_bits : 0;
  }

  static OCTAVO_DEVICE u32 q_tile(u32 group) { return ptx::shared_base() + S.q + group * S.q_tile; }
  static OCTAVO_DEVICE u32 o_tile(u32 group) { return ptx::shared_base() + S.o + group * S.q_tile; }
  static OCTAVO_DEVICE u32 k_tile(u32 stage) {
    return ptx::shared_base() + S.k + stage * S.k_stage;
  }
  static OCTAVO_DEVICE u32 v_tile(u32 stage) {
    return ptx::shared_base() + S.v + stage * S.v_stage;
  }
  static OCTAVO_DEVICE u32 key_scales(u32 stage) {
    return ptx::shared_base() + S.key_scales + stage * S.scales_stage;
  }
  static OCTAVO_DEVICE u32 v_scales(u32 group) {
    return ptx::shared_base() + S.v_scales + group * (C.head_dim * 4);
  }
  static OCTAVO_DEVICE u32 barrier(u32 index) {
    return ptx::shared_base() + S.barriers + index * ptx::kMbarrierBytes;
  }
  static OCTAVO_DEVICE u32 q_full(u32 group) { return barrier(group); }
  static OCTAVO_DEVICE u32 q_empty(u32 group) { return barrier(q_tiles(C) + group); }
  static OCTAVO_DEVICE u32 kv_barrier(u32 kind, u32 stage) {
    return barrier(2 * q_tiles(C) + kind * kv_buffers(C) + stage);
  }
  static OCTAVO_DEVICE u32 k_full(u32 stage) { return kv_barrier(0, stage); }
  static OCTAVO_DEVICE u32 v_full(u32 stage) { return kv_barrier(1, stage); }
  static OCTAVO_DEVICE u32 k_empty(u32 stage) { return kv_barrier(2, stage); }
  static OCTAVO_DEVICE u32 v_empty(u32 stage) { return kv_barrier(3, stage); }
  static OCTAVO_DEVICE u32 tail_full() { return kv_barrier(4, 0); }
  static OCTAVO_DEVICE u32 pieces_full(u32 group) { return kv_barrier(4, 0) + group * 8; }

  // The blocks of columns of `rows` rows, from row `token` of a head on: of Q, K, or V.
  static OCTAVO_DEVICE void load_rows(const ptx::TensorMap& map, u32 to, u32 bar, int rows,
                                      i32 token, i32 head, i32 batch,
                                      RowBlocks blocks = qk_blocks(C)) {
    OCTAVO_UNROLL
    for (int block = 0; block < blocks.count; ++block)
      ptx::tma_load(to + block * rows * blocks.row_bytes, &map, bar,
                    {block * blocks.columns, token, head, batch});
  }

  // What the kernels of codes are told beside the rest.
  static OCTAVO_DEVICE const Sm90Forward8BitParams& in_8_bits(const Sm90ForwardParams& p) {
    return static_cast<const Sm90Forward8BitParams&>(p);
  }

  // Where a sequence's keys begin in V transposed.
  static OCTAVO_DEVICE i32 v_begin(const Sm90ForwardParams& p, const SequenceSpan& at,
                                   i32 sequence) {
    return p.cu_seqlens_kv == nullptr ? 0 : packed_v_begin(at.kv_begin, sequence);
  }
  // The keys of a block of V, from `key` of its sequence on.
  static OCTAVO_DEVICE void load_v(const Sm90ForwardParams& p, u32 to, u32 bar,
                                   const SequenceSpan& at, i32 sequence, i32 key, i32 head,
                                   i32 batch) {
    if constexpr (!kFolds) {
      load_rows(p.v, to, bar, C.block_n, at.kv_begin + key, head, batch, v_blocks(C));
    } else {
      const i32 first = v_begin(p, at, sequence) + key;
      OCTAVO_UNROLL
      for (u32 chunk = 0; chunk < C.block_n / kChunkKeys; ++chunk)
        ptx::tma_load(to + chunk * kChunkBytes, &p.v, bar,
                      {first + static_cast<i32>(chunk * kChunkKeys), 0, head, batch});
    }
  }

  // By every thread that computes, where an earlier grid may still be writing them.
  static OCTAVO_DEVICE void wait_for_scales() {
    if constexpr (C.early_start && (kCodes || codes_out(C))) {
      if constexpr (!C.split_keys)
        ptx::spare("they are read behind a barrier at which who loads arrives, having waited");
      ptx::wait_for_earlier_grids();
    }
  }
  // The scales of a block's keys, or of groups of them, by kThreads threads, of which this is
  // `thread`. They come with K: read from global memory by those who compute, they took as long as
  // all the rest.
  template <int kThreads>
  static OCTAVO_DEVICE void load_key_scales(const Sm90ForwardParams& params, const SequenceSpan& at,
                                            i32 sequence, i32 key, i32 head, u32 stage,
                                            u32 thread) {
    const Sm90Forward8BitParams& p = in_8_bits(params);
    const ScaleParams& k = p.k_scales;
    const float* const scales = k.data + sequence * k.batch + head * k.head;
    const i32 token = k.by_token ? at.kv_begin : 0;
    OCTAVO_UNROLL
    for (u32 i = 0; i < scaled_groups(C); i += kThreads) {
      if (i + thread >= scaled_groups(C)) break;
      const i32 row =
          token + min_of(key + static_cast<i32>(i + thread) * scaled_rows(C), at.len_kv - 1);
      ptx::store_shared_f32(
          key_scales(stage) + (i + thread) * 4,
          ptx::load_written_f32(scales +
                                static_cast<i64>(p.by_k_block_rows.quotient(row)) * k.stride));
    }
  }

  // By kThreads threads, of which this is `thread`.
  template <int kThreads>
  static OCTAVO_DEVICE void fill(u32 to, u32 bytes, u32 thread, u32 word) {
    for (u32 at = thread * 4; at < bytes; at += kThreads * 4) ptx::store_shared_b32(to + at, word);
  }
  // What P is multiplied by to be summed, and what the bias of scores is the product of; by
  // kThreads threads, of which this is `thread`.
  template <int kThreads>
  static OCTAVO_DEVICE void fill_ones(u32 thread) {
    constexpr Element kOf = v_element(C);
    constexpr u32 kPair = kOf == Element::f16    ? 0x3c003c00u
                          : kOf == Element::bf16 ? 0x3f803f80u
                          : kOf == Element::e4m3 ? 0x38383838u
                                                 : 0x3c3c3c3cu;
    if constexpr (kBiased) {
      // 2^9 and 1.5 * 2^9 of E5M2, 32 products of which are the bias.
      fill<kThreads>(ptx::shared_base() + S.ones, kBiasBytes, thread, 0x60606060u);
      fill<kThreads>(ptx::shared_base() + S.ones + kBiasBytes, kBiasBytes, thread, 0x62626262u);
    }
    if constexpr (kOnes && kFolds) {
      OCTAVO_UNROLL
      for (u32 stage = 0; stage < kv_buffers(C); ++stage) {
        OCTAVO_UNROLL
        for (u32 chunk = 0; chunk < C.block_n / kChunkKeys; ++chunk)
          fill<kThreads>(v_tile(stage) + chunk * kChunkBytes + C.head_dim * kChunkKeys,
                         8 * kChunkKeys, thread, kPair);
      }
    } else if constexpr (kOnesInside) {
      OCTAVO_UNROLL
      for (u32 stage = 0; stage < kv_buffers(C); ++stage)
        fill<kThreads>(v_tile(stage) + S.v_bytes, C.block_n * kVRowBytes, thread, kPair);
    } else if constexpr (kOnes) {
      fill<kThreads>(ptx::shared_base() + S.ones, 16 * kVRowBytes, thread, kPair);
    }
  }
  // Keys of V from `first` on, by kThreads threads: they belong to the next sequence of a packed
  // batch. P is 0 there, and 0 times what they hold may be NaN.
  template <int kThreads>
  static OCTAVO_DEVICE void clear_keys(u32 tile, i32 first, u32 thread) {
    if constexpr (kFolds) {
      clear_sixteens<kThreads>(tile, static_cast<u32>(div_up(max_of(first, 0), 16)), thread);
      return;
    }
    const u32 from = static_cast<u32>(max_of(first, 0)) * kVRowBytes;
    constexpr u32 kBlockBytes = C.block_n * kVRowBytes;
    OCTAVO_UNROLL
    for (u32 block = 0; block < kVBlocks.count; ++block)
      fill<kThreads>(tile + block * kBlockBytes + from, kBlockBytes - from, thread, 0);
  }
  // The same of V transposed, where a sequence's last sixteen keys are filled up with zeros: a
  // column's sixteens from `first` on.
  template <int kThreads>
  static OCTAVO_DEVICE void clear_sixteens(u32 tile, u32 first, u32 thread) {
    constexpr u32 kWords = C.head_dim * 4;  // of sixteen keys
    for (u32 sixteen = first; sixteen < C.block_n / 16; ++sixteen) {
      const u32 chunk = tile + sixteen * 16 / kChunkKeys * kChunkBytes;
      for (u32 i = thread; i < kWords; i += kThreads) {
        const u32 offset = i / 4 * kChunkKeys + sixteen * 16 % kChunkKeys + i % 4 * 4;
        ptx::store_shared_b32(chunk + swizzled(swizzle_of(kChunkKeys), offset), 0);
      }
    }
  }
};

// 2^(scale * s - origin)
OCTAVO_DEVICE float weight_of(float s, float scale, float origin) {
  return ptx::exp2_approx(ptx::fused_multiply_add(s, scale, -origin));
}

}  // namespace octavo::sm90
