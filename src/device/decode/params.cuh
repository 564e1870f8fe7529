// SPDX-License-Identifier: Apache-2.0
// Launch parameters of the decode kernel and of the kernel that combines its partial results.
#pragma once

#include "device/core/divider.cuh"
#include "device/core/params.cuh"

namespace octavo::decode {

// A paged KV cache: K and V are (pages, heads, page_size, head_dim), and key j of a sequence is row
// j % page_size of page table[sequence][j / page_size].
struct PageParams {
  const i32* table = nullptr;  // null: K and V are not paged
  i64 stride = 0;              // from one sequence's row of the table to the next
  i64 entries = 0;             // from the first to behind the last entry of all sequences
  i32 page_size = 0;           // a multiple of 16
  Divider by_page_size;
  i32 last_page = 0;                       // of K and V; indices beyond are clamped
  i32 has_whole_blocks = 1;                // no warp's keys of a step cross a page
  u64 k_page_bytes = 0, v_page_bytes = 0;  // from one page to the next
};

// In the decode kernel ForwardParams::row_tiles is the number of work tiles of a KV head, of
// block_m query rows each.
struct Params : ModifiedForwardParams {
  PageParams paging;
  u32 k_row_bytes = 0, v_row_bytes = 0;  // from one key's row to the next
  i32 k_scale_per_key = 0;               // 8-bit K: a scale per key or block of keys, not per head
  i32 v_scale_per_key = 0;               // 8-bit V likewise; else per head or per channel
  Divider by_k_scale_rows, by_v_scale_rows;  // keys that share a scale
  Divider by_heads_per_kv;
  i32 heads_kv = 0;
  i32 batch = 0;
  float* partials = nullptr;  // partial_floats() for each partial result
  i32 ctas = 0;               // of the decode kernel, among which the KV tiles are divided
  Divider by_ctas, by_row_tiles, by_work_tiles;  // work tiles of a sequence
  i32 log2_cluster = 0;    // the CTAs of a cluster, which share a work tile; 0: no clusters
  i32 combine_rows = 0;    // rows of a work tile that exist
  i32 combine_warps = 0;   // of a CTA of the combine kernel
  i32 combine_by_row = 0;  // 1: each CTA combines one row of a work tile
  i32 most_parts = 0;      // batch_invariant: partial results of a work tile
  // int4: scales and zeros of K and V, f16 (pages, heads_kv, 2, groups, page_size).
  const u8* k_groups = nullptr;
  const u8* v_groups = nullptr;
  i32 groups = 0;  // of a row
  // One word for each query of the tensor. Its bit j is set if the query sees the key of query j.
  const i32* draft_tree = nullptr;
};

}  // namespace octavo::decode
