// The bits of a block mask's partial blocks, which each thread loads for its own two rows.
#pragma once

#include "device/core/block_mask.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/sm90/score_registers.cuh"

namespace octavo::sm90 {

// Hides the keys of the block at key n whose bits are not set; `entry` is the mask's block of bits.
template <class G>
OCTAVO_DEVICE void hide_unset_bits(float* s, const BlockMaskParams& p,
                                   const typename G::RowTile& tile, i32 n, i32 entry) {
  constexpr int kSize = G::C.modifiers.block_mask, kRowWords = kSize / 32;
  constexpr int kWords = G::C.block_n / 32;
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "32, 64 or 128 keys");
  const u32 shift = tile.lane % 4 * 2;  // the thread's first column
  OCTAVO_UNROLL
  for (u32 r = 0; r < 2; ++r) {
    const i64 row = static_cast<i64>(entry) * kSize + tile.row(r) % kSize;
    const u32* const at = p.bits + row * kRowWords + n % kSize / 32;
    u32 words[4];
    if constexpr (kWords == 4)
      ptx::load_coherent_b128(at, words);
    else if constexpr (kWords == 2)
      ptx::load_coherent_b64(at, words[0], words[1]);
    else
      words[0] = ptx::load_coherent_b32(at);
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScoreN8; ++i) {
      const u32 word = words[i / 4] >> shift;
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e)
        ScoreRegisters<G>::hide(s[i * 4 + r * 2 + e], (word >> (i % 4 * 8 + e) & 1) == 0);
    }
  }
}

}  // namespace octavo::sm90
