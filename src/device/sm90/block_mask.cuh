// Block masks in the Hopper kernel: the entries of a tile's lists, what the producer publishes of
// each, and the bits of partial blocks. Kernels without a block mask compile this code, but never
// call it.
#pragma once

#include "device/core/block_mask.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/sm90/scheduler.cuh"
#include "device/sm90/score_registers.cuh"

namespace octavo::sm90 {

// A listed block of block_n keys: its first key, and the index of its table of bits, or -1.
struct ListedKeys {
  i32 key, bits;
};

template <class G>
struct ListedBlocks {
  static constexpr Sm90ForwardConfig C = G::C;
  static_assert(!has_block_mask(C) || (C.modifiers.block_mask == block_m(C) &&
                                       C.modifiers.block_mask % C.block_n == 0 && !is_split_kv(C)),
                "a tile's rows are a block of the mask, and a block of keys is part of one");
  static constexpr i32 kParts =
      max_of(C.modifiers.block_mask / C.block_n, 1);  // blocks of keys in one of the mask

  // The tile's listed block number `number`.
  static OCTAVO_DEVICE ListedKeys keys(const Sm90ForwardParams& p, const WorkTile& t, i32 number) {
    if (number >= t.n_blocks) return {0, -1};
    const ListedBlock listed =
        listed_block</*kOverlaps=*/true>(G::block_mask(p), t.blocks, number / kParts);
    return {listed.block * C.modifiers.block_mask + number % kParts * C.block_n, listed.bits};
  }

  // By one thread of the producer, before it arrives at the stage's k_full. Without a block mask a
  // visit is only a number, and consumers know its keys.
  static OCTAVO_DEVICE void publish(u32 stage, const ListedKeys& keys) {
    ptx::store_shared_b32(G::listed(stage), static_cast<u32>(keys.key));
    ptx::store_shared_b32(G::listed(stage) + 4, static_cast<u32>(keys.bits));
  }
  static OCTAVO_DEVICE void publish(u32 /*stage*/, i32 /*visit*/) {}
  // By the consumers, before they release K.
  static OCTAVO_DEVICE ListedKeys read(u32 stage) {
    u32 key, bits;
    ptx::load_shared_b64(G::listed(stage), key, bits);
    return {static_cast<i32>(key), static_cast<i32>(bits)};
  }

  // Scores that are not floats: only 8-bit kernels have them, and those have no block masks.
  template <class Score>
  static OCTAVO_DEVICE void hide_unset(Score*, const BlockMaskParams&, const typename G::RowTile&,
                                       i32, i32) {}
  // Hides the keys of the block at key n whose bits are not set; `entry` is the index of the table
  // of bits. Each thread loads the words of its own two rows.
  static OCTAVO_DEVICE void hide_unset(float* s, const BlockMaskParams& p,
                                       const typename G::RowTile& tile, i32 n, i32 entry) {
    constexpr int kSize = max_of(C.modifiers.block_mask, 32), kRowWords = kSize / 32;
    const u32 shift = tile.lane % 4 * 2;  // the thread's first column
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const i64 row = static_cast<i64>(entry) * kSize + tile.row(r) % kSize;
      const u32* const words = p.bits + row * kRowWords + n % kSize / 32;
      u32 word = 0;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScoreN8; ++i) {
        if (i % 4 == 0) word = ptx::load_coherent_b32(words + i / 4) >> shift;
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e)
          ScoreRegisters<G>::hide(s[i * 4 + r * 2 + e], (word >> (i % 4 * 8 + e) & 1) == 0);
      }
    }
  }
};

}  // namespace octavo::sm90
