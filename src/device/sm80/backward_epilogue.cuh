// SPDX-License-Identifier: Apache-2.0
// Stores the gradients of a CTA's owned rows.
#pragma once

#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/sm80/backward_geometry.cuh"

namespace octavo::sm80 {

template <class G>
struct BackwardEpilogue {
  using Gradient = typename G::Gradient;
  using WorkTile = typename G::WorkTile;
  using Tile = typename G::Tile;
  static constexpr Sm80BackwardConfig C = G::C;

  // Rounds a gradient into shared memory, in the place of the owned rows.
  static OCTAVO_DEVICE void stage(const Gradient& gradient, float factor, const Tile& to,
                                  const WorkTile& tile) {
    OCTAVO_UNROLL
    for (int m = 0; m < G::kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < G::kTilesD; ++n) {
        OCTAVO_UNROLL
        for (int r = 0; r < 2; ++r) {
          const float(&x)[4] = gradient.x[m][n];
          ptx::store_shared_b32(to.byte_address(tile.row(m, r), tile.gradient_column(n) * 2),
                                G::Operands::pack_pair(x[r * 2] * factor, x[r * 2 + 1] * factor));
        }
      }
    }
  }

  // Stores whole 16-byte chunks of the rows and columns that exist.
  static OCTAVO_DEVICE void store(const Tile& from, void* to, const Strides& s, i32 head_dim,
                                  const WorkTile& tile) {
    constexpr u32 kChunks = Tile::kChunks;
    u8* const out = static_cast<u8*>(to) + (tile.batch * s.batch + tile.head * s.head +
                                            (tile.span.q_begin + tile.first_row) * s.row) *
                                               2;
    const u32 rows = static_cast<u32>(min_of(tile.span.seqlen_q - tile.first_row, G::kOwnRows));
    const u32 row_bytes = static_cast<u32>(head_dim * 2);
    OCTAVO_UNROLL_BY(4)
    for (u32 chunk = tile.thread; chunk < G::kOwnRows * kChunks; chunk += G::kThreads) {
      const u32 row = chunk / kChunks;
      const u32 byte = chunk % kChunks * 16;
      if (row >= rows || byte >= row_bytes) continue;
      u32 x[4];
      ptx::load_shared_b128(from.byte_address(row, byte), x);
      store_chunk(out + row * s.row * 2 + byte, x);
    }
  }

  static OCTAVO_DEVICE void store_chunk(u8* to, const u32 (&x)[4]) {
    if constexpr (C.load_bytes == 16) {
      ptx::store_global_b128(to, x);
    } else if constexpr (C.load_bytes == 8) {
      ptx::store_global_b64(to, x[0], x[1]);
      ptx::store_global_b64(to + 8, x[2], x[3]);
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) {
        if constexpr (C.load_bytes == 4) {
          ptx::store_global_b32(to + i * 4, x[i]);
        } else {
          ptx::store_global_b16(to + i * 4, static_cast<u16>(x[i]));
          ptx::store_global_b16(to + i * 4 + 2, static_cast<u16>(x[i] >> 16));
        }
      }
    }
  }

  // Zeroes the padding among the tensor's rows of this tile.
  static OCTAVO_DEVICE void clear_padding(const BackwardParams& p, const WorkTile& tile) {
    if (p.cu_seqlens_q != nullptr) return;
    if constexpr (G::kOwnsKeys) {
      clear_rows(p.dk, p.dk_strides, p.seqlen_kv, p.head_dim, tile);
      clear_rows(p.dv, p.dv_strides, p.seqlen_kv, p.head_dim, tile);
    } else {
      clear_rows(p.dq, p.dq_strides, p.seqlen_q, p.head_dim, tile);
    }
  }
  static OCTAVO_DEVICE void clear_rows(void* to, const Strides& s, i32 all_rows, i32 head_dim,
                                       const WorkTile& tile) {
    constexpr u32 kZeros[4] = {};
    u8* const out = static_cast<u8*>(to) + (tile.batch * s.batch + tile.head * s.head) * 2;
    const i32 rows = min_of(all_rows - tile.first_row, G::kOwnRows);
    const u32 row_bytes = static_cast<u32>(head_dim * 2);
    OCTAVO_ROLLED
    for (u32 i = tile.thread; i < static_cast<u32>(rows) * Tile::kChunks; i += G::kThreads) {
      const i32 row = tile.first_row + static_cast<i32>(i / Tile::kChunks);
      const u32 byte = i % Tile::kChunks * 16;
      const bool is_padding = ptx::mask_term(row < tile.span.q_begin, false) ||
                              ptx::mask_term(row >= tile.span.q_begin + tile.span.seqlen_q, false);
      if (is_padding && byte < row_bytes) store_chunk(out + row * s.row * 2 + byte, kZeros);
    }
  }

  static OCTAVO_DEVICE void store_gradients(const Gradient (&gradients)[G::kGradients],
                                            const BackwardParams& p, const WorkTile& tile) {
    ptx::cta_sync();  // the owned rows are no longer read
    stage(gradients[0], p.scale, G::own_tile(0), tile);
    if constexpr (G::kOwnsKeys) stage(gradients[1], 1.0f, G::own_tile(1), tile);
    ptx::cta_sync();
    if constexpr (G::kOwnsKeys) {
      store(G::own_tile(0), p.dk, p.dk_strides, p.head_dim, tile);
      store(G::own_tile(1), p.dv, p.dv_strides, p.head_dim, tile);
    } else {
      store(G::own_tile(0), p.dq, p.dq_strides, p.head_dim, tile);
    }
  }
};

}  // namespace octavo::sm80
