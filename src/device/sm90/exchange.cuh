// How parts of the keys put their results together, where the forward kernel divides them: each
// hands to the others the columns that they gather, and gathers its own.
#pragma once

#include "device/ptx/cluster.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

// Some columns of O, in kRegisters of each thread, with the maxima and sums they stand on.
template <int kRegisters>
struct Piece {
  float o[kRegisters];
  float origin[2];
  float sum[2];
};

// What one of kPeers, warpgroups of a CTA or CTAs of a cluster, does with results of kAll
// registers over its own keys, to have 1 / kPeers of the columns over the keys of all. A peer
// counts from itself: number n is n places after it, so that all of them run the same code. A
// path of its own for each costs up to 1400 cycles, as all of it is executed for the first time.
template <class G, bool kAcross, int kPeers, int kAll>
struct Exchange {
  using Lane = typename G::Lane;
  static constexpr Sm90Forward C = G::C;
  static constexpr int kMine = kAll / kPeers;
  static constexpr int kVectors = kMine / 4;  // of four floats a thread
  static constexpr u32 kPlace = kAcross ? G::S.receive_across : G::S.receive;
  static constexpr u32 kStats = kPlace + (kPeers - 1) * kVectors * threads(C) * 16;
  using All = Piece<kAll>;
  using Mine = Piece<kMine>;

  // Where `thread` finds 16 bytes of what number n hands it: of O, and, once for the four lanes
  // that share its rows, maxima and sums.
  static OCTAVO_DEVICE u32 received(u32 n, u32 i, u32 thread) {
    return ptx::shared_base() + kPlace + (((n - 1) * kVectors + i) * threads(C) + thread) * 16;
  }
  static OCTAVO_DEVICE u32 received_stats(u32 n, u32 thread) {
    return ptx::shared_base() + kStats + ((n - 1) * (threads(C) / 4) + thread / 4) * 16;
  }

  static OCTAVO_DEVICE void hand(u32 place, u32 to, const Lane& w, const float (&x)[4]) {
    const u32 words[4] = {ptx::bits_of(x[0]), ptx::bits_of(x[1]), ptx::bits_of(x[2]),
                          ptx::bits_of(x[3])};
    if constexpr (kAcross)
      ptx::st_async_b128(ptx::map_to_cta(place, to), words,
                         ptx::map_to_cta(G::pieces_full(w.group), to));
    else
      ptx::store_shared_b128(place, words);
  }

  // One of them by each of the four lanes.
  static OCTAVO_DEVICE void hand_stats(u32 place, u32 to, const Lane& w, const All& all) {
    const u32 t = w.lane % 4;
    const float low = t == 0 ? all.origin[0] : all.origin[1];
    const u32 word = ptx::bits_of(t < 2 ? low : t == 2 ? all.sum[0] : all.sum[1]);
    if constexpr (kAcross)
      ptx::st_async_b32(ptx::map_to_cta(place, to), word,
                        ptx::map_to_cta(G::pieces_full(w.group), to));
    else
      ptx::store_shared_b32(place, word);
  }

  static OCTAVO_DEVICE u32 number(u32 self, u32 n) { return (self + n) % kPeers; }

  // Columns of O by the number of the peer that puts them together: a choice of registers, as
  // nobody's place is known to the compiler.
  static OCTAVO_DEVICE All by_number(const All& all, u32 self) {
    All turned = all;
    OCTAVO_UNROLL
    for (u32 n = 0; n < kPeers; ++n) {
      OCTAVO_UNROLL
      for (int i = 0; i < kMine; ++i) {
        OCTAVO_UNROLL
        for (u32 c = 1; c < kPeers; ++c)
          if (self == c) turned.o[n * kMine + i] = all.o[(n + c) % kPeers * kMine + i];
      }
    }
    return turned;
  }

  // To every other one, to the thread there that has the same rows: it counts on from there.
  static OCTAVO_DEVICE void hand_out(const All& turned, u32 self, const Lane& w) {
    OCTAVO_UNROLL
    for (u32 n = 1; n < kPeers; ++n) {
      const u32 to = number(self, n);
      const u32 group = kAcross ? w.group : to * C.row_groups + w.group % C.row_groups;
      const u32 thread = group * kWarpgroup + w.warp * 32 + w.lane;
      hand_stats(received_stats(kPeers - n, thread) + w.lane % 4 * 4, to, w, turned);
      OCTAVO_UNROLL
      for (u32 i = 0; i < kVectors; ++i) {
        const float* const o = turned.o + n * kMine + i * 4;
        hand(received(kPeers - n, i, thread), to, w, {o[0], o[1], o[2], o[3]});
      }
    }
  }

  static OCTAVO_DEVICE void load(float (&x)[4], u32 place) {
    u32 words[4];
    ptx::load_shared_b128(place, words);
    OCTAVO_UNROLL
    for (int e = 0; e < 4; ++e) x[e] = ptx::float_of_bits(words[e]);
  }

  // The weights of all results; then what they add up to.
  static OCTAVO_DEVICE Mine gather(const All& turned) {
    Mine mine;
    float weight[kPeers][2];
    float stats[kPeers][4] = {{turned.origin[0], turned.origin[1], turned.sum[0], turned.sum[1]}};
    const u32 thread = ptx::thread_index();
    OCTAVO_UNROLL
    for (u32 n = 1; n < kPeers; ++n) load(stats[n], received_stats(n, thread));
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      // Who has no key for the row has no say, and may be at any origin.
      float origin = -kInfinity;
      OCTAVO_UNROLL
      for (u32 n = 0; n < kPeers; ++n) {
        if (stats[n][2 + half] == 0.0f) stats[n][half] = -kInfinity;
        origin = ptx::max_f32(origin, stats[n][half]);
      }
      if (origin == -kInfinity) origin = 0;
      float sum = 0;
      OCTAVO_UNROLL
      for (u32 n = 0; n < kPeers; ++n) {
        weight[n][half] = ptx::exp2_approx(stats[n][half] - origin);
        sum += weight[n][half] * stats[n][2 + half];
      }
      mine.origin[half] = origin;
      mine.sum[half] = sum;
    }
    OCTAVO_UNROLL
    for (u32 i = 0; i < kVectors; ++i) {
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) mine.o[i * 4 + e] = weight[0][e / 2] * turned.o[i * 4 + e];
      OCTAVO_UNROLL
      for (u32 n = 1; n < kPeers; ++n) {
        float x[4];
        load(x, received(n, i, thread));
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) mine.o[i * 4 + e] += weight[n][e / 2] * x[e];
      }
    }
    return mine;
  }

  static OCTAVO_DEVICE Mine run(const All& all, u32 self, const Lane& w) {
    if constexpr (kPeers == 1) {
      return all;
    } else {
      const All turned = by_number(all, self);
      if constexpr (kAcross) ptx::cluster_wait();  // the others' barriers are ready
      hand_out(turned, self, w);
      if constexpr (kAcross)
        ptx::mbarrier_wait_cluster(G::pieces_full(w.group), 0);
      else
        ptx::cta_sync();
      return gather(turned);
    }
  }
};

}  // namespace octavo::sm90
