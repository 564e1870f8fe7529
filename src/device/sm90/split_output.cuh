// Where the parts of the keys have put their results together: pieces of O are stored from
// registers, by the threads that gathered them, and LSE.
#pragma once

#include "device/core/output.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/sm90/epilogue.cuh"
#include "device/sm90/exchange.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

// kInCta: registers of O that a warpgroup's thread has after its CTA put together its own; kPiece:
// after the cluster did.
template <class G, int kInCta, int kPiece>
struct SplitOutput {
  using Lane = typename G::Lane;
  using Place = typename G::Place;
  static constexpr Sm90Forward C = G::C;

  // Two lanes that share four columns of each eight: of 16 columns the even one stores those of the
  // first eight, the odd one those of the second. Four lanes then fill whole sectors of a row;
  // pairs of columns fill half of one, and at (2,8,512,128), where all CTAs store at once, take 1.4
  // us.
  static constexpr bool kByFour = C.out != Element::f32 && kPiece % 8 == 0;

  // A thread's part of O: where it stores in its two rows. All of it is known while the keys are on
  // their way, and at the end each of these reads would be waited for (0.1 to 0.2 us). Where an SM
  // has several CTAs others fill that wait, and the registers would cost one of them.
  static constexpr bool kDestinationFirst = C.cluster > 1 || 2 * G::S.total > kSmemBytes;
  struct Destination {
    u8* row[2];
    i32 columns[2];             // of the row from there on; none where there is no such row
    float inverse[2] = {1, 1};  // of the scales of 8-bit outputs
  };
  // The first column of a thread's piece.
  static OCTAVO_DEVICE i32 piece_begin(const Lane& w, u32 rank) {
    return static_cast<i32>(G::key_group(w) * kInCta + rank * kPiece) * 2;
  }
  static OCTAVO_DEVICE bool exists(const Sm90ForwardParams& p, const Place& w, u32 half) {
    const bool shares_keys = !C.pack_heads || G::head_of(p, w.row(half)) < p.heads_per_kv;
    return w.query(p, half) < w.at.len_q && shares_keys;
  }
  // The head that a row belongs to.
  static OCTAVO_DEVICE Place in_head(const Sm90ForwardParams& p, const Place& w, u32 half) {
    Place at = w;
    at.head += G::head_of(p, w.row(half));
    return at;
  }
  static OCTAVO_DEVICE Destination destination(const Sm90ForwardParams& p, const Place& w,
                                               u32 rank) {
    const u32 t = w.lane % 4;
    const i32 column =
        piece_begin(w, rank) + static_cast<i32>(kByFour ? t % 2 * 8 + t / 2 * 4 : t * 2);
    Destination to;
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      to.row[half] = Epilogue<G>::row_of(p, in_head(p, w, half), w.query(p, half)) +
                     column * element_bytes(C.out);
      to.columns[half] = exists(p, w, half) ? p.head_dim - column : 0;
      ptx::pin(to.row[half]);
      ptx::pin(to.columns[half]);
      if constexpr (codes_out(C))
        to.inverse[half] =
            exists(p, w, half) ? Epilogue<G>::inverse_of(p, in_head(p, w, half)) : 1.0f;
    }
    return to;
  }

  // A piece of a row: pairs of columns, eight apart.
  static OCTAVO_DEVICE void store_row(const float (&pairs)[kPiece / 4][2], u8* to, i32 columns,
                                      float inverse, bool odd) {
    if constexpr (kByFour) {
      OCTAVO_UNROLL
      for (int i = 0; i < kPiece / 4; i += 2) {
        const u32 first = Epilogue<G>::pack(pairs[i][0], pairs[i][1], inverse);
        const u32 second = Epilogue<G>::pack(pairs[i + 1][0], pairs[i + 1][1], inverse);
        const u32 received = Epilogue<G>::exchanged(odd ? first : second, 1);
        if (i * 8 < columns)
          Epilogue<G>::store_four(to + i * 8 * element_bytes(C.out), odd ? received : first,
                                  odd ? second : received);
      }
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < kPiece / 4; ++i)
        if (i * 8 < columns)
          Epilogue<G>::store_pair(to + i * 8 * element_bytes(C.out), pairs[i][0], pairs[i][1],
                                  inverse);
    }
  }

  // Rows of a warp are of one head, or where heads are packed each of its own.
  static OCTAVO_DEVICE void find_amax(const float (&amax)[2], const Sm90ForwardParams& p,
                                      const Place& w) {
    const OutputParams& output = Epilogue<G>::output_of(p);
    if constexpr (C.pack_heads) {
      OCTAVO_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const float of_row = largest_of_lanes<2>(amax[half]);
        if (w.lane % 4 == 0 && exists(p, w, half))
          gather_amax(output, w.sequence, in_head(p, w, half).head, of_row);
      }
    } else {
      const float of_warp = largest_of_lanes<5>(ptx::max_f32(amax[0], amax[1]));
      if (w.lane == 0) gather_amax(output, w.sequence, w.head, of_warp);
    }
  }

  // A piece of O, and LSE.
  static OCTAVO_DEVICE void store(const Piece<kPiece>& mine, const Destination& to,
                                  const Sm90ForwardParams& p, const Place& w, bool first) {
    float amax[2] = {0, 0};
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      float pairs[kPiece / 4][2];
      OCTAVO_UNROLL
      for (int i = 0; i < kPiece / 4; ++i) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          pairs[i][e] = mine.o[i * 4 + half * 2 + e];
          if (C.amax && exists(p, w, half)) amax[half] = larger_magnitude(amax[half], pairs[i][e]);
        }
      }
      store_row(pairs, to.row[half], to.columns[half], to.inverse[half], w.lane % 2 != 0);
      if (first && exists(p, w, half))
        Epilogue<G>::store_lse(mine.origin[half], mine.sum[half], p, in_head(p, w, half),
                               w.query(p, half));
    }
    if constexpr (C.amax) find_amax(amax, p, w);
  }
};

}  // namespace octavo::sm90
