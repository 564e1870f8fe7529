// SPDX-License-Identifier: Apache-2.0
// Block masks in the Hopper kernel: the entries of a tile's lists, what the producer publishes of
// each, and the keys that partial blocks hide. Kernels without a block mask compile this code, but
// never call it.
#pragma once

#include "device/core/block_mask.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/prefetch.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/sm90/scheduler.cuh"
#include "device/sm90/score_registers.cuh"

namespace octavo::sm90 {

// The blocks of the mask in a block of keys: for each, its first key, and the index of its table of
// bits, or -1 without bits.
template <int kBlocks>
struct ListedKeys {
  i32 key[kBlocks], bits[kBlocks];
};

// The key in a column of a block of keys, which begins at key n or holds listed blocks.
template <class G>
OCTAVO_DEVICE i32 key_at(i32 n, i32 column) {
  return n + column;
}
template <class G, int kBlocks>
OCTAVO_DEVICE i32 key_at(const ListedKeys<kBlocks>& keys, i32 column) {
  constexpr i32 kKeys = loaded_keys(G::C);
  i32 first = keys.key[0];
  OCTAVO_UNROLL
  for (int b = 1; b < kBlocks; ++b)
    if (column >= b * kKeys) first = keys.key[b] - b * kKeys;
  return first + column;
}

template <class G>
struct ListedBlocks {
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr i32 kBlocks = listed_blocks(C), kKeys = loaded_keys(C);
  static constexpr i32 kSize = max_of(C.modifiers.block_mask, 32);
  static constexpr i32 kParts = max_of(kSize / C.block_n, 1);  // blocks of keys in one of the mask
  static_assert(
      !has_block_mask(C) || (kSize == block_m(C) && !is_split_kv(C) &&
                             (kSize % C.block_n == 0 || C.block_n == 2 * kSize)),
      "a tile's rows are a block of the mask, and its blocks of keys part of one, or two");
  static_assert(kBlocks == 1 || is_8bit_pv(C), "16-bit V is loaded as one block");
  using Keys = ListedKeys<kBlocks>;

  // The tile's block of keys number `number`. Where the lists end, a block begins after the last
  // key: TMA fills it with zeros, and the mask hides it.
  static OCTAVO_DEVICE Keys keys(const Sm90ForwardParams& p, const WorkTile& t, i32 number) {
    const BlockMaskParams& mask = G::block_mask(p);
    Keys keys;
    OCTAVO_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      const i32 entry = number / kParts * kBlocks + b;
      ListedBlock listed{mask.kv_blocks, -1};
      if (number < t.n_blocks && entry < t.blocks.count())
        listed = listed_block</*kOverlaps=*/true>(mask, t.blocks, entry);
      keys.key[b] = listed.block * kSize + number % kParts * C.block_n;
      keys.bits[b] = listed.bits;
    }
    return keys;
  }

  // A warp brings the beginning of a tile's lists into L2, because entries are read one after the
  // other, and each would wait for memory.
  static OCTAVO_DEVICE void prefetch(const Sm90ForwardParams& p, const WorkTile& t, u32 lane) {
    constexpr i32 kSectorEntries = 8;
    const i32 entry = static_cast<i32>(lane) * kSectorEntries;
    const auto bring = [&](const BlockListParams& list) {
      if (list.indices != nullptr && entry < list.capacity)
        ptx::prefetch_l2(list.indices + t.blocks.row * list.capacity + entry);
    };
    bring(G::block_mask(p).partial);
    bring(G::block_mask(p).full);
  }

  // By one thread of the producer, before it arrives at the stage's k_full. Without a block mask a
  // visit is only a number, and consumers know its keys.
  static OCTAVO_DEVICE void publish(u32 stage, const Keys& keys) {
    OCTAVO_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      ptx::store_shared_b32(G::listed(stage) + b * 8, static_cast<u32>(keys.key[b]));
      ptx::store_shared_b32(G::listed(stage) + b * 8 + 4, static_cast<u32>(keys.bits[b]));
    }
  }
  static OCTAVO_DEVICE void publish(u32 /*stage*/, i32 /*visit*/) {}
  // By the consumers, before they release K.
  static OCTAVO_DEVICE Keys read(u32 stage) {
    Keys keys;
    OCTAVO_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      u32 key, bits;
      ptx::load_shared_b64(G::listed(stage) + b * 8, key, bits);
      keys.key[b] = static_cast<i32>(key);
      keys.bits[b] = static_cast<i32>(bits);
    }
    return keys;
  }

  // --- mask -------------------------------------------------------------------------------------

  // Whether a row may not see all of the keys: a block has bits, or keys outside of those that all
  // rows see, from full_begin to full_end of the tile.
  template <class TileProgress>
  static OCTAVO_DEVICE bool hides_keys(const Keys& keys, const TileProgress& tile) {
    bool hides = false;
    OCTAVO_UNROLL
    for (int b = 0; b < kBlocks; ++b)
      hides = hides || keys.bits[b] >= 0 ||
              needs_mask(keys.key[b], kKeys, tile.full_begin, tile.full_end);
    return hides;
  }
  // Hides the keys that a row does not see: those outside its limits, and those without a bit. A
  // word has a bit for each of 32 keys, and each thread computes the words of its own two rows.
  template <class N>
  static OCTAVO_DEVICE void hide(typename N::Scores& scores, const Sm90ForwardParams& p,
                                 const typename G::RowTile& tile, const Keys& keys) {
    constexpr int kWords = div_up(C.block_n, 32);
    u32 words[2][kWords];
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const KeyLimits limits = key_limits(p, tile.span, tile.query(p, r));
      OCTAVO_UNROLL
      for (int w = 0; w < kWords; ++w) {
        const i32 key = key_at<G>(keys, w * 32), entry = keys.bits[w * 32 / kKeys];
        words[r][w] = bits_until(limits.end - key) & ~bits_until(limits.begin - key);
        if (entry < 0) continue;
        const i64 row = static_cast<i64>(entry) * kSize + tile.row(r) % kSize;
        words[r][w] &=
            ptx::load_coherent_b32(G::block_mask(p).bits + row * (kSize / 32) + key % kSize / 32);
      }
    }
    const u32 shift = tile.lane % 4 * 2;  // the thread's first column
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      OCTAVO_UNROLL
      for (u32 i = 0; i < G::kScoreN8; ++i)
        hide_pair(scores, i * 2 + r, words[r][i / 4] >> (shift + i % 4 * 8));
    }
    N::after_hiding(scores);
  }
  // The bits of the keys before number `end` of a word.
  static OCTAVO_DEVICE u32 bits_until(i32 end) {
    return ~ptx::shift_left(0xffffffffu, static_cast<u32>(max_of(end, 0)));
  }
  // Hides those scores of pair n8 * 2 + r whose bit is not set among the lowest two of `seen`.
  template <class Scores>
  static OCTAVO_DEVICE void hide_pair(Scores& scores, u32 pair, u32 seen) {
    if constexpr (has_f16_scores(C)) {
      const u32 halves = ((seen & 1) | (seen & 2) << 15) * 0xffffu;
      scores.pairs[pair] = (scores.pairs[pair] & halves) | (0xfc00fc00u & ~halves);
    } else {
      OCTAVO_UNROLL
      for (u32 e = 0; e < 2; ++e)
        ScoreRegisters<G>::hide(scores.s[pair * 2 + e], (seen >> e & 1) == 0);
    }
  }
};

}  // namespace octavo::sm90
