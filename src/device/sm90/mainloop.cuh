// One warpgroup's way through its blocks of keys: scores, softmax, and P V into O.
//
//   time      tensor cores                   the warpgroup
//   block j   scores(j), then p(j-1) v(j-1)  waits for scores(j); mask, maximum, exponentials;
//                                            waits for p(j-1) v(j-1); rescales o, rounds p(j)
//
// Without `overlap` P V comes first. What overlaps is then the work of other warpgroups, and there
// are registers for larger blocks:
//
//   block j   p(j-1) v(j-1), then scores(j)  waits for p(j-1) v(j-1); waits for scores(j); mask,
//                                            maximum, rescales o; exponentials; rounds p(j)
//
// Of codes p(j-1) v(j-1) is a product of its own, folded into o when it is there.
//
// Where blocks come from is the caller's: `feed` has the rings k and v, and is told which of their
// buffers are no longer needed.
#pragma once

#include "device/ptx/mbarrier.cuh"
#include "device/sm90/byte_codes.cuh"
#include "device/sm90/byte_rows.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/half_rows.cuh"
#include "device/sm90/mask.cuh"
#include "device/sm90/products.cuh"
#include "device/sm90/scales.cuh"
#include "device/sm90/softmax.cuh"

namespace octavo::sm90 {

template <class G>
struct Mainloop {
  using Place = typename G::Place;
  using State = typename G::State;
  using Rows = typename G::Rows;
  using Scores = typename G::Scores;
  using Probabilities = typename G::Probabilities;
  using KvRing = typename G::KvRing;
  static constexpr Sm90Forward C = G::C;

  static OCTAVO_DEVICE void init(Rows& rows) {
    if constexpr (G::kHalves) HalfRows<G>::init(rows);
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      rows.limit[half] = -kInfinity;
      rows.origin[half] = kLowest;
      rows.sum[half] = rows.bytes[half] = 0;
    }
  }
  static OCTAVO_DEVICE void clear_o(State& state) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kO; ++i) state.o[i] = 0;
  }
  static OCTAVO_DEVICE void init(State& state) {
    clear_o(state);
    init(state.rows);
  }
  // Before a tile's first block; where nothing is folded its product replaces O.
  static OCTAVO_DEVICE void begin_o(State& state) {
    if constexpr (G::kFolds) clear_o(state);
  }
  static OCTAVO_DEVICE typename Scales<G>::Loaded load_scales(const Sm90ForwardParams& p,
                                                              const Place& w) {
    if constexpr (G::kCodes) return Scales<G>::load(p, w);
    return {};
  }
  static OCTAVO_DEVICE void begin_rows(Rows& rows, const Sm90ForwardParams& p,
                                       const typename Scales<G>::Loaded& scales) {
    init(rows);
    if constexpr (G::kCodes) Scales<G>::set(rows, p.scale_log2, scales);
  }

  // Whether a buffer is full. The answer takes some thirty cycles, and a product that waits for it
  // comes later by that: of codes it is asked for ahead, and comes while something else is done.
  static constexpr bool kAsks = G::kFolds && !C.split_keys;
  static OCTAVO_DEVICE bool has_k(const KvRing& k) {
    return kAsks && ptx::mbarrier_test(G::k_full(k.stage()), k.phase());
  }
  static OCTAVO_DEVICE bool has_v(const KvRing& v) {
    return kAsks && ptx::mbarrier_test(G::v_full(v.stage()), v.phase());
  }
  // Of biased scores what they start from comes first, before other products.
  static OCTAVO_DEVICE void start_bias(Scores& scores) {
    if constexpr (G::kBiased) {
      ptx::pin(scores.s);
      ptx::wgmma_fence();
      Products<G>::bias(scores);
      ptx::wgmma_commit();
    }
  }
  // kBehind: products that were started since then.
  template <int kBehind>
  static OCTAVO_DEVICE void finish_bias(Scores& scores) {
    if constexpr (G::kBiased) {
      ptx::wgmma_wait<kBehind>();
      ptx::pin(scores.s);
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScores; ++i)
        scores.sums[i] = static_cast<i32>(ptx::bits_of(scores.s[i]));
    }
  }
  static OCTAVO_DEVICE void start_qk(Scores& scores, u32 q, const KvRing& k) {
    start_bias(scores);
    finish_bias<0>(scores);
    start_products(scores, q, k, false);
  }
  static OCTAVO_DEVICE void start_products(Scores& scores, u32 q, const KvRing& k, bool there) {
    if (!there) ptx::mbarrier_wait(G::k_full(k.stage()), k.phase());
    ptx::pin(Products<G>::sums_of(scores));
    ptx::wgmma_fence();
    Products<G>::qk(scores, q, k.stage());
    ptx::wgmma_commit();
  }
  // Scores are there but for the scales of their keys, which go with K.
  static OCTAVO_DEVICE void finish_qk(Scores& scores, const KvRing& k, u32 lane) {
    ptx::pin(Products<G>::sums_of(scores));
    if constexpr (G::kIntegers && !G::kBiased && !C.k_row_scales)
      ByteRows<G>::find_largest_sums(scores);
    if constexpr (G::kIntegerScores) Softmax<G>::convert(scores);
    if constexpr (C.k_row_scales) Scales<G>::multiply(scores, k.stage(), lane);
    if constexpr (G::kIntegers && C.k_row_scales) ByteRows<G>::find_largest(scores);
    if constexpr (C.k_block_scales) Scales<G>::load_of_keys(scores, k.stage());
  }
  // `adds`: to what O holds, else in its place. Of codes the first part of the product is started.
  static OCTAVO_DEVICE void start_pv(State& state, Probabilities& prob, const KvRing& v,
                                     bool adds) {
    start_part(state, prob, v, 0, adds);
  }
  // V is waited for where the softmax ends: the wait also ends its basic block, without which the
  // compiler moves the wait for the product before the exponentials that are meant to hide it.
  static OCTAVO_DEVICE void wait_for_v(const KvRing& v, bool there = false) {
    if (!there) ptx::mbarrier_wait(G::v_full(v.stage()), v.phase());
  }
  // `rows`: as they were after the block's own softmax.
  static OCTAVO_DEVICE void finish_pv(State& state, Probabilities& prob, const KvRing& v,
                                      const Rows& rows) {
    finish_parts<false>(state, prob, v, rows, [] {});
  }
  // All of P V, with the next scores under way while its last part is folded.
  static OCTAVO_DEVICE void pv_then_qk(State& state, Probabilities& prob, const KvRing& v,
                                       Scores& scores, u32 q, const KvRing& k, bool adds) {
    const bool there = has_k(k);
    if constexpr (C.scores_behind) start_bias(scores);
    start_pv(state, prob, v, adds);
    finish_parts<C.scores_behind>(state, prob, v, state.rows, [&] {
      if constexpr (!C.scores_behind) start_bias(scores);
      finish_bias<C.scores_behind ? 1 : 0>(scores);
      start_products(scores, q, k, there);
    });
  }

  // Of codes P V is a product of its own, in parts that are folded into O.
  static OCTAVO_DEVICE void start_part(State& state, Probabilities& prob, const KvRing& v, int part,
                                       bool adds = false) {
    Products<G>::pin_part(state, part);
    Products<G>::pin_probabilities(prob);
    ptx::wgmma_fence();
    if constexpr (G::kFolds)
      Products<G>::pv_part(state, prob, v.stage(), part);
    else
      Products<G>::pv(state, prob, v.stage(), adds);
    ptx::wgmma_commit();
  }
  // The first is under way. `follow` starts what comes after the last: behind it, or when it is
  // there.
  template <bool kBehind, class Follow>
  static OCTAVO_DEVICE void finish_parts(State& state, Probabilities& prob, const KvRing& v,
                                         const Rows& rows, Follow&& follow) {
    OCTAVO_UNROLL
    for (int part = 0; part < G::kProducts; ++part) {
      const bool last = part + 1 == G::kProducts;
      const auto next = [&] {
        if (last)
          follow();
        else
          start_part(state, prob, v, part + 1);
      };
      const bool behind = last ? kBehind : C.fold_buffers == 2;
      if (behind) {
        next();
        ptx::wgmma_wait<1>();
      } else {
        ptx::wgmma_wait<0>();
      }
      Products<G>::pin_part(state, part);
      Products<G>::pin_probabilities(prob);
      if (last && !behind) next();
      if constexpr (G::kFolds) fold(state, rows, part);
      if (!last && !behind) next();
    }
  }

  static OCTAVO_DEVICE void fold(State& state, const Rows& rows, int part) {
    Products<G>::with_part(state, part,
                           [&](auto& t) { Softmax<G>::fold(t, state, rows, part % G::kParts); });
  }

  // What a few blocks need before the softmax.
  static OCTAVO_DEVICE void prepare(Scores& scores, const Sm90ForwardParams& p, const Place& w,
                                    const BlockRange& range, i32 key) {
    if (!range.needs_mask(key, C.block_n) && !p.negate) return;
    if (p.negate) Mask<G>::negate(scores);
    Mask<G>::apply_mask(scores, p, w, key);
  }

  // Scores become P. When a row's origin moves, which is rare after the first block, O is behind by
  // alpha until the product that still adds to it is done. Other warps of the warpgroup may have no
  // such row: only they all together may wait for a product.
  struct Behind {
    bool any;
    float alpha[2];
  };
  // `first`: of a tile, whose rows have no origin yet. `moved`: what else is to be done where
  // origins move.
  template <class Moved>
  static OCTAVO_DEVICE void find_origins(Scores& scores, Rows& rows, float scale, bool first,
                                         float (&alpha)[2], Moved&& moved) {
    typename Softmax<G>::Largest largest;
    if constexpr (G::kIntegers) {
      if constexpr (G::kBiased) ByteRows<G>::find_largest(scores);
      if (ByteRows<G>::take_block_origins(scores, rows)) {
        ByteRows<G>::raise_origins(rows, alpha);
        moved();
        if constexpr (G::kBiased) ByteCodes<G>::bring_near(scores);
      }
      ByteRows<G>::weigh_block(rows);
    } else if (Softmax<G>::passes_limit(scores, rows, largest, first)) {
      Softmax<G>::move_origins(rows, scores, largest, scale, alpha);
      moved();
      if constexpr (G::kHalves) Softmax<G>::move_scores(scores, rows);
    }
  }
  // `prepared`: the block was, and some of its keys may be hidden from all.
  static OCTAVO_DEVICE void exponentials(Scores& scores, Rows& rows, float scale,
                                         bool prepared = false) {
    if constexpr (G::kMasksGroups)
      if (prepared) return ByteCodes<G>::masked_exponentials(scores, rows);
    Softmax<G>::exponentials(scores, rows, scale, 0, G::kScores / 4);
  }
  static OCTAVO_DEVICE Behind softmax(Scores& scores, Rows& rows, float scale, bool first,
                                      bool prepared = false) {
    Behind behind{false, {1, 1}};
    find_origins(scores, rows, scale, first, behind.alpha, [&] { behind.any = true; });
    exponentials(scores, rows, scale, prepared);
    return behind;
  }
  static OCTAVO_DEVICE void catch_up(State& state, const Behind& behind) {
    if (behind.any) Softmax<G>::rescale(state, behind.alpha);
  }
  // Where no product still adds to O: it is never behind. Of codes that is one branch less.
  static OCTAVO_DEVICE void take_origins(Scores& scores, State& state, float scale, bool first) {
    Behind behind{false, {1, 1}};
    find_origins(scores, state.rows, scale, first, behind.alpha, [&] {
      if (!G::kFolds)
        behind.any = true;
      else if (!first)
        Softmax<G>::rescale(state, behind.alpha);
    });
    if (!first) catch_up(state, behind);
  }

  // Blocks of keys from `key` on, at least one. Q is there.
  template <class Feed>
  static OCTAVO_DEVICE void run(State& state, const Sm90ForwardParams& p, const Place& w,
                                const BlockRange& range, i32 key, i32 blocks, u32 q_tile,
                                Feed& feed) {
    const u32 q = Products<G>::q_descriptor(q_tile);
    Scores scores;
    Probabilities prob;
    start_qk(scores, q, feed.k);
    ptx::wgmma_wait<0>();
    finish_qk(scores, feed.k, w.lane);
    feed.release_k(w);
    prepare(scores, p, w, range, key);
    softmax(scores, state.rows, p.scale_log2, true);
    wait_for_v(feed.v);
    Softmax<G>::pack_p(prob, scores, state.rows);
    for (i32 block = 1; block < blocks; ++block) {
      key += C.block_n;
      start_qk(scores, q, feed.k);
      start_pv(state, prob, feed.v, block > 1);
      ptx::wgmma_wait<1>();
      finish_qk(scores, feed.k, w.lane);
      feed.release_k(w);
      prepare(scores, p, w, range, key);
      const Rows before = state.rows;
      const Behind behind = softmax(scores, state.rows, p.scale_log2, false);
      // With a single buffer it comes only after the release.
      if constexpr (C.stages > 1) wait_for_v(feed.v.next());
      finish_pv(state, prob, feed.v, before);
      feed.release_v(w);
      catch_up(state, behind);
      if constexpr (C.stages == 1) wait_for_v(feed.v);
      Softmax<G>::pack_p(prob, scores, state.rows);
    }
    start_pv(state, prob, feed.v, blocks > 1);
    finish_pv(state, prob, feed.v, state.rows);
    feed.release_v(w);
  }

  // Exponentials and P V of a block whose origins are known: P V begins with its first keys, while
  // the exponentials of the others are computed.
  static OCTAVO_DEVICE void pv_in_steps(Scores& scores, State& state, const KvRing& v, float scale,
                                        bool adds) {
    // At once: 64 keys, or all.
    constexpr int kSteps = C.block_n % 64 == 0 ? 64 / G::kStepKeys : G::kPvSteps;
    constexpr int kTiles = G::kStepKeys / 8;
    constexpr int kLast = G::kKeyParts - 1;
    Products<G>::pin_part(state, 0);
    if constexpr (kLast > 0) Products<G>::pin_part(state, kLast);
    Probabilities prob;
    OCTAVO_UNROLL
    for (int from = 0; from < G::kPvSteps; from += kSteps) {
      Softmax<G>::exponentials(scores, state.rows, scale, from * kTiles, (from + kSteps) * kTiles);
      OCTAVO_UNROLL
      for (int step = from; step < from + kSteps; ++step) {
        Softmax<G>::pack_step(prob, scores, step);
        ptx::pin(prob.a[step]);
      }
      ByteRows<G>::add_up(prob, state.rows, from, from + kSteps);
      ptx::wgmma_fence();
      OCTAVO_UNROLL
      for (int step = from; step < from + kSteps; ++step) {
        if constexpr (G::kFolds)
          Products<G>::pv_part_step(state, prob, v.stage(), step, step / G::kFoldedSteps);
        else
          Products<G>::pv_step(state, prob, v.stage(), step, step > 0 || adds);
      }
      ptx::wgmma_commit();
    }
    if constexpr (kLast == 0) {
      finish_pv(state, prob, v, state.rows);
    } else {  // all is under way
      ptx::wgmma_wait<G::kFoldedSteps / kSteps>();
      Products<G>::pin_part(state, 0);
      fold(state, state.rows, 0);
      ptx::wgmma_wait<0>();
      Products<G>::pin_part(state, kLast);
      Products<G>::pin_probabilities(prob);
      fold(state, state.rows, kLast);
    }
  }

  // The same blocks, one product after the other. Of codes the next scores are under way while P V
  // is folded.
  template <class Feed>
  static OCTAVO_DEVICE void run_in_turn(State& state, const Sm90ForwardParams& p, const Place& w,
                                        const BlockRange& range, i32 key, i32 blocks, u32 q_tile,
                                        Feed& feed) {
    const u32 q = Products<G>::q_descriptor(q_tile);
    Scores scores;
    i32 block = 0;
    if constexpr (G::kFolds) {
      start_qk(scores, q, feed.k);
      ptx::wgmma_wait<0>();
      for (; block + 1 < blocks; ++block) {
        finish_qk(scores, feed.k, w.lane);
        feed.release_k(w);
        prepare(scores, p, w, range, key);
        take_origins(scores, state, p.scale_log2, block == 0);
        exponentials(scores, state.rows, p.scale_log2);
        Probabilities prob;
        Softmax<G>::pack_p(prob, scores, state.rows);
        wait_for_v(feed.v);
        pv_then_qk(state, prob, feed.v, scores, q, feed.k, true);
        feed.release_v(w);
        ptx::wgmma_wait<0>();
        key += C.block_n;
      }
    }
    for (; block < blocks; ++block) {
      if constexpr (!G::kFolds) {
        start_qk(scores, q, feed.k);
        ptx::wgmma_wait<0>();
      }
      finish_qk(scores, feed.k, w.lane);
      feed.release_k(w);
      prepare(scores, p, w, range, key);
      take_origins(scores, state, p.scale_log2, block == 0);
      wait_for_v(feed.v);
      pv_in_steps(scores, state, feed.v, p.scale_log2, block > 0);
      feed.release_v(w);
      key += C.block_n;
    }
  }
};

}  // namespace octavo::sm90
