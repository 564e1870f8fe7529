// One warpgroup's way through its blocks of keys: scores, softmax, and P V into O.
//
//   time      tensor cores                   the warpgroup
//   block j   scores(j), then p(j-1) v(j-1)  waits for scores(j); mask, maximum, exponentials;
//                                            waits for p(j-1) v(j-1); rescales o, rounds p(j)
//
// Where blocks come from is the caller's: `feed` has the rings k and v, and is told which of their
// buffers are no longer needed.
#pragma once

#include "device/ptx/mbarrier.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/products.cuh"
#include "device/sm90/softmax.cuh"

namespace octavo::sm90 {

template <class G>
struct Mainloop {
  using Place = typename G::Place;
  using State = typename G::State;
  using Scores = typename G::Scores;
  using Probabilities = typename G::Probabilities;
  using KvRing = typename G::KvRing;
  static constexpr Sm90Forward C = G::C;

  static OCTAVO_DEVICE void init(State& state) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kO; ++i) state.o[i] = 0;
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      state.max[half] = -kInfinity;
      state.sum[half] = 0;
    }
  }

  static OCTAVO_DEVICE void start_qk(Scores& scores, u64 q, const KvRing& k) {
    ptx::mbarrier_wait(G::k_full(k.stage), k.phase);
    ptx::pin(scores.s);
    ptx::wgmma_fence();
    Products<G>::qk(scores, q, k.stage);
    ptx::wgmma_commit();
  }
  static OCTAVO_DEVICE void start_pv(State& state, Probabilities& prob, const KvRing& v) {
    ptx::pin(state.o);
    Products<G>::pin_probabilities(prob);
    ptx::wgmma_fence();
    Products<G>::pv(state, prob, v.stage);
    ptx::wgmma_commit();
  }
  // V is waited for where the softmax ends: the wait also ends its basic block, without which the
  // compiler moves the wait for the product before the exponentials that are meant to hide it.
  static OCTAVO_DEVICE void wait_for_v(const KvRing& v) {
    ptx::mbarrier_wait(G::v_full(v.stage), v.phase);
  }
  static OCTAVO_DEVICE void finish_pv(State& state, Probabilities& prob) {
    ptx::wgmma_wait<0>();
    ptx::pin(state.o);
    Products<G>::pin_probabilities(prob);
  }

  // What a few blocks need before the softmax.
  static OCTAVO_DEVICE void prepare(Scores& scores, const Sm90ForwardParams& p, const Place& w,
                                    const BlockRange& range, i32 key) {
    if (p.negate) Softmax<G>::negate(scores);
    if (range.needs_mask(key, C.block_n)) Softmax<G>::apply_mask(scores, p, w, key);
  }

  // Blocks of keys from `key` on, at least one. Q is there.
  template <class Feed>
  static OCTAVO_DEVICE void run(State& state, const Sm90ForwardParams& p, const Place& w,
                                const BlockRange& range, i32 key, i32 blocks, Feed& feed) {
    const u64 q = Products<G>::q_descriptor(w.q_tile);
    Scores scores;
    Probabilities prob;
    start_qk(scores, q, feed.k);
    ptx::wgmma_wait<0>();
    ptx::pin(scores.s);
    feed.release_k(w);
    prepare(scores, p, w, range, key);
    Softmax<G>::step(scores, state, p.scale_log2);
    wait_for_v(feed.v);
    Softmax<G>::pack_p(prob, scores);
    for (i32 block = 1; block < blocks; ++block) {
      key += C.block_n;
      start_qk(scores, q, feed.k);
      start_pv(state, prob, feed.v);
      ptx::wgmma_wait<1>();
      ptx::pin(scores.s);
      feed.release_k(w);
      prepare(scores, p, w, range, key);
      const auto rescale = Softmax<G>::step(scores, state, p.scale_log2);
      // With a single buffer it comes only after the release.
      if constexpr (C.stages > 1) wait_for_v(feed.v.next());
      finish_pv(state, prob);
      feed.release_v(w);
      if constexpr (C.stages == 1) wait_for_v(feed.v);
      Softmax<G>::rescale(state, rescale);
      Softmax<G>::pack_p(prob, scores);
    }
    feed.release_q(w);
    start_pv(state, prob, feed.v);
    finish_pv(state, prob);
    feed.release_v(w);
  }
};

}  // namespace octavo::sm90
