// SPDX-License-Identifier: Apache-2.0
// How the splits of a split-KV kernel combine their results (a reduce-scatter): each split reduces
// one range of O's columns, for which every other split sends it these columns, ref_max and row
// sum.
#pragma once

#include "device/ptx/cluster.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

// The result of a split: some columns of O, in kRegisters of each thread, and of its rows ref_max
// and sum.
template <int kRegisters>
struct Partial {
  float o[kRegisters];
  float ref_max[2];
  float sum[2];
};

// The kPeers peers are warpgroups of a CTA, or with kAcross CTAs of a cluster. Each has kAll
// registers of O over its own keys, and gets 1 / kPeers of the columns over all keys. Peers are
// numbered relative to this one, modulo kPeers, so that all run the same code: separate code for
// each would cost up to 1400 cycles, as all of it would be executed for the first time.
template <class G, bool kAcross, int kPeers, int kAll>
struct SplitExchange {
  using ThreadCoord = typename G::ThreadCoord;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr int kMine = kAll / kPeers;
  static constexpr int kVectors = kMine / 4;  // of four floats a thread
  static constexpr u32 kReceive = kAcross ? G::S.receive_cluster : G::S.receive_cta;
  static constexpr u32 kStats = kReceive + (kPeers - 1) * kVectors * threads(C) * 16;
  using All = Partial<kAll>;
  using Mine = Partial<kMine>;

  // Where `thread` finds 16 bytes that peer n has sent: of O; and, once for the four lanes that
  // share its rows, ref_max and sums.
  static OCTAVO_DEVICE u32 received(u32 n, u32 i, u32 thread) {
    return ptx::shared_base() + kReceive + (((n - 1) * kVectors + i) * threads(C) + thread) * 16;
  }
  static OCTAVO_DEVICE u32 received_stats(u32 n, u32 thread) {
    return ptx::shared_base() + kStats + ((n - 1) * (threads(C) / 4) + thread / 4) * 16;
  }

  static OCTAVO_DEVICE void send(u32 place, u32 to, const ThreadCoord& t, const float (&x)[4]) {
    const u32 words[4] = {ptx::bits_of(x[0]), ptx::bits_of(x[1]), ptx::bits_of(x[2]),
                          ptx::bits_of(x[3])};
    if constexpr (kAcross)
      ptx::st_async_b128(ptx::map_to_cta(place, to), words,
                         ptx::map_to_cta(G::partials_full(t.group), to));
    else
      ptx::store_shared_b128(place, words);
  }

  // Each of the four lanes sends one of the four values.
  static OCTAVO_DEVICE void send_stats(u32 place, u32 to, const ThreadCoord& t, const All& all) {
    const u32 i = t.lane % 4;
    const float low = i == 0 ? all.ref_max[0] : all.ref_max[1];
    const u32 word = ptx::bits_of(i < 2 ? low : i == 2 ? all.sum[0] : all.sum[1]);
    if constexpr (kAcross)
      ptx::st_async_b32(ptx::map_to_cta(place, to), word,
                        ptx::map_to_cta(G::partials_full(t.group), to));
    else
      ptx::store_shared_b32(place, word);
  }

  static OCTAVO_DEVICE u32 number(u32 self, u32 n) { return (self + n) % kPeers; }

  // O's columns in the order of the peers that reduce them. This selects registers, as the compiler
  // does not know this peer's number.
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

  // Sends to every other peer, to its thread that has the same rows.
  static OCTAVO_DEVICE void send_all(const All& turned, u32 self, const ThreadCoord& t) {
    OCTAVO_UNROLL
    for (u32 n = 1; n < kPeers; ++n) {
      const u32 to = number(self, n);
      const u32 group = kAcross ? t.group : to * C.row_groups + t.group % C.row_groups;
      const u32 thread = group * kWarpgroup + t.warp * 32 + t.lane;
      send_stats(received_stats(kPeers - n, thread) + t.lane % 4 * 4, to, t, turned);
      OCTAVO_UNROLL
      for (u32 i = 0; i < kVectors; ++i) {
        const float* const o = turned.o + n * kMine + i * 4;
        send(received(kPeers - n, i, thread), to, t, {o[0], o[1], o[2], o[3]});
      }
    }
  }

  static OCTAVO_DEVICE void load(float (&x)[4], u32 place) {
    u32 words[4];
    ptx::load_shared_b128(place, words);
    OCTAVO_UNROLL
    for (int e = 0; e < 4; ++e) x[e] = ptx::float_of_bits(words[e]);
  }

  // The weights of all results, then their sum.
  static OCTAVO_DEVICE Mine reduce(const All& turned) {
    Mine mine;
    float weight[kPeers][2];
    float stats[kPeers][4] = {{turned.ref_max[0], turned.ref_max[1], turned.sum[0], turned.sum[1]}};
    const u32 thread = ptx::thread_index();
    OCTAVO_UNROLL
    for (u32 n = 1; n < kPeers; ++n) load(stats[n], received_stats(n, thread));
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      // A split without a key for the row has no weight, whatever its ref_max.
      float ref_max = -kInfinity;
      OCTAVO_UNROLL
      for (u32 n = 0; n < kPeers; ++n) {
        if (stats[n][2 + half] == 0.0f) stats[n][half] = -kInfinity;
        ref_max = ptx::max_f32(ref_max, stats[n][half]);
      }
      if (ref_max == -kInfinity) ref_max = 0;
      float sum = 0;
      OCTAVO_UNROLL
      for (u32 n = 0; n < kPeers; ++n) {
        weight[n][half] = ptx::exp2_approx(stats[n][half] - ref_max);
        sum += weight[n][half] * stats[n][2 + half];
      }
      mine.ref_max[half] = ref_max;
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

  static OCTAVO_DEVICE Mine run(const All& all, u32 self, const ThreadCoord& t) {
    if constexpr (kPeers == 1) {
      return all;
    } else {
      const All turned = by_number(all, self);
      if (kAcross) ptx::cluster_wait();  // the others' barriers are ready
      send_all(turned, self, t);
      if constexpr (kAcross)
        ptx::mbarrier_wait_cluster(G::partials_full(t.group), 0);
      else
        ptx::cta_sync();
      return reduce(turned);
    }
  }
};

}  // namespace octavo::sm90
